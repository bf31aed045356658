"""A checkpoint's tensors by canonical names, with any prefix, and as numbers, with any coding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from llama_eagle.convert.dtypes import scale_to_f32
from llama_eagle.convert.source import decode
from llama_eagle.convert.source.coded import Scheme
from llama_eagle.convert.source.folder import Checkpoint
from llama_eagle.convert.source.storage import FLOAT_DTYPES, INTEGER_DTYPES, TensorInfo
from llama_eagle.errors import ConversionError

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Coding:
    """One way in which quantized weights are stored.

    marker: the end of the codes' name, instead of `weight`. parts: role -> possible ends, instead of the marker. shape:
    returns the shape of the weight from those of the codes and the parts.
    """

    marker: str
    weight: str
    dtypes: tuple[str, ...]
    parts: Mapping[str, tuple[str, ...]]
    decode: Callable[[np.ndarray, str, Mapping[str, np.ndarray], Scheme], np.ndarray]
    shape: Callable[[Shape, Mapping[str, Shape]], Shape] = lambda codes, parts: codes
    required: tuple[str, ...] = ("scale",)

    def stem(self, name: str) -> str:
        return name[: len(name) - len(self.marker)]


_FP8 = ("F8_E4M3", "F8_E5M2")  # codes even without scales
_SCALED = (*_FP8, "I8")
_QDATA = "._weight_qdata"
_TORCHAO = {
    "scale": ("._weight_scale", "._weight_scale_and_zero"),
    "zero": ("._weight_zero_point",),
    "factor": ("._weight_per_tensor_scale",),
    "inputs": ("._weight_act_pre_scale",),
}
CODINGS = (
    Coding(  # compressed-tensors
        "_packed", "", ("I32",),
        {"scale": ("_scale",), "zero": ("_zero_point",), "shape": ("_shape",), "group": ("_g_idx",)},
        decode.packed, required=("scale", "shape"),
    ),
    Coding(
        "_packed", "", ("U8",), {"scale": ("_scale",), "divisor": ("_global_scale",)},
        decode.in_bytes, decode.in_bytes_shape,
    ),
    Coding(  # GPTQ, AWQ
        ".qweight", ".weight", ("I32",), {"scale": (".scales",), "zero": (".qzeros",), "group": (".g_idx",)},
        decode.words, decode.words_shape, required=("scale", "zero"),
    ),
    Coding(_QDATA, ".weight", _SCALED, _TORCHAO, decode.scaled),
    Coding(_QDATA, ".weight", ("U8",), _TORCHAO, decode.in_bytes, decode.in_bytes_shape),
    # scales in the names of transformers, then of compressed-tensors and ModelOpt
    Coding("", "", _SCALED, {"scale": ("_scale_inv", "_scale"), "zero": ("_zero_point",)}, decode.scaled),
    Coding("", "", ("U8",), {"scale": ("_scale",), "factor": ("_scale_2",)}, decode.in_bytes, decode.in_bytes_shape),
)  # fmt: skip
_SCALES = ("scale", "factor", "divisor", "inputs")
_INPUTS = ".pre_quant_scale"  # ModelOpt's factors of a layer's inputs
_ACTIVATIONS = (".input_scale", ".activation_scale", ".output_scale", ".input_global_scale", ".input_zero_point")


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
            scales = any(coding.stem(short) + end in names for end in coding.parts["scale"])
            if dtype in coding.dtypes and (coding.marker or dtype in _FP8 or scales):
                return coding
        return next((coding for coding in marked if coding.marker), None)  # require_numbers() names the wrong type

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
        if coded is not None and coded.coding.marker == _QDATA and (dtype == "I32" or _is_int4(dtype, coded.parts)):
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
                    f"{self.where}: {self._stored[name]} has no {what} ({stem}{names[0]}); dequantize the checkpoint "
                    "first"
                )

    def names(self) -> list[str]:
        return list(self._stored)

    def __contains__(self, name: str) -> bool:
        return name in self._stored

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
        if "shape" in coded.parts:
            return TensorInfo(info.name, self._packed_shape(name, coded.parts["shape"]), info.dtype)
        parts = {role: self._checkpoint.info(part).shape for role, part in coded.parts.items()}
        try:
            return TensorInfo(info.name, coded.coding.shape(info.shape, parts), info.dtype)
        except ConversionError as error:
            raise ConversionError(f"{self.where}: tensor {name}: {error}") from None

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

    def replace(self, name: str, values: np.ndarray) -> None:
        """Make read() return these values instead of the stored ones."""
        self._replaced[name] = values

    def _part(self, role: str, stored: str) -> np.ndarray:
        values = self._checkpoint.read(stored)
        return scale_to_f32(values, self._checkpoint.info(stored).dtype) if role in _SCALES else values

    def _decode(self, name: str, codes: np.ndarray, parts: Mapping[str, np.ndarray]) -> np.ndarray:
        try:
            dtype = self._checkpoint.info(self._stored[name]).dtype
            values = self._coded[name].coding.decode(codes, dtype, parts, self._scheme)
            return values * parts["inputs"] if "inputs" in parts else values
        except ConversionError as error:
            raise ConversionError(f"{self.where}: tensor {name}: {error}") from error

    def _parts(self, name: str) -> dict[str, np.ndarray]:
        return {role: self._part(role, stored) for role, stored in self._coded[name].parts.items()}

    def read(self, name: str) -> np.ndarray:
        """Return the whole tensor, in its stored type or, for a coded one, as float32."""
        if name in self._replaced:
            return self._replaced[name]
        values = self._checkpoint.read(self._stored[name])
        return self._decode(name, values, self._parts(name)) if name in self._coded else values

    def slices(self, name: str) -> Iterator[np.ndarray]:
        """Yield slices of the first axis of read(), so that FP8 experts need memory for one of them only."""
        values = self._checkpoint.read(self._stored[name])
        if name not in self._coded:
            yield from values
            return
        parts = self._parts(name)
        for i, codes in enumerate(values):
            yield self._decode(name, codes, {role: p[i] if len(p) == len(values) else p for role, p in parts.items()})


def _is_int4(dtype: str, parts: Mapping[str, str]) -> bool:
    """Return True for the parts of torchao's Int4Tensor; floats of four bits have no zero points."""
    return dtype == "U8" and "zero" in parts


def _place(names: dict[str, str], short: str, name: str, where: str) -> None:
    if short in names:
        raise ConversionError(f"{where}: {name!r} and {names[short]!r} are the same tensor")
    names[short] = name
