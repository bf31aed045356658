"""`llama-eagle chat` and `llama-eagle serve`, the latter with a real OpenAI client on loopback."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fixtures.command import assert_one_line_error, llama_eagle
from fixtures.tiny_gguf import write_draft, write_target

pytestmark = pytest.mark.native

ALPHABET = "abcdefghijklmnopqrstuvwxyz"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_target(folder / "target.gguf")
    write_draft(folder / "draft.gguf")
    return folder


def chat(models: Path, lines: str, *options: object) -> Any:
    pair = ["-m", models / "target.gguf", "-d", models / "draft.gguf"]
    return llama_eagle("chat", *pair, "--temp", 0, "-t", 1, "-n", 26, *options, stdin=lines)


def test_chat(models: Path) -> None:
    said = ["hello", "/stats", "/draft off", "more", "/stats", '"""two', 'lines"""', "/help", "/exit", "not read"]
    outcome = chat(models, "\n".join(said), "--n-draft", 2)
    lines = outcome.stdout.splitlines()
    assert outcome.code == 0
    assert [line for line in lines if line == ALPHABET] == [ALPHABET] * 3
    stats = [line for line in lines if "rounds" in line and "accepted (by" in line]
    assert "by position: 100% 0%" in stats[0]
    assert "by position: -" in stats[1]
    assert any(line.startswith("/draft") for line in lines)
    assert outcome.stderr == ""


def test_chat_says_when_the_conversation_no_longer_fits(models: Path) -> None:
    outcome = chat(models, f"{'word ' * 100}\n/clear\nshort\n/draft 99\n", "--ctx-size", 256, "--system", "be brief")
    errors = outcome.stderr.splitlines()
    assert len(errors) == 2
    assert "exceed context window of 256: /clear" in errors[0]
    assert "neither 'auto' nor a number from 0 to 16" in errors[1]
    assert ALPHABET in outcome.stdout


def test_chat_refuses_what_generate_refuses(models: Path) -> None:
    assert_one_line_error(llama_eagle("chat", "-m", models / "draft.gguf"), 3, "is an EAGLE-3 draft")
    assert_one_line_error(llama_eagle("chat", "-m", models / "target.gguf", "--n-draft", "x"), 2, "neither 'auto'")


@pytest.fixture(scope="module", params=["options", "config"])
def server(models: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """The base address of a running server."""
    arguments = ["-m", models / "target.gguf", "-d", models / "draft.gguf", "-t", 1, "--port", 0, "--n-draft", 2]
    if request.param == "config":
        entry = {
            "model": str(models / "target.gguf"), "draft_path": str(models / "draft.gguf"), "n_draft": 2, "n_ctx": 512,
            "n_threads": 1, "n_threads_batch": 1, "verbose": False, "model_alias": "tiny",
        }  # fmt: skip
        (models / "config.json").write_text(json.dumps({"host": "127.0.0.1", "port": 0, "models": [entry]}))
        arguments = ["--config", models / "config.json"]
    command = [sys.executable, "-m", "llama_eagle", "serve", *map(str, arguments)]
    clean = {
        name: value for name, value in os.environ.items() if name not in ("HOST", "PORT", "MODEL", "CACHE", "SEED")
    }
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean)
    assert process.stdout is not None
    first = process.stdout.readline()
    if not first.startswith("listening on "):
        pytest.fail(f"{first}{process.communicate()[1]}")
    yield first.removeprefix("listening on ").strip()
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) in (0, 130)


def test_openai_client(server: str) -> None:
    import openai

    client = openai.OpenAI(base_url=f"{server}/v1", api_key="none")
    assert len(client.models.list().data) == 1
    question = [{"role": "user", "content": "hello"}]
    answer = client.chat.completions.create(model="tiny", messages=question, max_tokens=26, temperature=0)
    assert answer.choices[0].message.content == ALPHABET
    assert answer.usage.completion_tokens == 26
    stream = client.chat.completions.create(model="tiny", messages=question, max_tokens=26, temperature=0, stream=True)
    assert "".join(part.choices[0].delta.content or "" for part in stream) == ALPHABET
    assert client.completions.create(model="tiny", prompt="abc", max_tokens=4, temperature=0).choices[0].text == "defg"


def test_streaming_over_http(server: str) -> None:
    body = {"prompt": "abc", "max_tokens": 20, "temperature": 0, "stream": True}
    request = urllib.request.Request(
        f"{server}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        events = [line.decode().strip().removeprefix("data: ") for line in response if line.startswith(b"data: ")]
    assert events[-1] == "[DONE]"
    assert "".join(json.loads(event)["choices"][0]["text"] for event in events[:-1]) == (ALPHABET * 2)[3:23]


def test_a_client_that_hangs_up_leaves_the_server_usable(server: str) -> None:
    host, port = server.removeprefix("http://").split(":")
    for _ in range(3):
        body = json.dumps({"prompt": "abc", "max_tokens": 400, "temperature": 0, "stream": True})
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            head = ["POST /v1/completions HTTP/1.1", "Host: x", "Content-Type: application/json"]
            lines = [*head, f"Content-Length: {len(body)}", "", body]
            connection.sendall("\r\n".join(lines).encode())
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
    test_streaming_over_http(server)


def test_serve_refusals(models: Path, tmp_path: Path) -> None:
    target = ["-m", models / "target.gguf"]
    assert_one_line_error(llama_eagle("serve"), 2, "either --model")
    assert_one_line_error(llama_eagle("serve", *target, "--config", "x"), 2, "either --model")
    assert_one_line_error(llama_eagle("serve", "-m", models / "none.gguf", "--port", 0), 3, "does not exist")
    assert_one_line_error(llama_eagle("serve", *target, "-d", *target[1:], "--port", 0), 3, "not an EAGLE-3 draft")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert_one_line_error(llama_eagle("serve", *target, "--port", taken.getsockname()[1]), 4, "cannot listen on")
    for content, message in (
        ("{", "not valid"),
        ("{}", "names no models"),
        ('{"models": [{"model": 3}]}', "models.0.model"),
    ):
        (tmp_path / "bad.json").write_text(content)
        assert_one_line_error(llama_eagle("serve", "--config", tmp_path / "bad.json"), 3, message)
