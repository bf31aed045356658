"""Defaults of one's own: a TOML file with options by name, for all commands or in a table of one."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llama_eagle.errors import ConfigError

VARIABLE = "LLAMA_EAGLE_CONFIG"


def config_file() -> Path:
    """Where the file is, whether it exists or not."""
    from platformdirs import user_config_path

    named = os.environ.get(VARIABLE)
    return Path(named) if named else user_config_path("llama-eagle") / "config.toml"


def read_defaults(commands: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The default of each option that the file names, by command and by click's own names.

    commands: click's. Raises `ConfigError` for a file that cannot be read, or that names what no command has.
    """
    path = config_file()
    if not path.is_file():
        return {}
    content = _read(path)
    options = {name: _options(command) for name, command in commands.items()}
    shared = {key: value for key, value in content.items() if not isinstance(value, dict)}
    for key in shared:
        if not any(_name(key) in known for known in options.values()):
            raise ConfigError(f"{path}: no command has an option {key}. Correct it.")
    defaults = {name: _of(shared, known) for name, known in options.items()}
    for table, values in content.items():
        if isinstance(values, dict):
            if table not in options:
                raise ConfigError(f"{path}: [{table}] is no command. Correct it.")
            for key in values:
                if _name(key) not in options[table]:
                    raise ConfigError(f"{path}: {table} has no option {key}. Correct it.")
            defaults[table] |= _of(values, options[table])
    return defaults


def _read(path: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}). Correct or remove it.") from None
    except ValueError as error:
        raise ConfigError(f"{path}: not TOML: {error}. Correct it.") from None


def _options(command: Any) -> dict[str, str]:
    """click's name of each option, by those that a user knows."""
    return {_name(flag): each.name for each in command.params for flag in each.opts if flag.startswith("--")}


def _name(flag: str) -> str:
    return flag.removeprefix("--").replace("_", "-")


def _of(values: Mapping[str, Any], known: Mapping[str, str]) -> dict[str, Any]:
    return {known[_name(key)]: value for key, value in values.items() if _name(key) in known}
