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
from fixtures.tiny_gguf import write_draft, write_reranker, write_target
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
items = st.lists(
    st.fixed_dictionaries(
        {"type": st.sampled_from(["message", "function_call", "function_call_output", "reasoning", "x"]) | values},
        optional={
            "role": st.sampled_from(["user", "assistant", "developer"]) | values, "content": content | values,
            "call_id": texts | values, "name": texts | values, "arguments": texts | values, "output": content | values,
            "summary": values, "id": texts | values,
        },
    ),
    max_size=3,
)  # fmt: skip
responses = st.fixed_dictionaries(
    {"input": items | texts | values, "max_output_tokens": lengths},
    optional={
        "tools": tools | values, "tool_choice": values | texts, "instructions": texts | values, "text": values,
        "reasoning": values, "include": values, "truncation": values, "previous_response_id": values,
    },
)  # fmt: skip
own_options = st.dictionaries(
    st.sampled_from(["num_predict", "temperature", "stop", "seed", "num_ctx"]), values, max_size=2
)
ollama = {"model": st.just("target"), "options": own_options.map(lambda given: {"num_predict": 8, **given}) | values}
of_ollama = {"format": schemas | values, "think": values, "keep_alive": values, "images": values, "system": values}
BODIES: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "/completion": completions,
    "/v1/completions": st.fixed_dictionaries({"prompt": prompts, "max_tokens": lengths}, optional={"suffix": values}),
    "/infill": st.fixed_dictionaries(
        {"input_prefix": texts | values, "input_suffix": texts | values, "n_predict": lengths},
        optional={"prompt": texts | values, "input_extra": values},
    ),
    "/v1/chat/completions": chats,
    "/v1/chat/completions/input_tokens": chats,
    "/v1/messages": chats,
    "/v1/messages/count_tokens": chats,
    "/v1/responses": responses,
    "/v1/responses/input_tokens": responses,
    "/apply-template": chats,
    "/tokenize": st.fixed_dictionaries({"content": prompts}, optional={"add_special": values, "with_pieces": values}),
    "/detokenize": st.fixed_dictionaries({"tokens": prompts}),
    "/api/chat": st.fixed_dictionaries(
        {**ollama, "messages": messages | values}, optional={**of_ollama, "tools": tools}
    ),
    "/api/generate": st.fixed_dictionaries({**ollama, "prompt": texts | values}, optional={**of_ollama, "raw": values}),
    "/api/show": st.fixed_dictionaries({"model": texts | values}),
}
inputs = texts | st.lists(texts | values, max_size=3) | st.lists(st.integers(-2, 600), max_size=4) | values
embeddings = st.fixed_dictionaries(
    {"input": inputs}, optional={"dimensions": numbers | values, "encoding_format": st.just("base64") | values}
)
VECTORS: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "/v1/embeddings": embeddings,
    "/embedding": st.fixed_dictionaries({"content": inputs}, optional={"embd_normalize": numbers | values}),
    "/api/embed": st.fixed_dictionaries(
        {"model": st.just("target"), "input": inputs}, optional={"dimensions": numbers}
    ),
}
SCORES: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    path: st.fixed_dictionaries(
        {"query": texts | values, key: inputs},
        optional={"top_n": numbers | values, "return_documents": values, "return_text": values},
    )
    for path, key in (("/v1/rerank", "documents"), ("/rerank", "texts"))
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


ANY = settings(max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck))


@ANY
@given(request=requests)
def test_every_request_is_answered(
    server: Served, request: tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]
) -> None:
    path, body, options, form = request
    check(server, path, json.dumps({**options, **form, **body}).encode())


def check(server: Served, path: str, body: bytes) -> None:
    status, answer = server.send("POST", path, body)
    assert 200 <= status < 500 or status == 501, (status, answer)  # 501: no model of this kind
    assert "this server failed" not in str(answer)  # nor within a stream
    assert server.process.poll() is None


@ANY
@given(path=st.sampled_from(sorted({*BODIES, *VECTORS, *SCORES})), data=st.data())
def test_damaged_bodies_are_answered(server: Served, path: str, data: st.DataObject) -> None:
    """A valid body, from which bytes are missing, or in which there are others."""
    text = json.dumps(data.draw({**BODIES, **VECTORS, **SCORES}[path]), ensure_ascii=data.draw(st.booleans()))
    body = text.encode(errors="surrogatepass")
    begin, end = (data.draw(st.integers(0, len(body))) for _ in range(2))
    odd = st.sampled_from(
        [b"", b"\xff", b"\\ud800", b"\0", b"NaN", b"1e999", b"[" * 600, b'"', b",", b"}", b"9" * 5000]
    )
    check(server, path, body[:begin] + data.draw(odd) + body[end:])


@pytest.fixture(scope="module")
def embedding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    target = write_target(tmp_path_factory.mktemp("embedding") / "target.gguf")
    with serve("-m", target, "-d", "none", "-c", 256, "-t", 1, "--embeddings", "--", "--pooling", "mean") as running:
        yield running


@pytest.fixture(scope="module")
def ranking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    target = write_reranker(tmp_path_factory.mktemp("ranking") / "target.gguf", window=16)
    with serve("-m", target, "-d", "none", "-c", 256, "-t", 1, "--reranking") as running:
        yield running


@ANY
@given(path=st.sampled_from(sorted(VECTORS)), data=st.data())
def test_every_request_for_vectors_is_answered(embedding: Served, path: str, data: st.DataObject) -> None:
    check(embedding, path, json.dumps(data.draw(VECTORS[path])).encode())


@ANY
@given(path=st.sampled_from(sorted(SCORES)), data=st.data())
def test_every_request_for_scores_is_answered(ranking: Served, path: str, data: st.DataObject) -> None:
    check(ranking, path, json.dumps(data.draw(SCORES[path])).encode())


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
    if status == 200 and answer["usage"]["prompt_tokens"]:  # an empty prompt has no answer
        text = joined(server, "/v1/chat/completions", body) if stream else answer["choices"][0]["message"]["content"]
        assert json.loads(text) in form[1]


def test_the_server_is_as_it_was(server: Served) -> None:
    """After all of that."""
    assert server.complete("abc", 5, temperature=0)["content"] == "defgh"
