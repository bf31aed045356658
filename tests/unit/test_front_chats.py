"""The parts of chats in the front that need no model: settings, pieces, chunks, counts, cut arguments."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llama_eagle.serving.apis.chat import Chunks, whole
from llama_eagle.serving.chats.reasoning import count_reasoning
from llama_eagle.serving.llama_server.chat_settings import ChatSettings, chat_settings
from llama_eagle.serving.pieces import CallPiece, End, Piece
from llama_eagle.serving.requests.chat_request import ChatRequest
from llama_eagle.sessions.chats.calls import completed


def settings(*extra: str, **environment: str) -> ChatSettings:
    return chat_settings(extra, environment, hides_control=False)


def test_settings_of_chats_are_those_of_llama_server() -> None:
    assert settings().variables == {"preserve_reasoning": True}
    found = settings("--reasoning_format", "none", "--no-prefill-assistant", "--skip-chat-parsing", "-rea", "off")
    assert (found.reasoning_format, found.continues_answers, found.is_parsed) == ("none", False, False)
    assert found.thinks is False
    budget = settings("--reasoning-budget", "7", "--reasoning-budget", "9", LLAMA_ARG_THINK_BUDGET_MESSAGE="end")
    assert (budget.budget, budget.budget_message) == (9, "end")
    given = ("--chat-template-kwargs", '{"a": 1, "reasoning_effort": "low"}', "--no-reasoning-preserve")
    assert settings(*given).variables == {"a": 1, "reasoning_effort": "low", "preserve_reasoning": False}
    assert "reasoning_effort" not in settings(*given, "--reasoning-effort", "default").variables


def test_arguments_come_before_the_environment() -> None:
    environment = {"LLAMA_ARG_JINJA": "off", "LLAMA_ARG_REASONING": "off", "LLAMA_ARG_NO_SKIP_CHAT_PARSING": "1"}
    assert settings(**environment) == ChatSettings(has_jinja=False, thinks=False)
    assert settings("--jinja", "--reasoning", "on", **environment) == ChatSettings(thinks=True)


@pytest.mark.parametrize(
    ("tokens", "reasoning", "n"),
    [
        (["<think>", "I ", "look.", "</think>", "Yes"], "I look.", 2),
        (["<think>", "I ", "look.</think>", "Yes"], "I look.", 2),
        (["I", " look", "\n</think>", "Yes"], "I look", 2),
        (["<a>", "one", "</a>", "two", "<a>", "three"], "onethree", 2),
        (["Yes"], "", 0),
        (["one"], "+one", 1),  # a character that the parser has added
    ],
)
def test_tokens_of_the_reasoning_are_counted(tokens: list[str], reasoning: str, n: int) -> None:
    ends = [len("".join(tokens[: i + 1])) for i in range(len(tokens))]
    assert count_reasoning("".join(tokens), reasoning, ends) == n


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": "b\\ud83d\\ud', {"a": "b"}),
        ('{"a": "x\\', {"a": "x"}),
        ('{"a": 12.', {"a": 12}),
        ('{"a": tru', {}),
        ('{"a": [1, {"b": "c", "d', {"a": [1, {"b": "c"}]}),
        ('{"a": "say \\"', {"a": 'say "'}),
        ('{"a": "b", "' + 3000 * "x", {"a": "b"}),
        ('{"a": "b", "days": ' + 1_000_000 * "[", {}),
    ],
)
def test_cut_arguments_are_completed(text: str, value: dict[str, Any]) -> None:
    assert completed(text) == value


class Model:
    name, build = "tiny", "b1"


class Given:
    """The part of an answer that chunks read."""

    def __init__(self, **request: Any) -> None:
        self.request = ChatRequest(messages=[], **request)
        self.model, self.id = Model(), "chatcmpl-1"


END = End("tool_calls", None, 7, 2, {"predicted_n": 7})
PIECES = [
    Piece(reasoning="I look.", n_prompt=5, n_cached=1),
    Piece(content='a"\n', n_prompt=5, n_cached=1),
    Piece(calls=(CallPiece(0, "{", "call_1", "f"),), n_prompt=5, n_cached=1),
    Piece(n_prompt=5, n_cached=1),
    Piece(calls=(CallPiece(0, "}"),), n_prompt=5, n_cached=1),
    Piece(n_prompt=5, n_cached=1, timings=END.timings, end=END),
]


def chunks_of(pieces: list[Piece], **request: Any) -> list[Any]:
    chunks = Chunks(Given(**request))  # type: ignore[arg-type]
    text = b"".join([*map(chunks.written, pieces), chunks.finished()]).decode()
    assert text.endswith("data: [DONE]\n\n")
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


def test_chunks_and_the_whole_answer_agree() -> None:
    found = chunks_of(PIECES, has_usage=True)
    deltas = [chunk["choices"][0]["delta"] for chunk in found[:-1]]
    assert deltas[0] == {"role": "assistant", "content": None}
    assert "".join(delta.get("content") or "" for delta in deltas) == 'a"\n'
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert calls[0] == {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{"}}
    assert calls[1] == {"index": 0, "function": {"arguments": "}"}}
    assert found[-2]["choices"][0]["finish_reason"] == "tool_calls" and "timings" not in found[-2]
    answer = whole(Given(), PIECES)  # type: ignore[arg-type]
    assert found[-1]["usage"] == answer["usage"] and found[-1]["timings"] == answer["timings"] == END.timings
    assert answer["usage"] == {
        "completion_tokens": 7, "prompt_tokens": 5, "total_tokens": 12, "prompt_tokens_details": {"cached_tokens": 1},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }  # fmt: skip
    message = answer["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == ('a"\n', "I look.")
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}


def test_functions_have_the_older_form() -> None:
    found = chunks_of(PIECES, has_functions=True)
    assert [chunk["choices"][0]["delta"].get("function_call") for chunk in found[3:5]] == [
        {"name": "f", "arguments": "{"}, {"arguments": "}"}
    ]  # fmt: skip
    assert found[-1]["choices"][0]["finish_reason"] == "function_call"


def test_log_probabilities_of_held_text_have_a_chunk() -> None:
    entry = {"token": "a", "logprob": -1.0, "bytes": [97], "top_logprobs": []}
    found = chunks_of([Piece(content="x"), Piece(logprobs=[entry])])
    assert found[-1]["choices"][0] == {
        "finish_reason": None, "index": 0, "delta": {}, "logprobs": {"content": [entry]}
    }  # fmt: skip
