"""Rows of images: those that train/ learns from are those that a session drafts from.

Inputs, features and positions of every row, with libmtmd's vision tower and transformers', and a draft's logits.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixtures.f32_memory import f32_session
from fixtures.native import NativeTarget
from fixtures.training import make_training_target
from fixtures.vision_files import encoded, png
from llama_eagle.convert.drafts import DraftOptions, convert_draft
from llama_eagle.convert.targets import TargetOptions, convert_target, convert_vision
from llama_eagle.errors import NativeError
from llama_eagle.sessions.models import Model
from llama_eagle.sessions.options import SessionOptions
from llama_eagle.sessions.session import EagleSession
from llama_eagle.sessions.text import Tokenizer
from llama_eagle.train.data.pictures import row_size
from llama_eagle.train.data.samples import Sample
from llama_eagle.train.export import DraftOf, export_draft
from llama_eagle.train.features import Batch, OnlineFeatures
from llama_eagle.train.model import Eagle3Draft, Sections
from llama_eagle.train.targets.checkpoint import Images, Target, load_images, read_target
from llama_eagle.vision.encoder import VisionEncoder
from llama_eagle.vision.in_text import FIRST_ID, PicturesInText
from llama_eagle.vision.pictures import Picture
from llama_eagle.vision.rows import image_positions, n_positions, text_positions
from PIL import Image

pytestmark = pytest.mark.native

LAYERS = (4, 5, 6)
# Relative to the largest value: two vision towers, one of them with F16 kernels. No MoE family is here, because that
# difference is enough to choose another expert now and then; on text they agree (test_train_features.py).
TOLERANCE = 1e-2
PROMPT = "What is in <__media__>? The quick brown fox jumps over the lazy dog. And <__media__> then"


@dataclass(frozen=True)
class Both:
    """One target on both sides, and a text with two images: its ids in the native side's way, and a sample."""

    folder: Path
    target: Target
    images: Images
    native: NativeTarget
    pictures: PicturesInText
    ids: list[int]
    sample: Sample

    def batch(self) -> Batch:
        return OnlineFeatures(self.target, self.images, [self.sample]).batch([0])

    def runs(self) -> Iterator[list[int]]:
        """Tokens, or the rows of one image."""
        start = 0
        for i in range(1, len(self.ids) + 1):
            if i == len(self.ids) or (self.ids[i] <= FIRST_ID) != (self.ids[i - 1] <= FIRST_ID):
                yield self.ids[start:i]
                start = i


class HasHandle:
    def __init__(self, native: NativeTarget) -> None:
        self.handle = native.model
        self.vocab = native.api.llama_model_get_vocab(native.model)


@pytest.fixture(scope="module", params=["qwen35", "qwen3vl"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    tmp_path = tmp_path_factory.mktemp(request.param)
    folder = make_training_target(request.param, tmp_path / "target", seed=1)
    convert_target(folder, tmp_path / "target.gguf", TargetOptions(outtype="f32"))
    convert_vision(folder, tmp_path / "mmproj.gguf", TargetOptions(outtype="f32"))
    target = Target(read_target(folder, LAYERS), torch.float32, torch.device("cpu"))
    images = load_images(target.info)
    assert images is not None
    files = [tmp_path / "a.png", tmp_path / "b.png"]
    for path, data in zip(files, (png(1, 160, 96), png(2, 64, 128)), strict=True):
        path.write_bytes(data)  # of sizes that neither side changes
    with NativeTarget(tmp_path / "target.gguf", layers=LAYERS, n_rs_seq=3) as native:
        model = HasHandle(native)
        with VisionEncoder(tmp_path / "mmproj.gguf", model.handle, n_threads=1) as encoder:
            pictures = PicturesInText(encoder)
            found = [pictures.open(path, "") for path in files]
            ids = pictures.insert(PROMPT, found, Tokenizer(model).encode_piece)
            tokens = np.array([images.token if i <= FIRST_ID else i for i in ids], np.int32)
            grids = tuple(images.grid(path, "") for path in files)
            sample = Sample("", tokens, np.ones(len(ids), np.bool_), tuple(files), grids)
            yield Both(tmp_path, target, images, native, pictures, ids, sample)


def relative(found: Any, expected: Any) -> float:
    return float(np.abs(np.asarray(found) - np.asarray(expected)).max() / np.abs(np.asarray(expected)).max())


def test_a_damaged_encoder_is_refused_with_the_reason(both: Both, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes((both.folder / "mmproj.gguf").read_bytes()[:-4096])
    with pytest.raises(NativeError, match=r"damaged\.gguf: (?!no reason given).+\. Convert it again\."):
        VisionEncoder(damaged, HasHandle(both.native).handle, n_threads=1)


def test_inputs_and_features(both: Both) -> None:
    batch, native = both.batch(), both.native
    assert batch.embedded is not None
    table = both.target.frozen().embedding
    start = 0
    with EagleSession(native, None, SessionOptions(0)) as session:
        for run in both.runs():
            if run[0] <= FIRST_ID:
                rows = both.pictures.rows(run[0])
                inputs = rows.as_array()[:, : native.n_embd].copy()
                session.eval_rows(rows)
            else:
                inputs = table[torch.tensor(run)].numpy()
                session.eval(run)
            end = start + len(run)
            assert relative(batch.embedded[0, start:end], inputs) < TOLERANCE
            for part, layer in zip(batch.features[0, start:end].chunk(len(LAYERS), -1), LAYERS, strict=True):
                assert relative(part, native._feature(layer, len(run))) < TOLERANCE
            start = end
        session.reset()
    tokens = torch.from_numpy(both.sample.tokens).long()[None]
    blind = both.target.run(tokens)[0]  # an image that is not seen shows
    assert relative(blind[0, -5:], batch.features[0, -5:]) > 2 * TOLERANCE
    pixels = both.images.pixels(both.sample.images, "")  # and so do positions that run on through it
    unplaced = both.target.run(tokens, **pixels, mm_token_type_ids=torch.zeros_like(tokens))[0]
    assert relative(unplaced[0, -5:], batch.features[0, -5:]) > 2 * TOLERANCE


def test_rows_and_positions(both: Both) -> None:
    """The definition, libmtmd's rows and transformers' positions."""
    tokens = torch.from_numpy(both.sample.tokens).long()[None]
    kinds = (tokens == both.images.token).int()
    grid = both.images.pixels(both.sample.images, "")["image_grid_thw"]
    expected = both.target.model.model.get_rope_index(tokens, kinds, image_grid_thw=grid)[0][:, 0].numpy()
    found, position = [], 0
    for run in both.runs():
        if run[0] > FIRST_ID:
            found.append(np.tile(np.arange(len(run)), (3, 1)) + position)
            position += len(run)
            continue
        rows = both.pictures.rows(run[0])
        frame = both.pictures.describe(np.array(run))[run[0]][1]
        assert np.array_equal(rows.positions, image_positions(frame.height, frame.width))
        assert rows.n == len(run) and both.sample.grids[len(found) // 2] == (frame.height, frame.width)
        found.append(rows.positions + position)
        position += n_positions(frame.height, frame.width)
    assert np.array_equal(np.concatenate(found, axis=1), expected)
    assert np.array_equal(text_positions(both.sample.tokens == both.images.token, both.sample.grids).T, expected)


@pytest.mark.parametrize("sections", [None, "target", Sections((3, 2, 2), False)], ids=["1-D", "target", "in blocks"])
def test_a_draft_learns_what_it_drafts_from(both: Both, sections: Any) -> None:
    """The logits of the last row, which attends to every other, of a draft in training and of its export."""
    batch, info = both.batch(), both.target.info
    torch.manual_seed(5)
    ids = torch.arange(0, info.n_vocab, 3)
    draft = Eagle3Draft(info.geometry(len(ids), None, info.sections if sections == "target" else sections))
    for projection in (draft.midlayer.self_attn.q_proj, draft.midlayer.self_attn.k_proj):
        torch.nn.init.normal_(projection.weight, std=0.3)  # attention that depends on places
    frozen = both.target.frozen()
    export_draft(
        draft, both.folder / "draft", layout="speculators", draft_ids=ids, embedding=frozen.embedding,
        target=DraftOf(info.architecture, str(info.folder), info.aux_layers),
    )  # fmt: skip
    draft.load_state_dict({name: value.bfloat16().float() for name, value in draft.state_dict().items()})
    with torch.no_grad():
        given = batch.embedded, batch.features, batch.final, 1
        (step,), (flat,) = draft.unroll(*given, positions=batch.positions), draft.unroll(*given)
        expected, elsewhere = (draft.lm_head(draft.norm(x[0, -1])) for x in (step, flat))
    assert (relative(elsewhere, expected) > 2 * TOLERANCE) == (sections is not None)
    path = both.folder / "draft.gguf"
    convert_draft(both.folder / "draft", both.native.model_path, path, DraftOptions(outtype="f32"))
    with Model(path) as model, f32_session(both.native, model, SessionOptions(3)) as session:
        *runs, last = both.runs()
        for run in [*runs, last[:-2]]:
            if run[0] <= FIRST_ID:
                session.eval_rows(both.pictures.rows(run[0]))
            else:
                session.eval(run)
        session.draft(last[-2], 1)
        assert relative(session.draft_logits(0), expected) < TOLERANCE
        session.reset()


SIDES = (1, 2, 31, 33, 48, 50, 127, 128, 255, 640, 1000, 1999, 3200, 4000)


def test_pictures_have_the_rows_of_the_engine(both: Both) -> None:
    encoder, align = both.pictures.encoder, both.images.patch * both.images.merge
    for width in SIDES:
        for height in SIDES:
            picture = Picture("picture", "", width, height, b"")
            frame = encoder.frame(picture)
            assert row_size(picture, align) == (frame.width, frame.height), (width, height)


def deep(seed: int) -> bytes:
    """Return a PNG of 16 bits."""
    values = np.random.default_rng(seed).integers(0, 1 << 16, (64, 96), np.uint16)
    return encoded(Image.fromarray(values))


def turned(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(Image.open(io.BytesIO(png(3, 150, 70))), "JPEG", exif=exif, quality=95)


def transparent(mode: str) -> bytes:
    pixels = np.random.default_rng(4).integers(0, 256, (80, 60, len(mode)), np.uint8)
    return encoded(Image.fromarray(pixels, mode))


PICTURES = {
    "1 x 1": lambda: png(1, 1, 1),
    "1 x 400": lambda: png(1, 1, 400),
    "small": lambda: png(1, 50, 30),
    "odd": lambda: png(2, 211, 97),
    "128 x 128": lambda: png(1, 128, 128),
    "gray": lambda: encoded(Image.open(io.BytesIO(png(5, 90, 90))).convert("L")),
    "one bit": lambda: encoded(Image.open(io.BytesIO(png(5, 90, 90))).convert("1")),
    "palette": lambda: encoded(Image.open(io.BytesIO(png(5, 90, 90))).convert("P"), transparency=3),
    "CMYK": lambda: encoded(Image.open(io.BytesIO(png(5, 90, 90))).convert("CMYK"), "JPEG"),
    "16 bits": lambda: deep(6),
    "RGBA": lambda: transparent("RGBA"),
    "LA": lambda: transparent("LA"),
    **{f"EXIF {n}": partial(turned, n) for n in (3, 6, 8)},
}


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_prepared_as_in_the_engine(name: str, both: Both, tmp_path: Path) -> None:
    """The rows of the engine's encoder, and those of transformers from the trainer's pixels."""
    path = tmp_path / "picture"
    path.write_bytes(PICTURES[name]())
    rows = both.pictures.encoder.encode(both.pictures.open(path, "")).as_array()[:, : both.native.n_embd].copy()
    pixels = both.images.pixels([path], "")
    with torch.no_grad():
        found = both.target.model.model.get_image_features(pixels["pixel_values"], pixels["image_grid_thw"])
    assert relative(torch.cat(list(found.pooler_output)), rows) < TOLERANCE
