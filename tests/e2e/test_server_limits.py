"""JSON, schemas and grammars just beyond our limits are the client's fault, and the server goes on.

llama.cpp without our patches reads each of them within seconds; native/tests/test_limits.cpp calls the guards.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import urllib.parse
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from e2e.test_grammar_limits import BEYOND, WIDE, wide
from fixtures.serving import Served, serve
from fixtures.tiny_gguf import START, write_target
from fixtures.upstream import source_folder

pytestmark = pytest.mark.native

DEEP = 1001
SCHEMAS = {
    "arrays": '{"type": "array", "items": ' * DEEP + "{}" + "}" * DEEP,
    "objects": '{"type": "object", "properties": {"a": ' * DEEP + "{}" + "}}" * DEEP,
    "alternatives": '{"anyOf": [' * DEEP + "{}" + "]}" * DEEP,
    "a chain of references": json.dumps(
        {
            "$ref": "#/$defs/0",
            "$defs": {str(i): {"type": "array", "items": {"$ref": f"#/$defs/{i + 1}"}} for i in range(DEEP)}
            | {str(DEEP): {}},
        }
    ),
    "many optional properties": json.dumps({"type": "object", "properties": {str(i): {} for i in range(DEEP)}}),
    "a long name": json.dumps({"type": "object", "properties": {"%" * 4097: {}}, "required": ["%" * 4097]}),
    "a long reference": json.dumps({"$ref": "#/" + "%" * 4097}),
    "many repetitions": json.dumps(
        {"type": "string", "pattern": f"^[{''.join(chr(0x4E00 + 2 * i) for i in range(250))}]{{2000}}$"}
    ),
    "a name that the rest must not have": json.dumps(
        {"type": "object", "properties": {"x" * 1001: {}}, "additionalProperties": {"type": "string"}}
    ),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path = tmp_path_factory.mktemp("model") / "target.gguf"
    write_target(path)
    template = source_folder() / "models/templates/Qwen3.5-4B.jinja"  # it knows tools
    options = ("-d", "none", "-c", 2048, "-t", 1, "--parallel", 2, "--", "--chat-template-file", template)
    with serve("-m", path, *options) as running:
        yield running


def works(server: Served) -> bool:
    return server.process.poll() is None and server.post("/completion", {"prompt": "abc", "n_predict": 2})[0] == 200


HERE = "the schema"
FORM = {"type": "json_schema", "json_schema": {"name": "n", "schema": HERE}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": HERE}}
CHAT = {"max_tokens": 2, "messages": [{"role": "user", "content": "a"}]}
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("/completion", {"prompt": "abc", "n_predict": 2, "json_schema": HERE}),
    ("/v1/chat/completions", {**CHAT, "response_format": FORM}),
    ("/v1/chat/completions", {**CHAT, "tools": [TOOL], "tool_choice": "required"}),
]


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas(server: Served, name: str) -> None:
    """As a form of the answer, in both APIs, and as a tool's parameters, which are left open."""
    for path, request in REQUESTS:
        body = json.dumps(request).replace(json.dumps(HERE), SCHEMAS[name])
        status, answer = server.send("POST", path, body.encode())
        assert status == 400 or "tools" in request, (path, status, str(answer)[:200])
        assert works(server)


COUNTS: dict[str, tuple[dict[str, Any], str]] = {
    "items": ({"type": "array", "items": {"type": "string"}, "minItems": 2001}, "minItems 2001 is above 2000"),
    "characters": ({"type": "string", "minLength": 2001}, "minLength 2001 is above 2000"),
    "more than 32 bits": ({"type": "array", "items": {}, "minItems": 2**32 + 1}, "minItems 4294967297 is above"),
    "a repetition": ({"type": "string", "pattern": "^a{1,2001}$"}, "more than 2000 times"),
    "no integer": ({"type": "integer", "minimum": 5, "maximum": 3}, "no integer is from 5 to 3"),
}


@pytest.mark.parametrize("name", COUNTS)
def test_great_numbers(server: Served, name: str) -> None:
    schema, reason = COUNTS[name]
    for path, request in REQUESTS:
        body = json.dumps(request).replace(json.dumps(HERE), json.dumps(schema))
        status, answer = server.send("POST", path, body.encode())
        is_open = "tools" in request and status == 200
        assert is_open or (status == 400 and reason in str(answer)), (path, answer)
    assert works(server)


@pytest.mark.parametrize("most", [2001, 2**32 + 1])
def test_a_great_maximum_is_none(server: Served, most: int) -> None:
    for schema in ({"type": "string", "maxLength": most}, {"type": "array", "items": {"enum": [1]}, "maxItems": most}):
        for path, request in REQUESTS:
            body = json.dumps(request).replace(json.dumps(HERE), json.dumps(schema))
            status, answer = server.send("POST", path, body.encode())
            assert status == 200, (path, answer)


PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
PICTURE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}
BLOCK = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
MEDIA: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"max_tokens": 2, "messages": [{"role": "user", "content": [PICTURE]}]}),
    ("/v1/messages", {"max_tokens": 2, "messages": [{"role": "user", "content": [BLOCK]}]}),
    ("/completion", {"n_predict": 2, "prompt": {"prompt_string": "<__media__>", "multimodal_data": [PIXEL]}}),
]


@pytest.mark.parametrize("path, body", MEDIA, ids=[path for path, _ in MEDIA])
def test_pictures_for_a_server_that_reads_none(server: Served, path: str, body: dict[str, Any]) -> None:
    status, answer = server.post(path, body)
    assert status == 400 and "start it with --mmproj" in str(answer)


def test_connections_that_say_nothing_or_half_a_word(server: Served) -> None:
    where = urllib.parse.urlparse(server.address)
    with contextlib.ExitStack() as silent:
        for i in range(400):
            address = (str(where.hostname), where.port or 0)
            silent.enter_context(socket.create_connection(address, timeout=30)).sendall(b"POST /"[: i % 7])
        assert works(server)


BODIES: dict[str, Any] = {
    "brackets": "[" * 1001,
    "objects": '{"prompt": "a", "x": ' + '{"a": ' * 1000 + "1" + "}" * 1001,
    "keys": json.dumps({"prompt": "a", "n_predict": 1} | {str(i): 0 for i in range(20_100)}),
    "keys of many objects": json.dumps({"prompt": "a", "n_predict": 1, "x": [{str(i): 0 for i in range(9000)}] * 5}),
}


@pytest.mark.parametrize("name", BODIES)
def test_bodies(server: Served, name: str) -> None:
    assert server.send("POST", "/completion", BODIES[name].encode())[0] == 400
    assert works(server)


def test_arguments_of_earlier_calls(server: Served) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "[" * 1001 + "]" * 1001}}
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    status, _ = server.post("/v1/chat/completions", {"messages": [*messages, messages[0]], "max_tokens": 2})
    assert status == 400
    assert works(server)


@pytest.mark.parametrize("name", sorted(set(BEYOND) - {"too long"}))  # that one is long by spaces at its end
def test_grammars(server: Served, name: str) -> None:
    body = {"prompt": "abc", "n_predict": 10, "grammar": BEYOND[name][0]}
    assert server.post("/completion", body)[0] == 400
    assert works(server)


def test_states_beyond_the_limit_within_the_text_end_that_request_alone(server: Served) -> None:
    grammar = f"root ::= [a-z ] [a-z ] tail\n{wide(990, 4100, 'tail')}"
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(server.complete, "abc", 40, temperature=0)
        status, answer = server.post("/completion", {"prompt": "abc", "n_predict": 10, "grammar": grammar})
        assert (status, len(other.result()["tokens"])) == (400, 40)
    assert re.search(WIDE, str(answer))
    assert works(server)


def test_special_tokens_of_a_text_are_all_found(server: Served) -> None:
    for n in (1, 2, 500):
        for text, tokens in {"": [], "a": [ord("a")], " b ": [*b" b "]}.items():
            status, answer = server.post("/tokenize", {"content": f"<|im_start|>{text}" * n})
            assert (status, answer["tokens"]) == (200, [START, *tokens] * n)


STRANGERS = [
    {"Host": "evil.example"},
    {"Host": "127.evil.example"},
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
]
OURS = [
    {}, {"Host": "localhost:8000"}, {"Host": "[::1]:8000"}, {"Host": "127.0.0.2"}, {"Origin": "http://127.0.0.1:8000"},
    {"Origin": "http://a.localhost"}, {"Origin": "chrome-extension://abc"},
]  # fmt: skip


def test_pages_of_others_may_not_use_it(server: Served) -> None:
    """Not by sending a request whose answer they cannot read, nor by a name of theirs that points here."""
    request = {"prompt": "abc", "n_predict": 1}
    assert {server.post("/completion", request, **headers)[0] for headers in STRANGERS} == {403}
    assert {server.post("/completion", request, **headers)[0] for headers in OURS} == {200}


def test_whoever_opens_it_to_all_does(tmp_path: Path) -> None:
    write_target(tmp_path / "target.gguf")
    with serve("-m", tmp_path / "target.gguf", "-d", "none", "-c", 64, "-t", 1, "--no-api-key") as running:
        assert running.post("/completion", {"prompt": "abc", "n_predict": 1}, Host="mine.example")[0] == 200


def test_what_is_within_the_limits_works(server: Served) -> None:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(100):
        schema = {"type": "array", "items": schema}
    wide = {"type": "object", "properties": {f"name{i}": {"type": "integer"} for i in range(50)}}
    for given in (schema, wide):
        body = {"prompt": "abc", "n_predict": 8, "json_schema": given, "temperature": 0}
        status, answer = server.post("/completion", body)
        assert status == 200 and answer["content"].lstrip()[:1] in ("[", "{")


def test_a_large_catalogue_of_tools(server: Served) -> None:
    """Equal repetitions share their rules; what is too much is named."""
    texts = {"type": "array", "maxItems": 100, "items": {"type": "string", "maxLength": 1000}}
    function = {"parameters": {"type": "object", "properties": {f"list{i}": texts for i in range(8)}}}
    tools = [{"type": "function", "function": {"name": f"tool{i}", **function}} for i in range(30)]
    _, answer = server.post("/v1/chat/completions", {**CHAT, "tools": tools, "tool_choice": "required"})
    assert answer["error"]["code"] == "context_length_exceeded", answer  # by the prompt, after the grammar was made
    numbers = [{"type": "array", "maxItems": 2000, "items": {"const": i}} for i in range(200)]
    function = {"parameters": {"type": "object", "properties": {f"list{i}": each for i, each in enumerate(numbers)}}}
    tools = [{"type": "function", "function": {"name": "greedy", **function}}]
    _, answer = server.post("/v1/chat/completions", {**CHAT, "tools": tools, "tool_choice": "required"})
    assert answer["error"]["code"] == "context_length_exceeded", answer  # its schema is left open
    assert "does not enforce all limits of these tools' schemas" in server.log()
