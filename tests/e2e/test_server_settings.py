"""Settings of requests on every API: obeyed or refused by name, never wrapped or ignored; null is absent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fixtures.serving import Served
from fixtures.streams import APIS, body_for, events
from fixtures.templates import serve_template
from fixtures.tiny_gguf import START

pytestmark = pytest.mark.native

Answer = dict[str, Any]
SAYS = ("one ", "two ", "three ", "four ")
CHATS = ("/v1/chat/completions", "/v1/messages", "/v1/responses")
CHAT = CHATS[0]
PERSON = {"type": "object", "properties": {"age": {"const": 5}}, "required": ["age"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": PERSON}} for name in ("f", "g", "h")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder, name = tmp_path_factory.mktemp("model"), "Qwen-Qwen2.5-7B-Instruct"
    with serve_template(folder, name, SAYS, n_ctx=2048, parallel=2) as running:
        yield running


def refused(server: Served, path: str, body: Answer, *words: str) -> None:
    status, answer = server.post(path, body)
    assert status == 400, answer
    message = answer["error"]["message"]
    for word in words:
        assert word in message
    for unclear in ("samplers", "std::exception", "json.exception", "failed to parse grammar"):
        assert unclear not in message


def answered(server: Served, path: str, body: Answer) -> Answer:
    status, answer = server.post(path, body)
    assert status == 200, answer
    return dict(answer)


def n_generated(answer: Answer) -> int:
    usage: Answer = answer.get("usage") or {"output_tokens": answer.get("tokens_predicted")}
    return int(usage["completion_tokens"] if "completion_tokens" in usage else usage["output_tokens"])


@pytest.mark.parametrize("path", APIS)
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("max_tokens", 2**32 + 5), ("max_tokens", 2**31), ("max_tokens", 1.5), ("top_k", 2**32 + 1), ("seed", 2**70),
        ("seed", 1.5), ("n_probs", 2**40), ("repeat_last_n", -(2**32)), ("min_keep", 1e30),
    ],
)  # fmt: skip
def test_numbers_are_not_wrapped(server: Served, path: str, key: str, value: float) -> None:
    body = body_for(path, "What?", 2, [])
    key = "max_output_tokens" if key == "max_tokens" and path == "/v1/responses" else key
    refused(server, path, {**body, key: value}, str(value) if isinstance(value, int) and value < 2**64 else "integer")


@pytest.mark.parametrize("path", ["/completion", "/v1/completions", CHAT])
def test_numbers_of_choices_are_not_wrapped(server: Served, path: str) -> None:
    refused(server, path, {**body_for(path, "What?", 2, []), "n": 2**32 + 1}, "'n'")


@pytest.mark.parametrize("path", APIS)
@pytest.mark.parametrize("seed", [-1, 0, 2**32 - 1, 7.0, 2**32, -2, 2**63 - 1, -(2**63)])
def test_seeds_of_64_bits(server: Served, path: str, seed: float) -> None:
    answered(server, path, {**body_for(path, "What?", 2, []), "seed": seed})


def test_long_seeds_differ(server: Served) -> None:
    def used(seed: int) -> int:
        answer = answered(server, "/completion", {"prompt": "What?", "n_predict": 1, "seed": seed})
        return int(answer["generation_settings"]["seed"])

    assert used(2**40 + 1) == used(2**40 + 1)
    assert len({used(seed) for seed in (1, 2**32 + 1, 2**40 + 1, 2**63 - 1, -2)}) == 5


@pytest.mark.parametrize("path", APIS)
@pytest.mark.parametrize(
    ("key", "value", "part"),
    [
        ("logit_bias", "x", "neither an object nor a list"), ("logit_bias", 5, "neither an object nor a list"),
        ("logit_bias", [[1]], "[1] is no pair"), ("logit_bias", [5], "5 is no pair"),
        ("logit_bias", {str(2**32 + 9): 5}, "4294967305"), ("logit_bias", {"-1": 5}, "-1"),
        ("logit_bias", {"": 5}, "neither a text nor a token id"), ("logit_bias", [["", 5]], "neither a text"),
        ("logit_bias", [[1.5, 5]], "1.5"), ("logit_bias", [[2**40, 5]], "1099511627776"),
        ("logit_bias", [[-1, 5]], "-1"), ("logit_bias", {"1": 1e300}, "1e+300"), ("logit_bias", {"1": True}, "true"),
        ("logit_bias", {"a": "b"}, '"b"'), ("samplers", ["nope"], "no sampler"), ("samplers", [5], "5 is no name"),
        ("samplers", 5, "neither a list nor a text"), ("samplers", "?", "no sampler"),
        ("lora", {"id": 0, "scale": 1}, "no list"), ("lora", [5], "0 adapters"),
        ("lora", [{"id": 0, "scale": 1}], "0 adapters"),
    ],
)  # fmt: skip
def test_entries_are_not_ignored(server: Served, path: str, key: str, value: object, part: str) -> None:
    """llama.cpp skips invalid entries of these lists."""
    status, answer = server.post(path, {**body_for(path, "What?", 2, []), key: value})
    assert status == 400 and f"'{key}'" in answer["error"]["message"] and part in answer["error"]["message"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("logit_bias", {}), ("logit_bias", {str(START): -5, "a": False, "5 a": 1.5}),
        ("logit_bias", [[START, 5], ["a", -5]]),
        ("samplers", []), ("samplers", ["top_k", "TOP-P", "temp"]), ("samplers", "kpt"), ("samplers", "k?"),
        ("samplers", ["top_k", "tfs_z"]), ("lora", []),
    ],
)  # fmt: skip
def test_valid_entries_are_answered(server: Served, key: str, value: object) -> None:
    assert answered(server, "/completion", {"prompt": "What?", "n_predict": 2, key: value})["tokens_predicted"] == 2


def test_a_banned_token_is_not_written(server: Served) -> None:
    body = {"prompt": "What?\n", "n_predict": 2, "temperature": 0, "return_tokens": True}
    first = answered(server, "/completion", body)["tokens"][0]
    for bias in ({str(first): False}, [[first, False]], {str(first): -100}):
        assert first not in answered(server, "/completion", {**body, "logit_bias": bias})["tokens"]


@pytest.mark.parametrize("body", [[5], [{"id": 0, "scale": 1}], [{"id": -1, "scale": 1}]])
def test_adapters_that_do_not_exist(server: Served, body: object) -> None:
    refused(server, "/lora-adapters", body, "0 adapters")


@pytest.mark.parametrize("path", APIS)
def test_nulls_are_absent(server: Served, path: str) -> None:
    body = body_for(path, "What?", 2, [])
    keys = ("max_completion_tokens", "tools", "tool_choice", "response_format", "speculative", "grammar", "seed")
    more = ("suffix", "best_of", "logprobs", "top_logprobs", "metadata", "reasoning_format", "continue_final_message")
    nulls = dict.fromkeys((*keys, *more)) | {"text": None, "output_config": None, "system": None}
    assert n_generated(answered(server, path, {**nulls, **body})) == 2
    real = body | {"max_output_tokens": None} if path == "/v1/messages" else body
    assert n_generated(answered(server, path, {**real, "max_completion_tokens": None})) == 2


def test_a_null_limit_is_none(server: Served) -> None:
    body = {"input": "What?", "max_output_tokens": None, "temperature": 0}
    assert answered(server, "/v1/responses", body)["status"] == "completed"


@pytest.mark.parametrize("path", ["/completion", "/v1/completions", *CHATS])
@pytest.mark.parametrize(
    ("grammar", "reason"),
    [("root ::= (", "line 1"), ('root ::= a\n\na := "b"', "line 3"), ('root ::= "a', "end of input"), ("x", "::=")],
)
def test_grammars_say_what_is_wrong(server: Served, path: str, grammar: str, reason: str) -> None:
    refused(server, path, {**body_for(path, "What?", 2, []), "grammar": grammar}, "grammar", reason)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_a_beginning_that_does_not_fit(server: Served, path: str) -> None:
    body = body_for(path, "What?", 20, [])
    body["messages"] += [{"role": "assistant", "content": "It is"}]
    form = {"type": "json_schema", "json_schema": {"schema": PERSON}}
    refused(server, path, {**body, "response_format": form}, "last message")
    tools: Any = TOOLS if path == CHAT else [{"name": "f", "input_schema": PERSON}]
    refused(server, path, {**body, "tools": tools, "tool_choice": {"type": "any"}}, "last message")


def forms(path: str, schema: Answer) -> Answer:
    """A schema of the answer, as each API has it."""
    if path == CHAT:
        return {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}}
    form = {"type": "json_schema", "name": "n", "schema": schema}
    return {"text": {"format": form}} if path == "/v1/responses" else {"output_config": {"format": form}}


@pytest.mark.parametrize("path", CHATS)
def test_schemas_of_answers(server: Served, path: str) -> None:
    body = body_for(path, "What?", 60, [])
    text = str(answered(server, path, {**body, **forms(path, PERSON)})).replace(" ", "").replace("\\n", "")
    assert '{"age":5}' in text.replace('\\"', '"')
    refused(server, path, {**body, **forms(path, {"type": "strong"})}, "strong")
    if path != CHAT:
        form = forms(path, PERSON)
        next(iter(form.values()))["format"]["type"] = "grammar"
        refused(server, path, {**body, **form}, "'grammar'")


def allowed(mode: str, *names: str, is_nested: bool = True) -> Answer:
    tools = [{"type": "function", "function": {"name": name}} if is_nested else {"name": name} for name in names]
    given = {"mode": mode, "tools": tools}
    return {"type": "allowed_tools", **({"allowed_tools": given} if is_nested else given)}


@pytest.mark.parametrize("is_nested", [True, False])
def test_allowed_tools(server: Served, is_nested: bool) -> None:
    body = {**body_for(CHAT, "What?", 80, []), "tools": TOOLS, "parallel_tool_calls": False}
    choice = allowed("required", "h", is_nested=is_nested)
    message = answered(server, CHAT, {**body, "tool_choice": choice})["choices"][0]["message"]
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["h"]
    prompt = answered(server, "/apply-template", {**body, "tool_choice": allowed("auto", "f", "h")})["prompt"]
    assert '"f"' in prompt and '"g"' not in prompt
    refused(server, CHAT, {**body, "tool_choice": allowed("auto", "k", is_nested=is_nested)}, "'k'")
    refused(server, CHAT, {**body, "tool_choice": allowed("auto", is_nested=is_nested)}, "tools")
    refused(server, CHAT, {**body, "tool_choice": allowed("always", "f", is_nested=is_nested)}, "mode")


def test_allowed_tools_of_responses(server: Served) -> None:
    tools = [{"type": "function", **tool["function"]} for tool in TOOLS]  # type: ignore[dict-item]
    body = {"input": "What?", "max_output_tokens": 80, "temperature": 0, "tools": tools, "parallel_tool_calls": False}
    answer = answered(server, "/v1/responses", {**body, "tool_choice": allowed("required", "g", is_nested=False)})
    assert [item["name"] for item in answer["output"] if item["type"] == "function_call"] == ["g"]


@pytest.mark.parametrize("path", ["/completion", "/v1/completions"])
def test_what_is_not_computed_is_refused(server: Served, path: str) -> None:
    body = body_for(path, "What?", 2, [])
    refused(server, path, {**body, "suffix": "end"}, "'suffix'")
    refused(server, path, {**body, "best_of": 3}, "'best_of'")
    answered(server, path, {**body, "suffix": "", "best_of": 1})


def test_settings_reach_the_messages_api(server: Served) -> None:
    body = body_for("/v1/messages", "What?", 2, [])
    refused(server, "/v1/messages", {**body, "speculative.n_max": -1}, "speculative.n_max")
    refused(server, "/v1/messages", {**body, "speculative": {"n_min": -1}}, "speculative.n_min")
    answered(server, "/v1/messages", {**body, "speculative.type": "none", "seed": 5})


def test_usage_of_several_choices(server: Served) -> None:
    body = body_for(CHAT, "What?", 3, [])
    one, two = (answered(server, CHAT, {**body, "n": n})["usage"] for n in (1, 2))
    assert two["completion_tokens"] == 2 * one["completion_tokens"] and two["prompt_tokens"] == one["prompt_tokens"]
    assert two["total_tokens"] == two["prompt_tokens"] + two["completion_tokens"]
    prompts = {**body_for("/v1/completions", "", 3, []), "prompt": ["What?\n", "Who is it?\n"]}
    each = [answered(server, "/v1/completions", {**prompts, "prompt": p})["usage"] for p in prompts["prompt"]]
    both = answered(server, "/v1/completions", prompts)["usage"]
    assert all(both[key] == each[0][key] + each[1][key] for key in ("prompt_tokens", "total_tokens"))


def test_reasons_of_an_end(server: Served) -> None:
    limit, stop = body_for("/v1/messages", "What?", 2, []), body_for("/v1/messages", "What?", 20, ["three"])
    assert answered(server, "/v1/messages", limit)["stop_reason"] == "max_tokens"
    answer = answered(server, "/v1/messages", stop)
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "three")
    ends = [event["delta"] for event in events(server, "/v1/messages", stop) if event["type"] == "message_delta"]
    assert (ends[0]["stop_reason"], ends[0]["stop_sequence"]) == ("stop_sequence", "three")
    cut = body_for("/v1/responses", "What?", 2, [])
    last = [*events(server, "/v1/responses", cut)][-1]
    assert last["type"] == "response.incomplete"
    for answer in (answered(server, "/v1/responses", cut), last["response"]):
        assert answer["status"] == "incomplete"
        assert answer["incomplete_details"] == {"reason": "max_output_tokens"}


INTERNAL: dict[str, tuple[str, Any]] = {
    "a parser that contains itself": (
        "chat_parser", '{"parsers":[{"type":"sequence","children":[0]}],"rules":{},"root":0}'
    ),
    "a format": ("chat_format", 3),
    "a pattern": ("grammar_triggers", [{"type": 2, "value": "e+"}]),
    "a trigger of no type": ("grammar_triggers", [{"type": 9, "value": "e"}]),
    "a trigger without a type": ("grammar_triggers", [{"value": "e"}]),
}  # fmt: skip


@pytest.mark.parametrize("path", APIS)
@pytest.mark.parametrize("name", INTERNAL)
def test_keys_of_the_server_itself(server: Served, path: str, name: str) -> None:
    key, value = INTERNAL[name]
    refused(server, path, {**body_for(path, "What?", 2, []), key: value, "grammar_lazy": True}, key)


def test_words_start_a_grammar(server: Served) -> None:
    body = {
        "prompt": "What?\n",
        "n_predict": 8,
        "temperature": 0,
        "grammar_lazy": True,
        "grammar": 'root ::= "one two"',
    }
    triggers = [{"type": 1, "value": "one"}]
    plain = answered(server, "/completion", {"prompt": "What?\n", "n_predict": 8, "temperature": 0})["content"]
    assert plain.startswith("one two three")
    lazy = answered(server, "/completion", {**body, "grammar_triggers": triggers})["content"]
    assert lazy.strip() == "one two"


@pytest.mark.parametrize("key", ["repeat_last_n", "dry_penalty_last_n"])
def test_samplers_remember_at_most_the_context(server: Served, key: str) -> None:
    body = {"prompt": "What?", "n_predict": 2, "repeat_penalty": 1.1, "dry_multiplier": 1, key: 2_000_000}
    assert answered(server, "/completion", body)["generation_settings"][key] <= 2048


@pytest.mark.parametrize("stop", ["", [""], ["", "never"]])
def test_empty_stop_texts_end_nothing(server: Served, stop: object) -> None:
    body = {"prompt": "What?\n", "n_predict": 4, "temperature": 0}
    assert answered(server, "/completion", {**body, "stop": stop})["tokens_predicted"] == 4
    message = {"messages": [{"role": "user", "content": "What?"}], "max_tokens": 4, "stop_sequences": [""]}
    assert n_generated(answered(server, "/v1/messages", message)) == 4


@pytest.mark.parametrize("grammar", [None, ""])
def test_a_schema_next_to_no_grammar(server: Served, grammar: str | None) -> None:
    body = {"prompt": "What?", "n_predict": 20, "json_schema": {"enum": ["red", "blue"]}, "grammar": grammar}
    assert answered(server, "/completion", body)["content"] in ('"red"', '"blue"')


@pytest.mark.parametrize("path", ["/completion", "/v1/completions"])
def test_completions_have_no_response_format(server: Served, path: str) -> None:
    schema = {"type": "json_schema", "json_schema": {"schema": {"enum": ["red", "blue"]}}}
    body = body_for(path, "What?", 2, [])
    refused(server, path, {**body, "response_format": schema}, "json_schema", "grammar")
    answered(server, path, {**body, "response_format": {"type": "text"}})


@pytest.mark.parametrize("path", CHATS)
def test_options_of_the_template_are_an_object(server: Served, path: str) -> None:
    refused(server, path, {**body_for(path, "What?", 2, []), "chat_template_kwargs": 5}, "chat_template_kwargs")
