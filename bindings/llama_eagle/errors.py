"""Errors that users see, each with the exit code of the command line.

A message says what went wrong and where, what was expected and found, and what to do next. Each class is also the
built-in error that llama-cpp-python raises in such a case, so that code written for it still catches it.
"""

from __future__ import annotations

from collections.abc import Mapping

CHECK_FAILED = 5  # exit code of a command whose check found a fault; no error


class EagleError(Exception):
    """Base of every expected failure."""

    exit_code = 3
    names_keys = False  # the message names keys of a file of settings; otherwise arguments of Python


class ConfigError(EagleError, ValueError):
    """A configuration value is missing, contradictory or not supported."""


class ConversionError(EagleError, ValueError):
    """A checkpoint cannot be converted; nothing was written."""


class IncompatibleModels(EagleError, ValueError):
    """Target and draft do not fit each other."""


class UsageError(EagleError, ValueError):
    """Arguments are wrong, or contradict each other."""

    exit_code = 2


class EnvironmentFailure(EagleError, RuntimeError):
    """The installation or the machine is the cause: a missing library, no memory, a folder that is not writable."""

    exit_code = 4


class NativeError(EagleError, RuntimeError):
    """A call into libllama failed. `code` is its status, `call` the C function."""

    exit_code = 4

    def __init__(self, message: str, *, code: int, call: str) -> None:
        super().__init__(message)
        self.code = code
        self.call = call


class InputError(EagleError, ValueError):
    """A file or text cannot be used as input: missing, damaged, of the wrong kind, or too long."""


class ContextFull(ValueError):
    """A prompt exceeds the context. It has the message of llama-cpp-python, so it is no `EagleError`."""


def refuse(problems: Mapping[str, bool]) -> None:
    """Raise `UsageError` with the first problem whose value is True."""
    for problem, found in problems.items():
        if found:
            raise UsageError(f"{problem}. Correct it.")
