"""The MTP reference against transformers' own norms, blocks and head: its model of one full-attention block."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from fixtures.targets import FAMILIES, HYBRID, make_target
from parity.mtp_reference import MTPReference, Step, TargetStates, load_tensors

TEXT_MODELS = {"qwen35": "Qwen3_5ForCausalLM", "qwen35moe": "Qwen3_5MoeForCausalLM"}
PROMPT = [7, 300, 41, 41, 511, 0, 129, 88, 402]
N_STEPS = 5


@pytest.fixture(scope="module", params=HYBRID)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_target(request.param, tmp_path_factory.mktemp(request.param), seed=5, dtype="float32", mtp=True)


def one_block_model(folder: Path) -> Any:
    """transformers' text model whose only block, final norm and head are those of the MTP head."""
    found = transformers.AutoConfig.from_pretrained(folder)
    text = found.get_text_config()
    text.num_hidden_layers, text.layer_types = 1, ["full_attention"]
    text._attn_implementation = "eager"
    family = next(f for f in HYBRID if FAMILIES[f][0] == type(found).__name__)
    model = getattr(transformers, TEXT_MODELS.get(family, FAMILIES[family][1]))(text).eval()
    tensors = load_tensors(folder)
    state = {f"model.{name}": tensor for name, tensor in tensors.items() if name.startswith(("layers.", "norm."))}
    state["lm_head.weight"] = tensors["lm_head.weight"]
    state["model.embed_tokens.weight"] = tensors["embed_tokens.weight"]
    model.load_state_dict(fuse_experts(state), strict=True)
    return model


def fuse_experts(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Experts as the modules hold them: [expert, 2 * ff, width] and [expert, width, ff]."""
    at = "model.layers.0.mlp.experts."
    parts = {name.removeprefix(at): state.pop(name) for name in list(state) if name.startswith(at)}
    experts = range(len(parts) // 3)
    if parts:
        gate_up = [torch.cat([parts[f"{e}.gate_proj.weight"], parts[f"{e}.up_proj.weight"]]) for e in experts]
        state[at + "gate_up_proj"] = torch.stack(gate_up)
        state[at + "down_proj"] = torch.stack([parts[f"{e}.down_proj.weight"] for e in experts])
    return state


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert (found - expected).abs().max() < 1e-5 * expected.abs().max()


def test_rows_are_those_of_transformers(folder: Path) -> None:
    reference = MTPReference(folder)
    hidden = TargetStates(folder).hidden(PROMPT)
    steps = reference.prefill(PROMPT, hidden[:-1])
    first = reference.chain(33, hidden[-1], N_STEPS)
    reference.trim(len(PROMPT))
    second = reference.chain(34, hidden[-1], N_STEPS)
    before = [torch.zeros(reference.width), *hidden]
    for chain, root in ((first, 33), (second, 34)):
        tokens = [*PROMPT, root, *(step.token for step in chain[:-1])]
        states = [*before, *(step.hidden for step in chain[:-1])]
        rows = torch.stack([reference.project(token, state) for token, state in zip(tokens, states, strict=True)])
        compare_with_model(one_block_model(folder), rows, [*steps, *chain])


def compare_with_model(model: Any, rows: torch.Tensor, steps: list[Step]) -> None:
    with torch.no_grad():
        out = model.model(inputs_embeds=rows[None], use_cache=False).last_hidden_state
        logits = model.lm_head(out)[0]
    assert_close(torch.stack([step.hidden for step in steps]), out[0])
    assert_close(torch.stack([step.logits for step in steps]), logits)
    assert [step.token for step in steps] == logits.argmax(-1).tolist()


def test_projection_takes_the_normed_embedding_first(folder: Path) -> None:
    reference, model = MTPReference(folder), one_block_model(folder)
    norm, state = model.model.norm, torch.randn(reference.width, generator=torch.Generator().manual_seed(1))
    parts = []
    with torch.no_grad():
        for name, x in (("embedding", model.model.embed_tokens.weight[9]), ("hidden", state)):
            norm.weight.copy_(reference.w[f"pre_fc_norm_{name}.weight"])
            parts.append(norm(x))
    assert_close(reference.project(9, state), reference.w["fc.weight"] @ torch.cat(parts))


def test_target_states_are_behind_the_final_norm(folder: Path) -> None:
    target = TargetStates(folder)
    with torch.no_grad():
        logits = target.model(torch.tensor([PROMPT]), use_cache=False).logits[0]
    assert_close(target.hidden(PROMPT) @ load_tensors(folder)["lm_head.weight"].T, logits)


def test_trimmed_head_scores_its_rows_alone(folder: Path) -> None:
    ids = [400, 3, 77, 500, 12]
    whole, trimmed = MTPReference(folder), MTPReference(folder, ids)
    state = torch.ones(whole.width)
    expected, found = whole.row(8, state), trimmed.row(8, state)
    assert torch.equal(found.hidden, expected.hidden)
    assert_close(found.logits, expected.logits[ids])
    assert found.token == ids[int(expected.logits[ids].argmax())]
