"""A block draft as it is trained against the torch reference of its format: states, logits, drafted tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from llama_eagle.train.dspark.draft import BlockDraft
from llama_eagle.train.export import export_block_draft
from llama_eagle.train.model import Geometry
from parity.dflash_reference import DFlashReference

V, H, N_AUX, N_STEPS, LENGTH, MASK = 48, 32, 3, 4, 9, 47


@pytest.mark.parametrize("n_draft", [20, V])
def test_every_block_of_a_text(n_draft: int, tmp_path: Path) -> None:
    random = torch.Generator().manual_seed(1)
    ids = torch.randperm(V, generator=random)[:n_draft].sort().values
    embedding, head = torch.randn(2, V, H, generator=random)
    geometry = Geometry(
        hidden_size=H, n_head=4, n_head_kv=2, head_dim=10, ffn_size=40, n_vocab=V, n_vocab_draft=n_draft, n_aux=N_AUX,
        n_ctx=64, rms_eps=1e-5, rope_base=100.0,
    )  # fmt: skip
    draft = BlockDraft(geometry, embedding[MASK], head[ids])
    for parameter in draft.parameters():
        mean = float(parameter.ndim == 1)
        value = mean + torch.randn(parameter.shape, generator=random) * (0.3 if mean else parameter.shape[-1] ** -0.5)
        parameter.data = value.bfloat16().float()  # as it will be stored
    export_block_draft(draft, tmp_path, draft_ids=ids, mask_token=MASK, n_steps=N_STEPS, aux_layers=(2, 4, 5))
    reference = DFlashReference(tmp_path, embedding=embedding, head=head)
    tokens = torch.randint(0, V, (2, LENGTH), generator=random)
    features = torch.randn(2, LENGTH, N_AUX * H, generator=random)
    with torch.no_grad():
        steps = draft.unroll(embedding[tokens], features, torch.empty(0), N_STEPS)
    assert [len(step[0]) for step in steps] == [LENGTH - 2 - k for k in range(N_STEPS)]
    for row in range(2):
        for slot in range(LENGTH - 2):
            first = int(tokens[row, slot + 1])
            expected = reference.block(features[row, : slot + 1], first, N_STEPS)
            n = min(N_STEPS, LENGTH - 2 - slot)
            with torch.no_grad():
                hidden = draft.norm(torch.stack([step[row, slot] for step in steps[:n]]))
                x, weight = draft.with_markov(hidden, torch.tensor([first, *expected.tokens][:n]))
            torch.testing.assert_close(hidden, expected.hidden[:n], rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(x @ weight.T, expected.logits[:n], rtol=1e-4, atol=1e-4)
            assert ids[(x @ weight.T).argmax(-1)].tolist() == expected.tokens[:n]
