"""The saved state of an `EagleLlama`: the parent's, plus the state of the draft."""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from llama_cpp import LlamaState
from numpy.typing import NDArray

from llama_eagle.errors import IncompatibleModels, InputError, NativeError, UsageError
from llama_eagle.native import calls, log
from llama_eagle.sessions.text import require_ids
from llama_eagle.sessions.text_memory import TextMemory
from llama_eagle.vision.in_text import FIRST_ID, Frame


class EagleLlamaState(LlamaState):
    """The parent's saved state, the state of the draft, and the pictures of the text by id.

    It has a checksum, because llama.cpp aborts on some damage.
    """

    def __init__(
        self,
        state: LlamaState,
        draft_state: bytes,
        pictures: dict[int, tuple[str, Frame]],
        settings: dict[str, str],
    ) -> None:
        super().__init__(**vars(state))
        self.draft_state = draft_state
        self.pictures = pictures
        self.settings = settings
        self.checksum = self._checksum()

    def require_whole(self) -> None:
        """Raise `NativeError` (a RuntimeError, as in the parent) for a damaged state."""
        if self.checksum != self._checksum():
            raise _failed("is damaged: its checksum differs")

    def _checksum(self) -> int:
        numbers = f"{self.n_tokens} {self.llama_state_size}".encode()
        parts = (numbers, self.input_ids.tobytes(), self.llama_state, self.draft_state)
        checksum = 0
        for part in parts:
            checksum = zlib.crc32(part, checksum)
        return checksum


# Fields of llama.cpp's context parameters that the rows of a memory depend on.
OF_ROWS = (
    "type_k", "type_v", "rope_scaling_type", "rope_freq_base", "rope_freq_scale", "yarn_ext_factor", "yarn_attn_factor",
    "yarn_beta_fast", "yarn_beta_slow", "yarn_orig_ctx",
)  # fmt: skip


def file_mark(path: Path) -> str:
    """Return the name of a file, its size and a checksum of parts of it: other weights differ everywhere."""
    size, n_parts, part = path.stat().st_size, 16, 4096
    checksum = 0
    with path.open("rb") as file:
        for i in range(n_parts):
            file.seek(max(size - part, 0) // (n_parts - 1) * i)
            checksum = zlib.crc32(file.read(part), checksum)
    return f"{path.name} of {size} bytes, checksum {checksum:x}"


def row_settings(llm: Any) -> dict[str, str]:
    """Return what the rows of an instance's memory depend on, apart from the tokens.

    The slot files of `serve` have the same list (native/src/llama-common/eagle_row_settings.h).
    """
    size = llama_cpp.llama_model_size(llm._model.model)
    found = {"model": f"{file_mark(Path(llm.model_path))} and {size} bytes of weights"}
    found |= {name: str(getattr(llm.context_params, name)) for name in OF_ROWS}
    found |= {f"kv_overrides {key}": str(value) for key, value in (llm.kv_overrides or {}).items()}
    if llm.lora_path:
        found["lora"] = f"{file_mark(Path(llm.lora_path))} at scale {llm.lora_scale}"
    if llm._options.mmproj_path is not None:
        found["mmproj"] = file_mark(Path(llm._options.mmproj_path))
    return found


def capture_state(memory: TextMemory, seed: int, settings: dict[str, str]) -> EagleLlamaState:
    """Return the text and both memories; logits only if `memory` keeps those of every token."""
    ctx = memory.session.ctx
    memory.restore()
    size = llama_cpp.llama_state_get_size(ctx)
    buffer = (ctypes.c_uint8 * int(size))()
    written = int(llama_cpp.llama_state_get_data(ctx, buffer, size))
    rows = np.empty((0, memory.n_vocab), np.single) if memory.rows is None else memory.rows[: memory.n_tokens].copy()
    state = LlamaState(
        input_ids=memory.known.copy(),
        scores=rows,
        n_tokens=int(memory.n_tokens),
        llama_state=bytes(memoryview(buffer)[:written]),
        llama_state_size=written,
        seed=seed,
    )
    pictures = memory.pictures.describe(memory.known) if memory.pictures is not None else {}
    return EagleLlamaState(state, memory.session.save_state(), pictures, settings)


# Fields of a saved state, with a check of their values.
FIELDS: dict[str, Callable[[Any], bool]] = {
    "input_ids": lambda value: isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind == "i",
    "scores": lambda value: isinstance(value, np.ndarray),
    "n_tokens": lambda value: isinstance(value, int) and value >= 0,
    "llama_state": lambda value: isinstance(value, bytes),
    "llama_state_size": lambda value: isinstance(value, int) and value >= 0,
    "seed": lambda value: isinstance(value, int),
}
OWN_FIELDS: dict[str, Callable[[Any], bool]] = {
    "draft_state": lambda value: isinstance(value, bytes),
    "pictures": lambda value: isinstance(value, dict),
    "settings": lambda value: isinstance(value, dict),
    "checksum": lambda value: isinstance(value, int),
}


def _require_state(state: Any) -> None:
    """Raise `UsageError` for an object that is not a saved state, or whose parts do not match."""
    if not isinstance(state, LlamaState):
        raise UsageError(f"state={state!r:.60} must be a state from save_state(). Correct it.")
    fields = {**FIELDS, **(OWN_FIELDS if isinstance(state, EagleLlamaState) else {})}
    for name, fits in fields.items():
        if not fits(value := getattr(state, name, None)):
            raise UsageError(f"the saved state has {name}={value!r:.60}. Use a state from save_state(), unchanged.")


def _failed(why: str) -> NativeError:
    text = f"the saved state {why}. Evaluate the text again."
    return NativeError(text, code=calls.ERR_ARGUMENT, call="llama_state_set_data")


def _require_settings(state: EagleLlamaState, settings: dict[str, str]) -> None:
    for name in sorted(state.settings.keys() | settings.keys()):
        saved, own = state.settings.get(name, "none"), settings.get(name, "none")
        if saved != own:
            raise _failed(f"does not fit this model and context: it has {name} {saved}, and this one {own}")


def restore_state(memory: TextMemory, state: LlamaState, settings: dict[str, str]) -> None:
    """Continue from a saved state. With a state of the parent's class, the draft has no state for the text.

    Raises `UsageError` for an object that is not a saved state, `NativeError` for a damaged state or one of another
    model or context.
    """
    _require_state(state)
    if isinstance(state, EagleLlamaState):
        state.require_whole()
        _require_settings(state, settings)
    if state.llama_state_size > len(state.llama_state) or state.n_tokens > len(state.input_ids):
        raise _failed("is damaged: it is too short")
    if state.n_tokens > memory.session.n_ctx:
        raise _failed(f"has {state.n_tokens} tokens, this context has room for {memory.session.n_ctx}")
    text = _text_of(memory, state)
    memory.reset()
    session = memory.session
    buffer = (ctypes.c_uint8 * state.llama_state_size).from_buffer_copy(state.llama_state)
    log.clear()
    if llama_cpp.llama_state_set_data(session.ctx, buffer, state.llama_state_size) != state.llama_state_size:
        memory.reset()
        raise _failed(f"does not fit this model and context: {log.first_error() or 'no reason given'}")
    if server := calls.lost_server(session.ctx):  # llama.cpp reports success
        raise _failed(f"was not loaded: the RPC server {server} is gone")
    draft_state = state.draft_state if isinstance(state, EagleLlamaState) else b""
    try:
        session.load_state(draft_state or None, state.n_tokens)
    except IncompatibleModels:  # state of another draft, or of another memory size: the draft starts over
        if (text <= FIRST_ID).any():
            memory.reset()
            raise
        session.load_state(None, state.n_tokens)
    except BaseException:
        memory.reset()
        raise
    memory.tokens[: state.n_tokens] = text
    memory.n_tokens = state.n_tokens
    if known := [int(token) for token in memory.known if token >= 0]:
        session.note_tokens(known)
    if memory.rows is not None:
        memory.rows[: state.n_tokens] = np.nan  # a state of an instance without `logits_all` has none
        memory.rows[: len(state.scores)] = state.scores


def _text_of(memory: TextMemory, state: LlamaState) -> NDArray[np.intc]:
    """Return the saved tokens, with pictures by their ids here.

    Raises `InputError` without an encoder for its pictures.
    """
    text = np.asarray(state.input_ids[: state.n_tokens], dtype=np.intc)
    require_ids(text[text >= 0], memory.n_vocab)
    pictures = state.pictures if isinstance(state, EagleLlamaState) else {}
    if memory.pictures is not None:
        return memory.pictures.adopt(text, pictures)
    if pictures:
        raise InputError("the saved state contains images. Load the model with its mmproj_path.")
    return text
