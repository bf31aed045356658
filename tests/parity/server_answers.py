"""The answers of two builds of `serve` to the same 1,000 requests: texts, calls, reasons, usage and kinds of events.

    cd tests && LLAMA_EAGLE_TEST_PYTHON=OTHER/python python -m parity.server_answers record OLD.json
    cd tests && python -m parity.server_answers record NEW.json
    cd tests && python -m parity.server_answers compare OLD.json NEW.json

Models answer with given words by several templates, or with text that depends on all before it. Requests of a server
follow each other in one slot, so cached tokens of a prompt are compared, too. Ids and times are not.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from fixtures.serving import Served, serve
from fixtures.templates import CITY, WEATHER, serve_template
from fixtures.tiny_gguf import Variant, write_target

Body = dict[str, Any]
CALL = ("\n<tool_call>", '\n{"name": "weather", ', '"arguments": {"city": ', '"Par', 'is"}}', "\n</tool_call>")
XML = ("\n<function=", "weather", ">\n<parameter=", "city", ">\nPar", "is", "\n</parameter>", "\n</function>")
NO_ARGUMENTS = "\n<tool_call>\n<function=clock>\n</function>\n</tool_call>"
LLAMA = ('{"name": ', '"weather", ', '"parameters": {', '"city": "O', 'slo"}}')
NEMOTRON = ('{"name": "weather", ', '"arguments": ', '{"city": "Ulm"}}')
LFM = ("Well, ", "<|tool_call_start|>[", "weather(", 'city="Ro', 'me")', "]<|tool_call_end|>")
SAID: dict[str, tuple[str, tuple[str, ...]]] = {  # name -> template, and what the model says token by token
    "qwen3.5 call": ("Qwen3.5-4B", WEATHER),
    "qwen3.5 text": ("Qwen3.5-4B", ("I ", "think.", "\n</think>", "\n\n", "Hello ", "wor", "ld, é", " !!")),
    "qwen3.5 prose": ("Qwen3.5-4B", ("Hm", "\n</think>\n\n", "Use ", "<tool_call>", " tags ", "for it.")),
    "qwen3.5 json": ("Qwen3.5-4B", ("So", "\n</think>\n\n", '{"city": ', '"Ro', 'me"}')),
    "qwen2.5 call": ("Qwen-Qwen2.5-7B-Instruct", ("Sure. ", *CALL)),
    "qwen3 thoughts": ("Qwen-Qwen3-0.6B", ("<think>", "\nH", "m 1 < 2.", "\n</think>", "\n\nIt ", "is 3.")),
    "coder calls": ("Qwen3-Coder", ("Now ", "two.", NO_ARGUMENTS, "\n<tool_call>", *XML, "\n</tool_call>")),
    "llama call": ("meta-llama-Llama-3.1-8B-Instruct", LLAMA),
    "hermes call": ("NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", ("Yes", *CALL)),
    "nemotron call": ("NVIDIA-Nemotron-Nano-v2", ("Oh", "\n</think>", "\n\n<TOOLCALL>[", *NEMOTRON, "]</TOOLCALL>")),
    "lfm call": ("LFM2.5-8B-A1B", LFM),
    "gemma text": ("google-gemma-2-2b-it", ("A ", "plain ", "answer", "..")),
}  # fmt: skip
USER, RULES = {"role": "user", "content": "What is it?"}, {"role": "system", "content": "Be brief."}
CLOCK: Body = {"type": "object", "properties": {}}
FUNCTIONS = [("weather", "Tells the weather.", CITY), ("clock", "Tells the time.", CLOCK)]
TOOLS = [
    {"type": "function", "function": {"name": name, "description": about, "parameters": schema}}
    for name, about, schema in FUNCTIONS
]
FLAT_TOOLS = [{"type": "function", **tool["function"]} for tool in TOOLS]  # type: ignore[dict-item]
ANTHROPIC_TOOLS = [{"name": name, "description": about, "input_schema": schema} for name, about, schema in FUNCTIONS]
CALLED = {"id": "call00001", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bonn"}'}}
HISTORY = [
    RULES, USER, {"role": "assistant", "content": None, "tool_calls": [CALLED]},
    {"role": "tool", "tool_call_id": "call00001", "content": "Rain."},
]  # fmt: skip
SCHEMA = {"type": "object", "properties": {"city": {"const": "Ulm"}}, "required": ["city"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "form", "schema": SCHEMA, "strict": True}}
CHATS: list[Body] = [
    {}, {"messages": [RULES, USER]}, {"max_tokens": 1}, {"max_tokens": 3}, {"stop": ["l", "is"]}, {"stop": "\n"},
    {"n": 2}, {"logprobs": True, "top_logprobs": 2}, {"logprobs": True, "stop": ["o"]}, {"tools": TOOLS},
    {"tools": TOOLS, "max_tokens": 6}, {"tools": TOOLS, "tool_choice": "none"},
    {"tools": TOOLS, "tool_choice": "required"},
    {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "clock"}}},
    {"tools": TOOLS, "parallel_tool_calls": False}, {"tools": TOOLS, "messages": HISTORY},
    {"tools": TOOLS, "response_format": FORMAT}, {"response_format": FORMAT},
    {"response_format": {"type": "json_object"}},
    {"json_schema": SCHEMA}, {"grammar": 'root ::= "yes" | "no"'}, {"messages": HISTORY}, {"reasoning_format": "none"},
    {"messages": [USER, {"role": "assistant", "content": "It "}]}, {"chat_template_kwargs": {"enable_thinking": False}},
    {"messages": [USER, {"role": "assistant", "content": "", "reasoning_content": "Hm, "}]},
    {"reasoning_effort": "low"}, {"thinking_budget_tokens": 2}, {"stream_options": {"include_usage": True}},
    {"timings_per_token": True}, {"return_progress": True},
    {"temperature": 1.5, "seed": 7, "top_p": 0.9, "min_p": 0.01},
    {"logit_bias": {"97": -100}}, {"ignore_eos": True, "max_tokens": 12}, {"messages": [USER, RULES, USER]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]},
    # refused
    {"messages": []}, {"messages": "a"}, {"messages": [{"role": "user"}]}, {"tools": TOOLS, "tool_choice": "sometimes"},
    {"tool_choice": "required"}, {"response_format": {"type": "xml"}}, {"max_tokens": "a"}, {"stop": 5}, {"n": 0},
    {"top_logprobs": 2},
    {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a"}}]}]},
    {"tools": TOOLS, "grammar": 'root ::= "a"'}, {"messages": [USER], "temperature": -1},
    {"messages": [{"content": "a"}]},
]  # fmt: skip
ANTHROPIC: list[Body] = [
    {}, {"system": "Be brief."}, {"max_tokens": 2}, {"stop_sequences": ["l", "is"]}, {"tools": ANTHROPIC_TOOLS},
    {"tools": ANTHROPIC_TOOLS, "tool_choice": {"type": "any"}},
    {"tools": ANTHROPIC_TOOLS, "tool_choice": {"type": "none"}},
    {"tools": ANTHROPIC_TOOLS, "tool_choice": {"type": "tool", "name": "clock"}}, {"thinking": {"type": "disabled"}},
    {"thinking": {"type": "enabled", "budget_tokens": 1024}},
    {"messages": [USER, {"role": "assistant", "content": "It "}]},
    {"messages": [], "max_tokens": 4}, {"max_tokens": 0}, {"tools": 5}, {"messages": [{"role": "user", "content": 5}]},
    {"tools": ANTHROPIC_TOOLS, "messages": [
        USER, {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "clock", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "Noon."}]},
    ]},
]  # fmt: skip
RESPONSES: list[Body] = [
    {}, {"instructions": "Be brief."}, {"max_output_tokens": 2}, {"tools": FLAT_TOOLS}, {"input": "Hello?"},
    {"tools": FLAT_TOOLS, "tool_choice": "required"},
    {"tools": FLAT_TOOLS, "tool_choice": {"type": "function", "name": "clock"}},
    {"text": {"format": {"type": "json_schema", "name": "form", "schema": SCHEMA}}}, {"reasoning": {"effort": "low"}},
    {"metadata": {"a": "b"}, "user": "u"}, {"input": []}, {"input": 5}, {"max_output_tokens": "a"},
    {"previous_response_id": "resp_1"}, {"tools": FLAT_TOOLS, "input": [
        USER, {"type": "function_call", "call_id": "a", "name": "clock", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "Noon."},
    ]},
]  # fmt: skip
COMPLETIONS: list[Body] = [
    {}, {"max_tokens": 0, "echo": True}, {"echo": True, "logprobs": 2}, {"logprobs": 1}, {"n": 2}, {"best_of": 2},
    {"prompt": ["abc", "xyz"]}, {"prompt": [97, 98, 99]}, {"prompt": [[97], [98, 99]]}, {"stop": ["g", "hi"]},
    {"stop": "g", "logprobs": 2}, {"suffix": "z"}, {"temperature": 1.5, "seed": 3}, {"grammar": 'root ::= "no"'},
    {"stream_options": {"include_usage": True}}, {"prompt": ""}, {"prompt": 5}, {"prompt": [[]]}, {"max_tokens": -2},
    {"logprobs": 99}, {"n": 5, "best_of": 2}, {"echo": 5}, {"stop": {}},
]  # fmt: skip
RAW: list[Body] = [
    {}, {"n_probs": 2}, {"return_tokens": True}, {"prompt": [97, "bc"]}, {"stop": ["g"]}, {"n_predict": 0},
    {"json_schema": SCHEMA}, {"timings_per_token": True}, {"return_progress": True}, {"prompt": {"prompt_string": "a"}},
    {"prompt": ["ab", "xy"]}, {"n_probs": 2, "post_sampling_probs": True}, {"prompt": None}, {"samplers": 5},
]  # fmt: skip
OLLAMA: list[Body] = [
    {},
    {"tools": TOOLS},
    {"format": SCHEMA},
    {"think": False},
    {"options": {"num_predict": 2, "stop": ["l"]}},
]
APIS: list[tuple[str, Body, list[Body]]] = [
    ("/v1/chat/completions", {"messages": [USER], "max_tokens": 60, "temperature": 0}, CHATS),
    ("/v1/messages", {"messages": [USER], "max_tokens": 60, "temperature": 0}, ANTHROPIC),
    ("/v1/responses", {"input": [USER], "max_output_tokens": 60, "temperature": 0}, RESPONSES),
    ("/api/chat", {"messages": [USER], "options": {"num_predict": 60, "temperature": 0}}, OLLAMA),
]
TEXTS: list[tuple[str, Body, list[Body]]] = [
    ("/v1/completions", {"prompt": "abc", "max_tokens": 8, "temperature": 0}, COMPLETIONS),
    ("/completion", {"prompt": "abc", "n_predict": 8, "temperature": 0}, RAW),
]
COUNTS = {"/v1/messages/count_tokens": APIS[1], "/v1/responses/input_tokens": APIS[2], "/apply-template": APIS[0]}
VARYING = {
    "created", "created_at", "completed_at", "timings", "system_fingerprint", "id", "item_id", "call_id", "model",
    "total_duration", "load_duration", "prompt_eval_duration", "eval_duration", "time_ms", "sequence_number",
}  # fmt: skip
JOINED = ("content", "reasoning_content", "arguments", "text", "partial_json", "thinking", "delta", "signature")


def servers(folder: Path) -> Iterator[tuple[str, AbstractContextManager[Served], list[tuple[str, Body, list[Body]]]]]:
    """Yield names, servers and what they are asked: a path, a body and its changes."""
    for name, (template, says) in SAID.items():
        yield name, serve_template(folder, template, says), APIS
    for name, variant in (("letters", Variant()), ("mixed", Variant(mix=0.5, spread=0.3))):
        target = write_target(folder / "target.gguf", variant)
        yield name, serve("-m", target, "-d", "none", "-c", 2048, "-t", 1, "--parallel", 1), [*TEXTS, *APIS]


def record() -> dict[str, Any]:
    """Return the answers by server, path, number of the request and "whole" or "stream"."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, server, apis in servers(Path(folder)):
            with server as running:
                for path, body, changes in apis:
                    for n, change in enumerate(changes):
                        for stream in (False, True):
                            status, answer = running.post(path, {**body, **change, "stream": stream})
                            events = stream and status == 200
                            key = f"{name}|{path}|{n}|{'stream' if stream else 'whole'}"
                            found[key] = [status, collapsed(events_of(answer)) if events else scrubbed(answer)]
                for path, (_, body, changes) in COUNTS.items():
                    for n, change in enumerate(changes):
                        status, answer = running.post(path, {**body, **change})
                        found[f"{name}|{path}|{n}|whole"] = [status, scrubbed(answer)]
            print(f"{name}: {len(found)} answers", file=sys.stderr, flush=True)
    return found


def events_of(text: Any) -> list[Any]:
    """Return the events of a stream of server-sent events or of lines."""
    lines = [line.removeprefix("data: ") for line in str(text).splitlines() if line.startswith(("data: ", "{"))]
    return [json.loads(line) if line != "[DONE]" else line for line in lines]


def scrubbed(value: Any) -> Any:
    """Return a value without what differs between two answers; ids and times keep their types."""
    if isinstance(value, dict):
        return {key: type(each).__name__ if key in VARYING else scrubbed(each) for key, each in value.items()}
    return [scrubbed(each) for each in value] if isinstance(value, list) else value


def collapsed(events: list[Any]) -> list[Any]:
    """Return the events with those of one kind that follow each other as one, whose texts are joined."""
    found: list[tuple[Any, dict[str, str]]] = []
    for event in map(scrubbed, events):
        texts: dict[str, str] = {}
        shape = _without_texts(event, "", texts)
        if found and found[-1][0] == shape and texts.keys() == found[-1][1].keys():
            found[-1] = (shape, {key: found[-1][1][key] + text for key, text in texts.items()})
        else:
            found.append((shape, texts))
    return [[shape, texts] for shape, texts in found]


def _without_texts(value: Any, place: str, texts: dict[str, str]) -> Any:
    if isinstance(value, list):
        return [_without_texts(each, f"{place}{i}.", texts) for i, each in enumerate(value)]
    if not isinstance(value, dict):
        return value
    changed = {}
    for key, each in value.items():
        if key in JOINED and isinstance(each, str):
            texts[place + key], changed[key] = each, "..."
        else:
            changed[key] = _without_texts(each, f"{place}{key}.", texts)
    return changed


def compare(old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    """Yield a paragraph for each request with two answers: the request, the old and the new answer."""
    bodies = {path: (body, changes) for path, body, changes in [*APIS, *TEXTS]}
    bodies |= {path: (body, changes) for path, (_, body, changes) in COUNTS.items()}
    for key in old:
        if old[key] != new.get(key):
            _, path, n, _ = key.split("|")
            change = json.dumps(bodies[path][1][int(n)], ensure_ascii=False)
            answers = (json.dumps(each, ensure_ascii=False) for each in (old[key], new.get(key)))
            yield "\n  ".join([f"{key} {change}", *answers])


def main() -> int:
    command, *paths = sys.argv[1:]
    if command == "record":
        Path(paths[0]).write_text(json.dumps(record()))
        return 0
    old, new = (json.loads(Path(path).read_text()) for path in paths)
    different = list(compare(old, new))
    print("\n".join(different))
    print(f"{len(old) - len(different)} of {len(old)} answers are equal")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
