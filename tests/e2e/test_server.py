"""`llama-eagle serve`: its options, its end, what it refuses, and the APIs with a real client."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from fixtures.command import assert_one_line_error, llama_eagle
from fixtures.serving import Served, serve
from fixtures.tiny_gguf import write_pair
from llama_eagle.drafting.options import DraftingOptions
from llama_eagle.native.build import build_info
from llama_eagle.serving.llama_server.options import PLAIN_PAGE, ServerOptions, check, server_args
from llama_eagle.sessions.options import ContextOptions

pytestmark = pytest.mark.native

ALPHABET = "abcdefghijklmnopqrstuvwxyz"
KEY = "correct-horse"
CONTEXT = ("-c", 512, "-t", 1, "--n-draft", 2)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pair(tmp_path_factory.mktemp("models"))


def pair(models: Path) -> list[object]:
    return ["-m", models / "target.gguf", "-d", models / "draft.gguf"]


@pytest.fixture(scope="module", params=["options", "config"])
def server(models: Path, request: pytest.FixtureRequest) -> Iterator[Served]:
    """As --config the same settings, in a file that llama-cpp-python's server would read too."""
    arguments: list[object] = [*pair(models), *CONTEXT]
    if request.param == "config":
        entry = {
            "model": str(models / "target.gguf"), "draft_path": str(models / "draft.gguf"), "n_draft": 2, "n_ctx": 512,
            "n_threads": 1, "n_threads_batch": 1, "verbose": False, "model_alias": "tiny",
        }  # fmt: skip
        settings = {"host": "127.0.0.1", "port": 0, "api_key": KEY, "models": [entry]}
        (models / "config.yaml").write_text(yaml.safe_dump(settings))
        arguments = ["--config", models / "config.yaml"]
    with serve(*arguments, LLAMA_EAGLE_API_KEY=KEY) as running:
        yield running


def client(server: Served) -> Any:
    import openai

    return openai.OpenAI(base_url=f"{server.address}/v1", api_key=KEY)


def test_openai_client(server: Served) -> None:
    api = client(server)
    assert len(api.models.list().data) == 1
    question = [{"role": "user", "content": "hello"}]
    answer = api.chat.completions.create(model="tiny", messages=question, max_tokens=26, temperature=0)
    assert answer.choices[0].message.content == ALPHABET
    assert answer.usage.completion_tokens == 26
    assert answer.timings["draft_n_accepted"] > 0
    stream = api.chat.completions.create(model="tiny", messages=question, max_tokens=26, temperature=0, stream=True)
    parts = [part.choices[0].delta.content or "" for part in stream if part.choices]
    assert "".join(parts) == ALPHABET
    stopped = api.completions.create(model="tiny", prompt="abc", max_tokens=20, temperature=0, stop="h")
    assert (stopped.choices[0].text, stopped.choices[0].finish_reason) == ("defg", "stop")
    scored = api.completions.create(model="tiny", prompt="abc", max_tokens=4, temperature=0, logprobs=2)
    logprobs = scored.choices[0].logprobs
    assert logprobs.tokens == list("defg") and logprobs.text_offset == [0, 1, 2, 3]
    assert [entry["token"] for entry in logprobs.content] == logprobs.tokens  # llama.cpp's form, too
    for token, logprob, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True):
        assert top[token] == logprob and len(top) == 2
    reply = api.responses.create(model="tiny", input="hello", max_output_tokens=26, temperature=0)
    assert reply.output_text == ALPHABET


def test_a_schema_is_kept(server: Served) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    question = [{"role": "user", "content": "hello"}]
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    api = client(server)
    answer = api.chat.completions.create(
        model="tiny", messages=question, max_tokens=200, temperature=0, response_format=form
    )
    text = answer.choices[0].message.content
    assert text.lstrip().startswith("{")


def test_the_messages_api(server: Served) -> None:
    body = {"model": "tiny", "max_tokens": 26, "temperature": 0, "messages": [{"role": "user", "content": "hello"}]}
    status, answer = server.post("/v1/messages", body, x_api_key=KEY)
    assert (status, answer["content"][0]["text"]) == (200, ALPHABET)


def test_keys(server: Served) -> None:
    for given in ("", "Bearer wrong", f"Bearer {KEY[:-1]}", f"Bearer {KEY}x"):
        assert server.post("/completion", {"prompt": "a", "n_predict": 1}, Authorization=given)[0] == 401
    for headers in (
        {"Authorization": f"Bearer {KEY}"}, {"Authorization": f"bearer  {KEY}"}, {"X-Api-Key": KEY},
        {"Authorization": "Bearer another", "X-Api-Key": KEY}, {"Authorization": f"Bearer {KEY}", "X-Api-Key": "x"},
    ):  # fmt: skip
        assert server.post("/completion", {"prompt": "a", "n_predict": 1}, **headers)[0] == 200
    assert server.get("/health")[0] == 200
    assert KEY not in Path(f"/proc/{server.process.pid}/cmdline").read_text()
    for child in children(server.process.pid):
        assert KEY not in Path(f"/proc/{child}/cmdline").read_text()


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


BAD: list[tuple[str, Any, int]] = [
    ("/completion", b"{", 400),
    ("/completion", {"prompt": "abc", "grammar": "root ::= ("}, 400),
    ("/completion", {"prompt": "abc", "json_schema": {"type": 3}}, 400),
    ("/v1/chat/completions", {"messages": "x"}, 400),
    ("/completion", {"prompt": [99999]}, 400),
    ("/completion", {"prompt": "a " * 5000}, 400),
    ("/completion", b" " * (33 << 20), 413),
    ("/nowhere", {}, 404),
]


@pytest.mark.parametrize(("path", "body", "expected"), BAD)
def test_bad_requests_are_the_clients_fault(server: Served, path: str, body: Any, expected: int) -> None:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    assert server.send("POST", path, data, Authorization=f"Bearer {KEY}")[0] == expected
    assert server.process.poll() is None
    test_the_messages_api(server)


UNREADABLE: list[tuple[int, bytes, dict[str, str], str]] = [  # status, body, headers, words of the reason
    (413, b" " * (33 << 20), {}, "32 MiB"),
    (415, b"{}", {"Content-Encoding": "gzip"}, "compressed"),
    (416, b"{}", {"Range": "bytes=z"}, "Range"),
    (400, b"{}", {"Content-Type": "multipart/form-data"}, "parts"),
    (400, b"{}", {"Cookie": "x" * 9000}, "8192 bytes"),
]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
@pytest.mark.parametrize(("status", "body", "headers", "words"), UNREADABLE)
def test_requests_that_cannot_be_read_are_refused_with_a_reason(
    server: Served, path: str, status: int, body: bytes, headers: dict[str, str], words: str
) -> None:
    found, answer = server.send("POST", path, body, Authorization=f"Bearer {KEY}", **headers)
    assert found == status and words in answer["error"]["message"]
    assert (answer.get("type") == "error") == (
        path == "/v1/messages"
    ) or "Cookie" in headers  # the path is not read then
    assert (answer["error"]["type"] == "request_too_large") == (path == "/v1/messages" and status == 413)


def test_a_page_of_this_machine_may_send_its_key(server: Served) -> None:
    """Browsers ask beforehand. A * does not allow Authorization (Fetch standard, CORS non-wildcard header)."""
    connection = server.connect()
    names = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
    connection.request("OPTIONS", "/v1/chat/completions", None, {"Origin": "http://localhost:3000", **names})
    response = connection.getresponse()
    assert response.status == 200 and response.getheader("Access-Control-Allow-Origin") == "http://localhost:3000"
    assert {"*", "Authorization"} <= set(str(response.getheader("Access-Control-Allow-Headers")).split(", "))
    connection.close()


def test_ends_in_time(models: Path) -> None:
    """In the middle of an answer too, with our exit status, and with nothing left running."""
    for number, expected in ((signal.SIGINT, 130), (signal.SIGTERM, 0)):
        with serve(*pair(models), "-c", 4096, "-t", 1) as server:
            connection = server.connect()
            body = json.dumps({"prompt": "abc", "n_predict": 4000, "stream": True})
            connection.request("POST", "/completion", body, {"Content-Type": "application/json"})
            connection.getresponse().read(200)
            started = children(server.process.pid)
            server.process.send_signal(number)
            begin = time.monotonic()
            assert server.process.wait(timeout=10) == expected
            assert time.monotonic() - begin < 5  # 2 promised, on a machine that has nothing else to do
            assert len(started) == 1
            assert not os.path.exists(f"/proc/{started[0]}")  # noqa: PTH110


def test_nothing_outlives_us(models: Path) -> None:
    with serve(*pair(models), *CONTEXT) as server:
        (child,) = children(server.process.pid)
        server.process.kill()
        server.process.wait(timeout=10)
        for _ in range(100):
            if not Path(f"/proc/{child}").exists() or "Z" in Path(f"/proc/{child}/stat").read_text().split()[2]:
                return
            time.sleep(0.1)
    pytest.fail("llama-server goes on")


@pytest.mark.skipif(sys.platform != "linux", reason="the variable is glibc's, and /proc tells it")
@pytest.mark.parametrize(("given", "expected"), [("", "2"), ("5", "5")])
def test_few_heaps_unless_told_otherwise(models: Path, given: str, expected: str, monkeypatch: Any) -> None:
    monkeypatch.delenv("MALLOC_ARENA_MAX", raising=False)
    with serve(*pair(models), *CONTEXT, **({"MALLOC_ARENA_MAX": given} if given else {})) as server:
        (child,) = children(server.process.pid)
        assert f"MALLOC_ARENA_MAX={expected}" in Path(f"/proc/{child}/environ").read_text().split("\0")


def drafters(server: Served) -> list[str]:
    """Return the values of /metrics for each drafter."""
    return [line for line in str(server.get("/metrics")[1]).splitlines() if line.startswith("llamacpp:drafter_")]


def test_what_drafters_did_is_known_while_the_server_sleeps(models: Path) -> None:
    with serve(*pair(models), *CONTEXT, "--", "--sleep-idle-seconds", "1") as server:
        server.complete("abc", 20, temperature=0)
        awake = drafters(server)
        assert any(float(line.split()[-1]) > 0 for line in awake)
        while not server.get("/props")[1]["is_sleeping"]:
            time.sleep(0.1)
        assert drafters(server) == awake
        assert server.get("/props")[1]["is_sleeping"]
        server.complete("abc", 20, temperature=0)
        assert drafters(server) == awake  # counted from its start, as a process that was started again


def test_a_socket_file_is_removed_at_the_end(models: Path, tmp_path: Path) -> None:
    path = tmp_path / "server.sock"
    with serve(*pair(models), *CONTEXT, "--host", path) as server, socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        assert b" 200 " in client.recv(100)
        assert server.process.poll() is None
    assert not path.exists()


def test_refusals(models: Path, tmp_path: Path) -> None:
    target = ["-m", models / "target.gguf"]
    assert_one_line_error(llama_eagle("serve"), 2, "give one of --model")
    assert_one_line_error(llama_eagle("serve", *target, "--config", "x"), 2, "give one of --model")
    assert_one_line_error(llama_eagle("serve", "-m", models / "none.gguf", "--port", 0), 3, "none.gguf")
    assert_one_line_error(llama_eagle("serve", *target, "-d", *target[1:], "--port", 0), 3, "it is the target itself")
    assert_one_line_error(llama_eagle("serve", *target, "--host", "0.0.0.0", "--port", 0), 2, "--no-api-key")
    assert_one_line_error(llama_eagle("serve", *target, "--", "--host", "0.0.0.0"), 2, "before --")
    assert_one_line_error(llama_eagle("serve", *target, "--parallel", 17), 2, "not 1 to 16")
    small = llama_eagle("serve", *pair(models), "--n-draft", 8, "-ub", 9)
    assert_one_line_error(
        small, 2, "ubatch size 9 (--ubatch-size) is below 10, the longest draft + 2. Raise --ubatch-size"
    )
    assert_one_line_error(llama_eagle("serve", *target, "--draft-sampling", "match"), 2, "--draft-sampling")
    assert_one_line_error(llama_eagle("serve", *target, "--port", 0, "--", "--no-such"), 2, "no-such")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert_one_line_error(llama_eagle("serve", *target, "--port", taken.getsockname()[1]), 4, "cannot listen on")
    two = {"models": [{"model": "a.gguf"}, {"model": "b.gguf"}]}
    for content, message, code in (
        ("{", "not valid", 3),
        ("[]", "must be an object", 3),
        ("{}", "model is missing", 3),
        (json.dumps(two), "names 2 models", 2),
        (json.dumps({"model": "a.gguf", "chat_format": "x"}), "chat_format", 3),
        (json.dumps({"model": "a.gguf", "n_ctx": "64"}), "n_ctx is '64', it must be", 3),
    ):
        (tmp_path / "bad.json").write_text(content)
        assert_one_line_error(llama_eagle("serve", "--config", tmp_path / "bad.json"), code, message)


def test_the_command_line_takes_precedence_over_the_file(tmp_path: Path) -> None:
    """Each value of the file is wrong, and replaced by that of the command line: what remains is the missing model."""
    file, wrong = tmp_path / "c.json", {"lookup": False, "draft_path": "lookup"}
    for key, value, option in (
        ("port", 70000, ("--port", 0)), ("parallel", 17, ("-np", 2)), ("n_ctx", -1, ("-c", 64)),
        ("n_draft", "x", ("--n-draft", 2)), ("type_k", "x", ("--cache-type-k", "f16")), ("n_threads", -9, ("-t", 1)),
        ("rpc_servers", "x", ("--rpc", "127.0.0.1:1")), ("draft_n_ctx", -1, ("--draft-ctx-size", 9)),
        ("draft_path", "lookup", ("-d", tmp_path / "d.gguf")), ("lookup", False, ("--lookup",)),
    ):  # fmt: skip
        entry = {"model": "t.gguf", **(wrong if key in wrong else {}), key: value}
        file.write_text(json.dumps(entry))
        assert_one_line_error(llama_eagle("serve", "--config", file), 2, f"{file}: ")
        assert_one_line_error(llama_eagle("serve", "--config", file, *option), 3, "t.gguf")


def test_options_that_the_file_leaves_open_apply(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    file.write_text(json.dumps({"model": "t.gguf", "n_draft": 200}))
    assert_one_line_error(llama_eagle("serve", "--config", file, "--exact"), 2, "exact verification supports")


def test_serve_says_what_it_serves(models: Path, tmp_path: Path) -> None:
    """On stderr, once it listens; and `/` has a page, whatever the build has."""
    errors = tmp_path / "errors"
    target = ["-m", str(models / "target.gguf"), "-d", "lookup", "-c", "256", "-t", "1", "--port", "0"]
    command = [sys.executable, "-m", "llama_eagle", "serve", *target, "--", "--path", str(PLAIN_PAGE)]
    with errors.open("w") as file:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, text=True)
        assert process.stdout is not None
        address = process.stdout.readline().removeprefix("listening on ").strip()
        try:
            status, page = Served(address, process).get("/")
            assert (status, "/v1/chat/completions" in page) == (200, True)
        finally:
            process.terminate()
            process.communicate(timeout=30)
    said = errors.read_text().splitlines()
    assert said[0].startswith("serving target.gguf") and "look-up" in said[0]
    assert not any(line.startswith("warning: ") for line in said)


def test_a_build_without_a_chat_page_serves_a_plain_one(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ServerOptions(models / "target.gguf", DraftingOptions(), ContextOptions(), n_ctx=256)
    served = check(options)
    for has_page in (False, True):
        info = replace(build_info(), has_page=has_page)
        monkeypatch.setattr("llama_eagle.serving.llama_server.options.build_info", lambda info=info: info)
        assert (str(PLAIN_PAGE) in server_args(served)) != has_page
