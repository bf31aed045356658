"""`llama-eagle chat` and `llama-eagle serve --python`, the latter with a real OpenAI client on loopback."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from fixtures.command import assert_one_line_error, llama_eagle
from fixtures.terminal import Terminal
from fixtures.tiny_gguf import write_draft, write_target

pytestmark = pytest.mark.native

ALPHABET = "abcdefghijklmnopqrstuvwxyz"
PYTHON = ("serve", "--python")
DRAFT_OPTIONS = ("--p-min", 0.1, "--draft-gpu-layers", 0, "--draft-ctx-size", 512)


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
    outcome = chat(models, "\n".join(said), "--n-draft", 2, *DRAFT_OPTIONS)
    lines = outcome.stdout.splitlines()
    assert outcome.code == 0
    assert [line for line in lines if line == ALPHABET] == [ALPHABET] * 3
    stats = [line for line in lines if "rounds" in line and "accepted (by" in line]
    assert "by position: 100% 0%" in stats[0]
    assert any(line.endswith("tokens, nothing drafted") for line in lines)
    assert sum(line.startswith("plain decoding: about ") for line in lines) == 1
    assert any(line.startswith("/draft") for line in lines)
    assert outcome.stderr == ""


@pytest.fixture
def state(tmp_path: Path) -> dict[str, str]:
    """Where the chats of a test keep their history."""
    return {"XDG_STATE_HOME": str(tmp_path)}


def test_a_terminal_shows_which_tokens_were_drafted(models: Path, state: dict[str, str]) -> None:
    """Every other letter: in each round one drafted token is right, and the one after it is the target's own."""
    for environment, drafted in (({}, "cyan"), ({"NO_COLOR": "1"}, "default")):
        terminal = Terminal(models, "-n", 26, "--plain", **environment, **state)
        assert ALPHABET in terminal.type("hello\r")
        assert terminal.colors(ALPHABET) == ["default", drafted] * 13
        terminal.type("/draft off\r")
        terminal.type("hello\r")
        assert terminal.colors(ALPHABET) == ["default"] * 26
        assert terminal.close() == 0


def test_a_terminal_has_a_history_and_blocks(models: Path, state: dict[str, str]) -> None:
    terminal = Terminal(models, "-n", 26, **state)
    terminal.type("first words\r")
    assert terminal.close() == 0
    terminal = Terminal(models, "-n", 26, **state)
    arrow_up = "\x1b[A"
    again = terminal.type(f"{arrow_up}{arrow_up}\r")  # behind the /exit
    assert again[0] == "> first words"
    assert ALPHABET in again
    pasted = terminal.type("\x1b[200~one\ntwo\n\x1b[201~\r")
    assert (pasted[0], pasted[1].split()[-1], pasted.count(ALPHABET)) == ("> one", "two", 1)
    assert terminal.type('"""two\rlines"""\r').count(ALPHABET) == 1
    assert terminal.close() == 0


def test_ctrl_c_ends_an_answer_clears_the_line_and_leaves(models: Path, state: dict[str, str]) -> None:
    terminal = Terminal(models, **state)  # without -n: the alphabet over and over, to the end of the context
    os.write(terminal._master, b"hello\r")
    terminal.see(lambda: any(line.startswith("abcdef") for line in terminal.lines()))
    terminal._row = terminal._screen.cursor.y
    terminal.process.send_signal(signal.SIGINT)
    terminal.see(terminal._is_asking)
    assert "(interrupted)" in terminal.lines()
    assert any("tokens in" in line for line in terminal.type("/stats\r"))
    os.write(terminal._master, b"half a line")
    terminal.see(lambda: terminal.lines()[terminal._screen.cursor.y] == "> half a line")
    os.write(terminal._master, b"\x03")
    terminal.see(terminal._is_asking)
    assert "Ctrl-C again, or /exit, leaves" in terminal.type("\x03")
    os.write(terminal._master, b"\x03")
    assert terminal.process.wait(timeout=30) == 0


def test_a_conversation_is_kept_and_taken_back(models: Path, tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    said = [
        "hello", "/system be brief", f"/save {file}", "/retry", "/undo", "/undo", f"/load {file}", "/undo",
        f"/load {tmp_path / 'none'}", "/think maybe", "/nonsense", "/exit",
    ]  # fmt: skip
    outcome = chat(models, "\n".join(said))
    assert outcome.stdout.count(ALPHABET) == 2
    messages = json.loads(file.read_text())["messages"]
    assert [each["role"] for each in messages] == ["system", "user", "assistant"]
    errors = outcome.stderr.splitlines()
    found = ("nothing to take back", "cannot be read", "say on, off or hide", "/nonsense is no command")
    assert len(errors) == len(found)
    assert all(part in error for part, error in zip(found, errors, strict=True))


def test_chat_says_when_the_conversation_no_longer_fits(models: Path) -> None:
    outcome = chat(models, f"{'word ' * 100}\n/clear\nshort\n/draft 99\n", "--ctx-size", 256, "--system", "be brief")
    errors = outcome.stderr.splitlines()
    assert len(errors) == 2
    assert "exceed context window of 256: /undo takes" in errors[0]
    assert "neither 'auto' nor a number from 0 to 16" in errors[1]
    assert ALPHABET in outcome.stdout


def test_chat_refuses_what_generate_refuses(models: Path) -> None:
    assert_one_line_error(llama_eagle("chat", "-m", models / "draft.gguf"), 3, "is an EAGLE-3 draft")
    assert_one_line_error(llama_eagle("chat", "-m", models / "target.gguf", "--n-draft", "x"), 2, "or auto")


@pytest.fixture(scope="module", params=["options", "config"])
def server(models: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """The base address of a running server."""
    arguments = ["-m", models / "target.gguf", "-d", models / "draft.gguf", "-t", 1, "--port", 0]
    arguments += ["--n-draft", 2, *DRAFT_OPTIONS]
    if request.param == "config":
        entry = {
            "model": str(models / "target.gguf"), "draft_path": str(models / "draft.gguf"), "n_draft": 2, "n_ctx": 512,
            "n_threads": 1, "n_threads_batch": 1, "verbose": False, "model_alias": "tiny",
        }  # fmt: skip
        (models / "config.yaml").write_text(yaml.safe_dump({"host": "127.0.0.1", "port": 0, "models": [entry]}))
        arguments = ["--config", models / "config.yaml"]
    command = [sys.executable, "-m", "llama_eagle", "serve", "--python", *map(str, arguments)]
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


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_streaming_with_curl(server: str) -> None:
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 26, "temperature": 0, "stream": True}
    command = ["curl", "-sSN", f"{server}/v1/chat/completions", "--json", json.dumps(body)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    events = [line.removeprefix("data: ") for line in done.stdout.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]", done
    deltas = [json.loads(event)["choices"][0]["delta"] for event in events[:-1]]
    assert "".join(delta.get("content") or "" for delta in deltas) == ALPHABET


def test_requests_at_the_same_time(server: str) -> None:
    """One instance answers them one after the other; none is lost."""
    import openai

    client = openai.OpenAI(base_url=f"{server}/v1", api_key="none")

    def ask(start: int) -> str:
        prompt = ALPHABET[: start + 1]
        return str(client.completions.create(model="tiny", prompt=prompt, max_tokens=20, temperature=0).choices[0].text)

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(ask, range(8)))
    assert answers == [(ALPHABET * 2)[start + 1 : start + 21] for start in range(8)]


def test_a_client_that_hangs_up_leaves_the_server_usable(server: str) -> None:
    host, port = server.removeprefix("http://").split(":")
    for _ in range(3):
        body = json.dumps({"prompt": "abc", "max_tokens": 400, "temperature": 0, "stream": True})
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            head = ["POST /v1/completions HTTP/1.1", f"Host: {host}", "Content-Type: application/json"]
            lines = [*head, f"Content-Length: {len(body)}", "", body]
            connection.sendall("\r\n".join(lines).encode())
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
    test_streaming_over_http(server)


def test_connections_that_say_nothing_leave_the_server_usable(server: str) -> None:
    host, port = server.removeprefix("http://").split(":")
    with contextlib.ExitStack() as silent:
        for _ in range(400):
            silent.enter_context(socket.create_connection((host, int(port)), timeout=30))
        test_streaming_over_http(server)


@pytest.mark.parametrize(
    ("path", "body", "part"),
    [
        ("v1/completions", {"prompt": "abc", "grammar": "root ::= ("}, "the grammar cannot be parsed"),
        ("extras/detokenize", {"tokens": [99999]}, "99999 is not in the vocabulary"),
        ("v1/completions", {"prompt": ""}, "the prompt is empty"),
    ],
)
def test_a_bad_request_leaves_the_server_usable(server: str, path: str, body: dict[str, Any], part: str) -> None:
    """The first two end llama-cpp-python's own server."""
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{server}/{path}", json.dumps(body).encode(), headers)
    with pytest.raises(urllib.error.HTTPError) as failure:
        urllib.request.urlopen(request, timeout=30)
    assert part in json.load(failure.value)["error"]["message"]
    test_streaming_over_http(server)


CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "developer", "content": "hello"}],
        [{"role": "assistant", "content": None, "tool_calls": [CALL]}, {"role": "user", "content": "hello"}],
        [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "hello"}]}],
        [{"role": "system", "content": [{"type": "text", "text": "b"}]}, {"role": "user", "content": "hello"}],
    ],
)
def test_messages_of_clients(server: str, messages: list[dict[str, Any]]) -> None:
    status, answer = post(server, "v1/chat/completions", {"messages": messages, "max_tokens": 26, "temperature": 0})
    assert status == 200, answer
    assert answer["choices"][0]["message"]["content"] == ALPHABET


@pytest.mark.parametrize(
    ("body", "part"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]}, "images"),
        ({"messages": [{"content": "x"}]}, "no role"),
        ({"messages": "x"}, "messages: "),
        ({"messages": [{"role": "user", "content": "x"}], "max_tokens": "many"}, "max_tokens: "),
    ],
)
def test_what_clients_get_wrong(server: str, body: dict[str, Any], part: str) -> None:
    status, answer = post(server, "v1/chat/completions", body)
    assert status == 400, answer
    assert part in answer["error"]["message"]


def post(server: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    headers = {"Content-Type": "application/json"}
    try:
        request = urllib.request.Request(f"{server}/{path}", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as failure:
        return failure.code, json.load(failure)


def test_a_configuration_names_the_draft_and_its_settings(tmp_path: Path) -> None:
    from llama_eagle.drop_in.options import EAGLE_PARAMETERS
    from llama_eagle.drop_in.server import EagleModelSettings, read_config

    values = {
        "draft": "d.gguf", "draft_path": "d.gguf", "draft_vocab": 64, "n_draft": 3, "n_draft_max": 8,
        "p_min": 0.1, "draft_sampling": "rejection", "lookup": False,
        "exact": True, "draft_gpu_layers": 1, "draft_n_ctx": 512, "checkpoint_mib": 64, "checkpoint_every": 128,
        "parse_replies": False, "rpc_servers": "127.0.0.1:50052",
    }  # fmt: skip
    objects, images = {"drafter", "on_progress"}, {"mmproj_path", "image_folder", "image_urls"}
    # A file cannot name objects, and images are llama.cpp's server's: this one is for `serve --python`.
    assert set(values) == set(EAGLE_PARAMETERS) - objects - images
    config = {"port": 8123, "models": [{"model": "t.gguf", **values}, {"model": "u.gguf", "n_draft": "auto"}]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    found = [read_config(tmp_path / name) for name in ("config.json", "config.yaml")]
    assert found[0] == found[1]
    assert found[0].port == 8123
    assert {name: getattr(found[0].models[0], name) for name in values} == values
    assert found[0].models[1] == EagleModelSettings(model="u.gguf")


def test_serve_refusals(models: Path, tmp_path: Path) -> None:
    target = ["-m", models / "target.gguf"]
    assert_one_line_error(llama_eagle(*PYTHON), 2, "either --model")
    assert_one_line_error(llama_eagle(*PYTHON, *target, "--config", "x"), 2, "either --model")
    assert_one_line_error(llama_eagle(*PYTHON, "-m", models / "none.gguf", "--port", 0), 3, "does not exist")
    assert_one_line_error(llama_eagle(*PYTHON, *target, "-d", *target[1:], "--port", 0), 3, "not an EAGLE-3 draft")
    outcome = llama_eagle(*PYTHON, *target, "--port", 0, "--chat-format", "x")
    assert_one_line_error(outcome, 2, "Invalid chat handler: x")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert_one_line_error(llama_eagle(*PYTHON, *target, "--port", taken.getsockname()[1]), 4, "cannot listen on")
    for content, message in (
        ("{", "not valid"),
        ("{}", "names no models"),
        ('{"models": [{"model": 3}]}', "models.0.model"),
    ):
        (tmp_path / "bad.json").write_text(content)
        assert_one_line_error(llama_eagle(*PYTHON, "--config", tmp_path / "bad.json"), 3, message)
