"""A target's tensors under canonical names, whatever prefix the checkpoint uses, and without FP8."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from llama_eagle.convert.checkpoint import Checkpoint
from llama_eagle.convert.dtypes import fp8_to_f32
from llama_eagle.errors import ConfigError, ConversionError

_FP8 = ("F8_E4M3", "F8_E5M2")
_FLOATS = ("BF16", "F16", "F32", "F64")
_SCALE = "_scale_inv"


def canonical(name: str) -> str:
    """`model.language_model.layers.0.x`, `language_model.model.layers.0.x` and `model.layers.0.x` -> `layers.0.x`."""
    name = name.replace("language_model.", "", 1)
    name = name.removeprefix("model.")
    return (
        name.removesuffix(".weight")
        if name.endswith(("experts.gate_up_proj.weight", "experts.down_proj.weight"))
        else name
    )


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
    """Canonical name -> values: float16, float32, float64, or BF16 bit patterns (uint16)."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.where = checkpoint.source
        self._checkpoint = checkpoint
        self._block = _fp8_block(checkpoint.config)
        self._stored: dict[str, str] = {}
        for name in checkpoint.names():
            short = canonical(name)
            if short in self._stored:
                raise ConversionError(f"{self.where}: {name} and {self._stored[short]} are the same tensor")
            self._stored[short] = name
        self._scales = {n: s for n, s in self._stored.items() if n.endswith((_SCALE, ".activation_scale"))}
        for name in self._scales:
            del self._stored[name]
        for name in self._stored:
            self._check(name)

    def _check(self, name: str) -> None:
        dtype = self._checkpoint.info(self._stored[name]).dtype
        if dtype in _FP8:
            if name + _SCALE not in self._scales:
                raise ConversionError(f"{self.where}: FP8 tensor {name} has no scales ({name}{_SCALE})")
        elif dtype not in _FLOATS:
            raise ConversionError(
                f"{self.where}: tensor {name} has dtype {dtype}, expected one of {', '.join(_FLOATS)}"
            )

    def names(self) -> list[str]:
        return list(self._stored)

    def __contains__(self, name: str) -> bool:
        return name in self._stored

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._checkpoint.info(self._stored[name]).shape)

    def _dequantize(self, name: str, codes: np.ndarray, scale: np.ndarray, dtype: str) -> np.ndarray:
        try:
            return fp8_to_f32(codes, dtype, scale, self._block)
        except ConversionError as error:
            raise ConversionError(f"{self.where}: tensor {name}: {error}") from error

    def _scale(self, name: str) -> np.ndarray:
        return self._checkpoint.read_f32(self._scales[name + _SCALE])

    def read(self, name: str) -> np.ndarray:
        """The whole tensor, in its stored type or, for FP8, as float32."""
        stored = self._stored[name]
        dtype = self._checkpoint.info(stored).dtype
        values = self._checkpoint.read(stored)
        return self._dequantize(name, values, self._scale(name), dtype) if dtype in _FP8 else values

    def slices(self, name: str) -> Iterator[np.ndarray]:
        """read(), but one slice of the first axis at a time: FP8 experts need memory for one of them only."""
        stored = self._stored[name]
        dtype = self._checkpoint.info(stored).dtype
        values = self._checkpoint.read(stored)
        if dtype not in _FP8:
            yield from values
            return
        for codes, scale in zip(values, self._scale(name), strict=True):
            yield self._dequantize(name, codes, scale, dtype)
