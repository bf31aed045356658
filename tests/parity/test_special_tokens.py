"""Special tokens of vocabularies against the package `tokenizers`: any text of a token, any name of the model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import pytest
from fixtures.upstream import source_folder
from llama_eagle.sessions.models import Model
from llama_eagle.sessions.options import LoadOptions
from llama_eagle.sessions.text import Tokenizer
from llama_eagle.synthetic.tokenizer import byte_letters
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Reference

pytestmark = pytest.mark.native
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4
LETTERS = sorted(byte_letters())
END, EXTRA = len(LETTERS), len(LETTERS) + 1  # ids of <|end_of_text|> and of the tested token
# What llama.cpp searches by its text, except forms that no ordinary text has.
SEARCHED = (
    "</s>", "<eos>", "[EOS]", "<EOT>", "_<EOT>", "[EOT]", "[e~[", "<turn|>", "<end_of_turn>", "<end_of_utterance>",
    "<|tool_response>", "<fim-prefix>", "<fim_prefix>", "<PRE>", "<fim-suffix>", "<fim_suffix>", "<SUF>",
    "<fim-middle>", "<fim_middle>", "<MID>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]", "<fim-repo>", "<REPO>",
    "<reponame>",
)  # fmt: skip


def write_vocabulary(path: Path, extra: Mapping[str, int], name: str = "model", **keys: Any) -> Path:
    """A vocabulary-only GGUF of single bytes, an end token and `extra` (text -> type)."""
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_name(name)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*LETTERS, "<|end_of_text|>", *extra])
    writer.add_token_types([*[NORMAL] * len(LETTERS), CONTROL, *extra.values()])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(END)
    for key, value in keys.items():
        add = writer.add_uint32 if isinstance(value, int) else writer.add_string
        add(f"tokenizer.{key.replace('__', '.')}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def reference(extra: Mapping[str, int]) -> Reference:
    tokens = [*LETTERS, "<|end_of_text|>", *extra]
    tokenizer = Reference(models.BPE({text: i for i, text in enumerate(tokens)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    for text, kind in {"<|end_of_text|>": CONTROL, **extra}.items():
        if kind != NORMAL:
            tokenizer.add_tokens([AddedToken(text, normalized=False, special=kind == CONTROL)])
    return tokenizer


def load(path: Path) -> Model:
    return Model(path, LoadOptions(vocab_only=True))


def test_the_list_is_that_of_the_pinned_loader() -> None:
    source = (source_folder() / "src" / "llama-vocab.cpp").read_text("utf-8")
    begin, end = source.index("auto-detect special tokens by text"), source.index("quick hack for gpt-oss")
    searched = set(re.findall(r't\.first == "([^"]+)"', source[begin:end]))
    ours = (Path(__file__).parents[2] / "native/src/llama/vocabulary/eagle_ordinary_tokens.cpp").read_text("utf-8")
    listed = " ".join(re.findall(r'"([^"]*)"', ours[ours.index("SEARCHED[] =") : ours.index("bool has_types")])).split()
    forms = re.compile(r"<\|.*\|>|<｜.*｜>|▁<.*>")
    assert sorted(listed) == sorted(SEARCHED) == sorted(text for text in searched if not forms.fullmatch(text))


@pytest.mark.parametrize("kind", [NORMAL, USER_DEFINED])
def test_a_text_alone_makes_no_special_token(kind: int, tmp_path: Path) -> None:
    extra = dict.fromkeys(SEARCHED, kind)
    expected = reference(extra)
    texts = [f"x {text} y{text}" for text in SEARCHED]
    with load(write_vocabulary(tmp_path / "v.gguf", extra)) as model:
        engine = Tokenizer(model)
        assert [engine.encode(text) for text in texts] == [expected.encode(text).ids for text in texts]
        ids = range(EXTRA, EXTRA + len(SEARCHED))
        assert not any(engine.is_end(i) for i in ids)
        assert [engine.piece(i).decode() for i in ids] == list(SEARCHED), "an answer would lose their text"
        assert engine.is_end(END)


@pytest.mark.parametrize("text", SEARCHED)
def test_a_special_token_of_the_file_stays_one(text: str, tmp_path: Path) -> None:
    extra = {text: CONTROL}
    expected = reference(extra)
    with load(write_vocabulary(tmp_path / "v.gguf", extra)) as model:
        engine = Tokenizer(model)
        assert engine.encode(f"x{text}y") == expected.encode(f"x{text}y").ids
        assert engine.piece(EXTRA) == b""


@pytest.mark.parametrize(
    ("kind", "keys", "ends"),
    [
        (NORMAL, {"ggml__eot_token_id": EXTRA}, True),
        (USER_DEFINED, {"ggml__eot_token_id": EXTRA}, True),
        (USER_DEFINED, {"chat_template": "{{ messages[0].content }}</s>"}, True),
        (NORMAL, {"chat_template": "{{ messages[0].content }}</s>"}, False),  # merges never give it
    ],
)
def test_a_key_that_names_the_token(kind: int, keys: dict[str, Any], ends: bool, tmp_path: Path) -> None:
    with load(write_vocabulary(tmp_path / "v.gguf", {"</s>": kind}, **keys)) as model:
        assert Tokenizer(model).is_end(EXTRA) == ends


def test_forms_of_special_tokens_are_found_by_their_text(tmp_path: Path) -> None:
    """Files of others have them with the type of ordinary tokens."""
    with load(write_vocabulary(tmp_path / "v.gguf", {"<|im_end|>": NORMAL, "</s>": NORMAL})) as model:
        engine = Tokenizer(model)
        assert engine.is_end(EXTRA) and not engine.is_end(EXTRA + 1)
        assert engine.encode("a<|im_end|>")[1:] == [EXTRA]


def test_a_special_token_is_not_hidden_by_an_ordinary_one(tmp_path: Path) -> None:
    """The search for the middle of a gap takes the first text that it meets."""
    extra = {"<MID>": NORMAL, "<fim_middle>": NORMAL, "<|fim_middle|>": CONTROL, "<fim-middle>": NORMAL}
    with load(write_vocabulary(tmp_path / "v.gguf", extra)) as model:
        assert model._api.llama_vocab_fim_mid(model.vocab) == EXTRA + 2


def test_strikethrough_of_qwen() -> None:
    with load(source_folder() / "models" / "ggml-vocab-qwen2.gguf") as model:
        engine = Tokenizer(model)
        ids = engine.encode("<li><s>old price</s> 12 EUR</li>")
        assert any(ids[i : i + 3] == [522, 82, 29] for i in range(len(ids)))
        assert b"".join(map(engine.piece, ids)) == b"<li><s>old price</s> 12 EUR</li>"
        assert not engine.is_end(128247)


@pytest.mark.parametrize("name", ["Delphi-3B", "phi3", "Phi-3-mini", "modern-bert-chat"])
@pytest.mark.parametrize("extra", [{}, {"</s>": NORMAL, "<unk>": NORMAL, "<s>": NORMAL, "[MASK]": CONTROL}])
def test_the_name_changes_nothing(name: str, extra: dict[str, int], tmp_path: Path) -> None:
    texts = ["a <|end_of_text|>  b", "<|end_of_text|>\n c", "x [MASK] y"]
    expected = reference(extra)
    with load(write_vocabulary(tmp_path / "v.gguf", extra, name=name)) as model:
        engine = Tokenizer(model)
        assert [engine.encode(text) for text in texts] == [expected.encode(text).ids for text in texts]


@pytest.mark.parametrize("name", ["Phi 3 Mini 4k Instruct", "phi-3", "mine"])
def test_spaces_after_special_tokens_of_phi3(name: str, tmp_path: Path) -> None:
    """Its special tokens include the white space after them, as the flags in its tokenizer.json state."""
    tokens = ["<unk>", "<s>", "</s>", *[f"<0x{i:02X}>" for i in range(256)], "▁", "a", "<|endoftext|>", "<|end|>"]
    writer = gguf.GGUFWriter(tmp_path / "v.gguf", "phi3")
    writer.add_name(name)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(i) for i in range(len(tokens))])
    writer.add_token_types([2, CONTROL, CONTROL, *[6] * 256, NORMAL, NORMAL, CONTROL, CONTROL])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with load(tmp_path / "v.gguf") as model:
        encode = Tokenizer(model).encode
        assert encode("<|end|>  \na", add_bos=False) == encode("<|end|>a", add_bos=False)
        assert encode("<|endoftext|> a", add_bos=False) != encode("<|endoftext|>a", add_bos=False)
