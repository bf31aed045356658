"""Forms of stored weights: plain ones are read by llama.cpp's converter, quantized ones by our decoders."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from llama_eagle.convert.dtypes import to_f32
from llama_eagle.convert.source import Checkpoint, open_checkpoint
from llama_eagle.convert.source.stated import checkpoint_scheme
from llama_eagle.convert.source.weights import Weights
from llama_eagle.errors import ConversionError

OWN_METHODS = ("mxfp4",)  # gpt-oss: llama.cpp keeps its codes
# Without these keys, and with this one, llama.cpp's converter looks for no quantization in other files, either.
_NO_QUANTIZATION = {"quant_algo": "none", "quantized_layers": {"none": None}}


def is_quantized(checkpoint: Checkpoint) -> bool:
    """Return True if our decoders must read weights. Raises ConfigError or ConversionError for what is not read."""
    _refuse_mlx(checkpoint)
    if _method(checkpoint.config) in OWN_METHODS:
        return False
    weights = _weights(checkpoint)
    for name in weights.names():
        if len(weights.info(name).shape) > 1:
            weights.require_numbers(name)
    return any(map(weights.is_coded, weights.names()))


def without_quantization(config: dict[str, Any]) -> dict[str, Any]:
    """Return config.json for weights that are plain or decoded."""
    if _method(config) in OWN_METHODS:
        return config
    rest = {key: value for key, value in config.items() if key not in ("quantization", "compression_config")}
    return {**rest, "quantization_config": _NO_QUANTIZATION}


def decoded_tensors(folder: Path, lazy: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield name and lazy tensor of all weights. lazy: the converter's class of lazy tensors."""
    import torch

    weights = _weights(open_checkpoint(folder))

    def load(name: str) -> Any:
        return torch.from_numpy(to_f32(weights.read(name)).copy())

    for name in weights.names():
        meta = lazy.meta_with_dtype_and_shape(torch.float32, weights.shape(name))
        yield name, partial(lazy, meta=meta, args=(name,), func=load)


def _weights(checkpoint: Checkpoint) -> Weights:
    return Weights(checkpoint, lambda name: name, checkpoint_scheme(checkpoint))


def _method(config: dict[str, Any]) -> Any:
    stated = config.get("quantization_config")
    return stated.get("quant_method") if isinstance(stated, dict) else None


def _refuse_mlx(checkpoint: Checkpoint) -> None:
    """Raise ConversionError for weights of mlx-lm, whose names and shapes differ from published ones by family."""
    for file in sorted(checkpoint.path.glob("*.safetensors"))[:1]:
        with file.open("rb") as opened:
            header = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
        if (header.get("__metadata__") or {}).get("format") == "mlx":
            raise ConversionError(
                f"{checkpoint.source}: its weights are those of mlx-lm, whose names and shapes differ from published "
                "ones in this family. Convert the original checkpoint"
            )
