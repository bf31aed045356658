"""Targets whose recurrent states are replayed: look-up by default, and drafts, with the text of plain decoding."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gguf
import pytest
from fixtures import tiny_gguf
from fixtures.dflash import CASES, make_dflash
from fixtures.llama_pairs import complete
from fixtures.serving import serve
from llama_eagle.convert.drafts import DraftOptions, convert_draft
from llama_eagle.synthetic.recurrent import MAMBA2, SHORT_CONVOLUTION, Shape, write_recurrent

pytestmark = pytest.mark.native

N_VOCAB = 512
SHAPE = Shape(n_layer=8, n_vocab=N_VOCAB, state=64, v_heads=4, channels=32)
COMMON = ("lfm2", "granitehybrid")
ARCHS = [
    *COMMON,
    *(pytest.param(name, marks=pytest.mark.slow) for name in SHORT_CONVOLUTION + MAMBA2 if name not in COMMON),
]
PROMPT = "one two three, one two three, one two"


def _add_tokenizer(writer: gguf.GGUFWriter) -> None:
    tiny_gguf.add_tokenizer(writer, tiny_gguf.Variant(n_vocab=N_VOCAB))


@pytest.fixture(scope="module", params=ARCHS)
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param) / "target.gguf"
    return write_recurrent(path, request.param, SHAPE, add_tokenizer=_add_tokenizer)


def draft_of(kind: str, target: Path, folder: Path) -> Path:
    """Write a DSpark draft, or a small model of the target's architecture."""
    if kind == "small":
        shape = Shape(n_vocab=N_VOCAB, state=64, v_heads=4, channels=32)
        arch = gguf.GGUFReader(target).fields["general.architecture"].contents()
        return write_recurrent(folder / "small.gguf", arch, shape, 7, _add_tokenizer)
    source, draft = make_dflash(folder / "dspark", CASES["dspark-no-confidence"]), folder / "dspark.gguf"
    convert_draft(source, target, draft, DraftOptions(outtype="f16"))
    return draft


def load(target: Path, **options: Any) -> Any:
    from llama_eagle import EagleLlama

    return EagleLlama(str(target), n_ctx=512, n_threads=1, verbose=False, **options)


def texts(llm: Any) -> list[str]:
    options: list[dict[str, Any]] = [{"temperature": 0}, {"temperature": 1.2, "top_k": 5}]
    return [complete(llm, PROMPT, max_tokens=48, **each)["text"] for each in options]


def test_look_up_is_the_default(target: Path) -> None:
    with load(target, draft="none") as plain, load(target, n_draft=4) as llm:
        assert texts(llm) == texts(plain)
        assert llm.speculative_totals.drafter == "look-up"
        assert llm.speculative_totals.n_drafted > 0


@pytest.mark.parametrize("kind", ["small", "dspark"])
def test_drafts(kind: str, target: Path, tmp_path: Path) -> None:
    draft = draft_of(kind, target, tmp_path)
    with load(target, draft="none") as plain, load(target, draft=str(draft), n_draft=3, lookup=False) as llm:
        assert texts(llm) == texts(plain)
        assert llm.speculative_totals.n_drafted > 0
        state = llm.save_state()
        after = texts(llm)
        llm.load_state(state)
        assert texts(llm) == after


def test_slots_of_the_server(target: Path) -> None:
    """Several at once, each with prompt look-up, which is the default."""
    prompts = [f"{PROMPT}{' three' * i}" for i in range(6)]
    with load(target, draft="none") as plain:
        expected = [complete(plain, prompt, max_tokens=40, temperature=0)["text"] for prompt in prompts]
    arguments = ("-m", target, "--n-draft", 4, "--parallel", 3, "-c", 1536, "-t", 1)
    with serve(*arguments) as server, ThreadPoolExecutor(3) as clients:
        answers = list(clients.map(lambda prompt: server.complete(prompt, 40, temperature=0), prompts * 2))
    found = [answer["content"].replace("\ufffd", "") for answer in answers]  # bytes that are no text
    assert found == expected * 2
    assert sum(answer["timings"].get("draft_n", 0) for answer in answers) > 0
