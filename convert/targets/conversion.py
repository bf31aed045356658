"""Conversions of the target families, and the choice of a checkpoint's conversion."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from llama_eagle.convert.settings.options import BY_LLAMA_CPP, OWN
from llama_eagle.convert.source import Checkpoint
from llama_eagle.convert.source.stated import CACHE_SCALES
from llama_eagle.convert.source.weights import Weights
from llama_eagle.convert.table import Dims, Row, Section
from llama_eagle.convert.targets.config import ModelConfig, full_attention
from llama_eagle.convert.tokenizer import has_pieces
from llama_eagle.convert.upstream.converter import (
    ENCODER,
    class_names,
    known_classes,
    require_class,
    require_packages,
)
from llama_eagle.convert.upstream.encoders import refuse_unlike
from llama_eagle.errors import ConfigError, ConversionError
from llama_eagle.gguf.mtp import ARCHITECTURES as MTP
from llama_eagle.gguf.validate.families import FAMILIES, MODEL, NEXTN


@dataclass(frozen=True)
class Block:
    """One application of a family's section.

    kind: of the section. source, target: prefixes of its tensors in the checkpoint and in the GGUF.
    """

    kind: str
    source: str
    target: str


def _text_blocks(kinds: list[str]) -> list[Block]:
    return [Block(kind, f"layers.{i}.", f"blk.{i}.") for i, kind in enumerate(kinds)]


def uniform_blocks(config: ModelConfig) -> list[Block]:
    """Return the blocks of a text model with full attention in every block."""
    return _text_blocks(full_attention(config))


def hybrid_blocks(config: ModelConfig) -> list[Block]:
    """Return the blocks of a text model with Gated DeltaNet blocks."""
    return _text_blocks(["linear" if kind == "linear_attention" else "full" for kind in config.layer_types()])


def sections(arch: str, *sources: Row) -> dict[str, tuple[Row, ...]]:
    """Return the rows of the tensors that the family's table lists, by kind of block.

    sources: known rows; the table decides which of them a block has, and in which order.
    """
    family = FAMILIES[arch]
    kinds = {"model": MODEL, "full": family.full, "linear": family.linear, "mtp": NEXTN if arch in MTP else ()}
    separate = {kind: [t.name for t in tensors if not t.instead_of] for kind, tensors in kinds.items() if tensors}
    return {
        kind: tuple(row for name in names for row in sources if row.target == name) for kind, names in separate.items()
    }


def text_dropped(name: str) -> str | None:
    """Return the reason why a text model drops a tensor."""
    if name.startswith("visual."):
        return "vision encoder: converted by --mmproj"
    if name.endswith(("rotary_emb.inv_freq", ".attention.masked_bias")):
        return "computed, not learned"
    if name.endswith(CACHE_SCALES):
        return "scale of another engine's quantized KV cache"
    return None


@dataclass(frozen=True)
class Conversion:
    """Conversion to one llama.cpp architecture.

    Sections are keyed by block kind; "model" rows belong to no block, and "mtp" rows to an MTP head.
    """

    arch: str
    architectures: tuple[str, ...]  # values of config.json's `architectures`
    dims: Callable[[ModelConfig], dict[str, int]]
    keys: Callable[[ModelConfig, Dims], dict[str, Any]]  # GGUF keys without the "<arch>." prefix
    sections: Mapping[str, tuple[Row, ...]]
    blocks: Callable[[ModelConfig], list[Block]] = uniform_blocks
    extra: Callable[[ModelConfig, Dims], dict[str, np.ndarray]] = lambda config, dims: {}  # computed tensors
    dropped: Callable[[str], str | None] = text_dropped  # returns the reason to drop a tensor, None to refuse it

    @property
    def has_mtp(self) -> bool:
        return "mtp" in self.sections

    def table(self, config: ModelConfig, n_mtp: int = 0, *, only_mtp: bool = False) -> list[Section]:
        """Return every section of the file.

        The MTP block is a full-attention block with additional rows. Alone, it keeps its number, and the model's
        embeddings, norm and head are included.
        """
        blocks = self.blocks(config)
        found = [Section(self.sections["model"])]
        if not only_mtp:
            found += [Section(self.sections[block.kind], block.source, block.target) for block in blocks]
        for i in range(n_mtp):
            target = f"blk.{len(blocks) + i}."
            found.append(Section(self.sections["full"], f"mtp.layers.{i}.", target))
            found.append(Section(self.sections["mtp"], "mtp.", target))
        return found

    def reason(self, name: str, *, only_mtp: bool = False) -> str | None:
        """Return the reason why a stored tensor is dropped; None for an unknown one."""
        if name.startswith("mtp.") and self.has_mtp:
            return "MTP block: --no-mtp"
        return "not in the MTP block: --mtp-only" if only_mtp else self.dropped(name)


def mtp_blocks(conversion: Conversion, weights: Weights) -> int:
    """Count the MTP blocks in the checkpoint by their tensors: none, one, or an error."""
    names = [name for name in weights.names() if name.startswith("mtp.")]
    if not conversion.has_mtp or not names:
        return 0
    numbers = {int(m[1]) for name in names if (m := re.match(r"mtp\.layers\.(\d+)\.", name))}
    if numbers != {0}:
        raise ConversionError(
            f"{weights.where}: it has MTP blocks {sorted(numbers)}, but llama.cpp runs exactly one: "
            "convert with --no-mtp"
        )
    return 1


def declared_head(conversion: Conversion, config: ModelConfig) -> str | None:
    """Return the key of config.json that declares an MTP head in a family that has one."""
    keys = ("mtp_num_hidden_layers", "num_nextn_predict_layers") if conversion.has_mtp else ()
    return next((key for key in keys for part in (config, config.root) if part.get(key)), None)


CONVERSIONS: dict[str, Conversion] = {}  # by the names in config.json's `architectures`


def register(conversion: Conversion) -> None:
    CONVERSIONS.update(dict.fromkeys(conversion.architectures, conversion))


def find_conversion(config: dict[str, Any], where: str) -> Conversion | None:
    """Return the table of the class that config.json names.

    None stands for llama.cpp's converter, which has that class, or that of the text model in a model with an encoder.
    Raises `ConfigError` if it has neither.
    """
    names = class_names(config)
    if not names:
        raise ConfigError(
            f"{where}: config.json names no architecture; add that of the original model, such as "
            '"architectures": ["Qwen3ForCausalLM"]'
        )
    if names[-1] not in CONVERSIONS:
        require_class(config, where, CONVERSIONS)
    return CONVERSIONS.get(names[-1])


def check_target(checkpoint: Checkpoint, *, encoder: bool = False) -> None:
    """Raise the errors that need no weights: an unknown class or encoder, and packages of llama.cpp's converter."""
    conversion = find_conversion(checkpoint.config, checkpoint.source)
    if conversion is None or has_pieces(checkpoint):
        require_packages(checkpoint)
    if conversion is None and encoder:
        require_class(checkpoint.config, checkpoint.source, table=ENCODER)
        refuse_unlike(checkpoint.config, checkpoint.source)


def ways() -> dict[str, list[str]]:
    """Return the classes that are converted, by way: a table here, or llama.cpp's converter."""
    return {OWN: sorted(CONVERSIONS), BY_LLAMA_CPP: sorted({*known_classes()} - {*CONVERSIONS})}
