"""llama.cpp's own draft-mtp on our files, token by token: against the torch reference, and ours against it.

bench/upstream/mtp_rounds.cpp drives it; the first run compiles it from the pinned source, for minutes.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from fixtures.targets import VOCAB_SIZE, make_target
from llama_eagle.bench.peer import Peer, build_peer
from llama_eagle.convert.targets import TargetOptions, convert_target
from llama_eagle.synthetic.ggufs import PairFolder
from parity.mtp_script import Script

pytestmark = [pytest.mark.slow, pytest.mark.native]

FAMILIES = ("qwen35", "qwen35moe", "qwen3next")


@pytest.fixture(scope="module")
def peer() -> Peer:
    return build_peer()


@pytest.fixture(scope="module", params=FAMILIES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_target(request.param, tmp_path_factory.mktemp(request.param), seed=8, dtype="float32", mtp=True)
    convert_target(folder, folder / "model.gguf", TargetOptions(outtype="f32"))
    return folder


@pytest.mark.parametrize(("n_prompt", "n_draft"), [(1, 3), (2, 1), (33, 5)])
def test_upstream_drafts_as_the_reference(
    peer: Peer, checkpoint: Path, tmp_path: Path, n_prompt: int, n_draft: int
) -> None:
    script = Script.random(n_prompt, n_draft, 60, VOCAB_SIZE, seed=n_prompt)
    found = script.drafted_by_upstream(peer, checkpoint / "model.gguf", tmp_path)
    assert found == list(script.drafted_by_reference(checkpoint))


@pytest.mark.parametrize("n_draft", [1, 5, 16])
def test_ours_drafts_as_upstream(peer: Peer, checkpoint: Path, tmp_path: Path, n_draft: int) -> None:
    script, model = Script.random(33, n_draft, 500, VOCAB_SIZE, seed=n_draft), checkpoint / "model.gguf"
    assert list(script.drafted_by_ours(model)) == script.drafted_by_upstream(peer, model, tmp_path)


def test_ours_drafts_as_upstream_where_drafts_are_accepted(peer: Peer, tmp_path: Path) -> None:
    """A constructed target in Q8_0: greedy text, each round keeps what the head had right."""
    made = PairFolder(tmp_path / "tiny", "tiny").mtp(0.7, "q8_0")
    script = Script.greedy(made.cycle, n_draft=4, n_rounds=500)
    assert list(script.drafted_by_ours(made.target)) == script.drafted_by_upstream(peer, made.target, tmp_path)
