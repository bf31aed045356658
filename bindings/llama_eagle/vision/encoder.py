"""A vision encoder (mmproj): llama.cpp's libmtmd, which turns pixels into rows."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from llama_eagle.errors import IncompatibleModels, InputError, NativeError
from llama_eagle.gguf.header import Header, read_model
from llama_eagle.gguf.validate import check_general
from llama_eagle.gguf.validate.vision import check_encoder
from llama_eagle.native import log
from llama_eagle.native.calls import library
from llama_eagle.native.closing import Closing
from llama_eagle.vision.pictures import Picture
from llama_eagle.vision.rows import EmbeddedRows, image_positions, n_positions

ENCODERS = ("qwen3vl_merger",)  # Qwen3-VL, Qwen3-VL-MoE, Qwen3.5 and Qwen3.5-MoE
MARKER = "<__media__>"  # llama.cpp's placeholder of an image in a prompt


@dataclass(frozen=True)
class Frame:
    """The height x width rows of a picture, and the tokens before and after it."""

    before: tuple[int, ...]
    height: int
    width: int
    after: tuple[int, ...]

    @property
    def n_rows(self) -> int:
        return self.height * self.width


def require_clip(path: Path) -> Header:
    """Check an encoder file, and return its header. Those of `ENCODERS` are checked completely. Raises `InputError`."""
    header, _ = read_model(path)
    kind = _kind(header)
    if header.architecture != "clip" or kind is None:
        raise InputError(f"{path} is not a vision encoder (mmproj). Convert the target's with `convert --mmproj`.")
    for fault in check_encoder(header) if kind in ENCODERS else check_general(header):
        raise InputError(f"{path}: {fault}. Convert or download it again.")
    return header


def _kind(header: Header) -> str | None:
    return header.keys.get("clip.projector_type") or header.keys.get("clip.vision.projector_type")


def require_encoder(path: Path, target: Header, draft: Header | None = None) -> None:
    """Check that the file is an encoder of this target, and that the draft can use its rows too.

    Raises `InputError` or `IncompatibleModels`.
    """
    header = require_clip(path)
    kind = _kind(header)
    if kind not in ENCODERS:
        raise IncompatibleModels(
            f"{path} is an encoder of kind {kind}; only {', '.join(ENCODERS)} is supported (Qwen3-VL and Qwen3.5). Use "
            "llama.cpp's server for others."
        )
    n_deepstack = sum(map(bool, header.value("clip.vision.is_deepstack_layers", [])))
    found = (int(header.keys.get("clip.vision.projection_dim", 0)), n_deepstack)
    wanted = (int(target.arch_key("embedding_length")), int(target.arch_key("n_deepstack_layers", 0)))
    if found != wanted:
        raise IncompatibleModels(
            f"{path} has rows of {found[0]} numbers with {found[1]} deepstack layers, {target.path} reads {wanted[0]} "
            f"with {wanted[1]}: it belongs to another model. Use the mmproj of this target."
        )
    width = wanted[0] if draft is None else int(draft.arch_key("embedding_length", wanted[0]))
    if draft is not None and width != wanted[0]:
        raise IncompatibleModels(
            f"{draft.path} has hidden size {width}, the target {wanted[0]}, so the draft cannot read rows of images. "
            "Leave the draft out, or the images."
        )


class VisionEncoder(Closing):
    """An encoder in memory, bound to a loaded target (a llama_model pointer) that must outlive it.

    n_threads: number of CPU threads. Raises `NativeError` if libmtmd cannot load it.
    """

    def __init__(self, path: Path, model: Any, *, n_threads: int, use_gpu: bool = False) -> None:
        library()
        import llama_cpp.mtmd_cpp as mtmd

        self._api: Any = mtmd
        self._width = int(_llama_cpp().llama_model_n_embd_inp(model))
        log.clear()
        mtmd.mtmd_helper_log_set(log.callback(), ctypes.c_void_p(0))
        params = mtmd.mtmd_context_params_default()
        params.use_gpu, params.n_threads = use_gpu, n_threads
        params.print_timings = params.warmup = False
        self._ctx = mtmd.mtmd_init_from_file(os.fsencode(path), model, params)
        if not self._ctx:
            reason = log.first_error() or "no reason given"
            raise NativeError(f"{path}: {reason}. Convert it again.", code=1, call="mtmd_init_from_file")
        if not (mtmd.mtmd_support_vision(self._ctx) and mtmd.mtmd_decode_use_mrope(self._ctx)):
            self.close()
            raise IncompatibleModels(f"{path} and this target do not read images by M-RoPE. Use the target's mmproj.")

    def frame(self, picture: Picture) -> Frame:
        """Return the frame of a picture in a text, from its size only."""
        with self._chunks(picture, None) as chunks:
            before: list[int] = []
            after: list[int] = []
            found: tuple[int, int] | None = None
            for chunk in chunks:
                if self._is_image(chunk):
                    found = self._grid(chunk)
                else:
                    (before if found is None else after).extend(self._tokens(chunk))
        assert found is not None
        return Frame(tuple(before), *found, tuple(after))

    def encode(self, picture: Picture) -> EmbeddedRows:
        """Return the picture's rows, valid until the next call."""
        with self._chunks(picture, picture.pixels()) as chunks:
            (chunk,) = filter(self._is_image, chunks)
            status = self._api.mtmd_encode_chunk(self._ctx, chunk)
            if status:
                raise NativeError(
                    f"{picture.name} could not be encoded: {log.last_error() or status}",
                    code=status,
                    call="mtmd_encode_chunk",
                )
            height, width = self._grid(chunk)
        positions = np.ascontiguousarray(image_positions(height, width))
        values = self._api.mtmd_get_output_embd(self._ctx)
        return EmbeddedRows(values, height * width, self._width, positions, n_positions(height, width))

    def close(self) -> None:
        if self._ctx:
            self._api.mtmd_free(self._ctx)
            self._ctx = None

    @contextmanager
    def _chunks(self, picture: Picture, pixels: bytes | None) -> Iterator[list[Any]]:
        """Yield the chunks of a text that is one picture. Without pixels, libmtmd only counts."""
        api = self._api
        array = None if pixels is None else (ctypes.c_uint8 * len(pixels)).from_buffer_copy(pixels)
        bitmap = api.mtmd_bitmap_init(picture.width, picture.height, array)
        chunks = api.mtmd_input_chunks_init()
        try:
            marker = api.mtmd_default_marker()
            text = api.mtmd_input_text(marker, len(marker), False, True)
            bitmaps = (api.mtmd_bitmap_p_ctypes * 1)(bitmap)
            log.clear()
            if status := api.mtmd_tokenize(self._ctx, chunks, ctypes.byref(text), bitmaps, 1):
                raise InputError(
                    f"{picture.name}, {picture.width} x {picture.height} pixels, cannot be prepared: "
                    f"{log.first_error() or status}. Use another size."
                )
            yield [api.mtmd_input_chunks_get(chunks, i) for i in range(api.mtmd_input_chunks_size(chunks))]
        finally:
            api.mtmd_input_chunks_free(chunks)
            api.mtmd_bitmap_free(bitmap)

    def _is_image(self, chunk: Any) -> bool:
        return bool(self._api.mtmd_input_chunk_get_type(chunk) == self._api.MTMD_INPUT_CHUNK_TYPE_IMAGE)

    def _tokens(self, chunk: Any) -> list[int]:
        n = ctypes.c_size_t()
        tokens = self._api.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(n))
        return list(tokens[: n.value])

    def _grid(self, chunk: Any) -> tuple[int, int]:
        """Return height and width in rows, from the position of the last row."""
        api = self._api
        tokens = api.mtmd_input_chunk_get_tokens_image(chunk)
        n = int(api.mtmd_input_chunk_get_n_tokens(chunk))
        last = api.mtmd_image_tokens_get_decoder_pos(tokens, 0, n - 1)
        height, width = int(last.y) + 1, int(last.x) + 1
        assert height * width == n and n_positions(height, width) == api.mtmd_input_chunk_get_n_pos(chunk)
        return height, width


def _llama_cpp() -> Any:
    from llama_eagle.native import llama_cpp

    return llama_cpp
