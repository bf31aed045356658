"""A draft before its first step."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from llama_eagle.errors import ConfigError, InputError, UsageError
from llama_eagle.train.data.vocabulary import choose_vocabulary
from llama_eagle.train.model import Eagle3Draft, Geometry, Sections
from llama_eagle.train.settings import Settings
from llama_eagle.train.targets.checkpoint import Frozen, TargetInfo
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

LAYER_IDS = "eagle_aux_hidden_state_layer_ids"  # key of config.json
FC_NOISE = 0.3  # factor of fc's random weights, next to the identity


@dataclass(frozen=True)
class Earlier:
    """A trained draft to start from. tensors: by the names of `Eagle3Draft`; draft_ids: [D], what it can propose;
    sections: of its M-RoPE, None without; aux_layers: the boundaries that it reads, None if it does not name them."""

    folder: Path
    tensors: dict[str, Tensor]
    draft_ids: Tensor
    sections: Sections | None
    aux_layers: tuple[int, ...] | None

    @property
    def ffn_size(self) -> int:
        return len(self.tensors["midlayer.mlp.up_proj.weight"])


def read_earlier(folder: Path) -> Earlier:
    """Read the folder of an earlier draft by this trainer, in either layout. Raises InputError for any other folder."""
    try:
        found = load_file(folder / "model.safetensors")
        config = json.loads((folder / "config.json").read_text())
    except (OSError, SafetensorError, ValueError) as error:
        raise InputError(f"--init {folder}: no draft to start from: {error}") from None
    found = {name.replace("layers.0.", "midlayer."): tensor for name, tensor in found.items()}
    if not {"d2t", "midlayer.mlp.up_proj.weight"} <= found.keys():
        raise InputError(f"--init {folder}: not a draft of this trainer; it has no d2t or no midlayer.")
    offsets = found.pop("d2t")
    sections = Sections.read(config.get("transformer_layer_config", config).get("rope_parameters"))
    return Earlier(folder, found, offsets + torch.arange(len(offsets)), sections, _boundaries(config))


def _boundaries(config: dict[str, Any]) -> tuple[int, ...] | None:
    """Return the boundaries that config.json names: as such in speculators' layout, else by the block before each."""
    nested = config.get("eagle_config") or {}
    ids, shift = (nested.get(LAYER_IDS), 1) if LAYER_IDS in nested else (config.get(LAYER_IDS), 0)
    return tuple(sorted(n + shift for n in ids)) if ids else None


def choose_ids(
    settings: Settings, counts: NDArray[np.int64], control: Sequence[int], earlier: Earlier | None
) -> NDArray[np.int64]:
    """Return the draft vocabulary. An earlier draft keeps the tokens of its head."""
    if earlier is None:
        return choose_vocabulary(counts, settings.n_vocab_draft, control)
    ids: NDArray[np.int64] = earlier.draft_ids.numpy()
    if not 0 <= ids.min() <= ids.max() < len(counts):
        raise ConfigError(f"--init {earlier.folder}: its vocabulary has tokens that this target lacks.")
    return ids


def choose_geometry(settings: Settings, info: TargetInfo, n_vocab_draft: int, earlier: Earlier | None) -> Geometry:
    """Return the sizes of the draft: those of an earlier one, or the given ones. Raises ConfigError as `_sections`."""
    ffn_size = earlier.ffn_size if earlier is not None else settings.ffn_size
    return info.geometry(n_vocab_draft, ffn_size, _sections(settings, info, earlier))


def _sections(settings: Settings, info: TargetInfo, earlier: Earlier | None) -> Sections | None:
    """Return the M-RoPE sections. Raises ConfigError if `mrope` has none, or contradicts the draft to start from."""
    found = earlier.sections if earlier is not None else info.sections
    if settings.mrope and found is None:
        whose = info.folder if earlier is None else earlier.folder
        raise ConfigError(f"--mrope: {whose} has no mrope_section. Omit --mrope.")
    return found if settings.mrope or earlier is not None else None


def make_draft(
    geometry: Geometry, frozen: Frozen, draft_ids: Tensor, seed: int, earlier: Earlier | None = None
) -> Eagle3Draft:
    """Return an earlier draft unchanged, or a new one that starts close to the target's last block.

    The head and its norm are the target's, so that a hidden state close to the target's already means the correct
    token. `fc` passes on the highest boundary, and the MLP is that of the target's last block if the sizes fit.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        draft = Eagle3Draft(geometry)
    if earlier is not None:
        _load(draft, earlier)
        return draft
    with torch.no_grad():
        draft.lm_head.weight.copy_(frozen.head[draft_ids.to(frozen.head.device)])
        draft.norm.weight.copy_(frozen.norm_gain)
        draft.fc.weight.mul_(FC_NOISE)[:, -geometry.hidden_size :] += torch.eye(geometry.hidden_size)
        block = draft.midlayer
        if frozen.mlp_up is not None and frozen.mlp_up.shape == block.mlp.up_proj.weight.shape:
            block.post_attention_layernorm.weight.copy_(frozen.mlp_norm)
            block.mlp.gate_proj.weight.copy_(frozen.mlp_gate)
            block.mlp.up_proj.weight.copy_(frozen.mlp_up)
            block.mlp.down_proj.weight.copy_(frozen.mlp_down)
    return draft


def refuse_differing(settings: Settings, info: TargetInfo, earlier: Earlier) -> None:
    """Raise UsageError for an option that gives the draft another shape than the earlier one has."""
    n_vocab = settings.n_vocab_draft and min(settings.n_vocab_draft, info.n_vocab)
    options = {
        "--draft-vocab": (n_vocab, len(earlier.draft_ids)),
        "--ffn": (settings.ffn_size, earlier.ffn_size),
        "--aux-layers": (settings.aux_layers and info.aux_layers, earlier.aux_layers),
    }
    for name, (given, found) in options.items():
        if given and found and given != found:
            raise UsageError(
                f"{name} {_named(given)}: the draft in {earlier.folder} has {_named(found)}. Omit {name}, or --init."
            )


def _named(value: int | tuple[int, ...]) -> str:
    """Return a value as an option has it."""
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def require_fitting(geometry: Geometry, earlier: Earlier) -> None:
    """Raise ConfigError if the earlier draft has other shapes."""
    with torch.device("meta"):
        _require_shapes(Eagle3Draft(geometry).state_dict(), earlier)


def _load(draft: Eagle3Draft, earlier: Earlier) -> None:
    own = draft.state_dict()
    _require_shapes(own, earlier)
    draft.load_state_dict({name: earlier.tensors[name] for name in own})


def _require_shapes(own: Mapping[str, Tensor], earlier: Earlier) -> None:
    for name, tensor in own.items():
        found = earlier.tensors.get(name)
        if found is None or found.shape != tensor.shape:
            there = "missing" if found is None else list(found.shape)
            raise ConfigError(
                f"--init {earlier.folder}: {name} is {there}, and {list(tensor.shape)} here. "
                "Give the target and the options that it was trained with."
            )
