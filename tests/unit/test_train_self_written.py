"""Conversations that a target writes itself: what is asked of the server, what is kept, and how a run continues."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fixtures.training import CHAT_TEMPLATE
from jinja2 import Template as Jinja
from llama_eagle.errors import EagleError, InputError
from llama_eagle.serving.prompts import CHAT, Journal, Refused
from llama_eagle.train.data import self_written
from llama_eagle.train.data.documents import Document, read_documents
from llama_eagle.train.data.loops import answer_without_loop
from llama_eagle.train.data.self_written import (
    FOLLOW_UP,
    OPENING_LENGTH,
    OPENINGS,
    STARTS,
    TOPICS,
    Author,
    Limits,
    Template,
    write_data,
)

Ask = Callable[[str, dict[str, Any]], dict[str, Any]]
LIMITS = Limits(n=9, seconds=None, max_length=64, parallel=1, seed=5)


def render(messages: Any) -> str:
    return Jinja(CHAT_TEMPLATE).render(messages=messages, add_generation_prompt=False)


def target(question: Callable[[int], str] = "What is the number {}?".format, ends: str = "stop") -> Ask:
    """A target that writes a new question each time and repeats it as its answer."""

    def ask(path: str, body: dict[str, Any]) -> dict[str, Any]:
        asked.append((path, body))
        if path == CHAT:
            message = {"role": "assistant", "content": body["messages"][-1]["content"], "tool_calls": None}
            return {"choices": [{"message": message, "finish_reason": "stop"}], "usage": {"completion_tokens": 3}}
        text = question(len(asked))
        return {"choices": [{"text": text, "finish_reason": ends}], "usage": {"completion_tokens": 4}}

    asked: list[tuple[str, dict[str, Any]]] = []
    ask.asked = asked  # type: ignore[attr-defined]
    return ask


def write(author: Author, folder: Path, limits: Limits = LIMITS) -> list[dict[str, Any]]:
    path = folder / "out.jsonl"
    with closing(Journal(path, "same", overwrite=False)) as journal:
        write_data(author, journal, path, limits)
    return list(journal.answers.values())


def test_a_template_is_opened_where_the_user_writes() -> None:
    before, end = Template(render).opening([{"role": "system", "content": "Be kind."}])
    assert before == "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\n"
    assert end == "<|im_end|>"
    with pytest.raises(InputError, match="changes the user's message"):
        Template(lambda messages: render(messages).lower()).opening([])


def test_questions_have_topics_and_answers_have_none(tmp_path: Path) -> None:
    ask = target()
    records = write(Author(ask, Template(render), [], LIMITS), tmp_path)
    assert len(records) == 9
    questions = [body for path, body in ask.asked if path != CHAT]  # type: ignore[attr-defined]
    assert all(body["stop"] == ["<|im_end|>"] for body in questions)
    assert any(TOPICS[1] in body["prompt"] for body in questions)
    answers = [body for path, body in ask.asked if path == CHAT]  # type: ignore[attr-defined]
    assert {body["temperature"] for body in answers} == {0.0, 0.8}
    for record in records:
        roles = [message["role"] for message in record["messages"]]
        assert roles in (["user", "assistant"], ["user", "assistant"] * 2)
        assert set(record["messages"][1]) == {"role", "content"}
    assert sum(len(record["messages"]) == 4 for record in records) == 9 // FOLLOW_UP


def test_most_questions_have_a_given_start(tmp_path: Path) -> None:
    ask = target(lambda n: f" poem about the number {n}.")
    limits = replace(LIMITS, n=60)
    records = write(Author(ask, Template(render), [], limits), tmp_path, limits)
    prompts = [body["prompt"] for path, body in ask.asked if path != CHAT]  # type: ignore[attr-defined]
    starts = {prompt.rpartition("user\n")[2] for prompt in prompts}
    assert starts <= {"", *STARTS} and len(starts) > 20
    first = [record["messages"][0]["content"] for record in records]
    assert 0.6 < sum(question.startswith(STARTS) for question in first) / len(first) < 0.9
    assert all(" poem about the number" in f" {question}" for question in first)


def test_what_is_known_cut_or_empty_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Author(target(lambda n: "  ?"), Template(render), [], LIMITS).write(1) is None
    monkeypatch.setattr(self_written, "STARTED", 0.0)
    template = Template(render)
    author = Author(target(lambda n: "Why is the sky blue?"), template, [], LIMITS)
    assert author.write(0) is not None
    assert author.write(1) is None
    earlier = Author(target(lambda n: "Why is the sky blue?"), template, [], LIMITS)
    asked = {"role": "user", "content": "Why is the sky blue?"}
    earlier.remember({"messages": [asked, {"role": "assistant", "content": "It scatters blue light."}]})
    assert earlier.write(0) is None
    assert Author(target(ends="length"), template, [], LIMITS).write(0) is None
    assert Author(target(lambda n: "  ?"), template, [], LIMITS).write(0) is None

    def refuse(path: str, body: dict[str, Any]) -> dict[str, Any]:
        raise Refused("too long")

    assert Author(refuse, template, [], LIMITS).write(0) is None


def test_questions_and_texts_of_the_user_are_used(tmp_path: Path) -> None:
    """A third of the documents: given questions are answered, given texts continued."""
    chat = Document("", Path(), messages=({"role": "user", "content": "Who wrote Faust?"},))
    text = Document("", Path(), text="A long report about ducks. " * 50)
    records = write(Author(target(), Template(render), [chat, text], LIMITS), tmp_path)
    assert [r["messages"][0]["content"] for r in records if "messages" in r].count("Who wrote Faust?") == 1
    continued = [record["text"] for record in records if "text" in record]
    assert continued and all("ducks" in text and "What is the number" in text for text in continued)


def test_given_questions_follow_each_other(tmp_path: Path) -> None:
    """Each third conversation, as long as there are new ones."""
    asked = [f"Who wrote book {n}?" for n in range(5)]
    chats = [Document("", Path(), messages=({"role": "user", "content": question},)) for question in asked]
    records = write(Author(target(), Template(render), chats, LIMITS), tmp_path)
    first = [record["messages"][0]["content"] for record in records]
    assert [question for question in first if question in asked] == asked[:3]


def test_short_texts_have_an_opening(tmp_path: Path) -> None:
    shortest = OPENING_LENGTH[0]
    limits = replace(LIMITS, n=40)
    for length in (1, shortest, shortest + 1, 2 * shortest):
        folder = tmp_path / str(length)
        folder.mkdir()
        ask = target()
        write(Author(ask, None, [Document("", Path(), text="a" * length)], limits), folder, limits)
        openings = [len(body["prompt"]) for _, body in ask.asked]  # type: ignore[attr-defined]
        assert len(openings) >= 40 and min(length, shortest) <= min(openings) <= max(openings) <= length


def test_a_model_without_a_template_continues_texts(tmp_path: Path) -> None:
    records = write(Author(target(), None, [], LIMITS), tmp_path)
    assert len(records) == 9
    assert all(record["text"].startswith(OPENINGS) for record in records)


def streamed(*deltas: dict[str, str]) -> Any:
    """A whole answer of the chat API, streamed and cut at its token limit."""
    return answer_without_loop(
        {"choices": [{"delta": delta, "finish_reason": reason}]}
        for delta, reason in zip(deltas, [*[None] * (len(deltas) - 1), "length"], strict=True)
    )


def test_answers_that_end_in_their_reasoning_are_data(tmp_path: Path) -> None:
    """Without any text they are left out, and what was written can be read again."""
    template = Template(render)
    writer = target()
    answers = {True: streamed({"reasoning_content": "Let us "}, {"reasoning_content": "see."}), False: streamed({})}

    def ask(path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = writer(path, body)
        return answers[body["seed"] % 2 == 0] if path == CHAT else answer

    records = write(Author(ask, template, [], LIMITS), tmp_path)
    assert len(records) == 9
    documents = list(read_documents([tmp_path / "out.jsonl"]))
    assert [document.messages[1] for document in documents] == [
        {"role": "assistant", "content": "", "reasoning_content": "Let us see."}
    ] * 9
    assert Author(lambda path, body: streamed({}), None, [Document("", tmp_path, text=" ")], LIMITS).write(1) is None


def test_reasoning_counts_as_tokens_of_the_answer() -> None:
    question, answer = {"role": "user", "content": "12345678"}, {"role": "assistant", "content": "12"}
    thinking = {**answer, "reasoning_content": "345678"}
    limits = replace(LIMITS, max_length=1000)
    assert self_written._n_tokens({"messages": [question, thinking], "n_tokens": 10}, limits) == 20


def test_a_second_run_continues_the_first(tmp_path: Path) -> None:
    """No number twice, no question twice, and the time of the first run counts."""

    def stop_at(n: int) -> Ask:
        ask = target()

        def interrupted(path: str, body: dict[str, Any]) -> dict[str, Any]:
            if len(ask.asked) >= n:  # type: ignore[attr-defined]
                raise KeyboardInterrupt
            return ask(path, body)

        return interrupted

    path = tmp_path / "out.jsonl"
    with pytest.raises(KeyboardInterrupt), closing(Journal(path, "same", overwrite=False)) as journal:
        write_data(Author(stop_at(8), Template(render), [], LIMITS), journal, path, LIMITS)
    first = dict(journal.answers)
    assert 0 < len(first) < 9 and not path.exists()
    with closing(Journal(path, "same", overwrite=False)) as journal:
        journal.answers[max(first)]["elapsed_s"] = 1000.0
        written = write_data(Author(target(), Template(render), [], LIMITS), journal, path, LIMITS)
    questions = [record["messages"][0]["content"] for record in journal.answers.values()]
    assert len(set(questions)) == len(questions) == written.n == 9
    assert {n: journal.answers[n]["messages"] for n in first} == {n: first[n]["messages"] for n in first}
    assert written.seconds >= 1000


def test_the_time_ends_the_writing(tmp_path: Path) -> None:
    limits = Limits(n=None, seconds=0.2, max_length=64, parallel=2, seed=0)
    assert write(Author(target(), Template(render), [], limits), tmp_path, limits)
    assert limits.share_done(5, 0.1, 10) == 0.5 and limits.share_done(5, 9.0, 10) == 1.0


def test_the_time_for_training_is_left(tmp_path: Path) -> None:
    """An answer has 3 tokens and is as long as its question. Training takes one second per token."""
    limits = Limits(n=None, seconds=100.0, max_length=64, parallel=1, seed=0, later=1.0)
    records = write(Author(target(), Template(render), [], limits), tmp_path, limits)
    n_questions = sum(len(record["messages"]) // 2 for record in records)
    assert 100 <= 6 * n_questions < 112


def test_a_target_that_asks_nothing_is_no_author(tmp_path: Path) -> None:
    with pytest.raises(EagleError, match=r"hardly any question. Name training data by --data FILE\."):
        write(Author(target(ends="length"), Template(render), [], LIMITS), tmp_path)
