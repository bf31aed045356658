"""Block drafts that their makers' own classes save: the logits of these classes in our engine, or a refusal by name.

Needs pip install --no-deps angelslim==0.5.0 nemo-automodel==0.7.0 specforge==0.2.0. Only the files with the classes are
imported.
"""

from __future__ import annotations

import functools
import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from fixtures.dflash import GEOMETRY, RANK, DFlashSpec, dflash_tensors, make_dflash
from fixtures.native import NativeTarget
from llama_eagle.convert.drafts import DraftOptions, convert_draft
from llama_eagle.errors import ConversionError
from parity.dflash_reference import DFlashReference
from parity.native_draft import N_STEPS, TOLERANCE, DenseTarget, NativeDraft
from transformers import Qwen3Config

pytestmark = [pytest.mark.slow, pytest.mark.native]
ANGELSLIM = "angelslim.compressor.speculative.train.models.draft"
NEMO = "nemo_automodel.components.speculative.dflash"
CLASSES = {"AngelSlim": (f"{ANGELSLIM}.qwen_dflash", "QwenDFlashDraftModel"),
           "NeMo": (f"{NEMO}.draft_qwen3", "Qwen3DFlashDraftModel")}  # fmt: skip
MARKOV_HEADS = {
    "NeMo": ("nemo_automodel.components.speculative.dspark.markov_head", ("GatedMarkovHead", "RNNHead")),
    "SpecForge": ("specforge.modeling.draft.dspark", ("GatedMarkovHead", "RNNMarkovHead")),
}
MASK, IDS = 500, [1, 4, 6]
ROPE = {"rope_type": "default", "rope_theta": 1e6}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "another epsilon and base": {"rms_norm_eps": 0.05, "rope_parameters": {**ROPE, "rope_theta": 1e3}},
    "a partial rotation, copied from a target": {"rope_parameters": {**ROPE, "partial_rotary_factor": 0.25}},
    "linear": {"rope_parameters": {**ROPE, "rope_type": "linear", "factor": 4.0}},
    "windows": {
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "sliding_window": 512,
        "use_sliding_window": True,
    },
    "YaRN": {"rope_parameters": {**ROPE, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}},
}


@functools.cache
def import_file(name: str) -> Any:
    """Import one file of a package whose __init__ files need more; missing packages are replaced by nothing."""
    parents = [name.rsplit(".", n)[0] for n in range(name.count("."), 0, -1)]
    top = next((Path(place) for place in sys.path if Path(place, parents[0]).is_dir()), None)
    assert top, f"{parents[0]} is not installed"
    for parent in parents:
        package = ModuleType(parent)
        package.__path__ = [str(top.joinpath(*parent.split(".")))]
        sys.modules.setdefault(parent, package)
    mocked: set[str] = set()
    while len(mocked) < 16:
        try:
            found = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if str(error.name).startswith(parents[0]):
                raise
            mocked.add(str(error.name))
            sys.modules[str(error.name)] = MagicMock(__spec__=None, __path__=[])
        else:
            for module in mocked:
                del sys.modules[module]
            return found
    raise ImportError(f"{name} needs more packages: {mocked}")


def build(module: str, name: str, folder: Path, **changes: Any) -> Any:
    """Return a draft of this class with our random weights, saved by the class."""
    config = Qwen3Config.from_dict(
        GEOMETRY
        | {"num_hidden_layers": 3, "num_target_layers": 8, "block_size": 16, "layer_types": ["full_attention"] * 3}
        | {"dflash_config": {"mask_token_id": MASK, "target_layer_ids": IDS}, "aux_hidden_states_layer_ids": IDS}
        | changes
    )
    config._attn_implementation = "eager"
    model = getattr(import_file(module), name)(config).float()
    state = model.state_dict()
    ours = {key: tensor for key, tensor in dflash_tensors(DFlashSpec(dtype="float32"), seed=7).items() if key in state}
    model.load_state_dict(state | ours)
    model.save_pretrained(folder)
    return model.eval()


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> DenseTarget:
    return DenseTarget(tmp_path_factory.mktemp("target"))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("maker", CLASSES)
def test_the_logits_are_those_of_the_makers_class(
    maker: str, variant: str, target: DenseTarget, tmp_path: Path
) -> None:
    model = build(*CLASSES[maker], tmp_path / "draft", **VARIANTS[variant])
    convert_draft(tmp_path / "draft", target.gguf, tmp_path / "draft.gguf", DraftOptions(outtype="f32"))
    *tokens, last = np.random.default_rng(5).integers(0, 480, 81).tolist()
    features = target.features(tokens, [i + 1 for i in IDS])
    with torch.no_grad():
        hidden = model(
            position_ids=torch.arange(len(tokens) + N_STEPS + 1)[None],
            noise_embedding=target.embedding[[last] + [MASK] * N_STEPS][None],
            target_hidden=features[None],
        )
    expected = (hidden[0, 1:] @ target.head.T).numpy()
    with NativeTarget(target.gguf) as context:
        draft = NativeDraft(context, tmp_path / "draft.gguf", 64)
        draft.eval(tokens)
        found = np.stack([logits for logits, *_ in draft.chain(last)])
        draft.close()
    assert np.abs(found - expected).max() < TOLERANCE * np.abs(expected).max()


@pytest.mark.parametrize("gate", ["gated", "rnn"])
@pytest.mark.parametrize("maker", MARKOV_HEADS)
def test_the_reference_chooses_as_the_makers_markov_head(maker: str, gate: str, tmp_path: Path) -> None:
    """In the loop of the maker's own inference, which test_dflash_native.py compares with our engine."""
    module, names = MARKOV_HEADS[maker]
    head = getattr(import_file(module), names[gate == "rnn"])(vocab_size=512, markov_rank=RANK, hidden_size=64)
    make_dflash(tmp_path, DFlashSpec("dspark", gate=gate, dtype="float32"), seed=7)
    reference = DFlashReference(tmp_path, embedding=torch.zeros(512, 64), head=torch.zeros(512, 64))
    stored = {name.removeprefix("markov_head."): tensor for name, tensor in reference.w.items() if "markov" in name}
    head.load_state_dict(stored)
    logits, hidden = torch.randn(2, N_STEPS, 512), torch.randn(2, N_STEPS, 64)
    first = torch.tensor([3, 400])
    with torch.no_grad():
        tokens, corrected = head.sample_block_tokens(logits, first_prev_token_ids=first, hidden_states=hidden)
    for i in range(2):
        ours, picked = reference._pick(logits[i], hidden[i], int(first[i]))
        assert picked == tokens[i].tolist()
        assert (ours - corrected[i]).abs().max() < 1e-5 * corrected.abs().max()


OTHERS = {
    "DFlare": (f"{ANGELSLIM}.qwen_dflare", "QwenDFlareDraftModel", {}),
    "Domino": (*CLASSES["NeMo"], {"projector_type": "domino", "emb_dim": 8, "gru_hidden_dim": 8}),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_networks_are_refused_by_name(kind: str, target: DenseTarget, tmp_path: Path) -> None:
    module, name, settings = OTHERS[kind]
    settings = {"mask_token_id": MASK, "target_layer_ids": IDS, **settings}
    build(module, name, tmp_path / "draft", dflash_config=settings)
    with pytest.raises(ConversionError, match=f"a {kind} draft"):
        convert_draft(tmp_path / "draft", target.gguf, tmp_path / "draft.gguf")
