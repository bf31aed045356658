"""Grammars that would end or hang llama.cpp are refused with the reason, and the instance goes on."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from fixtures.llama_pairs import complete, load, write_pairs
from llama_eagle.errors import NativeError, UsageError

pytestmark = pytest.mark.native


def gbnf(text: str) -> Any:
    from llama_cpp import LlamaGrammar

    return LlamaGrammar.from_string(text, verbose=False)


LETTERS = "root ::= [a-z ]+"


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    instance = load(write_pairs(tmp_path_factory.mktemp("models")), n_draft=3)
    yield instance
    instance.close()


def nested(depth: int) -> str:
    return "root ::= " + "(" * depth + '"a"' + ")" * depth


def chained(depth: int) -> str:
    """Rules that begin with each other."""
    return "\n".join(["root ::= r0", *(f"r{i} ::= r{i + 1}" for i in range(depth)), f'r{depth} ::= "a"'])


def exploding(n_rules: int) -> str:
    """Each rule leads to the next one in three ways: 3^n places to be at once."""
    rules = [f"r{i} ::= r{i + 1} [b]? r{i + 1} [c]? r{i + 1}" for i in range(n_rules)]
    return "\n".join(["root ::= r0", *rules, f"r{n_rules} ::= [a]?"])


HOSTILE = {
    "deep groups": (nested(1001), "nested deeper than 1000"),
    "very deep groups": (nested(200_000), "nested deeper than 1000"),
    "a chain of rules": (chained(20_000), "nested deeper than 1000"),
    "many repetitions": (
        "root ::= " + " ".join(f'"{i}"{{0,1000}}' for i in range(1000)),
        "repeats more than 500000 symbols",
    ),
    "inverted repetition": ('root ::= "a"{5,1}', "more at least than at most"),
    "a great number": ('root ::= "a"{1000000000}', "repeats something 1000000000 times"),
    "a great number at most": ('root ::= "a"{1,2001}', "repeats something 2001 times"),
    "too long": ('root ::= "a"' + " " * (1 << 20), "longer than 1048576 bytes"),
    "not a grammar": ("root ::= (", "cannot be parsed"),
    "no root": ('other ::= "a"', "cannot be parsed"),
    "states": (exploding(26), "too many states"),
    "left recursion": ('root ::= root "a" | "b"', "cannot be parsed"),
    "left recursion behind what may be empty": ('root ::= o root "a" | "b"\no ::= e e\ne ::= "x"?', "too many states"),
}


@pytest.mark.parametrize("grammar, reason", HOSTILE.values(), ids=HOSTILE)
def test_is_refused(llm: Any, grammar: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        complete(llm, grammar=gbnf(grammar))
    assert complete(llm, temperature=0, grammar=gbnf(LETTERS))["text"]


def test_a_pattern_that_repeats_is_refused(llm: Any) -> None:
    from llama_cpp import LlamaGrammar

    schema = json.dumps({"type": "string", "pattern": "^a{1,20000}$"})
    with pytest.raises(UsageError, match="nested deeper than 1000"):
        complete(llm, grammar=LlamaGrammar.from_json_schema(schema, verbose=False))
    assert complete(llm, temperature=0)["text"]


GREAT: dict[str, tuple[dict[str, Any], str]] = {
    "items": ({"type": "array", "items": {"type": "string"}, "minItems": 10**9}, "minItems 1000000000 is above 2000"),
    "characters": ({"type": "string", "minLength": 2001}, "minLength 2001 is above 2000"),
    "deep inside": ({"anyOf": [{"type": "object", "properties": {"a": {"minLength": 10**9}}}]}, "minLength"),
    "of several types": ({"type": ["string", "null"], "minLength": 10**9}, "minLength"),
    "no count": ({"type": "string", "minLength": -1}, "non-negative"),
    "turned round": ({"type": "string", "minLength": 3, "maxLength": 2}, "minLength 3 is above maxLength 2"),
    "a bound": ({"type": "integer", "minimum": 1e300}, "within 2"),
}


@pytest.mark.parametrize("schema, reason", GREAT.values(), ids=GREAT)
def test_great_numbers_in_schemas_are_refused(llm: Any, schema: dict[str, Any], reason: str) -> None:
    """As a form of the answer and as the parameters of a tool that is required or named."""
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    named = {"type": "function", "function": {"name": "f"}}
    form = {"type": "json_schema", "json_schema": {"schema": schema}}
    for request in (
        {"response_format": form},
        {"tools": tools, "tool_choice": "required"},
        {"tools": tools, "tool_choice": named},
    ):
        with pytest.raises(UsageError, match=reason):
            llm.create_chat_completion([{"role": "user", "content": "a"}], max_tokens=2, **request)


@pytest.mark.parametrize("low, high", [(0, 0), (0, 1), (2, 2), (3, None), (0, 5), (1, 2000), (2000, 2000), (1, 10**9)])
def test_counts_hold(llm: Any, low: int, high: int | None) -> None:
    from llama_eagle.drop_in.chat import grammar_of_schema

    lengths = {"minLength": low, **({} if high is None else {"maxLength": high})}
    items = {"minItems": low, **({} if high is None else {"maxItems": high})}
    for schema in ({"type": "string", **lengths}, {"type": "array", "items": {"enum": [1, 2]}, **items}):
        answer = complete(llm, max_tokens=100, temperature=1.5, grammar=grammar_of_schema(json.dumps(schema)))
        if answer["reason"] == "stop":
            assert low <= len(json.loads(answer["text"])) <= (10**9 if high is None else high)


@pytest.mark.parametrize("grammar", [nested(999), chained(998), exploding(3)], ids=["groups", "chain", "states"])
def test_just_inside_the_limits_works(llm: Any, grammar: str) -> None:
    assert set(complete(llm, temperature=0, grammar=gbnf(grammar))["text"]) <= set("abc")


def test_rules_shared_by_many_are_visited_once(llm: Any) -> None:
    """Each rule begins with the next one, twice: 2^60 ways from the root to the last."""
    rules = "\n".join(f"r{i} ::= r{i + 1} | r{i + 1} r{i + 1}" for i in range(60))
    start = time.monotonic()
    with pytest.raises(UsageError, match="grammar"):
        complete(llm, grammar=gbnf(f'root ::= r0\n{rules}\nr60 ::= "a"'))
    assert time.monotonic() - start < 60  # it would be years


def test_states_that_explode_within_the_text_end_the_generation_alone(llm: Any) -> None:
    tail = exploding(26).replace("root", "tail", 1)
    grammar = gbnf(f'root ::= [a-z ] [a-z ] tail "z"\n{tail}')
    tokens = llm.generate(llm.tokenize(b"abc"), temp=0.0, grammar=grammar)
    with pytest.raises(NativeError, match="too many states"):
        list(itertools.islice(tokens, 10))
    assert complete(llm, temperature=0)["text"]
