"""Pooling of an embedding model, from sentence-transformers' modules.json.

llama.cpp computes the transformer, one kind of pooling and a normalization. A model with more is refused, because its
vectors would differ.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from llama_eagle.convert.source import Checkpoint
from llama_eagle.convert.source.storage import read_json, read_text
from llama_eagle.errors import ConfigError

_TYPES = {"mean": 1, "cls": 2, "lasttoken": 3}  # llama_pooling_type
_FLAGS = {  # of configurations before sentence-transformers 5.2; several may be set
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_ALONE = "Remove modules.json to convert the transformer alone."
_COMPUTED = ("Transformer", "Pooling", "Normalize", "Dropout")  # the last has no effect outside of training


def pooling_type(checkpoint: Checkpoint) -> int | None:
    """Return the llama_pooling_type of a sentence-transformers model; None for other models.

    Raises `ConfigError` for modules and pooling that llama.cpp does not have.
    """
    path = checkpoint.path / "modules.json"
    if not path.is_file():
        return None
    try:
        modules = [(str(each["type"]).rpartition(".")[2], str(each["path"])) for each in json.loads(read_text(path))]
    except (ValueError, TypeError, KeyError):
        raise ConfigError(f"{path}: not a list of sentence-transformers' modules. Download it again.") from None
    others = [kind for kind, _ in modules if kind not in _COMPUTED]
    if others:
        raise ConfigError(
            f"{checkpoint.source}: llama.cpp does not compute the module {others[0]} of sentence-transformers, so "
            f"vectors would differ. {_ALONE}"
        )
    for folder in (folder for kind, folder in modules if kind == "Transformer"):
        settings = checkpoint.path / folder / "sentence_bert_config.json"
        if settings.is_file() and read_json(settings).get("do_lower_case"):
            raise ConfigError(f"{settings}: do_lower_case is true, but llama.cpp does not change texts. {_ALONE}")
    folders = [folder for kind, folder in modules if kind == "Pooling"]
    if len(folders) > 1:
        raise ConfigError(f"{path}: {len(folders)} pooling modules, llama.cpp computes one. Use another model.")
    return _type_of(read_json(checkpoint.path / folders[0] / "config.json"), checkpoint) if folders else None


def _type_of(settings: Mapping[str, Any], checkpoint: Checkpoint) -> int:
    names = list(_names(settings))
    if len(names) != 1 or names[0] not in _TYPES:
        named = " with ".join(map(repr, names))
        raise ConfigError(
            f"{checkpoint.source}: pooling {named} is not supported; llama.cpp has one of {', '.join(_TYPES)}."
        )
    if settings.get("include_prompt") is False:
        raise ConfigError(
            f"{checkpoint.source}: include_prompt=false leaves a prompt's tokens out of the pooling, which llama.cpp "
            "does not. Remove it from the pooling's config.json if texts have no prompt."
        )
    return _TYPES[names[0]]


def _names(settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield the kinds of pooling, whose vectors are joined if there are several; "mean" is the default."""
    given = settings.get("pooling_mode")
    if given is None:
        given = [name for flag, name in _FLAGS.items() if settings.get(flag)] or "mean"
    yield from map(str, given if isinstance(given, list) else [given])
