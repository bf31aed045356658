"""A checkpoint's tensors by canonical names, with any prefix, and as numbers, with any coding."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from llama_eagle.convert.dtypes import scale_to_f32
from llama_eagle.convert.source import bitsandbytes
from llama_eagle.convert.source.coded import Scheme
from llama_eagle.convert.source.codings import CODES, CODINGS, QDATA, Coding
from llama_eagle.convert.source.decode import Shape
from llama_eagle.convert.source.folder import Checkpoint
from llama_eagle.convert.source.storage import FLOAT_DTYPES, INTEGER_DTYPES, TensorInfo
from llama_eagle.errors import ConversionError

Piece = np.ndarray | Callable[[], np.ndarray]  # values, or a function that returns them, for any thread
PIECE = 1 << 20  # elements per piece, about the size of a core's cache
_DECODED = 1 << 17  # elements decoded at once, whose intermediate results fit into a core's cache
_SCALES = ("scale", "factor", "divisor", "inputs")
_INPUTS = ".pre_quant_scale"  # ModelOpt's factors of a layer's inputs
_ACTIVATIONS = (".input_scale", ".activation_scale", ".output_scale", ".input_global_scale", ".input_zero_point")


def evaluated(piece: Piece) -> np.ndarray:
    return piece() if callable(piece) else piece


@dataclass(frozen=True)
class _Coded:
    """The coding of a weight, and the stored names of its parts by role."""

    coding: Coding
    parts: Mapping[str, str]


class Weights:
    """Map from canonical name to values: float16, float32, float64, or BF16 bit patterns (uint16).

    canonical: returns the table's name of a stored one. scheme: of coded tensors, which read() decodes; their scales
    have no names here.
    """

    def __init__(self, checkpoint: Checkpoint, canonical: Callable[[str], str], scheme: Scheme) -> None:
        self.where = checkpoint.source
        self._checkpoint = checkpoint
        self._scheme = scheme
        self._stored: dict[str, str] = {}
        self._coded: dict[str, _Coded] = {}
        self._shapes: dict[str, Shape] = {}  # of coded tensors, from the table
        self._replaced: dict[str, np.ndarray] = {}
        names: dict[str, str] = {}
        for name in checkpoint.names():
            _place(names, canonical(name), name, self.where)
        parts: set[str] = set()
        for short, name in names.items():
            if short in parts:
                continue
            coding = self._coding(short, names)
            if coding is not None:
                parts.update(self._add_coded(coding, short, names))
            _place(self._stored, coding.stem(short) + coding.weight if coding else short, name, self.where)
        self._stored = {short: name for short, name in self._stored.items() if short not in parts}

    def _coding(self, short: str, names: Mapping[str, str]) -> Coding | None:
        """Return the coding of a tensor; next to a plain one, the names of scales are other tensors."""
        marked = [c for c in CODINGS if short.endswith(c.marker)]
        dtype = self._checkpoint.info(names[short]).dtype
        for coding in marked:
            if dtype in coding.dtypes and (coding.is_marked or dtype in CODES or coding.has_part(short, names)):
                return coding
        return next((coding for coding in marked if coding.is_marked), None)  # require_numbers() names the wrong type

    def _add_coded(self, coding: Coding, short: str, names: Mapping[str, str]) -> list[str]:
        """Return the names of all tensors that belong to a coded one."""
        stem = coding.stem(short)
        ends = {role: [stem + end for end in ends if stem + end in names] for role, ends in coding.parts.items()}
        weight = stem + coding.weight
        module = weight.rpartition(".")[0]
        if module + _INPUTS in names:
            ends["inputs"] = [module + _INPUTS]
        self._coded[weight] = _Coded(coding, {role: names[found[0]] for role, found in ends.items() if found})
        activations = [module + end for end in _ACTIVATIONS if module + end in names]
        return [name for found in ends.values() for name in found] + activations

    def require_numbers(self, name: str) -> None:
        """Raise ConversionError unless read() can return this tensor's values as floats."""
        if name in self._replaced:
            return
        dtype, coded = self._checkpoint.info(self._stored[name]).dtype, self._coded.get(name)
        if coded is not None and coded.coding.marker == QDATA and (dtype == "I32" or _is_int4(dtype, coded.parts)):
            raise ConversionError(
                f"{self.where}: tensor {self._stored[name]} has an int4 layout of torchao's kernels, which cannot be "
                "read (docs/targets.md lists what can): convert the unquantized checkpoint and quantize the GGUF"
            )
        expected = sorted(FLOAT_DTYPES) if coded is None else coded.coding.dtypes
        if dtype not in expected:
            stored = self._stored[name]
            raise ConversionError(f"{self.where}: tensor {stored} has dtype {dtype}, expected {' or '.join(expected)}")
        if coded is not None:
            self._require_parts(name, coded)

    def _require_parts(self, name: str, coded: _Coded) -> None:
        for role in coded.coding.required:
            if role not in coded.parts:
                names = coded.coding.parts[role]
                what = {"scale": "scales", "zero": "zero points"}.get(role, role)
                stem = coded.coding.stem(self._stored[name])
                raise ConversionError(
                    f"{self.where}: {self._stored[name]} has no {what} ({stem}{names[0]}); download it "
                    "again, or dequantize the checkpoint first"
                )

    def names(self) -> list[str]:
        return list(self._stored)

    def __contains__(self, name: str) -> bool:
        return name in self._stored

    def is_coded(self, name: str) -> bool:
        """Return True for a quantized weight."""
        return name in self._coded

    def is_added_bias(self, name: str) -> bool:
        """Return True for a bias of zeros next to a quantized weight: AutoGPTQ stores one for every layer."""
        module = name.removesuffix(".bias")
        return (
            name != module
            and module + ".weight" in self._coded
            and not self._checkpoint.read_f32(self._stored[name]).any()
        )

    def stored_name(self, name: str) -> str:
        """Return the name in the checkpoint."""
        return self._stored[name]

    def info(self, name: str) -> TensorInfo:
        """Return the stored name and type, and the decoded shape."""
        info, coded = self._checkpoint.info(self._stored[name]), self._coded.get(name)
        if coded is None:
            return info
        self.require_numbers(name)
        return TensorInfo(info.name, self._shapes.get(name) or self._coded_shape(name, coded, info.shape), info.dtype)

    def _coded_shape(self, name: str, coded: _Coded, codes: Shape) -> Shape:
        if "shape" in coded.parts:
            return self._packed_shape(name, coded.parts["shape"])
        parts = {role: self._checkpoint.info(part).shape for role, part in coded.parts.items()}
        module = self._stored[name].rpartition(".")[0]
        try:
            if "state" in coded.parts:
                return tuple(bitsandbytes.state(self._checkpoint.read(coded.parts["state"]))["shape"])
            if coded.coding.in_bits:
                return *codes[:-1], 32 * codes[-1] // self._scheme.modules.get(module, self._scheme.bits[0])
            return coded.coding.shape(codes, parts)
        except ConversionError as error:
            raise ConversionError(f"{self.where}: tensor {name}: {error}") from None

    def fits(self, name: str, shape: Shape) -> bool:
        """Return True if a tensor has this shape. Codes that may have several shapes have it from then on."""
        coded = self._coded.get(name)
        if name in self._replaced or coded is None or coded.coding.fits is None:
            return self.shape(name) == shape
        self.require_numbers(name)
        if not coded.coding.fits(self._checkpoint.info(self._stored[name]).shape, shape):
            return False
        self._shapes[name] = shape
        return True

    def _packed_shape(self, name: str, stored: str) -> Shape:
        info, words = self._checkpoint.info(stored), self._checkpoint.info(self._stored[name]).shape
        if info.n_elements != 2 or info.dtype not in INTEGER_DTYPES or len(words) != 2:
            raise ConversionError(f"{self.where}: {stored} is not a shape of two numbers")
        rows, columns = (int(n) for n in self._checkpoint.read(stored).reshape(-1))
        if not 0 < rows == words[0] or not 0 < columns <= 32 * words[1]:
            raise ConversionError(f"{self.where}: {name}_shape is {rows} x {columns} for words of {list(words)}")
        return rows, columns

    def shape(self, name: str) -> Shape:
        return self._replaced[name].shape if name in self._replaced else self.info(name).shape

    def rename(self, name: str, other: str) -> None:
        """Give a tensor another canonical name."""
        self._stored[other] = self._stored.pop(name)
        if name in self._coded:
            self._coded[other] = self._coded.pop(name)

    def copy_name(self, name: str, other: str) -> None:
        """Make a tensor known under another name, too."""
        self._stored[other] = self._stored[name]
        if name in self._coded:
            self._coded[other] = self._coded[name]

    def replace(self, name: str, values: np.ndarray) -> None:
        """Make read() return these values, instead of stored ones of the same shape; without these, add a tensor."""
        self._replaced[name] = values
        self._stored.setdefault(name, name)

    def _part(self, role: str, stored: str) -> np.ndarray:
        values = self._checkpoint.read(stored)
        return scale_to_f32(values, self._checkpoint.info(stored).dtype) if role in _SCALES else values

    def _decode(self, name: str, codes: np.ndarray, parts: Mapping[str, np.ndarray], shape: Shape) -> np.ndarray:
        try:
            dtype = self._checkpoint.info(self._stored[name]).dtype
            values = self._coded[name].coding.decode(codes, dtype, parts, self._scheme, shape)
            return values * parts["inputs"] if "inputs" in parts else values
        except ConversionError as error:
            raise ConversionError(f"{self.where}: tensor {name}: {error}") from error

    def _parts(self, name: str) -> dict[str, np.ndarray]:
        return {role: self._part(role, stored) for role, stored in self._coded[name].parts.items()}

    def read(self, name: str) -> np.ndarray:
        """Return the whole tensor, in its stored type or, for a coded one, as float32 or in the type of its scales."""
        if name in self._replaced:
            return self._replaced[name]
        values = self._checkpoint.read(self._stored[name])
        if name not in self._coded:
            return values
        if self._coded[name].coding.by_rows:
            return np.concatenate(
                [piece() for piece in self._by_rows(name, values, self._parts(name), self.shape(name))]
            )
        return self._decode(name, values, self._parts(name), self.shape(name))

    def rows(self, name: str, unit: int = 1) -> Iterator[Piece]:
        """Yield read() in pieces of complete units of rows."""
        shape = self.shape(name)
        if name in self._coded and self._coded[name].coding.by_rows and name not in self._replaced:
            codes = self._checkpoint.read(self._stored[name])
            yield from self._by_rows(name, codes, self._parts(name), shape, unit)
            return
        values, size = self.read(name), _n_rows(PIECE, shape, unit)
        for start in range(0, len(values), size):
            yield values[start : start + size]

    def slices(self, name: str, *, whole: bool) -> Iterator[Piece]:
        """Yield slices of the first axis of read(), so that coded experts need memory for one of them only.

        whole: each slice as one piece.
        """
        if name not in self._coded or name in self._replaced:
            yield from self.read(name)
            return
        codes, parts, (_, *shape) = self._checkpoint.read(self._stored[name]), self._parts(name), self.shape(name)
        for i, some in enumerate(codes):
            piece = {role: p[i] if p.shape[:1] == codes.shape[:1] else p for role, p in parts.items()}
            if self._coded[name].coding.by_rows and not whole:
                yield from self._by_rows(name, some, piece, tuple(shape))
            else:
                yield self._decode(name, some, piece, tuple(shape))

    def _by_rows(
        self, name: str, codes: np.ndarray, parts: Mapping[str, np.ndarray], shape: Shape, unit: int = 1
    ) -> Iterator[Callable[[], np.ndarray]]:
        """Yield decoders of pieces, for threads; all parts have the codes' first axis."""
        size = _n_rows(_DECODED, shape, unit)
        for start in range(0, len(codes), size):
            some = slice(start, start + size)
            piece = {role: part[some] if part.shape[:1] == codes.shape[:1] else part for role, part in parts.items()}
            yield partial(self._decode, name, codes[some], piece, (len(codes[some]), *shape[1:]))


def _n_rows(size: int, shape: Shape, unit: int) -> int:
    """Return the number of rows in a piece of about `size` elements, in complete units."""
    return max(1, size // max(1, unit * math.prod(shape[1:]))) * unit


def _is_int4(dtype: str, parts: Mapping[str, str]) -> bool:
    """Return True for the parts of torchao's Int4Tensor; floats of four bits have no zero points."""
    return dtype == "U8" and "zero" in parts


def _place(names: dict[str, str], short: str, name: str, where: str) -> None:
    if short in names:
        raise ConversionError(f"{where}: {name!r} and {names[short]!r} are the same tensor")
    names[short] = name
