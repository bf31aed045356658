"""A session whose target's head lies on another device than the CPU: greedy choices are made there, and logits come to
the host by the row, when they are asked for.

The device is an RPC server on loopback, which counts as a GPU and whose traffic tells what came. Choices are also made
on a stand-in for a GPU, or on a real one in place of both (fixtures.gpus).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from pathlib import Path
from types import TracebackType
from typing import Any

import gguf
import numpy as np
import pytest
from fixtures import rpc
from fixtures.eagle3_checkpoints import CASES, make_draft
from fixtures.gpus import IS_REAL, device_of, devices
from fixtures.llama_pairs import SOFT, complete, load
from fixtures.native import NativeTarget, accept, choose
from fixtures.rpc import offloading
from fixtures.targets import make_target
from fixtures.tiny_gguf import HIDDEN, Variant, write_draft, write_target
from llama_eagle.convert.drafts import convert_draft
from llama_eagle.convert.targets import TargetOptions, convert_target
from llama_eagle.native.build import library_folder
from parity.native_draft import NativeDraft

pytestmark = pytest.mark.native

N_VOCAB = 5003
ROW_BYTES = 4 * N_VOCAB
LONGEST = 16
PROMPT = [104, 101, 108, 108, 111]
ROUND = [97, 40, 120, 100, 101]  # the second token is no greedy choice
TIES = {  # token -> the ids that share its largest logit
    0: (0,),
    1: (N_VOCAB - 1,),
    2: (0, N_VOCAB - 1),
    3: (7, 8, 9),
    4: (N_VOCAB - 2, N_VOCAB - 1),
    5: (1, 2500),
    6: tuple(range(N_VOCAB - 1)),  # equal logits of all would be no numbers
}


@pytest.fixture(scope="module")
def device() -> Iterator[Executor]:
    """A process that knows the device."""
    if IS_REAL:
        pytest.skip("what comes to the host is counted on the way from an RPC server")
    with offloading(library_folder()) as pool:
        yield pool


@pytest.fixture(scope="module", params=devices())
def any_device(request: pytest.FixtureRequest) -> Iterator[Executor]:
    with device_of(request.param) as pool:
        yield pool


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    wide = Variant(n_vocab=N_VOCAB, spread=1.0, mix=0.4)
    return {
        "target": write_target(folder / "target.gguf", SOFT),
        "draft": write_draft(folder / "draft.gguf", SOFT),
        "wide": write_target(folder / "wide.gguf", wide),
        "wide-draft": write_draft(folder / "wide-draft.gguf", wide),
        "ties": tie(write_target(folder / "ties.gguf", Variant(n_vocab=N_VOCAB, spread=1.0))),
    }


def tie(path: Path) -> Path:
    """Gives each token of TIES a dimension of its own, that the ids it names answer alike: sums of one number."""
    tensors = {tensor.name: tensor.data for tensor in gguf.GGUFReader(path, "r+").tensors}
    embedding, head = tensors["token_embd.weight"], tensors["output.weight"]
    embedding[list(TIES), : len(TIES)] = 0
    for dimension, (token, ids) in enumerate(TIES.items()):
        if len(ids) < N_VOCAB - 1:
            head[list(ids)] = 0
        else:
            embedding[token] = 0  # nearly every logit is the same
        embedding[token, dimension] = 8
    for dimension, ids in enumerate(TIES.values()):
        head[:, dimension] = 0
        head[list(ids), dimension] = 100
    return path


class Probe:
    """A session and the context's rows as the parent's code reads them."""

    def __init__(self, target: Path, draft: Path, n_gpu_layers: int) -> None:
        self.target = NativeTarget(target, n_gpu_layers=n_gpu_layers, n_rs_seq=LONGEST)
        self.api, self.ctx = self.target.api, self.target.ctx
        self.draft = NativeDraft(self.target, draft, HIDDEN, LONGEST)
        self.session = self.draft.session

    def __enter__(self) -> Probe:
        return self

    def __exit__(self, kind: type | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.draft.close()
        self.target.__exit__(kind, value, trace)

    def choice(self, row: int) -> tuple[int, int, float]:
        return choose(self.ctx, row)

    def view(self, row: int) -> np.ndarray:
        return np.ctypeslib.as_array(self.api.llama_get_logits_ith(self.ctx, row), (self.target.n_vocab,))

    def rows(self) -> np.ndarray:
        return np.stack([self.view(row).copy() for row in range(len(ROUND))])


def n_received() -> int:
    """Bytes that have come from the device; for the process that knows it."""
    assert rpc.meter
    return rpc.meter.n_received


def best_two(row: np.ndarray) -> tuple[int, int, float]:
    order = np.argsort(-row, kind="stable")
    return int(order[0]), int(order[1]), float(row[order[0]] - row[order[1]])


def on_both(device: Executor, run: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Return the results of `run(..., n_gpu_layers)` on the device and on the host."""
    return [device.submit(run, *arguments, 99).result(), run(*arguments, 0)]


# --- rows on demand ---------------------------------------------------------------------------------------------------


def copied_rows(target: Path, n_gpu_layers: int) -> np.ndarray:
    """Without a session: every row of a round, as upstream copies them."""
    with NativeTarget(target, n_gpu_layers=n_gpu_layers, n_rs_seq=LONGEST) as native:
        native.features(PROMPT)
        return native.decode(ROUND)[0]


def fetched_rows(target: Path, draft: Path, order: list[int]) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Rows in some order, then all of them; and the bytes that each of the first took."""
    with Probe(target, draft, 99) as probe:
        probe.session.eval(PROMPT)
        probe.session.verify(ROUND)
        rows, n_bytes = [], []
        for row in order:
            before = n_received()
            rows.append(probe.view(row).copy())
            n_bytes.append(n_received() - before)
        everything = np.ctypeslib.as_array(probe.api.llama_get_logits(probe.ctx), (len(ROUND), N_VOCAB)).copy()
        return np.stack(rows), everything, n_bytes


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [3, 0, 3, -1, 4, -5], [2]], ids=str)
def test_a_row_comes_when_asked_for_and_once(device: Executor, files: dict[str, Path], order: list[int]) -> None:
    expected = device.submit(copied_rows, files["wide"], 99).result()
    rows, everything, n_bytes = device.submit(fetched_rows, files["wide"], files["wide-draft"], order).result()
    assert np.array_equal(rows, expected[order])
    assert np.array_equal(everything, expected)
    for i, row in enumerate(order):
        again = row % len(ROUND) in [other % len(ROUND) for other in order[:i]]
        assert n_bytes[i] < ROW_BYTES / 2 if again else ROW_BYTES <= n_bytes[i] < 1.5 * ROW_BYTES


def bytes_of_rounds(target: Path, draft: Path) -> dict[str, int]:
    """Return the bytes read from the device in one round, with each kind of choice."""
    found = {}
    with Probe(target, draft, 99) as probe:
        probe.session.eval(PROMPT)
        greedy = probe.api.llama_sampler_chain_init(probe.api.llama_sampler_chain_default_params())
        probe.api.llama_sampler_chain_add(greedy, probe.api.llama_sampler_init_greedy())
        dist = probe.api.llama_sampler_init_dist(1)
        for name, sampler in {"greedy": None, "greedy chain": greedy, "sampled": dist}.items():
            before = n_received()
            probe.session.verify(ROUND)
            assert len(accept(probe.session, ROUND, sampler)) == 1  # the draft is refused: no other row is reached
            found[name] = n_received() - before
            probe.session.commit(0)
        probe.api.llama_sampler_free(greedy)
        probe.api.llama_sampler_free(dist)
    return found


def test_what_a_round_brings_to_the_host(device: Executor, files: dict[str, Path]) -> None:
    found = device.submit(bytes_of_rounds, files["wide"], files["wide-draft"]).result()
    assert found["greedy"] < ROW_BYTES
    assert found["greedy chain"] < ROW_BYTES
    assert ROW_BYTES < found["sampled"] < 2 * ROW_BYTES


# --- the choice -------------------------------------------------------------------------------------------------------


def choices(target: Path, draft: Path, n_gpu_layers: int) -> tuple[list[Any], np.ndarray]:
    """Return the choices of a round's rows and of an evaluation's last row, then their logits."""
    found = []
    with Probe(target, draft, n_gpu_layers) as probe:
        probe.session.eval(PROMPT)
        found += [probe.choice(-1)]
        rows = [probe.view(-1).copy()]
        probe.session.verify(ROUND)
        found += [probe.choice(row) for row in range(len(ROUND))]
        assert probe.choice(-1) == found[-1]
        return found, np.stack(rows + list(probe.rows()))


def test_the_choice_is_that_of_the_logits(any_device: Executor, files: dict[str, Path]) -> None:
    for found, rows in on_both(any_device, choices, files["wide"], files["wide-draft"]):
        assert found == [best_two(row) for row in rows]
    assert len({first for first, _, _ in found}) > 1


def tied_choices(target: Path, draft: Path, n_gpu_layers: int) -> dict[int, list[Any]]:
    """Return, per token, its logits, the choice, and the tokens a round accepts, greedily and by a greedy chain."""
    found: dict[int, list[Any]] = {}
    with Probe(target, draft, n_gpu_layers) as probe:
        greedy = probe.api.llama_sampler_chain_init(probe.api.llama_sampler_chain_default_params())
        probe.api.llama_sampler_chain_add(greedy, probe.api.llama_sampler_init_greedy())
        for token in TIES:
            probe.session.verify([token])
            accepted = [accept(probe.session, [token], sampler) for sampler in (None, greedy)]
            found[token] = [probe.choice(0), *accepted, probe.view(0).copy()]
            probe.session.commit(0)
        probe.session.verify(list(TIES))  # all in one batch
        for row, token in enumerate(TIES):
            found[token].append(probe.choice(row))
        probe.api.llama_sampler_free(greedy)
    return found


def test_ties_go_to_the_lowest_id(any_device: Executor, files: dict[str, Path]) -> None:
    for found in on_both(any_device, tied_choices, files["ties"], files["wide-draft"]):
        for token, (choice, accepted, sampled, row, in_batch) in found.items():
            assert np.flatnonzero(row == row.max()).tolist() == list(TIES[token])  # the logits are what they should be
            assert choice == best_two(row) == in_batch
            assert accepted == sampled == [TIES[token][0]]
            assert (choice[2] == 0) == (len(TIES[token]) > 1)


def changed_choice(target: Path, draft: Path) -> tuple[int, int]:
    with Probe(target, draft, 99) as probe:
        probe.session.eval(PROMPT)
        probe.view(-1)[77] = 1000.0
        changed = probe.choice(-1)[0]
        probe.session.verify(ROUND)
        probe.view(2)[78] = 1000.0
        return changed, probe.choice(2)[0]


def test_a_row_that_was_changed_on_the_host_counts(any_device: Executor, files: dict[str, Path]) -> None:
    assert any_device.submit(changed_choice, files["wide"], files["wide-draft"]).result() == (77, 78)


# --- on the CPU -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_ubatch", [512, 3])
def test_rows_of_the_cpu_are_read_where_they_are(files: dict[str, Path], n_ubatch: int) -> None:
    """No copy is made of a graph's only rows until all of them are asked for, in one piece."""
    with NativeTarget(files["wide"], n_ubatch=n_ubatch) as native:
        first = native.decode(ROUND)[0]
        pointers = [native.api.llama_get_logits_ith(native.ctx, row) for row in range(len(ROUND))]
        rows = [np.ctypeslib.as_array(pointer, (N_VOCAB,)) for pointer in pointers]
        rows[1][7] = 1000.0  # a caller may change what it samples from
        copied = np.ctypeslib.as_array(native.api.llama_get_logits(native.ctx), (len(ROUND), N_VOCAB))
        assert (rows[0].ctypes.data != copied.ctypes.data) == (n_ubatch > len(ROUND))
        assert copied[1, 7] == 1000.0
        assert np.array_equal(copied, np.stack(rows))
        assert np.array_equal(np.delete(copied, 1, axis=0), np.delete(first, 1, axis=0))
        again = np.ctypeslib.as_array(native.api.llama_get_logits_ith(native.ctx, 2), (N_VOCAB,))
        assert again.ctypes.data == copied[2].ctypes.data


# --- decodes that are no rounds, and calls between rounds ----------------------------------------------------------


def other_batches(target: Path, draft: Path | None, n_ubatch: int) -> list[np.ndarray]:
    """Logits of batches that a session does not make: many outputs, outputs of two graphs, outputs of the first."""
    with NativeTarget(target, n_gpu_layers=99, n_rs_seq=LONGEST, n_ubatch=n_ubatch) as native:
        session = NativeDraft(native, draft, HIDDEN, LONGEST) if draft else None
        rows = [native.decode(list(range(40, 40 + n)))[0] for n in (18, 17, 20, 3)]
        rows.append(decode_first(native, list(range(70, 70 + 25))))
        if session:
            session.close()
        rows.append(native.decode(ROUND)[0])
        return rows


def decode_first(native: NativeTarget, tokens: list[int]) -> np.ndarray:
    """The first two tokens' logits of a batch that asks for no others."""
    batch = native.api.llama_batch_init(len(tokens), 0, 1)
    for i, token in enumerate(tokens):
        batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, native.n_past + i, 1
        batch.seq_id[i][0], batch.logits[i] = 0, i < 2
    batch.n_tokens = len(tokens)
    assert native.api.llama_decode(native.ctx, batch) == 0
    native.api.llama_batch_free(batch)
    native.n_past += len(tokens)
    pointers = [native.api.llama_get_logits_ith(native.ctx, i) for i in (0, 1)]
    return np.stack([np.ctypeslib.as_array(pointer, (N_VOCAB,)).copy() for pointer in pointers])


@pytest.mark.parametrize("n_ubatch", [512, 18])
def test_batches_that_are_no_round(any_device: Executor, files: dict[str, Path], n_ubatch: int) -> None:
    expected = any_device.submit(other_batches, files["wide"], None, n_ubatch).result()
    found = any_device.submit(other_batches, files["wide"], files["wide-draft"], n_ubatch).result()
    for ours, theirs in zip(found, expected, strict=True):
        assert np.array_equal(ours, theirs)


def happen(event: str, probe: Probe) -> None:
    """Something that may use the graph's memory."""
    if event == "commit and draft":
        probe.session.commit(2)
        probe.session.draft(ROUND[2], LONGEST)
    elif event == "state saved":
        probe.session.commit(2)
        probe.api.llama_state_seq_get_size(probe.ctx, 0)
    elif event == "positions shifted":
        probe.session.commit(5)
        probe.api.llama_memory_seq_add(probe.api.llama_get_memory(probe.ctx), 0, 4, -1, 1)
        probe.api.llama_state_seq_get_size(probe.ctx, 0)  # shifts now
    elif event == "reserved, then a decode that does not fit":
        probe.session.commit(2)
        probe.target.capture(0)
        tokens = (ctypes.c_int32 * 255)()
        assert probe.api.llama_decode(probe.ctx, probe.api.llama_batch_get_one(tokens, 255)) == 1
    elif event == "session freed":
        probe.session.close()


def rows_after(event: str, target: Path, draft: Path) -> tuple[np.ndarray, int]:
    """A round's rows, first asked for after an event; the bytes that still came."""
    with Probe(target, draft, 99) as probe:
        probe.session.eval(PROMPT)
        probe.session.verify(ROUND)
        happen(event, probe)
        before = n_received()
        return probe.rows(), n_received() - before


def test_rows_stay_when_positions_are_shifted(device: Executor, tmp_path: Path) -> None:
    """Only targets without recurrent memory allow shifts.

    The shift's graph need not use the logits, so bytes decide.
    """
    folder, target, draft = (tmp_path / name for name in ("target", "target.gguf", "draft.gguf"))
    make_target("qwen3", folder, seed=3, dtype="float32")
    convert_target(folder, target, TargetOptions(outtype="f32"))
    convert_draft(make_draft(tmp_path / "draft", CASES["modelopt"]), target, draft)
    expected = device.submit(copied_rows, target, 99).result()
    found, n_bytes = device.submit(rows_after, "positions shifted", target, draft).result()
    assert np.array_equal(found, expected)
    assert n_bytes == 0  # they were fetched before


EVENTS = ["commit and draft", "state saved", "reserved, then a decode that does not fit", "session freed"]


@pytest.mark.parametrize("event", EVENTS)
def test_rows_stay_until_the_next_decode(device: Executor, files: dict[str, Path], event: str) -> None:
    expected = device.submit(copied_rows, files["wide"], 99).result()
    found, n_bytes = device.submit(rows_after, event, files["wide"], files["wide-draft"]).result()
    assert np.array_equal(found, expected)
    assert (n_bytes == 0) == event.startswith("reserved")


@pytest.mark.parametrize("event", EVENTS)
def test_rows_of_the_cpu_stay_until_the_next_decode(files: dict[str, Path], event: str) -> None:
    with Probe(files["wide"], files["wide-draft"], 0) as probe:
        probe.session.eval(PROMPT)
        probe.session.verify(ROUND)
        expected = probe.rows()
        happen(event, probe)
        assert np.array_equal(probe.rows(), expected)


def reused_graphs(target: Path, draft: Path) -> int:
    with Probe(target, draft, 99) as probe:
        probe.session.eval(PROMPT)
        for _ in range(6):
            probe.session.verify(ROUND)
            accept(probe.session, ROUND)
            probe.session.commit(1)
        return int(probe.api.llama_perf_context(probe.ctx).n_reused)


def test_graphs_are_reused(device: Executor, files: dict[str, Path]) -> None:
    assert device.submit(reused_graphs, files["wide"], files["wide-draft"]).result() == 5


# --- the whole --------------------------------------------------------------------------------------------------------


def completions(files: dict[str, Path], draft: str | None, n_gpu_layers: int) -> list[dict[str, Any]]:
    results = []
    for options in ({"temperature": 0.0}, {"temperature": 0.9}, {"temperature": 0.7, "logprobs": 3}):
        with load(files, draft=draft, n_gpu_layers=n_gpu_layers, logits_all="logprobs" in options) as llm:
            results.append(complete(llm, repeat_penalty=1.0 if len(options) == 1 else 1.3, **options))
    return results


def test_completions(device: Executor, files: dict[str, Path]) -> None:
    """Greedy, sampled, and with everything that reads whole rows: the text and logprobs of plain decoding."""
    expected = completions(files, None, 0)
    found = device.submit(completions, files, "draft", -1).result()
    for ours, theirs in zip(found, expected, strict=True):
        assert ours["text"] == theirs["text"]
    ours, theirs = (results[-1]["choices"][0]["logprobs"] for results in (found, expected))
    assert ours["tokens"] == theirs["tokens"]
    assert np.allclose(ours["token_logprobs"], theirs["token_logprobs"], atol=1e-4)
