"""A hybrid target with and without a draft on GPUs, at every offload: the CPU's logits, drafts and text.

The GPUs are stand-ins, or those of the build (fixtures.gpus). Prompts of 32 rows and more are where a GPU offloads work
on weights that lie in host memory, and takes with it what it thinks it knows.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from fixtures.gpus import IS_REAL, Gpus, count, gpus, kinds
from fixtures.native import NativeTarget
from fixtures.targets import make_target
from llama_eagle.convert.targets import TargetOptions, convert_target
from llama_eagle.quantize.quantize import QuantizeOptions, quantize
from llama_eagle.sessions.options import MTP
from llama_eagle.synthetic.recurrent import Shape, write_recurrent
from llama_eagle.vision.rows import EmbeddedRows, image_positions, n_positions
from parity.pairs import (
    ALL,
    HOST,
    N_DRAFT,
    N_LAYER,
    Files,
    Layers,
    Trace,
    load_log,
    make_own_head,
    make_pair,
    play,
    session_on,
)

pytestmark = pytest.mark.native

SHORT, LONG = [1, 31, 32, 33], [700]
LENGTHS = SHORT + LONG
FEW = N_LAYER // 2
OFFLOADS = {"none": HOST, "draft or head": (0, ALL), "few": (FEW, ALL), "target or block": (ALL, 0), "all": (ALL, ALL)}
OWN_HEAD = {"none": HOST, "draft or head": (1, 0), "few": (FEW, 0), "target or block": (2, 0), "all": (ALL, 0)}
TOKENS = np.random.default_rng(5).integers(0, 470, max(LENGTHS) + 8).tolist()
N_CTX = 1024
N_EMBD = 64  # of the tiny targets


@dataclass(frozen=True)
class On:
    """A process that has GPUs, and how near to the CPU they are."""

    pool: Executor
    tolerance: float


@pytest.fixture(scope="module", params=kinds().values(), ids=kinds().keys())
def elsewhere(request: pytest.FixtureRequest) -> Iterator[On]:
    given: Gpus = request.param
    with gpus(given) as pool:
        yield On(pool, given.tolerance)


@pytest.fixture(scope="module")
def eagle3(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return make_pair("qwen35", tmp_path_factory.mktemp("eagle3"))


@pytest.fixture(scope="module", params=["eagle3", "mtp", "mtp-tied"])
def files(request: pytest.FixtureRequest, eagle3: Files, tmp_path_factory: pytest.TempPathFactory) -> Files:
    if request.param == "eagle3":
        return eagle3
    folder = tmp_path_factory.mktemp(request.param)
    return make_own_head("qwen35", folder, tie_word_embeddings=request.param == "mtp-tied")


def logits(target: Path, n_gpu_layers: int, lengths: Sequence[int] = LENGTHS) -> dict[int, np.ndarray]:
    """[n + 8, vocab] for each length: a prompt, single tokens, and a batch short enough to be undone."""
    found = {}
    with NativeTarget(target, n_ctx=N_CTX, n_gpu_layers=n_gpu_layers, n_rs_seq=N_DRAFT) as native:
        for n in lengths:
            native.api.llama_memory_clear(native.api.llama_get_memory(native.ctx), True)
            native.n_past = 0
            parts = [native.decode(TOKENS[:n])[0]]
            parts += [native.decode([token])[0] for token in TOKENS[n : n + 4]]
            parts.append(native.decode(TOKENS[n + 4 : n + 8])[0])
            found[n] = np.concatenate(parts)
    return found


@pytest.fixture(scope="module")
def expected_logits(eagle3: Files) -> dict[int, np.ndarray]:
    return logits(eagle3.target, 0)


@pytest.mark.parametrize("lengths", [SHORT, LONG], ids=["short", "long"])
@pytest.mark.parametrize("n_gpu_layers", [0, 1, FEW, ALL], ids=["none", "one layer", "few", "all"])
def test_logits(
    elsewhere: On, eagle3: Files, expected_logits: dict[int, np.ndarray], n_gpu_layers: int, lengths: list[int]
) -> None:
    found = elsewhere.pool.submit(logits, eagle3.target, n_gpu_layers, lengths).result()
    for n in lengths:
        expected = expected_logits[n]
        off = np.abs(found[n] - expected).max() / np.abs(expected).max()
        assert off <= elsewhere.tolerance, f"after a prompt of {n} tokens: logits off by {off:.2g}"


def several_sequences(target: Path, n_gpu_layers: int) -> np.ndarray:
    """Logits of three sequences whose last tokens are taken back, each by another number."""
    from llama_eagle.bench.round_context import RoundModel

    context = RoundModel(target, n_gpu_layers).context(n_rs_seq=N_DRAFT, n_seq_max=3)
    rows = [context.decode({0: TOKENS[:33], 1: TOKENS[5:12], 2: TOKENS[:40]})]
    for seq, n_past in ((0, 30), (1, 6), (2, 38)):
        assert context.trim(seq, n_past)
    for n in (1, 4, 3):
        rows.append(context.decode({seq: TOKENS[seq : seq + n] for seq in range(3)}))
    return np.concatenate(rows)


@pytest.fixture(scope="module", params=["qwen35", "granitehybrid", "lfm2"])
def recurrent(request: pytest.FixtureRequest, eagle3: Files, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target of each kind of state that is replayed."""
    if request.param == "qwen35":
        return eagle3.target
    shape = Shape(n_vocab=512, state=64, v_heads=4, channels=32)
    return write_recurrent(tmp_path_factory.mktemp(request.param) / "target.gguf", request.param, shape)


def test_several_sequences(elsewhere: On, recurrent: Path) -> None:
    expected = several_sequences(recurrent, 0)
    found = elsewhere.pool.submit(several_sequences, recurrent, ALL).result()
    assert np.abs(found - expected).max() <= 1e-3 * np.abs(expected).max()  # a cache in F16


# --- drafts and text --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Image:
    """Rows as a vision encoder would make them, of noise."""

    height: int
    width: int

    def embedded(self) -> EmbeddedRows:
        n = self.height * self.width
        rows = np.random.default_rng(n).standard_normal((n, N_EMBD)).astype(np.float32)
        values = rows.ctypes.data_as(ctypes.POINTER(ctypes.c_float))  # which keeps rows alive
        places = image_positions(self.height, self.width)
        return EmbeddedRows(values, n, N_EMBD, places, n_positions(self.height, self.width))


Texts = dict[str, Sequence["Image | int"]]  # a number: that number of tokens
TEXTS: dict[str, Texts] = {
    "short": {f"{n} tokens": [n] for n in SHORT},
    "pictures": {
        "a small image": [Image(2, 3), 9],
        "a large image": [5, Image(6, 8), 3],
        "images": [40, Image(7, 5), 2, Image(1, 4), 33],
    },
    "long": {f"{n} tokens": [n] for n in LONG},
}


def rounds(files: Files, layers: Layers, texts: Texts) -> dict[str, Trace]:
    """After each text."""
    found = {}
    with session_on(files, layers, n_ubatch=512, n_ctx=N_CTX) as session:
        for name, text in texts.items():
            session.reset()
            for part in text:
                if isinstance(part, Image):
                    session.eval_rows(part.embedded())
                else:
                    session.eval(TOKENS[:part])
            found[name] = play(session, TOKENS[-1], [N_DRAFT] * 5)[0]
    return found


@pytest.fixture(scope="module")
def expected_rounds(files: Files) -> dict[str, dict[str, Trace]]:
    return {kind: rounds(files, HOST, texts) for kind, texts in TEXTS.items()}


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("offload", ["none", "draft or head", "few", "target or block", "all"])
def test_drafts_and_text(
    elsewhere: On, files: Files, expected_rounds: dict[str, dict[str, Trace]], offload: str, kind: str
) -> None:
    layers = (OWN_HEAD if files.draft == MTP else OFFLOADS)[offload]
    found = elsewhere.pool.submit(rounds, files, layers, TEXTS[kind]).result()
    for name, expected in expected_rounds[kind].items():
        assert (found[name].drafts, found[name].text) == (expected.drafts, expected.text), name
        assert np.allclose(found[name].probs, expected.probs, rtol=0, atol=elsewhere.tolerance), name


def draft_device(files: Files) -> tuple[str, str]:
    """Return the device of an offloaded draft, and the reason for it."""
    with session_on(files, (OWN_HEAD if files.draft == MTP else OFFLOADS)["all"]) as session:
        return session.draft_device, session.draft_notice


def test_drafts_run_on_gpus(elsewhere: On, files: Files) -> None:
    device, notice = elsewhere.pool.submit(draft_device, files).result()
    if IS_REAL and notice:
        pytest.skip(notice)
    assert device != "CPU" and not notice


# --- weights and work -------------------------------------------------------------------------------------------------


def weight_buffers(target: Path, n_gpu_layers: int) -> set[str]:
    return set(re.findall(r"(\S+) model buffer size", load_log(target, n_gpu_layers)))


def test_layouts_of_the_cpu(elsewhere: On, tmp_path: Path) -> None:
    """Without offloaded layers, weights have the same layouts as without a GPU."""
    checkpoint = make_target("qwen3", tmp_path / "target", hidden_size=256, intermediate_size=256)
    convert_target(checkpoint, tmp_path / "f16.gguf", TargetOptions(outtype="f16"))
    quantize(tmp_path / "f16.gguf", tmp_path / "q8_0.gguf", "q8_0", QuantizeOptions())
    expected = weight_buffers(tmp_path / "q8_0.gguf", 0)
    if expected == {"CPU"}:
        pytest.skip("this CPU rearranges no weights")
    assert elsewhere.pool.submit(weight_buffers, tmp_path / "q8_0.gguf", 0).result() == expected


@pytest.mark.skipif(IS_REAL, reason="a real device does not count its work")
def test_gpus_compute(elsewhere: On, eagle3: Files) -> None:
    """Not only their names are there: large batches are offloaded without a layer on a GPU, and what is theirs too."""
    before = elsewhere.pool.submit(count, "MUL_MAT").result()
    elsewhere.pool.submit(logits, eagle3.target, 0).result()
    offloaded = elsewhere.pool.submit(count, "MUL_MAT").result()
    elsewhere.pool.submit(logits, eagle3.target, ALL).result()
    assert before < offloaded < elsewhere.pool.submit(count, "MUL_MAT").result()


def test_layers_are_offloaded(elsewhere: On, eagle3: Files) -> None:
    assert f"offloaded {N_LAYER + 1}/{N_LAYER + 1}" in elsewhere.pool.submit(load_log, eagle3.target, ALL).result()
