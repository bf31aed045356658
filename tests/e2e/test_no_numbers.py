"""A model whose logits are NaN, infinite or all equal: one line in every front end, not "!!!!" for ever."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from fixtures.command import assert_one_line_error, llama_eagle
from fixtures.serving import serve
from fixtures.tiny_gguf import Variant, write_target
from llama_eagle import EagleLlama
from llama_eagle.errors import InputError

pytestmark = pytest.mark.native

SAID = "the model computes no numbers at token"
KINDS = {
    "nan": "largest logit is not finite|logits are NaN",
    "overflow": "largest logit is not finite|NaN or infinite",
    "zeros": "all logits are equal",
}
SAMPLED = ("--temp", 0.8, "--seed", 1)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Models with a right header: of NaN, of a value that overflows, of zeros, and with one row of NaN in the head."""
    folder = tmp_path_factory.mktemp("numbers")
    sound = Path(write_target(folder / "sound.gguf", Variant(spread=1.0)))
    found = {"sound": sound}
    for name, tensor, rows, value in (
        ("nan", "blk.1.ffn_down.weight", slice(None), np.nan),
        ("overflow", "output.weight", slice(None), 3e38),
        ("zeros", "output.weight", slice(None), 0.0),
        ("row", "output.weight", slice(5, 6), np.nan),
    ):
        found[name] = Path(shutil.copy(sound, folder / f"{name}.gguf"))
        tensors = gguf.GGUFReader(found[name], "r+").tensors
        next(each for each in tensors if each.name == tensor).data[rows] = value
    return found


def generate(model: Path, *options: object) -> Any:
    return llama_eagle("generate", "--raw", "-m", model, "-p", "abc", "-n", 8, "-t", 1, *options)


@pytest.mark.parametrize("options", [("--temp", 0), SAMPLED, (*SAMPLED, "--top-k", 0), ("--temp", 0, "-d", "none")])
@pytest.mark.parametrize("kind", KINDS)
def test_generate(kind: str, options: tuple[object, ...], models: dict[str, Path]) -> None:
    done = generate(models[kind], *options)
    assert_one_line_error(done, 3, SAID, f"{SAID} 3 ", "check FILE --measure")
    assert any(reason in done.stderr for reason in KINDS[kind].split("|"))
    assert "qwen35" in done.stderr


def test_one_row_of_nan(models: dict[str, Path]) -> None:
    """A greedy choice passes over it, as llama.cpp's does. Its samplers would make NaN of all probabilities."""
    assert generate(models["row"], "--temp", 0).stdout == generate(models["sound"], "--temp", 0).stdout
    assert_one_line_error(generate(models["row"], *SAMPLED), 3, SAID, "logits are NaN or infinite")


def test_other_commands(models: dict[str, Path], tmp_path: Path) -> None:
    done = llama_eagle("chat", "-m", models["zeros"], "-t", 1, stdin="hello\n")
    assert done.code == 3 and SAID in done.stderr and "!" not in done.stdout
    prompts, answers = tmp_path / "p.jsonl", tmp_path / "a.jsonl"
    prompts.write_text('"abc"\n"xyz"\n')
    done = llama_eagle("answer", prompts, "-m", models["nan"], "-o", answers, "-n", 4, "-c", 128, "-t", 1, "--raw")
    assert done.code == 5
    assert ["computes no numbers" in json.loads(line)["error"] for line in answers.read_text().splitlines()] == [1, 1]


@pytest.mark.parametrize("kind", KINDS)
def test_eagle_llama(kind: str, models: dict[str, Path]) -> None:
    with EagleLlama(models[kind], n_ctx=64, n_threads=1, verbose=False) as llm:
        for temperature in (0.0, 0.8):
            with pytest.raises(InputError, match=SAID):
                llm.create_completion("abc", max_tokens=8, temperature=temperature)


def test_processors_and_biases_may_make_all_logits_equal(models: dict[str, Path]) -> None:
    """The model's own row is checked, before them."""

    def flatten(_ids: Any, logits: Any) -> Any:
        return np.zeros_like(logits)

    with EagleLlama(models["sound"], n_ctx=64, n_threads=1, verbose=False) as llm:
        found = llm.create_completion("abc", max_tokens=4, logits_processor=[flatten], seed=1)
        assert found["usage"]["completion_tokens"] == 4
        found = llm.create_completion("abc", max_tokens=4, logit_bias={100: 100.0}, temperature=0)
        assert found["choices"][0]["text"] == "dddd"


def test_serve(models: dict[str, Path]) -> None:
    """Each request gets the error with any sampling, and the server continues."""
    requests: list[dict[str, Any]] = [
        {"temperature": 0}, {"temperature": 0.8}, {"temperature": 0.8, "top_k": 0}, {"n_probs": 2},
        {"grammar": 'root ::= "abc"'},
    ]  # fmt: skip
    for kind in ("nan", "zeros"):
        with serve("-m", models[kind], "-c", 64, "-t", 1) as server:
            for options in requests:
                status, answer = server.post("/completion", {"prompt": "abc", "n_predict": 8, **options})
                assert status in (400, 500), answer
                assert "the model computes no numbers" in answer["error"]["message"]
            assert server.get("/health")[0] == 200
