"""The C interface of native/include/eagle*.h, and the one place that turns its status codes into errors."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Sequence
from ctypes import POINTER, c_bool, c_char_p, c_double, c_float, c_int32, c_int64, c_size_t, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

from llama_eagle.errors import EnvironmentFailure, IncompatibleModels, InputError, NativeError, UsageError
from llama_eagle.native import build, callbacks, log
from llama_eagle.native.build import library_folder

OK, ERR_ARGUMENT, ERR_STATE, ERR_INCOMPATIBLE, ERR_MEMORY = 0, 1, 2, 3, 4
ERR_CONTEXT_FULL, ERR_COMPUTE, ERR_ABORTED, ERR_INTERNAL, ERR_NUMBERS = 5, 6, 7, 8, 9

TOKENS = POINTER(c_int32)
FLOATS = POINTER(c_float)


PROGRESS = ctypes.CFUNCTYPE(None, c_float, c_void_p)


class SessionParams(ctypes.Structure):
    """eagle_session_params."""

    _fields_ = (
        ("struct_size", c_size_t),
        ("n_draft_max", c_int32),
        ("n_ctx_draft", c_int32),
        ("n_threads", c_int32),
        ("path_tgt", c_char_p),
        ("path_dft", c_char_p),
        ("n_vocab_draft", c_int32),
        ("n_base_ids", c_int32),
        ("base_ids", TOKENS),
        ("n_ctx", c_int32),
        ("on_progress", PROGRESS),
        ("progress_data", c_void_p),
    )


class Timings(ctypes.Structure):
    """eagle_timings: times in ms, counts in tokens and graphs, since the session was created."""

    _fields_ = (
        ("eval_ms", c_double),
        ("draft_ms", c_double),
        ("verify_ms", c_double),
        ("commit_ms", c_double),
        ("n_eval", c_int64),
        ("n_graphs", c_int64),
    )


class PolicyParams(ctypes.Structure):
    """eagle_policy_params."""

    _fields_ = (
        ("struct_size", c_size_t),
        ("n_seq", c_int32),
        ("n_draft_max", c_int32),
        ("n_draft", c_int32),
        ("has_model", c_bool),
        ("n_rows", c_int32),
        ("row_cost", FLOATS),
        ("token_cost", c_float),
        ("draft_cost", c_float),
    )


class PolicyDraft(ctypes.Structure):
    """eagle_policy_draft."""

    _fields_ = (("seq", c_int32), ("n_max", c_int32), ("source", c_int32), ("n_draft", c_int32))


class PolicyRound(ctypes.Structure):
    """eagle_policy_round."""

    _fields_ = (
        ("seq", c_int32),
        ("n_model", c_int32),
        ("n_draft", c_int32),
        ("n_accepted", c_int32),
        ("draft_ms", c_double),
        ("verify_ms", c_double),
    )


# name -> (argument types, result type)
FUNCTIONS: dict[str, tuple[list[Any], Any]] = {
    "eagle_abi_version": ([], c_int32),
    "eagle_upstream_commit": ([], c_char_p),
    "eagle_patch_hash": ([], c_char_p),
    "eagle_last_error": ([], c_char_p),
    "eagle_lost_server": ([c_void_p], c_char_p),
    "eagle_layer_device": ([c_void_p, c_int32], c_void_p),
    "eagle_bytes_read": ([c_void_p, c_int32], c_double),
    "eagle_target_publishes_layer": ([c_void_p, c_int32], c_int32),
    "eagle_capture_layer": ([c_void_p, c_int32, c_bool], c_int32),
    "eagle_layer_rows": ([c_void_p, c_int32], FLOATS),
    "eagle_session_default_params": ([], SessionParams),
    "eagle_session_new": ([c_void_p, c_void_p, POINTER(SessionParams), POINTER(c_void_p)], c_int32),
    "eagle_session_free": ([c_void_p], None),
    "eagle_draft_kind": ([c_void_p], c_char_p),
    "eagle_draft_device": ([c_void_p], c_char_p),
    "eagle_draft_notice": ([c_void_p], c_char_p),
    "eagle_draft_bytes_read": ([c_void_p], c_double),
    "eagle_reset": ([c_void_p], c_int32),
    "eagle_n_past": ([c_void_p], c_int32),
    "eagle_n_draft_room": ([c_void_p], c_int32),
    "eagle_eval": ([c_void_p, TOKENS, c_int32], c_int32),
    "eagle_eval_embeddings": ([c_void_p, FLOATS, c_int32, TOKENS, c_int32], c_int32),
    "eagle_set_interruptible": ([c_int32], None),
    "eagle_trim": ([c_void_p, c_int32], c_int32),
    "eagle_draft": ([c_void_p, c_int32, c_int32, c_float, TOKENS, FLOATS, POINTER(c_int32)], c_int32),
    "eagle_draft_step": ([c_void_p, c_int32, FLOATS, FLOATS], c_int32),
    "eagle_n_vocab_draft": ([c_void_p], c_int32),
    "eagle_draft_ids": ([c_void_p, TOKENS], c_int32),
    "eagle_note_used_tokens": ([c_void_p, TOKENS, c_int32], c_int32),
    "eagle_verify": ([c_void_p, TOKENS, c_int32], c_int32),
    "eagle_sample": ([c_void_p, c_void_p, c_int32, TOKENS], c_int32),
    "eagle_require_numbers": ([c_void_p, c_int32], c_int32),
    "eagle_sampler_apply": ([c_void_p, c_void_p], c_int32),
    "eagle_sampler_accept": ([c_void_p, c_int32], c_int32),
    "eagle_grammar_check": ([c_void_p, c_char_p, c_char_p], c_int32),
    "eagle_pattern_rule": ([c_char_p, c_char_p, c_size_t], c_int32),
    "eagle_commit": ([c_void_p, c_int32], c_int32),
    "eagle_round_commit_at_once": ([c_void_p, c_int32], None),
    "eagle_state_size": ([c_void_p], c_int64),
    "eagle_state_save": ([c_void_p, c_void_p, c_int64], c_int32),
    "eagle_state_load": ([c_void_p, c_void_p, c_int64, c_int32], c_int32),
    "eagle_get_timings": ([c_void_p], Timings),
    "eagle_policy_default_params": ([], PolicyParams),
    "eagle_policy_new": ([POINTER(PolicyParams), POINTER(c_void_p)], c_int32),
    "eagle_policy_free": ([c_void_p], None),
    "eagle_policy_begin": ([c_void_p, c_int32], c_int32),
    "eagle_policy_wants_offer": ([c_void_p], c_bool),
    "eagle_policy_offer": ([c_void_p, c_int32, TOKENS, c_int32, c_int32, c_double], c_int32),
    "eagle_policy_choose": ([c_void_p, POINTER(PolicyDraft), c_int32], c_int32),
    "eagle_policy_observe": ([c_void_p, POINTER(PolicyRound)], c_int32),
    "eagle_policy_text": ([c_void_p, c_int32, TOKENS, c_int32], c_int32),
    "eagle_lookup_new": ([c_int32, c_int32, c_int32, POINTER(c_void_p)], c_int32),
    "eagle_lookup_free": ([c_void_p], None),
    "eagle_lookup_open": ([c_void_p, c_void_p, c_char_p], c_int32),
    "eagle_lookup_notice": ([c_void_p], c_char_p),
    "eagle_lookup_save": ([c_void_p], c_int32),
    "eagle_lookup_begin": ([c_void_p, c_int32, TOKENS, c_int32], c_int32),
    "eagle_lookup_extend": ([c_void_p, c_int32, TOKENS, c_int32], c_int32),
    "eagle_lookup_draft": ([c_void_p, c_int32, c_int32, TOKENS, c_int32, POINTER(c_int32), POINTER(c_int32)], c_int32),
    "eagle_lookup_round": ([c_void_p, c_void_p, TOKENS, c_int32, TOKENS, POINTER(PolicyDraft)], c_int32),
    "eagle_exact_set": ([c_int32], c_int32),
    "eagle_exact_get": ([], c_int32),
    "eagle_exact_report": ([c_void_p, c_char_p, c_size_t], c_int32),
    "eagle_exact_devices": ([c_char_p, c_size_t], c_int32),
}


@cache
def library() -> ctypes.CDLL:
    """Return our libllama, loaded by llama-cpp-python, with checked versions and declared eagle_* functions."""
    _check_environment()
    build.check_versions()
    lib = _llama_cpp()._lib
    for name, (argtypes, restype) in FUNCTIONS.items():
        try:
            function = getattr(lib, name)
        except AttributeError:
            raise EnvironmentFailure(
                f"{lib._name} has no {name}: it is not llama-eagle's build of this version. {build.REBUILD}"
            ) from None
        function.argtypes = argtypes
        function.restype = restype
    _check_library(lib)
    _check_dependencies(lib)
    log.install()
    _load_backends(lib)
    return lib


def _check_environment() -> None:
    """Check environment variables that the library would misread. Raises `EnvironmentFailure`."""
    if "EAGLE_EXACT" in os.environ:
        raise EnvironmentFailure("the variable EAGLE_EXACT is now called LLAMA_EAGLE_EXACT. Rename it.")
    mode = os.environ.get("LLAMA_EAGLE_EXACT", "")
    if mode not in ("", "off", "0", "on", "1", "strict"):
        raise EnvironmentFailure(f"LLAMA_EAGLE_EXACT={mode} is unknown: use off, on or strict.")


def last_error() -> str:
    """Return the last error on this thread, "" if there was none."""
    return str(library().eagle_last_error().decode("utf-8", "replace"))


def check(status: int, call: str) -> None:
    """Raise the error for a non-zero status of the C function `call`."""
    if status == OK:
        return
    text = last_error() or f"status {status}"
    if status == ERR_INCOMPATIBLE:
        raise IncompatibleModels(text)
    if status == ERR_NUMBERS:
        raise InputError(f"{text}. `llama-eagle check FILE --measure` names damaged tensors.")
    if status == ERR_MEMORY:
        raise NativeError(f"{text}. Use a smaller n_ctx, cache type or model, or free memory.", code=status, call=call)
    raise NativeError(f"{call}: {text}", code=status, call=call)


def as_tokens(ids: Sequence[int]) -> Any:
    """Return an array of `llama_token`."""
    return (c_int32 * len(ids))(*ids)


def lost_server(ctx: Any) -> str:
    """Return HOST:PORT of a lost RPC server that a context uses, "" if none is lost."""
    return str(library().eagle_lost_server(ctx).decode())


def sample(ctx: Any, sampler: Any, row: int) -> int:
    """Return the token that a llama_sampler chooses from output row `row` of the last decode (-1: the last row).

    Raises the errors of Python code inside the sampler.
    """
    token = c_int32()
    status = library().eagle_sample(ctx, sampler, row, ctypes.byref(token))
    callbacks.raise_noted()
    check(status, "eagle_sample")
    return token.value


def require_numbers(ctx: Any, row: int) -> None:
    """Raise `InputError` if a row's logits are NaN, infinite or all equal; `sample` does so itself."""
    check(library().eagle_require_numbers(ctx, row), "eagle_require_numbers")


def apply_sampler(sampler: Any, candidates: Any) -> None:
    """Apply a llama_sampler to a llama_token_data_array, as `sample` does before it chooses."""
    status = library().eagle_sampler_apply(sampler, ctypes.byref(candidates))
    callbacks.raise_noted()
    check(status, "eagle_sampler_apply")


def accept(sampler: Any, token: int) -> None:
    """Accept a token in a llama_sampler."""
    check(library().eagle_sampler_accept(sampler, token), "eagle_sampler_accept")


def enable_sigint() -> None:
    """Let Ctrl-C interrupt evaluation on this thread if Python would raise KeyboardInterrupt here."""
    is_ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    library().eagle_set_interruptible(is_ours and threading.current_thread() is threading.main_thread())


def backend_function(registry: str, name: str, prototype: Any) -> Any:
    """Return a function of a ggml backend ("CPU", "RPC") by name. prototype: a `ctypes.CFUNCTYPE`."""
    functions = ggml()
    find = functions.ggml_backend_reg_get_proc_address
    find.argtypes, find.restype = [c_void_p, c_char_p], c_void_p
    return prototype(find(functions.ggml_backend_reg_by_name(registry.encode()), name.encode()))


def ggml() -> Any:
    """Return the functions of ggml's libraries."""
    return _ggml(library())


@cache
def _ggml(lib: ctypes.CDLL) -> Any:
    """Return libllama's handle, which also finds the symbols of linked libraries, except on Windows."""
    if sys.platform != "win32":
        return lib
    return _Joined([ctypes.CDLL(str(library_folder() / name)) for name in ("ggml.dll", "ggml-base.dll")])


class _Joined:
    """The functions of several libraries."""

    def __init__(self, libraries: Sequence[ctypes.CDLL]) -> None:
        self._libraries = libraries

    def __getattr__(self, name: str) -> Any:
        found = next((library for library in self._libraries if hasattr(library, name)), None)
        if found is None:
            raise AttributeError(name)
        setattr(self, name, getattr(found, name))
        return getattr(found, name)


def check_grammar(vocab: Any, text: str, root: str = "root") -> None:
    """Raise `UsageError` for GBNF that llama.cpp cannot parse, or that exceeds its limits."""
    if library().eagle_grammar_check(vocab, text.encode(), root.encode()) != OK:
        reason = " ".join(last_error().split())  # it may quote lines of the grammar
        raise UsageError(f"{reason}. Correct it: llama.cpp's grammars/README.md describes the syntax.")


def _llama_cpp() -> Any:
    """Import llama_cpp.llama_cpp with our library, and return it."""
    build.redirect_llama_cpp()
    try:
        from llama_eagle.native import llama_cpp as module
    except (ImportError, RuntimeError, OSError) as error:
        raise EnvironmentFailure(
            f"llama-cpp-python could not load {library_folder()}: {error}. {build.REBUILD}"
        ) from error
    return module


def _check_library(lib: ctypes.CDLL) -> None:
    """Check that the library is the one that build-info.json describes. Raises `EnvironmentFailure`."""
    info = build.build_info()
    found = (
        lib.eagle_abi_version(),
        lib.eagle_patch_hash().decode(),
        lib.eagle_upstream_commit().decode(),
    )
    expected = (info.abi_version, info.patch_hash, info.upstream_commit)
    if found != expected:
        raise EnvironmentFailure(
            f"{lib._name} reports {found} as ABI version, patch hash and upstream commit, {build.BUILD_INFO} lists "
            f"{expected}. {build.REBUILD}"
        )


class _Place(ctypes.Structure):
    """Dl_info of dladdr: the file that contains an address."""

    _fields_ = (("file", c_char_p), ("base", c_void_p), ("name", c_char_p), ("address", c_void_p))


def _check_dependencies(lib: ctypes.CDLL) -> None:
    """Check that our libllama calls our ggml. Raises `EnvironmentFailure`.

    The loader takes a loaded library of the same name, or one in LD_LIBRARY_PATH. Products would not be exact then.
    """
    process = ctypes.CDLL(None) if sys.platform != "win32" else None
    if process is None or not hasattr(process, "dladdr"):
        return
    for name in ("ggml_time_us", "ggml_backend_reg_by_name"):  # of libggml-base, of libggml
        place = _Place()
        process.dladdr(ctypes.cast(getattr(lib, name), c_void_p), ctypes.byref(place))
        file = Path(os.fsdecode(place.file or b""))
        if library_folder() not in (file.parent.resolve(), file.resolve().parent):  # our files may be links
            raise EnvironmentFailure(
                f"{file} is loaded in place of {library_folder() / file.name}. Unset LD_LIBRARY_PATH, or import "
                "llama_eagle before the package that loads it."
            )


def _load_backends(lib: ctypes.CDLL) -> None:
    """Load the best CPU library for this machine, if the package contains several."""
    lib.llama_backend_init()
    find = _ggml(lib).ggml_backend_reg_by_name
    find.restype = c_void_p
    if not find(b"CPU"):
        raise EnvironmentFailure(
            f"{library_folder()} has no CPU library that runs on this machine. Install llama-eagle again, or build it "
            "here: pip install . in the source tree."
        )
