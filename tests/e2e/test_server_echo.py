"""`echo` with `logprobs`: the probabilities of a prompt's tokens, which evaluation programs request."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from fixtures.serving import Served, serve
from fixtures.streams import events
from fixtures.targets import FAMILIES, make_target
from fixtures.tiny_gguf import write_draft, write_target
from llama_eagle import EagleLlama
from llama_eagle.convert.targets import TargetOptions, convert_target

pytestmark = pytest.mark.native

N_TOKENS = 90  # several pieces of rows with logits
TEXT = "The quick brown fox jumps over the lazy dog. " * 3


@dataclass
class Model:
    """A target, its logarithms of probabilities for `tokens` by transformers, and its server."""

    path: Path
    tokens: list[int]
    logprobs: np.ndarray
    server: Served

    def request(self, prompt: Any, **more: Any) -> dict[str, Any]:
        body = {"prompt": prompt, "echo": True, "logprobs": 2, "max_tokens": 1, "temperature": 0, **more}
        status, answer = self.server.post("/v1/completions", body)
        assert status == 200, answer
        return dict(answer)

    def found(self, prompt: Any, **more: Any) -> dict[str, list[Any]]:
        return dict(self.request(prompt, **more)["choices"][0]["logprobs"])


@pytest.fixture(scope="module", params=["llama3", "qwen35"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    folder = make_target(request.param, tmp_path_factory.mktemp(request.param))
    convert_target(str(folder), folder / "target.gguf", TargetOptions(outtype="f32"))
    tokens = np.random.default_rng(2).integers(0, 256, N_TOKENS).tolist()
    reference = getattr(transformers, FAMILIES[request.param][1]).from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logprobs = reference.eval()(torch.tensor([tokens]), use_cache=False).logits[0].log_softmax(-1).numpy()
    given = ("-m", folder / "target.gguf", "-d", "none", "-c", 512, "-t", 1, "--parallel", 2)
    with serve(*given) as server:
        yield Model(folder / "target.gguf", tokens, logprobs, server)


def test_values_are_those_of_transformers(model: Model) -> None:
    for _ in range(2):  # the second time the slot has the prompt
        found = model.found(model.tokens)
        assert len(found["tokens"]) == N_TOKENS + 1
        assert found["token_logprobs"][0] is found["top_logprobs"][0] is None
        expected = model.logprobs[np.arange(N_TOKENS - 1), model.tokens[1:]]
        assert np.abs(np.array(found["token_logprobs"][1:-1]) - expected).max() < 1e-3
        for row, token in zip(model.logprobs, found["content"][1:-1], strict=False):  # some tokens have the same text
            likeliest = [other["logprob"] for other in token["top_logprobs"]]
            assert np.abs(np.array(likeliest) - np.sort(row)[::-1][:2]).max() < 1e-3
        assert abs(found["token_logprobs"][-1] - model.logprobs[-1].max()) < 1e-3


def test_lists_are_those_of_eagle_llama(model: Model) -> None:
    """For a text, whose BOS is not in it."""
    options: dict[str, Any] = {"draft": "none", "n_ctx": 512, "n_threads": 1, "verbose": False, "logits_all": True}
    with EagleLlama(model.path, **options) as llm:
        expected: Any = llm.create_completion(TEXT, echo=True, logprobs=1, max_tokens=1, temperature=0)
    found = model.request(TEXT, logprobs=1)
    assert found["choices"][0]["text"].startswith(TEXT) and expected["choices"][0]["text"].startswith(TEXT)
    own, theirs = found["choices"][0]["logprobs"], expected["choices"][0]["logprobs"]
    assert len(own["tokens"]) == len(theirs["tokens"])
    assert own["token_logprobs"][0] is theirs["token_logprobs"][0] is None
    assert np.abs(np.array(own["token_logprobs"][1:]) - theirs["token_logprobs"][1:]).max() < 1e-3
    for mine, other in zip(own["top_logprobs"][1:], theirs["top_logprobs"][1:], strict=True):
        assert abs(max(mine.values()) - max(other.values())) < 1e-3
    assert "".join(own["tokens"][:-1]) == TEXT
    assert own["text_offset"] == np.cumsum([0, *map(len, own["tokens"][:-1])]).tolist()


def test_every_form_of_a_request_has_the_same_values(model: Model) -> None:
    texts = [TEXT, "abc", TEXT[::-1]]
    alone = [model.found(text) for text in texts]
    assert [choice["logprobs"] for choice in model.request(texts)["choices"]] == alone
    for choice in model.request(TEXT, n=2)["choices"]:
        assert choice["logprobs"] == alone[0]
    prompts_alone = model.request(texts, max_tokens=0)["choices"]
    for choice, text, whole in zip(prompts_alone, texts, alone, strict=True):
        assert choice["text"] == text and choice["logprobs"]["token_logprobs"] == whole["token_logprobs"][:-1]
    for n in (0, 1, 3):
        whole = model.request(texts, max_tokens=n)["choices"]
        body = {"prompt": texts, "echo": True, "logprobs": 2, "max_tokens": n, "temperature": 0}
        streamed: dict[int, dict[str, Any]] = {i: {"text": ""} for i in range(3)}
        for event in events(model.server, "/v1/completions", body):
            for choice in event["choices"]:
                own = streamed[choice["index"]]
                own["text"] += choice["text"]
                for key, values in (choice["logprobs"] or {}).items():
                    own[key] = own.get(key, []) + values
        for choice in whole:
            own = streamed[choice["index"]]
            assert own.pop("text") == choice["text"] and own == choice["logprobs"]


def test_the_alternatives_are_as_many_as_wanted(model: Model) -> None:
    assert all(len(top) == 1 for top in model.found("abcdef", logprobs=0)["top_logprobs"][1:])
    assert {len(token["top_logprobs"]) for token in model.found("abcdef", logprobs=7)["content"][1:]} == {7}
    for more, word in (({"logprobs": 101}, "at most 100"), ({"post_sampling_probs": True}, "post_sampling_probs")):
        body = {"prompt": "abc", "echo": True, "logprobs": 1, **more}
        status, answer = model.server.post("/v1/completions", body)
        assert status == 400 and word in answer["error"]["message"]


def test_offsets_count_characters(tmp_path: Path) -> None:
    """Tokens may hold a part of a character. The answer is the same as without probabilities."""
    pair = ("-m", write_target(tmp_path / "target.gguf"), "-d", write_draft(tmp_path / "draft.gguf"))
    with serve(*pair, "-c", 512, "-t", 1) as server:
        body = {"prompt": "aé€b", "echo": True, "logprobs": 0, "max_tokens": 3, "temperature": 0}
        choice = server.post("/v1/completions", body)[1]["choices"][0]
        assert (
            choice["text"] == "aé€bcde"
            and choice["logprobs"]["text_offset"] == [0, 1, 2, 2, 3, 3, 3, 4, 5, 6][: len(choice["logprobs"]["tokens"])]
        )
        plain = server.post("/v1/completions", {**body, "echo": False, "logprobs": None})[1]["choices"][0]
        assert choice["text"] == body["prompt"] + plain["text"]
        mixed = {**body, "prompt": ["ab", ord("c"), "d"]}
        assert server.post("/v1/completions", mixed)[1]["choices"][0]["text"] == "abcdefg"
