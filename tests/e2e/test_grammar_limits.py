"""Grammars just beyond our limits are refused with the reason, and the instance goes on.

llama.cpp without our patches reads each of them within two seconds. native/tests/test_limits.cpp calls the guards for
the rest.
"""

from __future__ import annotations

import itertools
import json
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


def wide(depth: int, n: int, name: str = "root") -> str:
    """One place with `n` states, each of them `depth` levels deep."""
    rules, ends = [f'r{i} ::= r{i + 1} "b"' for i in range(depth)], [f'"{chr(0x4E00 + i)}"' for i in range(n)]
    return "\n".join([f"{name} ::= r0", *rules, f"r{depth} ::= {' | '.join(ends)}"])


WIDE = "too many states|more than 2 s"  # the second on a slow machine
BEYOND = {
    "deep groups": (nested(1001), "nested deeper than 1000"),
    "a chain of rules": (chained(1001), "nested deeper than 1000"),
    "many repetitions": (
        f"root ::= [{''.join(chr(0x4E00 + i) for i in range(250))}]{{2000}}",
        "repeats more than 500000 symbols",
    ),
    "a great number": ('root ::= "a"{2001}', "repeats something 2001 times"),
    "a great number at most": ('root ::= "a"{1,2001}', "repeats something 2001 times"),
    "too long": ('root ::= "a"' + " " * (1 << 20), "longer than 1048576 bytes"),
    "not a grammar": ("root ::= (", "cannot be parsed"),
    "no root": ('other ::= "a"', "cannot be parsed"),
    "states": (wide(990, 4100), WIDE),
    "left recursion": ('root ::= root "a" | "b"', "cannot be parsed"),
}


@pytest.mark.parametrize("grammar, reason", BEYOND.values(), ids=BEYOND)
def test_is_refused(llm: Any, grammar: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        complete(llm, grammar=gbnf(grammar))
    assert complete(llm, temperature=0, grammar=gbnf(LETTERS))["text"]


def test_a_pattern_that_repeats_is_refused(llm: Any) -> None:
    from llama_cpp import LlamaGrammar

    schema = json.dumps({"type": "string", "pattern": "^a{1,1100}$"})
    with pytest.raises(UsageError, match="nested deeper than 1000"):
        complete(llm, grammar=LlamaGrammar.from_json_schema(schema, verbose=False))
    assert complete(llm, temperature=0)["text"]


GREAT: dict[str, tuple[dict[str, Any], str]] = {
    "items": ({"type": "array", "items": {"type": "string"}, "minItems": 2001}, "minItems 2001 is above 2000"),
    "characters": ({"type": "string", "minLength": 2001}, "minLength 2001 is above 2000"),
    "deep inside": ({"anyOf": [{"type": "object", "properties": {"a": {"minLength": 2001}}}]}, "minLength"),
    "of several types": ({"type": ["string", "null"], "minLength": 2001}, "minLength"),
    "no count": ({"type": "string", "minLength": -1}, "non-negative"),
    "a bound": ({"type": "integer", "minimum": 1e300}, "within 2"),
}


@pytest.mark.parametrize("schema, reason", GREAT.values(), ids=GREAT)
def test_great_numbers_in_schemas_are_refused(llm: Any, schema: dict[str, Any], reason: str) -> None:
    """As a form of the answer and as the parameters of a strict tool, required or named. Others are left open."""
    tools: list[Any] = [{"type": "function", "function": {"name": "f", "parameters": schema, "strict": True}}]
    named = {"type": "function", "function": {"name": "f"}}
    form = {"type": "json_schema", "json_schema": {"schema": schema}}
    for request in (
        {"response_format": form},
        {"tools": tools, "tool_choice": "required"},
        {"tools": tools, "tool_choice": named},
    ):
        with pytest.raises(UsageError, match=reason):
            llm.create_chat_completion([{"role": "user", "content": "a"}], max_tokens=2, **request)
    tools[0]["function"]["strict"] = False
    for choice in ("required", named):
        with pytest.warns(UserWarning, match="the grammar does not enforce"):
            llm.create_chat_completion(
                [{"role": "user", "content": "a"}], max_tokens=2, tools=tools, tool_choice=choice
            )


@pytest.mark.parametrize("low, high", [(0, 0), (0, 1), (2, 2), (3, None), (0, 5), (1, 2000), (2000, 2000), (1, 10**9)])
def test_counts_hold(llm: Any, low: int, high: int | None) -> None:
    from llama_eagle.drop_in.chat import grammar_of_schema

    lengths = {"minLength": low, **({} if high is None else {"maxLength": high})}
    items = {"minItems": low, **({} if high is None else {"maxItems": high})}
    for schema in ({"type": "string", **lengths}, {"type": "array", "items": {"enum": [1, 2]}, **items}):
        answer = complete(llm, max_tokens=100, temperature=1.5, grammar=grammar_of_schema(schema))
        if answer["reason"] == "stop":
            assert low <= len(json.loads(answer["text"])) <= (10**9 if high is None else high)


@pytest.mark.parametrize("grammar", [nested(999), chained(998), wide(3, 3)], ids=["groups", "chain", "states"])
def test_just_inside_the_limits_works(llm: Any, grammar: str) -> None:
    assert set(complete(llm, temperature=0, grammar=gbnf(grammar))["text"]) <= set("ab\u4e00\u4e01\u4e02")


def test_states_beyond_the_limit_within_the_text_end_the_generation_alone(llm: Any) -> None:
    grammar = gbnf(f"root ::= [a-z ] [a-z ] tail\n{wide(990, 4100, 'tail')}")
    tokens = llm.generate(llm.tokenize(b"abc"), temp=0.0, grammar=grammar)
    with pytest.raises(NativeError, match=WIDE):
        list(itertools.islice(tokens, 10))
    assert complete(llm, temperature=0)["text"]
