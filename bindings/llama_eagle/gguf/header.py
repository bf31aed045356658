"""Reader of the header of a GGUF file: keys, array extents and tensor descriptions, never tensor data.

The file is memory-mapped and only its first pages are read, so that even a large model is checked quickly. Every read
is bounded by the file, so that a damaged file raises `InputError` and nothing else. The checks here run before native
code reads the file: llama.cpp aborts on some of the files that they refuse.

Source of the format: ggml/include/gguf.h.
"""

from __future__ import annotations

import math
import mmap
import re
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from llama_eagle.errors import InputError
from llama_eagle.file_kinds import COMMAND as CONVERT
from llama_eagle.file_kinds import GGUF, is_not
from llama_eagle.files import refuse_special

SCALAR_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
VALUE_TYPE_NAMES = {
    0: "u8", 1: "i8", 2: "u16", 3: "i16", 4: "u32", 5: "i32", 6: "f32", 7: "bool", 8: "string", 9: "array",
    10: "u64", 11: "i64", 12: "f64",
}  # fmt: skip
STRING, ARRAY = 8, 9
# ggml type id: name, elements and bytes of a block. gguf.constants has the same, and takes 80 ms to import.
QUANT_TYPES = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17), 40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18), 42: ("Q2_0", 64, 18),
}  # fmt: skip
QUANT_NAMES = {type_id: name for type_id, (name, _, _) in QUANT_TYPES.items()}
QUANT_SIZES = {type_id: (block, n_bytes) for type_id, (_, block, n_bytes) in QUANT_TYPES.items()}
MAX_DIMS = 4
SETTLED_S = 2.0  # age of a file from which on another change shows in its times
MAX_NAME = 64  # bytes of a tensor name, GGML_MAX_NAME
SPLIT_ID = "llama_eagle.split_id"  # equal in all files of one conversion
NO_FILE, GIVE_PATH = "no such file.", "Give the path of a .gguf file."
HUB_ID = re.compile(r"(?!.*\.gguf$)\w[\w.-]*/\w[\w.-]*(:\w+)?")  # a relative path may look the same
SPLIT_NAME = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


@dataclass(frozen=True)
class TensorInfo:
    """One tensor. `shape`: ggml order (ne, fastest dimension first). `offset`: bytes into the data section."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int

    @property
    def n_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def type_name(self) -> str:
        return quant_type_name(self.type_id)

    @property
    def n_bytes(self) -> int | None:
        """Size of the data in bytes; None for an unknown type."""
        sizes = quant_sizes().get(self.type_id)
        if sizes is None:
            return None
        block, block_bytes = sizes
        return self.n_elements // block * block_bytes


@dataclass(frozen=True)
class ArrayRef:
    """An array value that has not been read: element type, count and position of its elements in the file."""

    type_id: int
    count: int
    start: int
    end: int


@dataclass(frozen=True)
class Header:
    """The header of one GGUF file. `keys` contains scalars and strings as values, arrays as `ArrayRef`."""

    path: Path
    version: int
    keys: dict[str, Any]
    tensors: dict[str, TensorInfo]
    data_offset: int
    file_size: int
    key_types: dict[str, int] = field(repr=False)
    times: tuple[int, int] | None = None  # of change, in ns, if the file's next change shows in them

    @property
    def architecture(self) -> str:
        return str(self.keys.get("general.architecture", ""))

    def arch_key(self, name: str, default: Any = None) -> Any:
        """Return the value of `{architecture}.{name}`, with arrays read."""
        return self.value(f"{self.architecture}.{name}", default)

    def number(self, name: str, default: int = 0, layer: int = 0) -> int:
        """Return the value of a key that has one number for all layers, or one for each."""
        value = self.arch_key(name, default)
        if isinstance(value, list):
            value = value[layer] if layer < len(value) else default
        return int(value)

    def value(self, key: str, default: Any = None) -> Any:
        value = self.keys.get(key, default)
        return self.read_array(value) if isinstance(value, ArrayRef) else value

    def read_array(self, ref: ArrayRef) -> list[Any]:
        with self.path.open("rb") as file:
            file.seek(ref.start)
            reader = _Reader(file.read(ref.end - ref.start), self.path)
        return list(reader.elements(ref.type_id, ref.count))

    def count_distinct(self, ref: ArrayRef) -> int:
        """Count the distinct tokens of an array. llama.cpp reads each to its first zero, and names an empty one."""
        texts = (text.partition(b"\0")[0] for text in self.raw_strings(ref))
        return len({text or b"[EMPTY_%d]" % i for i, text in enumerate(texts)})

    def raw_strings(self, ref: ArrayRef) -> Iterator[bytes]:
        """Yield the strings of an array, not decoded."""
        data, at, unpack = self.raw_array(ref), 0, struct.Struct("<Q").unpack_from
        for _ in range(ref.count):
            start = at + 8
            at = start + unpack(data, at)[0]
            yield data[start:at]

    def raw_array(self, ref: ArrayRef) -> bytes:
        """Return the encoded elements, to compare two arrays without decoding them."""
        with self.path.open("rb") as file:
            file.seek(ref.start)
            return file.read(ref.end - ref.start)

    def read_tensor_bytes(self, name: str) -> bytes:
        """Return the data of one small tensor (the draft's d2t)."""
        tensor = self.tensors[name]
        with self.path.open("rb") as file:
            file.seek(self.data_offset + tensor.offset)
            return file.read(tensor.n_bytes or 0)

    @property
    def split_count(self) -> int:
        count = self.keys.get("split.count", 1)
        if type(count) is not int:
            raise InputError(f"{self.path}: split.count {count!r:.40} is not a number. Convert or download it again.")
        return count

    @property
    def n_vocab(self) -> int:
        """Number of tokens of the tokenizer, 0 without one."""
        tokens = self.keys.get("tokenizer.ggml.tokens")
        return tokens.count if isinstance(tokens, ArrayRef) else 0


def read_header(path: Path | str) -> Header:
    """Read and check one file's header. Raises `InputError` unless it is a complete, valid GGUF."""
    path = Path(path)
    refuse_special(path)
    try:
        state = path.stat()
        times = (state.st_mtime_ns, state.st_ctime_ns)
        is_settled = time.time() - max(times) / 1e9 > SETTLED_S
        header = _read_settled(path, state.st_ino, state.st_size, times) if is_settled else _read(path)
    except FileNotFoundError:
        raise InputError(f"{path}: {NO_FILE} {_how_to_get(path)}") from None
    except IsADirectoryError:
        raise InputError(
            f"{path} is a folder, not a GGUF file. Convert a checkpoint first: {CONVERT.replace('FOLDER', str(path))}"
        ) from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}). Correct the path.") from None
    check_extents(header)
    keys, tensors, key_types = header.keys.copy(), header.tensors.copy(), header.key_types.copy()
    return replace(header, keys=keys, tensors=tensors, key_types=key_types)


def _read(path: Path) -> Header:
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise InputError(is_not(path, GGUF))
        size = file.seek(0, 2)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            return _parse(_Reader(view, path), path, size)


@lru_cache(maxsize=16)
def _read_settled(path: Path, _inode: int, _size: int, times: tuple[int, int]) -> Header:
    """Read a file whose next change will change its time: a command reads the same header several times."""
    return replace(_read(path), times=times)


def _how_to_get(path: Path) -> str:
    """Return the remedy for a path without a file, which may be an address or an id on the hub."""
    if re.match(r"https?:/", str(path)):
        return "Download the file, and give its path."
    fetch = f" If it is on the hub: llama-eagle pull {path}" if HUB_ID.fullmatch(str(path)) else ""
    return GIVE_PATH + fetch


Source: TypeAlias = Path | str | list[Header]  # a model's file, or the headers of all its files


def read_model(source: Source) -> tuple[Header, list[Header]]:
    """Return the header of a model, and those of all its files: itself, or its splits.

    Raises `InputError` if a split is missing, or the path is not the first one.
    """
    if isinstance(source, list):
        return source[0], source
    first = read_header(source)
    if first.split_count <= 1:
        return first, [first]
    match = SPLIT_NAME.search(first.path.name)
    number = first.keys.get("split.no", 0)
    if match is None or int(match[2]) != first.split_count:
        raise InputError(
            f"{first.path}: one of {first.split_count} splits, but its name is not NAME-00001-of-"
            f"{first.split_count:05d}.gguf. Restore the original names of the files."
        )
    names = [
        first.path.with_name(f"{first.path.name[: match.start()]}-{i + 1:05d}-of-{first.split_count:05d}.gguf")
        for i in range(first.split_count)
    ]
    if number != 0:
        raise InputError(f"{first.path}: this is not the first split. Use the first one: {names[0]}")
    missing = [name.name for name in names if not name.exists()]
    if missing:
        raise InputError(f"{first.path}: missing split {missing[0]} (expected {len(names)} files in the same folder).")
    files = [first, *(read_header(name) for name in names[1:])]
    _require_one_conversion(files)
    return first, files


def _require_one_conversion(files: list[Header]) -> None:
    """Check that splits belong together: by number, by the id that our conversions write, and by their tensors."""
    first, seen = files[0], dict[str, Path]()
    for number, file in enumerate(files):
        ids = first.keys.get(SPLIT_ID), file.keys.get(SPLIT_ID)
        if (file.keys.get("split.no", 0), file.split_count) != (number, len(files)):
            raise InputError(
                f"{file.path}: not split {number + 1} of {len(files)}, despite its name. Download it again."
            )
        if None not in ids and ids[0] != ids[1]:
            raise InputError(f"{file.path}: from another conversion than {first.path}. Use files of one conversion.")
        for name in file.tensors:
            if name in seen:
                raise InputError(f"{file.path}: tensor {name} is in {seen[name]} too. Use files of one conversion.")
            seen[name] = file.path
    total = first.keys.get("split.tensors.count", len(seen))
    if total != len(seen):
        raise InputError(
            f"{first.path}: its splits contain {len(seen)} tensors, expected {total}. Download them again."
        )


def check_extents(header: Header) -> None:
    """Check that every tensor is inside the file, so that a truncated download fails here and not during loading."""
    available = header.file_size - header.data_offset
    for tensor in header.tensors.values():
        sizes = quant_sizes().get(tensor.type_id)
        if sizes is not None and tensor.shape[0] % sizes[0]:
            raise InputError(
                f"{header.path}: damaged: tensor {tensor.name} has rows of {tensor.shape[0]} elements, "
                f"which {tensor.type_name} does not support (blocks of {sizes[0]}). Convert or download it again."
            )
        end = tensor.offset + (tensor.n_bytes or 0)
        if end > available:
            raise InputError(
                f"{header.path}: truncated: tensor {tensor.name} ends at byte {header.data_offset + end}, the file has "
                f"{header.file_size}. Download or convert it again."
            )


def quant_sizes() -> dict[int, tuple[int, int]]:
    """Return the map from ggml type id to (elements per block, bytes per block)."""
    return QUANT_SIZES


def quant_type_name(type_id: int) -> str:
    return QUANT_NAMES.get(type_id, f"type-{type_id}")


class _Reader:
    """Bounded little-endian reads from a buffer, with a position."""

    def __init__(self, view: Any, path: Path) -> None:
        self.view = view
        self.path = path
        self.size = len(view)
        self.at = 0

    def damaged(self, what: str) -> InputError:
        return InputError(
            f"{self.path}: damaged or truncated header at byte {self.at}: {what}. Download or convert it again."
        )

    def scalar(self, code: str) -> Any:
        size = struct.calcsize("<" + code)
        if self.at + size > self.size:
            raise self.damaged("the file ends inside a value")
        (value,) = struct.unpack_from("<" + code, self.view, self.at)
        self.at += size
        return value

    def take(self, n: int, what: str) -> bytes:
        if n > self.size - self.at:
            raise self.damaged(f"{what} of {n} bytes does not fit into the file")
        self.at += n
        return bytes(self.view[self.at - n : self.at])

    def string(self) -> str:
        return self.take(self.scalar("Q"), "a string").decode("utf-8", "replace")

    def value(self, type_id: int) -> Any:
        if type_id == STRING:
            return self.string()
        if type_id == ARRAY:
            return self.array_ref()
        if type_id not in SCALAR_FORMATS:
            raise self.damaged(f"unknown value type {type_id}")
        return self.scalar(SCALAR_FORMATS[type_id])

    def array_ref(self) -> ArrayRef:
        type_id = self.scalar("I")
        count = self.scalar("Q")
        start = self.at
        if type_id == STRING:
            self.skip_strings(count)
        elif type_id in SCALAR_FORMATS:
            self.skip(count * struct.calcsize("<" + SCALAR_FORMATS[type_id]))
        else:
            raise self.damaged(f"an array of value type {type_id}")
        return ArrayRef(type_id, count, start, self.at)

    def skip(self, n: int) -> None:
        if n > self.size - self.at:
            raise self.damaged(f"an array of {n} bytes does not fit into the file")
        self.at += n

    def skip_strings(self, count: int) -> None:
        """Skip strings in a tight loop: a tokenizer may have half a million."""
        if count > (self.size - self.at) // 8:
            raise self.damaged(f"an array of {count} strings does not fit into the file")
        unpack, view, at, limit = struct.Struct("<Q").unpack_from, self.view, self.at, self.size - 8
        for _ in range(count):
            if at > limit:
                raise self.damaged("an array of strings ends outside the file")
            at += 8 + unpack(view, at)[0]
        if at > self.size:
            raise self.damaged("an array of strings ends outside the file")
        self.at = at

    def elements(self, type_id: int, count: int) -> Iterator[Any]:
        if type_id == STRING:
            return (self.string() for _ in range(count))
        return iter(struct.unpack_from(f"<{count}{SCALAR_FORMATS[type_id]}", self.view, self.at))


def _parse(reader: _Reader, path: Path, size: int) -> Header:
    reader.take(4, "the magic")
    version = reader.scalar("I")
    if version not in (2, 3):
        kind = "big-endian" if version & 0xFFFF == 0 else f"version {version}"
        raise InputError(f"{path}: {kind} GGUF; versions 2 and 3, little-endian, are supported. Convert it again.")
    n_tensors, n_keys = reader.scalar("Q"), reader.scalar("Q")
    if n_keys > size // 12 or n_tensors > size // 24:
        raise reader.damaged(f"{n_keys} keys and {n_tensors} tensors do not fit into {size} bytes")
    keys, key_types = _parse_keys(reader, n_keys)
    alignment = keys.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
        raise reader.damaged(f"general.alignment {alignment} is not a power of two")
    tensors = _parse_tensors(reader, n_tensors)
    data_offset = -(-reader.at // alignment) * alignment
    return Header(path, version, keys, tensors, data_offset, size, key_types)


def _parse_keys(reader: _Reader, n_keys: int) -> tuple[dict[str, Any], dict[str, int]]:
    keys: dict[str, Any] = {}
    types: dict[str, int] = {}
    for _ in range(n_keys):
        name = reader.string()
        types[name] = reader.scalar("I")
        if name in keys:
            raise reader.damaged(f"key {name!r} appears twice")
        keys[name] = reader.value(types[name])
    return keys, types


def _parse_tensors(reader: _Reader, n_tensors: int) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    for _ in range(n_tensors):
        name = reader.string()
        n_dims = reader.scalar("I")
        if n_dims > MAX_DIMS or len(name.encode()) >= MAX_NAME or name in tensors:
            raise reader.damaged(f"tensor {name[:MAX_NAME]!r} with {n_dims} dimensions, or named twice")
        shape = tuple(reader.scalar("Q") for _ in range(n_dims)) or (1,)
        if min(shape) < 1 or math.prod(shape) >= 1 << 56:  # bytes of the widest type stay below 2^63
            raise reader.damaged(f"tensor {name!r} has the shape {list(shape)}")
        tensors[name] = TensorInfo(name, shape, reader.scalar("I"), reader.scalar("Q"))
    return tensors
