"""Encoders of images that libmtmd computes unlike transformers, and a trial of those that it computes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from llama_eagle.convert.source import Checkpoint
from llama_eagle.errors import ConfigError, ConversionError, InputError
from llama_eagle.native.trials.encode import require_encoder

_ACTIVATIONS = {"qwen2_vl": "quick_gelu", "qwen2_5_vl": "silu"}  # by which libmtmd computes these encoders
_MERGED = 2  # patches of either side that make one row, and frames
_WINDOW = 112  # pixels: no key of the GGUF states another size


def refuse_unlike(config: dict[str, Any], where: str) -> None:
    """Raise `ConfigError` for an encoder of Qwen2-VL or Qwen2.5-VL with a value that libmtmd does not read."""
    vision = config.get("vision_config")
    if config.get("model_type") not in _ACTIVATIONS or not isinstance(vision, dict):
        return
    for key, value, wanted in _values(config["model_type"], vision):
        if value != wanted:
            raise ConfigError(
                f"{where}: vision_config has {key} {value!r:.80}, but libmtmd computes this encoder with "
                f"{wanted!r:.80} alone. Leave --mmproj out."
            )


def _values(model_type: str, vision: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield key, value, and the value that libmtmd computes with. Defaults are those of transformers."""
    yield "hidden_act", vision.get("hidden_act", _ACTIVATIONS[model_type]), _ACTIVATIONS[model_type]
    for key in ("spatial_merge_size", "temporal_patch_size"):
        yield key, vision.get(key, _MERGED), _MERGED
    if model_type == "qwen2_5_vl":
        patch, window = vision.get("patch_size", 14), vision.get("window_size", _WINDOW)
        side = patch * _MERGED if type(patch) is int and patch > 0 else 1
        yield "window_size", window, window if window // side == _WINDOW // side else _WINDOW
        depth, full = vision.get("depth", 32), vision.get("fullatt_block_indexes", [7, 15, 23, 31])
        yield "fullatt_block_indexes", full, [*range(full[0], depth, full[0] + 1)] if full else "a block in equal steps"


def check_encoder(encoder: Path, text: Path, checkpoint: Checkpoint) -> None:
    """Load an encoder next to its text model and compute a picture. Raises `ConversionError` if that fails."""
    try:
        require_encoder(encoder, text)
    except InputError as error:
        raise ConversionError(
            f"{checkpoint.source}: llama.cpp's converter wrote an encoder that cannot run: {error}. Leave --mmproj out"
        ) from error
