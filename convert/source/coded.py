"""Quantization settings of config.json: the formats that are read, and what their tensors do not tell.

The tensors' names, types and shapes determine how a weight is decoded (weights.py, decode.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from llama_eagle.errors import ConfigError

_COMPRESSED = {  # formats of compressed-tensors
    "float-quantized", "int-quantized", "naive-quantized", "pack-quantized", "mixed-precision",
    "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp6-pack-quantized", "mxfp8-quantized",
}  # fmt: skip
_MODELOPT = {
    "FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "FP8_PB_REAL", "NVFP4", "W4A16_NVFP4", "W4A8_NVFP4_FP8", "MXFP4",
    "W4A8_MXFP4_FP8", "MXFP8", "W8A16", "W8A8_SQ_PER_CHANNEL", "W4A16_AWQ", "W4A8_AWQ", "NVFP4_AWQ", "MIXED_PRECISION",
}  # fmt: skip
MLX_BITS = (1, 2, 3, 4, 5, 6, 8)
_MLX: dict[str, tuple[Any, ...]] = {
    "bits": MLX_BITS,
    "group_size": (16, 32, 64, 128),
    "mode": ("affine", "mxfp4", "nvfp4", "mxfp8"),
    "global_scale": (True, False),
}


@dataclass(frozen=True)
class Scheme:
    """Facts that only config.json states.

    block: rows and columns of one FP8 scale. bits: possible widths of packed integers. zero_shift: what is added to
    GPTQ's stored zero points. carries: in whole words, which restores the zero points of 0 that GPTQModel subtracted 1
    from; AutoGPTQ adds to each alone. modules: MLX's bits of single modules.
    """

    block: tuple[int, int] | None = None
    bits: tuple[int, ...] = (4,)
    zero_shift: int = 1
    carries: bool = False
    modules: Mapping[str, int] = field(default_factory=dict)


def quantization_configs(config: dict[str, Any]) -> Iterator[Any]:
    """Yield what config.json states about quantization: at its top level, then in its parts."""
    inner = (config.get(key) for key in ("text_config", "transformer_layer_config"))
    keys = ("quantization_config", "compression_config", "quantization")  # the second is older, the third MLX's
    yield from filter(None, (part.get(key) for part in (config, *inner) if isinstance(part, dict) for key in keys))


def read_scheme(config: dict[str, Any], *, strict: bool = True) -> Scheme:
    """Return the scheme of a checkpoint. Raises ConfigError for an unsupported one.

    With strict=False, return the default instead: a draft's configuration may be a copy of its target's, and its
    tensors decide.
    """
    found = next(quantization_configs(config), None)
    if found is None:
        return Scheme()
    scheme = _scheme(found) if isinstance(found, dict) else None
    if scheme is not None or not strict:
        return scheme or Scheme()
    method = found.get("quant_method") if isinstance(found, dict) else found
    names = ("format", "quant_algo", "checkpoint_format", "version", "packing_format")
    kind = next(filter(None, map(found.get, names)), None) if isinstance(found, dict) else None
    raise ConfigError(
        f"the checkpoint is quantized with {method!r}{f' ({kind})' if kind else ''}, which cannot be read "
        "(docs/targets.md lists what can): convert the unquantized checkpoint and quantize the GGUF"
    )


def _scheme(found: dict[str, Any]) -> Scheme | None:
    """Return None for a format that is not read."""
    method = found.get("quant_method")
    if method is None and {"group_size", "bits"} <= found.keys():
        return _mlx_scheme(found)
    if method == "metal" and found.get("bits") in MLX_BITS:
        return Scheme(bits=(found["bits"],))
    if method == "fp8":
        return Scheme(block=_pair(found.get("weight_block_size"), "weight_block_size"))
    if method == "compressed-tensors":
        return _compressed_scheme(found)
    if method == "modelopt":
        return Scheme() if str(found.get("quant_algo")).upper() in _MODELOPT else None
    kind = str(found.get("checkpoint_format") or found.get("format") or "gptq").lower()
    if method == "gptq" and kind in ("gptq", "gptq_v2"):
        shift = 1 if kind == "gptq" else 0
        return Scheme(zero_shift=shift, carries="gptqmodel" in str(found.get("meta")).lower())
    if method in ("auto-round", "intel/auto-round"):
        packing = str(found.get("packing_format"))
        return Scheme(zero_shift=1 if "gptq" in packing and "gptqmodel" not in packing else 0)
    packing = str(found.get("version") or found.get("format") or "gemm").lower()
    known = method in ("torchao", "bitsandbytes") or (
        method == "awq" and packing == "gemm" and found.get("backend") != "llm-awq"
    )
    return Scheme() if known else None


def _mlx_scheme(found: dict[str, Any]) -> Scheme:
    """Return the bits of MLX's modules, whose names are keys. Those of other modules follow from the table's shapes."""
    modules = {name: value for name, value in found.items() if isinstance(value, dict)}
    general = {name: value for name, value in found.items() if not isinstance(value, (dict, bool))}
    for name, settings in (("", general), *modules.items()):
        for key, value in settings.items():
            if value is not None and value not in _MLX.get(key, ()):
                raise ConfigError(
                    f"config.json: quantization: {f'{name}: ' if name else ''}{key} is {value!r:.80}, which is unknown "
                    "for MLX (docs/targets.md lists what is read): convert the unquantized checkpoint"
                )
    bits = {name: int(settings.get("bits") or 4) for name, settings in (("", general), *modules.items())}
    return Scheme(bits=(bits.pop(""),), modules=bits)


def _compressed_scheme(found: dict[str, Any]) -> Scheme | None:
    """Return None for formats or groups that are not read."""
    groups = found.get("config_groups")
    if not isinstance(groups, dict) or not all(isinstance(group, dict) for group in groups.values()):
        return None
    formats = {found.get("format"), *(group.get("format") for group in groups.values())} - {None}
    weights = [group["weights"] for group in groups.values() if group.get("weights") is not None]  # else: attention
    if not weights or not all(isinstance(each, dict) for each in weights) or not formats <= _COMPRESSED:
        return None
    blocks = {_pair(each.get("block_structure"), "block_structure") for each in weights} - {None}
    bits = [each["num_bits"] for each in weights if type(each.get("num_bits")) is int]
    return Scheme(next(iter(blocks), None), tuple(bits) or (4,)) if len(blocks) < 2 else None


def _pair(value: Any, name: str) -> tuple[int, int] | None:
    if value is None:
        return None
    if isinstance(value, str):  # "128x128" in older files
        value = [int(n) for n in value.split("x") if n.isdecimal()]
    if not (isinstance(value, list) and len(value) == 2 and all(type(n) is int and n > 0 for n in value)):
        raise ConfigError(f"config.json: {name} is {value!r}, expected two positive numbers such as [128, 128]")
    return value[0], value[1]
