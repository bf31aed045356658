"""A checkpoint's tensors under canonical names, whatever prefix it uses, and without FP8."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from llama_eagle.convert.dtypes import fp8_to_f32
from llama_eagle.convert.source import Checkpoint
from llama_eagle.convert.storage import FLOAT_DTYPES, TensorInfo
from llama_eagle.errors import ConfigError, ConversionError

_FP8 = ("F8_E4M3", "F8_E5M2")
_SCALE = "_scale_inv"


def _fp8_block(config: dict[str, Any]) -> tuple[int, int] | None:
    """Block sizes of FP8 weights; other kinds of quantized checkpoints are refused."""
    quantization = config.get("quantization_config") or (config.get("text_config") or {}).get("quantization_config")
    if not quantization:
        return None
    method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
    if method != "fp8":
        raise ConfigError(
            f"the checkpoint is quantized with {method!r}; only fp8 block scales can be read: "
            "convert the unquantized checkpoint and quantize the GGUF"
        )
    block = quantization.get("weight_block_size")
    if block is None:
        return None
    if not (isinstance(block, list) and len(block) == 2 and all(isinstance(n, int) and n > 0 for n in block)):
        raise ConfigError(
            f"config.json: weight_block_size is {block!r}, expected two positive numbers such as [128, 128]"
        )
    return block[0], block[1]


class Weights:
    """Canonical name -> values: float16, float32, float64, or BF16 bit patterns (uint16).

    canonical: the table's spelling of a stored name.
    """

    def __init__(self, checkpoint: Checkpoint, canonical: Callable[[str], str]) -> None:
        self.where = checkpoint.source
        self._checkpoint = checkpoint
        self._block = _fp8_block(checkpoint.config)
        self._stored: dict[str, str] = {}
        self._replaced: dict[str, np.ndarray] = {}
        for name in checkpoint.names():
            short = canonical(name)
            if short in self._stored:
                raise ConversionError(f"{self.where}: {name!r} and {self._stored[short]!r} are the same tensor")
            self._stored[short] = name
        self._scales = {n: s for n, s in self._stored.items() if n.endswith((_SCALE, ".activation_scale"))}
        for name in self._scales:
            del self._stored[name]

    def require_numbers(self, name: str) -> None:
        """Raises ConversionError unless read() can give this tensor's values as floats."""
        dtype = self.info(name).dtype
        if dtype in _FP8:
            if name + _SCALE not in self._scales:
                raise ConversionError(
                    f"{self.where}: FP8 tensor {name} has no scales ({name}{_SCALE}); dequantize the checkpoint first"
                )
        elif dtype not in FLOAT_DTYPES and name not in self._replaced:
            expected = ", ".join(sorted(FLOAT_DTYPES))
            raise ConversionError(f"{self.where}: tensor {name} has dtype {dtype}, expected one of {expected}")

    def names(self) -> list[str]:
        return list(self._stored)

    def __contains__(self, name: str) -> bool:
        return name in self._stored

    def stored_name(self, name: str) -> str:
        """The name in the checkpoint."""
        return self._stored[name]

    def info(self, name: str) -> TensorInfo:
        """Type and shape as stored."""
        return self._checkpoint.info(self._stored[name])

    def shape(self, name: str) -> tuple[int, ...]:
        return self._replaced[name].shape if name in self._replaced else self.info(name).shape

    def replace(self, name: str, values: np.ndarray) -> None:
        """Has read() give these values instead of the stored ones."""
        self._replaced[name] = values

    def _dequantize(self, name: str, codes: np.ndarray, scale: np.ndarray, dtype: str) -> np.ndarray:
        try:
            return fp8_to_f32(codes, dtype, scale, self._block)
        except ConversionError as error:
            raise ConversionError(f"{self.where}: tensor {name}: {error}") from error

    def _scale(self, name: str) -> np.ndarray:
        return self._checkpoint.read_f32(self._scales[name + _SCALE])

    def read(self, name: str) -> np.ndarray:
        """The whole tensor, in its stored type or, for FP8, as float32."""
        if name in self._replaced:
            return self._replaced[name]
        dtype, values = self.info(name).dtype, self._checkpoint.read(self._stored[name])
        return self._dequantize(name, values, self._scale(name), dtype) if dtype in _FP8 else values

    def slices(self, name: str) -> Iterator[np.ndarray]:
        """read(), but one slice of the first axis at a time: FP8 experts need memory for one of them only."""
        dtype, values = self.info(name).dtype, self._checkpoint.read(self._stored[name])
        if dtype not in _FP8:
            yield from values
            return
        for codes, scale in zip(values, self._scale(name), strict=True):
            yield self._dequantize(name, codes, scale, dtype)
