"""The errors users meet. Each carries the exit code the command line ends with.

A message says what went wrong, where, what was expected and found, and what to do next.
"""

from __future__ import annotations


class EagleError(Exception):
    """Base of every expected failure."""

    exit_code = 3


class ConfigError(EagleError):
    """A configuration value is missing, contradictory or not supported."""


class ConversionError(EagleError):
    """A checkpoint cannot be converted; nothing was written."""


class IncompatibleModels(EagleError):
    """Target and draft do not fit each other."""


class UsageError(EagleError):
    """Arguments that cannot be honoured together."""

    exit_code = 2


class EnvironmentFailure(EagleError):
    """The installation or the machine is at fault: a missing library, no memory, an unwritable folder."""

    exit_code = 4


class NativeError(EagleError):
    """A call into libllama failed. `code` is its status, `call` the C function."""

    exit_code = 4

    def __init__(self, message: str, *, code: int, call: str) -> None:
        super().__init__(message)
        self.code = code
        self.call = call


class InputError(EagleError):
    """A file or text given as input cannot be used: missing, damaged, of the wrong kind, or too long."""
