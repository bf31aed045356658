"""ollama's API: what its clients cannot do without, by their own parsing rules."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from fixtures.serving import Served
from fixtures.templates import CITY, WEATHER, serve_template

pytestmark = pytest.mark.native

NAME = "target:latest"
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "d", "parameters": CITY}}]
QUESTION = [{"role": "user", "content": "Q"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A model that answers with thoughts, a text and a call."""
    with serve_template(tmp_path_factory.mktemp("model"), "Qwen3.5-4B", WEATHER) as running:
        yield running


def lines(server: Served, path: str, **body: Any) -> list[dict[str, Any]]:
    """Return the lines of a stream: none is empty."""
    status, text = server.post(path, {"model": NAME, "options": {"temperature": 0, "num_predict": 60}, **body})
    assert status == 200, text
    return [json.loads(line) for line in (text if isinstance(text, str) else json.dumps(text)).rstrip("\n").split("\n")]


def test_chat(server: Served) -> None:
    """Thoughts, text and calls have their own lines; the last line has only the end."""
    *before, last = lines(server, "/api/chat", messages=QUESTION, tools=TOOLS)
    said = [line["message"] for line in before]
    assert all(line["done"] is False and line["message"]["role"] == "assistant" for line in before)
    assert all(any(message.get(key) for key in ("content", "thinking", "tool_calls")) for message in said)
    assert "".join(message.get("thinking", "") for message in said).strip() == "I look."
    assert "".join(message["content"] for message in said).strip() == "Now."
    (calls,) = (message["tool_calls"] for message in said if "tool_calls" in message)
    assert [call["function"] for call in calls] == [{"name": "weather", "arguments": {"city": "Paris"}}]
    assert last["done"] is True and last["message"] == {"role": "assistant", "content": ""}
    assert last["done_reason"] == "stop" and last["eval_count"] > len(before) - 1 and last["prompt_eval_count"] > 0
    assert all(isinstance(value, int) for key, value in last.items() if key.endswith("duration"))


def test_whole_answer(server: Served) -> None:
    (answer,) = lines(server, "/api/chat", messages=QUESTION, tools=TOOLS, stream=False)
    assert answer["done"] and answer["message"]["thinking"].strip() == "I look." and answer["model"] == NAME
    assert [call["function"]["name"] for call in answer["message"]["tool_calls"]] == ["weather"]


def test_thinking_and_length(server: Served) -> None:
    """Without thoughts the template closes them; a limit is a reason."""
    options = {"temperature": 0, "num_predict": 2, "unknown": 1, "num_ctx": None}
    (answer,) = lines(server, "/api/chat", messages=QUESTION, think=False, stream=False, options=options)
    assert answer["message"]["content"] == "I look." and "thinking" not in answer["message"]
    assert answer["done_reason"] == "length" and answer["eval_count"] == 2


def test_generate(server: Served) -> None:
    *before, last = lines(server, "/api/generate", prompt="Q", system="S", think=False)
    assert "".join(line["response"] for line in before).startswith("I look.")
    assert last["response"] == "" and last["done"]
    assert all(line["context"] == [] for line in (*before, last))
    (raw,) = lines(server, "/api/generate", prompt="I ", raw=True, stream=False)
    status, expected = server.post("/v1/completions", {"prompt": "I ", "max_tokens": 60, "temperature": 0})
    assert status == 200 and raw["response"] == expected["choices"][0]["text"]


def test_format(server: Served) -> None:
    schema = {"$schema": "x", "title": "T", "const": "ab"}
    (answer,) = lines(server, "/api/chat", messages=QUESTION, format=schema, think=False, stream=False)
    assert answer["message"]["content"] == '"ab"'


def test_loading(server: Served) -> None:
    for more, reason in (({}, "load"), ({"keep_alive": -1.0}, "load"), ({"keep_alive": 0.0}, "unload")):
        (line,) = lines(server, "/api/chat", messages=[], **more)
        assert line["done"] and line["done_reason"] == reason
        assert lines(server, "/api/generate", **more)[0]["done_reason"] == reason


def test_lists(server: Served) -> None:
    (model,) = server.get("/api/tags")[1]["models"]
    assert model["name"] == model["model"] == NAME and len(model["digest"]) == 64 and model["size"] > 0
    datetime.fromisoformat(model["modified_at"])
    assert server.get("/api/ps")[1]["models"][0]["expires_at"]
    assert all(part.isdecimal() for part in server.get("/api/version")[1]["version"].split("."))
    for key in ("model", "name"):
        for name in (NAME, "target", "TARGET"):
            status, shown = server.post("/api/show", {key: name})
            assert status == 200 and shown["model_info"]["general.architecture"] == "qwen35"
            assert any(name.endswith(".context_length") for name in shown["model_info"])
            assert {"completion", "tools", "thinking"} <= set(shown["capabilities"])


@pytest.mark.parametrize(
    ("path", "body", "status", "named"),
    [
        ("/api/chat", {"model": "other", "messages": QUESTION}, 404, "target:latest"),
        ("/api/chat", {"messages": QUESTION}, 400, "model is required"),
        ("/api/chat", {"model": NAME, "messages": "Q"}, 400, "messages"),
        ("/api/chat", {"model": NAME, "messages": [{"role": "robot"}]}, 400, "robot"),
        ("/api/chat", {"model": NAME, "messages": [{"role": "user", "images": ["%"]}]}, 400, "base64"),
        ("/api/chat", {"model": NAME, "messages": QUESTION, "format": "xml"}, 400, "schema"),
        ("/api/chat", {"model": NAME, "messages": QUESTION, "options": {"temperature": "hot"}}, 400, "temperature"),
        ("/api/embed", {"model": NAME, "input": "x"}, 501, "--embeddings"),
        ("/api/delete", {"model": NAME}, 403, "llama-eagle remove"),
    ],
)
def test_errors(server: Served, path: str, body: dict[str, Any], status: int, named: str) -> None:
    """They are texts: clients show an object as it is."""
    found, answer = server.post(path, body)
    assert found == status and list(answer) == ["error"]
    assert named.split()[-1] in answer["error"]
