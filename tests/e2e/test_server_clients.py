"""The openai and anthropic packages and LangChain against `llama-eagle serve`: tools, thoughts, streams, pictures."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fixtures.serving import Served, serve
from fixtures.tiny_gguf import START, Variant, write_draft, write_target
from fixtures.upstream import source_folder
from fixtures.vision_files import make_vision_files, png, user

pytestmark = pytest.mark.native

CALL = (
    "<tool_call>",
    "\n<function=",
    "weather",
    ">\n<parameter=",
    "city",
    ">\nParis",
    "\n</parameter>",
    "\n</function>",
)
SAYS = ("I ", "look.", "\n</think>", "\n\n", *CALL, "\n</tool_call>")
ARGUMENTS = {"city": "Paris"}
QUESTION = [{"role": "user", "content": "What is the weather?"}]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "weather", "description": "Of a city.", "parameters": PARAMETERS}
TOOLS = [{"type": "function", "function": FUNCTION}]
ANTHROPIC_TOOLS = [{"name": "weather", "description": "Of a city.", "input_schema": PARAMETERS}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A model that thinks and calls a tool as Qwen3.5 does, whatever it is asked; its draft is often right."""
    folder = tmp_path_factory.mktemp("models")
    variant = Variant(says=SAYS, n_vocab=START + 1 + len(SAYS), first_token="other")  # no token begins with "!"
    pair = ["-m", write_target(folder / "target.gguf", variant), "-d", write_draft(folder / "draft.gguf", variant)]
    template = source_folder() / "models/templates/Qwen3.5-4B.jinja"
    options = ["-c", 4096, "-t", 1, "--n-draft", 2, "--parallel", 2, "--", "--chat-template-file", template]
    with serve(*pair, *options) as running:
        yield running


@pytest.fixture(scope="module")
def openai(server: Served) -> Any:
    import openai

    return openai.OpenAI(base_url=f"{server.address}/v1", api_key="none")


@pytest.fixture(scope="module")
def anthropic(server: Served) -> Any:
    import anthropic

    return anthropic.Anthropic(base_url=server.address, api_key="none")


def ask(api: Any, **options: Any) -> Any:
    given = {"model": "tiny", "messages": QUESTION, "max_tokens": 100, "temperature": 0, "tools": TOOLS}
    return api.chat.completions.create(**{**given, **options})


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_tool_call_is_parsed(openai: Any, choice: str) -> None:
    answer = ask(openai, tool_choice=choice)
    message = answer.choices[0].message
    assert answer.choices[0].finish_reason == "tool_calls"
    assert message.reasoning_content.strip() == "I look."
    (call,) = message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", ARGUMENTS)
    assert answer.timings["draft_n_accepted"] > 0


def test_a_tool_call_streams(openai: Any) -> None:
    thought, name, arguments, finish = "", "", "", None
    for part in ask(openai, stream=True):
        if not part.choices:
            continue
        finish = part.choices[0].finish_reason or finish
        delta = part.choices[0].delta
        thought += getattr(delta, "reasoning_content", None) or ""
        for call in delta.tool_calls or ():
            name += call.function.name or ""
            arguments += call.function.arguments or ""
    assert (thought.strip(), name, json.loads(arguments), finish) == ("I look.", "weather", ARGUMENTS, "tool_calls")


def test_a_tool_answers(openai: Any) -> None:
    """The call and its result go back into the template."""
    first = ask(openai).choices[0].message
    messages: list[dict[str, Any]] = [*QUESTION, first.model_dump(exclude_none=True)]
    messages.append({"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "rain"})
    again = ask(openai, messages=messages)
    assert again.choices[0].message.tool_calls[0].function.name == "weather"
    assert again.usage.prompt_tokens > ask(openai).usage.prompt_tokens


def test_a_tool_that_must_be_called(openai: Any) -> None:
    """The grammar forces a call that the model would not make."""
    other = [{"type": "function", "function": {**FUNCTION, "name": "clock"}}]
    call = ask(openai, tools=other, tool_choice="required", max_tokens=400).choices[0].message.tool_calls
    assert [c.function.name for c in call or ()] == ["clock"]


def test_responses(openai: Any) -> None:
    given = {
        "model": "tiny",
        "input": "What is the weather?",
        "temperature": 0,
        "tools": [{"type": "function", **FUNCTION}],
    }
    answer = openai.responses.create(**given)
    found = {item.type: item for item in answer.output}
    assert (found["function_call"].name, json.loads(found["function_call"].arguments)) == ("weather", ARGUMENTS)
    assert "I look." in found["reasoning"].content[0].text
    events = list(openai.responses.create(**given, stream=True))
    pieces = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert json.loads("".join(pieces)) == ARGUMENTS
    assert events[-1].type == "response.completed"


def test_responses_stream(openai: Any) -> None:
    """The package assembles the stream to the answer that is not streamed."""
    tool = {"type": "function", **FUNCTION, "strict": None}
    given = {"model": "tiny", "input": "What is the weather?", "temperature": 0, "tools": [tool]}
    answer = openai.responses.create(**given)
    with openai.responses.stream(**given) as stream:
        kinds = [event.type for event in stream]
        assembled = stream.get_final_response()
    assert "response.function_call_arguments.done" in kinds and kinds[-1] == "response.completed"

    def items(found: Any) -> list[tuple[str, Any]]:
        return [(i.type, i.arguments if i.type == "function_call" else i.content[0].text) for i in found.output]

    assert items(assembled) == items(answer)
    assert (assembled.tools[0].name, assembled.tool_choice, assembled.error) == ("weather", "auto", None)


def test_usage_has_the_tokens_of_the_reasoning(openai: Any) -> None:
    answer, twice = ask(openai), ask(openai, n=2)
    *_, last = ask(openai, stream=True, stream_options={"include_usage": True})
    response = openai.responses.create(model="tiny", input="What is the weather?", temperature=0)
    assert {answer.usage.completion_tokens_details.reasoning_tokens} == {
        last.usage.completion_tokens_details.reasoning_tokens,
        response.usage.output_tokens_details.reasoning_tokens,
        twice.usage.completion_tokens_details.reasoning_tokens / 2,
        2,  # "I " and "look."
    }
    cut = ask(openai, max_tokens=1)
    assert cut.usage.completion_tokens_details.reasoning_tokens == 1
    for begun in ("<think>\nI look.\n</think>\n\n", "<think>\nI look.\n</think>\n\nIt is"):
        answered = ask(openai, messages=[*QUESTION, {"role": "assistant", "content": begun}], max_tokens=5, tools=[])
        assert answered.usage.completion_tokens_details.reasoning_tokens == 0
        assert answered.choices[0].message.content


def test_a_stream_that_fails(openai: Any, anthropic: Any) -> None:
    """After its first event: each client raises, or names the failure as the last event."""
    dead_end = {"grammar": 'root ::= [a-z ] [a-z ] [a-z ] "!" "b"'}
    words = "the grammar allows no token here"
    import anthropic as claude
    import openai as gpt

    given: dict[str, Any] = {"model": "tiny", "stream": True, "extra_body": dead_end}
    events = list(openai.responses.create(input="abc", **given))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert [event.type for event in events[-2:]] == ["error", "response.failed"]
    failed = events[-1].response
    assert (failed.status, failed.error.code, failed.usage) == ("failed", "server_error", None)
    assert words in failed.error.message and words in events[-2].message
    assert [event.sequence_number for event in events] == list(range(len(events)))
    with pytest.raises(gpt.APIError, match=words):
        list(ask(openai, stream=True, tools=[], extra_body=dead_end))
    with pytest.raises(gpt.APIError, match=words):
        list(openai.completions.create(prompt="abc", **given))
    with pytest.raises(claude.APIStatusError, match=words):
        list(anthropic.messages.create(max_tokens=20, messages=QUESTION, **given))
    assert ask(openai).choices[0].finish_reason == "tool_calls"


def test_models(openai: Any, anthropic: Any) -> None:
    (model,) = openai.models.list().data
    assert openai.models.retrieve(model.id).id == anthropic.models.retrieve(model.id).id == model.id
    (listed,) = anthropic.models.list().data
    assert listed.display_name == model.id and listed.created_at.year > 2000


def test_messages(anthropic: Any) -> None:
    given = {"model": "tiny", "max_tokens": 100, "messages": QUESTION, "tools": ANTHROPIC_TOOLS}
    for choice in ({"type": "auto"}, {"type": "any"}):
        answer = anthropic.messages.create(**given, tool_choice=choice)
        found = {block.type: block for block in answer.content}
        assert answer.stop_reason == "tool_use"
        assert (found["tool_use"].name, found["tool_use"].input) == ("weather", ARGUMENTS)
        assert found["thinking"].thinking.strip() == "I look."
    result = {"type": "tool_result", "tool_use_id": found["tool_use"].id, "content": "rain"}
    turns = [{"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
    again = anthropic.messages.create(**{**given, "messages": [*QUESTION, *turns]})
    assert again.usage.input_tokens > answer.usage.input_tokens
    counted = anthropic.messages.count_tokens(model="tiny", messages=QUESTION, tools=ANTHROPIC_TOOLS)
    assert counted.input_tokens > 0


def test_messages_stream(anthropic: Any) -> None:
    with anthropic.messages.stream(model="tiny", max_tokens=100, messages=QUESTION, tools=ANTHROPIC_TOOLS) as stream:
        kinds = [event.type for event in stream]
        answer = stream.get_final_message()
    assert {"thinking", "input_json", "message_stop"} <= set(kinds)
    assert answer.content[-1].input == ARGUMENTS


@pytest.mark.slow  # LangChain is of the dependency group "integrations"
def test_langchain(server: Served) -> None:
    from langchain_openai import ChatOpenAI

    chat = ChatOpenAI(base_url=f"{server.address}/v1", api_key="none", model="tiny", temperature=0)

    def weather(city: str) -> str:
        """Return the weather of a city."""
        return city

    (call,) = chat.bind_tools([weather]).invoke("What is the weather?").tool_calls
    assert (call["name"], call["args"]) == ("weather", ARGUMENTS)
    chunks = list(chat.bind_tools([weather]).stream("What is the weather?"))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert [(c["name"], c["args"]) for c in whole.tool_calls] == [("weather", ARGUMENTS)]


def test_metrics_count_what_clients_were_told(server: Served, openai: Any) -> None:
    def total(name: str) -> float:
        found = re.search(rf"^llamacpp:{name} (\S+)$", str(server.get("/metrics")[1]), re.MULTILINE)
        assert found, name
        return float(found[1])

    before = total("tokens_predicted_total")
    answers = [ask(openai) for _ in range(3)]
    assert total("tokens_predicted_total") - before == sum(a.usage.completion_tokens for a in answers)


def test_pictures(tmp_path: Path) -> None:
    """Streamed and at once; what is said depends on the picture."""
    import openai

    files = make_vision_files("qwen35", tmp_path)
    options = ["-c", 512, "-t", 1, "--parallel", 2, "--mmproj", files.mmproj, "--", "--chat-template", "chatml"]
    with serve("-m", files.target, "-d", "none", *options) as server:
        api = openai.OpenAI(base_url=f"{server.address}/v1", api_key="none")
        texts = {seed: picture_said(api, seed) for seed in (1, 2)}
        assert texts[1] != texts[2]
        assert texts[1] == picture_said(api, 1, stream=True)
        results = [picture_in_result(api, seed) for seed in (1, 4, 1)]
        assert results[0] == results[2] != results[1]
        completion = api.completions.create(model="tiny", prompt=[[97, 98, 99]], max_tokens=2, temperature=0)
        assert completion.choices[0].text


def picture_in_result(api: Any, seed: int) -> str:
    """Return the answer to a function's output that is a picture."""
    url = user("", png(seed))["content"][-1]["image_url"]["url"]
    call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
    output = [{"type": "input_text", "text": "see "}, {"type": "input_image", "detail": "auto", "image_url": url}]
    items = [{"role": "user", "content": "look"}, call]
    items.append({"type": "function_call_output", "call_id": "c1", "output": output})
    options: dict[str, Any] = {"max_output_tokens": 12, "temperature": 0, "extra_body": {"ignore_eos": True}}
    return str(api.responses.create(model="tiny", input=items, **options).output_text)


def picture_said(api: Any, seed: int, stream: bool = False) -> str:
    given: dict[str, Any] = {"model": "tiny", "messages": [user("what is in ", png(seed))], "max_tokens": 12}
    answer = api.chat.completions.create(**given, temperature=0, stream=stream, extra_body={"ignore_eos": True})
    if stream:
        return "".join(part.choices[0].delta.content or "" for part in answer if part.choices)
    return str(answer.choices[0].message.content)
