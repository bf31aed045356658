"""A checkpoint's tensors by canonical names, with any prefix, and as numbers, with any coding."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from llama_eagle.convert.source.coded import FP8_DTYPES, SCALED_DTYPES, Packed, Scheme, decode_fp8
from llama_eagle.convert.source.folder import Checkpoint
from llama_eagle.convert.source.storage import FLOAT_DTYPES, INTEGER_DTYPES, TensorInfo
from llama_eagle.errors import ConversionError

_PACKED = "_packed"
_SCALES = ("_scale_inv", "_scale")  # FP8: transformers' name; the name in compressed-tensors and ModelOpt
_PACKED_PARTS = ("_scale", "_zero_point", "_shape", "_g_idx")
_ACTIVATION_SCALES = (".input_scale", ".activation_scale", ".output_scale")


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
        self._packed: set[str] = set()
        self._replaced: dict[str, np.ndarray] = {}
        for name in checkpoint.names():
            self._place(canonical(name), name)
        self._parts = {name: self._stored.pop(name) for name in self._companions()}

    def _place(self, short: str, name: str) -> None:
        if short.endswith(_PACKED):
            short = short.removesuffix(_PACKED)
            self._packed.add(short)
        if short in self._stored:
            raise ConversionError(f"{self.where}: {name!r} and {self._stored[short]!r} are the same tensor")
        self._stored[short] = name

    def _companions(self) -> list[str]:
        """Return the names that belong to coded tensors; next to a plain tensor such a name is a separate tensor."""
        found = []
        for name in self._stored:
            if name in self._packed:
                suffixes: tuple[str, ...] = _PACKED_PARTS
            elif self._checkpoint.info(self._stored[name]).dtype in SCALED_DTYPES:
                suffixes = _SCALES
            else:
                continue
            module = name.rpartition(".")[0]
            names = [*(name + suffix for suffix in suffixes), *(module + suffix for suffix in _ACTIVATION_SCALES)]
            found += [other for other in names if other in self._stored]
        return found

    def require_numbers(self, name: str) -> None:
        """Raise ConversionError unless read() can return this tensor's values as floats."""
        if name in self._replaced:
            return
        dtype = self._checkpoint.info(self._stored[name]).dtype
        if dtype in FP8_DTYPES and self._scale_name(name) is None:
            raise ConversionError(
                f"{self.where}: FP8 tensor {name} has no scales ({name}{_SCALES[0]}); dequantize the checkpoint first"
            )
        if name in self._packed and (dtype != "I32" or self._scale_name(name) is None):
            raise ConversionError(f"{self.where}: tensor {name}{_PACKED} has dtype {dtype}, or no {name}_scale")
        if dtype not in (*FP8_DTYPES, *FLOAT_DTYPES) and not self._is_coded(name):
            expected = ", ".join(sorted(FLOAT_DTYPES))
            raise ConversionError(f"{self.where}: tensor {name} has dtype {dtype}, expected one of {expected}")

    def _scale_name(self, name: str) -> str | None:
        return next((self._parts[name + s] for s in _SCALES if name + s in self._parts), None)

    def names(self) -> list[str]:
        return list(self._stored)

    def __contains__(self, name: str) -> bool:
        return name in self._stored

    def stored_name(self, name: str) -> str:
        """Return the name in the checkpoint."""
        return self._stored[name]

    def info(self, name: str) -> TensorInfo:
        """Return the stored name and type, and the decoded shape."""
        info = self._checkpoint.info(self._stored[name])
        return TensorInfo(info.name, self._packed_shape(name), info.dtype) if name in self._packed else info

    def _packed_shape(self, name: str) -> tuple[int, int]:
        stored = self._parts.get(name + "_shape")
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
        """Make read() return these values instead of the stored ones."""
        self._replaced[name] = values

    def _companion(self, name: str) -> np.ndarray | None:
        return self._checkpoint.read(self._parts[name]) if name in self._parts else None

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
        dtype = self._checkpoint.info(self._stored[name]).dtype
        return name in self._packed or dtype in FP8_DTYPES or (dtype == "I8" and self._scale_name(name) is not None)

    def read(self, name: str) -> np.ndarray:
        """Return the whole tensor, in its stored type or, for a coded one, as float32."""
        if name in self._replaced:
            return self._replaced[name]
        dtype, values = self.info(name).dtype, self._checkpoint.read(self._stored[name])
        return self._decode(name, values, self._scale(name), dtype) if self._is_coded(name) else values

    def slices(self, name: str) -> Iterator[np.ndarray]:
        """Yield slices of the first axis of read(), so that FP8 experts need memory for one of them only."""
        dtype, values = self.info(name).dtype, self._checkpoint.read(self._stored[name])
        if not self._is_coded(name):
            yield from values
            return
        for codes, scale in zip(values, self._scale(name), strict=True):
            yield self._decode(name, codes, scale, dtype)
