"""Which family a checkpoint belongs to."""

from __future__ import annotations

from typing import Any

from llama_eagle.convert.targets.table import Family
from llama_eagle.errors import ConfigError

_FAMILIES: dict[str, Family] = {}


def register(family: Family) -> None:
    _FAMILIES.update(dict.fromkeys(family.architectures, family))


def find_family(config: dict[str, Any], where: str) -> Family:
    """The family named by config.json's `architectures`; text_config's own, where it has one, wins."""
    text = config.get("text_config")
    names = (text.get("architectures") if isinstance(text, dict) else None) or config.get("architectures")
    if not isinstance(names, list) or not names:
        raise ConfigError(f"{where}: config.json names no architecture")
    if not isinstance(names[0], str) or names[0] not in _FAMILIES:
        raise ConfigError(f"{where}: architecture {names[0]!r} is not supported; supported: {', '.join(_FAMILIES)}")
    return _FAMILIES[names[0]]
