"""Checks of the tokenizer's keys, which llama.cpp reads in parallel, by the length of the first array.

Source of the rules: llama.cpp's src/llama-vocab.cpp (load, byte_to_token, token_to_byte, and the sessions of each
kind). The faults refused here end in an exception or an assertion at the first text, or in wrong tokens.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from llama_eagle.errors import EnvironmentFailure
from llama_eagle.files import kept_json, write_json
from llama_eagle.gguf.header import ArrayRef, Header
from llama_eagle.gguf.validate.charsmap import check_charsmap
from llama_eagle.gguf.validate.keys import check_keys, kind_of
from llama_eagle.gguf.validate.table import Key

PREFIX = "tokenizer.ggml."
SPECIAL = ("bos", "eos", "eot", "eom", "unknown", "seperator", "padding", "cls", "mask")
HARMLESS = ("seperator", "padding", "cls", "mask")  # llama.cpp ignores these ids if they are out of range
ABSENT = 2**32 - 1  # -1: no such token
NORMAL, BYTE = 1, 6
N_TYPES = 7
BYTE_TOKEN = re.compile(rb"<0x[0-9A-Fa-f]{2}>\Z")
KEYS = (
    Key("model", "string"),
    Key("pre", "string"),
    Key("tokens", "string[]"),
    Key("merges", "string[]"),
    Key("token_type", "i32[]", 0, N_TYPES - 1),
    Key("token_type_count", "u32"),
    Key("suppress_tokens", "i32[]"),
    *(Key(f"{name}_token_id", "u32") for name in SPECIAL),
    *(Key(f"add_{name}", "bool") for name in ("bos_token", "eos_token", "sep_token", "space_prefix")),
    *(Key(name, "bool") for name in ("remove_extra_whitespaces", "normalizer.lowercase", "normalizer.strip_accents")),
)


@dataclass(frozen=True)
class Kind:
    """Requirements of one kind of tokenizer.

    needs: arrays without which the tokens would be wrong. defaults: ids if no key names them. added: tokens around
    every text unless a key says otherwise. required: tokens that are asserted for every text. bytes: every byte has a
    token: "spm" as <0x0A> or as itself, "plamo" as <0x0A> of type byte, "rwkv" as an escaped string.
    """

    needs: tuple[str, ...] = ()
    defaults: dict[str, int] = field(default_factory=dict)
    added: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    bytes: str | None = None


_BPE = Kind(("merges",), {"bos": 11, "eos": 11})
KINDS = {
    "none": Kind(),
    "no_vocab": Kind(),
    "test": Kind(),
    "gpt2": _BPE,
    "hybriddna": _BPE,
    "whitespace": _BPE,
    "gemma4": Kind(("merges",), required=("bos",)),
    "llama": Kind(("scores", "token_type"), {"bos": 1, "eos": 2, "unknown": 0}, added=("bos",), bytes="spm"),
    "bert": Kind((), {"bos": 101, "unknown": 100, "seperator": 102}, required=("bos", "seperator", "unknown")),
    "t5": Kind(("scores", "token_type"), {"eos": 1, "unknown": 2}, added=("eos",), required=("unknown",)),
    "rwkv": Kind(bytes="rwkv"),
    "plamo2": Kind(("scores", "token_type"), {"bos": 1, "eos": 2, "unknown": 0}, bytes="plamo"),
}
RULES = tuple(Path(__file__).with_name(f"{name}.py") for name in ("tokenizer", "keys", "table"))
WITHOUT_MERGES = "kimi-k2"  # llama.cpp's only exception among the kinds with merges


def check_tokenizer(header: Header) -> Iterator[str]:
    if _is_known(header):
        return
    faults = [*check_keys(header, KEYS, prefix=PREFIX)]
    if "tokenizer.chat_template" in header.keys:
        faults += check_keys(header, (Key("tokenizer.chat_template", "string"),))
    model = header.keys.get(f"{PREFIX}model")
    if not faults and model is not None and model not in KINDS:
        faults.append(f"the key {PREFIX}model is {model!r:.60}, it must be one of {', '.join(KINDS)}")
    yield from faults
    tokens = header.keys.get(f"{PREFIX}tokens")
    if faults or not isinstance(tokens, ArrayRef):
        return
    faults = [*_check_arrays(header, tokens)]
    if not faults and model is not None:
        faults = [*_check_kind(header, KINDS[model], tokens)]
    yield from faults
    if not faults:
        _note(header)


def _is_known(header: Header) -> bool:
    """Return True if an earlier run has found no fault in the tokenizer of this file."""
    return header.times is not None and _record(header, header.times).is_file()


def _note(header: Header) -> None:
    if header.times is not None:
        with suppress(OSError, EnvironmentFailure):
            write_json(_record(header, header.times), {})


def _record(header: Header, times: tuple[int, int]) -> Path:
    """Return the file in the cache that records a sound tokenizer: by the file's times, and by those of these rules."""
    return kept_json("checked", [header.path, *RULES], str(times))


def _check_arrays(header: Header, tokens: ArrayRef) -> Iterator[str]:
    if not tokens.count:
        yield f"the key {PREFIX}tokens is empty"
    for name in ("token_type", "scores"):
        array = header.keys.get(PREFIX + name)
        if isinstance(array, ArrayRef) and array.count < tokens.count:
            yield f"the key {PREFIX}{name} has {array.count} entries for {tokens.count} tokens"
    if f"{PREFIX}scores" in header.keys:
        yield from _check_scores(header)
    yield from _check_special(header, tokens.count)
    if header.count_distinct(tokens) != tokens.count:
        yield f"the key {PREFIX}tokens contains a token twice"


def _check_scores(header: Header) -> Iterator[str]:
    if (kind := kind_of(header, f"{PREFIX}scores")) not in ("f32[]", "i32[]"):
        yield f"the key {PREFIX}scores is {kind}, it must be f32[] or i32[]"
    elif any(map(math.isnan, header.read_array(header.keys[f"{PREFIX}scores"]))):
        yield f"the key {PREFIX}scores contains values that are not numbers"


def _check_special(header: Header, n_tokens: int) -> Iterator[str]:
    """Check special ids: llama.cpp replaces an id out of range by its default, which is another token."""
    for name in SPECIAL:
        token = header.keys.get(f"{PREFIX}{name}_token_id")
        if token is not None and token >= n_tokens and name not in HARMLESS and (token != ABSENT or name == "eos"):
            yield f"the key {PREFIX}{name}_token_id is {token}, the vocabulary has {n_tokens} tokens"


def _check_kind(header: Header, kind: Kind, tokens: ArrayRef) -> Iterator[str]:
    model = header.keys[f"{PREFIX}model"]
    for name in kind.needs:
        if PREFIX + name not in header.keys and header.keys.get(f"{PREFIX}pre") != WITHOUT_MERGES:
            yield f"the key {PREFIX}{name} is missing, which a tokenizer of kind {model} needs"
    for name in (*kind.required, *(name for name in ("bos", "eos") if _is_added(header, kind, name))):
        if _token_id(header, kind, name, tokens.count) is None:
            token = header.keys.get(f"{PREFIX}{name}_token_id")
            yield f"the key {PREFIX}{name}_token_id is {token}, but every text gets this token ({model})"
    merges = header.keys.get(f"{PREFIX}merges")
    if "merges" in kind.needs and merges is not None:
        broken = next((merge for merge in header.raw_strings(merges) if b" " not in merge[1:]), None)
        if broken is not None:
            yield f"the key {PREFIX}merges contains {broken!r:.60}, which is not a pair"
    yield from _check_bytes(header, kind, tokens)
    if model == "t5" and f"{PREFIX}precompiled_charsmap" in header.keys:
        yield from check_charsmap(header, f"{PREFIX}precompiled_charsmap")


def _is_added(header: Header, kind: Kind, name: str) -> bool:
    return bool(header.keys.get(f"{PREFIX}add_{name}_token", name in kind.added))


def _token_id(header: Header, kind: Kind, name: str, n_tokens: int) -> int | None:
    """Return the id that llama.cpp uses for a special token; None if it has none."""
    found = (header.keys.get(f"{PREFIX}{name}_token_id"), kind.defaults.get(name))
    return next((token for token in found if token is not None and token < n_tokens), None)


def _check_bytes(header: Header, kind: Kind, tokens: ArrayRef) -> Iterator[str]:
    """Check that every byte has a token, and that tokens of type byte name one."""
    types = header.value(f"{PREFIX}token_type", [])
    if kind.bytes is None and BYTE not in types:
        return
    texts = [*header.raw_strings(tokens)]
    typed = [text for text, type_id in zip(texts, types, strict=False) if type_id == BYTE]
    if typed and kind is KINDS["bert"]:
        yield f"the token {typed[0]!r:.60} is of type byte, which a tokenizer of kind bert cannot have"
    if kind.bytes != "rwkv" and (broken := next((text for text in typed if not BYTE_TOKEN.match(text)), None)):
        yield f"the token {broken!r:.60} is of type byte, but does not have the form <0x0A>"
    if kind.bytes is None:
        return
    known = (
        {_unescaped(text) for text in texts} if kind.bytes == "rwkv" else set(typed if kind.bytes == "plamo" else texts)
    )
    for value in range(256):
        forms = {"spm": (b"<0x%02X>" % value, bytes([value]))}.get(kind.bytes, (b"<0x%02X>" % value,))
        if kind.bytes == "rwkv":
            forms = (bytes([value]),)
        if not known.intersection(forms):
            yield f"its vocabulary has no token for the byte 0x{value:02X}, which a tokenizer of this kind needs"
            return


_ESCAPE = re.compile(rb"\\(x.{2}|[^x])", re.DOTALL)


def _unescaped(text: bytes) -> bytes:
    """Return a token as llama_unescape_rwkv_token reads it.

    Its result for invalid hexadecimal numbers is never needed.
    """

    def character(match: re.Match[bytes]) -> bytes:
        escape = match[1]
        if len(escape) == 1:
            return {b"t": b"\t", b"n": b"\n", b"r": b"\r"}.get(escape, escape)
        try:
            return bytes([int(escape[1:], 16)])
        except ValueError:
            return b"??"

    return _ESCAPE.sub(character, text)
