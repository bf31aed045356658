"""A long chat on a hybrid model, whose recurrent state cannot simply be cut: what a turn evaluates, and what it says.

Evaluated tokens are counted by the native session. The same conversation goes on beside it without a draft; answers
are the same throughout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fixtures.tiny_gguf import CONTEXT, Variant, write_draft, write_target
from llama_eagle.sessions.text_memory import TAIL

pytestmark = pytest.mark.native

SOFT = Variant(sharpness=8.0, mix=0.4)
N_CTX = 3 * CONTEXT
SLACK = 2 * TAIL  # an answer's last token, a prompt's end
Messages = list[dict[str, str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_target(folder / "target.gguf", SOFT)
    write_draft(folder / "draft.gguf", SOFT)
    return folder


class Chat:
    """The same calls on an instance with a draft and on one without."""

    def __init__(self, folder: Path, **options: Any) -> None:
        from llama_eagle import EagleLlama

        settings = {"n_ctx": N_CTX, "n_threads": 1, "verbose": False, **options}
        self.drafting = EagleLlama(folder / "target.gguf", draft_path=folder / "draft.gguf", n_draft=3, **settings)
        self.plain = EagleLlama(folder / "target.gguf", **settings)

    def ask(self, messages: Messages, seed: int = 1) -> tuple[str, int]:
        """The answer, and how many tokens of the prompt were evaluated."""
        before = self._n_evaluated()
        answers = [
            llm.create_chat_completion(messages, seed=seed, max_tokens=40, temperature=1.3, top_p=1.0, min_p=0.0)
            for llm in (self.drafting, self.plain)
        ]
        assert answers[0]["choices"] == answers[1]["choices"]
        n_evaluated = self._n_evaluated() - before
        assert n_evaluated == answers[0]["timings"]["prompt_n"]
        self.n_evaluated_plain = answers[1]["timings"]["prompt_n"]
        return answers[0]["choices"][0]["message"]["content"], n_evaluated

    def turn(self, messages: Messages, text: str) -> int:
        """Ask `text` and take the answer into `messages`; returns how many tokens of the prompt were evaluated."""
        messages.append({"role": "user", "content": text})
        answer, n_evaluated = self.ask(messages, seed=len(messages))
        messages.append({"role": "assistant", "content": answer})
        return n_evaluated

    def n_prompt(self, messages: Messages) -> int:
        parts = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
        return len(self.plain.tokenize(parts.encode(), add_bos=False, special=True))

    def _n_evaluated(self) -> int:
        session = self.drafting._session
        return int(session._lib.eagle_get_timings(session._handle).n_eval)

    def close(self) -> None:
        self.drafting.close()
        self.plain.close()


@pytest.fixture
def chat(folder: Path) -> Iterator[Callable[..., Chat]]:
    made: list[Chat] = []

    def make(**options: Any) -> Chat:
        made.append(Chat(folder, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def words(turn: int, n_words: int = 70) -> str:
    return f"turn {turn} " + "words " * n_words


def ten_turns(chat: Chat) -> Messages:
    messages: Messages = []
    for turn in range(10):
        chat.turn(messages, words(turn))
    return messages


def test_turn_ten_evaluates_only_what_is_new(chat: Callable[..., Chat]) -> None:
    talk = chat()
    messages: Messages = []
    for turn in range(10):
        before = talk.n_prompt(messages)
        n_evaluated = talk.turn(messages, words(turn))
        n_new = talk.n_prompt(messages[:-1]) - before
        assert n_evaluated < 1.2 * n_new
        assert talk.n_evaluated_plain < 1.2 * n_new  # checkpoints are not the draft's
    assert talk.n_prompt(messages) > 4000


def test_without_checkpoints_it_evaluates_everything(chat: Callable[..., Chat]) -> None:
    """Otherwise the tests here would show nothing."""
    talk = chat(checkpoint_mib=0)
    messages: Messages = []
    for turn in range(3):
        talk.turn(messages, words(turn))
    messages[0]["content"] = "another beginning"
    messages[4:] = []
    talk.ask(messages)
    messages[2]["content"] = "edited"
    assert talk.ask(messages)[1] > talk.n_prompt(messages) - SLACK


@pytest.mark.parametrize("edited", [2, 8, 16])
def test_an_edit_in_the_middle(chat: Callable[..., Chat], edited: int) -> None:
    talk = chat()
    messages = ten_turns(talk)
    messages[edited:] = [{"role": "user", "content": "something else, at about as much length as before"}]
    assert talk.ask(messages)[1] <= talk.n_prompt(messages[edited:]) + SLACK


@pytest.mark.parametrize(("checkpoint_mib", "pieces"), [(0, [100]), (256, [100 - TAIL, TAIL])])
def test_a_prompt_is_cut_for_checkpoints_alone(
    chat: Callable[..., Chat], monkeypatch: pytest.MonkeyPatch, checkpoint_mib: int, pieces: list[int]
) -> None:
    """Each piece reads all weights once."""
    llm = chat(checkpoint_mib=checkpoint_mib).drafting
    session, found = llm._session, []
    evaluate = session.eval

    def count(tokens: list[int]) -> None:
        found.append(len(tokens))
        evaluate(tokens)

    monkeypatch.setattr(session, "eval", count)
    next(llm.generate(list(range(100))))
    assert found == pieces


def test_an_edit_inside_a_long_message_goes_back_to_the_last_checkpoint(chat: Callable[..., Chat]) -> None:
    talk = chat(checkpoint_every=256)
    messages: Messages = [{"role": "user", "content": "word " * 600}]
    talk.ask(messages)
    messages[0]["content"] = "word " * 500 + "and another end"
    n_evaluated = talk.ask(messages)[1]
    assert n_evaluated <= 256 + len("and another end") + SLACK


def test_a_retry_evaluates_a_handful(chat: Callable[..., Chat]) -> None:
    talk = chat()
    messages = ten_turns(talk)[:-1]
    answers = set()
    for seed in range(4):
        answer, n_evaluated = talk.ask(messages, seed=seed)
        assert n_evaluated <= SLACK
        answers.add(answer)
    assert len(answers) == 4


def test_branches(chat: Callable[..., Chat]) -> None:
    """From the middle of a chat another way, and back: nothing before the fork is evaluated again."""
    talk = chat()
    trunk = ten_turns(talk)
    branch = trunk[:10]
    for turn in (20, 21):
        before = talk.n_prompt(branch)
        assert talk.turn(branch, words(turn)) <= talk.n_prompt(branch[:-1]) - before + SLACK
    back = [*trunk, {"role": "user", "content": "and now"}]
    assert talk.ask(back)[1] <= talk.n_prompt(back) - talk.n_prompt(trunk[:10]) + SLACK


def test_conversations_that_share_their_beginning(chat: Callable[..., Chat]) -> None:
    """The second one shows how long it is; from the third on it is not evaluated again."""
    talk = chat()
    system = {"role": "system", "content": "be brief and " * 50}
    for conversation in range(5):
        messages: Messages = [system]
        n_evaluated = talk.turn(messages, f"{conversation}: {words(conversation)}")
        if conversation > 1:
            assert n_evaluated <= talk.n_prompt(messages[1:2]) + SLACK
        before = talk.n_prompt(messages)
        assert talk.turn(messages, words(7)) < 1.2 * (talk.n_prompt(messages[:-1]) - before)


def test_a_small_budget_keeps_what_is_missed_most(chat: Callable[..., Chat]) -> None:
    """One MiB holds a few of the states of this model, and is never exceeded."""
    talk = chat(checkpoint_mib=1, checkpoint_every=64)
    messages: Messages = []
    for turn in range(10):
        before = talk.n_prompt(messages)
        n_evaluated = talk.turn(messages, words(turn))
        assert n_evaluated < 1.2 * (talk.n_prompt(messages[:-1]) - before)
        for llm in (talk.drafting, talk.plain):
            assert 0 < llm._memory.store.n_bytes <= 1 << 20
    assert len(talk.plain._memory.store.positions) < talk.n_prompt(messages) // 64
