"""Loading of targets and drafts, and creation of their contexts. Every file is checked before native code reads it."""

from __future__ import annotations

import ctypes
import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from llama_eagle.errors import EagleError, EnvironmentFailure, IncompatibleModels, InputError
from llama_eagle.gguf.header import Header, read_model
from llama_eagle.gguf.pairing import require_models, without_text
from llama_eagle.gguf.rotation import beyond_training, trained_context
from llama_eagle.gguf.size import DraftContext, require_memory
from llama_eagle.gguf.validate.adapters import require_adapter
from llama_eagle.native import callbacks, log, rpc
from llama_eagle.native.calls import library
from llama_eagle.native.closing import Closing
from llama_eagle.native.processor.threads import n_threads
from llama_eagle.sessions.devices import draft_options, placement, require_servers, set_devices
from llama_eagle.sessions.options import (
    CACHE_TYPES,
    FLASH_ATTENTION,
    MTP,
    ContextOptions,
    LoadOptions,
    Lora,
    PairOptions,
)


class Model(Closing):
    """A loaded GGUF. Free it with `close()`, after the contexts and sessions made from it."""

    def __init__(self, file: Path | str | Header, options: LoadOptions = LoadOptions()) -> None:
        self.header = file if isinstance(file, Header) else read_model(file)[0]
        self.path = self.header.path
        self.n_gpu_layers = options.n_gpu_layers
        self.lora = options.lora
        self._adapter: Any = None  # the model frees it
        self.handle: Any = None
        self._load(options)

    @classmethod
    def target(cls, path: Path | str, options: LoadOptions = LoadOptions()) -> Model:
        """Load a file that must be a complete model. Raises `InputError` before loading if it is not."""
        return cls(require_models(path)[0], options)

    @property
    def n_ctx_train(self) -> int:
        return int(self._api.llama_model_n_ctx_train(self.handle))

    @property
    def n_vocab(self) -> int:
        return int(self._api.llama_vocab_n_tokens(self.vocab))

    @property
    def vocab(self) -> Any:
        return self._api.llama_model_get_vocab(self.handle)

    @property
    def has_recurrent_state(self) -> bool:
        return bool(self._api.llama_model_is_recurrent(self.handle) or self._api.llama_model_is_hybrid(self.handle))

    def close(self) -> None:
        if self.handle:
            self._api.llama_model_free(self.handle)
            self.handle = None

    def _load(self, options: LoadOptions) -> None:
        library()
        from llama_eagle.native import llama_cpp

        self._api: Any = llama_cpp
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = 0x7FFFFFFF if options.n_gpu_layers < 0 else options.n_gpu_layers
        params.main_gpu, params.split_mode = options.main_gpu, options.split_mode
        set_devices(params, options)
        params.load_mtp, params.no_alloc, params.vocab_only = options.load_mtp, options.no_alloc, options.vocab_only
        params.load_mode = _load_mode(llama_cpp, options)
        params.progress_callback = progress_callback(llama_cpp, options.on_progress)
        log.clear()
        try:
            with callbacks.held():
                self.handle = llama_cpp.llama_model_load_from_file(os.fsencode(self.path), params)
            callbacks.raise_noted()
        except BaseException:
            self.close()
            raise
        if not self.handle:
            rpc.require_servers_alive()
            raise InputError(
                f"{self.path}: llama.cpp could not load it: {log.first_error() or 'no reason given'}. "
                "See its log (verbose=True); convert the model again if it is an old file."
            )
        if self.lora is not None and not options.no_alloc:
            try:
                self._adapter = load_adapter(self.handle, self.lora.path)
            except BaseException:
                self.close()
                raise

    def adapt(self, context: Any) -> None:
        """Apply the model's adapter to a context of it. Raises `InputError`."""
        if self.lora is not None and self._adapter is not None:
            set_adapter(context, self._adapter, self.lora)


class Context(Closing):
    """A target's context. Free it with `close()`, before its model.

    draft: its memory is part of the estimate, which is checked first. Raises `EnvironmentFailure` if memory is short,
    `IncompatibleModels` if the recurrent state does not support the rollback depth.
    """

    def __init__(self, model: Model, options: ContextOptions, draft: DraftContext | None = None) -> None:
        from llama_eagle.native import llama_cpp

        self._api: Any = llama_cpp
        self.model = model
        params = _context_params(llama_cpp, options)
        if model.n_gpu_layers == 0:
            require_memory(model.header, params.n_ctx, params.type_k, params.type_v, draft)
        log.clear()
        self.handle: Any = llama_cpp.llama_init_from_model(model.handle, params)
        callbacks.raise_noted()
        if not self.handle:
            rpc.require_servers_alive()
            raise EnvironmentFailure(
                f"{model.path}: no context of {options.n_ctx} tokens: {log.first_error() or 'no reason given'}. "
                "Use a smaller n_ctx or cache type, or free memory."
            )
        self.n_ctx = options.n_ctx  # llama.cpp rounds its n_ctx up, but the requested size is the limit
        try:
            check_rollback(self.handle, model.has_recurrent_state, options.n_rs_seq)
            model.adapt(self.handle)
        except EagleError:
            self.close()
            raise
        if problem := beyond_training(model.header, options.n_ctx):
            warnings.warn(problem, stacklevel=3)

    @property
    def model_path(self) -> Path:
        """The target's file, or its first part."""
        return self.model.path

    @property
    def n_batch(self) -> int:
        return int(self._api.llama_n_batch(self.handle))

    @property
    def n_trained(self) -> int:
        """Longest context that the model was trained with, in tokens; 0 if unknown."""
        return trained_context(self.model.header)

    def close(self) -> None:
        if self.handle:
            self._api.llama_free(self.handle)
            self.handle = None


class ModelPair(Closing):
    """A target and, optionally, its draft. Use it as a context manager, or call `close()`.

    Raises `InputError` or `IncompatibleModels` before loading if the files are invalid or do not fit.
    """

    def __init__(self, options: PairOptions) -> None:
        own_head = options.draft == MTP
        target = read_model(options.target)[1]
        header, draft = require_models(target, target if own_head else options.draft)
        if options.load.lora is not None:
            require_adapter(options.load.lora.path, target)
        if problem := without_text(header):
            warnings.warn(problem, stacklevel=2)
        require_servers(options.load, target, None if own_head else draft)
        n_bytes, n_more = sum(file.file_size for file in target), 0 if own_head or draft is None else draft.file_size
        share, on_progress = n_bytes / (n_bytes + n_more), options.load.on_progress
        load = replace(options.load, on_progress=_part(on_progress, 0.0, share))
        self.target = Model(header, replace(load, load_mtp=own_head))
        self.draft: Model | None = self.target if own_head else None
        if draft is not None and not own_head:
            try:
                load = replace(load, on_progress=_part(on_progress, share, 1.0))
                self.draft = Model(draft, draft_options(self.target.handle, load, options.draft_gpu_layers))
            except BaseException:
                self.target.close()
                raise

    @property
    def placement(self) -> list[dict[str, Any]]:
        """Placement of the target's layers, as `devices.placement` returns it."""
        return placement(self.target.handle)

    def close(self) -> None:
        if self.draft is not None:
            self.draft.close()
        self.target.close()


def _part(on_progress: Callable[[float], None] | None, begin: float, end: float) -> Callable[[float], None] | None:
    """Return a receiver of the progress of a part of the work, from the fraction `begin` to `end` of all."""
    return on_progress and (lambda fraction: on_progress(begin + fraction * (end - begin)))


def load_adapter(model: Any, path: Path) -> Any:
    """Load a LoRA adapter, which was checked, and return llama.cpp's pointer. Raises `InputError`."""
    from llama_eagle.native import llama_cpp

    log.clear()
    adapter = llama_cpp.llama_adapter_lora_init(model, os.fsencode(path))
    if not adapter:  # a null pointer is not None
        raise InputError(f"{path}: {log.first_error() or 'no reason given'}. Use an adapter of this model.")
    return adapter


def set_adapter(ctx: Any, adapter: Any, lora: Lora) -> None:
    """Apply a loaded adapter to a context, from its next token on. Raises `InputError`."""
    from llama_eagle.native import llama_cpp

    log.clear()
    adapters = (llama_cpp.llama_adapter_lora_p_ctypes * 1)(adapter)
    if llama_cpp.llama_set_adapters_lora(ctx, adapters, 1, (ctypes.c_float * 1)(lora.scale)):
        raise InputError(f"{lora.path}: {log.first_error() or 'it cannot be applied'}. Use an adapter of this model.")


def check_rollback(ctx: Any, recurrent: bool, n_rs_seq: int) -> None:
    """Check the rollback depth: llama.cpp silently provides less than requested, which would break every round."""
    from llama_eagle.native import llama_cpp

    found = int(llama_cpp.llama_n_rs_seq(ctx))
    if recurrent and found < n_rs_seq:
        raise IncompatibleModels(
            f"the recurrent state can be rolled back by {found} tokens, not by {n_rs_seq}: this build has no rollback "
            "for this architecture. Generate without a draft (draft=none)."
        )


def _load_mode(api: Any, options: LoadOptions) -> int:
    modes = {
        (False, False): api.LLAMA_LOAD_MODE_NONE,
        (True, False): api.LLAMA_LOAD_MODE_MMAP,
        (False, True): api.LLAMA_LOAD_MODE_MLOCK,
        (True, True): api.LLAMA_LOAD_MODE_MMAP_MLOCK,
    }
    return int(modes[options.use_mmap and not options.no_alloc, options.use_mlock])


def progress_callback(api: Any, on_progress: Callable[[float], None] | None) -> Any:
    """Return a callback that stops llama.cpp (returns False) at Ctrl-C and when `on_progress` raises."""

    def call(fraction: float, _user_data: Any) -> bool:
        try:
            if on_progress is not None:
                on_progress(fraction)
        except BaseException as error:
            callbacks.note(error)
            return False
        return not callbacks.is_interrupted()

    return api.llama_progress_callback(call)


def _context_params(api: Any, options: ContextOptions) -> Any:
    params = api.llama_context_default_params()
    params.n_ctx = max(options.n_ctx, options.n_rs_seq + 2)  # a batch must fit into the context
    params.n_batch = min(options.n_batch, params.n_ctx)
    params.n_ubatch = min(options.n_ubatch, params.n_batch)
    params.n_rs_seq = options.n_rs_seq
    params.n_threads = params.n_threads_batch = n_threads(options.n_threads)
    params.flash_attn_type = FLASH_ATTENTION[options.flash_attn]
    params.type_k, params.type_v = CACHE_TYPES[options.type_k], CACHE_TYPES[options.type_v]
    params.no_perf = True
    return params
