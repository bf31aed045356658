"""Parts of an architecture's table: keys with type and range, tensors with shape and type."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from llama_eagle.gguf.header import TensorInfo

F32, F64 = 0, 28
INTEGERS = {24: "I8", 25: "I16", 26: "I32", 27: "I64"}
INTERMEDIATE = (9, 15)  # Q8_1, Q8_K: the other operand of a product, never a weight
I32, I64 = 26, 27

MAX_WIDTH = 1 << 24  # of any dimension in a key: products of three are far below 2^63 bytes
MAX_CONTEXT = 1 << 24  # training context: llama-cpp-python allocates that much for every tokenization
MAX_LAYERS = 512  # llama.cpp's own limits
MAX_EXPERTS = 1024

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Key:
    """A key of a table.

    name: without the architecture's prefix. kind: a type of header.VALUE_TYPE_NAMES; "u32s" is one u32, or an array of
    one per block. low, high: inclusive.
    """

    name: str
    kind: str
    low: float = -math.inf
    high: float = math.inf
    required: bool = False
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tensor:
    """A tensor of a table.

    name: within its block. shape: ggml order, sums of products of sizes ("2*q+k"). instead_of: tensors that are not
    required if this one exists. type: the only valid type; None: any type that a product or a lookup supports.
    """

    name: str
    shape: tuple[str, ...]
    required: bool = True
    instead_of: tuple[str, ...] = ()
    type: int | None = None


def vector(name: str, size: str, required: bool = True) -> Tensor:
    """Return a row for norms, biases and factors: F32 everywhere in llama.cpp."""
    return Tensor(name, (size,), required, type=F32)


def matrix(name: str, *shape: str, required: bool = True) -> Tensor:
    return Tensor(name, shape, required)


@dataclass(frozen=True)
class Block:
    """A table applied at a prefix, such as "blk.3."."""

    rows: tuple[Tensor, ...]
    prefix: str = ""
    required: bool = True


def size_of(text: str, sizes: Sizes) -> int:
    """Return the value of a sum of products of numbers and sizes."""
    return sum(math.prod(int(f) if f.isdigit() else sizes[f] for f in part.split("*")) for part in text.split("+"))


def check_tensors(blocks: list[Block], sizes: Sizes, stored: Mapping[str, TensorInfo]) -> Iterator[str]:
    """Yield every reason why the stored tensors do not match the table. Unknown ones are ignored."""
    for block in blocks:
        replaced = {name for row in block.rows if block.prefix + row.name in stored for name in row.instead_of}
        for row in block.rows:
            tensor = stored.get(block.prefix + row.name)
            if tensor is not None:
                yield from _faults(tensor, row, sizes)
            elif row.required and block.required and row.name not in replaced:
                yield f"the tensor {block.prefix}{row.name} is missing"


def unknown_names(blocks: list[Block], stored: Iterable[str]) -> list[str]:
    """Return the names that are in no table, except scales, which any weight may have."""
    known = {block.prefix + row.name for block in blocks for row in block.rows}
    return [name for name in stored if name not in known and not name.endswith("scale")]


@dataclass(frozen=True)
class Heads:
    """Attention heads by the keys: their number, and the dimensions of keys, values and rotation."""

    n: int
    n_kv: int
    key: int
    value: int
    rotary: int


def check_heads(heads: Heads) -> Iterator[str]:
    """Yield combinations that no attention supports."""
    if not heads.n or not heads.n_kv or heads.n % heads.n_kv:
        yield f"{heads.n} heads do not divide into {heads.n_kv} groups (attention.head_count, head_count_kv)"
    if heads.key != heads.value or not heads.key:
        yield f"keys of {heads.key} and values of {heads.value} values a head (attention.key_length, value_length)"
    if heads.rotary % 2 or not 0 < heads.rotary <= heads.key:
        yield f"{heads.rotary} rotary dimensions of heads of {heads.key} (rope.dimension_count)"


def _faults(tensor: TensorInfo, row: Tensor, sizes: Sizes) -> Iterator[str]:
    wanted = [size_of(text, sizes) for text in row.shape]
    found = list(tensor.shape) + [1] * (len(wanted) - len(tensor.shape))
    if found[: len(wanted)] != wanted or any(n != 1 for n in found[len(wanted) :]):
        yield f"the tensor {tensor.name} has shape {list(tensor.shape)}, expected {wanted} by its keys (ggml order)"
    if row.type is not None and tensor.type_id != row.type:
        yield f"the tensor {tensor.name} is {tensor.type_name}, it must be {_name(row.type)}"
    elif row.type is None and not is_weight_type(tensor.type_id):
        yield f"the tensor {tensor.name} is {tensor.type_name}, which is not a type for weights"


def is_weight_type(type_id: int) -> bool:
    """Return True if llama.cpp can multiply by the type.

    Types that this gguf package does not know are left to llama.cpp.
    """
    return type_id not in INTEGERS and type_id not in INTERMEDIATE and type_id != F64


def _name(type_id: int) -> str:
    return "F32" if type_id == F32 else INTEGERS[type_id]
