"""Calls in random order on an instance with a draft, against the same calls on one without.

What one returns or refuses, the other does. `LLAMA_EAGLE_FUZZ_CASES=10000` makes the run long; `make fuzz` does.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fixtures.llama_pairs import load, write_pairs
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

pytestmark = pytest.mark.native

CASES = int(os.environ.get("LLAMA_EAGLE_FUZZ_CASES", "150")) // 10
N_CTX = 256
Pair = tuple[Any, Any]

texts = st.text(alphabet="abcxyz .\n", max_size=60)
sampled = st.fixed_dictionaries(
    {"temp": st.sampled_from([0.0, 0.7, 1.5]), "top_k": st.sampled_from([0, 1, 40]), "seed": st.integers(0, 99)}
)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    files = write_pairs(tmp_path_factory.mktemp("models"))
    options: dict[str, Any] = {"n_ctx": N_CTX, "n_batch": 64, "n_ubatch": 32, "checkpoint_every": 32}
    instances = load(files, draft=None, **options), load(files, n_draft=4, **options)
    yield instances
    for llm in instances:
        llm.close()


class Calls(RuleBasedStateMachine):
    """Each rule makes one call on both instances."""

    pair: Pair  # set by the test: loading costs more than a hundred calls

    @initialize()
    def begin(self) -> None:
        self.saved: list[tuple[Any, Any]] = []
        for llm in self.pair:
            llm.reset()

    def both(self, call: Callable[[Any], Any]) -> None:
        """The same value or the same kind of error from both."""
        outcomes: list[Any] = []
        for llm in self.pair:
            try:
                outcomes.append(call(llm))
            except (ValueError, RuntimeError) as error:  # what the parent raises, and ours that derive from them
                outcomes.append(f"{type(error).__name__}: {error}")
        assert outcomes[0] == outcomes[1]

    @rule(text=texts, options=sampled, n=st.integers(1, 40))
    def complete(self, text: str, options: dict[str, Any], n: int) -> None:
        named = {"temperature": options["temp"], "top_k": options["top_k"], "seed": options["seed"]}
        self.both(lambda llm: llm.create_completion(text, max_tokens=n, **named)["choices"])

    @rule(text=texts, options=sampled, n=st.integers(0, 12), reset=st.booleans())
    def generate_and_drop(self, text: str, options: dict[str, Any], n: int, reset: bool) -> None:
        def call(llm: Any) -> list[int]:
            llm.set_seed(options["seed"])
            stream = llm.generate(
                llm.tokenize(text.encode()), reset=reset, temp=options["temp"], top_k=options["top_k"]
            )
            return list(itertools.islice(stream, n))

        self.both(call)

    @rule(text=texts)
    def evaluate(self, text: str) -> None:
        self.both(lambda llm: llm.eval(llm.tokenize(text.encode())))

    @rule(part=st.floats(0, 1))
    def cut(self, part: float) -> None:
        for llm in self.pair:
            llm.n_tokens = int(part * llm.n_tokens)

    @rule()
    def reset(self) -> None:
        self.both(lambda llm: llm.reset())

    @rule()
    def save(self) -> None:
        self.saved.append((self.pair[0].save_state(), self.pair[1].save_state()))

    @rule(which=st.integers(0, 9), swapped=st.booleans())
    def restore(self, which: int, swapped: bool) -> None:
        """Each from its own state, or from the other's."""
        if self.saved:
            states = self.saved[which % len(self.saved)]
            for llm, state in zip(self.pair, reversed(states) if swapped else states, strict=True):
                llm.load_state(state)

    @rule(n=st.sampled_from([0, 1, 3, 4, "auto"]))
    def length(self, n: Any) -> None:
        self.pair[1].set_n_draft(n)

    @rule(after=st.floats(0, 0.004))
    def interrupt(self, after: float) -> None:
        """A real signal, somewhere in a completion; then both begin anew."""
        for llm in self.pair:
            timer = threading.Timer(after, signal.raise_signal, [signal.SIGINT])
            with contextlib.suppress(KeyboardInterrupt):
                timer.start()
                llm.create_completion("abc", max_tokens=30, temperature=0)
                timer.join()
            timer.join()
            llm.create_completion("x", max_tokens=1, temperature=0)  # works without a reset
            llm.reset()

    @invariant()
    def the_text_is_the_same(self) -> None:
        plain, drafting = self.pair
        assert plain.n_tokens == drafting.n_tokens <= N_CTX
        assert plain.input_ids[: plain.n_tokens].tolist() == drafting.input_ids[: plain.n_tokens].tolist()


def test_calls_in_any_order(pair: Pair) -> None:
    Calls.pair = pair
    run_state_machine_as_test(
        Calls,
        settings=settings(
            max_examples=CASES, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
