"""The padded demo pair says what the demo pair says: its new entries are zero, its norms make up for the width."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from llama_eagle.demo import widen
from llama_eagle.demo.run import DRAFT, HEAD, TARGET, join_head


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target with its MTP head."""
    return join_head(TARGET, HEAD, tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def padded(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    with pytest.MonkeyPatch.context() as patch:  # a fortieth of the size: the rules are the same
        for name, value in {"WIDTH": 320, "FFN": 640, "N_LAYERS": 12}.items():
            patch.setattr(widen, name, value)
        return widen.widen_pair(whole, DRAFT, tmp_path_factory.mktemp("padded"))


@pytest.fixture(scope="module")
def files(whole: Path, padded: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, Path]]:
    """Target and draft of the padded pair, and of the demo pair."""
    from llama_eagle.synthetic.ggufs import convert_pair

    return [convert_pair(*pair, tmp_path_factory.mktemp("files"), "f16") for pair in (padded, (whole, DRAFT))]


def logits(folder: Path, tokens: torch.Tensor) -> torch.Tensor:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return model(tokens).logits[0]


def test_the_target_computes_the_same(padded: tuple[Path, Path]) -> None:
    tokens = torch.randint(0, 4096, (1, 48), generator=torch.Generator().manual_seed(1))
    found, expected = logits(padded[0], tokens), logits(TARGET, tokens)
    # Not to the last bit: the norms' epsilon weighs a little more over a wider row.
    assert (found - expected).abs().max() < 2e-3 * expected.abs().max()
    assert (found.argmax(-1) == expected.argmax(-1)).float().mean() > 0.95


@pytest.mark.native
@pytest.mark.parametrize("drafter", ["EAGLE-3", "MTP"])
def test_its_drafts_are_accepted_as_before(files: list[tuple[Path, Path]], drafter: str) -> None:
    from llama_eagle.bench.evaluate import Evaluation, evaluate, total
    from llama_eagle.bench.prompts import read_prompts, take
    from llama_eagle.demo.run import HELD_OUT
    from llama_eagle.drafting.options import DraftingOptions
    from llama_eagle.sessions.options import MTP

    prompts = take(read_prompts([str(HELD_OUT)]), 2)
    found = []
    for target, draft in files:
        drafts = DraftingOptions(MTP if drafter == "MTP" else draft, 4)
        found.append(total(evaluate(Evaluation(target, prompts, 96, drafts, threads=1)).values()))
    assert found[0].n_same == found[0].n_turns == 4
    emitted = [score.statistics.mean_emitted for score in found]
    assert emitted[0] == pytest.approx(emitted[1], abs=0.15)
