"""mlx-lm's forms of checkpoints (0.32.2), quantized or not: what it changes, and what it leaves out.

Hybrids: norms of Qwen3.5 and Qwen3-Next hold their value plus one, except linear_attn.norm, and convolutions are
[channels, kernel, 1]. Its loader adds the one if a convolution has another shape, so that shape is the mark. Experts of
a block are one tensor (switch_mlp). MTP heads are left out, and vision encoders with their vision_config.
"""

from __future__ import annotations

from llama_eagle.convert.source.weights import Weights
from llama_eagle.convert.targets.config import ModelConfig
from llama_eagle.convert.targets.conversion import Conversion, declared_head
from llama_eagle.convert.targets.vision import ARCHITECTURES
from llama_eagle.errors import ConversionError

NO_ENCODER = (
    "no vision encoder: config.json names a model with one, but has no vision_config (mlx-lm leaves both out). Images "
    "need the original checkpoint, for the text as for --mmproj"
)
NO_HEAD = (
    "no MTP head: mlx-lm leaves it out. That of the original checkpoint fits: convert it with --mtp-only into the same "
    "folder"
)


def is_mlx_hybrid(weights: Weights, n_mtp: int) -> bool:
    """Return True for the norms and convolutions of mlx-lm.

    n_mtp: of MTP blocks to convert. Raises ConversionError if only some tensors have its form.
    """
    names = weights.names()
    shapes = {name: weights.shape(name) for name in names if name.endswith("linear_attn.conv1d.weight")}
    of_mlx = {name: len(shape) == 3 and shape[2] == 1 != shape[1] for name, shape in shapes.items()}
    if not of_mlx:
        return False
    first, found = next(iter(of_mlx.items()))
    experts = ".mlp.experts." if found else ".mlp.switch_mlp."
    other = next((name for name, is_it in of_mlx.items() if is_it != found), None)
    other = other or next((name for name in names if experts in name), None)
    if other:
        raise ConversionError(
            f"{weights.where}: {weights.stored_name(first)} has mlx-lm's form and {weights.stored_name(other)} that of "
            "transformers, or the reverse: weights of two producers are in one folder. Download one checkpoint again"
        )
    if found and n_mtp:
        raise ConversionError(
            f"{weights.where}: an MTP head (mtp.*) next to weights in mlx-lm's form, which has none: its norms may "
            "hold their value or one more. Convert with --no-mtp"
        )
    return found


def left_out(conversion: Conversion, config: ModelConfig, is_mlx: bool) -> list[str]:
    """Return warnings about parts of the original that mlx-lm leaves out."""
    names = config.root.get("architectures")
    lacks_encoder = isinstance(names, list) and names[0] in ARCHITECTURES and not config.root.get("vision_config")
    unnamed_head = is_mlx and not declared_head(conversion, config)
    return [NO_ENCODER] * lacks_encoder + [NO_HEAD] * unnamed_head
