"""The pure parts of sessions and rounds: statistics, checkpoints, look-up, growing text, sampling parameters."""

from __future__ import annotations

import random
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_eagle import diagnosis
from llama_eagle.drafting.lookup import PromptLookup
from llama_eagle.drafting.model import ModelDrafter
from llama_eagle.drafting.options import DRAFT_VOCAB, DraftingOptions
from llama_eagle.drafting.resolve import session_options
from llama_eagle.drop_in.attributes import _fitting
from llama_eagle.drop_in.text import GrowingText
from llama_eagle.errors import EagleError, EnvironmentFailure, InputError, UsageError
from llama_eagle.generation.options import GenerationOptions, SamplingParams
from llama_eagle.generation.stats import Statistics
from llama_eagle.gguf import mtp, size
from llama_eagle.native.limits import MAX_CONTEXT
from llama_eagle.native.processor.cores import alike
from llama_eagle.quantize.collect import SMALLEST, CollectOptions
from llama_eagle.sessions.checkpoints import Checkpoint, CheckpointStore
from llama_eagle.sessions.options import ContextOptions
from llama_eagle.sessions.text import StopText, TextStream


class Bytes:
    """A tokenizer whose tokens are bytes, but for 256: a token of several bytes, and 257: nothing."""

    def piece(self, token: int, *, special: bool = False) -> bytes:
        if token >= 256:
            return (b"<bos>" if special else b"") if token == 257 else "é€😀".encode()
        return bytes([token])


def test_statistics_read_well() -> None:
    statistics = Statistics("MTP")
    assert str(statistics) == "no rounds yet"
    statistics.add_round(2, 2, 3, "MTP")
    statistics.add_round(2, 1, 2, "MTP")
    statistics.ms = {"draft": 1.4, "verify": 10.6}
    assert str(statistics) == (
        "5 tokens in 2 rounds, 2.50 per round; MTP: 75% of 4 drafted tokens accepted (by position: 100% 50%); "
        "ms: draft 1, verify 11"
    )


def test_statistics() -> None:
    statistics = Statistics()
    for n_draft, n_accepted in ((3, 3), (3, 0), (2, 1), (0, 0)):
        statistics.add_round(n_draft, n_accepted, n_accepted + 1, "MTP" if n_draft else "none")
    assert statistics.rounds_of == {"MTP": 3, "none": 1}
    assert statistics.accepted_per_position == [2 / 3, 1 / 2, 1.0]
    assert statistics.accept_rate == 4 / 8
    assert statistics.mean_emitted == 8 / 4
    total = Statistics(ms={"draft": 1.0})
    total.add(statistics)
    total.add(statistics)
    assert (total.rounds, total.n_drafted, total.accepted_per_position) == (8, 16, [2 / 3, 1 / 2, 1.0])


def test_checkpoints_keep_what_is_missed_most() -> None:
    store = CheckpointStore(budget=40)
    for n_past in (10, 15, 100, 200, 210):
        store.add(Checkpoint(n_past, bytes(10)))
    assert store.positions == [10, 100, 200, 210]  # 15 was the closest to its predecessor, 210 is the newest
    assert store.n_bytes == 40
    assert [store.best(n).n_past for n in (10, 99, 205, 500)] == [10, 10, 200, 210]  # type: ignore[union-attr]
    assert store.best(9) is None
    store.forget_after(150)
    assert store.positions == [10, 100]
    store.add(Checkpoint(120, bytes(41)))  # alone above the budget
    assert store.positions == [10, 100]
    store.add(Checkpoint(100, b"new"))
    assert store.best(100) == Checkpoint(100, b"new")


@pytest.mark.native
def test_prompt_lookup_proposes_what_followed_the_last_occurrence() -> None:
    lookup = PromptLookup(n_gram=3, n_min=2)
    lookup.begin([1, 2, 3, 4, 5, 1, 2, 3, 9, 9])
    lookup.accept([1, 2])
    assert lookup.draft(3, 3) == [9, 9, 1]
    assert lookup.draft(3, 1) == [9]
    assert lookup.draft(7, 4) == []
    lookup.begin([5])
    assert lookup.draft(3, 4) == []
    lookup.begin([1, 2])
    assert lookup.draft(3, 1) == [9]  # of the text before


def test_the_parents_draft_models_see_all_tokens() -> None:
    seen: list[list[int]] = []

    def model(tokens: Any) -> Any:
        seen.append(tokens.tolist())
        return tokens[:5]

    drafter = ModelDrafter(model)
    drafter.begin([1, 2])
    assert drafter.draft(3, 2) == [1, 2]
    drafter.accept([3, 4])
    drafter.draft(5, 1)
    assert seen == [[1, 2, 3], [1, 2, 3, 4, 5]]


def test_growing_text_equals_joining_anew() -> None:
    rng = random.Random(2)
    growing = GrowingText(Bytes(), bos=257)  # type: ignore[arg-type]
    tokens: list[int] = [257, 32]
    for _ in range(400):
        tokens = [*tokens, rng.randrange(258)] if rng.random() < 0.95 else tokens[: rng.randrange(1, len(tokens))]
        special = rng.random() < 0.1
        text = b"".join(Bytes().piece(token, special=special) for token in tokens)
        expected = text[1:] if tokens[0] == 257 and text[:1] == b" " else text
        assert growing.detokenize(tokens, special=special) == expected
        growing.detokenize(tokens[-3:], special=False)  # a short list in between disturbs nothing


def test_text_stream_waits_for_whole_characters() -> None:
    stream = TextStream(Bytes())  # type: ignore[arg-type]
    data = "aé€😀b".encode()
    parts = [stream.push([byte]) for byte in data]
    assert parts == ["a", "", "é", "", "", "€", "", "", "", "😀", "b"]
    assert stream.finish() == ""
    assert stream.push(list("€".encode()[:2])) == ""
    assert stream.finish() == "\ufffd"


@pytest.mark.parametrize(
    "make",
    [
        lambda: SamplingParams(temperature=float("inf")),
        lambda: SamplingParams(top_k=-1),
        lambda: SamplingParams(top_p=0.0),
        lambda: SamplingParams(min_p=1.0),
        lambda: SamplingParams(repeat_penalty=0.0),
        lambda: SamplingParams(seed=-1),
        lambda: SamplingParams(seed=2**32 - 1),
        lambda: GenerationOptions(max_tokens=0),
        lambda: DraftingOptions(p_min=1.0),
        lambda: DraftingOptions(draft_vocab=15),
        lambda: ContextOptions(n_ctx=0),
        lambda: ContextOptions(n_ubatch=10, n_rs_seq=16),
        lambda: ContextOptions(type_k="q9"),
        lambda: ContextOptions(flash_attn="perhaps"),
        lambda: CollectOptions(n_ctx=SMALLEST - 1),
        lambda: CollectOptions(n_ctx=MAX_CONTEXT + 1),
        lambda: CollectOptions(n_ctx=64, n_batch=96),
    ],
)
def test_values_out_of_range(make: Any) -> None:
    with pytest.raises(UsageError):
        make()


def test_rows_of_a_drafts_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """By default a part of the vocabulary, unless the draft's maker has trimmed it, and never more than there is."""
    monkeypatch.setattr(mtp, "base_ids", lambda draft: [1, 2])
    d2t = Mock(n_elements=20)

    def rows(architecture: str, tensors: dict[str, Any], n_vocab: int, draft_vocab: int | str | None) -> int:
        draft: Any = Mock(architecture=architecture, tensors=tensors, n_vocab=n_vocab)
        return session_options(draft, DraftingOptions(draft_vocab=draft_vocab)).n_vocab_draft

    large = 2 * DRAFT_VOCAB
    assert rows("qwen35", {}, large, None) == DRAFT_VOCAB
    assert rows("eagle3", {}, large, None) == rows("qwen35", {"d2t": d2t}, large, None) == 0
    assert rows("eagle3", {}, large, 16) == rows("eagle3", {"d2t": d2t}, large, 16) == 16
    assert (
        rows("eagle3", {"d2t": d2t}, large, 20) == rows("qwen35", {}, 16, 16) == rows("qwen35", {}, large, "all") == 0
    )


def test_room_for_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are mapped, and their weights copied."""
    files: Any = [Mock(file_size=100), Mock(file_size=30)]
    for free in (None, size.OVERHEAD + 260):
        monkeypatch.setattr(size, "free_addresses", lambda free=free: free)
        size.require_addresses(files)
    monkeypatch.setattr(size, "free_addresses", lambda: size.OVERHEAD + 259)
    with pytest.raises(EnvironmentFailure, match="ulimit -v"):
        size.require_addresses(files)


@pytest.mark.parametrize(("n", "scaling"), [(1, None), (4, 0.75)])
def test_the_bandwidth_of_all_threads(n: int, scaling: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "read_cores", lambda: alike(n))
    monkeypatch.setattr(diagnosis, "read_rates", lambda threads: (9e9 * threads[0] / 3, 4e9) if n > 1 else (4e9, 4e9))
    assert diagnosis.memory_bandwidth()["scaling"] == scaling


@pytest.mark.parametrize("n_ctx", [SMALLEST, MAX_CONTEXT])
def test_the_smallest_and_the_largest_context(n_ctx: int) -> None:
    assert ContextOptions(n_ctx=n_ctx).n_ctx == CollectOptions(n_ctx=n_ctx, n_batch=2 * n_ctx).n_ctx == n_ctx


@pytest.mark.parametrize(("n_ctx", "length"), [(0, 16), (64, 16), (18, 16), (17, 15), (4, 2), (3, 1), (2, 1)])
def test_a_draft_fits_into_its_context(n_ctx: int, length: int) -> None:
    """The token before it and the one after it need room, too."""
    assert _fitting(16, n_ctx) == length


def test_errors_are_also_the_built_in_ones() -> None:
    assert issubclass(InputError, ValueError)
    assert issubclass(UsageError, ValueError)
    assert issubclass(UsageError, EagleError)


@given(
    text=st.text(alphabet="ab", max_size=12),
    stops=st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=3),
    cuts=st.lists(st.integers(0, 12), max_size=4),
)
def test_a_stop_text_is_found_wherever_it_is_cut(text: str, stops: list[str], cuts: list[int]) -> None:
    stop = StopText(stops)
    ends = sorted({*(cut for cut in cuts if cut < len(text)), len(text)})
    told = "".join(stop.push(text[start:end]) for start, end in zip([0, *ends], ends, strict=False)) + stop.finish()
    found = [(at + len(each), at) for each in stops if (at := text.find(each)) >= 0]
    assert stop.is_met == bool(found)
    assert told == (text[: min(found)[1]] if found else text)
