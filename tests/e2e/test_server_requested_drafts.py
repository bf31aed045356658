"""Draft settings of a single request, and the warning about drafts that never fit."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fixtures.serving import Served, serve
from fixtures.tiny_gguf import Variant, write_draft, write_target

pytestmark = pytest.mark.native

ALPHABET = "abcdefghijklmnopqrstuvwxyz"
LONGEST = 4
UNSURE = Variant(sharpness=6)  # the draft gives its tokens probabilities of 0.7 to 0.9


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("pair")
    pair = ("-m", write_target(folder / "target.gguf"), "-d", write_draft(folder / "draft.gguf", UNSURE))
    with serve(*pair, "-c", 512, "-t", 1, "--parallel", 2, "--n-draft", LONGEST) as running:
        yield running


def ask(server: Served, path: str = "/completion", **options: Any) -> tuple[int, int]:
    """Tokens drafted and rounds of an answer, whose text never depends on drafts."""
    chat = {"messages": [{"role": "user", "content": "a"}]}
    body = {"max_tokens": 20, "temperature": 0, **(chat if "chat" in path else {"prompt": "abc"}), **options}
    status, answer = server.post(path, body)
    assert status == 200, answer
    if path == "/completion":
        assert answer["content"] == ALPHABET[3:23]
    timings = answer["timings"]
    n_drafted = timings.get("draft_n", 0)
    return n_drafted, 19 - timings.get("draft_n_accepted", 0)  # the first token is the prompt's


def dotted(settings: dict[str, Any]) -> dict[str, Any]:
    return {f"speculative.{name}": value for name, value in settings.items()}


@pytest.mark.parametrize("path", ["/completion", "/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("nested", [False, True])
def test_the_longest_draft(server: Served, path: str, nested: bool) -> None:
    before = -1
    for n in range(LONGEST + 1):
        settings = {"n_max": n}
        drafted, rounds = ask(server, path, **({"speculative": settings} if nested else dotted(settings)))
        assert before < drafted <= n * rounds
        before = drafted


@pytest.mark.parametrize("none", ["none", {"type": "none"}, {"n_max": 0}, False])
def test_no_draft(server: Served, none: Any) -> None:
    assert ask(server, speculative=none)[0] == 0
    assert ask(server)[0] > 0


def test_short_drafts_are_not_used(server: Served) -> None:
    """With p_min they end, and then they may be too short."""
    assert ask(server, **dotted({"p_min": 0.9}))[0] == 0
    assert 0 < ask(server, **dotted({"p_min": 0.7}))[0] < ask(server, **dotted({"p_min": 0.0}))[0]
    assert ask(server, **dotted({"p_min": 0.7, "n_min": 4}))[0] < ask(server, **dotted({"p_min": 0.7}))[0]
    assert ask(server, **dotted({"n_min": 4}))[0] > 0


def test_requests_at_the_same_time_keep_their_own(server: Served) -> None:
    from concurrent.futures import ThreadPoolExecutor

    wanted: list[dict[str, Any]] = [{"p_min": 0.9}, {"n_max": 2}] * 4
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda settings: ask(server, **dotted(settings))[0] > 0, wanted))
    assert found == [False, True] * 4


WRONG = [
    {"n_max": -1}, {"n_max": LONGEST + 1}, {"n_max": 10**9}, {"n_max": "many"}, {"n_min": -1}, {"n_min": 99},
    {"n_min": 3, "n_max": 2}, {"p_min": -0.1}, {"p_min": 1.1}, {"p_min": "a"}, {"type": "mtp"}, {"type": 5},
    {"length": 3}, {"ngram_size_n": 3},
]  # fmt: skip


@pytest.mark.parametrize("settings", WRONG, ids=str)
def test_settings_out_of_range(server: Served, settings: dict[str, Any]) -> None:
    for body in (dotted(settings), {"speculative": settings}):
        status, answer = server.post("/completion", {"prompt": "abc", "n_predict": 2, **body})
        assert status == 400 and "speculative" in str(answer)


def test_an_unknown_name_of_a_drafter(server: Served) -> None:
    assert server.post("/completion", {"prompt": "abc", "n_predict": 2, "speculative": "mtp"})[0] == 400


def test_a_draft_that_is_never_accepted_is_reported_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A draft of a target whose letters have other numbers."""
    target = write_target(tmp_path / "target.gguf")
    draft = write_draft(tmp_path / "draft.gguf", replace(Variant(), seed=3, says=()))
    _spoil(draft)
    log = tmp_path / "log.txt"
    options = ("-c", 1024, "-t", 1, "--parallel", 1, "--n-draft", 4, "--no-lookup", "--", "--log-file", log)
    with serve("-m", target, "-d", draft, *options) as server:
        for _ in range(3):
            answer = server.complete("abc", 200, temperature=0)
            assert answer["timings"].get("draft_n_accepted", 0) == 0
        end = time.monotonic() + 30
        while "drafted tokens was accepted" not in log.read_text() and time.monotonic() < end:
            time.sleep(0.05)
    lines = [line for line in log.read_text().splitlines() if "drafted tokens was accepted" in line]
    assert len(lines) == 1
    assert "none of" in lines[0] and "wrong draft for this target, or a dead head" in lines[0]


def _spoil(path: Path) -> None:
    """Turns a draft's answers round: each token gets the row of another."""
    import gguf

    reader = gguf.GGUFReader(path, "r+")
    head = next(tensor for tensor in reader.tensors if tensor.name == "output.weight")
    head.data[:] = head.data[::-1].copy()
    reader.data.flush()
