"""Default values of options from the user's TOML file: for all commands, or in a table for one command."""

from __future__ import annotations

import os
import sys
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llama_eagle.errors import ConfigError
from llama_eagle.files import UNUSABLE_TEXT, unusable_text

VARIABLE = "LLAMA_EAGLE_CONFIG"


def config_file() -> Path | None:
    """Return the path of the file, whether it exists or not; None for a user without a home folder."""
    from platformdirs import user_config_path

    named = os.environ.get(VARIABLE)
    try:
        return Path(named) if named else user_config_path("llama-eagle") / "config.toml"
    except RuntimeError:
        return None


def read_defaults(commands: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the default of each option that the file names, by command and by click's own names.

    commands: click's. Raises `ConfigError` for a file that cannot be read, or that names an unknown option or command.
    """
    path = config_file()
    if path is None or not (path.is_file() or os.environ.get(VARIABLE)):
        return {}
    content = _read(path)
    parameters = {name: _options(command) for name, command in commands.items()}
    options = {name: {flag: each.name for flag, each in known.items()} for name, known in parameters.items()}
    shared = {key: value for key, value in content.items() if not isinstance(value, dict)}
    for key in shared:
        if not any(_name(key) in known for known in options.values()):
            raise ConfigError(f"{path}: no command has an option {key}. Correct or remove it.")
    for known in parameters.values():
        _check_values(path, "", shared, known)
    defaults = {name: _select(shared, known) for name, known in options.items()}
    for table, values in content.items():
        if isinstance(values, dict):
            if table not in options:
                raise ConfigError(f"{path}: [{table}] is not a command. Correct it.")
            for key in values:
                if _name(key) not in options[table]:
                    raise ConfigError(f"{path}: {table} has no option {key}. Correct it.")
            _check_values(path, f"{table}.", values, parameters[table])
            defaults[table] |= _select(values, options[table])
    return defaults


def named_in_file(command: str, flags: Sequence[str]) -> list[str]:
    """Return those of `flags`, without dashes, that the file sets for `command`; [] if the file cannot be read."""
    path = config_file()
    try:
        content = _read(path) if path is not None and path.is_file() else {}
    except ConfigError:
        return []
    own = content.get(command)
    names = {_name(key) for table in (content, own if isinstance(own, dict) else {}) for key in table}
    return [_name(flag) for flag in flags if _name(flag) in names]


def _read(path: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        found = tomllib.loads(path.read_text("utf-8-sig"))
    except OSError as error:
        remedy = f"Correct {VARIABLE}" if os.environ.get(VARIABLE) else "Correct or remove it"
        raise ConfigError(f"{path}: cannot be read ({error.strerror}). {remedy}.") from None
    except RecursionError:
        raise ConfigError(f"{path}: nested too deeply. Use fewer levels.") from None
    except ValueError as error:
        raise ConfigError(f"{path}: not TOML: {error}. Correct it.") from None
    if (place := unusable_text(found)) is not None:
        raise ConfigError(f"{path}: {place or 'it'} contains {UNUSABLE_TEXT}. Remove it.")
    return found


def _options(command: Any) -> dict[str, Any]:
    """Return click's parameter of each option, by the names that a user knows."""
    return {_name(flag): each for each in command.params for flag in each.opts if flag.startswith("--")}


def _check_values(path: Path, where: str, values: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Check that each value suits its option. Raises `ConfigError`."""
    for key, value in values.items():
        if _name(key) in known:
            fault = _fault(value, known[_name(key)])
            if fault is not None:
                raise ConfigError(f"{path}: {where}{key} is {value!r:.60}, {fault}. Correct it.")


def _fault(value: Any, parameter: Any) -> str | None:
    """Return the reason why a value does not suit an option, because the command line would convert "no" to true.

    None for an option with its own parser, which checks the value itself.
    """
    if _has_reader(parameter):
        return None
    if parameter.multiple != isinstance(value, list):
        return "it must be a list" if parameter.multiple else "it must be a single value"
    kinds, word = _KINDS[_kind(parameter)]
    for entry in value if parameter.multiple else [value]:
        if type(entry) not in kinds:
            return f"it must be {word}"
        low, high = (_limit(parameter, name) for name in ("min", "max"))
        if not isinstance(entry, str) and not (low is None or entry >= low) & (high is None or entry <= high):
            return f"it must be in {low}..{'' if high is None else high}"
    return None


# TOML types that an option accepts, with their name; a text such as that of --n-draft may be a number.
_KINDS: dict[type, tuple[tuple[type, ...], str]] = {
    bool: ((bool,), "true or false"),
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    str: ((str, int, float), "a string"),
}


def _has_reader(parameter: Any) -> bool:
    descriptor = getattr(parameter, "type_descriptor", None)
    if descriptor is not None:
        return getattr(descriptor.parameter_info, "parser", None) is not None
    return type(parameter.type).__name__ == "FuncParamType"


def _kind(parameter: Any) -> type:
    """Return the Python type of an option, from typer or, in older versions, from click."""
    if parameter.is_flag:
        return bool
    descriptor = getattr(parameter, "type_descriptor", None)
    if descriptor is None:
        return {"integer": int, "float": float}.get(parameter.type.name.split()[0], str)
    annotation = next(iter(typing.get_args(descriptor.annotation)), descriptor.annotation)
    return annotation if annotation in (int, float) else str


def _limit(parameter: Any, name: str) -> float | None:
    return getattr(parameter, name, getattr(getattr(parameter, "type", None), name, None))


def _name(flag: str) -> str:
    return flag.removeprefix("--").replace("_", "-")


def _select(values: Mapping[str, Any], known: Mapping[str, str]) -> dict[str, Any]:
    return {known[_name(key)]: value for key, value in values.items() if _name(key) in known}
