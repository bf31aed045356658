"""Several models behind one address, without any: names, arguments of their servers, and which of them run."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, cast

import pytest
from llama_eagle.cli.commands.serve import arguments_of_servers
from llama_eagle.serving.api_errors import Refusal
from llama_eagle.serving.pool.models import ModelPool, Offered, Server


class Played:
    """A server that the test plays."""

    def __init__(self, name: str, needed: int, log: list[str]) -> None:
        self.name, self.needed, self.n_users, self.child = name, needed, 0, name
        self._log = log
        self.is_alive = name != "broken"

    def listen(self) -> None:
        self._log.append(f"+{self.name}")
        if not self.is_alive:
            raise Refusal(503, "broken")

    def has_ended(self) -> bool:
        return not self.is_alive

    def end(self) -> None:
        assert not self.n_users
        self.is_alive = False
        self._log.append(f"-{self.name}")


def offered(*names: str) -> list[Offered]:
    return [Offered(name, Path("x"), 1) for name in names]


def pool_of(log: list[str], *names: str, max_bytes: int = 2) -> ModelPool:
    def start(model: Offered, needed: int) -> Server:
        return cast(Server, Played(model.name, needed, log))

    return ModelPool(offered(*names), start, lambda model: model.n_bytes, max_bytes)


async def used(pool: ModelPool, *names: str) -> list[Any]:
    found = []
    for name in names:
        async with pool.use(pool.named(name)) as child:
            found.append(child)
    return found


def test_the_least_recently_used_ends() -> None:
    log: list[str] = []
    pool = pool_of(log, "a", "b", "c")
    assert asyncio.run(used(pool, "a", "b", "a", "c", "", "a")) == ["a", "b", "a", "c", "c", "a"]
    assert log == ["+a", "+b", "-b", "+c"]
    assert [model.name for model in pool.running()] == ["c", "a"]
    pool.close()
    assert log[4:] == ["-c", "-a"]


def test_a_server_that_answers_does_not_end() -> None:
    """The next model waits for it, and new requests for its own model wait for that, but not those for others."""
    log: list[str] = []

    async def check() -> None:
        pool = pool_of(log, "a", "b", "c")
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(pool.use(pool.named("a")))
            await stack.enter_async_context(pool.use(pool.named("b")))
            waiting = [asyncio.ensure_future(used(pool, "c"))]
            await asyncio.sleep(0.05)
            waiting.append(asyncio.ensure_future(used(pool, "a")))
            assert await used(pool, "b") == ["b"]
            await asyncio.sleep(0.05)
            assert log == ["+a", "+b"] and not any(each.done() for each in waiting)
            assert [model.name for model in pool.running()] == ["a", "b"]
        assert await asyncio.wait_for(asyncio.gather(*waiting), 20) == [["c"], ["a"]]

    asyncio.run(check())
    assert log[2:] == ["-a", "+c", "-b", "+a"]


def test_a_client_that_goes_gives_up_its_turn() -> None:
    """A load that has begun ends, so that the next request finds the model."""
    log: list[str] = []

    async def check() -> None:
        pool = pool_of(log, "a", "b", "c")
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(pool.use(pool.named("a")))
            await stack.enter_async_context(pool.use(pool.named("b")))
            first, second = (asyncio.ensure_future(used(pool, name)) for name in ("c", "broken"))
            await asyncio.sleep(0.05)
            second.cancel()
            first.cancel()
            await asyncio.wait([first, second])
        assert await used(pool, "c") == ["c"]
        await pool.unload(pool.named("c"))
        await pool.unload(pool.named("c"))

    asyncio.run(check())
    assert log == ["+a", "+b", "-a", "+c", "-c"]


def test_a_server_that_has_ended_starts_again() -> None:
    log: list[str] = []

    async def check() -> None:
        pool = pool_of(log, "a", "broken")
        async with pool.use(pool.named("a")):
            cast(Played, pool._running["a"]).is_alive = False
        assert await used(pool, "a") == ["a"]
        for _ in range(2):
            with pytest.raises(Refusal, match="broken"):
                await used(pool, "broken")
        assert await used(pool, "a") == ["a"]

    asyncio.run(check())
    assert log == ["+a", "+a", "+broken", "+broken"]


def test_a_model_that_needs_more_than_there_is() -> None:
    pool = pool_of([], "a", max_bytes=0)
    with pytest.raises(Refusal, match="--max-memory") as refused:
        asyncio.run(used(pool, "a"))
    assert refused.value.status == 503


def test_names() -> None:
    """Those of the list, without the type, and with the tag of ollama's clients."""
    pool = pool_of([], "Owner/Name:q4_k_m", "Owner/Name:q8_0", "other")
    names = {"owner/name": 0, "Owner/Name:q8_0": 1, "other:latest": 2, "OTHER": 2}
    assert [pool.named(name) for name in names] == [pool.models[place] for place in names.values()]
    for name, status in (("Name", 404), ("", 400)):
        with pytest.raises(Refusal, match="Owner/Name:q8_0") as refused:
            pool.named(name)
        assert refused.value.status == status
    assert pool_of([], "a").named("").name == "a"


def test_arguments_of_the_servers() -> None:
    """All but those of the address and of the keys."""
    given = ["--models", "all", "-c", "5", "--host=0.0.0.0", "--port", "1", "--no-api-key", "--draft", "none"]
    given += ["--max-memory", "8", "--api-key", "k", "--", "--api-key", "k", "--temp", "0"]
    assert arguments_of_servers(given) == ["-c", "5", "--draft", "none", "--", "--temp", "0"]
