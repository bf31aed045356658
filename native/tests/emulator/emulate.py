#!/usr/bin/env python3
"""Translate CUDA sources to C++ for the emulator.

emulate.py launches SOURCE.cu OUT.cpp        kernel<<<grid, block, 0, stream>>>(...) becomes a call of emulator::launch
emulate.py dot_products VECDOTQ.cuh OUT.cuh  copies ggml-cuda's integer dot products that our kernels use
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

LAUNCH = re.compile(r"^( *)([\w<>, ]+?)<<<(.+), (\w+|dim3\([^)]*\)), 0, [^>]*>>>\((.*)\);$", re.MULTILINE)
FUNCTIONS = ["get_int_b2", "get_int_b4"]
FUNCTIONS += [f"vec_dot_{name}" for name in (
    "q4_0_q8_1_impl", "q8_0_q8_1_impl", "q4_K_q8_1_impl_vmmq", "q5_K_q8_1_impl_vmmq", "q6_K_q8_1_impl_mmvq",
    "q4_0_q8_1", "q8_0_q8_1", "q4_K_q8_1", "q5_K_q8_1", "q6_K_q8_1",
)]  # fmt: skip


def launches(source: str) -> str:
    done, n = LAUNCH.subn(r"\1emulator::launch(\3, \4, [=] { \2(\5); });", source)
    assert n == source.count("<<<"), f"{source.count('<<<') - n} launches are written otherwise than the others"
    return done


def dot_products(source: str) -> str:
    lines = source.splitlines()
    out = [
        "#pragma once",
        '#include "ggml-cuda/common.cuh"',
        *(line for line in lines if line.startswith("#define VDR_")),
    ]
    for name in FUNCTIONS:
        (first,) = (i for i, line in enumerate(lines) if f" {name}(" in line and "static __device__" in line)
        out += lines[first : lines.index("}", first) + 1]
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    _, action, source, out = sys.argv
    text = Path(source).read_text(encoding="utf-8")
    Path(out).write_text({"launches": launches, "dot_products": dot_products}[action](text), encoding="utf-8")
