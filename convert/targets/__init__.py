"""Targets: Hugging Face checkpoints of the supported families to GGUF.

A new family is one file with a FAMILY and one line here.
"""

from __future__ import annotations

from llama_eagle.convert.targets import (
    llama,
    qwen2,
    qwen3,
    qwen3moe,
    qwen3next,
    qwen3vl,
    qwen3vlmoe,
    qwen35,
    qwen35moe,
)
from llama_eagle.convert.targets.convert import TargetOptions, TargetReport, convert_target, convert_vision
from llama_eagle.convert.targets.registry import find_family, register

for _module in (qwen35, qwen35moe, qwen3next, qwen3, qwen3moe, qwen3vl, qwen3vlmoe, qwen2, llama):
    register(_module.FAMILY)

__all__ = ["TargetOptions", "TargetReport", "convert_target", "convert_vision", "find_family"]
