"""The pieces of a stream are the whole answer, for every API and any end: a limit, a stop text, half a character."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from fixtures.serving import Served, serve
from fixtures.streams import APIS, body_for, events, joined, whole
from fixtures.templates import serve_template
from fixtures.tiny_gguf import write_draft, write_target

pytestmark = pytest.mark.native

CHARACTERS = "aé€😀"  # of one to four bytes, and every byte is a token
WITH_GRAMMAR = tuple(path for path in APIS if path != "/v1/messages")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("pair")
    pair = ("-m", write_target(folder / "target.gguf"), "-d", write_draft(folder / "draft.gguf"))
    with serve(*pair, "-c", 512, "-t", 1, "--parallel", 2) as running:
        yield running


@pytest.mark.parametrize("path", APIS)
@pytest.mark.parametrize("stop", [["efz"], ["efghz", "gz"], ["fgh"], ["e"], []])
def test_the_tail_may_begin_a_stop_text(server: Served, path: str, stop: list[str]) -> None:
    for n in range(1, 6):
        body = body_for(path, "hello abc", n, stop)
        expected = whole(server, path, body)
        assert joined(server, path, body) == expected
        assert expected or stop == ["e"] or "chat" in path or path in ("/v1/messages", "/v1/responses")


@pytest.mark.parametrize("path", WITH_GRAMMAR)
def test_tokens_end_inside_characters(server: Served, path: str) -> None:
    rng = random.Random(path)
    for _ in range(12):
        text = "".join(rng.choices(CHARACTERS, k=5))
        body = body_for(path, "abc", rng.randint(1, len(text.encode())), rng.choice([[], ["€a"], ["😀😀"], ["é"]]))
        body["grammar"] = f'root ::= "{text}"'
        assert joined(server, path, body) == whole(server, path, body)


def test_a_stop_text_before_half_a_character(server: Served) -> None:
    body = {"prompt": "abc", "n_predict": 20, "stop": ["b"], "grammar": 'root ::= "a" "b" "€" "c"', "temperature": 0}
    assert whole(server, "/completion", body) == joined(server, "/completion", body) == "a"


def test_a_stream_begins_once(server: Served) -> None:
    """Although its first token ends inside a character, and its only token is held back."""
    body = {"max_tokens": 1, "temperature": 0, "stop_sequences": ["ab"], "messages": [{"role": "user", "content": "a"}]}
    kinds = [event["type"] for event in events(server, "/v1/messages", body)]
    assert kinds.count("message_start") == 1 and kinds[0] == "message_start" and kinds[-1] == "message_stop"
    assert kinds.count("content_block_start") == kinds.count("content_block_stop")
    chat = {**body_for("/v1/chat/completions", "a", 3, []), "grammar": 'root ::= "€"'}
    roles = [c["delta"].get("role") for e in events(server, "/v1/chat/completions", chat) for c in e["choices"]]
    assert roles[0] == "assistant" and roles.count("assistant") == 1
    text = {**body_for("/v1/chat/completions", "a", 3, []), "grammar": 'root ::= "abc"'}
    pieces = [c["delta"].get("content") for e in events(server, "/v1/chat/completions", text) for c in e["choices"]]
    assert pieces[:2] == ["", "a"]  # as OpenAI: clients that add the first piece to a text would write "null"


@pytest.mark.parametrize("path", WITH_GRAMMAR)
@pytest.mark.parametrize(
    ("text", "kept"),
    [("a\n  b\n c", "a\n  b\n "), ("a\n\n  b", "a\n"), ("a\n  b\n  cde", "a\n  b\n  cde"), ("a\nbcd", "a\n")],
)
def test_lines_with_less_indentation_end_an_answer(server: Served, path: str, text: str, kept: str) -> None:
    body = {**body_for(path, "abc", 20, []), "n_indent": 2, "grammar": f"root ::= {json.dumps(text)}"}
    assert whole(server, path, body) == joined(server, path, body) == kept


def test_streams_of_several_prompts_hold_no_null(server: Served) -> None:
    for path in ("/completion", "/v1/completions"):
        body = {"prompt": ["abc", "hij", "pqr"], "max_tokens": 3, "temperature": 0}
        found = list(events(server, path, body))
        assert all(isinstance(event, dict) for event in found)
        texts = {0: "", 1: "", 2: ""}
        for event in found:
            part = event["choices"][0] if "choices" in event else event
            texts[part["index"]] += part.get("text", part.get("content"))
        assert list(texts.values()) == ["def", "klm", "stu"]


@pytest.mark.parametrize("path", APIS)
@pytest.mark.parametrize("stream", [False, True])
def test_no_token_is_made_where_none_is_asked_for(server: Served, path: str, stream: bool) -> None:
    body = body_for(path, "hello abc", 0, [])
    assert (joined if stream else whole)(server, path, body) == ""
    if path == "/v1/chat/completions" and not stream:
        answer = server.post(path, body)[1]
        assert answer["usage"]["completion_tokens"] == 0
        assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("path", APIS)
def test_the_newer_name_of_the_limit(server: Served, path: str) -> None:
    body = body_for(path, "hello abc", 9, [])
    body = {key: value for key, value in body.items() if key not in ("max_tokens", "max_output_tokens")}
    body["max_completion_tokens"] = 2
    text = whole(server, path, body)
    assert len(text) == 2 and joined(server, path, body) == text


@pytest.mark.parametrize("path", [path for path in APIS if path != "/v1/completions"])
def test_echoes_are_refused_where_there_are_none(server: Served, path: str) -> None:
    status, answer = server.post(path, {**body_for(path, "abc", 3, []), "echo": True})
    assert status == 400 and "not echo" in str(answer)
    assert server.post(path, {**body_for(path, "abc", 3, []), "echo": False})[0] == 200


def test_completions_echo(server: Served) -> None:
    tokens = [ord(c) for c in "abc"]
    for prompt, texts in (
        ("abc", ["abcdef"]),
        (tokens, ["abcdef"]),
        (["abc", "hij"], ["abcdef", "hijklm"]),
        ([tokens, "hij"], ["abcdef", "hijklm"]),
    ):
        body = {"prompt": prompt, "max_tokens": 3, "temperature": 0, "echo": True}
        assert [each["text"] for each in server.post("/v1/completions", body)[1]["choices"]] == texts
        streamed = dict.fromkeys(range(len(texts)), "")
        for event in events(server, "/v1/completions", body):
            streamed[event["choices"][0]["index"]] += event["choices"][0]["text"]
        assert list(streamed.values()) == texts
    assert server.post("/v1/completions", body | {"prompt": "abc", "max_tokens": 0})[1]["choices"][0]["text"] == "abc"


@pytest.mark.parametrize(("path", "n_prompts"), [("/v1/completions", 2), ("/v1/chat/completions", 1)])
def test_the_usage_of_a_stream_is_one_chunk(server: Served, path: str, n_prompts: int) -> None:
    question = {"messages": [{"role": "user", "content": "abc"}]} if "chat" in path else {"prompt": ["abc", "hijk"]}
    body = {**question, "max_tokens": 3, "n": 2, "temperature": 0, "stream_options": {"include_usage": True}}
    found = list(events(server, path, body))
    assert [bool(event["choices"]) for event in found] == [True] * (len(found) - 1) + [False]
    assert [event for event in found if "usage" in event] == found[-1:]
    whole_usage = server.post(path, {**body, "stream": False, "stream_options": None})[1]["usage"]
    keys = ("prompt_tokens", "completion_tokens", "total_tokens")
    assert [found[-1]["usage"][key] for key in keys] == [whole_usage[key] for key in keys]
    assert whole_usage["completion_tokens"] == 3 * 2 * n_prompts


@pytest.mark.parametrize("stream", [False, True])
def test_legacy_logprobs(server: Served, stream: bool) -> None:
    body = {"prompt": "xyz", "max_tokens": 4, "temperature": 0, "logprobs": 0}
    if stream:
        parts = [event["choices"][0]["logprobs"] for event in events(server, "/v1/completions", body)]
        found = {key: [each for part in parts if part for each in part[key]] for key in ("tokens", "text_offset")}
    else:
        found = server.post("/v1/completions", body)[1]["choices"][0]["logprobs"]
        assert all(logprob == top[token] for token, logprob, top in zip(
            found["tokens"], found["token_logprobs"], found["top_logprobs"], strict=True
        ))  # fmt: skip
    assert "".join(found["tokens"]) == "abcd" and found["text_offset"] == [0, 1, 2, 3]


def test_logprobs_have_every_token(server: Served, tmp_path: Path) -> None:
    """Those that end inside a character too."""
    body = {"prompt": "abc", "n_predict": 6, "n_probs": 1, "grammar": 'root ::= "€é" "a"', "return_tokens": True}
    answer = server.post("/completion", body)[1]
    assert len(answer["completion_probabilities"]) == len(answer["tokens"]) == 6
    streamed = list(events(server, "/completion", body))
    assert [token for event in streamed for token in event["tokens"]] == answer["tokens"]


@pytest.mark.parametrize(("stop", "n"), [(["d! A"], 4), (["rld"], 3), (["ld! "], 3), (["more"], 5), (["none"], 7)])
def test_each_token_of_the_text_has_its_own_log_probability(
    tmp_path_factory: pytest.TempPathFactory, stop: list[str], n: int
) -> None:
    """Tokens are listed if they begin before the text's end, also those whose text was held back."""
    says = ("Hel", "lo ", "wor", "ld! ", "And ", "more.")
    with serve_template(tmp_path_factory.mktemp("said"), "Qwen-Qwen2.5-7B-Instruct", says) as server:
        body = {**body_for("/v1/chat/completions", "Q", 12, stop), "logprobs": True, "top_logprobs": 0}
        status, answer = server.post("/v1/chat/completions", body)
        assert status == 200
        (choice,) = answer["choices"]
        tokens = [entry["token"] for entry in choice["logprobs"]["content"]]
        assert tokens == [*says, ""][:n]
        assert "".join(tokens).startswith(choice["message"]["content"])
        streamed = [event["choices"][0].get("logprobs") for event in events(server, "/v1/chat/completions", body)]
        assert [entry["token"] for found in streamed if found for entry in found["content"]] == tokens


def test_thoughts_that_a_limit_cuts_within_a_character(tmp_path: Path) -> None:
    """Behind what may begin the end of the thoughts: they stay thoughts."""
    with serve_template(tmp_path, "Qwen3.5-4B") as server:
        for text in ("ab<é", "ab</€", "<😀"):
            body = {**body_for("/v1/responses", "Q", len(text.encode()) - 1, []), "grammar": f'root ::= "{text}"'}
            status, answer = server.post("/v1/responses", body)
            assert status == 200, answer
            parts = [(item["type"], part["text"]) for item in answer["output"] for part in item["content"]]
            assert parts == [("reasoning", f"{text[:-1]}\N{REPLACEMENT CHARACTER}")]
            body["max_tokens"] = body["max_output_tokens"]
            answer = server.post("/v1/chat/completions", {**body, "messages": body["input"]})[1]
            message = answer["choices"][0]["message"]
            assert message["reasoning_content"] == parts[0][1] and not message["content"]
