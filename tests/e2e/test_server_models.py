"""`serve --models`: a request loads the model that it names, and the least recently used one ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from fixtures.serving import Served, serve
from fixtures.streams import events
from fixtures.tiny_gguf import START, Variant, write_target
from llama_eagle.serving.pool.front import offered

pytestmark = pytest.mark.native

NAMES, DAMAGED = ("one", "two"), "three"
QUESTION = [{"role": "user", "content": "a\n"}]
OPTIONS = ("-c", 512, "-t", 1, "--parallel", 1, "--draft", "none")
ROOM_FOR_ONE = 0.2  # GiB


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models that say their names, one that is damaged later, and a file that is none."""
    found = tmp_path_factory.mktemp("models")
    for name in (*NAMES, DAMAGED):
        write_target(found / f"{name}.gguf", Variant(says=(f"{name} says",), n_vocab=START + 2))
    (found / "none.gguf").write_bytes(b"GGUF")
    return found


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Served]:
    with serve("--models", folder, "--api-key", "k", "--max-memory", ROOM_FOR_ONE, *OPTIONS) as running:
        yield running


def loaded(server: Served) -> list[str]:
    return [model["name"] for model in server.get("/api/ps", x_api_key="k")[1]["models"]]


def test_a_request_loads_its_model(server: Served) -> None:
    status, listed = server.get("/v1/models", x_api_key="k")
    assert status == 200 and [model["id"] for model in listed["data"]] == ["one", "three", "two"]
    tags = server.get("/api/tags", x_api_key="k")[1]["models"]
    assert [model["name"] for model in tags] == ["one:latest", "three:latest", "two:latest"]
    assert all(model["details"]["quantization_level"] for model in tags)
    assert "warning: not served: " in server.log()
    for name in (*NAMES, "one"):
        given = {"model": name, "messages": QUESTION, "max_tokens": 5, "temperature": 0}
        status, answer = server.post("/v1/chat/completions", given, x_api_key="k")
        assert status == 200 and answer["model"] == name, answer
        assert answer["choices"][0]["message"]["content"] == f"{name} says"
        status, answer = server.post("/v1/messages", given, x_api_key="k")
        assert status == 200 and answer["content"] == [{"type": "text", "text": f"{name} says"}], answer
        status, answer = server.post("/api/chat", {**given, "model": f"{name}:latest", "stream": False}, x_api_key="k")
        assert status == 200 and answer["message"]["content"] == f"{name} says", answer
        assert loaded(server) == [f"{name}:latest"]
    assert server.log().count("unloading") == 2
    status, answer = server.post("/api/generate", {"model": "one", "keep_alive": 0, "stream": False}, x_api_key="k")
    assert status == 200 and answer["done_reason"] == "unload" and not loaded(server)


def test_a_model_is_described_without_being_loaded(server: Served) -> None:
    before = loaded(server)
    status, shown = server.post("/api/show", {"model": "two"}, x_api_key="k")
    assert status == 200 and shown["model_info"]["general.architecture"] == "qwen35" and shown["capabilities"]
    assert loaded(server) == before


def test_refused(server: Served) -> None:
    """An unknown model by name, and requests without a key before they load anything."""
    given = {"model": "four", "messages": QUESTION}
    status, answer = server.post("/v1/chat/completions", given, x_api_key="k")
    assert status == 404 and answer["error"]["code"] == "model_not_found" and "two" in answer["error"]["message"]
    before = loaded(server)
    for path in ("/v1/chat/completions", "/v1/models", "/props"):
        assert server.post(path, {**given, "model": "two"})[0] == 401
    assert loaded(server) == before
    assert server.get("/health")[0] == 200


def test_files_of_one_name_have_their_folder_in_it(tmp_path: Path) -> None:
    for name in ("one/model", "two/model", "other"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write_target(tmp_path / f"{name}.gguf", Variant())
    assert [model.name for model in offered(str(tmp_path))] == ["one/model", "other", "two/model"]


def test_a_browser_asks_before_it_sends_its_key(server: Served) -> None:
    connection = server.connect()
    connection.request("OPTIONS", "/v1/chat/completions", None, {"Origin": "http://localhost:3000"})
    response = connection.getresponse()
    assert response.status == 200 and response.getheader("Access-Control-Allow-Origin") == "http://localhost:3000"
    connection.close()


def test_a_model_that_cannot_be_loaded_has_a_reason(folder: Path) -> None:
    """The other models are served on, also streamed."""
    with serve("--models", folder, *OPTIONS, "--", "--override-kv", "qwen35.block_count=int:x") as server:
        status, answer = server.post("/v1/completions", {"model": "one", "prompt": "a"})
        assert status == 503 and "--override-kv" in answer["error"]["message"], answer
    with serve("--models", folder, *OPTIONS) as server:
        os.truncate(folder / f"{DAMAGED}.gguf", 5000)
        status, answer = server.post("/v1/completions", {"model": DAMAGED, "prompt": "a"})
        assert status == 503 and f"'{DAMAGED}' cannot be loaded" in answer["error"]["message"], answer
        pieces = [
            *events(server, "/v1/completions", {"model": "two", "prompt": "a\n", "max_tokens": 4, "temperature": 0})
        ]
        assert "".join(choice["text"] for piece in pieces for choice in piece["choices"]) == "two says"
