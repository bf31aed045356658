"""Placement of a draft on a GPU: the GPU chosen, the data copied there, and the time of its allocation.

The GPUs are stand-ins, which count (fixtures.gpus).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixtures.eagle3_checkpoints import CASES, TARGET_HIDDEN, make_draft
from fixtures.gpus import OURS, Gpus, count, gpus
from fixtures.targets import make_target
from llama_eagle.convert.drafts import DraftOptions, convert_draft
from llama_eagle.convert.targets import TargetOptions, convert_target
from llama_eagle.errors import UsageError
from llama_eagle.sessions.models import Context, Model, ModelPair
from llama_eagle.sessions.options import SPLIT_NONE, ContextOptions, LoadOptions, PairOptions, SessionOptions
from llama_eagle.sessions.session import EagleSession
from llama_eagle.synthetic.recurrent import Shape, write_recurrent
from parity.pairs import ALL, HOST, N_DRAFT, Files, Trace, assert_equal, make_pair, play, session_on

pytestmark = pytest.mark.native

F32 = DraftOptions(outtype="f32")
PROMPT = np.random.default_rng(2).integers(0, 480, 150).tolist()


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return make_pair("qwen3", tmp_path_factory.mktemp("dense"))


@dataclass(frozen=True)
class Given:
    """Device costs of a second session of the same kind, and of rounds in it."""

    n_writes: int
    n_bytes: int
    n_buffers: int  # in rounds


@contextmanager
def loaded(files: Files, load: LoadOptions, draft_gpu_layers: int | None = None) -> Iterator[tuple[Context, Model]]:
    """With an `n_ubatch` as small as can be: choosing among a round's logits takes more than those of a prompt."""
    pair = PairOptions(files.target, files.draft, load, draft_gpu_layers=draft_gpu_layers)
    with ModelPair(pair) as models, Context(models.target, ContextOptions(256, 256, N_DRAFT + 2, 1)) as context:
        assert models.draft is not None
        yield context, models.draft


def given_to_device(files: Files, layers: tuple[int, int]) -> Given:
    load = LoadOptions(layers[0])
    with loaded(files, load, layers[1]) as (context, draft):
        before = count("writes"), count("bytes written")
        with EagleSession(context, draft, SessionOptions(N_DRAFT)) as session:
            after = count("writes"), count("bytes written")
            session.eval(PROMPT[:20])
            n_buffers = count("buffers")
            for length in (N_DRAFT, 1, N_DRAFT):
                session.verify(PROMPT[: length + 1])
                session.commit(0)
            return Given(after[0] - before[0], after[1] - before[1], count("buffers") - n_buffers)


@dataclass(frozen=True)
class Copies:
    """Copies and operations in recurrent layers for a decode of one row, with another to replay."""

    copies: int
    states: int


def copies_of_decode(target: Path) -> Copies:
    from llama_eagle.bench.round_context import RoundModel

    context = RoundModel(target, n_gpu_layers=ALL).context(n_rs_seq=N_DRAFT)
    context.decode({0: [1]})
    before = count("CPY"), count("GATED_DELTA_NET")
    context.decode({0: [1]})
    return Copies(count("CPY") - before[0], count("GATED_DELTA_NET") - before[1])


def test_copies_of_ordinary_operations(tmp_path: Path) -> None:
    """In each recurrent layer those of the record's five parts and the state's; the windows of all layers at once."""
    n_recurrent = 6
    path = write_recurrent(tmp_path / "target.gguf", "qwen35", Shape(n_layer=8, attention_every=4))
    for n_devices, n_windows in ((1, 1), (2, 2)):
        with gpus(Gpus(n_devices, lacks=OURS)) as pool:
            found = pool.submit(copies_of_decode, path).result()
        assert found == Copies(6 * n_recurrent + n_windows, 2 * n_recurrent)


def make_tied(folder: Path, *, tied: bool) -> Files:
    """A draft with a head and a vocabulary of its own, whose embeddings are the target's."""
    made = Files(folder / "target.gguf", folder / "draft.gguf")
    checkpoint = make_target("qwen3", folder / "target", seed=1, tie_word_embeddings=tied)
    convert_target(checkpoint, made.target, TargetOptions(outtype="f32"))
    spec = replace(CASES["f32"], dtype="float32")
    convert_draft(make_draft(folder / "draft", spec, seed=3), made.target, folder / "draft.gguf", F32)
    return made


def drafts_on(files: Files, layers: tuple[int, int]) -> Trace:
    with session_on(files, layers) as session:
        session.eval(PROMPT)
        return play(session, PROMPT[0], [N_DRAFT] * 3)[0]


@pytest.mark.parametrize("tied", [False, True])
def test_embeddings_are_copied_at_once_or_not_at_all(tmp_path: Path, tied: bool) -> None:
    """Not at all where the target's head on the device has the same rows."""
    files = make_tied(tmp_path, tied=tied)
    table_bytes = 4 * CASES["f32"].n_draft * TARGET_HIDDEN
    with gpus() as pool:
        found = pool.submit(given_to_device, files, (ALL, ALL)).result()
        assert_equal(pool.submit(drafts_on, files, (ALL, ALL)).result(), drafts_on(files, HOST))
    assert found.n_writes < 20
    assert found.n_bytes < table_bytes / 2 if tied else table_bytes <= found.n_bytes < 1.5 * table_bytes


def test_rounds_need_no_memory_that_was_not_reserved(dense: Files) -> None:
    with gpus() as pool:
        assert pool.submit(given_to_device, dense, (ALL, 0)).result().n_buffers == 0


def device_with(files: Files, options: dict[str, Any]) -> str:
    with (
        loaded(files, LoadOptions(ALL, **options)) as (context, draft),
        EagleSession(context, draft, SessionOptions(N_DRAFT)) as session,
    ):
        return session.draft_device


def device_of_llama(files: Files, options: dict[str, Any]) -> str | None:
    from llama_eagle import EagleLlama

    with EagleLlama(files.target, draft=files.draft, n_ctx=64, n_gpu_layers=-1, n_threads=1, **options) as llm:
        return llm.draft_device


@pytest.mark.parametrize(
    ("options", "device"),
    [
        ({}, "GPU0"),
        ({"main_gpu": 1}, "GPU1"),
        ({"main_gpu": 1, "split_mode": SPLIT_NONE}, "GPU1"),
        ({"tensor_split": [0, 1]}, "GPU1"),
        ({"tensor_split": [1, 1]}, "GPU0"),
        ({"tensor_split": [1, 1], "main_gpu": 1}, "GPU1"),
    ],
)
def test_several_gpus(dense: Files, options: dict[str, Any], device: str) -> None:
    with gpus(Gpus(n_devices=2)) as pool:
        assert pool.submit(device_with, dense, options).result() == device
        assert pool.submit(device_of_llama, dense, options).result() == device


def test_too_many_shares(dense: Files) -> None:
    with pytest.raises(UsageError, match="tensor_split has 1000 shares"):
        ModelPair(PairOptions(dense.target, dense.draft, LoadOptions(tensor_split=[1.0] * 1000)))


def notice_of_llama(files: Files) -> tuple[list[str], str | None]:
    from llama_eagle import EagleLlama

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with EagleLlama(files.target, draft=files.draft, n_ctx=64, n_gpu_layers=-1, n_threads=1) as llm:
            return [str(warning.message) for warning in seen], llm.draft_device


def test_a_draft_that_gives_way_says_so(dense: Files) -> None:
    with gpus(Gpus(lacks=("FLASH_ATTN_EXT",))) as pool:
        said, device = pool.submit(notice_of_llama, dense).result()
    assert device == "CPU"
    assert any("the draft runs on the CPU: GPU0 does not compute" in text for text in said)
