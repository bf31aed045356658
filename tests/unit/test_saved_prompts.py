"""Saved prompts, without a server: which files are restored, replaced and removed. The test plays the child."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from array import array
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

import pytest
from llama_eagle.errors import UsageError
from llama_eagle.serving.api_errors import Refusal
from llama_eagle.serving.llama_server import slots
from llama_eagle.serving.llama_server.options import read_cache_disk
from llama_eagle.serving.llama_server.process import INTERRUPTED, until_end
from llama_eagle.serving.saved import saved_prompts
from llama_eagle.serving.saved.saved_prompts import (
    HEAD,
    MAGIC,
    PLAIN_TOKENS,
    SavedPrompts,
    is_whole,
    n_common,
    read_tokens,
)

FRONT = cast(slots.Front, None)
LIMIT = 10**6


def state(tokens: Iterable[int]) -> bytes:
    """Return the beginning of a file of a sequence, which is all that the front reads of it."""
    held = array("i", tokens)
    head = HEAD.pack(MAGIC, 2, 2 + len(held), *PLAIN_TOKENS)
    return head + len(held).to_bytes(4, "little") + held.tobytes() + b"rows"


class Child:
    """Slots without a model."""

    def __init__(self, folder: Path, n: int = 2, n_ctx: int = 4096) -> None:
        self.folder = folder
        self.slots: list[dict[str, Any]] = [{"id": i, "n_ctx": n_ctx, "is_processing": False} for i in range(n)]
        self.texts: dict[int, list[int]] = {}
        self.log: list[str] = []
        self.refuses = ""

    def hold(self, slot: int, tokens: Iterable[int], n_answer: int = 0) -> None:
        """Have the text of a request in a slot. n_answer: tokens of its answer, at the end."""
        self.texts[slot] = [*tokens]
        self.slots[slot] |= {
            "n_prompt_tokens": len(self.texts[slot]),
            "n_prompt_tokens_processed": 1,
            "n_prompt_tokens_cache": len(self.texts[slot]) - n_answer - 1,
            "id_task": max(state.get("id_task", 0) for state in self.slots) + 1,
        }

    async def ask(self, _front: Any, _method: str, path: str, body: Any = None) -> Any:
        if self.refuses and self.refuses in path:
            if self.refuses == "save":  # the disk is full
                (self.folder / body["filename"]).write_bytes(b"x")
            raise Refusal(500)
        if path == "/slots":
            return self.slots
        if path == "/tokenize":
            return {"tokens": [*body["content"].encode()]}
        slot, _, action = path.removeprefix("/slots/").partition("?action=")
        self.log.append(f"{action} {slot}")
        if action == "save":
            file = self.folder / body["filename"]
            file.write_bytes(state(self.texts[int(slot)]))
            for suffix in (".settings", ".checkpoints"):
                file.with_name(file.name + suffix).write_bytes(b"more")
        return {}


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Child:
    folder = tmp_path / "model"
    folder.mkdir()
    played = Child(folder)
    monkeypatch.setattr(slots, "ask_json", played.ask)
    return played


def files(child: Child) -> list[Path]:
    return sorted(child.folder.glob("*.prompt"))


def save(child: Child, *texts: Iterable[int], limit: int = LIMIT) -> None:
    async def run() -> None:
        saved = SavedPrompts(child.folder, limit)
        for i, text in enumerate(texts):
            child.hold(i % 2, text)
            await saved.save(FRONT)

    asyncio.run(run())


def restored(child: Child, *bodies: dict[str, Any]) -> list[str]:
    """Return what a new server's requests do with the slots."""

    async def run() -> None:
        saved = SavedPrompts(child.folder, LIMIT)
        for body in bodies:
            await saved.prepare(FRONT, body)

    child.log.clear()
    asyncio.run(run())
    return child.log


def prompt(tokens: Iterable[int], **more: Any) -> dict[str, Any]:
    return {"prompt": [*tokens], **more}


def test_a_prompt_is_found_by_its_beginning(child: Child) -> None:
    save(child, range(1000), range(5000, 6000))
    child.slots = Child(child.folder).slots
    assert restored(child, prompt(range(1200))) == ["restore 0"]
    assert restored(child, prompt(range(600))) == ["restore 0"]
    assert restored(child, {"prompt": bytes(i % 100 for i in range(999)).decode()}) == []


@pytest.mark.parametrize(
    "body",
    [
        prompt(range(500)),  # as fast to read
        prompt([*range(600), *range(9000, 14000)]),  # llama-server would take another slot
        prompt(range(1000), id_slot=1),
        prompt(range(1000), cache_prompt=False),
        prompt([[1, 2], [3]]),
        prompt([2**40] * 1000),
        {"prompt": {"prompt_string": "x", "multimodal_data": ["x"]}},
        {},
    ],
)
def test_other_requests_restore_nothing(child: Child, body: dict[str, Any]) -> None:
    save(child, range(1000))
    child.slots = Child(child.folder).slots
    assert restored(child, body) == []


def test_what_a_slot_holds_is_not_read_again(child: Child) -> None:
    save(child, range(1000), range(5000, 6200))
    child.slots = Child(child.folder).slots
    asked = [range(1100), range(1200), [*range(700), 1, 2], range(1100), range(5000, 6500)]

    async def run() -> None:
        saved = SavedPrompts(child.folder, LIMIT)
        child.slots[1]["is_processing"] = True
        for each in asked:
            await saved.prepare(FRONT, prompt(each))
            child.hold(0, each)

    child.log.clear()
    asyncio.run(run())
    assert child.log == ["restore 0", "save 0", "restore 0", "restore 0"]


@pytest.mark.parametrize(
    ("texts", "asked", "lost"),
    [
        ((range(1000), range(5000, 6200)), range(8000, 9000), ["save 0"]),  # the least recently used one
        ((range(1000), range(5000, 6200)), [*range(5000, 5500), 1], ["save 1"]),  # most of the prompt
        ((range(1000), range(5000, 6200)), range(1200), []),  # the next turn
        ((range(1000), range(5000, 6200)), [*range(950), 1], []),  # almost all of it
        ((range(1000),), range(8000, 9000), []),  # another slot is empty
        ((range(400), range(5000, 6200)), range(8000, 9000), []),  # as fast to evaluate
    ],
)
def test_a_text_is_saved_before_another_takes_its_place(
    child: Child, texts: tuple[range, ...], asked: list[int], lost: list[str]
) -> None:
    async def run() -> None:
        saved = SavedPrompts(child.folder, LIMIT)
        for slot, text in enumerate(texts):
            await saved.prepare(FRONT, prompt(text))
            child.hold(slot, [*text, -1, -1], n_answer=2)
        await saved.prepare(FRONT, prompt(asked))
        assert child.log == lost
        child.log.clear()
        child.slots[0]["is_processing"] = child.slots[1]["is_processing"] = True
        await saved.prepare(FRONT, prompt(range(20000, 21000)))

    asyncio.run(run())
    assert child.log == []


def test_a_long_text_is_not_written_at_every_turn(child: Child) -> None:
    """One that lies on the disk up to a tenth is kept when others take its slot for a while, as short questions do."""

    async def run() -> None:
        saved = SavedPrompts(child.folder, LIMIT)
        for n in range(1000, 1300, 20):
            await saved.prepare(FRONT, prompt(range(n)))
            child.hold(0, range(n))
            child.slots[1]["is_processing"] = True
            await saved.prepare(FRONT, prompt(range(30000, 30100)))
            child.hold(0, range(30000, 30100))

    asyncio.run(run())
    assert 2 <= child.log.count("save 0") <= 4 and len(files(child)) == 1


def test_a_prompt_needs_room(child: Child) -> None:
    """It is restored into the least recently used idle slot of its size."""
    save(child, range(1000))
    for sizes, log in (((999, 999), []), ((999, 1000), ["restore 1"]), ((1000, 1000), ["restore 0"])):
        child.slots = [{"id": i, "n_ctx": n, "is_processing": False} for i, n in enumerate(sizes)]
        assert restored(child, prompt(range(1000))) == log
    child.hold(0, range(3000))
    assert restored(child, prompt(range(1000))) == ["restore 1"]
    child.hold(1, range(3000, 6000))
    assert restored(child, prompt(range(1000))) == ["save 0", "restore 0"]
    child.slots[0]["is_processing"] = child.slots[1]["is_processing"] = True
    assert restored(child, prompt(range(1000))) == []


def damage(path: Path, kind: str) -> None:
    data = path.read_bytes()
    more = path.with_name(f"{path.name}.checkpoints")
    if kind == "cut":
        path.write_bytes(data[:-1])
    elif kind == "bit":
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    elif kind == "checkpoints":
        more.write_bytes(b"mare")
    elif kind == "no checkpoints":
        more.unlink()
    elif kind == "a renamed file":
        more.rename(more.with_suffix(".draft"))
    elif kind == "another file":
        more.with_suffix(".draft").write_bytes(b"x")
    else:
        path.with_name(f"{path.name}.sha256").write_bytes({"no sum": b"", "a foreign sum": b"\xff" * 64}[kind])


@pytest.mark.parametrize(
    "kind", ["cut", "bit", "checkpoints", "no checkpoints", "a renamed file", "another file", "no sum", "a foreign sum"]
)
def test_damaged_files_never_reach_the_child(child: Child, kind: str) -> None:
    save(child, range(1000))
    child.slots = Child(child.folder).slots
    (file,) = files(child)
    assert is_whole(file)
    damage(file, kind)
    assert not is_whole(file) and restored(child, prompt(range(1000))) == []


@pytest.mark.parametrize("data", [b"", b"x" * 999, state(range(9))[:22], HEAD.pack(MAGIC, 2, 3, 1, 1) + b"x" * 99])
def test_other_files_have_no_tokens(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "a.prompt"
    file.write_bytes(data)
    assert not read_tokens(file) and not read_tokens(tmp_path / "none")
    file.write_bytes(state(range(9)))
    assert [*read_tokens(file)] == [*range(9)]


def test_a_turn_replaces_its_beginning(child: Child) -> None:
    save(child, range(1000), range(5000, 6000), range(1050))
    assert sorted(len(read_tokens(file)) for file in files(child)) == [1000, 1050]
    save(child, range(700), range(400))  # another prompt, and one that is too short
    assert len(files(child)) == 3 and all(map(is_whole, files(child)))


def test_unchanged_and_busy_slots_are_not_saved(child: Child) -> None:
    async def run() -> list[bool]:
        saved = SavedPrompts(child.folder, LIMIT)
        child.hold(0, range(1000))
        child.hold(1, range(1000))
        child.slots[1]["is_processing"] = True
        return [await saved.save(FRONT), await saved.save(FRONT)]

    assert asyncio.run(run()) == [True, True]
    assert child.log == ["save 0"]


def test_the_oldest_files_of_all_models_go(child: Child, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    left = [other / name for name in ("a.prompt", "a.prompt.sha256", "1-0.new")]  # the last one by a killed server
    for i, path in enumerate(left):
        path.write_bytes(b"x" * 5000)
        os.utime(path, (i, i))
    save(child, range(1000), limit=LIMIT)
    assert all(path.exists() for path in left)
    save(child, range(5000, 6000), limit=14000)  # two prompts of 4 KB and one file
    assert [path.exists() for path in left] == [False, False, True] and len(files(child)) == 2
    save(child, range(3000), limit=9000)  # larger than the limit
    assert not files(child) and not [*child.folder.iterdir()]


@pytest.mark.parametrize("path", ["/slots", "/tokenize", "save", "restore"])
def test_refusals_are_no_errors_of_requests(child: Child, path: str, capsys: pytest.CaptureFixture[str]) -> None:
    save(child, range(100, 1100), [*b"x" * 600])
    child.slots = Child(child.folder).slots
    child.refuses = path
    restored(child, prompt(range(100, 1100)), {"prompt": "x" * 600})
    child.hold(0, range(2000))
    save(child, range(2000), range(3000))
    assert len(files(child)) == (2 if path in ("/slots", "save") else 3)
    assert capsys.readouterr().err.count("was not saved") == (path in ("/slots", "save"))
    assert not [*child.folder.glob("*.new*")]


def test_slots_are_saved_when_no_request_has_come_for_some_time(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_prompts, "IDLE_S", 0.01)

    async def run() -> None:
        saved = SavedPrompts(child.folder, LIMIT)
        child.hold(0, range(1000))
        child.slots[0]["is_processing"] = True
        await saved.prepare(FRONT, {})
        while child.slots[0]["is_processing"]:
            await asyncio.sleep(0.05)
            child.slots[0]["is_processing"] = False
        while not files(child):
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(run(), 60))


def test_the_end_saves_from_another_thread(child: Child) -> None:
    saved = SavedPrompts(child.folder, LIMIT)
    saved.save_at_end(FRONT)  # nothing to save

    async def run() -> None:
        await saved.prepare(FRONT, {})
        child.hold(0, range(1000))
        await asyncio.to_thread(saved.save_at_end, FRONT)

    asyncio.run(run())
    assert len(files(child)) == 1
    saved.save_at_end(FRONT)  # the loop has ended


def test_what_a_killed_server_has_written_goes(child: Child) -> None:
    old, new = (child.folder / name for name in ("1-0.new.settings", "2-0.new"))
    for path in (old, new):
        path.write_bytes(b"x")
    os.utime(old, (0, 0))
    SavedPrompts(child.folder, LIMIT)
    assert [*child.folder.iterdir()] == [new]


@pytest.mark.skipif(sys.platform == "win32", reason="the handler waits for the program")
@pytest.mark.parametrize("n_signals", [1, 2])
def test_a_second_signal_ends_the_server_at_once(n_signals: int) -> None:
    began, saved = threading.Event(), threading.Event()

    def save() -> None:
        began.set()
        saved.wait(60)

    def send() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        began.wait(60)
        if n_signals == 2:
            os.kill(os.getpid(), signal.SIGINT)
        else:
            saved.set()

    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], text=True) as process:
        sender = threading.Timer(0.1, send)

        def follow(_is_ending: Callable[[], bool]) -> str:
            sender.start()
            return str(process.wait())

        assert until_end(process, follow, "", save) == INTERRUPTED
    assert began.is_set() and saved.is_set() == (n_signals == 1)
    saved.set()
    sender.join()


def test_the_common_beginning() -> None:
    first = array("i", range(1000))
    for n in (0, 1, 2, 499, 999, 1000):
        other = array("i", [*range(n), *[-1] * (1000 - n)])
        assert n_common(first, other) == n == n_common(other[: n + 1], first)
    assert n_common(first, array("i")) == 0


def test_sizes() -> None:
    assert [read_cache_disk(text) for text in ("0", "8G", "500m")] == [0, 8 * 10**9, 5 * 10**8]
    for text in ("", "8", "G", "0G", "-1G", "8T", "1.5G", "x"):
        with pytest.raises(UsageError, match="cache_disk"):
            read_cache_disk(text)
