"""A draft before its first step."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from llama_eagle import console
from llama_eagle.convert.drafts.config import LAYER_KEYS, read_config
from llama_eagle.convert.drafts.family import canonical
from llama_eagle.convert.drafts.reader import Draft, read_draft
from llama_eagle.convert.drafts.report import DraftOptions
from llama_eagle.convert.drafts.target import open_target
from llama_eagle.convert.dtypes import to_f32
from llama_eagle.convert.rope import parameters
from llama_eagle.convert.source import Checkpoint
from llama_eagle.errors import ConfigError, EagleError, InputError, UsageError
from llama_eagle.train.data.vocabulary import choose_vocabulary
from llama_eagle.train.model import Eagle3Draft, Geometry, Sections
from llama_eagle.train.settings import Settings
from llama_eagle.train.targets.checkpoint import Frozen, TargetInfo
from numpy.typing import NDArray
from torch import Tensor

FC_NOISE = 0.3  # factor of fc's random weights, next to the identity
EMBEDDING = "embed_tokens.weight"
OTHER_MODEL = 0.4  # relative difference of embeddings; quantization to 2 bits causes 0.3
# Clauses that name an option of `convert` that `train` lacks.
_CONVERT_ADVICE = re.compile(r"(;|, or| \()((?!--)[^;(])*--(?!aux-layers|target)[^;)]*\)?")
UNSCALED = ("default", "mrope", "none")  # RoPE types without scaling


@dataclass(frozen=True)
class Earlier:
    """A trained draft to start from.

    tensors: by the names of `Eagle3Draft`, which may lack the head if that is the target's; draft_ids: [D], what it can
    propose; embedding: [V, H], None without; aux_layers: the boundaries that it reads.
    """

    folder: Path
    tensors: dict[str, Tensor]
    draft_ids: Tensor
    embedding: Tensor | None
    geometry: Geometry
    aux_layers: tuple[int, ...]


def read_earlier(folder: Path, target: str, aux_layers: Sequence[int] | None = None) -> Earlier:
    """Read the folder of an EAGLE-3 draft of any producer, as `convert` reads it for this target.

    aux_layers: boundaries, used if config.json names none. Raises InputError for any other folder, and for a draft with
    parts that the trainer lacks.
    """
    if not folder.is_dir():
        raise InputError(f"--init {folder}: no draft to start from: no such folder. Name the folder of a draft.")
    goal = open_target(target)
    try:
        checkpoint = Checkpoint(folder, source=str(folder))
        draft = read_draft(checkpoint, goal, _options(checkpoint, aux_layers))
        _refuse_other_parts(draft)
    except EagleError as error:
        reason = _CONVERT_ADVICE.sub("", str(error).removeprefix(f"{folder}: "))
        raise InputError(f"--init {folder}: no draft to start from: {reason}") from None
    for warning in draft.warnings:
        console.warn(f"--init {folder}: {_CONVERT_ADVICE.sub('', warning)}.")
    weights = {name: torch.tensor(to_f32(draft.weights.read(name))) for name in draft.weights.names() if name != "t2d"}
    ids = torch.tensor(draft.weights.read("d2t")).long() if "d2t" in weights else torch.arange(goal.n_vocab)
    tensors = {name.replace("layers.0.", "midlayer."): tensor for name, tensor in weights.items()}
    tensors.pop("d2t", None)
    embedding = tensors.pop(EMBEDDING, None)
    return Earlier(folder, tensors, ids, embedding, _geometry(draft), draft.layer_ids.boundaries)


def _options(checkpoint: Checkpoint, aux_layers: Sequence[int] | None) -> DraftOptions:
    """Return options of the reader. Raises InputError where its advice is for `convert` alone."""
    if not any(canonical(name) == "fc.weight" for name in checkpoint.names()):
        raise InputError("it has no fc.weight, so it is not an EAGLE-3 draft")
    config = read_config(checkpoint.config)
    if config.is_speculators and config.norm_before_residual is None:
        raise InputError("its config.json has no norm_before_residual, whose default differs; add the key")
    nested = checkpoint.config.get("eagle_config") or {}
    is_named = any(place.get(key) for place in (checkpoint.config, nested) for key in LAYER_KEYS)
    return DraftOptions(aux_layers=None if is_named or aux_layers is None else tuple(aux_layers))


def _refuse_other_parts(draft: Draft) -> None:
    """Raise ConfigError for parts of a draft that `Eagle3Draft` lacks, by name."""
    geometry, dims = draft.config.geometry, draft.dims
    with torch.device("meta"):
        own = {name.replace("midlayer.", "layers.0.") for name in Eagle3Draft(_geometry(draft)).state_dict()}
    others = sorted(set(draft.weights.names()) - own - {"d2t", "t2d", EMBEDDING, *draft.plan.dropped})
    reasons = {
        f"{draft.n_layer} layers": draft.n_layer != 1,
        f"hidden size {dims['embd']}, the target has {dims['target']}": dims["embd"] != dims["target"],
        f"partial_rotary_factor: {draft.rope.n_rot} of {geometry.head_dim} values of a head are rotated": (
            draft.rope.n_rot != geometry.head_dim
        ),
        f"logit_scale {draft.config.logit_scale:g}": draft.config.logit_scale != 1,
        f"the tensor {others[0]}" if others else "": bool(others),
    }
    if found := next((reason for reason, applies in reasons.items() if applies), None):
        raise ConfigError(f"it has {found}, which the trainer does not support. Start from another draft, or from none")


def _geometry(draft: Draft) -> Geometry:
    sizes, rope = draft.config.geometry, parameters(draft.config.layer, prefer="sliding_attention")[0].data
    own = ("rope_theta", "mrope_section", "mrope_interleaved")
    scaling = {} if draft.rope.kind in UNSCALED else {name: rope[name] for name in rope if name not in own}
    return Geometry(
        hidden_size=sizes.hidden_size,
        n_head=sizes.n_head,
        n_head_kv=sizes.n_head_kv,
        head_dim=sizes.head_dim,
        ffn_size=sizes.n_ff,
        n_vocab=draft.dims["vocab"],
        n_vocab_draft=draft.dims["draft_vocab"],
        n_aux=draft.dims["aux"],
        n_ctx=sizes.n_ctx,
        rms_eps=sizes.rms_eps,
        rope_base=draft.rope.base,
        rope_scaling=scaling,
        sections=Sections.read(rope),
        norm_before_residual=draft.flags.norm_before_residual,
        norm_output=draft.flags.norm_output,
        qk_norm="layers.0.self_attn.q_norm.weight" in draft.weights.names(),
        fc_norm="fc_norm.0.weight" in draft.weights.names(),
        window=draft.window.size if draft.window else None,
    )


def choose_ids(
    settings: Settings, counts: NDArray[np.int64], control: Sequence[int], earlier: Earlier | None
) -> NDArray[np.int64]:
    """Return the draft vocabulary: ids [D]. An earlier draft keeps the tokens of its head."""
    if earlier is None:
        return choose_vocabulary(counts, settings.n_vocab_draft, control)
    ids: NDArray[np.int64] = earlier.draft_ids.numpy()
    if not 0 <= ids.min() <= ids.max() < len(counts):
        raise ConfigError(f"--init {earlier.folder}: its vocabulary has tokens that this target lacks.")
    return ids


def choose_geometry(settings: Settings, info: TargetInfo, n_vocab_draft: int, earlier: Earlier | None) -> Geometry:
    """Return the sizes of the draft: those of an earlier one, or the given ones.

    Raises ConfigError if `mrope` has no sections, or contradicts the draft to start from.
    """
    found = earlier.geometry.sections if earlier is not None else info.sections
    if settings.mrope and found is None:
        whose = info.folder if earlier is None else earlier.folder
        raise ConfigError(f"--mrope: {whose} has no mrope_section. Omit --mrope.")
    if earlier is not None:
        return replace(earlier.geometry, window=settings.window or earlier.geometry.window)
    shape = info.geometry(n_vocab_draft, settings.ffn_size, found if settings.mrope else None)
    return replace(shape, window=settings.window)


def make_draft(
    geometry: Geometry, frozen: Frozen, draft_ids: Tensor, seed: int, earlier: Earlier | None = None
) -> Eagle3Draft:
    """Return an earlier draft unchanged, or a new one for `ids` [D] that starts close to the target's last block.

    The head and its norm are the target's, so that a hidden state close to the target's already means the correct
    token. `fc` passes on the highest boundary, and the MLP is that of the target's last block if the sizes fit.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        draft = Eagle3Draft(geometry)
    with torch.no_grad():
        draft.lm_head.weight.copy_(frozen.head[draft_ids.to(frozen.head.device)])
        if earlier is not None:
            _require_same_model(earlier, frozen)
            draft.load_state_dict({"lm_head.weight": draft.lm_head.weight, **earlier.tensors})
            return draft
        start_from_target(draft, draft.midlayer, frozen)
    return draft


def start_from_target(draft: Any, block: Any, frozen: Frozen) -> None:
    """Have a new draft start with the target's last norm, highest boundary and, if the sizes fit, last MLP.

    draft: has `fc`, `norm` and `geometry`. block: its block that takes the MLP.
    """
    hidden_size = draft.geometry.hidden_size
    draft.norm.weight.copy_(frozen.norm_gain)
    draft.fc.weight.mul_(FC_NOISE)[:, -hidden_size:] += torch.eye(hidden_size)
    if frozen.mlp_up is not None and frozen.mlp_up.shape == block.mlp.up_proj.weight.shape:
        assert frozen.mlp_norm is not None and frozen.mlp_gate is not None and frozen.mlp_down is not None
        block.post_attention_layernorm.weight.copy_(frozen.mlp_norm)
        block.mlp.gate_proj.weight.copy_(frozen.mlp_gate)
        block.mlp.up_proj.weight.copy_(frozen.mlp_up)
        block.mlp.down_proj.weight.copy_(frozen.mlp_down)


def refuse_differing(settings: Settings, info: TargetInfo, earlier: Earlier) -> None:
    """Raise UsageError for an option that gives the draft another shape than the earlier one has."""
    n_vocab = settings.n_vocab_draft and min(settings.n_vocab_draft, info.n_vocab)
    options: dict[str, tuple[Any, Any]] = {
        "--draft-vocab": (n_vocab, len(earlier.draft_ids)),
        "--ffn": (settings.ffn_size, earlier.geometry.ffn_size),
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


def _require_same_model(earlier: Earlier, frozen: Frozen) -> None:
    """Raise ConfigError if the draft's own embeddings are not those of the target, which training uses."""
    if earlier.embedding is None:
        return
    own, target = earlier.embedding, frozen.embedding.to("cpu", torch.float32)
    if (difference := float((own - target).norm() / target.norm())) > OTHER_MODEL:
        raise ConfigError(
            f"--init {earlier.folder}: its {EMBEDDING} is not the target's (they differ by {difference:.0%}), and the "
            "trainer uses the target's. Start from another draft, or from none."
        )
