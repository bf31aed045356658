"""No grammar, sampling or draft ends the process: what a sampler throws is an error of one line."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fixtures.command import assert_one_line_error, llama_eagle
from fixtures.llama_pairs import SOFT, complete, load, write_pairs
from fixtures.serving import serve
from fixtures.tiny_gguf import END, write_draft, write_target
from llama_eagle.errors import NativeError, UsageError

pytestmark = pytest.mark.native

CASES = int(os.environ.get("LLAMA_EAGLE_FUZZ_CASES", "150")) // 15
WORKER = Path(__file__).parents[1] / "fuzz" / "samplers.py"
DEAD_END = 'root ::= [a-z ] [a-z ] [a-z ] "!" "b"'  # for a vocabulary without "!", as that of `files`
NO_TOKEN = "the grammar allows no token here"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, lacking = tmp_path_factory.mktemp("models"), replace(SOFT, first_token="other")
    target, draft = write_target(folder / "own.gguf", lacking), write_draft(folder / "own-draft.gguf", lacking)
    return write_pairs(folder) | {"target": target, "draft": draft}


@pytest.fixture(scope="module", params=["match", "rejection"])
def llm(request: pytest.FixtureRequest, files: dict[str, Path]) -> Iterator[Any]:
    instance = load(files, n_draft=3, draft_sampling=request.param)
    yield instance
    instance.close()


def gbnf(text: str) -> Any:
    from llama_cpp import LlamaGrammar

    return LlamaGrammar.from_string(text, verbose=False)


@pytest.mark.parametrize("arguments", [{"temp": 0.0}, {"temp": 1.0}, {"temp": 1.5, "top_k": 0, "min_p": 0.0}])
def test_a_dead_end_ends_the_generation_alone(llm: Any, arguments: dict[str, Any]) -> None:
    tokens = llm.generate(llm.tokenize(b"abc"), grammar=gbnf(DEAD_END), **arguments)
    with pytest.raises(NativeError, match=NO_TOKEN):
        list(itertools.islice(tokens, 10))
    assert complete(llm, temperature=0)["text"]


def test_sample_checks_the_grammar_itself(llm: Any) -> None:
    llm.reset()
    llm.eval(llm.tokenize(b"abc"))
    llm._sampler = None
    with pytest.raises(UsageError, match="cannot be parsed"):
        llm.sample(grammar=gbnf("root ::= ("))


@pytest.mark.parametrize("more", [(), ("-d", "draft"), ("-d", "draft", "--draft-sampling", "rejection")])
def test_a_dead_end_in_the_command(files: dict[str, Path], more: tuple[str, ...]) -> None:
    given = [files["draft"] if word == "draft" else word for word in more]
    common = ("generate", "-m", files["target"], *given, "--raw", "-p", "abc", "-n", 20, "-t", 1, "--temp", 1)
    outcome = llama_eagle(*common, "--seed", 1, "--grammar", DEAD_END)
    assert (outcome.code, len(outcome.stdout), outcome.stderr.count("\n")) == (4, 3, 1)
    assert NO_TOKEN in outcome.stderr


def test_a_missing_grammar_file_is_not_a_grammar(files: dict[str, Path]) -> None:
    for option in ("--grammar", "--json-schema"):
        missing = llama_eagle("generate", "-m", files["target"], "-p", "abc", option, "/nonexistent.json")
        assert_one_line_error(missing, 3, option, "/nonexistent.json", "no such file")


@pytest.mark.parametrize(
    "grammar, allowed", [('root ::= "x"+', "x"), ('root ::= [^\\x00]* "z"', None), ("root ::= [q-z]{6}", "qrstuvwxyz")]
)
@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_the_prompt_is_no_part_of_the_grammar(
    files: dict[str, Path], grammar: str, allowed: str | None, penalty: float
) -> None:
    common = ("generate", "-m", files["sharp"], "--raw", "-p", "abc", "-n", 8, "--temp", 0, "-t", 1, "--json")
    result = llama_eagle(*common, "--repeat-penalty", penalty, "--grammar", grammar).json
    assert result["text"] and (allowed is None or set(result["text"]) <= set(allowed))
    assert "{" not in grammar or len(result["text"]) == 6


def test_a_dead_end_ends_that_request_of_the_server_alone(files: dict[str, Path]) -> None:
    with serve("-m", files["target"], "-d", "none", "-c", 256, "-t", 1) as server:
        for settings in ({"temperature": 0}, {"temperature": 1, "top_k": 0}):
            body = {"prompt": "abc", "n_predict": 10, "grammar": DEAD_END, **settings}
            status, answer = server.post("/completion", body)
            assert status == 400 and NO_TOKEN in str(answer)
            assert server.post("/completion", {"prompt": "abc", "n_predict": 2})[0] == 200


@pytest.mark.parametrize("draft", ["none", "draft"])
def test_a_grammar_that_has_ended_ends_the_answer(files: dict[str, Path], draft: str) -> None:
    """Also without the end token, which `ignore_eos` and a bias exclude; a grammar that may continue does."""
    samplings = [{"temperature": 0}, {"top_k": 0}, {"mirostat": 1}, {"mirostat": 2}, {"adaptive_target": 0.5}]
    endless = [{"ignore_eos": True}, {"logit_bias": [[END, False]]}]
    with serve("-m", files["target"], "-d", files.get(draft, draft), "-c", 256, "-t", 1) as server:
        for sampling, end in itertools.product(samplings, endless):
            given = {"prompt": "abc", "n_predict": 12, **sampling, **end}
            answer = server.post("/completion", {**given, "grammar": 'root ::= "ab" "c"?'})
            assert answer[0] == 200 and (answer[1]["content"], answer[1]["stop_type"]) == ("abc", "eos"), answer
            answer = server.post("/completion", {**given, "grammar": "root ::= [a-c]*"})
            assert (len(answer[1]["content"]), answer[1]["stop_type"]) == (12, "limit"), answer


@pytest.mark.parametrize("first", [0, pytest.param(1000, marks=pytest.mark.slow)])
def test_random_grammars_samplings_and_drafts(files: dict[str, Path], first: int) -> None:
    """A process for each case: 10 in the quick suite, 1,000 in the slow one."""
    command = [sys.executable, str(WORKER), str(files["target"].parent), str(first), str(1000 if first else CASES)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == ""
