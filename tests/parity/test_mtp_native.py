"""The target's own MTP head as a drafter: logits and hidden states of the torch reference, whatever a round kept."""

from __future__ import annotations

import pytest
from parity.mtp_reference import MTPReference
from parity.native_mtp import MtpTarget, NativeMtp, Rounds

pytestmark = pytest.mark.native

FAMILIES = ("qwen35", "qwen35moe", "qwen3next")


@pytest.fixture(scope="module", params=FAMILIES)
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> MtpTarget:
    return MtpTarget(request.param, tmp_path_factory.mktemp(request.param))


@pytest.mark.parametrize("n_prompt", [1, 2, 33, 300])
def test_chains_after_prompts_and_rollbacks_of_every_length(n_prompt: int, target: MtpTarget) -> None:
    with target.open(n_ubatch=256) as context:
        draft = NativeMtp(context)
        rounds = Rounds(target, draft, MTPReference(target.folder))
        rounds.eval(n_prompt)
        for n_kept in (5, 0, 3, 6, 1, 4, 2):
            rounds.round(n_kept)
        draft.close()
