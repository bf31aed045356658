"""Steps of the child's raw stream without a model."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from llama_eagle.serving.api_errors import Refusal
from llama_eagle.serving.llama_server.slots import Events, Steps

STEP = {"index": 0, "content": "a", "tokens": [97], "tokens_evaluated": 3, "tokens_predicted": 1, "stop": False}
ERROR = {"error": {"code": 500, "message": "broken", "type": "server_error"}}


class Sent:
    """The child's answer. parts: as they arrive."""

    def __init__(self, *parts: list[Any]) -> None:
        self._parts = [b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in part) for part in parts]

    async def part(self) -> bytes:
        return self._parts.pop(0) if self._parts else b""


@pytest.mark.parametrize("parts", [([STEP, STEP, ERROR],), ([STEP, STEP], [ERROR]), ([STEP], [STEP, ERROR])])
def test_steps_before_an_error_are_read(parts: tuple[list[Any], ...]) -> None:
    """Also if they arrive together with it."""

    async def read() -> str:
        steps = Steps(Events(Sent(*parts), {"stream": True}))  # type: ignore[arg-type]
        text = ""
        with pytest.raises(Refusal, match="broken"):
            while found := await steps.read():
                text += "".join(step.text for step in found)
        return text

    assert asyncio.run(read()) == "aa"
