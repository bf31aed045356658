"""The ways in which producers store quantized weights: names and types of the tensors, and their decoders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from llama_eagle.convert.source import bitsandbytes, decode, mlx, quanto
from llama_eagle.convert.source.coded import Scheme
from llama_eagle.convert.source.decode import Parts, Shape


@dataclass(frozen=True)
class Coding:
    """One way in which quantized weights are stored.

    marker: the end of the codes' name, instead of `weight`. parts: role -> possible ends, instead of the marker. shape:
    returns the shape of the weight from those of the codes and the parts. fits: returns True if the codes may have
    another shape, which the table then decides. in_bits: without a table, the columns follow from config.json's bits.
    by_rows: rows of the codes and of all parts are decoded alone.
    """

    marker: str
    weight: str
    dtypes: tuple[str, ...]
    parts: Mapping[str, tuple[str, ...]]
    decode: Callable[[np.ndarray, str, Parts, Scheme, Shape], np.ndarray]
    shape: Callable[[Shape, Mapping[str, Shape]], Shape] = lambda codes, parts: codes
    required: tuple[str, ...] = ("scale",)
    fits: Callable[[Shape, Shape], bool] | None = None
    in_bits: bool = False
    by_rows: bool = False

    @property
    def is_marked(self) -> bool:
        """True if the name of the codes shows that they are codes."""
        return self.marker != self.weight

    def stem(self, name: str) -> str:
        return name[: len(name) - len(self.marker)]

    def has_part(self, name: str, names: Mapping[str, str]) -> bool:
        stem = self.stem(name)
        return any(stem + end in names for ends in self.parts.values() for end in ends)


CODES = ("F8_E4M3", "F8_E5M2", "U32")  # types of codes even without scales
QDATA = "._weight_qdata"
_SCALED = ("F8_E4M3", "F8_E5M2", "I8")
_TORCHAO = {
    "scale": ("._weight_scale", "._weight_scale_and_zero"),
    "zero": ("._weight_zero_point",),
    "factor": ("._weight_per_tensor_scale",),
    "inputs": ("._weight_act_pre_scale",),
}
_NESTED = {"nested": (".nested_absmax",), "nested_table": (".nested_quant_map",)}
CODINGS = (
    Coding(  # compressed-tensors
        "_packed", "", ("I32",),
        {"scale": ("_scale",), "zero": ("_zero_point",), "shape": ("_shape",), "group": ("_g_idx",)},
        decode.packed, required=("scale", "shape"),
    ),
    Coding(
        "_packed", "", ("U8",), {"scale": ("_scale",), "divisor": ("_global_scale",)},
        decode.in_bytes, decode.in_bytes_shape,
    ),
    Coding(  # GPTQ, AWQ
        ".qweight", ".weight", ("I32",), {"scale": (".scales",), "zero": (".qzeros",), "group": (".g_idx",)},
        decode.words, decode.words_shape, required=("scale", "zero"),
    ),
    Coding(QDATA, ".weight", _SCALED, _TORCHAO, decode.scaled),
    Coding(QDATA, ".weight", ("U8",), _TORCHAO, decode.in_bytes, decode.in_bytes_shape),
    # optimum-quanto
    Coding(
        "._data._data", "", ("U8",), {"scales": ("._scale",), "shift": ("._shift",)},
        quanto.few_bits, required=("scales", "shift"), fits=quanto.fits,
    ),
    Coding("._data", "", _SCALED, {"scales": ("._scale",)}, quanto.eight_bits, required=("scales",)),
    # MLX, and Metal of transformers
    Coding(
        ".weight", ".weight", ("U32",),
        {"scales": (".scales",), "biases": (".biases",), "qbiases": (".qbiases",), "factor": (".global_scale",)},
        mlx.decode, required=("scales",), fits=mlx.fits, in_bits=True, by_rows=True,
    ),
    # bitsandbytes; 4 bits may be stored in elements of another type
    Coding(
        "", "", ("U8", "BF16", "F16", "F32"),
        {
            "scales": (".absmax",), "table": (".quant_map",),
            "state": (".quant_state.bitsandbytes__nf4", ".quant_state.bitsandbytes__fp4"), **_NESTED,
        },
        bitsandbytes.four_bits, required=("scales", "table", "state"),
    ),
    Coding(".weight", ".weight", ("I8",), {"scale": (".SCB",), "layout": (".weight_format",)}, bitsandbytes.eight_bits),
    # scales in the names of transformers, then of compressed-tensors and ModelOpt
    Coding("", "", _SCALED, {"scale": ("_scale_inv", "_scale"), "zero": ("_zero_point",)}, decode.scaled),
    Coding("", "", ("U8",), {"scale": ("_scale",), "factor": ("_scale_2",)}, decode.in_bytes, decode.in_bytes_shape),
)  # fmt: skip
