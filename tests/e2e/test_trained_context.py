"""Contexts that are longer than the model was trained with: a warning in every front end, and the right remedy."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from fixtures.command import Outcome, assert_one_line_error, llama_eagle
from fixtures.serving import serve
from fixtures.tiny_gguf import CONTEXT, write_target
from llama_eagle import EagleLlama
from llama_eagle.gguf.header import Header, read_model
from llama_eagle.gguf.rotation import beyond_training, default_context, longer_text, trained_context

pytestmark = pytest.mark.native

LONG = "word " * (CONTEXT // 4)  # one token for each character
OPTIONS = ("-d", "none", "-t", 1, "--temp", 0)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(tmp_path_factory.mktemp("models") / "target.gguf")


def with_keys(path: Path, **keys: object) -> Header:
    header = read_model(path)[0]
    header.keys.update({f"qwen35.{name.replace('__', '.')}": value for name, value in keys.items()})
    return header


def test_a_scaling_of_the_file_counts_and_is_named(target: Path) -> None:
    scaled = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0}
    unchanged = with_keys(target, **scaled, rope__scaling__original_context_length=CONTEXT)
    assert trained_context(unchanged) == 4 * CONTEXT and beyond_training(unchanged, 4 * CONTEXT) is None
    problem = beyond_training(unchanged, 4 * CONTEXT + 1)
    assert problem is not None and f"{4 * CONTEXT} that the model was trained with (RoPE scaling yarn by 4" in problem
    included = with_keys(target, **scaled, context_length=10**6, rope__scaling__original_context_length=CONTEXT)
    assert trained_context(included) == 10**6 and default_context(included) == 8192
    assert beyond_training(with_keys(target, context_length=0), 10**6) is None
    assert "larger n_ctx is no remedy" in longer_text(CONTEXT, CONTEXT)
    assert all("use a larger n_ctx" in longer_text(n, CONTEXT) for n in (0, CONTEXT + 1))


@pytest.mark.parametrize("command", ["generate", "chat", "run"])
def test_a_longer_context_is_a_warning(command: str, target: Path) -> None:
    def answer(*size: object) -> Outcome:
        model = (target,) if command == "run" else ("-m", target)
        prompt = ("-p", "abc") if command != "chat" else ()
        return llama_eagle(command, *model, *prompt, *OPTIONS, "-n", 4, *size, stdin="abc\n" * (command == "chat"))

    longer = answer("-c", CONTEXT + 1)
    assert longer.code == 0 and longer.stdout
    (line,) = longer.stderr.splitlines()
    assert line.startswith("warning: ") and f"Use at most --ctx-size={CONTEXT}." in line
    for size in ((), ("-c", CONTEXT), ("-c", 0)):
        assert answer(*size).stderr == ""


def test_a_longer_context_of_python(target: Path) -> None:
    arguments = {"draft": "none", "n_threads": 1}
    with pytest.warns(UserWarning, match=f"Use at most n_ctx={CONTEXT}"):
        EagleLlama(target, n_ctx=CONTEXT + 1, **arguments).close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        EagleLlama(target, n_ctx=CONTEXT, **arguments).close()
        EagleLlama(target, n_ctx=2 * CONTEXT, rope_freq_scale=0.5, **arguments).close()


def test_the_error_names_the_limit_that_a_prompt_met(target: Path) -> None:
    generate = ("generate", "-m", target, "-p", LONG, *OPTIONS)
    assert_one_line_error(llama_eagle(*generate), 3, f"trained with {CONTEXT} tokens", "Shorten the text")
    assert_one_line_error(llama_eagle(*generate, "-c", 64), 3, "use a larger --ctx-size")
    run = ("run", target, "-p", LONG, *OPTIONS)
    assert_one_line_error(llama_eagle(*run), 3, f"trained with {CONTEXT} tokens")
    assert_one_line_error(llama_eagle(*run, "-c", 64), 3, "use a larger --ctx-size")


@pytest.mark.parametrize(
    ("size", "remedy"),
    [(2 * CONTEXT, f"the model was trained with {CONTEXT} tokens"), (512, "a larger -c (with a smaller --parallel")],
)
def test_the_server(size: int, remedy: str, target: Path) -> None:
    request = {"messages": [{"role": "user", "content": LONG}], "max_tokens": 4}
    with serve("-m", target, "-d", "none", "-t", 1, "-c", size, "--parallel", 2) as server:
        assert server.get("/props")[1]["default_generation_settings"]["n_ctx"] == min(size, CONTEXT)
        status, answer = server.post("/v1/chat/completions", request)
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
        assert f"exceeds the available context size ({min(size, CONTEXT)} tokens); " in answer["error"]["message"]
        assert remedy in answer["error"]["message"]
        status, answer = server.post("/v1/messages", request)
        assert status == 400 and answer["error"]["message"].startswith("prompt is too long: ")
        assert f"> {min(size, CONTEXT)} maximum; " in answer["error"]["message"]
        assert remedy in answer["error"]["message"]


def test_the_server_warns(target: Path, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("abc\n")
    answer = ("answer", tmp_path / "prompts.txt", "-m", target, *OPTIONS, "-n", 2)
    found = llama_eagle(*answer, "-o", tmp_path / "a.jsonl", "-c", 2 * CONTEXT)
    assert f"has {CONTEXT} tokens instead of {2 * CONTEXT} (--ctx-size)" in found.stderr
    assert "warning" not in llama_eagle(*answer, "-o", tmp_path / "b.jsonl").stderr
