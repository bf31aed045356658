"""Byte-level BPE tokenizers: from a checkpoint's JSON files to the `tokenizer.*` keys of a GGUF."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from llama_eagle.convert.pre_tokenizers import StoredEncoder, fitting_name, nodes
from llama_eagle.convert.settings.generation import add_end_tokens
from llama_eagle.convert.source.storage import read_text
from llama_eagle.errors import ConfigError, ConversionError, EagleError

if TYPE_CHECKING:
    from llama_eagle.convert.source import Checkpoint
    from llama_eagle.convert.writer import GGUFOutput

FORCE: Final = "Convert it nevertheless with --force-tokenizer: the model then reads other tokens than in training"
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5  # llama_token_type

# Compares a GGUF's vocabulary with the tokenizer.json that was read. Returns differences, each as a sentence.
TokenizerCheck = Callable[[Path, "TokenizerData"], list[str]]

UNSTATED_FLAGS: Final = ("lstrip", "rstrip", "single_word")  # of an added token
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
    encoder: StoredEncoder = field(compare=False, repr=False)  # of the tokenizer.json that was read
    special_ids: dict[str, int] = field(default_factory=dict)  # "bos", "eos", "pad", ... -> id
    add_special: dict[str, bool] = field(default_factory=dict)  # "bos", "eos": does the tokenizer add it?
    chat_templates: dict[str, str] = field(default_factory=dict)  # "default" and named ones
    warnings: list[str] = field(default_factory=list)

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


def has_pieces(checkpoint: Checkpoint) -> bool:
    """Return True for a SentencePiece model that no byte-level tokenizer.json replaces."""
    if not (checkpoint.path / "tokenizer.model").is_file():
        return False
    data = checkpoint.json_file("tokenizer.json")
    return data is None or not _is_byte_level(data)


def read_tokenizer(
    checkpoint: Checkpoint, vocab_size: int, *, pre: str | None = None, force: bool = False
) -> TokenizerData:
    """Return the tokenizer of a Hugging Face folder, padded with unused tokens to vocab_size.

    pre: llama.cpp's name of the pre-tokenizer, instead of the detected one. force: accept a tokenizer that a GGUF
    cannot describe, with a warning. Source: tokenizer.json, which takes precedence over tokenizer_config.json,
    special_tokens_map.json and config.json.
    """
    data = checkpoint.json_file("tokenizer.json")
    if data is None:
        raise ConversionError(
            f"{checkpoint.source}: no tokenizer.json. Write one with transformers: "
            "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )
    settings = checkpoint.json_file("tokenizer_config.json") or {}
    encoder, warnings = StoredEncoder(checkpoint.path / "tokenizer.json"), list[str]()
    try:
        added = _added_tokens(data, settings)
        texts, adds = _special_texts(data, settings)
        tokens, types = _vocabulary(data, added, {*texts.values(), *special_texts(settings)}, vocab_size)
        merges = _merges(data)
        pre, problems = fitting_name(data, encoder, pre)
        problems += _flags(added)
        if missing := sorted(set(_extra_texts(settings)) - {*tokens, *(token["content"] for token in added.values())}):
            problems.append(f"tokenizer.json lacks {missing[0]!r} of tokenizer_config.json: save it with transformers")
        if settings.get("split_special_tokens"):
            problems.append("tokenizer_config.json: split_special_tokens is true, but llama.cpp finds special tokens")
        accept(problems, checkpoint.source, warnings, force=force)
        special = _special_ids(checkpoint, texts, {**data["model"]["vocab"], **_ids_by_text(added)}, vocab_size)
        warnings += add_end_tokens(special, tokens, checkpoint)
        return TokenizerData(
            tokens=tokens,
            types=types,
            merges=merges,
            pre=pre,
            encoder=encoder,
            special_ids=special,
            add_special=adds,
            chat_templates=read_chat_templates(checkpoint, settings, warnings),
            warnings=warnings,
        )
    except EagleError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ConversionError(
            f"{checkpoint.source}: tokenizer.json or tokenizer_config.json is not as expected ({reason}); "
            "download it again"
        ) from error


def accept(problems: list[str], source: str, warnings: list[str], *, force: bool) -> None:
    """Add problems of a tokenizer to `warnings` with `force`. Raises `ConfigError` for the first without."""
    for problem in problems:
        if not force:
            raise ConfigError(f"{source}: {problem}. {FORCE}")
        warnings.append(f"{source}: {problem}")


def _added_tokens(data: dict[str, Any], settings: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """Return id -> {content, special, ...}. tokenizer_config.json may add to tokenizer.json or change its flags."""
    added = {int(token["id"]): token for token in data.get("added_tokens") or []}
    for token_id, token in (settings.get("added_tokens_decoder") or {}).items():
        added[int(token_id)] = token
    composes = any(step["type"] == "NFC" for step in nodes(data.get("normalizer"), "normalizers"))
    return {i: _composed(token) if composes and token.get("normalized") else token for i, token in added.items()}


def _composed(token: dict[str, Any]) -> dict[str, Any]:
    """Return a token with the text that is found in normalized text."""
    return {**token, "content": unicodedata.normalize("NFC", token["content"])}


def _flags(added: dict[int, dict[str, Any]]) -> list[str]:
    """Return the first flag of an added token that changes the tokens of a text and that a GGUF cannot state."""
    found = [(token["content"], flag) for token in added.values() for flag in UNSTATED_FLAGS if token.get(flag)]
    return [f"tokenizer.json: {text!r} has the flag {flag}, which a GGUF cannot state" for text, flag in found[:1]]


def _looks_special(text: str) -> bool:
    """Return True for control tokens that some checkpoints do not mark as special: <|...|> and a few known ones."""
    brackets = (("<|", "|>"), ("<｜", "｜>"), ("<unused", ">"))
    known = ("<pad>", "<mask>", "<2mass>", "[@BOS@]")
    return text in known or any(text.startswith(a) and text.endswith(b) for a, b in brackets)


def _vocabulary(
    data: dict[str, Any], added: dict[int, dict[str, Any]], special: set[str], vocab_size: int
) -> tuple[list[str], list[int]]:
    """Return texts and types by id. special: texts of tokenizer_config.json, which transformers makes special."""
    model = data["model"]
    kind = model.get("type", "BPE")  # absent in old files
    if kind != "BPE" or not _is_byte_level(data):
        raise ConversionError(
            f"tokenizer.json is {'SentencePiece' if kind == 'BPE' else kind}; only byte-level BPE can be converted: "
            "add the checkpoint's tokenizer.model, by which llama.cpp's converter converts it"
        )
    tokens: list[str | None] = [None] * vocab_size
    types = [UNUSED] * vocab_size
    for text, token_id in model["vocab"].items():
        _place(tokens, int(token_id), str(text))
        types[token_id] = CONTROL if text in special else NORMAL
    for token_id, token in added.items():
        text = token["content"]
        _place(tokens, token_id, text)
        types[token_id] = CONTROL if token["special"] or _looks_special(text) else USER_DEFINED
    texts = [f"[PAD{i}]" if text is None else text or f"[EMPTY_{i}]" for i, text in enumerate(tokens)]  # as the engine
    _require_unique(texts)
    return texts, types


def _require_unique(texts: list[str]) -> None:
    """Raise ConversionError for a text with two ids, with which llama.cpp aborts."""
    ids = {text: i for i, text in enumerate(texts)}
    if len(ids) != len(texts):
        text = next(text for i, text in enumerate(texts) if ids[text] != i)
        raise ConversionError(
            f"token {text!r} has the ids {texts.index(text)} and {ids[text]}; remove one of them from tokenizer.json"
        )


def _place(tokens: list[str | None], token_id: int, text: str) -> None:
    if not 0 <= token_id < len(tokens):
        raise ConversionError(
            f"token {text!r} has id {token_id}, but the model has {len(tokens)} embeddings; remove it from "
            "tokenizer.json and tokenizer_config.json, or resize the embeddings"
        )
    if "\0" in text:
        raise ConversionError(f"token {text!r} contains U+0000, where llama.cpp ends a text; remove it")
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


def _is_byte_level(data: dict[str, Any]) -> bool:
    steps = [*nodes(data.get("pre_tokenizer"), "pretokenizers"), *nodes(data.get("decoder"), "decoders")]
    return any(step["type"] == "ByteLevel" for step in steps)


def _ids_by_text(added: dict[int, dict[str, Any]]) -> dict[str, int]:
    return {token["content"]: token_id for token_id, token in reversed(added.items())}


def _special_texts(data: dict[str, Any], settings: dict[str, Any]) -> tuple[dict[str, str], dict[str, bool]]:
    """Return the texts of bos, eos, ..., and if bos precedes and eos follows a text.

    tokenizer.json's post-processor takes precedence over tokenizer_config.json: an end token that it appends is eos,
    and the configured one ends a turn. add_bos_token and add_eos_token have no effect, as in transformers.
    """
    stated = ((name, settings.get(f"{name}_token")) for name in _SPECIAL)
    contents = ((name, token.get("content") if isinstance(token, dict) else token) for name, token in stated)
    texts = {name: text for name, text in contents if isinstance(text, str)}
    for name, other in (("bos", "cls"), ("eos", "sep")):
        if not texts.get(name) and texts.get(other):
            texts[name] = texts[other]
    adds = {"bos": False, "eos": False}  # always stated: llama.cpp's own default depends on the pre-tokenizer
    by_id = {token["id"]: token["content"] for token in data.get("added_tokens") or []}
    for node in nodes(data.get("post_processor"), "processors"):
        if node["type"] in ("RobertaProcessing", "BertProcessing"):
            node = _as_template(node)
        if node["type"] == "TemplateProcessing":
            _apply_template(node, texts, adds, by_id)
    return texts, adds


def added_around(data: dict[str, Any], settings: dict[str, Any]) -> dict[str, bool]:
    """Return whether tokenizer.json puts bos before and eos after a text."""
    return _special_texts(data, settings)[1]


def _as_template(node: dict[str, Any]) -> dict[str, Any]:
    """Return the template of a post-processor that puts a text between two tokens."""
    (first, first_id), (last, last_id) = node["cls"], node["sep"]
    single = [{"SpecialToken": {"id": first}}, {"Sequence": {"id": "A"}}, {"SpecialToken": {"id": last}}]
    known = {first: {"ids": [first_id]}, last: {"ids": [last_id]}}
    return {"type": "TemplateProcessing", "single": single, "special_tokens": known}


def special_texts(settings: dict[str, Any]) -> list[str]:
    """Return the texts that transformers makes special because tokenizer_config.json names them.

    These are bos_token, eos_token, ... and any other key of this form (image_token), and the tokens of
    extra_special_tokens or its earlier name.
    """
    return _texts_of([value for key, value in settings.items() if key.endswith("_token")]) + _extra_texts(settings)


def _extra_texts(settings: dict[str, Any]) -> list[str]:
    named: list[Any] = []
    extra = settings.get("extra_special_tokens")
    earlier = settings.get("additional_special_tokens") if isinstance(extra, dict) or not extra else None
    for tokens in (extra, earlier, settings.get("model_specific_special_tokens")):
        named += list(tokens.values()) if isinstance(tokens, dict) else tokens if isinstance(tokens, list) else []
    return _texts_of(named)


def _texts_of(tokens: list[Any]) -> list[str]:
    texts = (token.get("content") if isinstance(token, dict) else token for token in tokens)
    return [text for text in texts if isinstance(text, str) and text]


def _apply_template(node: dict[str, Any], texts: dict[str, str], adds: dict[str, bool], by_id: dict[int, str]) -> None:
    """Note the tokens that a post-processor's template puts around a text. by_id: texts of added tokens.

    Only the ids in the template count: its names for them may be others than their texts.
    """
    if len(node["single"]) < 2:
        return
    ends = (node["single"][0], node["single"][-1])
    names = [part["SpecialToken"]["id"] if "SpecialToken" in part else None for part in ends]
    missing = [name for name in names if name and name not in node["special_tokens"]]
    if missing:  # the tokenizers package would panic in encode()
        raise ConversionError(f"tokenizer.json: its template names {missing} without ids; download it again")
    ids = [node["special_tokens"][name]["ids"] if name else [] for name in names]
    first, last = (
        by_id.get(found[0], name) if len(found) == 1 else name for name, found in zip(names, ids, strict=True)
    )
    if first:
        if first not in (texts.get("bos"), texts.get("cls")):
            texts.update({name: first for name in ("bos", "cls") if not texts.get(name)})
        adds["bos"] = first in (texts.get("bos"), texts.get("cls"))
    if last:
        if texts.get("eos") not in (None, last):
            texts["eom" if "eot" in texts else "eot"] = texts["eos"]
        texts["eos"] = last
        adds["eos"] = True
    if len(node.get("pair") or []) > 2 + bool(first) + bool(last):
        adds["sep"] = False  # the tokens between a pair are not llama.cpp's separator


def _special_ids(
    checkpoint: Checkpoint, texts: dict[str, str], by_text: dict[str, int], vocab_size: int
) -> dict[str, int]:
    """Return the ids of bos, eos, ...: of their texts, or else the ids of config.json or its text_config.

    Of several end tokens the first is used, because llama.cpp would end with token 11 without any. add_end_tokens()
    adds the others.
    """
    configs = [checkpoint.config, checkpoint.config.get("text_config") or {}]
    found: dict[str, int] = {}
    for name in ("bos", "eos", "unk", "sep", "pad", "mask", "eot", "eom"):
        ids = [by_text.get(texts.get(name, "")), *(config.get(f"{name}_token_id") for config in configs)]
        if name == "eos":
            ids.append((checkpoint.json_file("generation_config.json") or {}).get("eos_token_id"))
            ids += [value[0] for value in ids if isinstance(value, list) and value]
        token_id = next((value for value in ids if type(value) is int and value >= 0), None)  # -1 means none
        if token_id is None:
            continue
        if token_id >= vocab_size:
            raise ConfigError(f"config.json: {name}_token_id is {token_id}, outside the vocabulary ({vocab_size})")
        found[name] = token_id
    return found


def read_chat_templates(checkpoint: Checkpoint, settings: dict[str, Any], warnings: list[str]) -> dict[str, str]:
    """Return name -> Jinja text, from the first source in transformers' order.

    The sources are chat_template.jinja, tokenizer_config.json and chat_template.json.
    """
    stated = settings.get("chat_template")
    if files := _jinja_files(checkpoint.path):
        if stated and _by_name(stated) != files:
            warnings.append(
                f"{checkpoint.source}: chat_template.jinja and tokenizer_config.json have different chat templates. "
                "The first is used, as in transformers"
            )
        stated = files
    templates = _by_name(stated or (checkpoint.json_file("chat_template.json") or {}).get("chat_template") or {})
    if not isinstance(templates, dict) or not all(isinstance(text, str) for pair in templates.items() for text in pair):
        raise ConfigError(f"{checkpoint.source}: chat_template is neither a text nor a list of named texts")
    clean = {"".join(c if c.isascii() and c.isalnum() else "_" for c in name): t for name, t in templates.items()}
    return {name: text for name, text in clean.items() if name and text}


def _by_name(value: Any) -> Any:
    if isinstance(value, list):
        return {entry["name"]: entry["template"] for entry in value}
    return {"default": value} if isinstance(value, str) else value


def _jinja_files(folder: Path) -> dict[str, str]:
    main = folder / "chat_template.jinja"
    extra = sorted((folder / "additional_chat_templates").glob("*.jinja"))
    return {**({"default": read_text(main)} if main.exists() else {}), **{path.stem: read_text(path) for path in extra}}
