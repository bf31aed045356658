"""A checkpoint's tensors under canonical names, whatever prefix it uses, and as numbers, however they are coded."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from llama_eagle.convert.source.coded import FP8_DTYPES, Packed, Scheme, decode_fp8
from llama_eagle.convert.source.folder import Checkpoint
from llama_eagle.convert.source.storage import FLOAT_DTYPES, INTEGER_DTYPES, TensorInfo
from llama_eagle.errors import ConversionError

_PACKED = "_packed"
_SCALES = ("_scale_inv", "_scale")  # FP8: transformers' name; that of compressed-tensors and ModelOpt
_BESIDE_PACKED = ("_scale", "_zero_point", "_shape", "_g_idx")
_OF_ACTIVATIONS = (".input_scale", ".activation_scale", ".output_scale")


class Weights:
    """Canonical name -> values: float16, float32, float64, or BF16 bit patterns (uint16).

    canonical: the table's spelling of a stored name. scheme: of coded tensors, which read() decodes; their scales have
    no names here.
    """

    def __init__(self, checkpoint: Checkpoint, canonical: Callable[[str], str], scheme: Scheme) -> None:
        self.where = checkpoint.source
        self._checkpoint = checkpoint
        self._scheme = scheme
        self._stored: dict[str, str] = {}
        self._packed: set[str] = set()
        self._replaced: dict[str, np.ndarray] = {}
        for name in checkpoint.names():
            self._place(canonical(name), name)
        self._beside = {name: self._stored.pop(name) for name in self._companions()}

    def _place(self, short: str, name: str) -> None:
        if short.endswith(_PACKED):
            short = short.removesuffix(_PACKED)
            self._packed.add(short)
        if short in self._stored:
            raise ConversionError(f"{self.where}: {name!r} and {self._stored[short]!r} are the same tensor")
        self._stored[short] = name

    def _companions(self) -> list[str]:
        """What belongs to coded tensors; beside a plain one such a name is a tensor of its own."""
        found = []
        for name in self._stored:
            if name in self._packed:
                suffixes: tuple[str, ...] = _BESIDE_PACKED
            elif self._checkpoint.info(self._stored[name]).dtype in FP8_DTYPES:
                suffixes = _SCALES
            else:
                continue
            module = name.rpartition(".")[0]
            names = [*(name + suffix for suffix in suffixes), *(module + suffix for suffix in _OF_ACTIVATIONS)]
            found += [other for other in names if other in self._stored]
        return found

    def require_numbers(self, name: str) -> None:
        """Raises ConversionError unless read() can give this tensor's values as floats."""
        if name in self._replaced:
            return
        dtype = self._checkpoint.info(self._stored[name]).dtype
        if dtype in FP8_DTYPES and self._scale_name(name) is None:
            raise ConversionError(
                f"{self.where}: FP8 tensor {name} has no scales ({name}{_SCALES[0]}); dequantize the checkpoint first"
            )
        if name in self._packed and (dtype != "I32" or self._scale_name(name) is None):
            raise ConversionError(f"{self.where}: tensor {name}{_PACKED} has dtype {dtype}, or no {name}_scale")
        if dtype not in (*FP8_DTYPES, *FLOAT_DTYPES) and name not in self._packed:
            expected = ", ".join(sorted(FLOAT_DTYPES))
            raise ConversionError(f"{self.where}: tensor {name} has dtype {dtype}, expected one of {expected}")

    def _scale_name(self, name: str) -> str | None:
        return next((self._beside[name + s] for s in _SCALES if name + s in self._beside), None)

    def names(self) -> list[str]:
        return list(self._stored)

    def __contains__(self, name: str) -> bool:
        return name in self._stored

    def stored_name(self, name: str) -> str:
        """The name in the checkpoint."""
        return self._stored[name]

    def info(self, name: str) -> TensorInfo:
        """Name and type as stored, shape as meant."""
        info = self._checkpoint.info(self._stored[name])
        return TensorInfo(info.name, self._packed_shape(name), info.dtype) if name in self._packed else info

    def _packed_shape(self, name: str) -> tuple[int, int]:
        stored = self._beside.get(name + "_shape")
        info = self._checkpoint.info(stored) if stored else None
        words = self._checkpoint.info(self._stored[name]).shape
        if info is None or info.n_elements != 2 or info.dtype not in INTEGER_DTYPES or len(words) != 2:
            raise ConversionError(f"{self.where}: packed tensor {name} has no {name}_shape of two numbers")
        rows, columns = (int(n) for n in self._checkpoint.read(info.name).reshape(-1))
        if not 0 < rows == words[0] or not 0 < columns <= 32 * words[1]:
            raise ConversionError(f"{self.where}: {name}_shape is {rows} x {columns} for words of {list(words)}")
        return rows, columns

    def shape(self, name: str) -> tuple[int, ...]:
        return self._replaced[name].shape if name in self._replaced else self.info(name).shape

    def replace(self, name: str, values: np.ndarray) -> None:
        """Has read() give these values instead of the stored ones."""
        self._replaced[name] = values

    def _companion(self, name: str) -> np.ndarray | None:
        return self._checkpoint.read(self._beside[name]) if name in self._beside else None

    def _scale(self, name: str) -> np.ndarray:
        stored = self._scale_name(name)
        assert stored is not None, "require_numbers() comes first"
        return self._checkpoint.read_f32(stored)

    def _decode(self, name: str, codes: np.ndarray, scale: np.ndarray, dtype: str) -> np.ndarray:
        try:
            if name not in self._packed:
                return decode_fp8(codes, dtype, scale, self._scheme)
            zero, group = self._companion(name + "_zero_point"), self._companion(name + "_g_idx")
            return Packed(codes, scale, zero, group, self._packed_shape(name), self._scheme.bits).to_f32()
        except ConversionError as error:
            raise ConversionError(f"{self.where}: tensor {name}: {error}") from error

    def _is_coded(self, name: str) -> bool:
        return name in self._packed or self.info(name).dtype in FP8_DTYPES

    def read(self, name: str) -> np.ndarray:
        """The whole tensor, in its stored type or, for a coded one, as float32."""
        if name in self._replaced:
            return self._replaced[name]
        dtype, values = self.info(name).dtype, self._checkpoint.read(self._stored[name])
        return self._decode(name, values, self._scale(name), dtype) if self._is_coded(name) else values

    def slices(self, name: str) -> Iterator[np.ndarray]:
        """read(), but one slice of the first axis at a time: FP8 experts need memory for one of them only."""
        dtype, values = self.info(name).dtype, self._checkpoint.read(self._stored[name])
        if not self._is_coded(name):
            yield from values
            return
        for codes, scale in zip(values, self._scale(name), strict=True):
            yield self._decode(name, codes, scale, dtype)
