"""The `general.*` keys of a checkpoint's GGUF, and the type that keeps its precision."""

from __future__ import annotations

import os
from collections import Counter
from math import prod

from llama_eagle.convert.dtypes import FILE_TYPE, QUANTIZATION_VERSION, kept_type
from llama_eagle.convert.settings.generation import sampling_keys
from llama_eagle.convert.source import Checkpoint
from llama_eagle.convert.table import Planned
from llama_eagle.convert.writer import GGUFOutput
from llama_eagle.files import expand_home

# Ends of the names of codes and of scales, in whose type a producer dequantizes: MLX, then Quanto.
_TYPED_SCALES = ((".weight", ".scales"), ("._data._data", "._scale"), ("._data", "._scale"))


def write_general(
    out: GGUFOutput,
    checkpoint: Checkpoint,
    tensors: list[Planned],
    outtype: str,
    *,
    kind: str = "model",
    name: str | None = None,
) -> None:
    """Write the `general.*` keys. kind: "model" or "mmproj". name: by default that of the folder or hub id."""
    out.key("general.type", kind)
    out.key("general.name", name or publishable_name(checkpoint).rpartition("/")[2])
    out.key("general.size_label", size_label(tensors))
    out.key("general.file_type", FILE_TYPE[outtype])
    out.key("general.quantization_version", QUANTIZATION_VERSION)
    for key, value in sampling_keys(checkpoint).items():
        out.key(key, value, "i32" if key.endswith("top_k") else None)


def publishable_name(checkpoint: Checkpoint) -> str:
    """Return a hub id unchanged, and only the last part of a local folder, because a GGUF may be published.

    A snapshot in a hub cache (models--ORG--NAME/snapshots/COMMIT) has the name of its repository.
    """
    source = expand_home(checkpoint.source)
    if not source.exists():
        return checkpoint.source
    folder = source.absolute() if source.name not in ("", "..") else source.resolve()
    if folder.parent.name == "snapshots" and folder.parents[1].name.startswith("models--"):
        return folder.parents[1].name.removeprefix("models--").replace("--", "/", 1)
    return os.fsencode(folder.name).decode("utf-8", "replace")


def stored_outtype(checkpoint: Checkpoint) -> str:
    """Return the outtype that keeps the precision of most of the checkpoint's matrices, by their values.

    Packed integers count as the model's own type, in which their producers dequantize them: f16 for GPTQ and AWQ, the
    type of the scales for MLX and Quanto.
    """
    sizes: Counter[str] = Counter()
    text = checkpoint.config.get("text_config")
    parts = (checkpoint.config, text if isinstance(text, dict) else {})
    half = any(part.get(name) == "float16" for part in parts for name in ("dtype", "torch_dtype"))
    names = set(checkpoint.names())
    for name in names:
        info = checkpoint.info(name)
        if len(info.shape) < 2:
            continue
        if (is_nf4 := f"{name}.absmax" in names) or (half and info.dtype == "I32"):
            sizes["f16" if half else "bf16"] += info.n_elements * (8 if is_nf4 else 1)
            continue
        scales = [name[: -len(end)] + scale for end, scale in _TYPED_SCALES if name.endswith(end)]
        dtype = next((checkpoint.info(scale).dtype for scale in scales if scale in names), info.dtype)
        sizes[kept_type(dtype)] += info.n_elements
    return max(sizes, key=sizes.__getitem__, default="bf16")


def size_label(tensors: list[Planned]) -> str:
    """Return the number of parameters for general.size_label, such as "4.0B".

    With experts it is, for example, "8x3.5B": the number of experts, and the size with one of them.
    """
    shared = sum(prod(t.shape) for t in tensors if "_exps." not in t.name)
    experts = [t for t in tensors if "_exps." in t.name]
    each = sum(prod(t.shape[1:]) for t in experts)
    label = _rounded(shared + each)
    return f"{experts[0].shape[0]}x{label}" if experts else label


def _rounded(count: int) -> str:
    units = ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K"))
    limit, unit = next((pair for pair in units if count > pair[0]), units[-1])
    scaled = count / limit
    digits = max(2 - len(str(round(scaled)).lstrip("0")), 0)
    return f"{scaled:.{digits}f}{unit}"
