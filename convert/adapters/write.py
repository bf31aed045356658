"""Conversion of a peft adapter to a GGUF adapter of one target."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from llama_eagle.convert.adapters.placed import Placed, place_pairs, unplaced
from llama_eagle.convert.adapters.reader import Adapter, read_adapter
from llama_eagle.convert.dtypes import FILE_TYPE, QUANTIZATION_VERSION
from llama_eagle.convert.source.adapter_kinds import MERGE
from llama_eagle.convert.table import Dims, Section, whole_blocks
from llama_eagle.convert.targets.conversion import CONVERSIONS, Conversion
from llama_eagle.convert.writer import Progress, gguf_output
from llama_eagle.errors import ConversionError, IncompatibleModels, UsageError
from llama_eagle.files import refuse_sources
from llama_eagle.gguf.header import Header
from llama_eagle.gguf.pairing import require_target
from llama_eagle.gguf.validate import read_sound
from llama_eagle.gguf.validate.adapters import EMBEDDING, HEAD
from llama_eagle.gguf.validate.targets import recurrent_blocks, target_sizes


@dataclass
class AdapterReport:
    """Report of a conversion. rank: the largest. alpha: of the file; pairs of another scale have it in lora_b."""

    output: str
    outtype: str
    n_pairs: int
    rank: int
    alpha: float
    n_bytes: int
    warnings: list[str] = field(default_factory=list)


def convert_adapter(
    folder: Path, target: Path, output: Path, outtype: str = "auto", progress: Progress | None = None
) -> AdapterReport:
    """Convert a LoRA adapter to a GGUF for one target's GGUF. outtype: a direct type; "auto": f32.

    Raises ConfigError or ConversionError for a fault of the adapter, or for what a GGUF cannot hold, IncompatibleModels
    for an adapter of another model; then nothing is written.
    """
    outtype = "f32" if outtype == "auto" else outtype
    if outtype not in FILE_TYPE:
        raise UsageError(f"--outtype {outtype}: an adapter has one of the types {', '.join(FILE_TYPE)}.")
    header, files = read_sound(target)
    require_target(header)
    adapter = read_adapter(folder)
    refuse_sources(output, [folder, *(file.path for file in files)])
    placed = _place(adapter, header, files)
    alpha = _common_alpha(placed)
    with gguf_output(output, arch=header.architecture, progress=progress) as out:
        out.key("general.type", "adapter")
        out.key("general.name", folder.resolve().name)
        out.key("general.file_type", FILE_TYPE[outtype])
        out.key("general.quantization_version", QUANTIZATION_VERSION)
        out.key("adapter.type", "lora")
        out.key("adapter.lora.alpha", alpha, "f32")
        for each in placed:
            for part, values in _parts(each, alpha).items():
                name = f"{each.name}.lora_{part}"
                out.tensor(name, values.shape, partial(np.asarray, values), whole_blocks(values.shape, outtype))
    rank = max(each.rank for each in placed)
    return AdapterReport(str(output), outtype, len(placed), rank, alpha, out.n_bytes)


def _place(adapter: Adapter, header: Header, files: Sequence[Header]) -> list[Placed]:
    conversion = next((each for each in CONVERSIONS.values() if each.arch == header.architecture), None)
    if conversion is None:
        known = ", ".join(sorted({each.arch for each in CONVERSIONS.values()}))
        raise ConversionError(
            f"{header.path}: adapters of {header.architecture} models are not converted; supported: {known}. Merge the "
            "adapter with peft, and convert the merged model with llama-eagle convert."
        )
    sections, dims = _sections(conversion, header), _dims(header)
    if other := unplaced(adapter, sections, dims):
        raise IncompatibleModels(f"{adapter.where}: {_reason(other[0], header)}")
    stored = {name for file in files for name in file.tensors}
    placed = list(place_pairs(adapter, sections, dims))
    for each in placed:
        if fault := _lacking(each, stored):
            raise IncompatibleModels(f"{adapter.where}: {fault}")
    return placed


def _reason(module: str, header: Header) -> str:
    if re.search(r"\b(visual|vision_tower)\.", module):
        return (
            f"{module} is of the vision encoder, to which llama.cpp applies no adapter. {MERGE} --mmproj MMPROJ.gguf."
        )
    return (
        f"{header.path.name} ({header.architecture}) has no matrix for {module}. Give the model that the adapter was "
        "trained for."
    )


def _lacking(placed: Placed, stored: set[str]) -> str | None:
    """Return the reason why llama.cpp cannot apply a pair to these tensors."""
    if placed.name == EMBEDDING and HEAD not in stored:
        return (
            f"{placed.module} changes {EMBEDDING}, which is also this model's output matrix: llama.cpp cannot apply "
            f"that. {MERGE} (the head becomes a matrix of its own)."
        )
    if placed.name == HEAD and HEAD not in stored:
        return f"{placed.module} changes the output matrix, which this model shares with its embeddings. {MERGE}."
    if placed.name not in stored:
        return (
            f"the target has no tensor {placed.name}: it joins matrices that the adapter changes one by one. Convert "
            "the target with llama-eagle convert, which does not join them."
        )
    return None


def _sections(conversion: Conversion, header: Header) -> list[Section]:
    """Return the table of the target's blocks, by the keys of its GGUF."""
    kinds = ["linear" if is_recurrent else "full" for is_recurrent in recurrent_blocks(header)]
    n_mtp = int(header.arch_key("nextn_predict_layers", 0))
    blocks = enumerate(kinds[: len(kinds) - n_mtp])
    found = [Section(conversion.sections["model"])]
    return found + [Section(conversion.sections[kind], f"layers.{i}.", f"blk.{i}.") for i, kind in blocks]


def _dims(header: Header) -> Dims:
    """Return the converter's names of the sizes in a GGUF's keys."""
    sizes = target_sizes(header)
    lin_k, lin_v, groups = sizes["lk"], sizes["lv"], int(header.arch_key("ssm.group_count", 0))
    return {
        **{name: sizes[name] for name in ("vocab", "embd", "ff", "head", "q", "experts", "conv")},
        "kv": sizes["k"],
        "n_rot": sizes["head"],
        "expert_ff": sizes["eff"],
        "shared_ff": sizes["sff"],
        "k_heads": groups,
        "v_heads": sizes["rank"],
        "k_head": sizes["state"],
        "v_head": sizes["state"],
        "lin_k": lin_k,
        "lin_v": lin_v,
        "lin_qkv": 2 * lin_k + lin_v,
        "lin_qkvz": 2 * lin_k + 2 * lin_v,
    }


def _common_alpha(placed: Sequence[Placed]) -> float:
    """Return the alpha of most pairs. llama.cpp reads 0 as "no alpha", which is a scale of 1."""
    counts = Counter(each.alpha for each in placed if each.alpha)
    return counts.most_common(1)[0][0] if counts else 1.0


def _parts(placed: Placed, alpha: float) -> Mapping[str, Any]:
    """Return the tensors of a pair; lora_b has the factor of another alpha. Rows of the embeddings' a are looked up."""
    a, b = placed.a, placed.b if placed.alpha == alpha else placed.b * np.float32(placed.alpha / alpha)
    return {"a": b, "b": a.T} if placed.name == EMBEDDING else {"a": a, "b": b}
