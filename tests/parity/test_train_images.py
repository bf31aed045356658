"""Features after an image: those that the native side captures, with its own vision tower and M-RoPE positions."""

from __future__ import annotations

import ctypes
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixtures.native import NativeTarget
from fixtures.training import make_training_target
from llama_eagle.convert.targets import TargetOptions, convert_target, convert_vision
from llama_eagle.train.data.samples import Sample
from llama_eagle.train.features import OnlineFeatures
from llama_eagle.train.target import Target, load_images, read_target
from PIL import Image

pytestmark = pytest.mark.native

LAYERS = (4, 5, 6)
# Relative to the largest value: two vision towers, one of them with F16 kernels. No MoE family is here, because that
# difference is enough to choose another expert now and then; on text they agree (test_train_features.py).
TOLERANCE = 1e-2


class Vision:
    """libmtmd with a vision tower, beside a NativeTarget."""

    def __init__(self, native: NativeTarget, mmproj: Path) -> None:
        import llama_cpp.mtmd_cpp as mtmd

        self.native, self.mtmd = native, mtmd
        params = mtmd.mtmd_context_params_default()
        params.use_gpu, params.print_timings, params.warmup, params.n_threads = False, False, False, 1
        params.flash_attn_type = native.api.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.ctx = mtmd.mtmd_init_from_file(str(mmproj).encode(), native.model, params)
        assert self.ctx

    def close(self) -> None:
        self.mtmd.mtmd_free(self.ctx)

    @contextmanager
    def _chunks(self, prompt: str, png: bytes) -> Iterator[Any]:
        """prompt has one media marker for the image."""
        buffer = (ctypes.c_uint8 * len(png)).from_buffer_copy(png)
        bitmap = self.mtmd.mtmd_helper_bitmap_init_from_buf(self.ctx, buffer, len(png), False)
        chunks = self.mtmd.mtmd_input_chunks_init()
        text = self.mtmd.mtmd_input_text(prompt.encode(), len(prompt.encode()), False, True)
        bitmaps = (self.mtmd.mtmd_bitmap_p_ctypes * 1)(bitmap)
        assert self.mtmd.mtmd_tokenize(self.ctx, chunks, ctypes.byref(text), bitmaps, 1) == 0
        try:
            yield chunks
        finally:
            self.mtmd.mtmd_input_chunks_free(chunks)
            self.mtmd.mtmd_bitmap_free(bitmap)

    def run(self, prompt: str, png: bytes, image_token: int) -> tuple[list[int], int, dict[int, np.ndarray]]:
        """All tokens, how many follow the image, and the features of those."""
        mtmd, native = self.mtmd, self.native
        tokens: list[int] = []
        with self._chunks(prompt, png) as chunks:
            for i in range(mtmd.mtmd_input_chunks_size(chunks)):
                chunk, n = mtmd.mtmd_input_chunks_get(chunks, i), ctypes.c_size_t()
                if mtmd.mtmd_input_chunk_get_type(chunk) == mtmd.MTMD_INPUT_CHUNK_TYPE_IMAGE:
                    tokens += [image_token] * mtmd.mtmd_input_chunk_get_n_tokens(chunk)
                else:
                    found = mtmd.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(n))
                    tokens += found[: n.value]
            n_past = native.api.llama_pos()
            status = mtmd.mtmd_helper_eval_chunks(self.ctx, native.ctx, chunks, 0, 0, 512, False, ctypes.byref(n_past))
        assert status == 0
        n_after = tokens[::-1].index(image_token)
        return tokens, n_after, {il: native._feature(il, n_after) for il in native.layers}


def noise(path: Path, size: tuple[int, int]) -> bytes:
    """A picture whose size neither side changes."""
    pixels = np.random.default_rng(1).integers(0, 256, (size[1], size[0], 3), np.uint8)
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "PNG")
    path.write_bytes(data.getvalue())
    return data.getvalue()


@pytest.mark.parametrize("family", ["qwen35", "qwen3vl"])
def test_features_after_an_image_are_those_of_the_native_side(family: str, tmp_path: Path) -> None:
    folder = make_training_target(family, tmp_path / "target", seed=1)
    convert_target(folder, tmp_path / "target.gguf", TargetOptions(outtype="f32"))
    convert_vision(folder, tmp_path / "mmproj.gguf", TargetOptions(outtype="f32"))
    target = Target(read_target(folder, LAYERS), torch.float32, torch.device("cpu"))
    images = load_images(target.info)
    assert images is not None
    png = noise(tmp_path / "a.png", (160, 96))
    with NativeTarget(tmp_path / "target.gguf", layers=LAYERS) as native:
        tower = Vision(native, tmp_path / "mmproj.gguf")
        marker = tower.mtmd.mtmd_default_marker().decode()
        prompt = f"What is in {marker}? The quick brown fox jumps over the lazy dog."
        tokens, n_after, expected = tower.run(prompt, png, images.token)
        tower.close()
    assert tokens.count(images.token) == 15

    def error(features: torch.Tensor) -> Any:
        parts = zip(features[:, -n_after:].chunk(len(LAYERS), dim=-1), LAYERS, strict=True)
        return max(np.abs(part[0].numpy() - expected[il]).max() / np.abs(expected[il]).max() for part, il in parts)

    everything = np.ones(len(tokens), np.bool_)
    sample = Sample("", np.array(tokens, np.int32), everything, (tmp_path / "a.png",))
    assert error(OnlineFeatures(target, images, [sample]).batch([0]).features) < TOLERANCE
    rows = torch.tensor([tokens])
    assert error(target.run(rows)[0]) > 5 * TOLERANCE  # an image that is not seen shows
    vision = {**images.pixels([tmp_path / "a.png"], ""), "mm_token_type_ids": torch.zeros_like(rows)}
    assert error(target.run(rows, **vision)[0]) > 5 * TOLERANCE  # and so do positions that run on through it
