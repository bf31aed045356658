"""The command line: `llama-eagle COMMAND`.

Data goes to stdout, progress and notes to stderr. Expected failures are one line, `error: …`, and an exit code:
0 ok, 1 our bug, 2 usage, 3 bad or incompatible input, 4 environment, 5 a check failed, 130 interrupted.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from llama_eagle import console
from llama_eagle.errors import EagleError

USAGE, BUG, INTERRUPTED = 2, 1, 130
SERVERS = ("serve", "rpc-server")  # commands that Ctrl-C ends as intended
FLAG = re.compile(r"--[a-z][a-z-]+")


@console.kept_settings()
def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code. `arguments` default to this process's own."""
    is_program = arguments is None
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        if is_program and signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        console.prepare_streams()
        console.use_json("--json" in arguments)
        if is_program:
            warnings.showwarning = _show_warning
        code = _flushed(run(arguments))
    except KeyboardInterrupt:  # outside of `run`
        code = INTERRUPTED
    if is_program and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback for Ctrl-C while Python exits
    sys.exit(code)


def _show_warning(message: Warning | str, category: type[Warning], *where: Any, **_: Any) -> None:
    """Show a warning of the library as one line; show those for programmers with their place in the code."""
    if issubclass(category, UserWarning):
        console.warn_after_answer(str(message))
    else:
        sys.stderr.write(warnings.formatwarning(message, category, *where[:2]))


def _flushed(code: int) -> int:
    """Return `code` after flushing stdout, or an error's code if stdout cannot be written."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_stdout()
    except OSError as error:
        return _output_error(error)
    return code


@console.kept_settings()
def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code.

    A traceback is printed only if LLAMA_EAGLE_DEBUG is set.
    """
    import typer

    usage_error: Any = typer.BadParameter.__base__  # click's own, which typer bundles or imports
    try:
        import llama_eagle  # noqa: F401  (its import error is an EagleError like any other)
        from llama_eagle.cli.app import command
        from llama_eagle.cli.options import in_flags

        console.translate_messages(in_flags)
        _keep_completion_in_one_line()
        root = command()
        defaults = root.context_settings["default_map"].get(arguments[0] if arguments else "", {})
        console.use_json("--json" in arguments or defaults.get("json") is True)
        result = root(list(arguments) or ["--help"], prog_name="llama-eagle", standalone_mode=False)
        if result == INTERRUPTED:  # typer's own answer to Ctrl-C
            return _interrupted(arguments)
        return result if isinstance(result, int) else 0
    except EagleError as error:
        if error.names_keys:
            console.translate_messages(str)
        return _failed(type(error).__name__, _config_place_of_flag(error, arguments) + str(error), error.exit_code)
    except usage_error as error:
        message = _config_place(error) + _with_remedy(error)
        end = "" if message.endswith((".", "?")) else "."
        command_path = error.ctx.command_path if getattr(error, "ctx", None) else "llama-eagle"
        return _failed("UsageError", f"{message}{end} See {command_path} --help.", USAGE)
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted(arguments)
    except (BrokenPipeError, SystemExit):  # typer exits if the reader has closed, and after shell completion
        with suppress(BrokenPipeError):
            sys.stdout.flush()
        _discard_stdout()
        return 0
    except OSError as error:
        return _output_error(error)
    except MemoryError:
        return _failed("MemoryError", "out of memory. Free memory, or use a smaller model or context.", 4)
    except Exception as error:
        return _failed("InternalError", f"internal error: {error!r}. Set LLAMA_EAGLE_DEBUG=1 and report it.", BUG)


def _keep_completion_in_one_line() -> None:
    """Stop typer from wrapping the help of an option: fish would offer each further line as a word."""
    if "_LLAMA_EAGLE_COMPLETE" in os.environ:
        os.environ["COLUMNS"] = "1000"


def _with_remedy(error: Any) -> str:
    """Return typer's message; for a word that no option takes, with the remedy."""
    message = str(error.format_message())
    parameters = error.ctx.command.params if getattr(error, "ctx", None) else ()
    takes_words = any(parameter.param_type_name == "argument" for parameter in parameters)
    if "unexpected extra argument" in message and not takes_words:
        flags = [flag for parameter in parameters for flag in parameter.opts if flag in ("-m", "-p")]
        return f"{message}. This command takes options only{', such as' * bool(flags)} {' and '.join(flags)}".rstrip()
    if hasattr(error, "option_name") and any(parameter.name == "extra" for parameter in parameters):
        return f"{message}. Options of llama-server go after --: llama-eagle serve ... -- OPTIONS"
    return message


def _config_place(error: Any) -> str:
    """Return "FILE: KEY: " if a wrong value is from the configuration file, else ""."""
    name = getattr(getattr(error, "param", None), "name", None)
    source = error.ctx.get_parameter_source(name) if error.ctx and name else None
    if source is None or source.name != "DEFAULT_MAP":
        return ""
    from llama_eagle.cli.config import config_file

    return f"{config_file()}: {name}: "


def _config_place_of_flag(error: EagleError, arguments: Sequence[str]) -> str:
    """Return the same for a value that the library refused: its message names the argument."""
    from llama_eagle.cli.config import config_file, named_in_file
    from llama_eagle.cli.options import in_flags

    flags = FLAG.findall(in_flags(str(error))) if error.exit_code == USAGE and not error.names_keys else []
    keys = named_in_file(arguments[0], flags) if flags and arguments else []
    given = {word.partition("=")[0] for word in arguments}
    key = next((key for key in keys if f"--{key}" not in given), None)
    return "" if key is None else f"{config_file()}: {key}: "


def _interrupted(arguments: Sequence[str]) -> int:
    if arguments and arguments[0] in SERVERS:
        return INTERRUPTED
    return _failed("Interrupted", "interrupted", INTERRUPTED)


def _failed(kind: str, message: str, code: int) -> int:
    if code != INTERRUPTED and (error := sys.exc_info()[1]) is not None:
        console.trace(error)
    console.failure(kind, " ".join(message.split()), code)
    return code


def _output_error(error: OSError) -> int:
    """Report an OSError that no command has handled, such as a full disk or a closed terminal."""
    if error.filename is None:
        _discard_stdout()
    where = "the output" if error.filename is None else error.filename
    return _failed("EnvironmentFailure", f"{where}: {error.strerror or error}. Correct that and try again.", 4)


def _discard_stdout() -> None:
    """Redirect stdout to the null device, so that Python does not fail again when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
