"""Target and draft on one device, on two, or across both: the same drafts, and features that stay where they are.

The second device is an RPC server on loopback (fixtures.rpc), or a stand-in for a GPU (fixtures.gpus).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from fixtures import rpc
from fixtures.eagle3_checkpoints import CASES, TARGET_HIDDEN, make_draft
from fixtures.gpus import Gpus, gpus
from fixtures.rpc import offloading
from fixtures.targets import make_target
from llama_eagle.convert.drafts import convert_draft
from llama_eagle.convert.targets import TargetOptions, convert_target
from llama_eagle.errors import IncompatibleModels
from llama_eagle.gguf.header import read_header
from llama_eagle.native.build import library_folder
from llama_eagle.quantize.quantize import QuantizeOptions, quantize
from llama_eagle.sessions.models import Context, ModelPair
from llama_eagle.sessions.options import ContextOptions, PairOptions, SessionOptions
from llama_eagle.sessions.session import EagleSession
from parity.pairs import (
    ALL,
    HOST,
    N_DRAFT,
    N_LAYER,
    N_UBATCH,
    Files,
    Layers,
    Trace,
    assert_equal,
    make_pair,
    play,
    session_on,
)

pytestmark = pytest.mark.native

PLACEMENTS = {"draft": (0, ALL), "target": (ALL, 0), "both": (ALL, ALL), "split": (N_LAYER // 2 + 1, ALL)}
PROMPT = np.random.default_rng(2).integers(0, 480, 150).tolist()  # several pieces of N_UBATCH
MORE = [N_DRAFT] * 5  # rounds after a state was saved or loaded


@dataclass(frozen=True)
class Saved:
    """A conversation after n_past tokens; id_last is the one to follow."""

    target: bytes
    session: bytes
    id_last: int
    n_past: int


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Executor]:
    with offloading(library_folder()) as pool:
        yield pool


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return make_pair("qwen35", tmp_path_factory.mktemp("pair"))


def converse(files: Files, layers: Layers) -> tuple[Trace, Saved, Trace]:
    """A prompt, rounds, a stretch in which only rows pile up, rounds, a step back, rounds; its state; more rounds."""
    with session_on(files, layers) as session:
        session.eval(PROMPT)
        before, id_last = play(session, PROMPT[0], [N_DRAFT] * 5 + [0] * 80 + [N_DRAFT] * 5)
        assert session.trim(session.n_past - 1)
        after, id_last = play(session, id_last, [N_DRAFT] * 2)
        saved = Saved(target_state(session.ctx), session.save_state(), id_last, session.n_past)
        more, _ = play(session, id_last, MORE)
    return Trace(before.drafts + after.drafts, before.probs + after.probs, before.text + after.text), saved, more


def go_on(files: Files, layers: Layers, saved: Saved) -> Trace:
    import llama_cpp

    with session_on(files, layers) as session:
        data = (ctypes.c_uint8 * len(saved.target)).from_buffer_copy(saved.target)
        assert llama_cpp.llama_state_set_data(session.ctx, data, len(data)) == len(data)
        session.load_state(saved.session, saved.n_past)
        return play(session, saved.id_last, MORE)[0]


def target_state(ctx: Any) -> bytes:
    import llama_cpp

    data = (ctypes.c_uint8 * llama_cpp.llama_state_get_size(ctx))()
    return bytes(data[: llama_cpp.llama_state_get_data(ctx, data, len(data))])


@pytest.fixture(scope="module")
def on_host(files: Files) -> tuple[Trace, Saved, Trace]:
    return converse(files, HOST)


@pytest.mark.parametrize("layers", PLACEMENTS.values(), ids=PLACEMENTS.keys())
def test_placements(elsewhere: Executor, files: Files, on_host: tuple[Trace, Saved, Trace], layers: Layers) -> None:
    """The same conversation as on the host, and the states of both go on in the other."""
    expected, saved_on_host, expected_more = on_host
    found, saved, more = elsewhere.submit(converse, files, layers).result()
    assert_equal(found, expected)
    assert_equal(more, expected_more)
    assert_equal(go_on(files, HOST, saved), expected_more)
    assert_equal(elsewhere.submit(go_on, files, layers, saved_on_host).result(), expected_more)


def received(files: Files, layers: Layers) -> int:
    """Bytes that came from the second device while a prompt was evaluated."""
    with session_on(files, layers) as session:
        session.eval(PROMPT[:N_UBATCH])  # graphs are made
        assert rpc.meter is not None
        before = rpc.meter.n_received
        session.eval(PROMPT)
        return rpc.meter.n_received - before


def test_features_stay_on_the_device(elsewhere: Executor, files: Files) -> None:
    """They are by far the largest thing that a prompt leaves there."""
    feature_bytes = 4 * 3 * TARGET_HIDDEN * len(PROMPT)
    assert elsewhere.submit(received, files, (ALL, ALL)).result() < feature_bytes / 10
    assert elsewhere.submit(received, files, (ALL, 0)).result() >= feature_bytes  # the meter sees them


# --- a head shared with a target that keeps it rearranged ---


def make_shared(folder: Path, head_type: str) -> Files:
    """Quantized blocks are padded to 256 columns."""
    made, source = Files(folder / "target.gguf", folder / "draft.gguf"), folder / "f16.gguf"
    checkpoint = make_target("qwen3", folder / "target", hidden_size=256, intermediate_size=256)
    convert_target(checkpoint, source, TargetOptions(outtype="f16"))
    quantize(source, made.target, "q4_0", QuantizeOptions(output_type=head_type))
    spec = replace(CASES["shared-head"], hidden=256, target_hidden=256)
    convert_draft(make_draft(folder / "draft", spec), made.target, made.draft)
    return made


def split(path: Path, folder: Path) -> Path:
    """The same model in several files; the head is not in the first."""
    folder.mkdir()
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(folder / "model.gguf", "qwen3", split_max_tensors=len(reader.tensors) // 3)
    for field in reader.fields.values():
        if not field.name.startswith(("GGUF.", "general.architecture")):
            types = [*field.types, None]
            writer.add_key_value(field.name, field.contents(), types[0], sub_type=types[1])
    tensors = sorted(reader.tensors, key=lambda tensor: tensor.name == "output.weight")
    for tensor in tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    first = min(folder.glob("model-00001-of-*.gguf"))
    assert "output.weight" not in read_header(first).tensors
    return first


def drafts_on(files: Files, layers: Layers) -> Trace:
    with session_on(files, layers) as session:
        session.eval(PROMPT)
        return play(session, PROMPT[0], [N_DRAFT] * 3)[0]


@dataclass(frozen=True)
class PathOf:
    """A context that says it was loaded from `model_path`."""

    context: Context
    model_path: Path

    def __getattr__(self, name: str) -> Any:
        return getattr(self.context, name)


def why_not(files: Files, path: Path) -> str:
    """Why there is no session with the draft on the second device when the target is said to be at `path`; '': no."""
    pair = PairOptions(files.target, files.draft, draft_gpu_layers=ALL)
    with ModelPair(pair) as models, Context(models.target, ContextOptions(64)) as context:
        assert models.draft is not None
        try:
            EagleSession(PathOf(context, path), models.draft, SessionOptions(N_DRAFT)).close()
        except IncompatibleModels as error:
            return str(error)
    return ""


@pytest.mark.parametrize("head_type", ["q4_0", "q4_k", "q8_0", "q6_k"])
def test_a_shared_head(elsewhere: Executor, tmp_path: Path, head_type: str) -> None:
    """Repacked, for AMX or in our own layout on the CPU, it follows the draft to another device."""
    files = make_shared(tmp_path, head_type)
    found = elsewhere.submit(drafts_on, files, (0, ALL)).result()
    expected = drafts_on(files, HOST)
    assert found.drafts == expected.drafts
    assert found.text == expected.text
    assert np.allclose(found.probs, expected.probs, rtol=0, atol=0.01)  # kernels of another layout


def test_a_shared_head_in_split_files(elsewhere: Executor, tmp_path: Path) -> None:
    whole = make_shared(tmp_path, "q4_0")
    expected = elsewhere.submit(drafts_on, whole, (0, ALL)).result()
    found = elsewhere.submit(drafts_on, replace(whole, target=split(whole.target, tmp_path / "split")), (0, ALL))
    assert found.result() == expected


def test_a_shared_head_needs_the_targets_file(elsewhere: Executor, tmp_path: Path) -> None:
    files = make_shared(tmp_path, "q4_0")
    if not elsewhere.submit(why_not, files, tmp_path / "missing.gguf").result():
        pytest.skip("this CPU keeps such weights in our own layout, which is read back without the file")
    for path, why in (
        (tmp_path / "missing.gguf", "cannot be read"),
        (tmp_path / "f16.gguf", "another type or shape"),
        (files.draft, "no weight output.weight"),
    ):
        text = elsewhere.submit(why_not, files, path).result()
        assert why in text and "draft_gpu_layers 0" in text, text
    assert elsewhere.submit(why_not, files, files.target).result() == ""


def test_our_own_layout_is_read_back(elsewhere: Executor, tmp_path: Path) -> None:
    """Without the file."""
    files = make_shared(tmp_path, "q8_0")
    assert "CPU_EAGLE" not in elsewhere.submit(why_not, files, tmp_path / "missing.gguf").result()


# --- what only a GPU does ---


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return make_pair("qwen3", tmp_path_factory.mktemp("dense"))


@dataclass(frozen=True)
class OnDevice:
    trace: Trace
    device: str
    notice: str


def drafts_on_device(files: Files, layers: Layers) -> OnDevice:
    trace = drafts_on(files, layers)
    with session_on(files, layers) as session:
        return OnDevice(trace, session.draft_device, session.draft_notice)


def test_each_row_has_its_own_position(dense: Files) -> None:
    """On a device that ignores what an offset has below its alignment."""
    with gpus() as pool:
        found = pool.submit(drafts_on_device, dense, (0, ALL)).result()
    assert (found.device, found.notice) == ("GPU0", "")
    assert_equal(found.trace, drafts_on(dense, HOST))


def test_a_device_that_lacks_an_operation(dense: Files) -> None:
    """The draft goes to the CPU, and says why."""
    with gpus(Gpus(lacks=("FLASH_ATTN_EXT",))) as pool:
        found = pool.submit(drafts_on_device, dense, (0, ALL)).result()
    assert found.device == "CPU"
    assert "GPU0 does not compute its FLASH_ATTN_EXT" in found.notice and "draft_gpu_layers 0" in found.notice
    assert_equal(found.trace, drafts_on(dense, HOST))


def test_a_draft_without_numbers(dense: Files, tmp_path: Path) -> None:
    """Logits that are NaN, of which ARGMAX chooses none: drafts are useless, the text is the target's."""
    broken = replace(dense, draft=tmp_path / "draft.gguf")
    Path(broken.draft).write_bytes(Path(dense.draft).read_bytes())
    (norm,) = (t for t in gguf.GGUFReader(broken.draft, "r+").tensors if t.name == "output_norm.weight")
    norm.data[:] = np.nan
    with gpus() as pool:
        found = pool.submit(drafts_on_device, broken, (0, ALL)).result()
    assert found.device == "GPU0" and np.isnan(found.trace.probs).all()
    expected = drafts_on(dense, HOST).text
    n = min(len(expected), len(found.trace.text))
    assert found.trace.text[:n] == expected[:n]
