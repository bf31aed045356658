"""The text is of the weights in use: cached text of another LoRA scale is not used, a changed model file is refused."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fixtures.llama_pairs import SOFT, write_lora
from fixtures.serving import Served, serve
from fixtures.streams import APIS, body_for
from fixtures.tiny_gguf import Variant, write_draft, write_target

pytestmark = pytest.mark.native

TEXT = [40 + i % 20 for i in range(66)]
OFF = [{"id": 0, "scale": 0}]


@pytest.fixture(scope="module", params=["none", "draft"])
def server(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Served]:
    folder: Path = tmp_path_factory.mktemp("model")
    adapter = folder / "adapter.gguf"
    write_lora(adapter)
    target = write_target(folder / "target.gguf", SOFT)
    draft = "none" if request.param == "none" else write_draft(folder / "draft.gguf", SOFT)
    with serve("-m", target, "-d", draft, "-c", 512, "-t", 1, "--parallel", 1, "--", "--lora", adapter) as running:
        yield running


def answer(server: Served, text: list[int] = TEXT, *, cached: bool = True, **more: Any) -> tuple[float, int]:
    """Return the log-probability of the first token, and the number of cached tokens."""
    body = {"prompt": text, "n_predict": 1, "temperature": 0, "n_probs": 1, "cache_prompt": cached, **more}
    status, found = server.post("/completion", body)
    assert status == 200, found
    return found["completion_probabilities"][0]["logprob"], found["timings"]["cache_n"]


def test_scales_of_a_request(server: Served) -> None:
    on, off = answer(server, cached=False)[0], answer(server, cached=False, lora=OFF)[0]
    assert abs(on - off) > 1e-3
    answer(server, lora=OFF)
    assert answer(server) == (pytest.approx(on, abs=1e-6), 0)
    assert answer(server)[0] == pytest.approx(on, abs=1e-6)
    assert answer(server)[1] > 0  # of the same scale it is used
    assert answer(server, lora=OFF) == (pytest.approx(off, abs=1e-6), 0)


def test_scales_of_the_server(server: Served) -> None:
    on, off = answer(server, cached=False)[0], answer(server, cached=False, lora=OFF)[0]
    for scale, expected in ((0, off), (1, on), (0, off), (1, on)):
        assert server.post("/lora-adapters", [{"id": 0, "scale": scale}])[0] == 200
        assert answer(server)[0] == pytest.approx(expected, abs=1e-6)


def test_texts_put_aside(server: Served) -> None:
    """Another text takes the only slot in between."""
    other = [40 + i % 7 for i in range(80)]
    on, off = answer(server, cached=False)[0], answer(server, cached=False, lora=OFF)[0]
    for _ in range(2):
        assert answer(server, lora=OFF)[0] == pytest.approx(off, abs=1e-6)
        answer(server, other)
        assert answer(server)[0] == pytest.approx(on, abs=1e-6)
        answer(server, other, lora=OFF)


def test_no_adapter(server: Served) -> None:
    off = answer(server, cached=False, lora=OFF)[0]
    assert answer(server, cached=False, lora=[])[0] == pytest.approx(off, abs=1e-6)


def test_adapters_that_are_not_applied_yet(tmp_path: Path) -> None:
    adapter = tmp_path / "adapter.gguf"
    write_lora(adapter)
    given = (
        "-m",
        write_target(tmp_path / "target.gguf", SOFT),
        "-d",
        "none",
        "-c",
        512,
        "-t",
        1,
        "--parallel",
        1,
        "--",
    )
    with serve(*given, "--lora", adapter, "--lora-init-without-apply") as server:
        assert server.get("/lora-adapters")[1][0]["scale"] == 0
        off = answer(server, cached=False, lora=OFF)[0]
        assert answer(server, cached=False)[0] == pytest.approx(off, abs=1e-6)
        assert server.post("/lora-adapters", [{"id": 0, "scale": 1}])[0] == 200
        assert abs(answer(server, cached=False)[0] - off) > 1e-3


def test_slot_files_know_their_adapters(tmp_path: Path) -> None:
    """Rows of another scale are not used, and a file of an adapter that is missing is refused by its name."""
    adapter = tmp_path / "adapter.gguf"
    write_lora(adapter)
    given = ("-m", write_target(tmp_path / "target.gguf", SOFT), "-d", "none", "-c", 512, "-t", 1, "--parallel", 1)
    slots = ("--", "--slot-save-path", tmp_path)
    with serve(*given, *slots, "--lora", adapter) as server:
        on, off = answer(server, cached=False)[0], answer(server, cached=False, lora=OFF)[0]
        for name, options in (("on", {}), ("off", {"lora": OFF})):
            answer(server, **options)
            assert server.post("/slots/0?action=save", {"filename": name})[0] == 200
        for name, options, expected in (("off", {}, on), ("on", {"lora": OFF}, off), ("on", {}, on)):
            assert server.post("/slots/0?action=restore", {"filename": name})[0] == 200
            logprob, n_cached = answer(server, **options)
            assert logprob == pytest.approx(expected, abs=1e-6)
            assert (n_cached > 0) == (name == "on" and not options)
    write_lora(adapter, seed=4)  # trained again: the same name and size
    for options in ((), ("--lora", adapter)):
        with serve(*given, *slots, *options) as server:
            status, found = server.post("/slots/0?action=restore", {"filename": "on"})
            assert status == 400 and "adapter.gguf" in found["error"]["message"]
            assert server.post("/slots/0?action=restore", {"filename": "off"})[0] == 200


def test_an_overwritten_model_is_noticed(tmp_path: Path) -> None:
    """Its weights are mapped. Another time of change, the same contents and a file in its place change no text."""
    served = write_target(tmp_path / "served.gguf", Variant(spread=1.0))
    other = write_target(tmp_path / "other.gguf", Variant(seed=2, spread=1.0))
    contents = served.read_bytes()
    with serve("-m", served, "-d", "none", "-c", 256, "-t", 1) as server:

        def statuses() -> set[int]:
            answers = [server.post(path, body_for(path, "a", 2, [])) for path in APIS] + [server.get("/health")]
            assert all(status == 200 or "served.gguf was overwritten" in str(answer) for status, answer in answers)
            return {status for status, _ in answers}

        assert statuses() == {200}
        os.utime(served)
        assert statuses() == {200}
        shutil.copyfile(other, served)
        assert statuses() == {503}
        (line,) = (line for line in server.log().splitlines() if "503" in line)  # once
        assert line.startswith("warning: ") and "served.gguf was overwritten while this server ran" in line
        served.write_bytes(contents)
        assert statuses() == {200}
        other.replace(served)
        assert statuses() == {200}


@pytest.mark.parametrize("key", [None, "key"])
def test_a_server_that_sleeps_wants_the_files_that_it_has_started_with(tmp_path: Path, key: str | None) -> None:
    """It reads them again, but neither the chat template nor whether a draft fits."""
    served = write_target(tmp_path / "served.gguf", Variant(spread=1.0))
    other = write_target(tmp_path / "other.gguf", Variant(seed=2, spread=1.0))
    draft = write_draft(tmp_path / "draft.gguf")
    contents = served.read_bytes()
    given = ("-m", served, "-d", draft, "-c", 256, "-t", 1, "--parallel", 1)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with serve(*given, *(("--api-key", key) if key else ()), "--", "--sleep-idle-seconds", 1) as server:

        def sleep() -> None:
            while not server.get("/props", **headers)[1].get("is_sleeping"):
                time.sleep(0.1)

        def found() -> Any:
            body = {"prompt": TEXT, "n_predict": 8, "temperature": 0}
            status, answer = server.post("/completion", body, **headers)
            return answer["content"] if status == 200 else (status, "served.gguf was replaced" in str(answer))

        text = found()
        assert isinstance(text, str)
        sleep()
        assert found() == text
        sleep()
        shutil.copyfile(other, served)
        assert found() == (503, True)
        served.write_bytes(contents)
        other.replace(served)
        assert found() == (503, True)
        served.unlink()
        assert found() == (503, True)
        served.write_bytes(contents)
        assert found() == text
