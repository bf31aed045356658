"""Requests with values of every kind in every place: each gets an answer, and the server goes on.

`make fuzz` sends 5,000 of them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
from fixtures.serving import Served, serve
from fixtures.streams import joined
from fixtures.tiny_gguf import write_draft, write_target
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytestmark = [pytest.mark.native, pytest.mark.slow]

CASES = int(os.environ.get("LLAMA_EAGLE_FUZZ_CASES", "150")) // 2
LONGEST = 64  # tokens of an answer: what may be long by right is not what is looked for

numbers = st.sampled_from([0, 1, -1, 2, 7, 0.5, -0.0, 1e-30, 1e30, 1e308, 2**31 - 1, 2**31, -(2**31), 2**63, 2**64])
texts = st.sampled_from(["", "a", "abc", "\0", "\ud83d\ude00", "\x1b[2J", "<|im_start|>", "{{ 7 * 7 }}", "a" * 5000])
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
schemas = st.sampled_from(
    [
        {"type": "string"},
        {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
        {"type": "string", "pattern": "^a{1,2001}$"},
        {"type": "unheard"},
        {"$ref": "#/nowhere"},
        {"$ref": "#"},
        {"enum": []},
        {"type": "array", "minItems": 2001, "items": {"type": "string"}},
    ]
)
grammars = st.sampled_from(['root ::= "a"', "root ::= root", "root ::= " + "(" * 1001, "x", 'root ::= "a"{2001}', ""])
tools = st.lists(
    st.fixed_dictionaries(
        {"type": st.just("function") | values},
        optional={
            "function": st.fixed_dictionaries({"name": texts | values}, optional={"parameters": schemas | values})
        },
    ),
    max_size=2,
)
content = texts | st.lists(st.fixed_dictionaries({"type": st.sampled_from(["text", "image_url", "x"]), "text": texts}))
messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant", "tool", "x"]) | values, "content": content | values},
        optional={"tool_calls": values, "name": values},
    ),
    max_size=3,
)
OF_SAMPLING = (
    "temperature", "top_k", "top_p", "min_p", "typical_p", "repeat_penalty", "repeat_last_n", "seed", "mirostat",
    "dry_multiplier", "dry_sequence_breakers", "logit_bias", "samplers", "stop", "n_probs", "logprobs", "top_logprobs",
    "min_keep", "n", "id_slot", "cache_prompt", "return_tokens", "n_keep", "n_indent", "t_max_predict_ms", "lora",
    "speculative.n_max", "speculative.n_min", "speculative.p_min", "response_format", "timings_per_token", "stream",
    "stream_options", "echo", "user", "model", "ignore_eos", "xtc_probability", "xtc_threshold", "chat_template_kwargs",
)  # fmt: skip
sampling = st.dictionaries(st.sampled_from(OF_SAMPLING), numbers | texts | values, max_size=4)
constrained = st.fixed_dictionaries({}, optional={"json_schema": schemas | values, "grammar": grammars | values})
prompts = texts | st.lists(st.integers(-2, 600) | values, max_size=4) | values
lengths = st.sampled_from([0, 1, 8, LONGEST])

completions = st.fixed_dictionaries({"prompt": prompts, "n_predict": lengths})
chats = st.fixed_dictionaries(
    {"messages": messages | values, "max_tokens": lengths}, optional={"tools": tools, "tool_choice": values | texts}
)
BODIES: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "/completion": completions,
    "/v1/completions": st.fixed_dictionaries({"prompt": prompts, "max_tokens": lengths}),
    "/v1/chat/completions": chats,
    "/v1/messages": chats,
    "/apply-template": chats,
    "/tokenize": st.fixed_dictionaries({"content": prompts}, optional={"add_special": values, "with_pieces": values}),
    "/detokenize": st.fixed_dictionaries({"tokens": prompts}),
}
requests = st.sampled_from(sorted(BODIES)).flatmap(
    lambda path: st.tuples(st.just(path), BODIES[path], sampling, constrained)
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("pair")
    target, draft = write_target(folder / "target.gguf"), write_draft(folder / "draft.gguf")
    with serve("-m", target, "-d", draft, "-c", 256, "-t", 1, "--parallel", 2) as running:
        yield running


@settings(max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck))
@given(request=requests)
def test_every_request_is_answered(
    server: Served, request: tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]
) -> None:
    path, body, options, form = request
    status, answer = server.post(path, json.loads(json.dumps({**options, **form, **body})))
    assert 200 <= status < 500 or status == 501, (status, answer)  # 501: no model of this kind
    assert server.process.poll() is None


odd_texts = st.sampled_from(["a", "hello abc", "é€😀", " ", "<|im_end|>", "{", '{"a": 1}', "<tool_call>"])
parts = st.lists(st.builds(lambda text: {"type": "text", "text": text}, odd_texts), min_size=1, max_size=3)
said = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "developer", "user", "assistant"]), "content": odd_texts | parts | st.none()},
    optional={"name": st.none(), "tool_calls": st.none(), "tool_call_id": st.none()},
)
arguments = st.sampled_from(['{"a": "b"}', "{}", "", None, {"a": 1}, "[]", "5", []])
calls = st.builds(
    lambda given: {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call00001", "type": "function", "function": {"name": "f", "arguments": given}}],
    },
    arguments,
)
results = st.builds(lambda text: {"role": "tool", "content": text, "tool_call_id": "call00001"}, odd_texts | parts)
conversations = st.lists(said | calls | results, min_size=1, max_size=5)
ONE_TOOL = [
    {"type": "function", "function": {"name": "f", "description": None, "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "g"}},
]
choices = st.sampled_from(["auto", "none", None, {"type": "auto"}])
FORMS: list[tuple[Any, list[Any]]] = [
    ({"enum": ["é", 1, None]}, ["é", 1, None]),
    ({"const": 'a"b'}, ['a"b']),
    ({"type": "boolean"}, [True, False]),
    ({"type": "object", "properties": {"a": {"const": 5}}, "required": ["a"]}, [{"a": 5}]),
    ({"type": "array", "items": {"enum": ["x"]}, "minItems": 1, "maxItems": 1}, [["x"]]),
]


@settings(max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck))
@given(conversation=conversations, choice=choices, n=st.integers(0, 12), stop=st.sampled_from([[], ["gh"], ["defz"]]))
def test_streams_of_odd_chats_are_the_whole_answer(
    server: Served, conversation: list[dict[str, Any]], choice: Any, n: int, stop: list[str]
) -> None:
    body = {"messages": conversation, "max_tokens": n, "temperature": 0, "stop": stop, "cache_prompt": False}
    body |= {"tools": ONE_TOOL, "tool_choice": choice}
    status, answer = server.post("/v1/chat/completions", body)
    assert status in (200, 400), answer
    if status == 200:
        assert joined(server, "/v1/chat/completions", body) == (answer["choices"][0]["message"]["content"] or "")


@settings(max_examples=CASES // 2, deadline=None, suppress_health_check=list(HealthCheck))
@given(conversation=conversations, form=st.sampled_from(FORMS), strict=st.booleans(), stream=st.booleans())
def test_answers_have_the_form_of_their_schema(
    server: Served, conversation: list[dict[str, Any]], form: tuple[Any, list[Any]], strict: bool, stream: bool
) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "strict": strict, "schema": form[0]}}
    body = {"messages": conversation, "max_tokens": LONGEST, "response_format": wanted, "temperature": 1}
    status, answer = server.post("/v1/chat/completions", body)
    assert status in (200, 400), answer
    if status == 200:
        text = joined(server, "/v1/chat/completions", body) if stream else answer["choices"][0]["message"]["content"]
        assert json.loads(text) in form[1]


def test_the_server_is_as_it_was(server: Served) -> None:
    """After all of that."""
    assert server.complete("abc", 5, temperature=0)["content"] == "defgh"
