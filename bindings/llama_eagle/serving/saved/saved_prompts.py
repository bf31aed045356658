"""Prompts that survive a restart: the states of slots in files, found again by the longest common beginning.

llama-server writes the files (state, draft, checkpoints, and the settings that its rows depend on) and refuses those of
other settings. The front decides which ones are written, read and removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import struct
import time
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from llama_eagle import console
from llama_eagle.serving.api_errors import Refusal
from llama_eagle.serving.llama_server import slots
from llama_eagle.serving.llama_server.child import NotReady
from llama_eagle.serving.saved.prompts_folder import prompts_folder

if TYPE_CHECKING:
    from llama_eagle.serving.llama_server.options import Checked

Tokens: TypeAlias = "array[int]"
NOTHING: Tokens = array("i")
State: TypeAlias = Mapping[str, Any]  # of a slot
MIN_TOKENS = 512  # shorter prompts are evaluated in no time
MIN_SHARE = 1 / 8  # of a prompt: more than SIMILAR
# Of llama.cpp's files of sequences: magic, version, number of integers; then the form of the tokens.
HEAD = struct.Struct("<5I")
MAGIC, PLAIN_TOKENS = 0x67677371, (0xFFFFFFFF, 1)
SUFFIX, SUM, NEW = ".prompt", ".sha256", ".new"
IDLE_S = 60.0  # seconds after the last request until slots are saved: each file may have gigabytes
END_S = 20.0  # seconds that saving may take at the end
SAME_SHARE = 0.9  # of a text's tokens: one that shares them takes its place
SIMILAR = 0.1  # of a prompt: llama-server continues the slot that has most of it, if it is more than this
N_RECENT = 64  # prompts of this run that are known; a slot holds the last one of a length
CHUNK = 1 << 20  # bytes
UNFINISHED_S = 3600.0  # seconds that writing never takes


@dataclass(frozen=True)
class Saved:
    """A saved prompt. tokens: of it and its answer."""

    path: Path
    tokens: Tokens


class SavedPrompts:
    """The prompts of a folder. limit: bytes of its files and of those in the folders next to it, for all models."""

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder, self._limit = folder, limit
        _remove_unfinished(folder)
        self._saved = [Saved(path, tokens) for path in folder.glob(f"*{SUFFIX}") if (tokens := read_tokens(path))]
        self._recent: list[Tokens] = []
        self._written: dict[int, Any] = {}  # of each slot: what identifies the text that was saved last
        self._lock = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None  # of the requests
        self._timer: asyncio.TimerHandle | None = None
        self._saving: asyncio.Task[None] | None = None
        self._has_warned = False

    async def prepare(self, front: slots.Front, body: Mapping[str, Any]) -> None:
        """Restore what is saved of a request's prompt into a slot, unless more of it is in memory.

        The text that a slot loses by it or by the request is saved before. Raises nothing.
        """
        self._save_later(front)
        with contextlib.suppress(OverflowError, Refusal, NotReady, OSError):  # the whole prompt is evaluated
            tokens = array("i", await _tokens(front, body.get("prompt")))
            async with self._lock:
                await self._prepare(front, tokens, body)

    async def _prepare(self, front: slots.Front, tokens: Tokens, body: Mapping[str, Any]) -> None:
        states = await slots.ask_json(front, "GET", "/slots")
        held = {state["id"]: self._held(state) for state in states}
        self._recent = [*self._recent[1 - N_RECENT :], tokens]
        given = body.get("id_slot", -1)
        idle = [state for state in states if not state["is_processing"] and given in (-1, state["id"])]
        is_free = given == -1 and body.get("cache_prompt") is not False
        to_fill = self._slot_to_fill(idle, held, tokens) if is_free else None
        lost = to_fill or replaced(idle, held, tokens)
        if lost and not any(covers(each.tokens, held[lost["id"]], n_held(lost)) for each in self._saved):
            await self._save_or_warn(front, [lost])
        found, _ = longest(self._saved, tokens)
        if found is not None and to_fill is not None:
            await self._restore(front, found, to_fill["id"])

    def _slot_to_fill(self, idle: Sequence[State], held: Mapping[int, Tokens], tokens: Tokens) -> State | None:
        """Return the slot for the saved beginning of a prompt; None if the slots hold as much, or it is too short."""
        found, n_saved = longest(self._saved, tokens)
        n_known = max((n_common(each, tokens) for each in held.values()), default=0)
        if found is None or n_saved <= n_known or n_saved < max(MIN_TOKENS, MIN_SHARE * len(tokens)):
            return None
        return least_recent(state for state in idle if state["n_ctx"] >= len(found.tokens))

    def _held(self, state: State) -> Tokens:
        """Return the prompt of the last request in a slot, found by its length; an empty one if it is not known."""
        n = state.get("n_prompt_tokens_processed", 0) + state.get("n_prompt_tokens_cache", 0)
        return next((tokens for tokens in reversed(self._recent) if len(tokens) == n), NOTHING)

    async def _restore(self, front: slots.Front, found: Saved, slot: int) -> None:
        try:
            if await asyncio.to_thread(is_whole, found.path):
                path = f"/slots/{slot}?action=restore"
                await slots.ask_json(front, "POST", path, {"filename": found.path.name})
                return found.path.touch()  # the last one to be removed
            reason = "its files have changed and were removed"
            remove(found.path)
        except Refusal as refusal:
            reason = str(refusal)
        self._saved.remove(found)
        console.warn(f"the saved prompt {found.path} is not used: {reason}. The text is evaluated again.")

    def _save_later(self, front: slots.Front) -> None:
        """Save the slots when no request has come for some time."""

        def begin() -> None:
            self._saving = asyncio.ensure_future(save())

        async def save() -> None:
            if await self.save(front):
                self._save_later(front)

        self._loop = asyncio.get_running_loop()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(IDLE_S, begin)

    def save_at_end(self, front: slots.Front) -> None:
        """Save the slots, from another thread than that of the requests."""
        if self._loop is None or self._loop.is_closed():  # no request has come, or the server has ended
            return
        console.log("saving prompts; a second signal ends the server at once")
        with contextlib.suppress(Exception):  # the server ends in any case
            asyncio.run_coroutine_threadsafe(self.save(front), self._loop).result(END_S)

    async def save(self, front: slots.Front) -> bool:
        """Save the changed slots that compute nothing now, the last used first; return True if others compute."""
        async with self._lock:
            try:
                states = await slots.ask_json(front, "GET", "/slots")
            except (Refusal, NotReady, OSError) as error:
                return self._warn(error)
            last_first = sorted(states, key=lambda state: -state.get("id_task", -1))
            await self._save_or_warn(front, [state for state in last_first if not state["is_processing"]])
        return any(state["is_processing"] for state in states)

    async def _save_or_warn(self, front: slots.Front, states: Iterable[State]) -> None:
        try:
            for state in states:
                await self._save(front, state)
        except (Refusal, NotReady, OSError) as error:
            self._warn(error)

    def _warn(self, error: Exception) -> bool:
        if not self._has_warned:
            console.warn(f"a prompt was not saved for the next start: {error}. Free space in {self._folder}.")
        self._has_warned = True
        return False

    async def _save(self, front: slots.Front, state: State) -> None:
        slot, text = state["id"], (n_held(state), state.get("id_task"))
        if text[0] < MIN_TOKENS or self._written.get(slot) == text:
            return
        new = self._folder / f"{os.getpid()}-{slot}{NEW}"
        try:
            await slots.ask_json(front, "POST", f"/slots/{slot}?action=save", {"filename": new.name})
            await asyncio.to_thread(self._keep, new)
            self._written[slot] = text
        finally:
            remove(new)

    def _keep(self, new: Path) -> None:
        """Give new files the name of their tokens, and remove those that hold little else, and the oldest ones."""
        tokens = read_tokens(new)
        if len(tokens) < MIN_TOKENS:  # of a text with media
            return
        name = hashlib.sha256(tokens.tobytes()).hexdigest()[:16] + SUFFIX
        total = digest(new)
        others = []
        for each in self._saved:
            if covers(tokens, each.tokens, len(each.tokens)):
                remove(each.path)
            else:
                others.append(each)
        (self._folder / f"{name}{SUM}").write_text(total)
        for path in sorted(files_of(new), reverse=True):  # the state is the last one: it is found with all others
            path.replace(self._folder / (name + path.name.removeprefix(new.name)))
        self._saved = [*others, Saved(self._folder / name, tokens)]
        remove_oldest(self._folder.parent, self._limit)


def saved_prompts(served: Checked) -> SavedPrompts | None:
    """Return the saved prompts of a server; None if it keeps none."""
    limit = served.options.cache_disk
    return SavedPrompts(prompts_folder(served), limit) if limit else None


def read_tokens(path: Path) -> Tokens:
    """Return the tokens of a file of a sequence; none if it is no such file, or has media."""
    tokens = array("i")
    with contextlib.suppress(OSError, struct.error, EOFError), path.open("rb") as file:
        magic, _, _, *form = HEAD.unpack(file.read(HEAD.size))
        if magic == MAGIC and tuple(form) == PLAIN_TOKENS:
            (n,) = struct.unpack("<I", file.read(4))
            tokens.fromfile(file, min(n, path.stat().st_size // 4))
    return tokens


def digest(path: Path) -> str:
    """Return the SHA-256 of a saved prompt's files, with their names and sizes."""
    total = hashlib.sha256()
    for each in sorted(files_of(path)):
        suffix = each.name.removeprefix(path.name)
        if suffix == SUM:
            continue
        total.update(f"{suffix} {each.stat().st_size} ".encode())
        with each.open("rb") as file:
            while part := file.read(CHUNK):
                total.update(part)
    return total.hexdigest()


def is_whole(path: Path) -> bool:
    """Return False for files that have changed since they were written: llama-server would end at some of them."""
    try:
        return digest(path) == path.with_name(f"{path.name}{SUM}").read_text("utf-8")
    except (OSError, ValueError):
        return False


def n_common(first: Tokens, second: Tokens) -> int:
    """Return the number of equal tokens at the beginning."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def longest(saved: Iterable[Saved], tokens: Tokens) -> tuple[Saved | None, int]:
    """Return the saved prompt that shares most tokens with another one, and their number."""
    return max(((each, n_common(each.tokens, tokens)) for each in saved), key=lambda pair: pair[1], default=(None, 0))


def covers(tokens: Tokens, others: Tokens, n: int) -> bool:
    """Return True if almost all of a text of `n` tokens, which begins with `others`, is in `tokens`."""
    return n_common(tokens, others) >= SAME_SHARE * n


def replaced(idle: Sequence[State], held: Mapping[int, Tokens], tokens: Tokens) -> State | None:
    """Return the slot whose text llama-server will replace for a prompt; None if the prompt continues it.

    held: prompts of the slots. llama-server chooses the slot that has most of the prompt, or the least recently used.
    """
    n_shared = {state["id"]: n_common(held[state["id"]], tokens) for state in idle}
    best = max(idle, key=lambda state: n_shared[state["id"]], default=None)
    if best is None or n_shared[best["id"]] <= SIMILAR * len(tokens):
        return least_recent(idle)
    return None if covers(tokens, held[best["id"]], n_held(best)) else best


def least_recent(states: Iterable[State]) -> State | None:
    """Return the slot that was used first, or never."""
    return min(states, key=lambda state: state.get("id_task", -1), default=None)


def n_held(state: State) -> int:
    return int(state.get("n_prompt_tokens", 0))


def files_of(path: Path) -> Iterator[Path]:
    """Yield a saved prompt's files."""
    yield from path.parent.glob(f"{path.name}*")


def remove(path: Path) -> None:
    for each in sorted(files_of(path)):  # the state first: what is left of the others is not found
        each.unlink(missing_ok=True)


def _remove_unfinished(folder: Path) -> None:
    """Remove what a killed server was writing; another one may write now."""
    with contextlib.suppress(FileNotFoundError):
        for path in folder.glob(f"*{NEW}*"):
            if path.stat().st_mtime < time.time() - UNFINISHED_S:
                path.unlink()


def remove_oldest(root: Path, limit: int) -> None:
    """Remove the prompts of all folders that were used first until the others have at most `limit` bytes."""
    prompts = defaultdict(list)
    with contextlib.suppress(FileNotFoundError):  # another server removes some, too
        for path in root.glob("*/*"):
            state = path.stat()
            prompts[path.parent / path.name.partition(".")[0]].append((state.st_mtime, state.st_size))
        n_left = limit
        for first, states in sorted(prompts.items(), key=lambda pair: max(pair[1]), reverse=True):
            n_left -= sum(size for _, size in states)
            if n_left < 0:
                remove(first)


async def _tokens(front: slots.Front, prompt: Any) -> list[int]:
    """Return the tokens of a prompt; none of several prompts, and of those with media."""
    if isinstance(prompt, list) and all(isinstance(each, int) for each in prompt):
        return prompt
    if not isinstance(prompt, str):
        return []
    body = {"content": prompt, "add_special": True, "parse_special": True}
    found: list[int] = (await slots.ask_json(front, "POST", "/tokenize", body))["tokens"]
    return found
