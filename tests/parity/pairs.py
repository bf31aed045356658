"""A tiny target and its draft, and a session on them with layers on whatever devices there are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from fixtures.eagle3_checkpoints import CASES, make_draft
from fixtures.f32_memory import f32_session
from fixtures.native import accept, draft_with_probs
from fixtures.targets import make_target
from llama_eagle.convert.drafts import DraftOptions, convert_draft
from llama_eagle.convert.targets import TargetOptions, convert_target
from llama_eagle.sessions.models import Context, ModelPair
from llama_eagle.sessions.options import MTP, ContextOptions, LoadOptions, PairOptions, SessionOptions
from llama_eagle.sessions.session import EagleSession

ALL, N_LAYER, N_DRAFT, N_UBATCH = 99, 8, 3, 32
HOST = (0, 0)
TOLERANCE = 1e-5

Layers = tuple[int, int]  # of target and draft on other devices


@dataclass(frozen=True)
class Files:
    target: Path
    draft: Path | str  # MTP: the target's own head


@dataclass(frozen=True)
class Trace:
    """Drafted tokens, their probabilities in the draft, and the target's tokens."""

    drafts: list[list[int]]
    probs: list[float]
    text: list[int]


def make_pair(family: str, folder: Path) -> Files:
    """A target and a draft of three features, random weights in float32."""
    made = Files(folder / "target.gguf", folder / "draft.gguf")
    convert_target(make_target(family, folder / "target", seed=1), made.target, TargetOptions(outtype="f32"))
    spec = replace(CASES["shared-head"], dtype="float32")
    convert_draft(make_draft(folder / "draft", spec, seed=3), made.target, made.draft, DraftOptions(outtype="f32"))
    return made


def make_own_head(family: str, folder: Path, **options: Any) -> Files:
    """A target that drafts with its own head, random weights in float32."""
    checkpoint = make_target(family, folder / "target", seed=2, dtype="float32", mtp=True, **options)
    convert_target(checkpoint, folder / "target.gguf", TargetOptions(outtype="f32"))
    return Files(folder / "target.gguf", MTP)


@contextmanager
def session_on(files: Files, layers: Layers, n_ubatch: int = N_UBATCH, n_ctx: int = 512) -> Iterator[EagleSession]:
    pair = PairOptions(files.target, files.draft, LoadOptions(layers[0]), draft_gpu_layers=layers[1])
    options = ContextOptions(n_ctx, max(256, n_ubatch), n_ubatch, 1, "off", "f32", "f32", n_rs_seq=N_DRAFT)
    with ModelPair(pair) as models, Context(models.target, options) as context:
        assert models.draft is not None
        with f32_session(context, models.draft, SessionOptions(N_DRAFT)) as session:
            yield session


def play(session: EagleSession, id_last: int, lengths: list[int]) -> tuple[Trace, int]:
    """One greedy round for each draft length; also the token to follow."""
    trace = Trace([], [], [])
    for n_draft in lengths:
        drafted: list[int] = []
        if n_draft:
            drafted, probs = draft_with_probs(session, id_last, n_draft)
            trace.drafts.append(drafted)
            trace.probs.extend(probs)
        session.verify([id_last, *drafted])
        said = accept(session, [id_last, *drafted])
        session.commit(len(said))
        trace.text.extend(said)
        id_last = said[-1]
    return trace, id_last


def assert_equal(found: Trace, expected: Trace) -> None:
    assert found.drafts == expected.drafts
    assert found.text == expected.text
    assert np.allclose(found.probs, expected.probs, rtol=0, atol=TOLERANCE)


def load_log(path: Path, n_gpu_layers: int) -> str:
    """llama.cpp's log of loading a model."""
    import llama_cpp
    from llama_eagle.native.calls import library

    library()
    lines: list[str] = []
    callback = llama_cpp.llama_log_callback(lambda level, text, user: lines.append(text.decode()))
    llama_cpp.llama_log_set(callback, None)
    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers = n_gpu_layers
    llama_cpp.llama_model_free(llama_cpp.llama_model_load_from_file(str(path).encode(), params))
    llama_cpp.llama_log_set(llama_cpp.llama_log_callback(), None)  # null: the default
    return "".join(lines)
