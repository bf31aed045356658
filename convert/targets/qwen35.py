"""Qwen3.5 dense: Gated DeltaNet blocks with a gated full-attention block after every three of them."""

from __future__ import annotations

from typing import Any

from llama_eagle.convert.targets import rows
from llama_eagle.convert.targets.config import (
    ModelConfig,
    common_keys,
    dense_dims,
    hybrid_kinds,
    linear_dims,
    linear_keys,
    mrope_sections,
)
from llama_eagle.convert.targets.table import Dims, Family, text_blocks


def _dims(config: ModelConfig) -> dict[str, int]:
    return {**dense_dims(config), **linear_dims(config)}


def _keys(config: ModelConfig, dims: Dims) -> dict[str, Any]:
    sections = mrope_sections(config, default=[11, 11, 10])
    return {**common_keys(config, dims), **linear_keys(config, dims), "rope.dimension_sections": sections}


FAMILY = Family(
    arch="qwen35",
    architectures=("Qwen3_5ForConditionalGeneration", "Qwen3_5ForCausalLM"),
    dims=_dims,
    keys=_keys,
    blocks=lambda config: text_blocks(hybrid_kinds(config)),
    sections={
        "model": rows.model_rows(final_norm=rows.PLUS_ONE),
        "full": (*rows.HYBRID_NORMS, *rows.GATED_ATTENTION, *rows.DENSE),
        "linear": (*rows.HYBRID_NORMS, *rows.DELTA_NET, *rows.DENSE),
        "mtp": rows.MTP,
    },
    has_mtp=True,
)
