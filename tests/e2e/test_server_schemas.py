"""JSON schemas of requests: keys next to $ref, oneOf and anyOf hold; what cannot be combined is refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fixtures.schemas import BARE, CONFLICTS, DEFINED, ENDLESS, RECURSIVE, SIBLINGS
from fixtures.serving import Served, serve
from fixtures.tiny_gguf import write_target

pytestmark = pytest.mark.native


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    target = write_target(tmp_path_factory.mktemp("model") / "target.gguf")
    with serve("-m", target, "-d", "none", "-c", 256, "-t", 1) as running:
        yield running


def grammar(server: Served, schema: dict[str, Any]) -> str:
    status, answer = server.post("/completion", {"prompt": "abc", "n_predict": 1, "json_schema": schema})
    assert status == 200, answer
    return str(answer["generation_settings"]["grammar"])


@pytest.mark.parametrize(("schema", "merged"), SIBLINGS, ids=repr)
def test_keys_next_to_alternatives_and_references_hold(
    server: Served, schema: dict[str, Any], merged: dict[str, Any]
) -> None:
    assert grammar(server, schema | DEFINED) == grammar(server, merged | DEFINED)


def test_a_reference_that_implies_its_siblings_may_be_recursive(server: Served) -> None:
    assert grammar(server, RECURSIVE) == grammar(server, BARE)


def test_bounds_hold_that_are_no_integers(server: Served) -> None:
    """Those that no number of a grammar reaches are left out."""
    assert '"."' in grammar(server, {"type": "number", "minimum": 0.5, "maximum": 1.25})
    wide = grammar(server, {"type": "integer", "minimum": 5, "maximum": 1e300})
    assert wide == grammar(server, {"type": "integer", "minimum": 5})


def test_required_names_without_a_property_are_written(server: Served) -> None:
    own = {"a": {"type": "integer"}}
    schema = {"type": "object", "properties": own, "required": ["a", "b"]}
    assert grammar(server, schema) == grammar(server, schema | {"properties": {**own, "b": {}}})
    typed = {**schema, "additionalProperties": {"type": "null"}}
    assert grammar(server, typed) == grammar(server, typed | {"properties": {**own, "b": {"type": "null"}}})
    status, answer = server.post(
        "/completion", {"prompt": "abc", "n_predict": 1, "json_schema": schema | {"additionalProperties": False}}
    )
    assert status == 400 and "'b'" in answer["error"]["message"]


@pytest.mark.parametrize(("schema", "reason"), [*CONFLICTS, (ENDLESS, "nested deeper")])
def test_siblings_that_cannot_be_merged(server: Served, schema: dict[str, Any], reason: str) -> None:
    status, answer = server.post("/completion", {"prompt": "abc", "n_predict": 1, "json_schema": schema})
    assert status == 400 and reason in answer["error"]["message"]
