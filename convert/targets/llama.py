"""Llama 3: q and k rows reordered for ggml's RoPE over adjacent pairs, llama3 frequency factors as a tensor."""

from __future__ import annotations

from typing import Any

import numpy as np
from llama_eagle.convert import rows
from llama_eagle.convert.rope import llama3_factors
from llama_eagle.convert.table import Dims
from llama_eagle.convert.targets.config import ModelConfig, common_keys, dense_dims
from llama_eagle.convert.targets.conversion import Conversion, sections


def _keys(config: ModelConfig, dims: Dims) -> dict[str, Any]:
    return {**common_keys(config, dims, ("llama3",)), "vocab_size": dims["vocab"], "rope.dimension_count": dims["head"]}


def _extra(config: ModelConfig, dims: Dims) -> dict[str, np.ndarray]:
    if config.rope.text("rope_type") != "llama3":
        return {}
    return {"rope_freqs.weight": llama3_factors(config.rope, dims["head"], np.float32)}


CONVERSION = Conversion(
    arch="llama",
    architectures=("LlamaForCausalLM",),
    dims=lambda config: {**(dims := dense_dims(config)), "n_rot": dims["head"]},
    keys=_keys,
    sections=sections("llama", *rows.uniform(rows.PAIRS)),
    extra=_extra,
)
