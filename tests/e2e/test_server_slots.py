"""Files of slots keep the checkpoints of the recurrent state: a changed last turn is read again, not the whole text."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
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


OTHERS = {
    "--rope-freq-base": ("--rope-freq-base", 5000),
    "--cache-type-k": ("--cache-type-k", "q8_0"),
    "--override-kv qwen35.rope.freq_base": ("--override-kv", "qwen35.rope.freq_base=float:5000"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_rows_under_other_settings_are_refused(served: tuple[Served, Path], name: str) -> None:
    server, folder = served
    talk(server)
    given = ("-m", folder / "target.gguf", "-d", "none", "-c", 2048, "-t", 1, "--parallel", 2)
    for options, status in (((), 200), (OTHERS[name], 400)):
        with serve(*given, "--", "--slot-save-path", folder, *options) as other:
            found, answer = other.post("/slots/0?action=restore", {"filename": "a.bin"})
            assert found == status, answer
            assert status == 200 or name in answer["error"]["message"]


def test_a_change_inside_a_long_prompt_costs_what_follows_it(tmp_path: Path) -> None:
    """An agent's prompt of one message, whose date changes: a checkpoint lies at most 1,536 tokens before it."""
    target = write_target(tmp_path / "target.gguf", Variant(mix=0.2))
    n_context, n_prompt, n_change = 16384, 13000, 9000
    tokens = [40 + i % 23 for i in range(n_prompt)]
    changed = [*tokens[:n_change], 41, 42, *tokens[n_change:]]
    longer = ("--", "--override-kv", f"qwen35.context_length=int:{n_context}")
    with serve("-m", target, "-d", "none", "-c", n_context, "-t", 2, "--parallel", 1, *longer) as server:
        found = []
        for prompt, is_cached in ((tokens, True), (changed, True), (changed, False)):
            body = {"prompt": prompt, "n_predict": 8, "temperature": 0, "cache_prompt": is_cached, "ignore_eos": True}
            status, answer = server.post("/completion", body)
            assert status == 200, answer
            found.append(answer)
    assert found[1]["timings"]["prompt_n"] <= 1536 + len(changed) - n_change
    assert found[1]["content"] == found[2]["content"]


def complete(server: Served, text: str, n: int, **more: Any) -> str:
    body = {"prompt": text, "n_predict": n, "temperature": 0, "cache_prompt": False, "ignore_eos": True, **more}
    status, answer = server.post("/completion", body)
    assert status == 200, answer
    return str(answer["content"])


def test_a_request_for_a_busy_slot_waits(served: tuple[Served, Path]) -> None:
    """It must not replace the text of the request that generates there."""
    server, _ = served
    prompts = [f"in the beginning {letter}" for letter in "agms"]
    expected = {prompt: complete(server, prompt, 60) for prompt in prompts}
    assert len(set(expected.values())) > 1
    with ThreadPoolExecutor(4) as pool:
        asked = [
            (prompt, pool.submit(complete, server, prompt, 60, id_slot=i % 2)) for i in range(6) for prompt in prompts
        ]
        for prompt, answer in asked:
            assert answer.result(timeout=60) == expected[prompt]


def test_requests_that_wait_behind_actions_start(served: tuple[Served, Path]) -> None:
    """A released slot wakes all that wait: an action takes no slot, and would be the last to be woken."""
    server, _ = served
    with ThreadPoolExecutor(8) as pool:
        jobs = [pool.submit(complete, server, "once", 1500, id_slot=slot) for slot in (0, 1)]
        time.sleep(0.1)
        jobs += [pool.submit(server.post, f"/slots/{slot}?action=erase", {}) for slot in (0, 1, 0, 1)]
        time.sleep(0.05)
        jobs.append(pool.submit(complete, server, "hi", 2))
        for job in jobs:
            job.result(timeout=60)


@pytest.mark.parametrize("slot", [2, 99, -1])
@pytest.mark.parametrize("action", ["save", "restore", "erase"])
def test_an_action_on_a_slot_that_does_not_exist(served: tuple[Served, Path], action: str, slot: int) -> None:
    status, answer = served[0].post(f"/slots/{slot}?action={action}", {"filename": "none.bin"})
    assert status == 400 and "Invalid slot ID" in answer["error"]["message"]


@pytest.mark.parametrize("tokens", [[2**32 + 1], [1.5], [1, -(2**40)]])
@pytest.mark.parametrize("place", ["/detokenize", "/completion"])
def test_token_ids_that_do_not_fit(served: tuple[Served, Path], place: str, tokens: list[float]) -> None:
    body = {"tokens": tokens} if place == "/detokenize" else {"prompt": tokens, "n_predict": 1}
    status, answer = served[0].post(place, body)
    reason = re.search("is no (integer|token id)", answer["error"]["message"])
    assert status == 400 and (reason or place == "/completion")
