"""Drafts and MTP heads to start from: trained as their configuration says, or refused by the name of the part."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from fixtures.eagle3_checkpoints import CASES, N_VOCAB, PLAIN, YARN, DraftSpec, make_draft
from fixtures.targets import make_target
from fixtures.training import make_training_target
from llama_eagle.errors import ConfigError, InputError
from llama_eagle.train.export import DraftOf, export_draft
from llama_eagle.train.initial import choose_ids, read_earlier
from llama_eagle.train.initial import make_draft as start_from
from llama_eagle.train.model import Eagle3Draft
from llama_eagle.train.mtp.head import require_earlier_head
from llama_eagle.train.settings import Settings
from llama_eagle.train.targets.checkpoint import Frozen, TargetInfo, read_target
from parity.eagle3_reference import Eagle3Reference
from safetensors.torch import load_file, save_file

N_STEPS, LENGTH = 4, 9
REFUSED = {
    "safeailab-h-differs": "hidden size 32, the target has 64",
    "speculators-norm-before-fc": r"the tensor input_norm\.weight",
    "speculators-two-layers": "2 layers",
    "specforge-windows": "3 layers",
    "nvidia-v3": r"the tensor input_norm\.weight",
    "biases": r"the tensor fc\.bias",
    "everything": "3 layers",
    "rope-mrope-partial": "partial_rotary_factor: 16 of 32 values of a head",
    "rope-partial": "partial_rotary_factor: 16 of 32 values of a head",
}
MORE = {
    "norm-output": DraftSpec(norm_output=True, norm_before_residual=True),
    "old-mrope": DraftSpec(rope={**PLAIN, "mrope_section": [4, 2, 2], "mrope_interleaved": True}, legacy_rope=True),
    "heads": DraftSpec(n_head=8, n_head_kv=1, head_dim=24),
    "mrope-yarn": DraftSpec(rope={**YARN, "mrope_section": [3, 3, 2]}),
    "base": DraftSpec(rope={**PLAIN, "rope_theta": 37.0}),
}
DRAFTS = {**{name: spec for name, spec in CASES.items() if name not in REFUSED}, **MORE}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_target("qwen3", tmp_path_factory.mktemp("target"), seed=3)


@pytest.fixture(scope="module")
def frozen(target: Path) -> Frozen:
    state = load_file(target / "model.safetensors")
    embedding, head, norm = (state[f"{n}.weight"].float() for n in ("model.embed_tokens", "lm_head", "model.norm"))
    return Frozen(embedding, head, norm)


def assert_same_network(draft: Eagle3Draft, folder: Path, frozen: Frozen) -> None:
    """Logits of each step of each slot, at M-RoPE positions, with the plain reference of the stored checkpoint."""
    random, g = torch.Generator().manual_seed(4), draft.geometry
    tokens = torch.randint(0, N_VOCAB, (LENGTH,), generator=random)
    features = torch.randn(LENGTH, g.n_aux * g.hidden_size, generator=random)
    places = torch.randint(0, 90, (LENGTH, 3), generator=random) if g.sections else None
    reference = Eagle3Reference(folder, embedding=frozen.embedding, head=frozen.head)
    positions = None if places is None else places[None]
    with torch.no_grad():
        embedded = reference.embedding[tokens][None]
        steps = draft.unroll(embedded, features[None], features[None], N_STEPS, positions=positions)
        for slot in range(LENGTH - 2):
            reference.reset()
            for i in range(slot):
                reference.slot(int(tokens[i + 1]), reference.fuse(features[i]), i if places is None else places[i])
            hidden = reference.fuse(features[slot])
            for k in range(min(N_STEPS, LENGTH - 2 - slot)):
                at = slot + k
                expected = reference.slot(int(tokens[at + 1]), hidden, at if places is None else places[at])
                found = draft.lm_head(draft.norm(steps[k][0, slot]))
                torch.testing.assert_close(found, expected.logits, rtol=1e-3, atol=1e-4)
                hidden = expected.hidden


@pytest.mark.parametrize("layout", ["specforge", "speculators"])
@pytest.mark.parametrize("name", DRAFTS)
def test_the_network_is_the_drafts(name: str, layout: str, target: Path, frozen: Frozen, tmp_path: Path) -> None:
    """As it is stored, and as it is written after no step."""
    spec = DRAFTS[name]
    folder = make_draft(tmp_path / "draft", replace(spec, embedding=False), seed=7)
    earlier = read_earlier(folder, str(target))
    draft = start_from(earlier.geometry, frozen, earlier.draft_ids, 0, earlier)
    assert_same_network(draft, folder, frozen)
    written = tmp_path / "written"
    goal = DraftOf(str(target), "Qwen3ForCausalLM", earlier.aux_layers)
    export_draft(draft, written, layout=layout, draft_ids=earlier.draft_ids, embedding=frozen.embedding, target=goal)
    again = read_earlier(written, str(target))
    assert again.geometry == earlier.geometry and again.draft_ids.equal(earlier.draft_ids)
    draft.load_state_dict({name: value.bfloat16().float() for name, value in draft.state_dict().items()})
    assert_same_network(draft, written, frozen)


@pytest.mark.parametrize("name", REFUSED)
def test_other_parts_are_refused_by_name(name: str, target: Path, tmp_path: Path) -> None:
    folder = make_draft(tmp_path / "draft", CASES[name], seed=7)
    with pytest.raises(InputError, match=f"draft: no draft to start from: it has {REFUSED[name]}"):
        read_earlier(folder, str(target))


def test_advice_names_no_option_of_convert(target: Path, tmp_path: Path) -> None:
    folder = make_draft(tmp_path / "draft", DraftSpec(head=False), seed=7)
    with pytest.raises(InputError, match=r"no lm_head\.weight for the 160 draft tokens$"):
        read_earlier(folder, str(target))
    weights = folder / "model.safetensors"
    save_file({**load_file(weights), "other.weight": torch.ones(4)}, weights)
    with pytest.raises(InputError, match=r"tensor 'other\.weight' is unknown in an EAGLE-3 draft$"):
        read_earlier(folder, str(target))


def test_embeddings_of_another_model_are_refused(target: Path, frozen: Frozen, tmp_path: Path) -> None:
    folder = make_draft(tmp_path / "draft", DraftSpec(embedding=True), seed=7)
    earlier = read_earlier(folder, str(target))
    with pytest.raises(ConfigError, match=r"its embed_tokens\.weight is not the target's"):
        start_from(earlier.geometry, frozen, earlier.draft_ids, 0, earlier)
    assert earlier.embedding is not None
    like = replace(earlier, embedding=frozen.embedding + 0.1 * frozen.embedding.std() * torch.randn(N_VOCAB, 64))
    start_from(earlier.geometry, frozen, earlier.draft_ids, 0, like)


@pytest.mark.parametrize(("ids", "is_in"), [((0, 511), True), ((0, 512), False), ((-1, 3), False)])
def test_the_vocabulary_of_an_earlier_draft(ids: tuple[int, int], is_in: bool, tmp_path: Path) -> None:
    earlier: Any = Mock(folder=tmp_path, draft_ids=torch.tensor(ids))
    settings, counts = Settings(tmp_path, "target", ("x",)), np.zeros(512, np.int64)
    if is_in:
        assert choose_ids(settings, counts, (), earlier).tolist() == list(ids)
    else:
        with pytest.raises(ConfigError, match="tokens that this target lacks"):
            choose_ids(settings, counts, (), earlier)


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TargetInfo]:
    """A checkpoint with an MTP head, and a target without one."""
    folder, bare = (tmp_path_factory.mktemp(name) for name in ("heads", "bare"))
    make_training_target("qwen35", folder, mtp=True, dtype="float32")
    return folder, read_target(make_training_target("qwen35", bare, dtype="float32"), ())


def _with_base(config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    config.get("text_config", config)["rope_parameters"]["rope_theta"] = 5e5


def _with_two_layers(config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    tensors["mtp.layers.1.input_layernorm.weight"] = torch.ones(64)


OTHER_HEADS: dict[str, tuple[Callable[[dict[str, Any], dict[str, torch.Tensor]], object], str]] = {
    "another rope_theta": (_with_base, "rope_base 500000.0, the target has"),
    "two layers": (_with_two_layers, "mtp.layers.1.input_layernorm.weight, which the trainer does not support"),
    "no norm": (lambda config, tensors: tensors.pop("mtp.norm.weight"), "no mtp.norm.weight"),
}


@pytest.mark.parametrize("kind", OTHER_HEADS)
def test_an_mtp_head_of_another_kind_is_refused(kind: str, heads: tuple[Path, TargetInfo], tmp_path: Path) -> None:
    change, message = OTHER_HEADS[kind]
    earlier, target = heads
    folder = Path(shutil.copytree(earlier, tmp_path / "head"))
    config, tensors = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    change(config, tensors)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    require_earlier_head(target, earlier)
    with pytest.raises(ConfigError, match=re.escape(message)):
        require_earlier_head(target, folder)
