"""Every cached row belongs to the tokens before it: random conversations get the answers of an empty server."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from fixtures.serving import Served, serve
from fixtures.tiny_gguf import Variant, write_sliding_window_target, write_target

pytestmark = pytest.mark.native

N_UBATCH = 32
OFFSETS = (4, 4 + N_UBATCH)  # tokens between a checkpoint and the end of a prompt
LONG = 320  # tokens: more than the cells of a sliding window
ROOM = 700  # tokens of the longest prompt
MODELS = {
    "recurrent": lambda path: write_target(path, Variant(sharpness=4.0, mix=1.5)),
    "window": lambda path: write_sliding_window_target(path, window=16, head=3.0),
}
# Slots, and MiB of the cache in memory: with more conversations than slots, prompts return from it.
PLACES = {"one slot": (1, 0), "two slots and a cache": (2, 64)}


def changed(rng: random.Random, text: list[int], n_last: int) -> list[int]:
    """Return the next prompt of a conversation: an edit at any place or at a checkpoint's end, or one more turn."""
    ends = [n_last - offset + rng.choice((-1, 0, 1)) for offset in OFFSETS]
    n_kept = min(max(0, rng.choice((0, 1, *ends, rng.randint(0, len(text)), len(text)))), len(text), ROOM)
    least = n_kept + 1
    most = rng.choice((least, *(1 + offset for offset in OFFSETS), least + rng.randrange(40), LONG))
    return text[:n_kept] + rng.choices(range(97, 123), k=max(least, most) - n_kept)


def answer(server: Served, prompt: list[int], **options: Any) -> tuple[list[int], list[float]]:
    """Return the tokens of an answer and their log probabilities."""
    found = server.complete(prompt, 4, temperature=0, ignore_eos=True, n_probs=1, **options)
    return found["tokens"], [each["logprob"] for each in found["completion_probabilities"]]


def require_rows_of_their_tokens(folder: Path, model: str, place: str, n_prompts: int) -> None:
    rng = random.Random(model + place)
    n_slots, n_mib = PLACES[place]
    target = MODELS[model](folder / "target.gguf")
    common = ("-m", target, "-d", "none", "-c", 1024, "-ub", N_UBATCH, "-t", 1)
    with (
        serve(*common, "--parallel", n_slots, "--", "--cache-ram", n_mib) as server,
        serve(*common, "--parallel", 1, "--", "--cache-ram", 0, "--slot-save-path", folder) as empty,
    ):
        texts: list[list[int]] = [[] for _ in range(n_slots + n_mib // 32)]
        lengths = [0] * len(texts)
        for i in range(n_prompts):
            which = rng.randrange(len(texts))
            prompt = changed(rng, texts[which], lengths[which])
            tokens, logprobs = answer(server, prompt)
            assert empty.post("/slots/0?action=erase", {})[0] == 200
            expected = answer(empty, prompt)
            assert logprobs == pytest.approx(expected[1], abs=1e-3), (i, len(prompt))
            assert tokens == expected[0]
            texts[which], lengths[which] = prompt + tokens, len(prompt)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("model", MODELS)
def test_rows_belong_to_the_tokens_before_them(tmp_path: Path, model: str, place: str) -> None:
    require_rows_of_their_tokens(tmp_path, model, place, 80)


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("model", MODELS)
def test_rows_belong_to_the_tokens_before_them_for_long(tmp_path: Path, model: str, place: str) -> None:
    require_rows_of_their_tokens(tmp_path, model, place, 2000)
