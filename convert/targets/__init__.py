"""Conversion of targets: Hugging Face checkpoints of the supported families to GGUF.

A new family is one file with a CONVERSION, and its module in the list below.
"""

from __future__ import annotations

from llama_eagle.convert.settings.options import TargetOptions, TargetReport
from llama_eagle.convert.targets import llama, qwen2, qwen3, qwen3next, qwen3vl, qwen35
from llama_eagle.convert.targets.conversion import CONVERSIONS, check_target, find_conversion, register, ways
from llama_eagle.convert.targets.convert import convert_target, convert_vision

for _module in (qwen35, qwen3next, qwen3, qwen3vl, qwen2, llama):
    register(_module.CONVERSION)
for _module in (qwen35, qwen3, qwen3vl):
    register(_module.MOE_CONVERSION)

__all__ = [
    "CONVERSIONS",
    "TargetOptions",
    "TargetReport",
    "check_target",
    "convert_target",
    "convert_vision",
    "find_conversion",
    "ways",
]
