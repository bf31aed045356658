"""Every architecture of llama.cpp: the boundaries that the engine publishes, held against our table of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fixtures.architectures import every_architecture
from llama_eagle.gguf import architectures as table
from llama_eagle.gguf.names import DRAFT_KINDS

pytestmark = pytest.mark.native

# Their keys are not among the fixture's: encoders, drafts, and what llama.cpp itself does not run.
NOT_BUILT = {"arwkv7", "clip", "gptj", "rwkv6qwen2", "wavtokenizer-dec", *table.ENCODERS, *DRAFT_KINDS}
# The mean of four streams, which drafts of this architecture were trained with, is not all that a block reads.
MEANS = {"deepseek4"}


@pytest.fixture(scope="module")
def results() -> dict[str, dict[str, Any]]:
    """The worker's findings. It ends with an architecture whose keys do not suit it, and goes on with the next."""
    names = [str(of) for of in every_architecture()]
    found: dict[str, dict[str, Any]] = {}
    while left := names[len(found) :]:
        command = [sys.executable, "-m", "parity.architecture_worker", *left]
        done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        found |= {line["name"]: line for line in lines}
        if len(lines) < len(left):
            found[left[len(lines)]] = {"problem": done.stderr[-500:]}
    return found


def names_of(results: dict[str, dict[str, Any]], boundary: str) -> set[str]:
    """Return the architectures whose every model has published the first, each inner or the last boundary."""

    def publishes(found: dict[str, Any]) -> bool:
        n_layer = found["n_layer"]
        wanted = {"first": {0}, "inner": set(range(1, n_layer)), "last": {n_layer}}[boundary]
        return wanted <= set(found["published"])

    built = [of for of in every_architecture() if "problem" not in results[str(of)]]
    silent = {of.name for of in built if not publishes(results[str(of)])}
    return {of.name for of in built} - silent


def test_every_architecture_was_built(results: dict[str, dict[str, Any]]) -> None:
    problems = {name: found["problem"] for name, found in results.items() if "problem" in found}
    assert problems.keys() <= NOT_BUILT, {name: text for name, text in problems.items() if name not in NOT_BUILT}


def test_each_boundary_is_all_that_passes_between_two_blocks(results: dict[str, dict[str, Any]]) -> None:
    """Its rows are those of the graph's own node, bit for bit, of all tokens, also where three of them are outputs."""
    targets = {str(of): of.name for of in every_architecture() if of.name in table.FEATURE_TARGETS}
    faults = {name: results[name]["faults"] for name in targets}
    assert {name: found for name, found in faults.items() if found and targets[name] not in MEANS} == {}


def test_the_table_is_that_of_the_engine(results: dict[str, dict[str, Any]]) -> None:
    published = names_of(results, "inner")
    others = published - table.FEATURE_TARGETS
    assert published >= table.FEATURE_TARGETS and len(table.FEATURE_TARGETS) >= 110
    without_text = table.ENCODERS | table.DIFFUSION | {"pockettts", "qwen3tts"}
    assert {name for name in others if not table.rollback_problem(name)} <= without_text
    assert names_of(results, "first") & table.FEATURE_TARGETS == table.FIRST_BOUNDARY_TARGETS
    assert names_of(results, "last") & table.FEATURE_TARGETS == table.LAST_BOUNDARY_TARGETS


def test_every_other_architecture_has_a_reason() -> None:
    names = {of.name for of in every_architecture()} - DRAFT_KINDS.keys() - {"clip"}
    refused = {name: table.capture_problem(name) or table.rollback_problem(name) for name in names}
    unknown = table.capture_problem("of tomorrow").rpartition(": ")[2]
    assert {name for name, reason in refused.items() if not reason} == table.FEATURE_TARGETS
    assert [n for n, reason in refused.items() if unknown in reason and not table.rollback_problem(n)] == []


def test_no_valid_file_is_refused(results: dict[str, dict[str, Any]]) -> None:
    found = {name: result["refused"] for name, result in results.items() if "problem" not in result}
    assert {name: messages for name, messages in found.items() if messages} == {}
