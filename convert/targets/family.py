"""Families of targets, and the choice of a checkpoint's family."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from llama_eagle.convert.source.weights import Weights
from llama_eagle.convert.table import Dims, Row, Section
from llama_eagle.convert.targets.config import ModelConfig
from llama_eagle.errors import ConfigError, ConversionError


@dataclass(frozen=True)
class Block:
    """One application of a family's section.

    kind: of the section. source, target: prefixes of its tensors in the checkpoint and in the GGUF.
    """

    kind: str
    source: str
    target: str


def text_blocks(kinds: list[str]) -> list[Block]:
    """Return the blocks of a text model, of the given kinds."""
    return [Block(kind, f"layers.{i}.", f"blk.{i}.") for i, kind in enumerate(kinds)]


def text_dropped(name: str) -> str | None:
    """Return the reason why a text model drops a tensor."""
    if name.startswith("visual."):
        return "vision encoder: converted by --mmproj"
    if name.endswith(("rotary_emb.inv_freq", ".attention.masked_bias")):
        return "computed, not learned"
    if name.endswith((".k_scale", ".v_scale", ".q_scale", ".kv_scale", ".k_proj.output_scale", ".v_proj.output_scale")):
        return "scale of another engine's quantized KV cache"
    return None


@dataclass(frozen=True)
class Family:
    """One llama.cpp architecture. Sections are keyed by block kind; "model" rows belong to no block."""

    arch: str
    architectures: tuple[str, ...]  # values of config.json's `architectures`
    dims: Callable[[ModelConfig], dict[str, int]]
    keys: Callable[[ModelConfig, Dims], dict[str, Any]]  # GGUF keys without the "<arch>." prefix
    sections: Mapping[str, tuple[Row, ...]]
    blocks: Callable[[ModelConfig], list[Block]]
    extra: Callable[[ModelConfig, Dims], dict[str, np.ndarray]] = lambda config, dims: {}  # computed tensors
    dropped: Callable[[str], str | None] = text_dropped  # returns the reason to drop a tensor, None to refuse it
    has_mtp: bool = False

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


def mtp_blocks(family: Family, weights: Weights) -> int:
    """Count the MTP blocks in the checkpoint by their tensors: none, one, or an error."""
    names = [name for name in weights.names() if name.startswith("mtp.")]
    if not family.has_mtp or not names:
        return 0
    numbers = {int(m[1]) for name in names if (m := re.match(r"mtp\.layers\.(\d+)\.", name))}
    if numbers != {0}:
        raise ConversionError(
            f"{weights.where}: it has MTP blocks {sorted(numbers)}, but llama.cpp runs exactly one: "
            "convert with --no-mtp"
        )
    return 1


def declared_head(family: Family, config: ModelConfig) -> str | None:
    """Return the key of config.json that declares an MTP head in a family that has one."""
    keys = ("mtp_num_hidden_layers", "num_nextn_predict_layers") if family.has_mtp else ()
    return next((key for key in keys for part in (config, config.root) if part.get(key)), None)


FAMILIES: dict[str, Family] = {}  # by the names in config.json's `architectures`


def register(family: Family) -> None:
    FAMILIES.update(dict.fromkeys(family.architectures, family))


def find_family(config: dict[str, Any], where: str) -> Family:
    """Return the family named by config.json's `architectures`; text_config's own takes precedence."""
    text = config.get("text_config")
    names = (text.get("architectures") if isinstance(text, dict) else None) or config.get("architectures")
    if not isinstance(names, list) or not names:
        raise ConfigError(
            f"{where}: config.json names no architecture; add that of the original model, such as "
            '"architectures": ["Qwen3ForCausalLM"]'
        )
    if not isinstance(names[0], str) or names[0] not in FAMILIES:
        raise ConfigError(f"{where}: architecture {names[0]!r} is not supported; supported: {', '.join(FAMILIES)}")
    return FAMILIES[names[0]]
