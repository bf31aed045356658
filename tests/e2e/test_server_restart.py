"""`--cache-disk`: prompts survive a restart, within a limit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fixtures.serving import Served, serve
from fixtures.tiny_gguf import Variant, write_pair, write_sliding_window_target, write_target

pytestmark = pytest.mark.native

FIRST = "an agent's long prompt " * 60
N_TURN = 60  # more than a turn's tokens
MODELS = {
    "recurrent": lambda path: write_target(path, Variant(mix=0.2)),
    "window": lambda path: write_sliding_window_target(path, window=16, head=3.0),
}


@pytest.fixture(params=MODELS)
def given(tmp_path: Path, request: pytest.FixtureRequest) -> list[Any]:
    target = MODELS[request.param](tmp_path / "target.gguf")
    return ["-m", target, "-d", "none", "-c", 2048, "-t", 1, "--parallel", 1]


def ask(server: Served, *turns: str) -> tuple[str, int]:
    """Return an answer, and how many tokens of its prompt were read."""
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(turns)]
    status, answer = server.post("/v1/chat/completions", {"messages": messages, "max_tokens": 8, "temperature": 0})
    assert status == 200, answer
    return answer["choices"][0]["message"]["content"], answer["timings"]["prompt_n"]


def prompts(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.prompt"))


def test_the_next_turn_is_read_alone(given: list[Any], tmp_path: Path) -> None:
    here = {"LLAMA_EAGLE_CACHE": str(tmp_path)}
    with serve(*given, "--cache-disk", "1G", **here) as server:
        turns = [FIRST, ask(server, FIRST)[0], "and now"]
        ask(server, "another " * 100)  # in the same slot
        assert server.post("/slots/0?action=restore", {"filename": "any"})[0] == 501  # clients get none of the files
    saved = prompts(tmp_path)
    assert len(saved) == 2 and {path.parent.stat().st_mode & 0o077 for path in saved} == {0}
    with serve(*given) as server:
        expected, n_all = ask(server, *turns)
    with serve(*given, "--cache-disk", "1G", **here) as server:
        text, n_read = ask(server, *turns)
        assert (text, n_read < N_TURN < n_all) == (expected, True)
    assert len(prompts(tmp_path)) == 2  # the longer one has replaced its beginning
    with serve(*given, "--cache-disk", "1G", "--", "--rope-freq-base", 5000, **here) as server:
        assert ask(server, *turns)[1] == n_all


def test_the_draft_is_kept_too(tmp_path: Path) -> None:
    """The models behind one address find their drafts next to their files."""
    write_pair(tmp_path)
    given = ("--models", tmp_path, "--no-lookup", "-c", 2048, "-t", 1)
    here = {"LLAMA_EAGLE_CACHE": str(tmp_path)}
    prompt = "abcdefgh ijkl " * 100
    with serve(*given, "--cache-disk", "1G", **here) as server:
        server.complete(prompt, 8, temperature=0)
    assert len([*tmp_path.rglob("*.prompt.*")]) >= 3  # settings, draft, sum
    with serve(*given) as server:
        expected = server.complete(f"{prompt}ab", 20, temperature=0)
    with serve(*given, "--cache-disk", "1G", **here) as server:
        answer = server.complete(f"{prompt}ab", 20, temperature=0)
    assert answer["tokens"] == expected["tokens"]
    assert answer["timings"]["prompt_n"] < N_TURN < expected["timings"]["prompt_n"]
