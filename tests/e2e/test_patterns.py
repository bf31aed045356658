"""Patterns of JSON schemas: Python's `re` finds them in generated JSON, or they are refused by name.

The sampler ignores the model: tokens are drawn uniformly from what the grammar allows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fixtures.llama_pairs import load, write_pairs
from fixtures.serving import Served, serve
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llama_eagle.errors import UsageError

pytestmark = pytest.mark.native

FOLLOWED = [
    r"^\d+$", r"^\w+$", r"^\s$", r"^\D\S\W$", r"^\.+$", r"^a\.b{2,3}$", r"^\.{3}$", r"^é{2}$", "^(é|\U0001f600){1,2}$",
    r'^"\\"$', r'^[\\"]{4}$', r"^a|b$", r"^(a|bc)?d$", r"^a||b$", r"^https?://", r"[a-c]$", r"x", r"^[^\w\s]{2}$",
    r"^[\d-]+$",
    r"^[^a-zA-Z]$", r"^\u0041\x42$", r"^a*?b+?$", r"^(?:ab){2}$", r"^(?P<n>a)(?:b)$", r"^a{0}b$", r"^{a}$", r"^a{2,}$",
    r"^\t\n\r\f\v\0$", r"^[\b\]\[-]$", r"^$", r"^a{0,0}$", r"^\/\-\#$", r"^.{3}$", r"^[\s\S]$", r"^(|a)b$",
]  # fmt: skip
REFUSED = {
    r"^(?=a)a$": "look-ahead", r"^(?!a)b$": "look-ahead", r"(?<=a)b": "look-behind", r"(?<!a)b": "look-behind",
    r"\bword\b": "word boundary", r"^(a)\1$": "back-reference", r"^(?P<n>a)(?P=n)$": "back-reference",
    r"^\p{L}+$": "Unicode property", r"(?i)a": "flags", r"^a++$": "possessive", r"^a**$": "repetition of a repetition",
    r"^a{1,2001}$": "more than 2000 times", r"*": "nothing to repeat",
    r"a^b": "anchor inside", r"^(^a$)$": "anchor inside", r"[": "without its end", r"(": "without its end",
    r")": "closes nothing", r"[]": "empty set", "^a\\": "backslash at its end", r"\Z": r"\\Z",
    r"^[z-a]$": "before it begins",
    r"^[a-\d]$": "ends with a class", r"^\ud83d$": "surrogate", r"^[^\s\S]$": "holds none",
    r"^a{,2}$": r"write \{0,n\}",
    "(" * 101 + ")" * 101: "deeper than 100",
}  # fmt: skip


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with load(write_pairs(tmp_path_factory.mktemp("models")), draft=None) as instance:
        yield instance


def grammar_of(schema: dict[str, Any]) -> Any:
    from llama_eagle.drop_in.chat import grammar_of_schema

    return grammar_of_schema(schema)


def texts(llm: Any, schema: dict[str, Any], n: int) -> Iterator[Any]:
    """Yield up to `n` values that ended before 200 tokens."""
    from llama_cpp import LogitsProcessorList

    flat = LogitsProcessorList([lambda _, scores: np.zeros_like(scores)])
    grammar = grammar_of(schema)
    for seed in range(n):
        answer = llm.create_completion(
            "abc", max_tokens=200, seed=seed, grammar=grammar, logits_processor=flat, top_k=0, top_p=1.0, min_p=0.0
        )
        if answer["choices"][0]["finish_reason"] == "stop":
            yield json.loads(answer["choices"][0]["text"])


@pytest.mark.parametrize("pattern", FOLLOWED)
def test_followed(llm: Any, pattern: str) -> None:
    found = list(texts(llm, {"type": "string", "pattern": pattern}, 4))
    assert found or pattern in ("x", "^a|b$")  # their texts rarely end within 200 tokens
    assert all(re.search(pattern, text) for text in found), found


@pytest.mark.parametrize("pattern", REFUSED)
def test_refused_by_name(pattern: str) -> None:
    with pytest.raises(UsageError, match=REFUSED[pattern]):
        grammar_of({"type": "string", "pattern": pattern})


def test_in_a_list_of_types(llm: Any) -> None:
    schema = {"type": ["string", "null"], "pattern": "^[ab]{3}$"}
    assert all(value is None or re.search("^[ab]{3}$", value) for value in texts(llm, schema, 5))


CONTROL = b"<|im_start|>"


@pytest.mark.parametrize(
    "grammar, text",
    [
        ('root ::= [^"]{12}', None),
        ('root ::= "<" [|!] "im_start|>"', None),
        ('root ::= "<|im_start|>" "a"', "a"),
        ('root ::= <[257]> "a"', "a"),
    ],
)
def test_control_tokens_are_used_where_they_are_named(llm: Any, grammar: str, text: str | None) -> None:
    from llama_cpp import LlamaGrammar, LogitsProcessorList

    assert llm.detokenize([257], special=True) == CONTROL

    def favour(_: Any, scores: Any) -> Any:
        scores[257] = 100
        return scores

    gbnf = LlamaGrammar.from_string(grammar, verbose=False)
    processors = LogitsProcessorList([favour])
    answer = llm.create_completion("abc", max_tokens=20, grammar=gbnf, logits_processor=processors, temperature=0)
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["text"] == text if text is not None else len(choice["text"]) == 12


atoms = st.sampled_from(
    [r"\d", r"\w", r"\s", r"\S", r"\W", r"\.", "a", "é", '"', r"\\", ".", "[^a-f]", "[a-f]", "/", "{"]
)
times = st.sampled_from(["", "", "*", "+", "?", "{2}", "{0,2}", "{1,}", "*?"])
pieces = st.recursive(
    st.tuples(atoms, times).map("".join),
    # Nested repetitions without end take Python, and the sampler that refuses them, an exponential time.
    lambda inner: st.tuples(
        st.lists(inner, min_size=1, max_size=3).map("|".join), st.sampled_from(["", "?", "{2}"])
    ).map(lambda p: f"({p[0]}){p[1]}"),
    max_leaves=4,
)
patterns = st.tuples(st.sampled_from(["", "^"]), st.lists(pieces, max_size=4).map("".join), st.sampled_from(["", "$"]))


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pattern=patterns.map("".join))
def test_random_patterns(llm: Any, pattern: str) -> None:
    for text in texts(llm, {"type": "string", "pattern": pattern}, 2):
        assert re.search(pattern, text), (pattern, text)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    files = write_pairs(tmp_path_factory.mktemp("served"))
    with serve("-m", files["target"], "-d", "none", "-c", 512, "-t", 1) as running:
        yield running


@pytest.mark.parametrize("pattern", FOLLOWED[:12])
def test_followed_by_the_server(server: Served, pattern: str) -> None:
    body = {"prompt": "abc", "n_predict": 200, "json_schema": {"type": "string", "pattern": pattern}, "seed": 1}
    status, answer = server.post("/completion", body)
    assert status == 200
    if answer["stop_type"] == "eos":
        assert re.search(pattern, json.loads(answer["content"]))


@pytest.mark.parametrize("pattern", [r"^(?=a)a$", r"\bx", r"^a{1,2001}$", "["])
def test_refused_by_the_server(server: Served, pattern: str) -> None:
    body = {"prompt": "abc", "n_predict": 4, "json_schema": {"type": "string", "pattern": pattern}}
    status, answer = server.post("/completion", body)
    assert status == 400 and "cannot be followed" in str(answer)
