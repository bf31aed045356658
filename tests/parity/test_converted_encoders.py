"""Encoders converted by llama.cpp's converter: libmtmd's rows of a picture equal those of transformers."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixtures.converter import imported_converter, run_fork
from fixtures.encoders import ENCODERS, PATCH, SIDE, make_with_encoder
from llama_eagle.convert.targets import TargetOptions, convert_target, convert_vision
from llama_eagle.convert.upstream import check, convert
from llama_eagle.errors import ConversionError
from llama_eagle.native.calls import library

pytestmark = [pytest.mark.slow, pytest.mark.native]

SIDES = {"qwen25vl": 168}  # several windows of attention, some of them cut
ROUNDED = 2e-3  # largest difference, relative to the largest value: llama.cpp reads GELU from a table


@pytest.fixture(scope="module", autouse=True)
def imported() -> Iterator[None]:
    with imported_converter():
        yield


@pytest.mark.parametrize("family", ENCODERS)
def test_rows_of_a_picture(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (convert, check):
        monkeypatch.setattr(module, "run_child", run_fork)
    model = make_with_encoder(family, tmp_path / "model")
    text, encoder = tmp_path / "text{ftype}.gguf", tmp_path / "encoder{ftype}.gguf"  # braces are no template
    assert convert_vision(tmp_path / "model", encoder, TargetOptions(outtype="f32")).arch == "clip"
    options = TargetOptions(outtype="f32", encoder=encoder)
    assert convert_target(tmp_path / "model", text, options).way == "llama.cpp"
    side = SIDES.get(family, SIDE)
    pixels = np.random.default_rng(0).integers(0, 256, (side, side, 3), np.uint8)
    expected = rows_of_transformers(family, model, pixels)
    found = rows_of_libmtmd(text, encoder, pixels)
    nearest = [np.abs(found - row).max(1).min() for row in expected]  # marks of lines are among the engine's rows
    assert len(found) >= len(expected) > 1
    assert max(nearest) < ROUNDED * np.abs(expected).max()


def test_an_encoder_that_does_not_run_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (convert, check):
        monkeypatch.setattr(module, "run_child", run_fork)
    make_with_encoder("qwen25vl", tmp_path / "model")
    others = tmp_path / "others"
    make_with_encoder("gemma3", others)
    encoder = tmp_path / "encoder.gguf"
    convert_vision(others, encoder, TargetOptions(outtype="f32"))
    damaged = encoder.read_bytes().replace(b"mm.input_projection.weight", b"mm.input_projection.weighs")
    encoder.write_bytes(damaged)
    with pytest.raises(ConversionError, match=r"wrote an encoder that cannot run: .*mm\.input_projection\.weight"):
        convert_target(tmp_path / "model", tmp_path / "text.gguf", TargetOptions(outtype="f32", encoder=encoder))
    assert not list(tmp_path.glob("*text*"))


def rows_of_transformers(family: str, model: Any, pixels: np.ndarray) -> np.ndarray:
    height = len(pixels)
    x = torch.from_numpy(pixels.astype(np.float32) / 255 * 2 - 1).permute(2, 0, 1)[None]
    side = height // PATCH
    with torch.no_grad():
        if family.startswith("qwen"):  # patches of two equal frames, in groups of 2 x 2
            parts = x.repeat(2, 1, 1, 1).reshape(1, 2, 3, side // 2, 2, PATCH, side // 2, 2, PATCH)
            patches = parts.permute(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(side * side, -1)
            found = model.model.visual(patches, grid_thw=torch.tensor([[1, side, side]]))
        elif family in ("idefics3", "smolvlm"):
            found = model.model.get_image_features(x[None], None)
        elif family in ("pixtral", "mistral3"):
            found = model.model.get_image_features(x, image_sizes=torch.tensor([[height, height]]))
        else:
            found = model.model.get_image_features(x)
    found = getattr(found, "pooler_output", found)
    while not torch.is_tensor(found):
        found = found[0]
    return np.asarray(found.reshape(-1, found.shape[-1]))


def rows_of_libmtmd(text: Path, encoder: Path, pixels: np.ndarray) -> np.ndarray:
    """Return the rows of a picture's first part."""
    library()
    import llama_cpp as api
    import llama_cpp.mtmd_cpp as mtmd

    model = api.llama_model_load_from_file(os.fsencode(text), api.llama_model_default_params())
    params = mtmd.mtmd_context_params_default()
    params.use_gpu = params.print_timings = params.warmup = False
    context = mtmd.mtmd_init_from_file(os.fsencode(encoder), model, params)
    assert context
    array = (ctypes.c_uint8 * pixels.size).from_buffer_copy(pixels.tobytes())
    bitmap = mtmd.mtmd_bitmap_init(pixels.shape[1], pixels.shape[0], array)
    chunks, mark = mtmd.mtmd_input_chunks_init(), mtmd.mtmd_default_marker()
    prompt = mtmd.mtmd_input_text(mark, len(mark), False, True)
    assert mtmd.mtmd_tokenize(context, chunks, ctypes.byref(prompt), (mtmd.mtmd_bitmap_p_ctypes * 1)(bitmap), 1) == 0
    parts = [mtmd.mtmd_input_chunks_get(chunks, i) for i in range(mtmd.mtmd_input_chunks_size(chunks))]
    picture = next(p for p in parts if mtmd.mtmd_input_chunk_get_type(p) == mtmd.MTMD_INPUT_CHUNK_TYPE_IMAGE)
    assert mtmd.mtmd_encode_chunk(context, picture) == 0
    shape = (mtmd.mtmd_input_chunk_get_n_tokens(picture), api.llama_model_n_embd_inp(model))
    rows = np.ctypeslib.as_array(mtmd.mtmd_get_output_embd(context), shape).copy()
    mtmd.mtmd_input_chunks_free(chunks)
    mtmd.mtmd_bitmap_free(bitmap)
    mtmd.mtmd_free(context)
    api.llama_model_free(model)
    return rows
