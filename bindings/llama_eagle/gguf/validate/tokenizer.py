"""The tokenizer's keys: llama.cpp reads its arrays side by side, by the length of the first."""

from __future__ import annotations

from collections.abc import Iterator

from llama_eagle.gguf.header import ArrayRef, Header
from llama_eagle.gguf.validate.keys import check_keys
from llama_eagle.gguf.validate.table import Key

PREFIX = "tokenizer.ggml."
SPECIAL = ("bos", "eos", "eot", "eom", "unknown", "seperator", "padding", "cls", "mask")
KEYS = (
    Key("model", "string"),
    Key("pre", "string"),
    Key("tokens", "string[]"),
    Key("merges", "string[]"),
    Key("token_type", "i32[]"),
    Key("token_type_count", "u32"),
    *(Key(f"{name}_token_id", "u32") for name in SPECIAL),
    *(Key(f"add_{name}", "bool") for name in ("bos_token", "eos_token", "sep_token", "space_prefix")),
)


def check_tokenizer(header: Header) -> Iterator[str]:
    faults = [*check_keys(header, KEYS, prefix=PREFIX)]
    if "tokenizer.chat_template" in header.keys:
        faults += check_keys(header, (Key("tokenizer.chat_template", "string"),))
    yield from faults
    tokens = header.keys.get(f"{PREFIX}tokens")
    if faults or not isinstance(tokens, ArrayRef):
        return
    if not tokens.count:
        yield f"the key {PREFIX}tokens is empty"
    for name in ("token_type", "scores"):
        array = header.keys.get(PREFIX + name)
        if isinstance(array, ArrayRef) and array.count < tokens.count:
            yield f"the key {PREFIX}{name} has {array.count} entries for {tokens.count} tokens"
    yield from _special(header, tokens.count)
    if header.count_distinct(tokens) != tokens.count:
        yield f"the key {PREFIX}tokens names a token twice"


def _special(header: Header, n_tokens: int) -> Iterator[str]:
    """A special token that is put around every text must exist."""
    for name in ("bos", "eos"):
        added, token = (header.keys.get(PREFIX + key) for key in (f"add_{name}_token", f"{name}_token_id"))
        if added and (n_tokens < 12 if token is None else token >= n_tokens):  # llama.cpp's defaults are up to 11
            yield f"the key {PREFIX}{name}_token_id is {token}, and every text is given this token"
