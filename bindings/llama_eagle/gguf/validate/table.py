"""What a table of an architecture is made of: keys with type and range, tensors with shape and type."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from llama_eagle.gguf.header import TensorInfo

F32, F64 = 0, 28
INTEGERS = {24: "I8", 25: "I16", 26: "I32", 27: "I64"}
INTERMEDIATE = (9, 15)  # Q8_1, Q8_K: the other side of a product, never a weight
I32, I64 = 26, 27

MAX_WIDTH = 1 << 24  # of any one dimension that a key gives: products of three stay far below 2^63 bytes
MAX_CONTEXT = 1 << 24  # of what a model was trained for: llama-cpp-python takes memory by it for every tokenization
MAX_LAYERS = 512  # llama.cpp's own limits
MAX_EXPERTS = 1024

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Key:
    """name: behind the architecture's prefix. kind: a type of header.VALUE_TYPE_NAMES; "u32s" is one u32, or an array
    of one for each block. low, high: inclusive."""

    name: str
    kind: str
    low: float = -math.inf
    high: float = math.inf
    required: bool = False
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tensor:
    """name: in its block. shape: ggml order, sums of products of sizes ("2*q+k"). instead_of: tensors that are not
    missed where this one is there. type: the only one that is right; None: what a product or a lookup takes."""

    name: str
    shape: tuple[str, ...]
    required: bool = True
    instead_of: tuple[str, ...] = ()
    type: int | None = None


def vector(name: str, size: str, required: bool = True) -> Tensor:
    """Norms, biases and factors: F32 throughout llama.cpp."""
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
    """The value of a sum of products of numbers and sizes."""
    return sum(math.prod(int(f) if f.isdigit() else sizes[f] for f in part.split("*")) for part in text.split("+"))


def check_tensors(blocks: list[Block], sizes: Sizes, stored: Mapping[str, TensorInfo]) -> Iterator[str]:
    """Every reason why the stored tensors are not those of the table; unknown ones are not looked at."""
    for block in blocks:
        replaced = {name for row in block.rows if block.prefix + row.name in stored for name in row.instead_of}
        for row in block.rows:
            tensor = stored.get(block.prefix + row.name)
            if tensor is not None:
                yield from _faults(tensor, row, sizes)
            elif row.required and block.required and row.name not in replaced:
                yield f"the tensor {block.prefix}{row.name} is missing"


def unknown_names(blocks: list[Block], stored: Iterable[str]) -> list[str]:
    """Names that no table has, but for scales, which any weight may have."""
    known = {block.prefix + row.name for block in blocks for row in block.rows}
    return [name for name in stored if name not in known and not name.endswith("scale")]


@dataclass(frozen=True)
class Heads:
    """Attention heads as the keys give them: their number, and the values of a key, of a value and of the rotation."""

    n: int
    n_kv: int
    key: int
    value: int
    rotary: int


def check_heads(heads: Heads) -> Iterator[str]:
    """What no attention can do."""
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
        yield f"the tensor {tensor.name} has shape {list(tensor.shape)}, its keys say {wanted} (ggml order)"
    if row.type is not None and tensor.type_id != row.type:
        yield f"the tensor {tensor.name} is {tensor.type_name}, it must be {_name(row.type)}"
    elif row.type is None and not is_weight_type(tensor.type_id):
        yield f"the tensor {tensor.name} is {tensor.type_name}, which is no type of weights"


def is_weight_type(type_id: int) -> bool:
    """Whether llama.cpp can multiply by it; types that this gguf package does not know are llama.cpp's to judge."""
    return type_id not in INTEGERS and type_id not in INTERMEDIATE and type_id != F64


def _name(type_id: int) -> str:
    return "F32" if type_id == F32 else INTEGERS[type_id]
