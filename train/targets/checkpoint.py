"""The target in transformers: its features at the boundaries a draft reads, and its last hidden state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from llama_eagle.convert.source import open_checkpoint
from llama_eagle.convert.source.unmerged import CHOICE, adapter_next_to_weights
from llama_eagle.errors import ConfigError
from llama_eagle.train.data.pictures import ImageSource, open_image, prepared, row_size
from llama_eagle.train.model import Geometry, Sections
from llama_eagle.train.targets.tokenizer import CheckpointTokenizer
from numpy.typing import NDArray
from torch import Tensor

TEXT_TARGETS = (
    "Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM", "Qwen3NextForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM",
    "Qwen2ForCausalLM", "LlamaForCausalLM",
)  # fmt: skip
VISION_TARGETS = (
    "Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration", "Qwen3VLForConditionalGeneration",
    "Qwen3VLMoeForConditionalGeneration",
)  # fmt: skip
FIRST_AFTER_DEEPSTACK = 4  # engines differ in when they add vision features; from this boundary on they agree


@dataclass(frozen=True)
class TargetInfo:
    """Properties of a target from its configuration.

    aux_layers: boundaries in ascending order; boundary k is the input of block k.
    """

    folder: Path
    architecture: str
    config: Any  # of transformers, whole
    aux_layers: tuple[int, ...]
    end_tokens: tuple[int, ...]

    @property
    def text(self) -> Any:
        return self.config.get_text_config()

    @property
    def has_vision(self) -> bool:
        return self.architecture in VISION_TARGETS

    @property
    def files(self) -> list[Path]:
        """The files with its weights."""
        return sorted(self.folder.glob("*.safetensors"))

    @property
    def n_vocab(self) -> int:
        return int(self.text.vocab_size)

    @property
    def sections(self) -> Sections | None:
        """The target's M-RoPE sections; None: one position per token."""
        return Sections.read(self.text.rope_parameters)

    def geometry(self, n_vocab_draft: int, ffn_size: int | None, sections: Sections | None = None) -> Geometry:
        """Return the shape of a draft with this target's width and attention."""
        text = self.text
        return Geometry(
            hidden_size=text.hidden_size,
            n_head=text.num_attention_heads,
            n_head_kv=text.num_key_value_heads,
            head_dim=getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads,
            ffn_size=ffn_size or getattr(text, "intermediate_size", None) or 3 * text.hidden_size,
            n_vocab=self.n_vocab,
            n_vocab_draft=n_vocab_draft,
            n_aux=len(self.aux_layers),
            n_ctx=text.max_position_embeddings,
            rms_eps=text.rms_norm_eps,
            rope_base=float((text.rope_parameters or {}).get("rope_theta", 10000.0)),
            sections=sections,
        )


def read_target(source: str | Path, aux_layers: Sequence[int] | None = None) -> TargetInfo:
    """Read a target's folder or hub id. Raises ConfigError if drafts for it cannot be trained here."""
    transformers = _transformers()
    checkpoint = open_checkpoint(source)
    if adapter := adapter_next_to_weights(checkpoint.path):
        raise ConfigError(f"{checkpoint.path}: {adapter.removesuffix(f' {CHOICE}')}")
    architecture = _architecture(checkpoint.config, checkpoint.path)
    try:
        config = transformers.AutoConfig.from_pretrained(checkpoint.path, trust_remote_code=False)
    except Exception as error:  # invalid files raise many types
        raise ConfigError(
            f"{checkpoint.path}: transformers cannot read its config.json: {_first_line(error)}"
        ) from None
    n_layer = int(config.get_text_config().num_hidden_layers)
    found = boundaries(aux_layers, n_layer, architecture in VISION_TARGETS)
    ends = (checkpoint.json_file("generation_config.json") or {}).get("eos_token_id")
    end_tokens = () if ends is None else tuple(ends) if isinstance(ends, list) else (ends,)
    return TargetInfo(checkpoint.path, architecture, config, found, end_tokens)


@dataclass(frozen=True)
class Frozen:
    """Weights of the target that training a draft needs: embedding and head, [V, T], and the last norm's gain, [T].

    mlp_norm: [T], mlp_gate, mlp_up: [F, T], mlp_down: [T, F], of the last block; None if a draft cannot start from it.
    bias: [V], added to the logits; cap: [], below which they stay; None without (output.py).
    """

    embedding: Tensor
    head: Tensor
    norm_gain: Tensor
    mlp_norm: Tensor | None = None
    mlp_gate: Tensor | None = None
    mlp_up: Tensor | None = None
    mlp_down: Tensor | None = None
    bias: Tensor | None = None
    cap: Tensor | None = None

    def tensors(self) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in vars(self).items() if tensor is not None}


def _gain(norm: Any) -> Tensor:
    gain: Tensor = norm(torch.ones_like(norm.weight)).float()  # some store the gain less 1
    return gain


def _dense(mlp: Any, norm: Any) -> tuple[Tensor, ...]:
    """Return the fields of `Frozen` for a block's MLP; none for one with experts."""
    if not hasattr(mlp, "gate_proj"):
        return ()
    return _gain(norm), mlp.gate_proj.weight, mlp.up_proj.weight, mlp.down_proj.weight


class Target:
    """A loaded target; nothing of it is trained."""

    def __init__(self, info: TargetInfo, dtype: torch.dtype, device: torch.device) -> None:
        self.info = info
        self.device = device
        self.model = _load(info.folder, info.architecture, dtype).to(device).eval().requires_grad_(False)

    def frozen(self) -> Frozen:
        decoder = self.model.get_decoder()
        last = decoder.layers[-1]
        return Frozen(
            self.model.get_input_embeddings().weight,
            self.model.get_output_embeddings().weight,
            _gain(decoder.norm),
            *_dense(last.mlp, last.post_attention_layernorm),
        )

    def run(self, tokens: Tensor, **vision: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Run the target on tokens [B, S], padded at the end.

        Returns features [B, S, A * T], the normed last hidden state [B, S, T] and the inputs of the first block [B, S,
        T]. The inputs of an image's rows are the vision encoder's main output.

        vision: pixel_values, image_grid_thw, mm_token_type_ids. Raises ConfigError if the forward pass does not go
        through the hooked blocks.
        """
        with torch.no_grad(), self._captured() as seen:
            final = self.model.model(input_ids=tokens, use_cache=False, **vision).last_hidden_state
        wrong = [k for k in (*self.info.aux_layers, 0) if len(seen[k]) != 1 or seen[k][0].shape != final.shape]
        if wrong:
            raise ConfigError(
                f"{self.info.architecture}: boundary {wrong[0]} was seen {len(seen[wrong[0]])} times in a pass: its "
                "forward does not go through its blocks, or not in this shape. It cannot be a target here."
            )
        aux = [*(seen[k][0] for k in self.info.aux_layers), final[..., :0]]
        return torch.cat(aux, dim=-1), final, seen[0][0]

    @contextmanager
    def _captured(self) -> Iterator[dict[int, list[Tensor]]]:
        seen: dict[int, list[Tensor]] = {k: [] for k in (0, *self.info.aux_layers)}

        def hook_at(k: int) -> Any:
            def hook(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
                seen[k].append(args[0] if args else kwargs["hidden_states"])

            return hook

        blocks = self.model.get_decoder().layers
        handles = [blocks[k].register_forward_pre_hook(hook_at(k), with_kwargs=True) for k in seen]
        try:
            yield seen
        finally:
            for handle in handles:
                handle.remove()


@dataclass(frozen=True)
class Images:
    """A target's image processor, and the placeholder token of an image's rows.

    patch: pixels of the side of a patch; merge: patches of the side of a row.
    """

    processor: Any
    token: int
    patch: int
    merge: int

    def grid(self, image: ImageSource, source: str) -> tuple[int, int]:
        """Return height and width of an image in rows. source: the data's file and line, for errors."""
        width, height = row_size(open_image(image, source), self.patch * self.merge)
        return height, width

    def pixels(self, images: Sequence[ImageSource], source: str) -> dict[str, Tensor]:
        """Return pixel_values [n_patches, n] and image_grid_thw [n_images, 3], prepared as the engine prepares them.

        source: the data's file and line, for errors.
        """
        pictures = [prepared(open_image(image, source), self.patch * self.merge) for image in images]
        sizes = {"patch_size": self.patch, "merge_size": self.merge}
        return dict(self.processor(images=pictures, do_resize=False, return_tensors="pt", **sizes))


def load_tokenizer(folder: Path) -> CheckpointTokenizer:
    """Return the tokenizer and chat template of a folder. Raises ConfigError if they cannot be read."""
    return CheckpointTokenizer(folder)


def control_tokens(info: TargetInfo, tokenizer: Any, counts: NDArray[np.int64]) -> list[int]:
    """Return the control tokens of a reply: the target's end tokens, and special tokens that the data has.

    counts: of each token in the data, [V]. Vocabularies have thousands of special tokens that nothing uses.
    """
    used = {token for token in tokenizer.control_ids if token < info.n_vocab and counts[token]}
    return sorted(used | {token for token in info.end_tokens if token < info.n_vocab})


def load_images(info: TargetInfo) -> Images | None:
    """Load the vision encoder; return None if the target has none."""
    if not info.has_vision:
        return None
    from transformers import AutoImageProcessor

    try:
        processor = AutoImageProcessor.from_pretrained(info.folder, trust_remote_code=False)
    except Exception as error:
        raise ConfigError(f"{info.folder}: no image processor: {_first_line(error)}") from None
    vision = info.config.vision_config
    return Images(processor, int(info.config.image_token_id), vision.patch_size, vision.spatial_merge_size)


def _architecture(config: dict[str, Any], folder: Path) -> str:
    names = config.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else ""
    if name not in TEXT_TARGETS + VISION_TARGETS:
        known = ", ".join(TEXT_TARGETS + VISION_TARGETS)
        raise ConfigError(
            f"{folder}: train reads no checkpoint of {name or 'an unnamed class'}. Convert it (llama-eagle convert), "
            f"and name the GGUF as the target. Checkpoints of these need no conversion: {known}."
        )
    return name


def _transformers() -> Any:
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers


def _load(folder: Path, architecture: str, dtype: torch.dtype) -> Any:
    try:
        model, info = getattr(_transformers(), architecture).from_pretrained(
            folder, dtype=dtype, output_loading_info=True, trust_remote_code=False
        )
    except Exception as error:  # invalid files raise many types
        raise ConfigError(f"{folder}: transformers cannot load it: {_first_line(error)}") from None
    if info["missing_keys"] or info["mismatched_keys"]:
        missing = sorted(info["missing_keys"]) or [str(entry) for entry in info["mismatched_keys"]]
        raise ConfigError(
            f"{folder}: {len(missing)} weights are missing, {missing[0]} first; is the download complete?"
        )
    return model


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def boundaries(named: Sequence[int] | None, n_layer: int, has_vision: bool) -> tuple[int, ...]:
    """Return the boundaries that implementations read by default, or the user's.

    0 is the embedding, which a draft has anyway; llama.cpp does not provide n_layer.
    """
    if named is not None and not named:  # an MTP head reads none
        return ()
    found = tuple(sorted(named)) if named is not None else _default_boundaries(n_layer, has_vision)
    if 0 in found:
        raise ConfigError("boundary 0 is the embedding, which a draft reads in any case: leave it out of --aux-layers.")
    if not found or len(set(found)) != len(found) or not 0 < found[0] <= found[-1] < n_layer:
        raise ConfigError(
            f"boundaries {list(found)} of a target with {n_layer} blocks: expected different ones from 1 to "
            f"{n_layer - 1}; name them with --aux-layers."
        )
    if has_vision and found[0] < FIRST_AFTER_DEEPSTACK:
        raise ConfigError(f"boundary {found[0]}: with a vision tower they start at {FIRST_AFTER_DEEPSTACK}.")
    return found


def _default_boundaries(n_layer: int, has_vision: bool) -> tuple[int, ...]:
    """Return those after 2, L/2 and L - 3 blocks, as other trainers do; in shallow targets the nearest distinct ones.

    They are fewer than three if the target does not have three.
    """
    lowest = FIRST_AFTER_DEEPSTACK if has_vision else 1
    first = max(lowest, min(FIRST_AFTER_DEEPSTACK if has_vision else 2, n_layer - 3))
    last = min(max(n_layer - 3, first + 2), n_layer - 1)
    middle = min(max(n_layer // 2, first + 1), last - 1)
    return tuple(sorted({found for found in (first, middle, last) if lowest <= found < n_layer}))
