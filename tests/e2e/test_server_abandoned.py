"""Requests whose client has gone stop, however busy the server is with others and with their own results."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from fixtures.serving import Served, serve
from fixtures.tiny_gguf import write_target

pytestmark = pytest.mark.native

PATIENCE = 60.0  # seconds until the test gives up; the request takes many times as long
N_PROMPTS = 2000
N_CONTEXT = 131072
CHAT = {"messages": [{"role": "user", "content": "abc"}], "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path = write_target(tmp_path_factory.mktemp("model") / "target.gguf")
    given = ("-m", path, "-d", "none", "-c", N_CONTEXT, "-t", 1, "--parallel", 2)
    with serve(*given, "--", "--override-kv", f"qwen35.context_length=int:{N_CONTEXT}") as running:
        yield running


def begin(server: Served, **options: Any) -> Any:
    """The connection of a request that takes very long, once it is served."""
    connection = server.connect()
    body = {"prompt": ["abc"] * N_PROMPTS, "n_predict": 1500, "temperature": 0, **options}
    connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
    wait_for(server, is_busy=True)
    return connection


def wait_for(server: Served, is_busy: bool) -> None:
    """Asks all the time: each answer is a result for another client."""
    end = time.monotonic() + PATIENCE
    while (server.metric("requests_processing") + server.metric("requests_deferred") > 0) != is_busy:
        assert time.monotonic() < end
        assert server.get("/slots")[0] == 200


@pytest.mark.parametrize("stream", [False, True])
def test_results_for_others_keep_no_abandoned_request_alive(server: Served, stream: bool) -> None:
    begin(server, stream=stream).close()
    wait_for(server, is_busy=False)
    assert server.complete("abc", 3, temperature=0)["content"] == "def"


def test_a_stream_stops_if_its_client_goes_during_the_prompt(server: Served) -> None:
    """The server has sent the head of its answer, and nothing else until the prompt is evaluated."""
    before = server.metric("prompt_tokens_total")
    prompt = "abcdefgh" * (N_CONTEXT // 8 - 1)
    connection = begin(server, prompt=prompt, n_predict=3, stream=True, sse_ping_interval=-1)
    response = connection.getresponse()
    assert response.status == 200
    response.close()
    connection.close()
    wait_for(server, is_busy=False)
    assert server.metric("prompt_tokens_total") < before + N_CONTEXT - 8


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_stops_if_its_client_goes(server: Served, stream: bool) -> None:
    connection = server.connect()
    body = {**CHAT, "max_tokens": N_CONTEXT, "stream": stream}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    wait_for(server, is_busy=True)
    connection.close()
    wait_for(server, is_busy=False)


def test_the_stream_of_a_conversation_continues_without_its_client(server: Served) -> None:
    body = {**CHAT, "max_tokens": 2000}
    expected = server.post("/v1/chat/completions", body)[1]["choices"][0]["message"]["content"]
    connection = server.connect()
    headers = {"Content-Type": "application/json", "X-Conversation-Id": "c1::target"}
    connection.request("POST", "/v1/chat/completions", json.dumps({**body, "stream": True}), headers)
    beginning = connection.getresponse().read(100)
    connection.close()
    ids = {"conversation_ids": ["c1", "c2", 3]}
    (known,) = server.post("/v1/streams/lookup", ids)[1]
    assert known["conversation_id"] == "c1::target"
    status, text = server.get("/v1/stream?conv_id=c1::target&from=0")
    assert status == 200 and text.startswith(beginning.decode()) and text.endswith("data: [DONE]\n\n")
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    assert "".join(event["choices"][0]["delta"].get("content") or "" for event in events) == expected
    assert server.get("/v1/stream?conv_id=c1::target&from=100")[1] == text[100:]
    (known,) = server.post("/v1/streams/lookup", ids)[1]
    assert known["is_done"] and known["total_bytes"] == len(text.encode())
    assert server.send("DELETE", "/v1/stream?conv_id=c1::target", None)[0] == 204
    assert server.get("/v1/stream?conv_id=c1::target")[0] == 404


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/completions"])
def test_the_stream_of_a_conversation_stops_when_it_is_deleted(server: Served, path: str) -> None:
    connection = server.connect()
    headers = {"Content-Type": "application/json", "X-Conversation-Id": "c2"}
    body = {**CHAT, "max_tokens": N_CONTEXT, "stream": True, "prompt": "abc"}
    connection.request("POST", path, json.dumps(body), headers)
    assert connection.getresponse().status == 200  # from here on the stream is the conversation's
    connection.close()
    assert server.get("/metrics")[0] == 200
    (known,) = server.post("/v1/streams/lookup", {"conversation_ids": ["c2"]})[1]
    assert known["is_done"] is False
    assert server.send("DELETE", "/v1/stream?conv_id=c2", None)[0] == 204
    wait_for(server, is_busy=False)
