"""A trained draft as a checkpoint folder: in SpecForge's layout or in speculators'."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from llama_eagle.convert.drafts.config import ACCEPTANCE, TRAINED_LENGTH
from llama_eagle.convert.drafts.layers import resolve_layer_ids
from llama_eagle.convert.export.engines import speculators_header
from llama_eagle.convert.source import open_checkpoint
from llama_eagle.errors import ConfigError
from llama_eagle.files import write_whole
from llama_eagle.gguf.names import read_name
from llama_eagle.train.dspark.draft import RANK, BlockDraft
from llama_eagle.train.model import Eagle3Draft, Geometry
from llama_eagle.train.mtp.gguf_head import write_head
from llama_eagle.train.mtp.head import MTPHead, head_tensors
from llama_eagle.train.state import write_tensors
from llama_eagle.train.targets.checkpoint import TargetInfo
from llama_eagle.train.targets.engine import EngineTargetInfo
from safetensors.torch import save_file
from torch import Tensor

DRAFT_FILES = ("model.safetensors", "config.json")
# Files of the target that an MTP head's folder also gets, if they exist.
HEAD_TEXTS = (
    "tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja", "vocab.json",
    "merges.txt",
)  # fmt: skip
HEAD_SHARES = ("model.embed_tokens.weight", "language_model.embed_tokens.weight", "lm_head.weight", "model.norm.weight",
               "language_model.norm.weight")  # fmt: skip


def check_layer_ids(layout: str, aux_layers: tuple[int, ...], n_layer: int) -> None:
    """Raise ConfigError for boundaries that readers would misinterpret, because SpecForge's ids are ambiguous."""
    ids = _layer_ids(layout, aux_layers)
    resolved = resolve_layer_ids(
        n_aux=len(aux_layers),
        n_layer=n_layer,
        top=ids if layout == "speculators" else None,
        nested=None if layout == "speculators" else ids,
        speculators=layout == "speculators",
        override=None,
    )
    if resolved.boundaries != aux_layers:
        raise ConfigError(
            f"--aux-layers {list(aux_layers)} would be read as {list(resolved.boundaries)} in the {layout} layout; "
            "choose others, or --format speculators."
        )


@dataclass(frozen=True)
class DraftOf:
    """A checkpoint's description of its target.

    name: folder or hub id; the speculators package opens it together with the draft.
    """

    name: str
    architecture: str
    aux_layers: tuple[int, ...]


def export_draft(
    draft: Eagle3Draft,
    folder: Path,
    *,
    layout: str,
    draft_ids: Tensor,
    embedding: Tensor,
    target: DraftOf,
    acceptance: Sequence[float] = (),
    trained_length: int = 0,
) -> None:
    """Write config.json and model.safetensors (BF16). Each file is written completely or not at all.

    draft_ids: [D]. embedding: [V, H]. acceptance: rates by position on held-out data, which `convert` passes on as the
    draft's price. trained_length: tokens of the longest training text; 0: unknown.
    """
    tensors = _tensors(draft, draft_ids, len(embedding))
    if layout == "speculators":  # its own loader expects the embeddings; others take the target's
        tensors = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in tensors.items()}
        tensors["embed_tokens.weight"] = embedding.detach().to("cpu", torch.bfloat16)
    config = _CONFIGS[layout](draft.geometry, _layer_ids(layout, target.aux_layers), target)
    _write(folder, tensors, config, acceptance, trained_length)


def export_block_draft(
    draft: BlockDraft,
    folder: Path,
    acceptance: Sequence[float] = (),
    *,
    draft_ids: Tensor,
    mask_token: int,
    n_steps: int,
    aux_layers: tuple[int, ...],
    trained_length: int = 0,
) -> None:
    """Write a block draft in the layout of DeepSpec's DSpark drafts; see `export_draft`."""
    g = draft.geometry
    config = {
        "architectures": ["Qwen3DSparkModel"],
        "model_type": "qwen3",
        **_geometry(g),
        "num_hidden_layers": len(draft.layers),
        "draft_vocab_size": g.n_vocab_draft,
        "block_size": n_steps,
        "is_causal": True,
        "markov_rank": RANK,
        "markov_head_type": "vanilla",
        "dflash_config": {"mask_token_id": mask_token, "target_layer_ids": _layer_ids("specforge", aux_layers)},
        "torch_dtype": "bfloat16",
    }
    tensors = _tensors(draft, draft_ids, g.n_vocab)
    if g.n_vocab_draft == g.n_vocab:  # the target's head is used
        del tensors["d2t"], tensors["t2d"]
    _write(folder, tensors, config, acceptance, trained_length)


def _tensors(draft: Eagle3Draft | BlockDraft, draft_ids: Tensor, n_vocab: int) -> dict[str, Tensor]:
    """Return a draft's tensors in BF16, and the maps of its vocabulary."""
    tensors = {name: tensor.detach().to("cpu", torch.bfloat16) for name, tensor in draft.state_dict().items()}
    tensors["d2t"] = draft_ids.cpu() - torch.arange(len(draft_ids))
    tensors["t2d"] = torch.zeros(n_vocab, dtype=torch.bool).index_fill(0, draft_ids.cpu(), True)
    return tensors


def _write(
    folder: Path, tensors: dict[str, Tensor], config: dict[str, Any], acceptance: Sequence[float], trained_length: int
) -> None:
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    if acceptance:
        config[ACCEPTANCE] = list(acceptance)
    if trained_length:
        config[TRAINED_LENGTH] = trained_length
    folder.mkdir(parents=True, exist_ok=True)
    weights, settings = (folder / name for name in DRAFT_FILES)
    write_tensors(weights, lambda path: save_file(tensors, path, metadata={"format": "pt"}))
    write_whole(settings, lambda path: path.write_text(json.dumps(config, indent=2) + "\n"))


def export_head(
    head: MTPHead, info: TargetInfo, folder: Path, acceptance: Sequence[float] = (), trained_length: int = 0
) -> None:
    """Write mtp-NAME.gguf for a target that is a GGUF; otherwise a checkpoint for `convert --mtp-only`.

    That checkpoint is the target's settings, its tokenizer, the head, and the other tensors of the target that such a
    file needs. Each file is written completely or not at all.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(info, EngineTargetInfo):
        path = folder / head_name(info.folder)
        write_head(dict(head.named_parameters()), info.parts, path, acceptance, trained_length)
        return
    target = open_checkpoint(info.folder)
    shared = [name for name in target.names() if name.endswith(HEAD_SHARES) and not name.startswith("mtp.")]
    tensors = {name: torch.tensor(target.read_f32(name)).bfloat16() for name in shared} | head_tensors(head)
    config = json.loads((info.folder / "config.json").read_text())
    config.get("text_config", config)["mtp_num_hidden_layers"] = 1
    weights, settings = (folder / name for name in DRAFT_FILES)
    for text in HEAD_TEXTS:
        if (info.folder / text).is_file():
            shutil.copyfile(info.folder / text, folder / text)
    write_tensors(weights, lambda path: save_file(tensors, path, metadata={"format": "pt"}))
    write_whole(settings, lambda path: path.write_text(json.dumps(config, indent=2) + "\n"))


def head_name(target: Path) -> str:
    """Return the name of a head's file, by which it is found next to the target's file."""
    return f"mtp-{read_name(target.name).model}.gguf"


def _layer_ids(layout: str, aux_layers: tuple[int, ...]) -> list[int]:
    """SpecForge names a boundary by the block whose output it is, speculators by the block it enters."""
    return [k if layout == "speculators" else k - 1 for k in aux_layers]


def _geometry(g: Geometry) -> dict[str, Any]:
    return {
        "attention_bias": False,
        "head_dim": g.head_dim,
        "hidden_act": "silu",
        "hidden_size": g.hidden_size,
        "intermediate_size": g.ffn_size,
        "max_position_embeddings": g.n_ctx,
        "mlp_bias": False,
        "num_attention_heads": g.n_head,
        "num_hidden_layers": 1,
        "num_key_value_heads": g.n_head_kv,
        "rms_norm_eps": g.rms_eps,
        "rope_parameters": {"rope_theta": g.rope_base, "rope_type": "default", **g.rope_scaling, **_sections(g)},
        "rope_theta": g.rope_base,
        "tie_word_embeddings": False,
        "vocab_size": g.n_vocab,
        **_window(g),
    }


def _window(g: Geometry) -> dict[str, Any]:
    if g.window is None:
        return {}
    return {"sliding_window": g.window, "use_sliding_window": True, "layer_types": ["sliding_attention"]}


def _sections(g: Geometry) -> dict[str, Any]:
    if g.sections is None:
        return {}
    return {"mrope_section": list(g.sections.sizes), "mrope_interleaved": g.sections.interleaved}


def _flags(g: Geometry) -> dict[str, Any]:
    return {
        "draft_vocab_size": g.n_vocab_draft,
        "fc_norm": g.fc_norm,
        "norm_before_fc": False,
        "norm_before_residual": g.norm_before_residual,
        "norm_output": g.norm_output,
        "target_hidden_size": g.hidden_size,
        "torch_dtype": "bfloat16",
    }


def _specforge(g: Geometry, ids: list[int], target: DraftOf) -> dict[str, Any]:
    eagle = {"eagle_aux_hidden_state_layer_ids": ids, "use_aux_hidden_state": True}
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        **_geometry(g),
        **_flags(g),
        "eagle_config": eagle,
    }


def _speculators(g: Geometry, ids: list[int], target: DraftOf) -> dict[str, Any]:
    verifier = {"name_or_path": target.name, "architectures": [target.architecture]}
    return {
        **speculators_header(verifier, n_draft=5),
        **_flags(g),
        "eagle_aux_hidden_state_layer_ids": ids,
        "transformer_layer_config": {"model_type": "qwen3" if g.qk_norm else "llama", **_geometry(g)},
    }


_CONFIGS: dict[str, Callable[[Geometry, list[int], DraftOf], dict[str, Any]]] = {
    "specforge": _specforge,
    "speculators": _speculators,
}
