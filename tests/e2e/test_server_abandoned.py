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
