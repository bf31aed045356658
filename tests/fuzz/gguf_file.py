"""A GGUF file taken apart, changed and put together again, so that a mutation reaches what lies behind the parser."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from llama_eagle.gguf.header import ARRAY, SCALAR_FORMATS, STRING, ArrayRef, quant_sizes, read_header

ALIGNMENT = 32
FLOATS = (6, 12)


@dataclass
class Tensor:
    """dims in ggml order. data: as the file has it; its length need not be what dims and type say."""

    name: bytes
    dims: list[int]
    type_id: int
    data: bytes
    offset: int | None = None  # instead of the right one


@dataclass
class File:
    """keys: name -> (type, encoded value)."""

    keys: list[tuple[bytes, int, bytes]]
    tensors: list[Tensor]
    alignment: int = ALIGNMENT
    version: int = 3
    cut: int = 0  # bytes missing at the end
    flips: list[tuple[int, int]] = field(default_factory=list)  # (position, value) of bytes of the header

    def encode(self) -> bytes:
        head = b"GGUF" + struct.pack("<IQQ", self.version, len(self.tensors), len(self.keys))
        for name, kind, value in self.keys:
            head += text(name) + struct.pack("<I", kind) + value
        body = b""
        for tensor in self.tensors:
            place = len(body) if tensor.offset is None else tensor.offset
            head += text(tensor.name) + struct.pack("<I", len(tensor.dims))
            head += b"".join(struct.pack("<Q", n % 2**64) for n in tensor.dims)
            head += struct.pack("<IQ", tensor.type_id % 2**32, place % 2**64)
            body += tensor.data + bytes(-len(tensor.data) % self.alignment)
        whole = bytearray(head + bytes(-len(head) % self.alignment) + body)
        for place, value in self.flips:
            whole[place % len(head)] = value
        return bytes(whole[: len(whole) - self.cut])


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def read(path: Path) -> File:
    header, raw = read_header(path), path.read_bytes()
    keys = []
    for name, value in header.keys.items():
        kind = header.key_types[name]
        if isinstance(value, ArrayRef):
            encoded = struct.pack("<IQ", value.type_id, value.count) + raw[value.start : value.end]
        elif kind == STRING:
            encoded = text(value.encode())
        else:
            encoded = struct.pack("<" + SCALAR_FORMATS[kind], value)
        keys.append((name.encode(), kind, encoded))
    tensors = []
    for tensor in header.tensors.values():
        start = header.data_offset + tensor.offset
        data = raw[start : start + (tensor.n_bytes or 0)]
        tensors.append(Tensor(tensor.name.encode(), list(tensor.shape), tensor.type_id, data))
    return File(keys, tensors)


def resized(tensor: Tensor, filler: bytes = b"") -> None:
    """Data of the length that dims and type say, as far as that is a length at all."""
    block, size = quant_sizes().get(tensor.type_id, (1, 4))
    count = 1
    for n in tensor.dims:
        count *= n
    n_bytes = count // block * size
    if 0 <= n_bytes < 1 << 22:
        data = tensor.data or filler or b"\0"
        tensor.data = (data * (n_bytes // len(data) + 1))[:n_bytes]


# --- mutations -------------------------------------------------------------------------------------------------------

NUMBERS = (0, 1, 2, 3, 5, 7, 31, 33, 63, 64, 65, 100, 127, 512, 513, 1000, 2**16, 2**30, 2**31 - 1, 2**31, 2**32 - 1)
STRINGS = (b"", b"x", b"\xff\xfe", b"none", b"longrope", b"yarn", b"gpt2", b"llama", b"\x1b[2J", b"[%s]%n")
NAMES = (b"x", b"x" * 63, b"x" * 64, b"\x1b[2J", b"blk.600.attn_q.weight", b"rope_freqs.weight", b"output.bias")
REALS = (0.0, -0.0, -1.0, 1e-30, 1e-6, 0.5, 1.0, 1e30, 1e38, float("inf"), float("-inf"), float("nan"))
DIMS = (0, 1, 2, 3, 31, 32, 33, 63, 65, 100, 256, 2**20, 2**31, 2**32, 2**62, 2**63, 2**64 - 1)
TYPES = (*range(44), 100, 2**31, 2**32 - 1)

Mutation = Callable[[File, random.Random], None]


def number(kind: int, rng: random.Random) -> bytes:
    code = SCALAR_FORMATS[kind]
    if kind in FLOATS:
        return struct.pack("<" + code, rng.choice(REALS))
    if code == "?":
        return bytes([rng.choice((0, 1, 2))])
    value = rng.choice(NUMBERS) * rng.choice((1, 1, 1, -1))
    return (value % 2**64).to_bytes(8, "little")[: struct.calcsize("<" + code)]


def interesting(file: File, rng: random.Random) -> int:
    """A key's place; those of the architecture four times as often as the others."""
    arch = [i for i, (name, _, _) in enumerate(file.keys) if not name.startswith((b"tokenizer.", b"general."))]
    return rng.choice(arch if arch and rng.random() < 0.8 else range(len(file.keys)))


def change_value(file: File, rng: random.Random) -> None:
    at = interesting(file, rng)
    name, kind, value = file.keys[at]
    if kind == ARRAY:
        value = change_array(value, rng)
    elif kind == STRING:
        value = text(rng.choice((*STRINGS, value[8:] * 3)))
    else:
        value = number(kind, rng)
    file.keys[at] = name, kind, value


def change_array(value: bytes, rng: random.Random) -> bytes:
    kind, count = struct.unpack_from("<IQ", value)
    entries = value[12:]
    if kind == STRING:
        keep = rng.choice((0, 1, count // 2, count))
        return struct.pack("<IQ", kind, keep) + text(b"same") * keep
    size = struct.calcsize("<" + SCALAR_FORMATS[kind])
    if rng.random() < 0.5 and count:
        at = rng.randrange(count) * size
        return value[:12] + entries[:at] + number(kind, rng) + entries[at + size :]
    keep = rng.choice((0, 1, 2, count - 1, count + 1, 4 * count, 600))
    return struct.pack("<IQ", kind, max(keep, 0)) + (entries * 700)[: max(keep, 0) * size]


def change_key_type(file: File, rng: random.Random) -> None:
    at = interesting(file, rng)
    kind = rng.choice((*SCALAR_FORMATS, STRING, ARRAY))
    if kind == STRING:
        value = text(b"8")
    elif kind == ARRAY:
        inner = rng.choice(tuple(SCALAR_FORMATS))
        value = struct.pack("<IQ", inner, 4) + b"".join(number(inner, rng) for _ in range(4))
    else:
        value = number(kind, rng)
    file.keys[at] = file.keys[at][0], kind, value


def drop_key(file: File, rng: random.Random) -> None:
    del file.keys[interesting(file, rng)]


def add_key(file: File, rng: random.Random) -> None:
    """Keys that llama.cpp reads and that the file does not have."""
    arch = next(value[8:] for name, _, value in file.keys if name == b"general.architecture")
    names = (
        b"expert_count", b"expert_used_count", b"expert_group_count", b"nextn_predict_layers", b"pooling_type",
        b"rope.scaling.factor", b"rope.scaling.attn_factor", b"rope.scaling.original_context_length", b"logit_scale",
        b"rope.dimension_count", b"attention.key_length", b"attention.value_length", b"attention.sliding_window",
        b"attention.head_count_kv", b"full_attention_interval", b"embedding_length_out", b"rope.scaling.finetuned",
        b"n_deepstack_layers", b"attention.clamp_kqv", b"attention.max_alibi_bias", b"attention.scale",
        b"expert_shared_feed_forward_length", b"expert_feed_forward_length", b"ssm.state_size", b"vocab_size",
    )  # fmt: skip
    kind = rng.choice((4, 4, 4, 6, 6, 5, 7))
    file.keys.append((arch + b"." + rng.choice(names), kind, number(kind, rng)))


def change_tensor_type(file: File, rng: random.Random) -> None:
    tensor = rng.choice(file.tensors)
    tensor.type_id = rng.choice(TYPES)
    if rng.random() < 0.9:
        resized(tensor)


def change_dims(file: File, rng: random.Random) -> None:
    tensor = rng.choice(file.tensors)
    kind = rng.randrange(5)
    if kind == 0 and tensor.dims:
        tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(DIMS)
    elif kind == 1 and tensor.dims:
        at = rng.randrange(len(tensor.dims))
        tensor.dims[at] += rng.choice((-1, 1, -32, 32, 256))
    elif kind == 2:
        tensor.dims.reverse()
    elif kind == 3:
        tensor.dims = tensor.dims[: rng.randrange(3)]
    else:
        tensor.dims = (tensor.dims + [rng.choice(DIMS)] * rng.randrange(1, 4))[:5]
    if rng.random() < 0.9:
        resized(tensor)


def drop_tensor(file: File, rng: random.Random) -> None:
    del file.tensors[rng.randrange(len(file.tensors))]


def rename_tensor(file: File, rng: random.Random) -> None:
    tensor, other = rng.choice(file.tensors), rng.choice(file.tensors)
    tensor.name = rng.choice((*NAMES, other.name, tensor.name + b".scale"))


def swap_tensors(file: File, rng: random.Random) -> None:
    a, b = rng.choice(file.tensors), rng.choice(file.tensors)
    a.name, b.name = b.name, a.name


def change_offset(file: File, rng: random.Random) -> None:
    rng.choice(file.tensors).offset = rng.choice((0, 1, 16, 32, 2**20, 2**40, 2**63, 2**64 - 32))


def change_data(file: File, rng: random.Random) -> None:
    tensor = rng.choice(file.tensors)
    kind = rng.randrange(3)
    if kind == 0:
        tensor.data = rng.randbytes(len(tensor.data))
    elif kind == 1:
        tensor.data = (struct.pack("<f", rng.choice(REALS)) * (len(tensor.data) // 4 + 1))[: len(tensor.data)]
    elif len(tensor.data) >= 8:
        at = rng.randrange(len(tensor.data) // 8) * 8
        tensor.data = tensor.data[:at] + rng.choice(NUMBERS).to_bytes(8, "little") + tensor.data[at + 8 :]


def change_alignment(file: File, rng: random.Random) -> None:
    file.alignment = rng.choice((1, 2, 8, 16, 64, 4096))
    value = struct.pack("<I", rng.choice((file.alignment, 0, 3, 2**31)))
    file.keys = [key for key in file.keys if key[0] != b"general.alignment"] + [(b"general.alignment", 4, value)]


def cut_off(file: File, rng: random.Random) -> None:
    file.cut = rng.choice((1, 31, 32, 1000, rng.randrange(1, 50_000)))


def flip_bytes(file: File, rng: random.Random) -> None:
    file.flips = [(rng.randrange(1 << 20), rng.randrange(256)) for _ in range(rng.choice((1, 2, 8)))]


MUTATIONS: tuple[Mutation, ...] = (
    change_value, change_value, change_value, change_value, change_key_type, change_key_type, drop_key, add_key,
    change_tensor_type, change_tensor_type, change_dims, change_dims, drop_tensor, rename_tensor, swap_tensors,
    change_offset, change_data, change_data, change_alignment, cut_off, flip_bytes,
)  # fmt: skip


def mutated(path: Path, seed: int, mutations: tuple[Mutation, ...] = MUTATIONS) -> bytes:
    """The file with one to three mutations; the same for the same seed."""
    rng, file = random.Random(seed), read(path)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if file.tensors and file.keys:
            rng.choice(mutations)(file, rng)
    return file.encode()
