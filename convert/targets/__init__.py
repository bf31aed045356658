"""Conversion of targets: Hugging Face checkpoints of the supported families to GGUF.

A new family is one file with a FAMILY, and its module in the list below.
"""

from __future__ import annotations

from llama_eagle.convert.targets import llama, qwen2, qwen3, qwen3next, qwen3vl, qwen35
from llama_eagle.convert.targets.convert import TargetOptions, TargetReport, convert_target, convert_vision
from llama_eagle.convert.targets.family import FAMILIES, find_family, register

for _module in (qwen35, qwen3next, qwen3, qwen3vl, qwen2, llama):
    register(_module.FAMILY)
for _module in (qwen35, qwen3, qwen3vl):
    register(_module.MOE_FAMILY)

__all__ = ["FAMILIES", "TargetOptions", "TargetReport", "convert_target", "convert_vision", "find_family"]
