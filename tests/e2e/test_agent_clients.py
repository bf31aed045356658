"""Agents' libraries, unchanged, against `serve`: Vercel's AI SDK, pydantic-ai and LangChain, pinned, on every API."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fixtures.serving import Served
from fixtures.templates import CITY, WEATHER, serve_template

pytestmark = [pytest.mark.native, pytest.mark.slow]

CLIENTS = Path(__file__).parent / "clients"
CALL = ("weather", {"city": "Paris"})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A model that thinks, says something and calls a tool, in every turn."""
    with serve_template(tmp_path_factory.mktemp("model"), "Qwen3.5-4B", WEATHER) as running:
        yield running


def test_ai_sdk(server: Served, tmp_path: Path) -> None:
    for file in CLIENTS.iterdir():
        shutil.copy(file, tmp_path)
    subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund"], cwd=tmp_path, check=True)
    command = ["node", "ai_sdk.mjs", server.address]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [answer["name"] for answer in answers] == ["responses", "chat", "compatible", "messages"]
    for answer in answers:
        for turn in (answer["first"], answer["second"]):
            for way in (turn["streamed"], turn["whole"]):
                assert [tuple(call) for call in way["calls"]] == [CALL], answer["name"]
                assert way["text"].strip() == "Now." and way["reason"] == "tool-calls", answer["name"]
                if answer["name"] in ("compatible", "messages"):  # its providers for OpenAI read summaries alone
                    assert way["reasoning"].strip() == "I look.", answer["name"]
            usage = turn["streamed"]["usage"]
            assert usage["inputTokens"] > 0 and usage["outputTokens"] > 0, answer["name"]


def pydantic_models(address: str) -> dict[str, Any]:
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider

    openai = OpenAIProvider(base_url=f"{address}/v1", api_key="none")
    anthropic = AnthropicProvider(base_url=address, api_key="none")
    return {
        "chat": OpenAIChatModel("local", provider=openai),
        "responses": OpenAIResponsesModel("local", provider=openai),
        "messages": AnthropicModel("local", provider=anthropic),
    }


@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
@pytest.mark.parametrize("stream", [False, True])
def test_pydantic_ai(server: Served, api: str, stream: bool) -> None:
    from pydantic_ai.direct import model_request, model_request_stream
    from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.tools import ToolDefinition

    tool = ToolDefinition(name="weather", description="Weather", parameters_json_schema=CITY)
    parameters = ModelRequestParameters(function_tools=[tool])

    async def ask(messages: list[Any]) -> ModelResponse:
        model = pydantic_models(server.address)[api]
        options: Any = {"model_settings": {"max_tokens": 200, "temperature": 0}, "model_request_parameters": parameters}
        if not stream:
            return await model_request(model, messages, **options)
        async with model_request_stream(model, messages, **options) as streamed:
            async for _ in streamed:
                pass
        return streamed.get()

    async def turns() -> None:
        messages: list[Any] = [ModelRequest.user_text_prompt("How is it?")]
        for _ in range(2):
            answer = await ask(messages)
            call = next(part for part in answer.parts if isinstance(part, ToolCallPart))
            assert (call.tool_name, call.args_as_dict()) == CALL
            assert "".join(part.content for part in answer.parts if isinstance(part, TextPart)).strip() == "Now."
            assert answer.usage.input_tokens > 0 and answer.usage.output_tokens > 0
            result = ToolReturnPart(tool_name="weather", content="sunny", tool_call_id=call.tool_call_id)
            messages += [answer, ModelRequest(parts=[result])]

    asyncio.run(turns())


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_langchain(server: Served, api: str) -> None:
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_openai import ChatOpenAI

    options: Any = {"use_responses_api": api == "responses"}
    model = ChatOpenAI(
        base_url=f"{server.address}/v1", api_key="none", model="local", temperature=0, max_retries=0, **options
    )
    tool = {"type": "function", "function": {"name": "weather", "description": "Weather", "parameters": CITY}}
    bound = model.bind_tools([tool])
    messages: list[Any] = [HumanMessage("How is it?")]
    for _ in range(2):
        whole = bound.invoke(messages)
        pieces = list(bound.stream(messages))
        streamed = sum(pieces[1:], pieces[0])
        for answer in (whole, streamed):
            assert [(call["name"], call["args"]) for call in answer.tool_calls] == [CALL]
            assert "Now." in str(answer.text)
        messages += [whole, ToolMessage("sunny", tool_call_id=whole.tool_calls[0]["id"])]
