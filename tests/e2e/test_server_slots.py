"""Files of slots keep the checkpoints of the recurrent state: a changed last turn is read again, not the whole text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fixtures.serving import Served, serve
from fixtures.tiny_gguf import Variant, write_target

pytestmark = pytest.mark.native

FIRST = "hello there " * 50
N_TURN = 40  # more than a changed turn's tokens


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Path]]:
    folder = tmp_path_factory.mktemp("slots")
    target = write_target(folder / "target.gguf", Variant(mix=0.2))
    with serve("-m", target, "-d", "none", "-c", 2048, "-t", 1, "--parallel", 2, "--", "--slot-save-path", folder) as s:
        yield s, folder


def chat(server: Served, slot: int, *turns: str) -> tuple[str, int]:
    """The answer, and how many tokens of the prompt were read."""
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(turns)]
    body = {"messages": messages, "max_tokens": 8, "temperature": 0, "id_slot": slot, "cache_prompt": True}
    status, answer = server.post("/v1/chat/completions", body)
    assert status == 200, answer
    return answer["choices"][0]["message"]["content"], answer["timings"]["prompt_n"]


def move(server: Served, action: str, slot: int, name: str = "a.bin") -> None:
    status, answer = server.post(f"/slots/{slot}?action={action}", {"filename": name})
    assert status == 200, answer


def talk(server: Served) -> list[str]:
    """A conversation in slot 0, saved."""
    server.post("/slots/0?action=erase", {})
    turns = [FIRST]
    turns.append(chat(server, 0, *turns)[0])
    turns.append("and then")
    chat(server, 0, *turns)
    move(server, "save", 0)
    return turns


def edited(server: Served, turns: list[str]) -> tuple[str, int]:
    return chat(server, 1, *turns[:-1], "or else")


def test_a_changed_turn_is_read_alone(served: tuple[Served, Path]) -> None:
    server, _ = served
    turns = talk(server)
    server.post("/slots/1?action=erase", {})
    expected, n_all = edited(server, turns)
    assert n_all > 600
    server.post("/slots/1?action=erase", {})
    move(server, "restore", 1)
    text, n_read = edited(server, turns)
    assert text == expected
    assert n_read < N_TURN


def damaged(data: bytes, kind: str) -> bytes:
    changed = bytearray(data)
    if kind == "bit":
        changed[len(data) // 2] ^= 1
    return {"cut": data[:-7], "bit": bytes(changed), "empty": b"", "other": b"\0" * 999, "long": data + b"x"}[kind]


@pytest.mark.parametrize("kind", ["cut", "bit", "empty", "other", "long", "missing", "of other tokens"])
def test_other_files_are_ignored(served: tuple[Served, Path], kind: str) -> None:
    server, folder = served
    turns = talk(server)
    file: Any = folder / "a.bin.checkpoints"
    if kind == "missing":
        file.unlink()
    elif kind == "of other tokens":
        chat(server, 0, "another text " * 30)
        move(server, "save", 0, "b.bin")
        file.write_bytes((folder / "b.bin.checkpoints").read_bytes())
    else:
        file.write_bytes(damaged(file.read_bytes(), kind))
    server.post("/slots/1?action=erase", {})
    expected, n_all = edited(server, turns)
    server.post("/slots/1?action=erase", {})
    move(server, "restore", 1)
    assert edited(server, turns) == (expected, n_all)
