"""Replay of the recurrent state against upstream's snapshots, byte for byte: logits of every decode, saved states.

The oracle decodes the same batches with LLAMA_EAGLE_RS=snapshots. Where upstream's snapshots cannot do what is asked
(undo a whole round, trim twice, copy with a rollback pending) the oracle goes through a saved state instead.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llama_eagle.bench.round_context import REPLAY, SNAPSHOTS, UNFUSED, DecodeError, RoundContext, RoundModel
from llama_eagle.synthetic.recurrent import ARCHS, Shape, write_recurrent

pytestmark = pytest.mark.native

N_VOCAB = Shape.n_vocab
SHAPES = {
    "qwen35": Shape(state=128, k_heads=2, v_heads=4),
    "qwen35moe": Shape(state=64, k_heads=1, v_heads=2),
    "qwen3next": Shape(state=32, k_heads=2, v_heads=4),
    "lfm2": Shape(),
    "lfm2moe": Shape(conv=5),
    "granitehybrid": Shape(state=128, k_heads=1, v_heads=4, channels=32),
    "falcon-h1": Shape(state=256, k_heads=2, v_heads=4, channels=24),
    "nemotron_h": Shape(state=16, k_heads=2, v_heads=6, channels=16),
    "nemotron_h_moe": Shape(state=32, k_heads=3, v_heads=3, channels=40),
    "mamba2": Shape(state=64, k_heads=1, v_heads=2),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RoundModel]:
    folder = tmp_path_factory.mktemp("recurrent")
    return {arch: RoundModel(write_recurrent(folder / f"{arch}.gguf", arch, SHAPES[arch])) for arch in ARCHS}


@pytest.fixture
def model(models: dict[str, RoundModel]) -> RoundModel:
    return models["qwen35"]


def tokens(rng: random.Random, n: int) -> list[int]:
    return [rng.randrange(N_VOCAB) for _ in range(n)]


def positive_zeros(state: bytes) -> bytes:
    """The state with -0 as 0, in F16 and F32 alike: upstream clears a state by multiplying what was there with 0."""
    words = np.frombuffer(state, np.uint16)
    return np.where(words == 0x8000, 0, words).tobytes()


class Pair:
    """The context under test and its oracle, through the same operations; every result is compared."""

    def __init__(self, model: RoundModel, **options: object) -> None:
        mode = options.pop("mode", REPLAY)
        self.ours: RoundContext = model.context(mode=mode, **options)
        self.oracle: RoundContext = model.context(mode=SNAPSHOTS, **options)
        self.both = (self.ours, self.oracle)

    def decode(self, batch: dict[int, list[int]]) -> np.ndarray:
        ours, oracle = (context.decode(batch) for context in self.both)
        assert np.isfinite(ours).all()
        assert np.ptp(ours) > 0.1
        assert np.array_equal(ours, oracle)
        return ours

    def round(self, batch: dict[int, list[int]], kept: dict[int, int]) -> None:
        """Decodes the batch and keeps the first kept[seq] rows of each sequence."""
        start = dict(self.ours.n_past)
        before = {seq: self.oracle.save(seq) for seq in batch if kept[seq] == 0 and start[seq] > 0}
        self.decode(batch)
        for seq, ids in batch.items():
            if kept[seq] == len(ids):
                continue
            assert self.ours.trim(seq, start[seq] + kept[seq])
            if kept[seq] > 0:
                assert self.oracle.trim(seq, start[seq] + kept[seq])
            elif start[seq] > 0:
                self.oracle.load(seq, before[seq], start[seq])
            else:
                self.oracle.remove(seq)

    def settle(self, seq: int) -> bytes:
        """Saves both, compares, and loads the oracle back, so that no rollback is pending in it."""
        ours, oracle = (context.save(seq) for context in self.both)
        assert positive_zeros(ours) == positive_zeros(oracle)
        self.oracle.load(seq, oracle, self.oracle.n_past[seq])
        return ours

    def reload(self, seq: int) -> None:
        state, n_past = self.settle(seq), self.ours.n_past[seq]
        self.ours.remove(seq)
        self.ours.load(seq, state, n_past)

    def copy(self, source: int, target: int) -> None:
        saved = self.oracle.save(source)
        self.oracle.load(source, saved, self.oracle.n_past[source])
        for context in self.both:
            context.copy(source, target)

    def finish(self) -> None:
        for seq, n_past in self.ours.n_past.items():
            if n_past:
                self.settle(seq)


def draw_round(rng: random.Random, n_seq: int, n_draft_max: int) -> tuple[dict[int, int], dict[int, int]]:
    """Rows and kept rows per sequence.

    A batch that llama.cpp splits (sequences with gaps, unequal rows) may move a cell after it was decoded; upstream
    then restores a plane that did not move. Such rounds keep all rows here and are trimmed in test_trim_after_a_move.
    """
    if rng.random() < 0.25:
        n = {seq: 1 + rng.randint(0, n_draft_max) for seq in sorted(rng.sample(range(n_seq), rng.randint(1, n_seq)))}
        if len(n) > 1:
            return n, n
    first = rng.randrange(n_seq)
    n = dict.fromkeys(range(first, rng.randint(first + 1, n_seq)), 1 + rng.randint(0, n_draft_max))
    return n, {seq: rng.randint(0 if rng.random() < 0.2 else 1, rows) for seq, rows in n.items()}


def run_script(pair: Pair, rng: random.Random, n_draft_max: int, n_rejections: int) -> None:
    """Rounds of any length on any sequences, plain decodes, saves, loads, copies and removals in between."""
    n_seq, rejected = len(pair.ours.n_past), 0
    while rejected < n_rejections:
        for seq in range(n_seq):
            if pair.ours.n_past[seq] > 400:
                for context in pair.both:
                    context.remove(seq)
        live = [seq for seq in range(n_seq) if pair.ours.n_past[seq]]
        action = rng.random()
        if action < 0.06 and live:
            pair.reload(rng.choice(live))
        elif action < 0.10 and len(live) > 0 and n_seq > 1:
            source = rng.choice(live)
            pair.copy(source, rng.choice([seq for seq in range(n_seq) if seq != source]))
        elif action < 0.13:
            pair.decode({rng.randrange(n_seq): tokens(rng, rng.randint(1, 60))})
        else:
            n, kept = draw_round(rng, n_seq, n_draft_max)
            pair.round({seq: tokens(rng, rows) for seq, rows in n.items()}, kept)
            rejected += sum(n.values()) - sum(kept.values())
    pair.finish()


@pytest.mark.parametrize("mode", [REPLAY, UNFUSED])
@pytest.mark.parametrize("arch", ARCHS)
def test_rounds_equal_snapshots(models: dict[str, RoundModel], arch: str, mode: str) -> None:
    pair = Pair(models[arch], mode=mode, n_rs_seq=4)
    run_script(pair, random.Random(7), n_draft_max=4, n_rejections=100)


def test_several_threads(model: RoundModel) -> None:
    run_script(Pair(model, n_rs_seq=4, n_threads=3), random.Random(8), n_draft_max=4, n_rejections=20)


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 2**32),
    arch=st.sampled_from(ARCHS),
    n_rs=st.sampled_from([1, 2, 4, 16]),
    n_seq=st.integers(1, 4),
)
def test_scripts(models: dict[str, RoundModel], seed: int, arch: str, n_rs: int, n_seq: int) -> None:
    pair = Pair(models[arch], n_rs_seq=n_rs, n_seq_max=n_seq)
    run_script(pair, random.Random(seed), n_draft_max=n_rs, n_rejections=100)


@pytest.mark.slow
@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 2**32),
    arch=st.sampled_from(ARCHS),
    mode=st.sampled_from([REPLAY, REPLAY, REPLAY, UNFUSED]),
    n_rs=st.integers(1, 16),
    n_seq=st.integers(1, 4),
    n_ubatch=st.sampled_from([18, 40, 512]),
    n_threads=st.integers(1, 3),
)
def test_many_scripts(models: dict[str, RoundModel], seed: int, arch: str, n_rs: int, **options: object) -> None:
    options["n_seq_max"] = options.pop("n_seq")
    if options["n_seq_max"] > 1:
        options["n_ubatch"] = 512  # smaller ones split batches: see draw_round
    pair = Pair(models[arch], n_rs_seq=n_rs, **options)
    run_script(pair, random.Random(seed), n_draft_max=n_rs, n_rejections=100)


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("arch", ARCHS)
def test_rounds_equal_single_steps(models: dict[str, RoundModel], arch: str, n_threads: int) -> None:
    """Exact kernels, the default: the kept rows of a round are those of decoding the kept tokens one at a time."""
    rng = random.Random(13)
    rounds = models[arch].context(n_rs_seq=15, n_threads=n_threads)
    steps = models[arch].context(n_rs_seq=0, n_threads=n_threads)
    prompt = {0: tokens(rng, 20)}
    assert np.array_equal(rounds.decode(prompt), steps.decode(prompt))
    rejected = 0
    while rejected < 100:
        ids = tokens(rng, rng.randint(1, 16))
        kept = rng.randint(1, len(ids))
        rows = rounds.decode({0: ids})
        for token, row in zip(ids[:kept], rows, strict=False):
            assert np.array_equal(steps.decode({0: [token]})[0], row)
        assert rounds.trim(0, steps.n_past[0])
        rejected += len(ids) - kept
    assert positive_zeros(rounds.save(0)) == positive_zeros(steps.save(0))


@pytest.mark.parametrize("state", [16, 32, 64, 128])
def test_every_head_size(tmp_path: Path, state: int) -> None:
    model = RoundModel(write_recurrent(tmp_path / "m.gguf", "qwen35", Shape(state=state, v_heads=3, k_heads=1)))
    run_script(Pair(model, n_rs_seq=3, n_seq_max=2), random.Random(state), n_draft_max=3, n_rejections=40)


# --- one test for each way this is known to go wrong ------------------------------------------------------------


def start(model: RoundModel, **options: object) -> Pair:
    pair = Pair(model, **options)
    pair.decode({0: tokens(random.Random(1), 20)})
    return pair


def test_replay_happens_once(model: RoundModel) -> None:
    """A replay length that is not consumed replays the same tokens before every later decode."""
    pair = start(model)
    pair.round({0: [1, 2, 3, 4, 5]}, {0: 2})
    for token in range(6):
        pair.decode({0: [token]})
    pair.finish()


def test_a_reused_graph_reads_the_new_replay_length(model: RoundModel) -> None:
    """The length is an input: graphs are reused whatever it is, and obey it."""
    pair = start(model)
    pair.round({0: [1, 2, 3, 4, 5]}, {0: 5})
    before = pair.ours.n_reused
    for kept in (1, 5, 2, 0, 3, 4, 1, 2, 0, 5):
        pair.round({0: [kept, 2, 3, 4, 5]}, {0: kept})
    assert pair.ours.n_reused - before == 10
    pair.finish()


def test_plain_decodes_reuse_the_graph(model: RoundModel) -> None:
    pair = start(model, n_rs_seq=0)
    pair.decode({0: [1]})
    before = pair.ours.n_reused
    for token in range(10):
        pair.decode({0: [token]})
    assert pair.ours.n_reused - before == 10
    pair.finish()


def test_rounds_shorter_than_the_longest(model: RoundModel) -> None:
    """The commit point of a batch with T <= n_rs_seq is its start, not T - n_rs_seq."""
    pair = start(model, n_rs_seq=8)
    for n in (2, 8, 1, 9, 3, 5, 1, 1, 7):
        pair.round({0: tokens(random.Random(n), n)}, {0: max(1, n // 2)})
    pair.finish()


def test_a_rejected_token_leaves_no_trace(model: RoundModel) -> None:
    """Looping output raises acceptance and looks like a speed-up: what was rejected must not be continued."""
    first, second = start(model), start(model)
    first.round({0: [1, 2, 3, 4, 5]}, {0: 1})
    second.round({0: [1, 60, 61, 62, 63]}, {0: 1})
    assert first.decode({0: [9]}).tobytes() == second.decode({0: [9]}).tobytes()


def test_undo_of_the_whole_last_batch(model: RoundModel) -> None:
    """ggml-org/llama.cpp#26695: seq_rm says true and nothing is restored."""
    pair = start(model)
    reference = pair.ours.save(0)
    pair.round({0: [1, 2, 3, 4, 5]}, {0: 0})
    assert pair.ours.save(0) == reference
    pair.decode({0: [7]})
    pair.finish()


def test_single_steps_after_a_batch_leave_one_token_to_undo(model: RoundModel) -> None:
    """ggml-org/llama.cpp#29117: older planes are stale after single-token steps."""
    pair = start(model)
    pair.decode({0: [1, 2, 3, 4, 5]})
    before = pair.ours.save(0)
    pair.decode({0: [6]})
    assert not pair.ours.trim(0, pair.ours.n_past[0] - 2)
    assert pair.ours.trim(0, pair.ours.n_past[0] - 1)
    assert pair.ours.save(0) == before


def test_no_more_is_undone_than_was_recorded(model: RoundModel) -> None:
    """Upstream accepts any rollback up to n_rs_seq and restores stale planes."""
    context = model.context(n_rs_seq=4)
    context.decode({0: tokens(random.Random(0), 20)})
    context.decode({0: [1, 2]})
    assert not context.trim(0, 19)
    assert context.trim(0, 20)
    assert not context.trim(0, 19)


def test_a_long_batch_can_be_trimmed(model: RoundModel) -> None:
    pair = start(model)
    pair.round({0: tokens(random.Random(3), 50)}, {0: 46})
    pair.decode({0: [1, 2]})
    pair.finish()
    assert not start(model).ours.trim(0, 14)  # 20 tokens, n_rs_seq + 1 = 5 of them can go
    assert start(model).ours.trim(0, 15)


def test_trim_in_two_steps_is_one_trim(model: RoundModel) -> None:
    twice, once = start(model), start(model)
    for pair in (twice, once):
        pair.decode({0: [1, 2, 3, 4, 5]})
    assert twice.ours.trim(0, 23)
    assert twice.ours.trim(0, 21)
    assert once.ours.trim(0, 21)
    assert twice.ours.decode({0: [8]}).tobytes() == once.ours.decode({0: [8]}).tobytes()
    assert twice.ours.save(0) == once.ours.save(0)


@pytest.mark.parametrize("mode", [REPLAY, UNFUSED])
@pytest.mark.parametrize("arch", ARCHS)
def test_decodes_that_commit_at_once(models: dict[str, RoundModel], arch: str, mode: str) -> None:
    """They replay what a round has left, leave nothing themselves, and rounds go on behind them."""
    pair = start(models[arch], mode=mode, n_seq_max=2)
    for kept in (2, 5, 1, 0):
        pair.round({0: [1, 2, 3, 4, 5], 1: [6, 7, 8, 9, 1]}, {0: kept, 1: 3})
        pair.ours.commit_at_once(True)
        for ids in ([6], [7], [8, 9, 1], tokens(random.Random(kept), 20)):
            pair.decode({0: ids, 1: ids})
            assert not pair.ours.trim(0, pair.ours.n_past[0] - 1)
        pair.ours.commit_at_once(False)
    pair.finish()


def test_a_graph_that_commits_at_once_serves_no_other_decode(model: RoundModel) -> None:
    pair = start(model)
    pair.decode({0: [1]})
    for wanted in (True, False, True, False):
        pair.ours.commit_at_once(wanted)
        before = pair.ours.n_reused
        for token in range(4):
            pair.decode({0: [token]})
        assert pair.ours.n_reused - before == 3
    assert pair.ours.trim(0, pair.ours.n_past[0] - 1)


def test_saving_with_a_pending_rollback(model: RoundModel) -> None:
    """Upstream aborts when two sequences of a cell differ, and writes a plane otherwise; here the replay is done."""
    pair = start(model, n_seq_max=2)
    pair.round({0: [1, 2, 3, 4, 5]}, {0: 3})
    pair.settle(0)
    pair.decode({0: [4]})
    pair.finish()


def test_nothing_is_undone_after_a_load_or_save(model: RoundModel) -> None:
    context = model.context()
    context.decode({0: tokens(random.Random(0), 20)})
    state = context.save(0)
    assert not context.trim(0, 19)
    context.decode({0: [1, 2, 3]})
    context.load(0, state, 20)
    assert not context.trim(0, 19)


def test_sequences_change_cells(model: RoundModel) -> None:
    """Batches over changing sets of sequences move states between cells, with replays pending."""
    pair = Pair(model, n_seq_max=4)
    rng = random.Random(5)
    for seqs in ([0], [1], [2, 3], [0, 2], [1, 3], [0, 1, 2, 3], [3], [0, 3], [1, 2]) * 3:
        n = rng.randint(1, 5)
        pair.round({seq: tokens(rng, n) for seq in seqs}, {seq: rng.randint(1, n) for seq in seqs})
    pair.finish()


def test_a_copied_sequence_carries_the_pending_replay(model: RoundModel) -> None:
    pair = start(model, n_seq_max=3)
    pair.round({0: [1, 2, 3, 4, 5]}, {0: 3})
    pair.copy(0, 2)
    assert not pair.ours.trim(0, 22)  # the cell is shared: the other sequence would lose its tokens too
    pair.round({0: [6, 7, 8], 2: [9, 10, 11]}, {0: 1, 2: 2})
    pair.decode({0: [1], 2: [2]})
    pair.finish()


def test_trim_after_a_move(model: RoundModel) -> None:
    """A batch of several ubatches moves cells between them; each sequence must go on as it would alone.

    Upstream's snapshots are off by whole logits here, batch shapes only by rounding.
    """
    rng, context, alone = random.Random(11), model.context(n_seq_max=3), [model.context() for _ in range(3)]
    for _ in range(60):
        seqs = sorted(rng.sample(range(3), rng.randint(1, 3)))
        batch = {seq: tokens(rng, rng.randint(1, 5)) for seq in seqs}
        rows = np.concatenate([alone[seq].decode({0: ids}) for seq, ids in batch.items()])
        assert np.abs(context.decode(batch) - rows).max() < 1e-3
        for seq, ids in batch.items():
            n_past = context.n_past[seq] - rng.randint(0, len(ids) - 1)
            assert context.trim(seq, n_past)
            assert alone[seq].trim(0, n_past)


@pytest.mark.parametrize("arch", ARCHS)
def test_aborted_decode_must_be_evaluated_again(models: dict[str, RoundModel], arch: str) -> None:
    """Half of the layers have advanced: the sequence is refused until it is removed, others go on."""
    import ctypes

    import llama_cpp

    context = models[arch].context(n_seq_max=2)
    prompt = tokens(random.Random(2), 20)
    expected = context.decode({0: prompt})
    context.decode({1: prompt})
    calls = iter(range(10**9))
    abort = llama_cpp.ggml_abort_callback(lambda _: next(calls) == 40)
    llama_cpp.llama_set_abort_callback(context.handle, abort, ctypes.c_void_p(0))
    with pytest.raises(DecodeError, match=r"llama_memory_seq_rm\(mem, seq, -1, -1\)") as error:
        context.decode({0: [1, 2, 3]})
    assert error.value.code == 2
    assert not context.trim(0, 20)
    context.n_past[0] = 23  # what llama.cpp says is in memory
    llama_cpp.llama_set_abort_callback(context.handle, llama_cpp.ggml_abort_callback(0), ctypes.c_void_p(0))
    with pytest.raises(DecodeError, match=r"llama_memory_seq_rm\(mem, 0, -1, -1\)"):
        context.decode({0: [1]})
    context.decode({1: [1]})
    context.remove(0)
    assert context.decode({0: prompt}).tobytes() == expected.tobytes()


def test_n_ubatch_too_small_is_an_error_by_name(model: RoundModel) -> None:
    with pytest.raises(RuntimeError, match=r"n_ubatch \(5\) must be at least n_rs_seq \+ 2 \(6\)"):
        model.context(n_rs_seq=4, n_ubatch=5)
    run_script(Pair(model, n_rs_seq=4, n_ubatch=6), random.Random(1), n_draft_max=4, n_rejections=20)


def test_unknown_mode_is_an_error(model: RoundModel) -> None:
    with pytest.raises(RuntimeError, match="LLAMA_EAGLE_RS=fast is not known: use replay, unfused or snapshots"):
        model.context(mode="fast")


@pytest.mark.parametrize(
    ("arch", "heads", "least"),
    [
        ("qwen35", {"k_heads": 16, "v_heads": 32}, 6.0),  # 4B
        ("mamba2", {"k_heads": 1, "v_heads": 64, "channels": 64}, 8.0),  # Granite 4.0-H-Micro
        ("mamba2", {"k_heads": 8, "v_heads": 128, "channels": 64}, 16.0),  # Nemotron-H-8B
    ],
)
def test_records_are_small(tmp_path: Path, arch: str, heads: dict[str, int], least: float) -> None:
    """A rollback depth of 8 adds at most a tenth of eight copies of the state, at the head counts of real models."""
    shape = Shape(n_embd=8, n_ff=8, state=128, **heads)  # type: ignore[arg-type]
    model = RoundModel(write_recurrent(tmp_path / "m.gguf", arch, shape))
    plain, replay = (model.context(n_rs_seq=n).recurrent_mib() for n in (0, 8))
    assert plain > least
    assert 0 < replay - plain <= 8 * plain / 10
    if arch == "qwen35":  # llama.cpp reserves too few nodes for copies of that many states of Mamba 2
        snapshots = model.context(n_rs_seq=8, mode=SNAPSHOTS).recurrent_mib()
        assert snapshots - plain == pytest.approx(8 * plain, rel=0.01)


def test_states_of_other_sizes_are_an_error(tmp_path: Path) -> None:
    model = RoundModel(write_recurrent(tmp_path / "m.gguf", "falcon-h1", Shape(state=24, v_heads=4, channels=16)))
    with pytest.raises(RuntimeError, match=r"states of 24 values .* cannot be replayed .* n_rs_seq = 0"):
        model.context(n_rs_seq=4)
    assert np.isfinite(model.context(n_rs_seq=0).decode({0: [1, 2, 3]})).all()


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("LLAMA_EAGLE_RS", raising=False)
    yield
