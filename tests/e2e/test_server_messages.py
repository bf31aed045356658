"""Messages of chats: the front's prompts are those of EagleLlama, and its errors and warnings have their reasons."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fixtures.serving import Served
from fixtures.templates import serve_template
from fixtures.upstream import source_folder
from llama_eagle.errors import InputError
from llama_eagle.sessions.chats.abilities import TOOL
from llama_eagle.sessions.chats.messages import render_chat
from transformers.utils.chat_template_utils import render_jinja_template

pytestmark = pytest.mark.native

NAMES = ["Qwen3.5-4B", "google-gemma-2-2b-it", "google-gemma-4-31B-it"]
USER = {"role": "user", "content": "Question"}
CALL = {"id": "call00001", "type": "function", "function": {"name": "tool1", "arguments": '{"arg": "é 12345"}'}}
PARTS = [{"type": "text", "text": "one"}, {"type": "text", "text": " two"}]
CHATS: list[tuple[list[dict[str, Any]], bool]] = [
    ([{"role": "user", "content": PARTS}], False),
    ([{"role": "system", "content": PARTS}, USER], False),
    ([{"role": "developer", "content": "Rules"}, USER], False),
    ([USER, {"role": "assistant", "content": None}, USER], False),
    ([USER, {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}, USER], False),
    *(
        ([USER, {"role": "assistant", "refusal": "No.", **content}, USER], False)
        for content in ({"content": None}, {"content": []}, {"content": ""}, {"content": "Text"}, {})
    ),
    ([USER, {"role": "assistant", "content": []}, USER], False),
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
    (
        [
            USER,
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "content": PARTS, "tool_call_id": "call00001"},
        ],
        True,
    ),
    (
        [
            USER,
            {"role": "assistant", "content": "Text", "tool_calls": [CALL, CALL | {"id": "call00002"}]},
            {"role": "tool", "content": [PARTS[0]], "tool_call_id": "call00002"},
            {"role": "tool", "content": '{"a": [1, null]}', "tool_call_id": "call00001"},
        ],
        True,
    ),
]


def prompts(server: Served, path: Path, messages: list[Any], tools: dict[str, Any]) -> tuple[str, str]:
    """Return the server's prompt, and that of EagleLlama."""
    options = {"enable_thinking": False}
    status, answer = server.post("/apply-template", {"messages": messages, "chat_template_kwargs": options, **tools})
    assert status == 200, answer
    variables = {"bos_token": "", "eos_token": "<|im_end|>", "add_generation_prompt": True, "tools": None, **options}
    found = render_chat(path.read_text(), {**variables, "messages": messages, **tools}, path.stem)
    return str(answer["prompt"]).lstrip("\v"), found  # this vocabulary's BOS


@pytest.mark.parametrize("name", NAMES)
def test_prompts_are_the_servers(tmp_path: Path, name: str) -> None:
    path = source_folder() / "models/templates" / f"{name}.jinja"
    with serve_template(tmp_path, name) as server:
        for messages, with_tools in CHATS:
            theirs, own = prompts(server, path, messages, {"tools": [TOOL]} if with_tools else {})
            assert theirs == own


def test_messages_that_cannot_be_joined(tmp_path: Path) -> None:
    """The reason of the template is one line, for both."""
    name = "google-gemma-2-2b-it"
    path = source_folder() / "models/templates" / f"{name}.jinja"
    messages = [{"role": "assistant", "content": "First."}, USER]
    with serve_template(tmp_path, name) as server:
        status, answer = server.post("/v1/chat/completions", {"messages": messages})
    reason = "Conversation roles must alternate user/assistant/user/assistant/..."
    assert status == 400 and reason in answer["error"]["message"] and "\n" not in answer["error"]["message"]
    with pytest.raises(InputError) as failed:
        render_chat(path.read_text(), {"bos_token": "", "messages": messages, "tools": None}, name)
    assert reason in str(failed.value) and "\n" not in str(failed.value)


def test_parts_next_to_tools(tmp_path: Path) -> None:
    """Mistral's template shows the tools before the last question, which it finds by comparing messages."""
    with serve_template(tmp_path, "Mistral-Small-3.2-24B-Instruct-2506") as server:
        for content in ("one", [{"type": "text", "text": "one"}]):
            body = {"messages": [{"role": "user", "content": content}], "tools": [TOOL]}
            assert '[AVAILABLE_TOOLS][{"type": "function"' in server.post("/apply-template", body)[1]["prompt"]


def test_a_later_system_message_changes_nothing_before_it(tmp_path: Path) -> None:
    """Qwen3.5's template wants system messages first."""
    chat = [{"role": "system", "content": "RULES"}, USER, {"role": "assistant", "content": "Answer"}]
    with serve_template(tmp_path, "Qwen3.5-4B") as server:

        def prompt(role: str) -> str:
            status, answer = server.post(
                "/apply-template", {"messages": [*chat, {"role": role, "content": "NEWS"}, USER]}
            )
            assert status == 200, answer
            return str(answer["prompt"])

        assert prompt("system") == prompt("developer") == prompt("user")


def test_a_template_without_tools(tmp_path: Path) -> None:
    """The log says once that they are not shown; calls and results of the history are texts."""
    result = {"role": "tool", "content": "RESULT", "tool_call_id": "call00001"}
    messages = [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}, result]
    with serve_template(tmp_path, "google-gemma-2-2b-it") as server:
        for _ in range(2):
            status, answer = server.post("/apply-template", {"messages": messages, "tools": [TOOL]})
            call = 'Call of the tool tool1:\n{"arg": "é 12345"}<end_of_turn>'
            assert status == 200 and call in answer["prompt"], answer
            assert "user\nResult of the tool tool1:\nRESULT<end_of_turn>" in answer["prompt"]
        assert server.log().count("the model does not see them") == 1


def test_an_attribute_of_a_method_is_undefined(tmp_path: Path) -> None:
    """As in Jinja2: Command R+'s template reads `items` of a schema, which is a method of every dict."""
    items = {"type": "array", "items": {"type": "string"}, "description": "d"}
    listed = {"type": "object", "properties": {"a": items}, "required": ["a"]}
    tool = {"type": "function", "function": {"name": "tool1", "description": "d", "parameters": listed}}
    name = "CohereForAI-c4ai-command-r-plus-tool_use"
    template = (source_folder() / "models/templates" / f"{name}.jinja").read_text()
    variables = {"bos_token": "", "eos_token": "<|im_end|>", "add_generation_prompt": True}
    (expected,), _ = render_jinja_template([[USER]], tools=[tool], chat_template=template, **variables)
    with serve_template(tmp_path, name) as server:
        status, answer = server.post("/apply-template", {"messages": [USER], "tools": [tool]})
    assert status == 200 and answer["prompt"].lstrip("\v") == expected, (answer, expected)


def test_the_nearest_effort_that_a_template_takes(tmp_path: Path) -> None:
    """Hy3's takes low and high."""
    efforts = {"minimal": "low", "low": "low", "medium": "high", "high": "high", "max": "high"}
    with serve_template(tmp_path, "tencent-Hy3") as server:
        for given, taken in efforts.items():
            status, answer = server.post("/apply-template", {"messages": [USER], "reasoning_effort": given})
            assert status == 200 and f"reasoning_effort:{taken}<" in answer["prompt"], answer
        status, answer = server.post("/apply-template", {"messages": [USER], "reasoning_effort": "much"})
        assert status == 400 and "should be no_think/low/high" in answer["error"]["message"]


FORM = {"type": "json_schema", "json_schema": {"schema": {"type": "object", "properties": {"a": {"const": 1}}}}}
CONTINUED = {"messages": [USER, {"role": "assistant", "content": "It is "}]}
VARIABLES: dict[str, tuple[str, dict[str, Any], str]] = {  # template, request and a part of the prompt
    "thoughts that the parser does not know are off": ("Apertus-8B-Instruct", {}, "Deliberation: disabled"),
    "a request turns them on": (
        "Apertus-8B-Instruct", {"chat_template_kwargs": {"enable_thinking": True}}, "Deliberation: enabled",
    ),
    "an answer that the template begins by default": ("upstage-Solar-Open-100B", CONTINUED, "<|begin|>assistantIt is "),
    "a format that the template shows": ("deepseek-ai-DeepSeek-V4", {"response_format": FORM}, '"const": 1'),
}  # fmt: skip


@pytest.mark.parametrize("name", VARIABLES)
def test_variables_of_templates(tmp_path: Path, name: str) -> None:
    template, body, part = VARIABLES[name]
    with serve_template(tmp_path, template) as server:
        status, answer = server.post("/apply-template", {"messages": [USER], **body})
    assert status == 200 and part in answer["prompt"], answer
