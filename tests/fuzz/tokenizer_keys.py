"""The tiny target with a sound tokenizer of each kind, and mutations of tokenizers and of tensor dimensions."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from pathlib import Path

from fixtures.tiny_gguf import write_target
from fuzz.gguf_file import ARRAY, STRING, File, Mutation, Tensor, change_dims, number, read, resized, text

U32, I32, F32, BOOL, U8 = 4, 5, 6, 7, 0
NORMAL, CONTROL, UNUSED, BYTE = 1, 3, 5, 6
PREFIX = b"tokenizer.ggml."
IDS = ("bos", "eos", "eot", "eom", "unknown", "seperator", "padding", "cls", "mask")
ADDED = ("add_bos_token", "add_eos_token", "add_sep_token", "add_space_prefix", "remove_extra_whitespaces")
KINDS = ("gpt2", "llama", "bert", "t5", "rwkv", "plamo2", "gemma4")
OTHERS = ("none", "no_vocab", "test", "whitespace", "hybriddna", "", "unigram")


def array(kind: int, values: Sequence[bytes]) -> bytes:
    return struct.pack("<IQ", kind, len(values)) + b"".join(values)


def strings(values: Sequence[bytes]) -> bytes:
    return array(STRING, [text(value) for value in values])


def put(file: File, name: str, kind: int, value: bytes) -> None:
    full = PREFIX + name.encode()
    file.keys = [entry for entry in file.keys if entry[0] != full] + [(full, kind, value)]


def get(file: File, name: str) -> bytes | None:
    """An array; None: there is none."""
    return next((value for full, kind, value in file.keys if full == PREFIX + name.encode() and kind == ARRAY), None)


def drop(file: File, name: str) -> None:
    file.keys = [entry for entry in file.keys if entry[0] != PREFIX + name.encode()]


def write_kinds(folder: Path) -> list[Path]:
    """One file for each kind; all but the first have tokens for bytes, a few words and special tokens."""
    first = write_target(folder / "gpt2.gguf")
    paths = [first]
    for kind in KINDS[1:]:
        file = read(first)
        _become(file, kind)
        path = folder / f"{kind}.gguf"
        path.write_bytes(file.encode())
        paths.append(path)
    return paths


def _become(file: File, kind: str) -> None:
    n_tokens = struct.unpack_from("<Q", get(file, "tokens") or b"", 4)[0]
    escaped = {"rwkv": b"\\x%02x"}.get(kind, b"<0x%02X>")
    tokens = [escaped % value for value in range(256)]
    tokens += [b"<unk>", b"<s>", b"</s>", b"the", "\u2581the".encode(), b"q", b"t h"]
    tokens += [b"[PAD%d]" % i for i in range(len(tokens), n_tokens)]
    byte = NORMAL if kind in ("rwkv", "bert") else BYTE
    types = [byte] * 256 + [CONTROL] * 3 + [NORMAL] * 4 + [UNUSED] * n_tokens
    if kind == "plamo2":  # its token 0 cannot be a byte
        tokens[0], tokens[256], types[0], types[256] = tokens[256], tokens[0], types[256], types[0]
    put(file, "model", STRING, text(kind.encode()))
    put(file, "tokens", ARRAY, strings(tokens))
    put(file, "token_type", ARRAY, array(I32, [struct.pack("<i", kind) for kind in types[:n_tokens]]))
    put(file, "scores", ARRAY, array(F32, [struct.pack("<f", -i / 16) for i in range(n_tokens)]))
    for name, token in (("bos", 257), ("eos", 258), ("unknown", 256), ("seperator", 258)):
        put(file, f"{name}_token_id", U32, struct.pack("<I", token))
    if kind == "gemma4":
        put(file, "merges", ARRAY, strings([b"t h", b"th e"]))
    if kind == "t5":
        put(file, "precompiled_charsmap", ARRAY, array(U8, [bytes([value]) for value in _charsmap()]))


def _charsmap() -> bytes:
    """A double array that turns "Q" into "q": the root, and a leaf with its replacement."""
    nodes = [0] * 256
    nodes[0] = 1 << 10
    label = ord("Q") ^ 1
    nodes[label] = ord("Q") | 1 << 8 | (label ^ 2) << 10  # the leaf's base leads to position 2
    nodes[2] = 0
    return struct.pack("<I", 4 * len(nodes)) + struct.pack(f"<{len(nodes)}I", *nodes) + b"q\0"


# --- mutations -------------------------------------------------------------------------------------------------------


def change_kind(file: File, rng: random.Random) -> None:
    put(file, "model", STRING, text(rng.choice((*KINDS, *KINDS, *OTHERS)).encode()))


def change_pre(file: File, rng: random.Random) -> None:
    put(
        file,
        "pre",
        STRING,
        text(rng.choice((b"default", b"llama-bpe", b"kimi-k2", b"gemma4", b"", b"x", b"whitespace"))),
    )


def change_id(file: File, rng: random.Random) -> None:
    token = rng.choice((0, 1, 255, 256, 271, 272, 10**6, 2**31 - 1, 2**31, 2**32 - 1))
    put(file, f"{rng.choice(IDS)}_token_id", U32, struct.pack("<I", token))


def drop_id(file: File, rng: random.Random) -> None:
    drop(file, f"{rng.choice(IDS)}_token_id")


def change_flag(file: File, rng: random.Random) -> None:
    put(file, rng.choice(ADDED), BOOL, bytes([rng.choice((0, 1))]))


def drop_array(file: File, rng: random.Random) -> None:
    drop(file, rng.choice(("tokens", "scores", "token_type", "merges", "precompiled_charsmap", "pre", "model")))


def change_types(file: File, rng: random.Random) -> None:
    change_numbers(file, "token_type", "<i", (0, 1, 2, 3, 4, 5, 6, 6, 7, -1, 2**31 - 1), rng)


def change_scores(file: File, rng: random.Random) -> None:
    change_numbers(file, "scores", "<f", (0.0, 1e30, -1e30, float("inf"), float("-inf"), float("nan")), rng)


def change_numbers(file: File, name: str, code: str, values: Sequence[float], rng: random.Random) -> None:
    """One entry, some, or the length."""
    value = get(file, name)
    if value is None:
        return
    kind, count = struct.unpack_from("<IQ", value)
    entries = [value[12 + 4 * i : 16 + 4 * i] for i in range(count)]
    for _ in range(rng.choice((1, 1, 1, 50, 1000))):
        if entries:
            entries[rng.randrange(count)] = struct.pack(code, rng.choice(values))
    keep = rng.choice((count, count, count, count - 1, 1, 0, 2 * count))
    put(file, name, ARRAY, array(kind, (entries * 2)[:keep]))


def change_strings(file: File, rng: random.Random) -> None:
    """Tokens or merges: one entry becomes another, is dropped or appears twice."""
    name = rng.choice(("tokens", "tokens", "merges"))
    value = get(file, name)
    if value is None:
        return
    count, at, entries = struct.unpack_from("<Q", value, 4)[0], 12, []
    for _ in range(count):
        size = struct.unpack_from("<Q", value, at)[0]
        entries.append(value[at + 8 : at + 8 + size])
        at += 8 + size
    for _ in range(rng.choice((1, 1, 5))):
        if entries:
            place, new = (
                rng.randrange(len(entries)),
                rng.choice((b"", b"x", b"<0x", b"<0xZZ>", b"\\x4", b" ", b"\xff", b"a b")),
            )
            entries[place : place + 1] = rng.choice(([new], [], [entries[place]] * 2, [new + b"%d" % place]))
    put(file, name, ARRAY, strings(entries))


def change_charsmap(file: File, rng: random.Random) -> None:
    value = bytearray(get(file, "precompiled_charsmap") or array(U8, [bytes([b]) for b in _charsmap()]))
    for _ in range(rng.choice((1, 1, 20))):
        at = rng.randrange(12, len(value))
        value[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    put(file, "precompiled_charsmap", ARRAY, bytes(value))


def change_any(file: File, rng: random.Random) -> None:
    """Any key of the tokenizer gets another type."""
    names = [name for name, _, _ in file.keys if name.startswith(PREFIX)]
    name, kind = rng.choice(names)[len(PREFIX) :].decode(), rng.choice((U32, I32, F32, BOOL, STRING, 10, 12))
    put(file, name, kind, text(b"8") if kind == STRING else number(kind, rng))


def add_tensor(file: File, rng: random.Random) -> None:
    dims = [rng.choice((0, 1, 3, 64)) for _ in range(rng.randrange(1, 5))]
    file.tensors.append(Tensor(rng.choice((b"extra", b"blk.0.extra.weight", b"rope_freqs.weight")), dims, 0, b""))
    resized(file.tensors[-1])


MUTATIONS: tuple[Mutation, ...] = (
    change_kind, change_kind, change_pre, change_id, change_id, drop_id, change_flag, change_flag, drop_array,
    change_types, change_types, change_scores, change_strings, change_strings, change_charsmap, change_any, add_tensor,
    change_dims,
)  # fmt: skip
