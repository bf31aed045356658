"""`EagleLlama` on GPUs: the CPU's text with and without a draft, at every offload and with images.

The GPUs are stand-ins, or those of the build (fixtures.gpus). With a real model's shapes the tests are slow ones.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fixtures.gpus import IS_REAL, gpus, kinds
from fixtures.vision_files import make_vision_files, png
from llama_eagle.demo.run import DRAFT, QUESTION, TARGET
from llama_eagle.sessions.options import MTP
from llama_eagle.synthetic.constructed import write_pair
from llama_eagle.synthetic.cycle import word
from llama_eagle.synthetic.ggufs import PairFolder, convert_pair

pytestmark = pytest.mark.native

OFFLOADS = (0, 1, 4, -1)
LONG = "The documentation describes settings, views and signals of an application in more detail. " * 3


@dataclass(frozen=True)
class Pair:
    target: Path
    draft: Path | str
    prompt: str
    mmproj: Path | None = None
    is_chat: bool = False
    draft_vocab: int | None = None
    n_tokens: int = 40
    offloads: tuple[int, ...] = OFFLOADS


@dataclass(frozen=True)
class Answer:
    text: str
    n_accepted: int


@pytest.fixture(scope="module", params=kinds().values(), ids=kinds().keys())
def elsewhere(request: pytest.FixtureRequest) -> Iterator[Executor]:
    with gpus(request.param) as pool:
        yield pool


@pytest.fixture(scope="module", params=["demo", "synthetic", "trimmed head"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "demo":
        return Pair(*convert_pair(TARGET, DRAFT, folder, "f32"), LONG + QUESTION, is_chat=True)
    if request.param == "trimmed head":
        target = PairFolder(folder, "tiny").mtp(0.7, "f32").target
        return Pair(target, MTP, "Count: A B C", draft_vocab=512, n_tokens=24)
    made = write_pair(folder)
    return Pair(*convert_pair(made.target, made.draft, folder, "f32"), "Count: A B C")


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Qwen3.5-0.8B's shapes, 24 blocks; 1 GB. The prompt is long enough to be offloaded."""
    folder = tmp_path_factory.mktemp("large")
    files = PairFolder(folder, "0.8b").files(0.7, "q8_0")
    prompt = "Count:" + "".join(f" {word(rank)}" for rank in range(40))
    yield Pair(files.target, files.draft, prompt, n_tokens=16, offloads=(0, 4, 12, -1))
    shutil.rmtree(folder)


@pytest.fixture(scope="module", params=["eagle3", "mtp"])
def with_images(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    files = make_vision_files("qwen35", tmp_path_factory.mktemp(request.param), mtp=request.param == "mtp")
    return Pair(files.target, files.draft, "<__media__>what is this<__media__>", files.mmproj)


@functools.cache
def answer(pair: Pair, n_gpu_layers: int, draft: bool) -> Answer:
    from llama_eagle import EagleLlama

    options: dict[str, Any] = (
        {"draft": pair.draft, "n_draft": 4, "draft_vocab": pair.draft_vocab} if draft else {"draft": "none"}
    )
    options |= {"n_ctx": 1024, "n_threads": 1, "n_gpu_layers": n_gpu_layers, "mmproj_path": pair.mmproj}
    with EagleLlama(pair.target, **options) as llm:
        prompt: Any = pair.prompt
        if pair.mmproj is not None:
            prompt = llm.tokenize_images(prompt, [png(1), png(2, 160, 96)])
        if pair.is_chat:
            messages = [{"role": "user", "content": prompt}]
            said = llm.create_chat_completion(messages, max_tokens=pair.n_tokens, temperature=0)["choices"][0]
            text = said["message"]["content"]
        else:
            text = llm.create_completion(prompt, max_tokens=pair.n_tokens, temperature=0)["choices"][0]["text"]
        return Answer(text, llm.speculative_stats.n_accepted if draft else 0)


def require_same_text(pool: Executor, pair: Pair) -> None:
    """A real device's vision encoder rounds its own way, which a target of random weights spells out: there the text is
    that of the same device without a draft. Behind given rows tests/parity/test_gpus.py compares it with the CPU's."""
    expected = answer(pair, 0, draft=False).text
    assert expected
    for n_gpu_layers in pair.offloads:
        if IS_REAL and pair.mmproj and n_gpu_layers:
            expected = pool.submit(answer, pair, n_gpu_layers, False).result().text
        # tests/parity/test_gpus.py compares the logits of each offload.
        for draft in (False, True) if IS_REAL or n_gpu_layers < 0 else (True,):
            found = pool.submit(answer, pair, n_gpu_layers, draft).result()
            assert found.text == expected, f"{n_gpu_layers} layers on the GPU, draft: {draft}"
            assert not draft or pair.mmproj or found.n_accepted > 0  # a draft of random weights is rarely right


def test_text(elsewhere: Executor, pair: Pair) -> None:
    require_same_text(elsewhere, pair)


@pytest.mark.slow
def test_text_of_a_large_pair(elsewhere: Executor, large: Pair) -> None:
    require_same_text(elsewhere, large)


def test_text_behind_images(elsewhere: Executor, with_images: Pair) -> None:
    require_same_text(elsewhere, with_images)
