"""Groups of options: a dataclass in a command's signature becomes one option per field.

@grouped
def chat(drafting: Drafting, sampling: Sampling, verbose: Verbose = False) -> None: ...
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import Any


def grouped(function: Callable[..., None]) -> Callable[..., None]:
    """Return the command as typer reads it, with the fields of each group as parameters."""
    hints = typing.get_type_hints(function, include_extras=True)
    parameters: list[inspect.Parameter] = []
    groups: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        kind = hints[parameter.name]
        if is_dataclass(kind):
            groups[parameter.name] = kind
            parameters += _options(kind)
        else:
            parameters.append(parameter.replace(annotation=kind, kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(function)
    def command(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        function(**given)

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _options(group: Any) -> Iterator[inspect.Parameter]:
    hints = typing.get_type_hints(group, include_extras=True)
    for field in fields(group):
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        yield inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[field.name]
        )
