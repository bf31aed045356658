"""Messages as chat templates take them: the real ones, small ones with one peculiarity each, and odd messages."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from typing import Any

import pytest
from fixtures.answers import ANSWER, ANSWERS, CALL, FAILING, USER, by_transformers, chats, templates
from fixtures.upstream import source_folder
from llama_eagle.drop_in.chat import template_options
from llama_eagle.drop_in.images import ImageReader
from llama_eagle.drop_in.replies import ARGUMENTS, NamedCall, Part
from llama_eagle.errors import EagleError, UsageError
from llama_eagle.sessions.chats import template_worker
from llama_eagle.sessions.chats.abilities import TOOL, shows_calls
from llama_eagle.sessions.chats.continued import render_begun
from llama_eagle.sessions.chats.messages import as_texts, normalized, render_chat, text_of, with_objects
from llama_eagle.vision.pictures import Sources
from transformers.utils.chat_template_utils import render_jinja_template

PART = {"type": "text", "text": "ONE"}
CHATS: dict[str, tuple[list[Any], list[str]]] = {
    "parts": ([{"role": "user", "content": [PART, {"type": "text", "text": "TWO"}]}], ["ONE", "TWO"]),
    "parts of all roles": (
        [{"role": role, "content": [PART | {"text": role.upper()}]} for role in ("system", "user", "assistant")]
        + [USER],
        ["SYSTEM", "USER", "ASSISTANT", "QUESTION"],
    ),
    "no content": ([{"role": "system", "content": None, "name": None}, USER], ["QUESTION"]),
    "developer": ([{"role": "developer", "content": "RULES"}, USER], ["RULES", "QUESTION"]),
    "two systems": (
        [{"role": "system", "content": "RULES"}, {"role": "system", "content": [PART]}, USER],
        ["RULES", "ONE", "QUESTION"],
    ),
    "a later system": (
        [{"role": "system", "content": "RULES"}, USER, ANSWER, {"role": "developer", "content": "MORE"}, USER],
        ["RULES", "MORE", "ANSWER"],
    ),
}
CALLS = [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}, {"role": "tool", "content": "RESULT"}]


def prompt(template: str, messages: Any, **more: Any) -> str:
    variables = {"bos_token": "", "eos_token": "", "add_generation_prompt": True, "tools": None, "date_string": "now"}
    return render_chat(template, {**variables, "messages": messages, **more}, "test")


@pytest.mark.parametrize("name", CHATS)
def test_every_template_of_llama_cpp_shows_all_texts(name: str) -> None:
    messages, wanted = CHATS[name]
    assert len(templates()) > 40
    for path in templates():
        found = prompt(path.read_text(), messages)
        assert [text for text in wanted if text not in found] == [], path.name
        assert "'text'" not in found, path.name


TEXTS = [{"type": "text", "text": f"{name}_PART"} for name in ("FIRST", "SECOND", "THIRD")]
OBJECT = CALL | {"function": CALL["function"] | {"arguments": {"arg": "é 12345"}}}
SEVERAL: dict[str, list[Any]] = {  # several texts in a message of each role
    "system": [{"role": "system", "content": TEXTS}, USER],
    "user": [{"role": "user", "content": TEXTS}],
    "assistant": [USER, {"role": "assistant", "content": TEXTS}, USER],
    "tool": [
        USER, {"role": "assistant", "content": "", "tool_calls": [OBJECT]},
        {"role": "tool", "content": TEXTS, "tool_call_id": "call00001"},
    ],
}  # fmt: skip
SEVERAL["tool, one text"] = [*SEVERAL["tool"][:2], SEVERAL["tool"][2] | {"content": TEXTS[:1]}]
OLD_GEMMA = "google-gemma-4-31B-it-interleaved"


@pytest.mark.parametrize("role", SEVERAL)
def test_texts_are_joined_as_the_template_joins_them(role: str) -> None:
    compared = set()
    given = [part["text"] for message in SEVERAL[role] if message["role"] in role for part in message["content"]]
    for path in templates():
        template = path.read_text()
        expected = by_transformers(template, SEVERAL[role]) or ""
        is_shown = all(text in expected for text in given) and not re.search("'text'|\"text\"", expected)
        if is_shown and path.stem != OLD_GEMMA:
            compared.add(path.stem)
            assert prompt(template, SEVERAL[role], tools=[TOOL]) == expected, path.name
    assert len(compared) > 10
    assert "tool" not in role or {"Cohere2MoE", "MiniMax-M1", "MiniMax-M2"} <= compared  # each text is a result


@pytest.mark.parametrize("text", ["one", "NaN", "[" * 9999])
def test_results_for_older_templates_of_gemma_4(text: str) -> None:
    """They are a part of the call's message, as in Google's own form, with the name of the call that has their id."""
    template = (source_folder() / f"models/templates/{OLD_GEMMA}.jinja").read_text()
    calls = [OBJECT | {"id": name, "function": OBJECT["function"] | {"name": f"of_{name}"}} for name in ("a", "b")]
    texts = {"b": '{"n": 2}', "a": text}
    results = [{"role": "tool", "content": text, "tool_call_id": name} for name, text in texts.items()]
    responses = [{"name": "of_a", "response": text}, {"name": "of_b", "response": {"n": 2}}]
    called = {"role": "assistant", "tool_calls": calls}
    for after in ([], [USER], [ANSWER, USER]):
        joined = {"content": "ANSWER"} if after[:1] == [ANSWER] else {}
        own = [USER, called | {"tool_responses": responses} | joined, *after[len(joined) :]]
        found = prompt(template, [USER, called | {"content": None}, *results, *after], tools=[TOOL])
        assert found == by_transformers(template, own)
    call, result = ({key: value for key, value in each.items() if "id" not in key} for each in (calls[0], results[1]))
    own = [USER, {"role": "assistant", "tool_calls": [call], "tool_responses": responses[:1]}]
    found = prompt(template, [USER, called | {"tool_calls": [call], "content": None}, result], tools=[TOOL])
    assert found == by_transformers(template, own)


@pytest.mark.parametrize("content", ["", None, [], [{"type": "text", "text": ""}]])
def test_answers_without_text(content: Any) -> None:
    """An answer that was stopped at once may be sent back, also to a template that refuses one without parts."""
    compared = set()
    for path in templates():
        template = path.read_text()
        forms = ("", [{"type": "text", "text": ""}])
        chats = [[USER, {"role": "assistant", "content": form}, USER] for form in forms]
        expected = next(filter(None, (by_transformers(template, chat) for chat in chats)), None)
        if expected and "'text'" not in expected:
            compared.add(path.stem)
            chat = [USER, {"role": "assistant", "content": content}, USER]
            assert prompt(template, chat, tools=[TOOL]) == expected, path.name
    assert "mistralai-Ministral-3-14B-Reasoning-2512" in compared and len(compared) > 30


@pytest.mark.parametrize(("name", "joint"), [("Qwen3.5-4B", ""), ("meta-llama-Llama-3.1-8B-Instruct", "\n")])
def test_texts_before_a_picture_are_joined_as_without_it(name: str, joint: str) -> None:
    class Pictures:
        def picture(self, data: bytes, name: str) -> str:
            return name

    reader: Any = ImageReader(Pictures(), Sources())  # type: ignore[arg-type]
    template = (source_folder() / "models/templates" / f"{name}.jinja").read_text()
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    chat, (message,) = reader.read(None, [{"role": "user", "content": [*TEXTS[:2], picture]}], template)
    assert message["content"] == f"FIRST_PART{joint}SECOND_PART{chat._chat.marker}"
    for part, kind in (
        ("text", "str"),
        ({"type": "text"}, "text"),
        ({"type": "audio", "text": 5}, "audio"),
        (None, "NoneType"),
    ):
        with pytest.raises(UsageError, match=f"a part of type '{kind}'"):
            reader.read(None, [{"role": "user", "content": [picture, part]}], template)


OF_CALLS = (
    "Qwen-Qwen3-0.6B", "Qwen3.5-4B", "meta-llama-Llama-3.1-8B-Instruct", "moonshotai-Kimi-K2",
    "mistralai-Mistral-Nemo-Instruct-2407", "deepseek-ai-DeepSeek-V3.1",
)  # fmt: skip


@pytest.mark.parametrize("name", OF_CALLS)
def test_calls_without_content(name: str) -> None:
    template = (source_folder() / "models/templates" / f"{name}.jinja").read_text()
    result = {"role": "tool", "content": [{"type": "text", "text": "RESULT"}], "tool_call_id": "call00001"}
    found = prompt(template, [*CALLS[:2], result], tools=[TOOL])
    assert "12345" in found
    assert "RESULT" in found
    assert "None" not in found


@pytest.mark.parametrize("given", ["call_fcQ8", "functions.f:0", None])
def test_ids_for_a_template_that_wants_nine_characters(given: str | None) -> None:
    """A call and its result keep a common id, a different one for each call."""
    template = (source_folder() / "models/templates/mistralai-Mistral-Nemo-Instruct-2407.jinja").read_text()
    calls = [CALL | {"id": name} for name in (given, given and f"{given}2")]
    results = [{"role": "tool", "content": "RESULT", "tool_call_id": call["id"]} for call in calls]
    found = prompt(template, [USER, CALLS[1] | {"tool_calls": calls}, *results], tools=[TOOL])
    of_calls, of_results = (re.findall(rf'"{key}": "([0-9A-Za-z]{{9}})"', found) for key in ("id", "call_id"))
    assert of_calls == of_results and len(set(of_calls)) == 2
    assert re.search(r'"call_id": "[0-9A-Za-z]{9}"', prompt(template, [USER, results[0]]))


def test_ids_that_are_no_text_are_refused() -> None:
    result = {"role": "tool", "content": "RESULT", "tool_call_id": 7}
    for messages in ([USER, CALLS[1] | {"tool_calls": [CALL | {"id": 7}]}], [*CALLS[:2], result]):
        with pytest.raises(UsageError, match="is no text"):
            prompt(OBJECT_CALLS, messages)


def test_every_template_gets_what_transformers_gives_it() -> None:
    """Content, arguments and reasoning of answers."""
    paths = [path for path in templates() if not any(part in path.name for part in (*FAILING, OLD_GEMMA))]
    for path, name in itertools.product(paths, ANSWERS):
        if "Ministral-3" in path.name and "reasoning" in name:
            continue  # reasoning is a part of the content there
        template = path.read_text()
        if "calls" in name and not shows_calls(template):
            shown = [prompt(template, messages, tools=[TOOL]) for messages, _ in chats(name, path)]
            assert all("12345" in text and "RESULT" in text for text in shown), path.name
            continue
        for messages, forms in chats(name, path):
            texts = [text for form in forms if (text := by_transformers(template, form)) is not None]
            expected = next((text for text in texts if "12345" in text), *texts[:1])
            if path.stem == "google-gemma-4-31B-it" and expected and expected.endswith("<turn|>\n"):
                expected += "<|turn>model\n"  # which the template leaves out, and llama.cpp adds
            assert prompt(template, messages, tools=[TOOL]) == expected, f"{path.name}: {name}"


def test_reasoning_as_a_part_of_the_content() -> None:
    (path,) = [path for path in templates() if "Ministral-3" in path.name]
    for content in (None, "ANSWER"):
        answer = {"role": "assistant", "content": content, "reasoning_content": "WHY", "tool_calls": [CALL]}
        found = prompt(path.read_text(), [USER, answer, CALLS[2] | {"tool_call_id": "call00001"}], tools=[TOOL])
        assert f"[/INST][THINK]WHY[/THINK]{content or ''}[TOOL_CALLS]tool1[ARGS]" in found


def test_reasoning_or_content_where_a_template_refuses_both() -> None:
    """As llama.cpp's server: gpt-oss gets the reasoning."""
    (path,) = [path for path in templates() if "gpt-oss" in path.name]
    answer = {"role": "assistant", "content": "ANSWER", "reasoning_content": "WHY", "tool_calls": [CALL]}
    found = prompt(path.read_text(), [USER, answer, CALLS[2]], tools=[TOOL])
    assert "<|channel|>analysis<|message|>WHY<|end|>" in found


@pytest.mark.parametrize("message", [USER | {"reasoning_content": "WHY"}, ANSWER | {"reasoning_content": ""}])
def test_only_answers_have_reasoning(message: dict[str, Any]) -> None:
    (path,) = [path for path in templates() if "gpt-oss" in path.name]
    assert normalized(path.read_text(), [USER, message])[1] == message


CUT = {  # arguments of a call that a limit has cut, and their completion
    '{"city": "Par': {"city": "Par"},
    '{"city": "Paris", "da': {"city": "Paris"},
    '{"a": [1, {"b": "x\\': {"a": [1, {"b": "x"}]},
    '{"a": "\\u00e': {"a": ""},
    '{"a": {"b": tru': {"a": {}},
    '{"a": 12, "b": -': {"a": 12},
    '{"k": "}]"': {"k": "}]"},
    "{": {},
    '{"a": 1}}': {"a": 1},
    '{"a": 1, "' + "k" * 3000: {"a": 1},
    '{"a": NaN': {},
}


@pytest.mark.parametrize("text", CUT)
def test_cut_arguments_are_completed(text: str) -> None:
    """A history with a call that the limit has cut can be sent back."""
    call = CALL | {"function": {"name": "tool1", "arguments": text}}
    answer = {**CALLS[1], "tool_calls": [call]}
    for messages in (normalized(OBJECT_CALLS, [USER, answer]), with_objects([answer])):
        assert messages[-1]["tool_calls"][0]["function"]["arguments"] == CUT[text]
    as_text = normalized(TEXT_CALLS, [USER, CALLS[1] | {"tool_calls": [call]}])[1]["tool_calls"][0]
    assert json.loads(as_text["function"]["arguments"]) == CUT[text]


@pytest.mark.parametrize("text", ['{"b":1.0,  "a":[]}', '{"a":  1e999}'])
def test_whole_arguments_stay_as_they_are_where_templates_print_text(text: str) -> None:
    call = CALL | {"function": {"name": "tool1", "arguments": text}}
    assert prompt(TEXT_CALLS, [USER, CALLS[1] | {"tool_calls": [call]}]) == f"<{text}>"


@pytest.mark.parametrize("text", ['{"a": NaN}', '{"a": -Infinity}', '{"a": 1', "[" * 100_000])
def test_a_call_whose_arguments_are_no_json_is_not_whole(text: str) -> None:
    """A client could not read them."""
    call = NamedCall("paint")
    assert [*call.read(text), *call.finish()] == [Part(ARGUMENTS, text, "paint")]


PRINTS = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
PARTS = "{% for m in messages %}[{% for p in m.content %}{{ p.text }}{% endfor %}]{% endfor %}"
FIRST = "{% if messages[0].role == 'system' %}({{ messages[0].content }}){% endif %}" + (
    "{% for m in messages %}{% if m.role != 'system' %}[{{ m.content }}]{% endif %}{% endfor %}"
)
STRICT = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('first') }}{% endif %}"
)
STRICT += "[{{ m.content }}]{% endfor %}"
NONE = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}[{{ m.content }}]"
)
NONE += "{% endfor %}"
TEXT_CALLS = (
    "{% for m in messages %}{% for c in m.tool_calls %}{{ '<' + c.function.arguments + '>' }}{% endfor %}{% endfor %}"
)
OBJECT_CALLS = (
    "{% for m in messages %}{% for c in m.tool_calls %}{% for k, v in c.function.arguments|items %}{{ k }}={{ v }}"
)
OBJECT_CALLS += "{% endfor %}{% endfor %}{% endfor %}"
CALLING = "{{ tools }}" + PRINTS
SYSTEMS = [{"role": "system", "content": "A"}, USER, {"role": "system", "content": "B"}]
PECULIAR = [
    (PRINTS, [{"role": "user", "content": [PART, PART]}], "[user:ONE\nONE]"),
    (PRINTS, SYSTEMS, "[system:A][user:QUESTION][system:B]"),
    (PRINTS, [{"role": "developer", "content": "A"}], "[system:A]"),
    ("{# <|channel|> #}" + PRINTS, [{"role": "developer", "content": "A"}], "[developer:A]"),
    (PARTS, [USER, ANSWER | {"content": [PART, PART]}], "[QUESTION][ONEONE]"),
    (FIRST, SYSTEMS, "(A)[QUESTION][B]"),
    (FIRST, [USER, {"role": "system", "content": "B"}], "[QUESTION][B]"),
    (STRICT, SYSTEMS, "[A][QUESTION][B]"),
    (STRICT, [SYSTEMS[0], SYSTEMS[2], USER], "[A\n\nB][QUESTION]"),
    (NONE, SYSTEMS, "[A\nQUESTION][B]"),
    (NONE, [{"role": "system", "content": "A"}], "[A]"),
    (TEXT_CALLS, CALLS, '<{"arg": "12345"}>'),
    (OBJECT_CALLS, CALLS, "arg=12345"),
]  # fmt: skip


@pytest.mark.parametrize(("template", "messages", "expected"), PECULIAR)
def test_templates_with_a_peculiarity(template: str, messages: list[Any], expected: str) -> None:
    assert prompt(template, messages) == expected


def test_a_format_without_a_template_gets_texts_and_one_system_message() -> None:
    found = as_texts([{"role": "developer", "content": [PART]}, *SYSTEMS, CALLS[1]])
    assert [(message["role"], message["content"]) for message in found] == [
        ("system", "ONE\n\nA"), ("user", "QUESTION"), ("user", "B"), ("assistant", ""),
    ]  # fmt: skip


def test_rules_between_a_call_and_its_result_follow_the_result() -> None:
    rule = {"role": "system", "content": "RULE"}
    results = [{"role": "tool", "content": text, "tool_call_id": "call00001"} for text in ("R1", "R2")]
    roles = [each["role"] for each in normalized(PRINTS, [*CALLS[:2], results[0], rule, rule, results[1], USER])]
    assert roles == ["user", "assistant", "user", "user", "system", "system", "user"]  # PRINTS has no results


def test_parts_of_results_that_are_not_read_are_texts() -> None:
    """The user's own parts are refused."""
    parts = [PART, {"type": "image_url", "image_url": {"url": "data:"}}, {"type": "resource"}, 5]
    found = normalized(CALLING, [*CALLS[:2], {"role": "tool", "content": parts, "tool_call_id": "call00001"}])
    assert found[-1]["content"].split("\n") == ["ONE"] + [
        f"[Here is a {what} that this model cannot read.]"
        for what in ("picture", "part of type 'resource'", "part of type 'int'")
    ]
    with pytest.raises(UsageError):
        normalized(CALLING, [{"role": "user", "content": parts}])


def test_calls_and_results_are_texts_for_a_template_without_tools() -> None:
    result = {"role": "tool", "content": [PART], "tool_call_id": "call00001"}
    chat = [USER, CALLS[1] | {"content": "Look."}, result, USER]
    call = 'Look.\n\nCall of the tool tool1:\n{"arg": "12345"}'
    found = [(each["role"], each["content"]) for each in normalized(PRINTS, chat)]
    assert found[1:3] == [("assistant", call), ("user", "Result of the tool tool1:\nONE")]
    assert [each["role"] for each in normalized(CALLING, chat)] == ["user", "assistant", "tool", "user"]


def test_texts_are_separated_but_not_from_a_picture_before_them() -> None:
    def marked(*kinds: str) -> str:
        return text_of([{"type": "text" if kind == "t" else "media_marker", "text": kind} for kind in kinds])

    assert [marked(*kinds) for kinds in ("tt", "mt", "tm", "mtt", "tmt", "")] == [
        "t\nt", "mt", "tm", "mt\nt", "tmt", "",
    ]  # fmt: skip


class Answered:
    """A message of OpenAI's client."""

    def model_dump(self, **_: Any) -> Mapping[str, Any]:
        return {"role": "assistant", "content": "HELLO"}


def test_objects_of_clients_are_messages() -> None:
    assert prompt(PRINTS, [USER, Answered()]) == "[user:QUESTION][assistant:HELLO]"


WRONG: dict[str, Any] = {
    "message 2 has no role": [USER, {"content": "x"}],
    "message 1 has no content": [{"role": "user"}],
    "message 1 has a int as content": [{"role": "user", "content": 5}],
    "message 1 is a str": ["hello"],
    "message 1 contains images": [
        {"role": "user", "content": [PART, {"type": "image_url", "image_url": {"url": "x"}}]},
    ],
    "message 1 contains video, which is not supported": [{"role": "user", "content": [{"type": "video_url"}]}],
    "message 1 contains sound": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}],
    "part of type 'file'": [{"role": "user", "content": [{"type": "file"}]}],
    "part of type 'str'": [{"role": "user", "content": ["x"]}],
    "call of 'tool1' are not a JSON object: Paris": [
        USER, CALLS[1] | {"tool_calls": [CALL | {"function": {"name": "tool1", "arguments": "Paris"}}]},
    ],
    "tool1' are not a JSON object: 5": [
        USER, CALLS[1] | {"tool_calls": [CALL | {"function": {"name": "tool1", "arguments": "5"}}]},
    ],
    "has no function with a name": [USER, CALLS[1] | {"tool_calls": [{"id": "1"}]}],
    "tool call has no function with a name": [USER, CALLS[1] | {"tool_calls": [{"id": "1", "function": "x"}]}],
    "message 2 has tool_calls that are not a list": [USER, CALLS[1] | {"tool_calls": 5}],
    "messages are a NoneType": None,
    "messages are a int": 5,
    "messages are a str": "hello",
}  # fmt: skip


@pytest.mark.parametrize("message", WRONG)
def test_what_is_no_message_is_refused_by_name(message: str) -> None:
    for read in (lambda messages: normalized(PRINTS, messages), as_texts):
        if "JSON" in message or "function" in message:
            read = normalised_with_calls
        with pytest.raises(UsageError, match=message.replace("'", ".")):
            read(WRONG[message])


def normalised_with_calls(messages: Any) -> Any:
    return normalized(OBJECT_CALLS, messages)


def test_an_empty_list_of_calls_is_none() -> None:
    answer = {"role": "assistant", "content": "x"}
    expected = normalized(OBJECT_CALLS, [USER, answer])
    assert all(normalized(OBJECT_CALLS, [USER, answer | {"tool_calls": none}]) == expected for none in ([], ()))


def test_a_refusal_of_the_template_is_told() -> None:
    with pytest.raises(EagleError, match="no way"):
        prompt("{{ raise_exception('no way') }}", [USER])


@pytest.mark.skipif("sys.platform == 'win32'", reason="Windows has no such limits")
def test_a_system_without_a_limit_of_memory_has_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS refuses RLIMIT_AS. Without the others a template could run for ever."""
    import resource

    limited: list[int] = []

    def setrlimit(kind: int, _limits: tuple[int, int]) -> None:
        if kind == resource.RLIMIT_AS:
            raise ValueError("current limit exceeds maximum limit")
        limited.append(kind)

    monkeypatch.setattr(resource, "setrlimit", setrlimit)
    template_worker.limit(1024, 10.0)
    assert limited == [resource.RLIMIT_CPU, resource.RLIMIT_CORE]


FREE = {"tools": None, "tool_choice": None, "function_call": None, "response_format": None, "grammar": None}


@pytest.mark.parametrize(
    ("given", "thinks"),
    [({}, True), ({"response_format": {"type": "text"}}, True), ({"tool_choice": "auto"}, True),
     ({"response_format": {"type": "json_object"}}, False), ({"grammar": "a grammar"}, False),
     ({"tool_choice": {"function": {"name": "f"}}}, False), ({"function_call": {"name": "f"}}, False)],
)  # fmt: skip
def test_a_reply_that_a_grammar_determines_has_no_reasoning(given: dict[str, Any], thinks: bool) -> None:
    assert template_options({**FREE, **given}) == ({} if thinks else {"enable_thinking": False})


def test_empty_texts_of_a_template_that_refuses_empty_answers() -> None:
    """An answer without calls alone gets an empty part. One with the older function call needs no content."""
    template = (source_folder() / "models/templates/mistralai-Ministral-3-14B-Reasoning-2512.jinja").read_text()
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turns = [
        {"role": "user", "content": ""},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": ""},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
    found = [message["content"] for message in normalized(template, turns)]
    assert found == ["", [{"type": "text", "text": ""}], "", ""]
    older = [USER, {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}]
    assert as_texts(older)[1]["content"] == ""


@pytest.mark.parametrize("content", ["How do I ", "Why", [{"type": "text", "text": "How "}]])
@pytest.mark.parametrize("name", ["Qwen-Qwen3-0.6B", "google-gemma-2-2b-it", "openai-gpt-oss-120b"])
def test_a_question_is_continued_as_by_transformers(name: str, content: Any) -> None:
    """The second template trims texts; only some read parts."""
    messages = [USER, {"role": "assistant", "content": "Hello."}, {"role": "user", "content": content}]
    plain = [*messages[:2], {"role": "user", "content": text_of(content)}]
    variables = {"bos_token": "<s>", "eos_token": "</s>"}
    template = named(name)
    (expected,), _ = render_jinja_template([plain], chat_template=template, continue_final_message=True, **variables)
    assert render_begun(template, {**variables, "messages": messages}, name) == expected
    with pytest.raises(UsageError, match="does not show the last message"):
        render_begun("{{ messages[0]['content'] }}", {**variables, "messages": messages}, name)


def named(name: str) -> str:
    return (source_folder() / "models/templates" / f"{name}.jinja").read_text()


def test_the_nearest_effort_that_a_template_takes() -> None:
    """As in `serve`: Hy3's takes low and high, of two the higher one is better."""
    template = named("tencent-Hy3")
    for given, taken in {"minimal": "low", "low": "low", "medium": "high", "max": "high"}.items():
        assert prompt(template, [USER], reasoning_effort=given) == prompt(template, [USER], reasoning_effort=taken)
    with pytest.raises(EagleError, match="should be no_think/low/high"):
        prompt(template, [USER], reasoning_effort="much")
    with pytest.raises(EagleError, match="other reason"):
        prompt("{{ raise_exception('other reason') }}", [USER], reasoning_effort="medium")


ARGUMENT = {"type": "string", "description": "TEXT"}
ODD_SCHEMAS: dict[str, tuple[Any, dict[str, Any]]] = {  # and the property `a` in its plain form
    "several types": ({"type": ["null", "string"], "description": "TEXT"}, ARGUMENT),
    "types of Python": ({"type": "str", "description": "TEXT"}, ARGUMENT),
    "no description": ({"type": "string"}, ARGUMENT | {"description": ""}),
    "a number": (5, {"description": ""}),
    "True": (True, {"description": ""}),
    "a type that is none": ({"type": [{}, 5, "text"], "enum": []}, {"description": ""}),
    "no items": ({"type": "list"}, {"type": "array", "description": "", "items": {"description": ""}}),
    "odd keys": (
        {"type": "dict", "required": "a", "properties": [], "enum": ["x"]},
        {"type": "object", "description": "", "enum": ["x"], "properties": {}, "required": []}
        | {"additionalProperties": {"description": ""}},
    ),
}


@pytest.mark.parametrize("name", ODD_SCHEMAS)
def test_a_schema_for_which_a_template_fails_is_shown_in_a_plain_form(name: str) -> None:
    given, plain = ODD_SCHEMAS[name]

    def tools(argument: Any) -> list[Any]:
        parameters = {"type": "object", "properties": {"a": argument}, "required": ["a"]}
        return [{"type": "function", "function": {"name": "tool1", "description": "d", "parameters": parameters}}]

    failing = named("CohereForAI-c4ai-command-r-plus-tool_use")
    with pytest.warns(UserWarning, match="fails for a tool's schema"):
        found = prompt(failing, [USER], tools=tools(given))
    assert found == prompt(failing, [USER], tools=tools(plain))
    assert f'"a": {json.dumps(given)}' in prompt(named("Qwen3.5-4B"), [USER], tools=tools(given))


@pytest.mark.filterwarnings("ignore:the chat template fails")
@pytest.mark.parametrize("function", [{}, {"parameters": {}}, {"parameters": None}, {"description": None}])
def test_a_tool_without_parameters_is_shown(function: dict[str, Any]) -> None:
    tool = {"type": "function", "function": {"name": "tool1", **function}}
    for name in ("ByteDance-Seed-OSS", "CohereForAI-c4ai-command-r-plus-tool_use", "muse-glimmer"):
        assert "tool1" in prompt(named(name), [USER], tools=[tool])


HIDING_CALLS = ("LFM2-8B-A1B", "LFM2.5-Instruct", "ibm-granite-granite-3.3-2B-Instruct")  # templates with tools


@pytest.mark.filterwarnings("ignore:the chat template fails")
@pytest.mark.parametrize("tools", [None, [TOOL]])
def test_every_template_shows_a_conversation_with_a_call(tools: Any) -> None:
    """Also those that transformers refuses: they append to lists, or iterate over no tools."""
    call = CALL | {"function": {"name": "tool1", "arguments": '{"arg": "12345"}'}}
    called = {"role": "assistant", "content": "", "tool_calls": [call]}
    result = {"role": "tool", "name": "tool1", "content": "RESULT", "tool_call_id": "call00001"}
    messages = [{"role": "system", "content": "RULES"}, USER, called, result, ANSWER, USER]
    paths = sorted((source_folder() / "models/templates").glob("*.jinja"))
    assert len(paths) > 60
    for path in paths:
        found = prompt(path.read_text(), messages, tools=tools, datetime="now")
        texts = ["RULES", "QUESTION", *(["12345"] if path.stem not in HIDING_CALLS else []), "RESULT", "ANSWER"]
        assert [text for text in texts if text not in found] == [], path.name


def test_results_for_deepseek_v4_are_in_the_order_of_the_calls() -> None:
    calls = [CALL | {"id": name} for name in ("a", "b")]
    results = [{"role": "tool", "content": f"OF_{name}", "tool_call_id": name} for name in ("b", "a")]
    messages = [USER, {"role": "assistant", "content": None, "tool_calls": calls}, *results]
    for name, order in (("deepseek-ai-DeepSeek-V4", ["OF_a", "OF_b"]), ("deepseek-ai-DeepSeek-V3.2", ["OF_b", "OF_a"])):
        assert re.findall("OF_[ab]", prompt(named(name), messages, tools=[TOOL])) == order


def test_texts_for_stepfun_have_no_spaces_around_them() -> None:
    answer = {"role": "assistant", "content": "\n ANSWER\n", "reasoning_content": " WHY "}
    spaced = [{"role": "user", "content": " QUESTION\n"}, answer]
    plain = [USER, {"role": "assistant", "content": "ANSWER", "reasoning_content": "WHY"}]
    assert prompt(named("StepFun3.5-Flash"), spaced) == prompt(named("StepFun3.5-Flash"), plain)


def test_firefunction_gets_tools_as_text() -> None:
    template = named("fireworks-ai-llama-3-firefunction-v2")
    functions = json.dumps([TOOL["function"]], indent=4)  # as its model card has it
    assert f"as JSON spec:\n{functions}" in prompt(template, [USER], tools=[TOOL], datetime="now")
    assert prompt(template, [USER], datetime="now").count("tool1") == 0
