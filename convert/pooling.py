"""Pooling of an embedding model, from sentence-transformers' modules.json, as in llama.cpp's converter."""

from __future__ import annotations

import json

from llama_eagle.convert.source import Checkpoint
from llama_eagle.convert.source.storage import read_json, read_text
from llama_eagle.errors import ConfigError

_TYPES = {"mean": 1, "cls": 2, "lasttoken": 3}  # llama_pooling_type
_FLAGS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_lasttoken": "lasttoken"}


def pooling_type(checkpoint: Checkpoint) -> int | None:
    """Return the llama_pooling_type of a sentence-transformers model; None for other models.

    Raises `ConfigError` for a type that llama.cpp does not have.
    """
    path = checkpoint.path / "modules.json"
    if not path.is_file():
        return None
    try:
        modules = json.loads(read_text(path))
        folder = next((str(each["path"]) for each in modules if str(each["type"]).endswith("Pooling")), None)
    except (ValueError, TypeError, KeyError):
        raise ConfigError(f"{path}: not a list of sentence-transformers' modules. Download it again.") from None
    if folder is None:
        return None
    settings = read_json(checkpoint.path / folder / "config.json")
    name = next((name for flag, name in _FLAGS.items() if settings.get(flag)), settings.get("pooling_mode"))
    if name not in _TYPES:
        raise ConfigError(f"{checkpoint.source}: pooling {name!r} is not supported; llama.cpp has {', '.join(_TYPES)}.")
    return _TYPES[name]
