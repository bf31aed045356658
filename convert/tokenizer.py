"""Byte-level BPE tokenizers: from a checkpoint's JSON files to the `tokenizer.*` keys of a GGUF."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from llama_eagle.convert.pre_tokenizers import nodes, pre_tokenizer_name
from llama_eagle.convert.source.storage import read_text
from llama_eagle.errors import ConfigError, ConversionError, EagleError

if TYPE_CHECKING:
    from llama_eagle.convert.source import Checkpoint
    from llama_eagle.convert.writer import GGUFOutput

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5  # llama_token_type

_SPECIAL: Final = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
# Some of llama.cpp's key names differ from those of Hugging Face.
_SPECIAL_KEYS: Final = {"unk": "unknown_token_id", "sep": "seperator_token_id", "pad": "padding_token_id"}


@dataclass(frozen=True)
class TokenizerData:
    """A byte-level BPE vocabulary. tokens[i] is the text of id i; types are llama_token_type values."""

    tokens: list[str]
    types: list[int]
    merges: list[str]
    pre: str
    special_ids: dict[str, int] = field(default_factory=dict)  # "bos", "eos", "pad", ... -> id
    add_special: dict[str, bool] = field(default_factory=dict)  # "bos", "eos": does the tokenizer add it?
    chat_templates: dict[str, str] = field(default_factory=dict)  # "default" and named ones

    def write(self, out: GGUFOutput) -> None:
        """Set the tokenizer.* keys."""
        out.key("tokenizer.ggml.model", "gpt2")
        out.key("tokenizer.ggml.pre", self.pre)
        out.key("tokenizer.ggml.tokens", self.tokens)
        out.key("tokenizer.ggml.token_type", self.types, "i32")
        out.key("tokenizer.ggml.merges", self.merges)
        for name, token_id in self.special_ids.items():
            out.key(f"tokenizer.ggml.{_SPECIAL_KEYS.get(name, f'{name}_token_id')}", token_id)
        for name, value in self.add_special.items():
            out.key(f"tokenizer.ggml.add_{name}_token", value)
        named = sorted(name for name in self.chat_templates if name != "default")
        for name in named:
            out.key(f"tokenizer.chat_template.{name}", self.chat_templates[name])
        out.key("tokenizer.chat_templates", named)
        if default := self.chat_templates.get("default"):
            out.key("tokenizer.chat_template", default)


def read_tokenizer(checkpoint: Checkpoint, vocab_size: int, *, pre: str | None = None) -> TokenizerData:
    """Return the tokenizer of a Hugging Face folder, padded with unused tokens to vocab_size.

    pre: llama.cpp's name of the pre-tokenizer, instead of the detected one. Source: tokenizer.json, which takes
    precedence over tokenizer_config.json, special_tokens_map.json and config.json.
    """
    data = checkpoint.json_file("tokenizer.json")
    if data is None:
        raise ConversionError(f"{checkpoint.source}: no tokenizer.json (only fast tokenizers can be converted)")
    settings = checkpoint.json_file("tokenizer_config.json") or {}
    try:
        added = _added_tokens(data, settings)
        tokens, types = _vocabulary(data, added, vocab_size)
        return TokenizerData(
            tokens=tokens,
            types=types,
            merges=_merges(data),
            pre=pre or pre_tokenizer_name(data, checkpoint.path / "tokenizer.json"),
            special_ids=_special_ids(checkpoint, settings, added, vocab_size),
            add_special=_add_special(data, settings),
            chat_templates=_chat_templates(checkpoint, settings),
        )
    except EagleError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ConversionError(f"{checkpoint.source}: tokenizer.json is not as expected ({reason})") from error


def _added_tokens(data: dict[str, Any], settings: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """Return id -> {content, special, ...}. tokenizer_config.json may add to tokenizer.json or change its flags."""
    added = {int(token["id"]): token for token in data.get("added_tokens") or []}
    for token_id, token in (settings.get("added_tokens_decoder") or {}).items():
        added[int(token_id)] = token
    return added


def _looks_special(text: str) -> bool:
    """Return True for control tokens that some checkpoints do not mark as special: <|...|> and a few known ones."""
    brackets = (("<|", "|>"), ("<｜", "｜>"), ("<unused", ">"))
    known = ("<pad>", "<mask>", "<2mass>", "[@BOS@]")
    return text in known or any(text.startswith(a) and text.endswith(b) for a, b in brackets)


def _vocabulary(data: dict[str, Any], added: dict[int, dict[str, Any]], vocab_size: int) -> tuple[list[str], list[int]]:
    model = data["model"]
    if model["type"] != "BPE":
        raise ConversionError(f"tokenizer type {model['type']!r}: only byte-level BPE can be converted")
    tokens: list[str | None] = [None] * vocab_size
    types = [UNUSED] * vocab_size
    for text, token_id in model["vocab"].items():
        _place(tokens, int(token_id), str(text))
        types[token_id] = NORMAL
    for token_id, token in added.items():
        text = token["content"]
        _place(tokens, token_id, text)
        types[token_id] = CONTROL if token["special"] or _looks_special(text) else USER_DEFINED
    return [f"[PAD{i}]" if text is None else text for i, text in enumerate(tokens)], types


def _place(tokens: list[str | None], token_id: int, text: str) -> None:
    if not 0 <= token_id < len(tokens):
        raise ConversionError(f"token {text!r} has id {token_id}, but the model has {len(tokens)} embeddings")
    if tokens[token_id] not in (None, text):
        raise ConversionError(f"id {token_id} belongs to two tokens, {tokens[token_id]!r} and {text!r}")
    tokens[token_id] = text


def _merges(data: dict[str, Any]) -> list[str]:
    """Return pairs as "left right". A space inside a part is written as U+0120, as in byte-level BPE."""
    merges = data["model"].get("merges") or []
    if not merges:
        raise ConversionError("tokenizer.json contains no merges")
    if isinstance(merges[0], str):
        return [str(merge) for merge in merges]
    return [f"{left} {right}" for left, right in ([p.replace(" ", "Ġ") for p in pair] for pair in merges)]


def _special_ids(
    checkpoint: Checkpoint, settings: dict[str, Any], added: dict[int, dict[str, Any]], vocab_size: int
) -> dict[str, int]:
    """Return the ids of bos, eos, ...: tokenizer_config.json's tokens, or the ids of config.json or its text_config."""
    by_text = {token["content"]: token_id for token_id, token in reversed(added.items())}
    found: dict[str, int] = {}
    for name in _SPECIAL:
        token = settings.get(f"{name}_token")
        text = token.get("content") if isinstance(token, dict) else token
        token_id = by_text.get(text) if isinstance(text, str) else None
        for config in (checkpoint.config, checkpoint.config.get("text_config") or {}):
            if token_id is None:
                token_id = config.get(f"{name}_token_id")
        # A list of ids (several end tokens) is ignored, because llama.cpp also finds end tokens by their text.
        if isinstance(token_id, int) and not isinstance(token_id, bool):
            if not 0 <= token_id < vocab_size:
                raise ConfigError(f"config.json: {name}_token_id is {token_id}, outside the vocabulary ({vocab_size})")
            found[name] = token_id
    return found


def _add_special(data: dict[str, Any], settings: dict[str, Any]) -> dict[str, bool]:
    """Return if bos precedes and eos follows a text, by tokenizer.json's post-processor."""
    adds: dict[str, bool] = {}
    for node in nodes(data.get("post_processor"), "processors"):
        if node["type"] == "ByteLevel":
            adds.setdefault("bos", False)
            adds.setdefault("eos", False)
        elif node["type"] == "TemplateProcessing" and len(node["single"]) > 1:
            for name, part in (("bos", node["single"][0]), ("eos", node["single"][-1])):
                if "SpecialToken" in part:
                    adds[name] = True
            if len(node.get("pair") or []) > 2 + sum(adds.get(name, False) for name in ("bos", "eos")):
                adds["sep"] = False  # the tokens between a pair are not llama.cpp's separator
    for name in _SPECIAL:
        value = settings.get(f"add_{name}_token")
        if isinstance(value, bool):
            adds.setdefault(name, value)
    return adds


def _chat_templates(checkpoint: Checkpoint, settings: dict[str, Any]) -> dict[str, str]:
    """Return name -> Jinja text.

    The sources are tokenizer_config.json, chat_template.jinja and chat_template.json, in this order.
    """
    value = settings.get("chat_template")
    if value is None:
        value = _jinja_files(checkpoint.path)
    if not value:
        value = (checkpoint.json_file("chat_template.json") or {}).get("chat_template")
    if isinstance(value, str):
        return {"default": value}
    if isinstance(value, list):
        value = {entry["name"]: entry["template"] for entry in value}
    templates = value or {}
    clean = {"".join(c if c.isascii() and c.isalnum() else "_" for c in name): t for name, t in templates.items()}
    return {name: str(text) for name, text in clean.items() if name and text}


def _jinja_files(folder: Path) -> dict[str, str]:
    main = folder / "chat_template.jinja"
    if not main.exists():
        return {}
    extra = sorted((folder / "additional_chat_templates").glob("*.jinja"))
    return {"default": read_text(main), **{path.stem: read_text(path) for path in extra}}
