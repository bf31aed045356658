"""A response format holds with every template, and next to tools: an answer is a call or has the format."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from fixtures.serving import Served
from fixtures.streams import events
from fixtures.templates import serve_template
from fixtures.upstream import source_folder

pytestmark = pytest.mark.native

# One template of each of llama.cpp's parsers. The first five parsers have no formats of their own.
FAMILIES = (
    "meetkai-functionary-medium-v3.2", "GigaChat3.1-10B-A1.8B", "Kimi-K2-Instruct", "Kimi-K3",
    "inclusionai-ling-3.0-flash", "Qwen3.5-4B", "Qwen3-Coder", "Qwen-Qwen2.5-7B-Instruct",
    "meta-llama-Llama-3.1-8B-Instruct", "deepseek-ai-DeepSeek-V3.2", "google-gemma-4-31B-it",
    "LFM2-8B-A1B", "MiniMax-M3", "mistralai-Ministral-3-14B-Reasoning-2512", "Cohere2MoE", "openbmb-MiniCPM5-1B",
    "muse-glimmer", "StepFun3.5-Flash", "openai-gpt-oss-120b",
)  # fmt: skip
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
PARAMETERS = {"type": "object", "properties": {"kind": {"type": "string", "enum": ["a", "b"]}}, "required": ["kind"]}
TOOLS = [{"type": "function", "function": {"name": "clock", "description": "d", "parameters": PARAMETERS}}]
FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
QUESTION = [{"role": "user", "content": "What is it?"}]
OPTIONS = (
    "--chat-template-kwargs", '{"enable_thinking": false}', "--override-kv", "qwen35.context_length=int:8192",
)  # fmt: skip
END = "<|end_of_msg|>"  # Kimi-K3's last token, which is text in this vocabulary


def names() -> list[str]:
    return sorted(path.stem for path in (source_folder() / "models/templates").glob("*.jinja"))


def streamed(server: Served, body: dict[str, Any]) -> dict[str, Any]:
    """Return the message that a stream makes up."""
    message: dict[str, Any] = {"content": "", "tool_calls": []}
    for event in events(server, "/v1/chat/completions", body):
        for choice in event["choices"]:
            message["content"] += choice["delta"].get("content") or ""
            for part in choice["delta"].get("tool_calls") or []:
                if part["index"] == len(message["tool_calls"]):
                    message["tool_calls"].append({"function": {"name": "", "arguments": ""}})
                for key, text in part["function"].items():
                    message["tool_calls"][part["index"]]["function"][key] += text or ""
    return message


def kind_of(answer: dict[str, Any]) -> str:
    """Return whether an answer is a call or has the format, or was cut. Fails for any other."""
    message, reason = answer["choices"][0]["message"], answer["choices"][0]["finish_reason"]
    content = (message.get("content") or "").strip().removesuffix(END)
    calls = message.get("tool_calls") or []
    if reason == "length":
        return "cut"
    if calls:
        assert not content
        for call in calls:
            assert call["function"]["name"] == "clock"
            json.loads(call["function"]["arguments"])
        return "call"
    assert json.loads(content) in ({"ok": True}, {"ok": False})
    return "format"


def check(folder: Path, name: str) -> Counter[str]:
    """Check the answers of a model that writes at random. Returns the number of each kind."""
    kinds: Counter[str] = Counter()
    with serve_template(folder, name, (), *OPTIONS, n_ctx=8192) as server:
        body = {"messages": QUESTION, "max_tokens": 300, "temperature": 1.5, "response_format": FORMAT}
        status, answer = server.post("/v1/chat/completions", {**body, "seed": 0})
        assert status == 200, answer
        assert kind_of(answer) in ("format", "cut")  # some templates think even so
        for seed in range(6):
            given = {**body, "seed": seed, "tools": TOOLS, "parallel_tool_calls": False}
            status, answer = server.post("/v1/chat/completions", given)
            assert status == 200, answer
            message = answer["choices"][0]["message"]
            kinds[kind_of(answer)] += 1
            again = streamed(server, {**given, "stream": True})
            assert (again["content"] or "").strip() == (message.get("content") or "").strip()
            assert [call["function"] for call in again["tool_calls"]] == [
                call["function"] for call in message.get("tool_calls") or []
            ]
    return kinds


@pytest.mark.extended
@pytest.mark.parametrize("name", FAMILIES)
def test_a_call_or_the_format(tmp_path: Path, name: str) -> None:
    check(tmp_path, name)


@pytest.mark.slow
def test_every_template(tmp_path: Path) -> None:
    """Print a table: the number of calls and of answers in the format."""
    failed = []
    total: Counter[str] = Counter()
    for name in names():
        try:
            kinds = check(tmp_path, name)
        except AssertionError as error:
            failed.append(f"{name}: {str(error)[:300]}")
            continue
        print(f"{name:60} {kinds['call']:3} {kinds['format']:3}")
        total += kinds
    assert failed == []
    assert min(total["call"], total["format"]) > len(names())
