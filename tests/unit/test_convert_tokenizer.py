"""tokenizer.json to GGUF keys: against what transformers makes of the same folder, and as the keys of a GGUF."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import transformers
from fixtures.targets import special_tokens, write_tokenizer
from llama_eagle.convert.source import Checkpoint
from llama_eagle.convert.tokenizer import CONTROL, NORMAL, UNUSED, USER_DEFINED, read_tokenizer
from llama_eagle.convert.writer import gguf_output
from llama_eagle.errors import ConfigError, ConversionError
from llama_eagle.train.targets.tokenizer import CheckpointTokenizer

VOCAB = 500


@pytest.fixture(params=["qwen2", "qwen35", "llama-bpe", "smollm"])
def pre(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def open_folder(folder: Path, pre: str, config: dict[str, Any] | None = None) -> Checkpoint:
    write_tokenizer(folder, pre)
    (folder / "config.json").write_text(json.dumps(config or {}))
    return Checkpoint(folder, source="test")


def test_equals_transformers(pre: str, tmp_path: Path) -> None:
    data = read_tokenizer(open_folder(tmp_path, pre), VOCAB)
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert data.pre == pre
    assert len(data.tokens) == len(data.types) == VOCAB
    for text, token_id in reference.get_vocab().items():
        assert data.tokens[token_id] == text
    added = reference.added_tokens_decoder
    for token_id, kind in enumerate(data.types):
        special = CONTROL if token_id in added and added[token_id].special else USER_DEFINED
        assert kind == (UNUSED if token_id >= len(reference) else special if token_id in added else NORMAL)
    assert data.tokens[-1] == f"[PAD{VOCAB - 1}]"
    assert data.special_ids["eos"] == reference.eos_token_id
    assert data.special_ids.get("bos") == reference.bos_token_id
    assert data.add_special["bos"] == (reference("x")["input_ids"][0] == reference.bos_token_id)
    assert data.chat_templates == {"default": reference.chat_template}


def test_keys_of_a_gguf(pre: str, tmp_path: Path) -> None:
    data = read_tokenizer(open_folder(tmp_path, pre), VOCAB)
    with gguf_output(tmp_path / "t.gguf", arch="x") as out:
        data.write(out)
    fields = gguf.GGUFReader(tmp_path / "t.gguf").fields
    ids = {"bos": "bos_token_id", "eos": "eos_token_id", "pad": "padding_token_id", "unk": "unknown_token_id"}
    assert {name: field.contents() for name, field in fields.items() if name.startswith("tokenizer.")} == {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": data.tokens,
        "tokenizer.ggml.token_type": data.types,
        "tokenizer.ggml.merges": data.merges,
        **{f"tokenizer.ggml.{ids[name]}": token_id for name, token_id in data.special_ids.items()},
        **{f"tokenizer.ggml.add_{name}_token": value for name, value in data.add_special.items()},
        "tokenizer.chat_template": data.chat_templates["default"],
    }


def edit(folder: Path, file: str, change: Callable[[dict[str, Any]], None]) -> None:
    value = json.loads((folder / file).read_text())
    change(value)
    (folder / file).write_text(json.dumps(value))


def test_an_unknown_pre_tokenizer_is_refused_unless_named(tmp_path: Path) -> None:
    checkpoint = open_folder(tmp_path, "qwen2")
    edit(tmp_path, "tokenizer.json", lambda t: t["pre_tokenizer"]["pretokenizers"][0]["pattern"].update(Regex="x+"))
    with pytest.raises(ConfigError, match="--pre"):
        read_tokenizer(checkpoint, VOCAB)
    assert read_tokenizer(checkpoint, VOCAB, pre="qwen2").pre == "qwen2"


def test_old_merges_and_merges_with_spaces(tmp_path: Path) -> None:
    checkpoint = open_folder(tmp_path, "qwen2")
    expected = read_tokenizer(checkpoint, VOCAB).merges
    edit(tmp_path, "tokenizer.json", lambda t: t["model"].update(merges=[" ".join(m) for m in t["model"]["merges"]]))
    assert read_tokenizer(checkpoint, VOCAB).merges == expected
    edit(tmp_path, "tokenizer.json", lambda t: t["model"].update(merges=[["a b", "c"]]))
    assert read_tokenizer(checkpoint, VOCAB).merges == ["aĠb c"]


def test_ids_of_special_tokens_come_from_config_when_the_tokenizer_names_none(tmp_path: Path) -> None:
    checkpoint = open_folder(tmp_path, "qwen2", {"eos_token_id": [1, 2], "text_config": {"bos_token_id": 3}})
    edit(tmp_path, "tokenizer_config.json", lambda c: [c.pop("eos_token"), c.pop("pad_token")])
    assert read_tokenizer(checkpoint, VOCAB).special_ids == {"bos": 3, "eos": 1, "eot": 2}


def test_end_tokens_of_generation_config_are_the_last_resort(tmp_path: Path) -> None:
    checkpoint = open_folder(tmp_path, "qwen2", {"pad_token_id": -1})
    edit(tmp_path, "tokenizer_config.json", lambda c: [c.pop("eos_token"), c.pop("pad_token")])
    assert read_tokenizer(checkpoint, VOCAB).special_ids == {}  # -1 means none
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [482, 480]}')
    assert read_tokenizer(checkpoint, VOCAB).special_ids == {"eos": 482, "eot": 480}


IDS = {text: 480 + i for pre in ("qwen2", "llama-bpe") for i, text in enumerate(special_tokens(pre))}


def template(first: str | None, last: str | None, name: str = "{}") -> dict[str, Any]:
    """A post-processor that puts tokens around a text. name: form of its names for them."""
    around = [[{"SpecialToken": {"id": name.format(text), "type_id": 0}}] if text else [] for text in (first, last)]
    single = [*around[0], {"Sequence": {"id": "A", "type_id": 0}}, *around[1]]
    texts = {name.format(text): text for text in (first, last) if text}
    known = {id: {"id": id, "ids": [IDS[text]], "tokens": [text]} for id, text in texts.items()}
    return {"type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": known}


def test_an_end_token_that_is_appended_takes_precedence(tmp_path: Path) -> None:
    """As in Qwen3-Embedding, whose configured end token ends a turn."""
    checkpoint = open_folder(tmp_path, "qwen2")
    edit(tmp_path, "tokenizer.json", lambda t: t.update(post_processor=template(None, "<|endoftext|>")))
    data, ids = (
        read_tokenizer(checkpoint, VOCAB),
        {text: i for i, text in enumerate(read_tokenizer(checkpoint, VOCAB).tokens)},
    )
    assert data.add_special == {"bos": False, "eos": True}
    assert (data.special_ids["eos"], data.special_ids["eot"]) == (ids["<|endoftext|>"], ids["<|im_end|>"])
    edit(tmp_path, "tokenizer.json", lambda t: t.update(post_processor=template(None, "<|im_end|>")))
    assert "eot" not in read_tokenizer(checkpoint, VOCAB).special_ids


@pytest.mark.parametrize("first", [None, "<|im_start|>"])
@pytest.mark.parametrize("between", [None, "<|endoftext|>"])
def test_tokens_between_the_texts_of_a_pair(first: str | None, between: str | None, tmp_path: Path) -> None:
    """llama.cpp would put its separator there, which is another token."""
    checkpoint = open_folder(tmp_path, "qwen2")
    single, parts = template(first, "<|im_end|>"), template(None, between)["single"]
    pair = [*single["single"][:-1], *parts[1:], {"Sequence": {"id": "B", "type_id": 0}}, single["single"][-1]]
    known = single["special_tokens"] | template(None, between)["special_tokens"]
    edit(
        tmp_path, "tokenizer.json", lambda t: t.update(post_processor={**single, "pair": pair, "special_tokens": known})
    )
    assert read_tokenizer(checkpoint, VOCAB).add_special.get("sep") == (None if between is None else False)


def test_a_template_with_unknown_tokens_is_refused(tmp_path: Path) -> None:
    checkpoint = open_folder(tmp_path, "qwen2")
    broken = {**template(None, "<|im_end|>"), "special_tokens": {}}
    edit(tmp_path, "tokenizer.json", lambda t: t.update(post_processor=broken))
    with pytest.raises(ConversionError, match="im_end"):
        read_tokenizer(checkpoint, VOCAB)


def test_a_file_that_the_tokenizers_package_cannot_use_is_judged_by_our_reader(tmp_path: Path) -> None:
    checkpoint = open_folder(tmp_path, "qwen2")
    broken = template(None, "<|im_end|>")
    broken["single"] = [*broken["single"], {"SpecialToken": {"id": "<|nowhere|>", "type_id": 0}}, broken["single"][-1]]
    edit(tmp_path, "tokenizer.json", lambda t: t.update(post_processor=broken))
    assert read_tokenizer(checkpoint, VOCAB).pre == "qwen2"


def test_a_first_token_that_is_not_configured(tmp_path: Path) -> None:
    checkpoint = open_folder(tmp_path, "llama-bpe")
    bos = read_tokenizer(checkpoint, VOCAB).special_ids["bos"]
    edit(tmp_path, "tokenizer_config.json", lambda c: c.pop("bos_token"))
    assert read_tokenizer(checkpoint, VOCAB).special_ids["bos"] == bos
    edit(tmp_path, "tokenizer_config.json", lambda c: c.update(bos_token="<|eot_id|>", cls_token="<|eot_id|>"))
    assert read_tokenizer(checkpoint, VOCAB).add_special["bos"] is False


def test_sentencepiece_is_refused_even_with_a_named_pre_tokenizer(tmp_path: Path) -> None:
    checkpoint = open_folder(tmp_path, "llama-bpe")
    fallback = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]}
    edit(tmp_path, "tokenizer.json", lambda t: t.update(pre_tokenizer=None, decoder=fallback))
    with pytest.raises(ConversionError, match="SentencePiece"):
        read_tokenizer(checkpoint, VOCAB, pre="llama-bpe")


def test_old_files_do_not_name_the_type(tmp_path: Path) -> None:
    checkpoint = open_folder(tmp_path, "qwen2")
    edit(tmp_path, "tokenizer.json", lambda t: t["model"].pop("type"))
    assert read_tokenizer(checkpoint, VOCAB).pre == "qwen2"


def test_added_tokens_keep_their_text(tmp_path: Path) -> None:
    """U+2581 is no space in byte-level BPE, though llama.cpp's converter writes one."""
    checkpoint = open_folder(tmp_path, "qwen2")
    token = {"id": 490, "content": "\u2581\u2581", "special": False}
    edit(tmp_path, "tokenizer.json", lambda t: t["added_tokens"].append(token))
    assert read_tokenizer(checkpoint, VOCAB).tokens[490] == "\u2581\u2581"


def test_a_normalized_token_has_the_text_that_is_found(tmp_path: Path) -> None:
    """The accent is a character of its own in tokenizer.json. Two tokens of one text would end the engine."""
    checkpoint = open_folder(tmp_path, "qwen2")
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "special"), False)
    accent = {"id": 490, "content": "Cafe\u0301", "normalized": True, **flags}
    edit(tmp_path, "tokenizer.json", lambda t: t.update(normalizer={"type": "NFC"}))
    edit(tmp_path, "tokenizer.json", lambda t: t["added_tokens"].append(accent))
    assert read_tokenizer(checkpoint, VOCAB).tokens[490] == "Caf\u00e9"
    edit(tmp_path, "tokenizer.json", lambda t: t["added_tokens"].append({**accent, "id": 491}))
    with pytest.raises(ConversionError, match="has the ids 490 and 491"):
        read_tokenizer(checkpoint, VOCAB)


@pytest.mark.parametrize("value", [7, [{"name": "default", "template": {"a": 1}}], {"default": 3}])
def test_chat_templates_that_are_no_texts_are_refused(value: object, tmp_path: Path) -> None:
    checkpoint = open_folder(tmp_path, "qwen2")
    (tmp_path / "chat_template.jinja").unlink()
    edit(tmp_path, "tokenizer_config.json", lambda c: c.update(chat_template=value))
    with pytest.raises(ConfigError, match="chat_template"):
        read_tokenizer(checkpoint, VOCAB)


def test_chat_templates_by_name(tmp_path: Path) -> None:
    checkpoint = open_folder(tmp_path, "qwen2")
    (tmp_path / "chat_template.jinja").unlink()
    named = [{"name": "default", "template": "a"}, {"name": "tool use", "template": "b"}]
    edit(tmp_path, "tokenizer_config.json", lambda c: c.update(chat_template=named))
    assert read_tokenizer(checkpoint, VOCAB).chat_templates == {"default": "a", "tool_use": "b"}
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "rag.jinja").write_text("c")
    assert read_tokenizer(checkpoint, VOCAB).chat_templates == {"rag": "c"}
    assert transformers.AutoTokenizer.from_pretrained(tmp_path).chat_template == {"rag": "c"}


@pytest.mark.parametrize(
    "stated", ["other", [{"name": "default", "template": "other"}], {"default": "other", "tool_use": "x"}]
)
def test_the_template_is_that_of_transformers(stated: Any, tmp_path: Path) -> None:
    """It uses that of the file, if tokenizer_config.json has a different one."""
    checkpoint = open_folder(tmp_path, "qwen2")
    edit(tmp_path, "tokenizer_config.json", lambda c: c.update(chat_template=stated))
    data = read_tokenizer(checkpoint, VOCAB)
    assert data.chat_templates == {"default": transformers.AutoTokenizer.from_pretrained(tmp_path).chat_template}
    (warning,) = data.warnings
    assert "chat_template.jinja" in warning


def test_the_same_template_twice_is_no_warning(tmp_path: Path) -> None:
    checkpoint = open_folder(tmp_path, "qwen2")
    text = (tmp_path / "chat_template.jinja").read_text()
    edit(tmp_path, "tokenizer_config.json", lambda c: c.update(chat_template=text))
    assert read_tokenizer(checkpoint, VOCAB).warnings == []


@pytest.mark.parametrize("adds", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("stated", [None, False, True])
def test_added_tokens_are_those_of_transformers(adds: tuple[bool, bool], stated: bool | None, tmp_path: Path) -> None:
    """tokenizer_config.json's add_bos_token has no effect next to tokenizer.json; all answers are written."""
    checkpoint = open_folder(tmp_path, "llama-bpe")
    bos, eos = ("<|begin_of_text|>" if adds[0] else None), ("<|end_of_text|>" if adds[1] else None)
    edit(tmp_path, "tokenizer.json", lambda t: t.update(post_processor=template(bos, eos)))
    if stated is not None:
        edit(tmp_path, "tokenizer_config.json", lambda c: c.update(add_bos_token=stated, add_eos_token=stated))
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ids = reference("x")["input_ids"]
    data = read_tokenizer(checkpoint, VOCAB)
    assert data.add_special == {"bos": len(ids) > 1 and adds[0], "eos": len(ids) > 1 and adds[1]}
    assert len(ids) == 1 + sum(adds)
    nested = {"type": "Sequence", "processors": [template(bos, eos, "[{}]")]}
    edit(tmp_path, "tokenizer.json", lambda t: t.update(post_processor={"type": "Sequence", "processors": [nested]}))
    assert transformers.AutoTokenizer.from_pretrained(tmp_path)("x")["input_ids"] == ids
    assert read_tokenizer(checkpoint, VOCAB) == data
    if all(adds):
        around = {"cls": [bos, ids[0]], "sep": [eos, ids[-1]]}
        other = {"type": "RobertaProcessing", **around, "trim_offsets": True, "add_prefix_space": False}
        edit(tmp_path, "tokenizer.json", lambda t: t.update(post_processor=other))
        assert transformers.AutoTokenizer.from_pretrained(tmp_path)("x")["input_ids"] == ids
        assert read_tokenizer(checkpoint, VOCAB) == data


STATED_SPECIAL = [
    {"eos_token": "poses"},
    {"image_token": "poses", "eos_token": None},
    {"extra_special_tokens": {"u": "poses"}, "additional_special_tokens": ["onges"]},
    {"extra_special_tokens": ["poses"], "additional_special_tokens": ["onges"]},
    {"additional_special_tokens": [{"__type": "AddedToken", "content": "poses"}]},
    {"model_specific_special_tokens": {"u_token": "poses"}},
    {"add_token": True, "x_token_id": 7},
]


@pytest.mark.parametrize("stated", STATED_SPECIAL)
def test_a_special_token_outside_of_tokenizer_json(stated: dict[str, Any], tmp_path: Path) -> None:
    """transformers makes an ordinary entry of the vocabulary special if tokenizer_config.json names it."""
    checkpoint = open_folder(tmp_path, "qwen2", {"bos_token_id": 0, "eos_token_id": -1})
    edit(tmp_path, "tokenizer_config.json", lambda c: c.update(stated))
    reference, trainer = transformers.AutoTokenizer.from_pretrained(tmp_path), CheckpointTokenizer(tmp_path)
    types = read_tokenizer(checkpoint, VOCAB).types
    for text in ("poses", "onges"):
        token = reference.convert_tokens_to_ids(text)
        special = token in reference.all_special_ids
        assert (types[token] == CONTROL, token in trainer.control_ids) == (special, special)
        assert trainer.encode(f"x{text}y", add_special=False) == reference(f"x{text}y")["input_ids"]


def with_prefix_space(data: dict[str, Any]) -> None:
    data["pre_tokenizer"]["pretokenizers"][-1]["add_prefix_space"] = True


def with_unmerged_word(data: dict[str, Any], *, ignores: bool = True) -> None:
    """A word that is in the vocabulary and that no merges produce, as some of Llama 3."""
    data["model"]["vocab"]["qzqz"] = len(data["model"]["vocab"]) + 100
    data["model"]["ignore_merges"] = ignores


def with_normalizer(data: dict[str, Any]) -> None:
    """No text of the later comparison contains this pattern."""
    replaced = {"type": "Replace", "pattern": {"String": "``"}, "content": '"'}
    data["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "NFC"}, replaced]}


def nested_lowercase() -> dict[str, Any]:
    inner = {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]}
    return {"type": "Sequence", "normalizers": [inner]}


def with_flag(data: dict[str, Any]) -> None:
    data["added_tokens"][0]["lstrip"] = True


def with_missing_byte(data: dict[str, Any]) -> None:
    """A byte of many characters, which is in no text of the later comparison. Published files lack that of U+0001."""
    for letter in ("\u00ee", "\u0101"):
        data["model"]["vocab"].pop(letter)


STATED = {
    "its normalizer is Replace": with_normalizer,
    "its normalizer is Lowercase": lambda t: t.update(normalizer=nested_lowercase()),
    "endoftext.*flag lstrip": with_flag,
    "its vocabulary lacks 1 bytes": with_missing_byte,
    "its dropout is 0.1": lambda t: t["model"].update(dropout=0.1),
    "its end_of_word_suffix is": lambda t: t["model"].update(end_of_word_suffix="</w>"),
    "add_prefix_space": with_prefix_space,
    "ignore_merges is true.*qzqz": with_unmerged_word,
}


@pytest.mark.parametrize("name", STATED)
def test_what_a_gguf_cannot_state_is_refused_by_name(name: str, tmp_path: Path) -> None:
    checkpoint = open_folder(tmp_path, "qwen2")
    edit(tmp_path, "tokenizer.json", STATED[name])
    with pytest.raises(ConfigError, match=f"{name}.*--force-tokenizer"):
        read_tokenizer(checkpoint, 700)
    data = read_tokenizer(checkpoint, 700, force=True)
    assert len(data.warnings) == 1


@pytest.mark.parametrize("extra", [["<|im_end|>", "<|more|>"], {"more_token": "<|more|>"}])
def test_special_tokens_that_tokenizer_json_lacks_are_refused(extra: Any, tmp_path: Path) -> None:
    """transformers appends them to the vocabulary."""
    checkpoint = open_folder(tmp_path, "qwen2")
    edit(tmp_path, "tokenizer_config.json", lambda c: c.update(extra_special_tokens=extra))
    with pytest.raises(ConfigError, match=r"tokenizer.json lacks '<\|more\|>' of tokenizer_config.json"):
        read_tokenizer(checkpoint, VOCAB)


def test_split_special_tokens_are_refused(tmp_path: Path) -> None:
    checkpoint = open_folder(tmp_path, "qwen2")
    edit(tmp_path, "tokenizer_config.json", lambda c: c.update(split_special_tokens=True))
    with pytest.raises(ConfigError, match="split_special_tokens"):
        read_tokenizer(checkpoint, VOCAB)


def test_the_rule_of_merges_chooses_the_name(tmp_path: Path) -> None:
    """Llama 3's split with and without merges of whole words has two names; a rule without effect changes none."""
    checkpoint = open_folder(tmp_path, "llama-bpe")
    edit(tmp_path, "tokenizer.json", lambda t: with_unmerged_word(t, ignores=False))
    assert read_tokenizer(checkpoint, 700).pre == "smaug-bpe"
    with pytest.raises(ConfigError, match="ignore_merges is false"):
        read_tokenizer(checkpoint, 700, pre="llama-bpe")
    edit(tmp_path, "tokenizer.json", lambda t: t["model"].update(ignore_merges=True))
    assert read_tokenizer(checkpoint, 700).pre == "llama-bpe"


def mutations() -> dict[str, Callable[[dict[str, Any]], object]]:
    return {
        "no model": lambda t: t.pop("model"),
        "other model": lambda t: t["model"].update(type="Unigram"),
        "no vocab": lambda t: t["model"].pop("vocab"),
        "no merges": lambda t: t["model"].update(merges=[]),
        "id out of range": lambda t: t["model"]["vocab"].update(zzz=VOCAB),
        "negative id": lambda t: t["model"]["vocab"].update(zzz=-1),
        "id that is text": lambda t: t["model"]["vocab"].update(zzz="seven"),
        "token with a zero": lambda t: t["added_tokens"][0].update(content="a\0b"),
        "two empty tokens": lambda t: t["model"]["vocab"].update({"": 490, "[EMPTY_490]": 491}),
        "two tokens with one id": lambda t: t["model"]["vocab"].update(zzz=3),
        "merges of three": lambda t: t["model"].update(merges=[["a", "b", "c"]]),
        "merges of numbers": lambda t: t["model"].update(merges=[[1, 2]]),
        "added token without text": lambda t: t["added_tokens"][0].pop("content"),
        "added tokens as text": lambda t: t.update(added_tokens="x"),
        "pre-tokenizer as list": lambda t: t.update(pre_tokenizer=[]),
        "no pre-tokenizer": lambda t: t.update(pre_tokenizer=None),
        "post-processor without type": lambda t: t.update(post_processor={}),
    }


@pytest.mark.parametrize("name", list(mutations()))
def test_damaged_tokenizers_are_refused(name: str, tmp_path: Path) -> None:
    checkpoint = open_folder(tmp_path, "qwen2")
    edit(tmp_path, "tokenizer.json", mutations()[name])
    with pytest.raises((ConversionError, ConfigError)):
        read_tokenizer(checkpoint, VOCAB)


@pytest.mark.parametrize("name", ["chat_template.jinja", "additional_chat_templates/tool.jinja", "chat_template.json"])
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_template_that_is_no_file(name: str, kind: str, tmp_path: Path) -> None:
    """A pipe would hang, a device give bytes without end."""
    checkpoint = open_folder(tmp_path, "qwen2")
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    if name.endswith(".json"):
        (tmp_path / "chat_template.jinja").unlink()
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(ConversionError, match="not a regular file"):
        read_tokenizer(checkpoint, VOCAB)


def test_missing_tokenizer(tmp_path: Path) -> None:
    checkpoint = open_folder(tmp_path, "qwen2")
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(ConversionError, match=r"tokenizer\.json"):
        read_tokenizer(checkpoint, VOCAB)


def test_too_small_a_vocabulary(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match="400 embeddings"):
        read_tokenizer(open_folder(tmp_path, "qwen2"), 400)


def test_special_tokens_are_known() -> None:
    assert all(text.startswith("<|") for text in special_tokens("qwen35"))
