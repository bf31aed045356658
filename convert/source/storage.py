"""Weight files: safetensors, torch archives and .npy, opened without trusting their content.

Each `open_*` function reads only the file's header and returns the tensors in it. A tensor's bytes are mapped when they
are read and unmapped with the array, so that a conversion keeps about one tensor in memory.
"""

from __future__ import annotations

import json
import math
import mmap
import pickle
import stat
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from llama_eagle.errors import ConversionError, EnvironmentFailure
from llama_eagle.file_kinds import JSON, PICKLE, SAFETENSORS, TORCH, is_not, known_kind

MAX_JSON_BYTES = 64 << 20  # tokenizer.json of the largest published vocabularies is about 35 MB
MAX_TEXT_BYTES = 4 << 20
MAX_HEADER_BYTES = 32 << 20  # about 300000 tensors in one file
MAX_PICKLE_BYTES = 64 << 20  # the object graph of a torch archive, without its storages
MAX_DIMS = 8
RELOAD_BYTES = 256 << 20  # resident pages of a torch archive before it is opened again

# safetensors name -> (bits, the numpy type that `read` returns). Types that numpy lacks are bit patterns.
DTYPES: dict[str, tuple[int, type[np.generic]]] = {
    "F64": (64, np.float64),
    "F32": (32, np.float32),
    "F16": (16, np.float16),
    "BF16": (16, np.uint16),
    "F8_E4M3": (8, np.uint8),
    "F8_E5M2": (8, np.uint8),
    "F8_E8M0": (8, np.uint8),
    "F4": (4, np.uint8),
    "F6_E2M3": (6, np.uint8),
    "F6_E3M2": (6, np.uint8),
    "I64": (64, np.int64),
    "I32": (32, np.int32),
    "I16": (16, np.int16),
    "I8": (8, np.int8),
    "U64": (64, np.uint64),
    "U32": (32, np.uint32),
    "U16": (16, np.uint16),
    "U8": (8, np.uint8),
    "BOOL": (8, np.bool_),
}
FLOAT_DTYPES = frozenset({"F64", "F32", "F16", "BF16"})
INTEGER_DTYPES = frozenset({"I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8"})
NUMPY_DTYPES = INTEGER_DTYPES | {"F64", "F32", "F16", "BOOL"}  # the others are bit patterns


@dataclass(frozen=True)
class TensorInfo:
    """Name, shape (NumPy order) and safetensors type name ("BF16", "F16", "I64", ...) of a stored tensor."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def n_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def n_bytes(self) -> int:
        return (self.n_elements * DTYPES[self.dtype][0] + 7) // 8


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file. `read()` maps its bytes as stored (see DTYPES)."""

    info: TensorInfo
    read: Callable[[], np.ndarray]


def require_file(path: Path) -> int:
    """Return the size of a regular file in bytes.

    Anything else (missing, a folder, a pipe that would block) is an error.
    """
    try:
        status = path.stat()
    except OSError as error:
        raise ConversionError(f"{path}: cannot be read ({error.strerror}); is the download complete?") from None
    if not stat.S_ISREG(status.st_mode):
        raise ConversionError(f"{path}: not a regular file")
    return status.st_size


def read_json(path: Path, limit: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """Read a JSON file whose top level is an object, with limits on size (bytes), depth and encoding."""
    if (size := require_file(path)) > limit:
        raise ConversionError(f"{path}: {size} bytes of JSON, the maximum is {limit}")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConversionError(f"{path}: cannot be read ({error.strerror})") from None
    return parse_json(data, path)


def read_text(path: Path, limit: int = MAX_TEXT_BYTES) -> str:
    """Read a small UTF-8 file. A pipe, a device or more than `limit` bytes is an error."""
    if (size := require_file(path)) > limit:
        raise ConversionError(f"{path}: {size} bytes of text, the maximum is {limit}")
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConversionError(f"{path}: cannot be read ({error})") from None
    if (kind := known_kind(path)) and kind.is_download:
        raise ConversionError(is_not(path, "the text of a checkpoint"))
    return text


def parse_json(data: bytes, where: Path) -> dict[str, Any]:
    try:
        value = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        if where.is_file() and not data.lstrip(b"\xef\xbb\xbf \t\r\n").startswith((b"{", b"[")):
            raise ConversionError(is_not(where, JSON)) from None
        reason = "nested too deeply" if isinstance(error, RecursionError) else _one_line(error)
        raise ConversionError(f"{where}: not valid JSON ({reason}); download the file again") from None
    if not isinstance(value, dict):
        raise ConversionError(f"{where}: expected a JSON object, found {type(value).__name__}")
    return value


# --- safetensors ------------------------------------------------------------------------------------------------


def open_safetensors(path: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a safetensors file. Offsets must tile the data section exactly, as the format requires."""
    size = require_file(path)
    with path.open("rb") as file:
        prefix = file.read(8)
        n_header = int.from_bytes(prefix, "little")
        if len(prefix) < 8 or n_header > min(size - 8, MAX_HEADER_BYTES) or file.read(1) not in b"{[":
            raise ConversionError(is_not(path, SAFETENSORS))
        file.seek(8)
        header = parse_json(file.read(n_header), path)
    start = 8 + n_header
    entries = sorted(_header_entry(path, n, e) for n, e in header.items() if n != "__metadata__")
    end = 0
    tensors = {}
    for begin, stop, name, info in entries:
        if begin != end:
            raise ConversionError(
                f"{path}: tensor {name[:200]!r} starts at byte {begin}, expected {end}; the file is damaged"
            )
        end = stop
        tensors[name] = StoredTensor(info, _mapped_reader(path, start + begin, info))
    if start + end != size:
        raise ConversionError(f"{path}: {size} bytes, but its header describes {start + end}; download the file again")
    return tensors


def _header_entry(path: Path, name: str, entry: Any) -> tuple[int, int, str, TensorInfo]:
    """Return (begin, end, name, info) of one header entry, checked for consistency."""
    where = f"{path}: tensor {name[:200]!r}"
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        shape = tuple(shape)
    except (TypeError, KeyError, ValueError):
        raise ConversionError(f"{where} has no valid dtype, shape and data_offsets") from None
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ConversionError(f"{where} has the unknown type {str(dtype)[:40]!r}")
    numbers = (*shape, begin, end)
    if len(shape) > MAX_DIMS or any(type(n) is not int or not 0 <= n < 1 << 62 for n in numbers):
        raise ConversionError(f"{where} has an impossible shape or offset")
    info = TensorInfo(name, shape, dtype)
    if end - begin != info.n_bytes:
        raise ConversionError(f"{where} {list(shape)} {dtype} takes {info.n_bytes} bytes, by its offsets {end - begin}")
    return begin, end, name, info


def _mapped_reader(path: Path, offset: int, info: TensorInfo) -> Callable[[], np.ndarray]:
    def read() -> np.ndarray:
        dtype = np.dtype(DTYPES[info.dtype][1])
        if not info.n_bytes:
            return np.empty(info.shape, dtype)
        base = offset - offset % mmap.ALLOCATIONGRANULARITY
        try:
            with path.open("rb") as file:
                view = mmap.mmap(file.fileno(), offset - base + info.n_bytes, access=mmap.ACCESS_READ, offset=base)
        except (OSError, ValueError) as error:
            raise ConversionError(f"{path}: tensor {info.name!r} cannot be read ({_one_line(error)})") from None
        flat: np.ndarray = np.frombuffer(view, np.uint8, info.n_bytes, offset - base)
        if info.dtype == "BOOL":
            return (flat != 0).reshape(info.shape)
        flat = flat.view(dtype)
        return flat.reshape(info.shape) if flat.size == info.n_elements else flat

    return read


# --- torch archives ---------------------------------------------------------------------------------------------


def open_torch(path: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a torch archive (.bin, .pt).

    Only plain tensors and containers are unpickled, never code.
    """
    archive = _TorchArchive(path)
    return {name: StoredTensor(info, archive.reader(name)) for name, info in archive.infos.items()}


class _TorchArchive:
    """An open archive. Its mapping is renewed periodically, because pages that were read stay resident with it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        _check_archive(path)
        self.tensors: dict[str, Any] = _load_archive(path)
        self.n_read = 0
        self.infos = {name: self._info(name, tensor) for name, tensor in self.tensors.items()}

    def _info(self, name: str, tensor: Any) -> TensorInfo:
        dtype = _torch_dtypes().get(tensor.dtype)
        if dtype is None or not _is_plain(tensor):
            raise ConversionError(
                f"{self.path}: tensor {name[:200]!r} is not a plain dense tensor ({tensor.dtype}); "
                "save the checkpoint as safetensors"
            )
        return TensorInfo(name, tuple(tensor.shape), dtype)

    def reader(self, name: str) -> Callable[[], np.ndarray]:
        def read() -> np.ndarray:
            if self.n_read > RELOAD_BYTES:
                self.tensors, self.n_read = _load_archive(self.path), 0
            self.n_read += self.infos[name].n_bytes
            return _torch_to_numpy(self.tensors[name])

        return read


def _check_archive(path: Path) -> None:
    """Refuse archives that could unpack into much more than their size, and the pre-2020 format (no archive)."""
    size = require_file(path)
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, UnicodeError) as error:
        kind = known_kind(path)
        if kind is None or kind.name in (TORCH, PICKLE):
            reason = f"not a torch archive, or truncated ({_one_line(error)}); download it again, or use safetensors"
            raise ConversionError(f"{path}: {reason}") from None
        raise ConversionError(is_not(path, TORCH)) from None
    packed = any(member.compress_type != zipfile.ZIP_STORED for member in members)
    pickled = sum(member.file_size for member in members if member.filename.endswith(".pkl"))
    if packed or sum(member.file_size for member in members) > size or pickled > MAX_PICKLE_BYTES:
        raise ConversionError(f"{path}: its archive directory is implausible; save the checkpoint as safetensors")


def _load_archive(path: Path) -> dict[str, Any]:
    torch = _torch()
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        has_objects = isinstance(error, pickle.UnpicklingError)
        reason = "it contains code or objects, not only tensors" if has_objects else _one_line(error)
        raise ConversionError(
            f"{path}: refused ({reason}); only archives of plain tensors are read, save the checkpoint as safetensors"
        ) from None
    if isinstance(state, torch.Tensor):
        return {path.stem: state}
    for wrapper in ("state_dict", "model", "module"):
        if isinstance(state, dict) and isinstance(state.get(wrapper), dict):
            state = state[wrapper]
    tensors = {n: t for n, t in state.items() if isinstance(t, torch.Tensor)} if isinstance(state, dict) else {}
    if not tensors or not all(isinstance(name, str) for name in tensors):
        raise ConversionError(f"{path}: contains no named tensors")
    return tensors


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise EnvironmentFailure(
            "Reading pytorch_model.bin needs torch: pip install 'llama-eagle[torch]', or save it as safetensors"
        ) from None
    return torch


@lru_cache(maxsize=1)
def _torch_dtypes() -> dict[Any, str]:
    names = {
        "float64": "F64",
        "float32": "F32",
        "float16": "F16",
        "bfloat16": "BF16",
        "float8_e4m3fn": "F8_E4M3",
        "float8_e5m2": "F8_E5M2",
        "float8_e8m0fnu": "F8_E8M0",
        "int64": "I64",
        "int32": "I32",
        "int16": "I16",
        "int8": "I8",
        "uint8": "U8",
        "bool": "BOOL",
    }
    return {getattr(_torch(), torch_name): name for torch_name, name in names.items() if hasattr(_torch(), torch_name)}


def _is_plain(tensor: Any) -> bool:
    """Return True for a dense CPU tensor within its storage (a stride of 0 describes any size in a few bytes)."""
    torch = _torch()
    if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
        return False
    return bool(tensor.numel() * tensor.element_size() <= tensor.untyped_storage().nbytes())


def _torch_to_numpy(tensor: Any) -> np.ndarray:
    torch = _torch()
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        return np.asarray(tensor.view(torch.int16).numpy()).view(np.uint16)
    if tensor.element_size() == 1 and tensor.dtype not in (torch.int8, torch.bool):
        return np.asarray(tensor.view(torch.uint8).numpy())
    return np.asarray(tensor.numpy())


# --- .npy -------------------------------------------------------------------------------------------------------


def open_npy(path: Path) -> dict[str, StoredTensor]:
    """Return one array under the name of its file."""
    require_file(path)
    try:
        array = np.lib.format.open_memmap(path, mode="r")  # np.load would open archives too
    except (ValueError, OSError, EOFError, MemoryError, SyntaxError, TypeError, OverflowError) as error:
        raise ConversionError(f"{path}: not a plain .npy array ({_one_line(error)})") from None
    dtype = next((n for n, (_, t) in DTYPES.items() if t == array.dtype.type and n in NUMPY_DTYPES), None)
    if dtype is None or len(array.shape) > MAX_DIMS:
        raise ConversionError(f"{path}: arrays of {array.dtype} are not supported")
    info = TensorInfo(path.stem, array.shape, dtype)
    return {path.stem: StoredTensor(info, lambda: np.asarray(array))}


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text[:160] or type(error).__name__
