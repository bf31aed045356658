"""Writer of GGUF files, tensor by tensor: peak memory is about one tensor, independent of the model's size.

    with gguf_output("model.gguf", arch="qwen35") as out:
        out.key("qwen35.block_count", 24)
        out.tensor("token_embd.weight", (vocab, width), lambda: checkpoint.read(name), "bf16")

Nothing is read before the `with` block ends: the layout follows from the declared shapes. Then each source is called,
encoded in small pieces on threads, and written in order. The data goes to a temporary file in the output's folder,
which is renamed at the end. On any failure, including Ctrl-C, nothing is left behind.
"""

from __future__ import annotations

import contextlib
import math
import secrets
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from llama_eagle.convert.dtypes import STORAGE, encode, storage_bytes
from llama_eagle.errors import ConversionError
from llama_eagle.files import check_output, temporary_next_to, write_error
from llama_eagle.gguf.header import SPLIT_ID, ArrayRef, Header, read_header
from llama_eagle.gguf.validate import check_files
from llama_eagle.native.processor.threads import default_threads

ALIGNMENT: Final = 32
_AHEAD: Final = 6  # pieces computed in advance
MOST_THREADS: Final = 4  # more of them than cores wait for the interpreter: a sixth of the time
PIECE: Final = 1 << 18  # elements per piece: fits into a core's cache, a multiple of every block size

# A tensor's values: one array, or several whose concatenation along the first axis is the tensor.
# A piece may be a function that returns it, which is called on another thread.
Piece = np.ndarray | Callable[[], np.ndarray]
Source = Callable[[], "np.ndarray | Iterable[Piece]"]
# Called with (bytes written, bytes in all, name of the tensor being written).
Progress = Callable[[int, int, str], None]

# Called with a file that contains the keys alone, before tensors are written. It raises an error for wrong keys.
KeyCheck = Callable[[Path], None]

_SCALARS: Final = {
    "u8": (0, "<B"),
    "i8": (1, "<b"),
    "u16": (2, "<H"),
    "i16": (3, "<h"),
    "u32": (4, "<I"),
    "i32": (5, "<i"),
    "f32": (6, "<f"),
    "bool": (7, "<?"),
    "u64": (10, "<Q"),
    "i64": (11, "<q"),
    "f64": (12, "<d"),
}
_STRING, _ARRAY = 8, 9


def _text(value: str | bytes) -> bytes:
    try:
        data = value.encode() if isinstance(value, str) else value
    except UnicodeEncodeError:
        raise ConversionError(f"{value[:80]!r} is not valid text: it contains half of a surrogate pair") from None
    return struct.pack("<Q", len(data)) + data


def _guess(value: object, in_array: bool) -> str:
    """Return the GGUF type of a Python value. Integers are u32 alone and i32 in arrays, as in llama.cpp."""
    if isinstance(value, (bool, np.bool_)):
        return "bool"
    if isinstance(value, (int, np.integer)):
        return "i32" if in_array else "u32"
    if isinstance(value, (float, np.floating)):
        return "f32"
    if isinstance(value, (str, bytes)):
        return "string"
    raise TypeError(f"no GGUF type for {type(value).__name__}")


def _value(value: Any, kind: str | None) -> bytes:
    """Encode a value with its type tag, as in the key-value section."""
    if isinstance(value, (list, tuple)):
        kind = kind or _guess(value[0], in_array=True)
        if kind == "string":
            return struct.pack("<IIQ", _ARRAY, _STRING, len(value)) + b"".join(map(_text, value))
        number, form = _SCALARS[kind]
        packed = struct.pack(f"<{len(value)}{form[1]}", *value)
        return struct.pack("<IIQ", _ARRAY, number, len(value)) + packed
    kind = kind or _guess(value, in_array=False)
    if kind == "string":
        return struct.pack("<I", _STRING) + _text(value)
    number, form = _SCALARS[kind]
    return struct.pack("<I", number) + struct.pack(form, value)


@dataclass(frozen=True)
class _Tensor:
    name: str
    shape: tuple[int, ...]
    source: Source
    outtype: str

    @property
    def n_bytes(self) -> int:
        return storage_bytes(self.shape, self.outtype)

    def info(self, offset: int) -> bytes:
        dims = struct.pack(f"<{len(self.shape)}Q", *reversed(self.shape))
        kind = STORAGE[self.outtype][0]
        return _text(self.name) + struct.pack("<I", len(self.shape)) + dims + struct.pack("<IQ", kind, offset)


def _padding(n: int) -> int:
    return -n % ALIGNMENT


@dataclass
class GGUFOutput:
    """Collector of keys and tensors, which are written when the `with` block of gguf_output() ends."""

    arch: str
    split_max_size: int = 0
    keys: dict[str, bytes] = field(default_factory=dict)
    tensors: dict[str, _Tensor] = field(default_factory=dict)
    written: list[Path] = field(default_factory=list)  # the files, once the block has ended
    split_id: str = field(default_factory=lambda: secrets.token_hex(8))  # in every file of a split model

    def key(self, name: str, value: Any, kind: str | None = None) -> None:
        """Set a key. kind: u32, i32, f32, bool, string, ... (of the elements, for a list); guessed if absent.

        A key set twice keeps the last value. An empty list is dropped: GGUF readers reject empty arrays.
        """
        if isinstance(value, (list, tuple)) and not value:
            return
        try:
            self.keys[name] = _value(value, kind)
        except struct.error as error:
            raise ConversionError(f"the key {name} cannot store {value!r:.60} ({error})") from None

    def copy_key(self, header: Header, name: str) -> None:
        """Copy a key of another file with its type."""
        value = header.keys[name]
        if isinstance(value, ArrayRef):
            self.keys[name] = struct.pack("<IIQ", _ARRAY, value.type_id, value.count) + header.raw_array(value)
            return
        kinds = {number: kind for kind, (number, _) in _SCALARS.items()} | {_STRING: "string"}
        self.key(name, value, kinds[header.key_types[name]])

    def tensor(self, name: str, shape: tuple[int, ...], source: Source, outtype: str) -> None:
        """Declare a tensor of `shape` (NumPy order) to be stored as `outtype` (a key of dtypes.STORAGE).

        source is called once, while the file is written, and returns floats, BF16 bit patterns or integers.
        """
        if name in self.tensors:
            raise ConversionError(f"two tensors would be written as {name}")
        self.tensors[name] = _Tensor(name, tuple(int(n) for n in shape), source, outtype)

    @property
    def n_bytes(self) -> int:
        """Bytes of tensor data declared so far, without padding."""
        return sum(t.n_bytes for t in self.tensors.values())

    def shards(self) -> list[list[_Tensor]]:
        """Return the tensors of each file: one file, or several if split_max_size is set."""
        shards: list[list[_Tensor]] = [[]]
        size = 0
        for tensor in self.tensors.values():
            if self.split_max_size and shards[-1] and size + tensor.n_bytes > self.split_max_size:
                shards.append([])
                size = 0
            shards[-1].append(tensor)
            size += tensor.n_bytes
        return shards

    def header(self, number: int, shards: list[list[_Tensor]]) -> bytes:
        """Return the bytes before the tensor data of one file. All keys are in the first one."""
        keys = {"general.architecture": _value(self.arch, None), **self.keys} if number == 0 else {}
        if len(shards) > 1:
            keys[SPLIT_ID] = _value(self.split_id, None)
            keys["split.no"] = _value(number, "u16")
            keys["split.count"] = _value(len(shards), "u16")
            keys["split.tensors.count"] = _value(len(self.tensors), "i32")
        parts = [b"GGUF", struct.pack("<IQQ", 3, len(shards[number]), len(keys))]
        parts += [_text(name) + value for name, value in keys.items()]
        offset = 0
        for tensor in shards[number]:
            parts.append(tensor.info(offset))
            offset += tensor.n_bytes + _padding(tensor.n_bytes)
        head = b"".join(parts)
        return head + bytes(_padding(len(head)))


def _pieces(tensor: _Tensor) -> Iterator[Piece]:
    """Yield a tensor's values in pieces, in order: flat arrays, or functions that return arrays."""
    values = tensor.source()
    for part in [values] if isinstance(values, np.ndarray) else values:
        if callable(part):
            yield part
            continue
        flat = np.ascontiguousarray(part).reshape(-1)
        for start in range(0, flat.size, PIECE):
            yield flat[start : start + PIECE]


def _encode(piece: Piece, outtype: str) -> tuple[int, np.ndarray]:
    """Return the number of values of a piece, and its bytes in the file."""
    values = piece() if callable(piece) else piece
    return values.size, encode(values, outtype)


def _encoded(tensor: _Tensor, pool: ThreadPoolExecutor) -> Iterator[np.ndarray]:
    """Yield encoded pieces in order, and check the number of values; a few are computed in advance."""
    waiting: deque = deque()
    count = 0
    for piece in chain(_pieces(tensor), [None] * _AHEAD):
        if piece is not None:
            waiting.append(pool.submit(_encode, piece, tensor.outtype))
        if waiting and (piece is None or len(waiting) > _AHEAD):
            size, data = waiting.popleft().result()
            count += size
            yield data
    if count != math.prod(tensor.shape):
        raise ConversionError(f"it has {count} values, but its declared shape is {list(tensor.shape)}")


def _write_all(file: BinaryIO, data: memoryview) -> int:
    """Write all bytes of contiguous data and return their number."""
    left = data.cast("B")
    while left:
        left = left[file.write(left) :]
    return data.nbytes


@dataclass
class _Meter:
    total: int
    report: Progress | None
    done: int = 0

    def add(self, n: int, name: str) -> None:
        self.done += n
        if self.report:
            self.report(self.done, self.total, name)


def _write_shard(path: Path, head: bytes, tensors: list[_Tensor], pool: ThreadPoolExecutor, meter: _Meter) -> None:
    with path.open("wb", buffering=0) as file:
        _write_all(file, memoryview(head))
        for tensor in tensors:
            try:
                for data in _encoded(tensor, pool):
                    meter.add(_write_all(file, data.data), tensor.name)
            except ConversionError as error:
                raise type(error)(f"tensor {tensor.name}: {error}") from error
            _write_all(file, memoryview(bytes(_padding(tensor.n_bytes))))


def _final_names(path: Path, count: int) -> list[Path]:
    if count == 1:
        return [path]
    stem = path.name.removesuffix(".gguf")
    return [path.with_name(f"{stem}-{i + 1:05d}-of-{count:05d}.gguf") for i in range(count)]


def _check_keys(out: GGUFOutput, path: Path, check: KeyCheck) -> None:
    """Call `check` with a temporary file that contains the keys and no tensors."""
    with temporary_next_to(path) as (keys,):
        try:
            keys.write_bytes(out.header(0, [[]]))
        except OSError as error:
            raise write_error(error, path, out.n_bytes) from error
        check(keys)


def _require_sound(files: list[Path], cause: str) -> None:
    """Raise ConversionError for a model that the engine refuses. files: all of its files."""
    for finding in check_files([read_header(file) for file in files], with_tokenizer=False):
        if finding.level == "error":
            raise ConversionError(f"{cause} describes a model that cannot run: {finding.message}")


def _write(out: GGUFOutput, path: Path, progress: Progress | None, more: float, cause: str) -> list[Path]:
    shards = out.shards()
    final = _final_names(path, len(shards))
    check_output(path, round(out.n_bytes * (1 + more)))
    meter, n_threads = _Meter(out.n_bytes, progress), min(MOST_THREADS, default_threads())
    with temporary_next_to(path, len(shards)) as temporary, ThreadPoolExecutor(n_threads) as pool:
        try:
            for number, tensors in enumerate(shards):
                _write_shard(temporary[number], out.header(number, shards), tensors, pool, meter)
            if cause:
                _require_sound(temporary, cause)
            for name, goal in zip(temporary, final, strict=True):
                name.replace(goal)
        except OSError as error:
            raise write_error(error, path, out.n_bytes) from error
    return final


@contextlib.contextmanager
def gguf_output(
    path: str | Path,
    *,
    arch: str,
    split_max_size: int = 0,
    progress: Progress | None = None,
    more: float = 0.0,
    check: KeyCheck | None = None,
    cause: str = "",
) -> Iterator[GGUFOutput]:
    """Yield a GGUF file to describe; it is written when the block ends without an exception.

    split_max_size: bytes of tensor data per file; above it, files named NAME-00001-of-0000N.gguf are written. more:
    additional room that the disk must have, as a share of this file. cause: subject of the error for a model that the
    command `check` refuses; without it any is written. Raises ConversionError (bad source data) or EnvironmentFailure
    (disk full, folder not writable); then no file is left, and an existing one of that name is untouched.
    """
    out = GGUFOutput(arch, split_max_size)
    check_output(Path(path))
    yield out
    if check is not None:
        _check_keys(out, Path(path), check)
    out.written = _write(out, Path(path), progress, more, cause)
