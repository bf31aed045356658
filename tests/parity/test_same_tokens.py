"""The engine's tokens against those of the `tokenizers` package, for every split that is converted by its form."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from fixtures.pre_tokenizers import NAMES, PUBLISHED, steps, write_tokenizer
from llama_eagle.convert.pre_tokenizers import IGNORE_MERGES
from llama_eagle.convert.pre_tokenizers import load_encoder as load
from llama_eagle.convert.source import Checkpoint
from llama_eagle.convert.tokenizer import read_tokenizer
from llama_eagle.convert.writer import gguf_output
from llama_eagle.errors import InputError
from llama_eagle.sessions.models import Model
from llama_eagle.sessions.options import LoadOptions
from llama_eagle.sessions.same_tokens import TEXTS, Difference, compare_tokens, first_difference, special_texts
from llama_eagle.sessions.text import Tokenizer as EngineTokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

pytestmark = pytest.mark.native
SPECIAL = ["<|begin|>", "<|end|>", "<think>"]


@pytest.fixture(scope="module")
def trained() -> dict[str, Any]:
    """A tokenizer.json whose merges cross all borders of words, so that each other split gives other tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=3000, min_frequency=1, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([*TEXTS, *special_texts(SPECIAL)], trainer)
    tokenizer.add_tokens([AddedToken(text, special="think" not in text, normalized=False) for text in SPECIAL])
    return dict(json.loads(tokenizer.to_str()))


def vocabulary(folder: Path, data: dict[str, Any], pre: str | None = None, n_vocab: int = 4000) -> tuple[Path, Any]:
    """Write a tokenizer.json and the GGUF of its keys; return the GGUF and what the converter read."""
    (folder / "tokenizer.json").write_text(json.dumps(data), "utf-8")
    (folder / "config.json").write_text("{}")
    found = read_tokenizer(Checkpoint(folder, source="test"), n_vocab, pre=pre, force=True)
    with gguf_output(folder / "v.gguf", arch="qwen2") as out:
        found.write(out)
    return folder / "v.gguf", found


def with_split(trained: dict[str, Any], name: str) -> dict[str, Any]:
    split = {"type": "Sequence", "pretokenizers": steps(name)}
    return {**trained, "pre_tokenizer": split, "model": {**trained["model"], "ignore_merges": name in IGNORE_MERGES}}


@pytest.mark.parametrize("name", NAMES)
def test_every_split_gives_the_tokens_of_its_tokenizer(name: str, trained: dict[str, Any], tmp_path: Path) -> None:
    file, data = vocabulary(tmp_path, with_split(trained, name))
    assert data.pre == name
    assert compare_tokens(file, data) == []


def test_a_difference_is_shown_with_the_ids_around_it() -> None:
    other = (*range(10), 99, *range(11, 20))
    assert str(Difference("x", tuple(range(20)), other)) == (
        "'x' has the tokens [..., 7, 8, 9, 99, 11, 12, 13, 14, 15, 16, 17, ...] in tokenizer.json, but "
        "[..., 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, ...] in the engine"
    )


def test_the_encoder_is_loaded_once(trained: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Special tokens of tokenizer_config.json are added to it, which the next comparison must not see."""
    loaded = []
    monkeypatch.setattr(
        "llama_eagle.convert.pre_tokenizers.load_encoder", lambda file: loaded.append(file) or load(file)
    )
    file, data = vocabulary(tmp_path, with_split(trained, "qwen2"))
    data.types[5] = 3
    assert compare_tokens(file, data) != []
    assert loaded == [tmp_path / "tokenizer.json"]
    data.types[5] = 1
    assert compare_tokens(file, data) == []


def test_a_name_that_llama_cpp_does_not_know(trained: dict[str, Any], tmp_path: Path) -> None:
    """The message names the option, not the file, which has a temporary name."""
    file, data = vocabulary(tmp_path, with_split(trained, "qwen2"), pre="unknown")
    with pytest.raises(InputError, match=r"^llama.cpp cannot load .*'unknown'. Correct .* of --pre"):
        compare_tokens(file, data)


NEW = {0x1C89, 0x1C8A}  # of Unicode 16, unknown to llama.cpp
LETTERS = [c for c in map(chr, (*range(0x600), *range(0x900, 0xA00), *range(0x1C00, 0x2000))) if ord(c) not in NEW]


@pytest.mark.parametrize("name", ["tekken", "gpt-4o"])
def test_words_end_where_the_case_changes(name: str, trained: dict[str, Any], tmp_path: Path) -> None:
    """Any two bytes of a word can be one token, so that each end of a word shows."""
    data = with_split(trained, name)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [(a, b) for a in alphabet for b in alphabet]
    vocab = {text: i for i, text in enumerate([*alphabet, *map("".join, pairs)])}
    added = [{**token, "id": len(vocab) + i} for i, token in enumerate(trained["added_tokens"])]
    data |= {"added_tokens": added, "model": {**data["model"], "vocab": vocab, "merges": pairs}}
    file, found = vocabulary(tmp_path, data, n_vocab=len(vocab) + len(added))
    parts = [f"a{c}B{c}c {c}{c}'{c}'S 1{c}/\n{c}'ll'\u0301 " for c in LETTERS if unicodedata.category(c)[0] in "LMN"]
    texts = ["".join(parts[i : i + 50]) for i in range(0, len(parts), 50)]
    encoder = found.encoder.get()
    with Model(file, LoadOptions(vocab_only=True)) as model:
        encode = lambda texts: [each.ids for each in encoder.encode_batch(texts)]  # noqa: E731
        assert first_difference(EngineTokenizer(model), encode, texts) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_vocabularies(name: str, tmp_path: Path) -> None:
    data = write_tokenizer(name, tmp_path)
    ids = [*data["model"]["vocab"].values(), *(token["id"] for token in data["added_tokens"])]
    file, found = vocabulary(tmp_path, data, n_vocab=max(ids) + 1)
    assert compare_tokens(file, found) == []


@pytest.mark.parametrize("name", NAMES)
def test_every_other_split_is_found(name: str, trained: dict[str, Any], tmp_path: Path) -> None:
    other = "qwen2" if name not in ("qwen2", "qwen35") else "llama-bpe"
    file, data = vocabulary(tmp_path, with_split(trained, name), pre=other)
    (found,) = compare_tokens(file, data)
    assert "in the engine" in found


def with_flags(data: dict[str, Any], **flags: bool) -> dict[str, Any]:
    added = [{**token, **flags} if token["content"] == "<think>" else token for token in data["added_tokens"]]
    return {**data, "added_tokens": added}


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "lower case": ({"normalizer": {"type": "Lowercase"}}, "its normalizer is Lowercase"),
    "compatibility forms": ({"normalizer": {"type": "NFKC"}}, "its normalizer is NFKC"),
    "a prepended space": ({"normalizer": {"type": "Prepend", "prepend": " "}}, "its normalizer is Prepend"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_reason_is_named(name: str, trained: dict[str, Any], tmp_path: Path) -> None:
    change, reason = CHANGES[name]
    file, data = vocabulary(tmp_path, {**with_split(trained, "qwen2"), **change})
    (found,) = compare_tokens(file, data)
    assert found.endswith(f"{reason}, which llama.cpp does not apply")


@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "single_word"])
def test_flags_of_added_tokens(flag: str, trained: dict[str, Any], tmp_path: Path) -> None:
    file, data = vocabulary(tmp_path, with_flags(with_split(trained, "qwen2"), **{flag: True}))
    (found,) = compare_tokens(file, data)
    assert found.endswith(f"'<think>' has the flag {flag}, which a GGUF cannot state")


@pytest.mark.parametrize("text", ["<|im_end|>", "</s>"])
def test_an_ordinary_entry_that_a_loader_takes_for_special(text: str, trained: dict[str, Any], tmp_path: Path) -> None:
    changed = with_split(trained, "qwen2")
    vocab = changed["model"]["vocab"]
    changed["model"] = {**changed["model"], "vocab": {**vocab, text: max(vocab.values()) + 10}}
    file, data = vocabulary(tmp_path, changed)
    found = compare_tokens(file, data)
    if text == "</s>":
        assert found == []
    else:
        assert "'<|im_end|>' for a special token" in found[0]


def test_tokens_that_share_characters(trained: dict[str, Any], tmp_path: Path) -> None:
    """tokenizer.json takes the first of them in a text, the engine the longer one."""
    first = 3500
    for texts, fits in ((("qz", "zj"), True), (("qz", "zjk"), False), (("qz", "zjk", "qzjk"), True)):
        added = [{**trained["added_tokens"][0], "id": first + i, "content": text} for i, text in enumerate(texts)]
        vocab = {**trained["model"]["vocab"], **{token["content"]: token["id"] for token in added}}
        changed = with_split({**trained, "model": {**trained["model"], "vocab": vocab}}, "qwen2")
        file, data = vocabulary(tmp_path, {**changed, "added_tokens": [*trained["added_tokens"], *added]})
        assert (compare_tokens(file, data) == []) == fits, texts


def test_tokens_around_a_text(trained: dict[str, Any], tmp_path: Path) -> None:
    """A post-processor with two tokens before a text; a GGUF states one of them."""
    begin, end = ({"SpecialToken": {"id": text, "type_id": 0}} for text in SPECIAL[:2])
    ids = {token["content"]: token["id"] for token in trained["added_tokens"]}
    known = {text: {"id": text, "ids": [ids[text]], "tokens": [text]} for text in SPECIAL[:2]}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    for single, fits in (([begin, text], True), ([begin, text, end], True), ([begin, begin, text], False)):
        template = {"type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": known}
        file, data = vocabulary(tmp_path, {**with_split(trained, "llama-bpe"), "post_processor": template})
        assert (compare_tokens(file, data) == []) == fits


def test_a_rendered_chat_is_compared(trained: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}\u1e9b\u0323{% endfor %}")
    changed = {**with_split(trained, "qwen2"), "normalizer": {"type": "NFC"}}
    file, data = vocabulary(tmp_path, changed)
    assert compare_tokens(file, data) == [], "NFC is not compared: no text of these has separate accents"
    (tmp_path / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}e\u0301{% endfor %}")
    file, data = vocabulary(tmp_path, changed)
    (found,) = compare_tokens(file, data)
    assert "Answer briefly." in found


@pytest.mark.parametrize("ignores", [False, True])
def test_the_rule_of_merges(ignores: bool, trained: dict[str, Any], tmp_path: Path) -> None:
    """A word of the vocabulary without merges is a token with one rule and letters with the other."""
    changed = with_split(trained, "llama-bpe")
    vocab = {**changed["model"]["vocab"], "qzqz": max(changed["model"]["vocab"].values()) + 10}
    changed["model"] = {**changed["model"], "vocab": vocab, "ignore_merges": ignores}
    file, found = vocabulary(tmp_path, changed)
    encoder = found.encoder.get()
    with Model(file, LoadOptions(vocab_only=True)) as model:
        encode = lambda texts: [each.ids for each in encoder.encode_batch(texts)]  # noqa: E731
        assert first_difference(EngineTokenizer(model), encode, ["qzqz", "a qzqz b", *TEXTS]) is None
    assert (len(encoder.encode("qzqz").ids) == 1) == ignores
