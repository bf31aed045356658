"""One checkpoint to one GGUF."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_eagle.convert.checkpoint import Checkpoint, open_checkpoint
from llama_eagle.convert.dtypes import FILE_TYPE
from llama_eagle.convert.targets import vision
from llama_eagle.convert.targets.config import ModelConfig
from llama_eagle.convert.targets.registry import find_family
from llama_eagle.convert.targets.table import Family, Plan, Planned, plan
from llama_eagle.convert.targets.weights import Weights
from llama_eagle.convert.tokenizer import read_tokenizer
from llama_eagle.convert.writer import GGUFOutput, Progress, gguf_output
from llama_eagle.errors import ConfigError, ConversionError, UsageError
from llama_eagle.files import refuse_sources, temporary_beside

if TYPE_CHECKING:
    from llama_eagle.quantize.quantize import QuantizeOptions

# Matrices that llama.cpp reads as float32 only, besides everything with one dimension and every norm.
_ALWAYS_F32 = ("ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", "ssm_conv1d.weight")


@dataclass(frozen=True)
class TargetOptions:
    """How to convert. outtype: "auto" (as stored), f32, bf16, f16, q8_0, or any type of llama.cpp's quantizer."""

    outtype: str = "auto"
    mtp: bool = True  # keep the next-token-prediction block, if there is one
    pre: str | None = None  # llama.cpp's pre-tokenizer name, where tokenizer.json's is not known
    name: str | None = None  # general.name; by default the folder's or the hub id's
    revision: str | None = None  # of a hub id
    split_max_size: int = 0  # bytes of tensor data per file; 0: one file
    progress: Progress | None = None
    quantize: QuantizeOptions | None = None  # given, or for types that are not written directly: llama.cpp's quantizer


@dataclass
class TargetReport:
    """What was written."""

    arch: str
    outtype: str
    outputs: list[Path]
    n_tensors: int
    n_params: int
    n_bytes: int
    n_layer: int
    n_mtp: int
    seconds: float
    dropped: dict[str, int] = field(default_factory=dict)  # reason -> number of source tensors


def stored_type(name: str, shape: tuple[int, ...], outtype: str) -> str:
    """The type of one tensor in a file of `outtype`, by llama.cpp's rules."""
    if len(shape) <= 1 or name.endswith(("_norm.weight", *_ALWAYS_F32)) or not name.endswith(".weight"):
        return "f32"
    if outtype == "q8_0" and shape[-1] % 32:
        return "f16"
    return outtype


def _stored_outtype(checkpoint: Checkpoint) -> str:
    """The outtype that keeps the checkpoint's own precision: that of its first matrix; FP8 becomes bf16."""
    for name in checkpoint.names():
        info = checkpoint.info(name)
        if len(info.shape) >= 2:
            return {"F16": "f16", "F32": "f32", "F64": "f32"}.get(info.dtype, "bf16")
    return "bf16"


def size_label(tensors: list[Planned]) -> str:
    """Parameters in words for general.size_label: "4.0B", or "8x3.5B": experts times the size with one of them."""
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


def _sampling_keys(checkpoint: Checkpoint) -> dict[str, Any]:
    """The author's sampling defaults, which llama.cpp's tools take over."""
    settings = checkpoint.json_file("generation_config.json") or {}
    keys: dict[str, Any] = {}
    names = {"top_k": int, "top_p": float, "min_p": float, "temperature": float, "repetition_penalty": float}
    short = {"temperature": "temp", "repetition_penalty": "penalty_repeat"}
    for name, kind in names.items():
        value = settings.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            keys[f"general.sampling.{short.get(name, name)}"] = kind(value)
    return keys


def _require_head(checkpoint: Checkpoint, planned: Plan) -> None:
    """A missing head means that the embeddings are used, which is right only where the configuration says so."""
    if any(tensor.name == "output.weight" for tensor in planned.tensors):
        return
    config, text = checkpoint.config, checkpoint.config.get("text_config") or {}
    if True not in (said := [config.get("tie_word_embeddings"), text.get("tie_word_embeddings")]) and False in said:
        raise ConversionError(f"{checkpoint.source}: lm_head.weight is missing, and config.json does not tie it")


def _write_general(
    out: GGUFOutput, checkpoint: Checkpoint, planned: Plan, options: TargetOptions, kind: str, outtype: str
) -> None:
    out.key("general.type", kind)
    out.key("general.name", options.name or Path(checkpoint.source).name or checkpoint.path.resolve().name)
    out.key("general.size_label", size_label(planned.tensors))
    out.key("general.file_type", FILE_TYPE[outtype])
    out.key("general.quantization_version", 2)
    for name, value in _sampling_keys(checkpoint).items():
        out.key(name, value, "i32" if name.endswith("top_k") else None)


def _write_keys(out: GGUFOutput, family: Family, config: ModelConfig, planned: Plan, dims: dict[str, int]) -> None:
    keys = family.keys(config, dims)
    keys["block_count"] = dims["n_layer"] + planned.n_mtp
    if "attention.recurrent_layers" in keys:
        keys["attention.recurrent_layers"] += [False] * planned.n_mtp
    if planned.n_mtp:
        keys["nextn_predict_layers"] = planned.n_mtp
    for name, value in keys.items():
        out.key(f"{family.arch}.{name}", value)


def _report(
    out: GGUFOutput, family: Family, planned: Plan, dims: dict[str, int], outtype: str, start: float
) -> TargetReport:
    return TargetReport(
        arch=family.arch,
        outtype=outtype,
        outputs=out.written,
        n_tensors=len(planned.tensors),
        n_params=sum(prod(t.shape) for t in planned.tensors),
        n_bytes=out.n_bytes,
        n_layer=dims["n_layer"],
        n_mtp=planned.n_mtp,
        seconds=time.monotonic() - start,
        dropped=dict(Counter(planned.dropped.values())),
    )


def _convert(checkpoint: Checkpoint, output: Path, outtype: str, options: TargetOptions) -> TargetReport:
    """Writes one GGUF of a type that needs no quantizer."""
    start = time.monotonic()
    family = find_family(checkpoint.config, checkpoint.source)
    config = ModelConfig(checkpoint.config, checkpoint.source)
    dims = family.dims(config)
    weights = Weights(checkpoint)
    planned = plan(family, config, weights, dims, keep_mtp=options.mtp)
    _require_head(checkpoint, planned)
    tokenizer = read_tokenizer(checkpoint, dims["vocab"], pre=options.pre)
    with gguf_output(output, arch=family.arch, split_max_size=options.split_max_size, progress=options.progress) as out:
        _write_general(out, checkpoint, planned, options, "model", outtype)
        _write_keys(out, family, config, planned, dims)
        tokenizer.write(out)
        for tensor in planned.tensors:
            out.tensor(tensor.name, tensor.shape, tensor.load, stored_type(tensor.name, tensor.shape, outtype))
    return _report(out, family, planned, dims, outtype, start)


def convert_vision(source: str | Path, output: str | Path, options: TargetOptions | None = None) -> TargetReport:
    """Converts the vision tower of a checkpoint to an mmproj GGUF. Types and errors as convert_target's, but no
    quantizer types: those become f16."""
    options = options or TargetOptions()
    start = time.monotonic()
    checkpoint = open_checkpoint(source, revision=options.revision)
    refuse_sources(Path(output), [checkpoint.path])
    names = checkpoint.config.get("architectures")
    if not isinstance(names, list) or names[:1] == [] or names[0] not in vision.ARCHITECTURES:
        raise ConfigError(f"{checkpoint.source}: {names!r:.80} has no vision tower that can be converted")
    if not checkpoint.config.get("vision_config"):
        raise ConfigError(f"{checkpoint.source}: config.json has no vision_config")
    outtype = _stored_outtype(checkpoint) if options.outtype == "auto" else options.outtype.lower()
    outtype = outtype if outtype in FILE_TYPE else "f16"
    ModelConfig(checkpoint.config, checkpoint.source)  # text_config, whose width counts, is an object
    config = ModelConfig(checkpoint.config, checkpoint.source, part="vision_config")
    dims = vision.FAMILY.dims(config)
    planned = plan(vision.FAMILY, config, Weights(checkpoint), dims)
    choose = vision.vision_type(outtype)
    with gguf_output(Path(output), arch="clip", progress=options.progress) as out:
        _write_general(out, checkpoint, planned, options, "mmproj", outtype)
        for name, value in vision.FAMILY.keys(config, dims).items():
            out.key(f"clip.{name}", value)
        for name, values in vision.image_statistics(checkpoint).items():
            out.key(f"clip.vision.{name}", values)
        for tensor in planned.tensors:
            out.tensor(tensor.name, tensor.shape, tensor.load, choose(tensor.name, tensor.shape))
    return _report(out, vision.FAMILY, planned, dims, outtype, start)


def convert_target(source: str | Path, output: str | Path, options: TargetOptions | None = None) -> TargetReport:
    """Converts a Hugging Face folder or hub id to a GGUF that llama.cpp runs.

    Raises ConfigError or ConversionError for a checkpoint that is damaged or not supported, UsageError for options
    that do not fit together, EnvironmentFailure for the disk; then nothing is left behind.
    """
    options = options or TargetOptions()
    checkpoint = open_checkpoint(source, revision=options.revision)
    output = Path(output)
    refuse_sources(output, [checkpoint.path])
    outtype = _stored_outtype(checkpoint) if options.outtype == "auto" else options.outtype.lower()
    if outtype in FILE_TYPE and options.quantize is None:
        return _convert(checkpoint, output, outtype, options)
    if options.split_max_size:
        raise UsageError(f"--split-max-size works with plain {', '.join(FILE_TYPE)} files, not with the quantizer")
    from llama_eagle.quantize.quantize import check_type, quantize  # needs the native library

    check_type(outtype)
    with temporary_beside(output) as (middle,):
        report = _convert(checkpoint, middle, _stored_outtype(checkpoint), options)
        quantized = quantize(middle, output, outtype, options.quantize)
    report.outtype, report.outputs, report.n_bytes = outtype, [output], quantized.n_bytes
    report.seconds += quantized.seconds
    return report
