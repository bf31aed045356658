"""EagleLlama's prompts against those of llama.cpp's server, for the same messages and templates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fixtures.serving import serve
from fixtures.tiny_gguf import write_target
from fixtures.upstream import source_folder
from llama_eagle.sessions.chats.abilities import TOOL
from llama_eagle.sessions.chats.messages import render_chat

pytestmark = pytest.mark.native

NAMES = ["Qwen-Qwen3-0.6B", "Qwen3.5-4B", "google-gemma-2-2b-it", "moonshotai-Kimi-K2"]
USER = {"role": "user", "content": "Question"}
CALL = {"id": "call00001", "type": "function", "function": {"name": "tool1", "arguments": '{"arg": "é 12345"}'}}
PARTS = [{"type": "text", "text": "one"}, {"type": "text", "text": " two"}]
CHATS: list[tuple[list[dict[str, Any]], bool]] = [
    ([{"role": "user", "content": PARTS}], False),
    ([{"role": "system", "content": PARTS}, USER], False),
    ([{"role": "developer", "content": "Rules"}, USER], False),
    ([USER, {"role": "assistant", "content": None}, USER], False),
    ([USER, {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}, USER], False),
    (
        [{"role": "user", "content": [{"type": "input_text", "text": "one"}, {"type": "output_text", "text": "two"}]}],
        False,
    ),
    (
        [
            USER,
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "content": "Result", "tool_call_id": "call00001"},
        ],
        True,
    ),
]


@pytest.mark.parametrize("name", NAMES)
def test_prompts_are_the_servers(tmp_path: Path, name: str) -> None:
    path = source_folder() / "models/templates" / f"{name}.jinja"
    write_target(tmp_path / "target.gguf")
    given = ("-m", tmp_path / "target.gguf", "-d", "none", "-c", 512, "-t", 1)
    with serve(*given, "--", "--chat-template-file", path) as server:
        for messages, with_tools in CHATS:
            if with_tools and "gemma" in name:
                continue  # its template knows no tools
            tools = {"tools": [TOOL]} if with_tools else {}
            status, answer = server.post("/apply-template", {"messages": messages, **tools})
            assert status == 200, answer
            variables = {"bos_token": "", "eos_token": "<|im_end|>", "add_generation_prompt": True, "tools": None}
            found = render_chat(path.read_text(), {**variables, "messages": messages, **tools}, name)
            assert found == answer["prompt"].lstrip("\v")  # this vocabulary's BOS
