"""Conversion of one checkpoint to one GGUF."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from pathlib import Path

from llama_eagle.convert import calibration
from llama_eagle.convert.foreign import refuse_foreign
from llama_eagle.convert.general import stored_outtype, write_general
from llama_eagle.convert.pooling import pooling_type
from llama_eagle.convert.quantized import check_quantizer, is_direct, write_as
from llama_eagle.convert.rows import of_mlx
from llama_eagle.convert.settings.generation import unstated_settings
from llama_eagle.convert.settings.known_keys import check_keys
from llama_eagle.convert.settings.options import TargetOptions, TargetReport
from llama_eagle.convert.source import Checkpoint, open_checkpoint
from llama_eagle.convert.source.coded import Scheme
from llama_eagle.convert.source.stated import checkpoint_scheme
from llama_eagle.convert.source.weights import Weights
from llama_eagle.convert.table import Plan, computed, plan, stored_type
from llama_eagle.convert.targets import reranker, vision
from llama_eagle.convert.targets.config import ModelConfig
from llama_eagle.convert.targets.conversion import Conversion, declared_head, find_conversion, mtp_blocks
from llama_eagle.convert.targets.mlx import NO_ENCODER, is_mlx_hybrid, left_out
from llama_eagle.convert.targets.preprocessing import image_statistics
from llama_eagle.convert.tokenizer import TokenizerData, accept, has_pieces, read_tokenizer
from llama_eagle.convert.writer import GGUFOutput, gguf_output
from llama_eagle.errors import ConfigError, ConversionError
from llama_eagle.files import refuse_sources


@dataclass(frozen=True)
class _Model:
    """A checkpoint, matched with its family's table."""

    checkpoint: Checkpoint
    conversion: Conversion
    config: ModelConfig
    dims: dict[str, int]
    plan: Plan
    n_mtp: int
    is_mlx: bool  # mlx-lm's form of a hybrid


def canonical(name: str) -> str:
    """Return a tensor's name without prefix.

    `model.language_model.layers.0.x`, `language_model.model.layers.0.x` and `model.layers.0.x` become `layers.0.x`.
    MLX's `vision_tower` is `visual`.
    """
    name = name.replace("language_model.", "", 1)
    name = name.removeprefix("model.")
    if name.startswith("vision_tower."):
        name = name.replace("vision_tower", "visual", 1)
    experts = ("experts.gate_up_proj.weight", "experts.down_proj.weight")
    return name.removesuffix(".weight") if name.endswith(experts) else name


def _match(checkpoint: Checkpoint, conversion: Conversion, config: ModelConfig, options: TargetOptions) -> _Model:
    dims = conversion.dims(config)
    scheme = checkpoint_scheme(checkpoint)
    weights = Weights(checkpoint, canonical, scheme)
    if any(map(weights.is_coded, weights.names())):
        _require_modules(checkpoint, weights, scheme)
    if _ties(config)[0] and "embed_tokens.weight" not in weights and "lm_head.weight" in weights:
        weights.rename("lm_head.weight", "embed_tokens.weight")  # safetensors' save_model() keeps one of both names
    only = options.mtp_only
    n_mtp = mtp_blocks(conversion, weights) if options.mtp or only else 0
    if only and not n_mtp:
        raise ConversionError(f"{checkpoint.source}: has no MTP block (mtp.*). Leave --mtp-only out.")
    reason = partial(conversion.reason, only_mtp=only)
    is_mlx = is_mlx_hybrid(weights, n_mtp)
    table = conversion.table(config, n_mtp, only_mtp=only)
    if is_mlx:
        table = [replace(section, rows=tuple(map(of_mlx, section.rows))) for section in table]
    if checkpoint.changes:
        checkpoint.changes.change_weights(weights, table)
    planned = plan(table, weights, dims, reason)
    if checkpoint.changes:
        checkpoint.changes.change_plan(planned, table, dims)
    planned.tensors += [computed(name, values) for name, values in conversion.extra(config, dims).items()]
    return _Model(checkpoint, conversion, config, dims, planned, n_mtp, is_mlx)


def _require_modules(checkpoint: Checkpoint, weights: Weights, scheme: Scheme) -> None:
    """Check that the modules that MLX's and Quanto's maps name are stored, or belong to a part that is left out."""
    maps = {"config.json: quantization": scheme.modules, "quanto_qmap.json": checkpoint.json_file("quanto_qmap.json")}
    for where, modules in maps.items():
        for module in modules or ():
            name = canonical(f"{module}.weight")
            if name not in weights and not name.startswith(("mtp.", "visual.")):
                raise ConversionError(f"{checkpoint.source}: {where} names {module[:200]}, which is not stored")
            if modules is scheme.modules and name in weights and not weights.is_coded(name):
                raise ConversionError(
                    f"{checkpoint.source}: {where} names {module[:200]}, but its scales are not stored; download the "
                    "checkpoint again"
                )


def _ties(config: ModelConfig) -> tuple[bool, bool]:
    """Return two flags: config.json ties the head to the embeddings, and it states that they are not tied."""
    stated = [part.get("tie_word_embeddings") for part in (config.root, config)]
    return True in stated, True not in stated and False in stated


def _require_head(model: _Model) -> None:
    """Check that a model without a head is tied by its configuration, because its embeddings are used as the head."""
    if any(tensor.name == "output.weight" for tensor in model.plan.tensors):
        return
    if _ties(model.config)[1]:
        raise ConversionError(f"{model.checkpoint.source}: lm_head.weight is missing, and config.json does not tie it")


def _write_keys(out: GGUFOutput, model: _Model) -> None:
    keys = model.conversion.keys(model.config, model.dims)
    keys["block_count"] = model.dims["n_layer"] + model.n_mtp
    if "attention.recurrent_layers" in keys:
        keys["attention.recurrent_layers"] += [False] * model.n_mtp
    if model.n_mtp:
        keys["nextn_predict_layers"] = model.n_mtp
    for name, value in keys.items():
        out.key(f"{model.conversion.arch}.{name}", value)


def _report(out: GGUFOutput, model: _Model, outtype: str, start: float) -> TargetReport:
    tensors = model.plan.tensors
    return TargetReport(
        arch=model.conversion.arch,
        outtype=outtype,
        outputs=out.written,
        n_tensors=len(tensors),
        n_params=sum(prod(t.shape) for t in tensors),
        n_bytes=out.n_bytes,
        n_layer=model.dims["n_layer"],
        n_mtp=model.n_mtp,
        seconds=time.monotonic() - start,
        dropped=dict(Counter(model.plan.dropped.values())),
    )


def _tokenizer_check(
    checkpoint: Checkpoint, tokenizer: TokenizerData, options: TargetOptions
) -> Callable[[Path], None] | None:
    compare = options.check_tokenizer
    if compare is None:
        return None

    def check(vocabulary: Path) -> None:
        found = compare(vocabulary, tokenizer)
        accept(found[:1], checkpoint.source, tokenizer.warnings, force=options.force_tokenizer)

    return check


def _convert(
    checkpoint: Checkpoint, conversion: Conversion, output: Path, outtype: str, options: TargetOptions, more: float
) -> TargetReport:
    """Write one GGUF of a type that needs no quantizer. more: as in gguf_output()."""
    start = time.monotonic()
    warnings = check_keys(checkpoint.config, checkpoint.source)
    model = _match(checkpoint, conversion, ModelConfig(checkpoint.config, checkpoint.source), options)
    _require_head(model)
    tokenizer = read_tokenizer(checkpoint, model.dims["vocab"], pre=options.pre, force=options.force_tokenizer)
    ranks = reranker.is_reranker(checkpoint, conversion.arch)
    if ranks:
        reranker.replace_head(model.plan, tokenizer, tied=_ties(model.config)[0])
    text = options.calibration
    vocabulary = calibration.draft_vocabulary(checkpoint, tokenizer, text) if text else []
    arch = conversion.arch
    with gguf_output(
        output,
        arch=arch,
        split_max_size=options.split_max_size,
        progress=options.progress,
        more=more,
        check=_tokenizer_check(checkpoint, tokenizer, options),
        cause=f"{checkpoint.source}: its configuration",
    ) as out:
        write_general(out, checkpoint, model.plan.tensors, outtype, name=options.name)
        _write_keys(out, model)
        if ranks:
            reranker.write_keys(out, arch)
        elif (pooling := pooling_type(checkpoint)) is not None:
            out.key(f"{arch}.pooling_type", pooling)
        tokenizer.write(out)
        out.key(calibration.KEY, vocabulary, "u32")
        for tensor in model.plan.tensors:
            out.tensor(tensor.name, tensor.shape, tensor.load, stored_type(tensor.name, tensor.shape, outtype))
    report = _report(out, model, outtype, start)
    report.is_reranker = ranks
    report.warnings += [*warnings, *tokenizer.warnings, *unstated_settings(checkpoint)]
    if options.mtp and not model.n_mtp and (key := declared_head(conversion, model.config)):
        report.warnings.append(
            f"{checkpoint.source}: config.json declares an MTP head ({key}), but none is stored (mlx-lm and fine-tunes "
            "leave it out), so the model has no drafter. The head of its base model drafts for it: convert it with "
            "--mtp-only into the same folder. After a fine-tune fewer of its tokens are accepted, until "
            "`llama-eagle train --kind mtp` adapts it"
        )
    report.warnings += [
        f"{checkpoint.source}: {missing}" for missing in left_out(conversion, model.config, model.is_mlx)
    ]
    if not tokenizer.chat_templates:
        report.warnings.append(f"{checkpoint.source}: has no chat template, which `generate` and `chat` need to answer")
    return report


def convert_vision(
    source: str | Path | Checkpoint, output: str | Path, options: TargetOptions | None = None
) -> TargetReport:
    """Convert the vision encoder of a checkpoint to an mmproj GGUF.

    Types and errors are those of convert_target, but types of the quantizer become f16.
    """
    options = options or TargetOptions()
    start = time.monotonic()
    checkpoint = open_checkpoint(source, revision=options.revision)
    refuse_sources(Path(output), [checkpoint.path])
    if find_conversion(checkpoint.config, checkpoint.source) is None:
        from llama_eagle.convert.upstream.convert import convert_encoder

        return convert_encoder(checkpoint, Path(output), options)
    names = checkpoint.config.get("architectures")
    if not isinstance(names, list) or names[:1] == [] or names[0] not in vision.ARCHITECTURES:
        raise ConfigError(f"{checkpoint.source}: {names!r:.80} has no supported vision encoder")
    if not checkpoint.config.get("vision_config"):
        raise ConfigError(f"{checkpoint.source}: {NO_ENCODER}")
    outtype = _outtype(checkpoint, options)
    outtype = outtype if is_direct(outtype) else "f16"
    config = ModelConfig(checkpoint.config, checkpoint.source, part="vision_config")
    model = _match(checkpoint, vision.CONVERSION, config, TargetOptions())
    statistics, warnings = image_statistics(checkpoint, model.dims)
    with gguf_output(Path(output), arch="clip", progress=options.progress) as out:
        write_general(out, checkpoint, model.plan.tensors, outtype, kind="mmproj", name=options.name)
        for name, value in vision.CONVERSION.keys(config, model.dims).items():
            out.key(f"clip.{name}", value)
        for name, values in statistics.items():
            out.key(f"clip.vision.{name}", values)
        for tensor in model.plan.tensors:
            out.tensor(tensor.name, tensor.shape, tensor.load, vision.vision_type(tensor.name, tensor.shape, outtype))
    report = _report(out, model, outtype, start)
    report.warnings += warnings
    return report


def _outtype(checkpoint: Checkpoint, options: TargetOptions) -> str:
    return stored_outtype(checkpoint) if options.outtype == "auto" else options.outtype.lower()


def convert_target(
    source: str | Path | Checkpoint, output: str | Path, options: TargetOptions | None = None
) -> TargetReport:
    """Convert a Hugging Face folder, hub id or open checkpoint to a GGUF that llama.cpp runs.

    Raises ConfigError or ConversionError for a damaged or unsupported checkpoint, UsageError for options that exclude
    each other, EnvironmentFailure for the disk; then nothing is left behind.
    """
    options = options or TargetOptions()
    check_quantizer(options.outtype, options.quantize)
    checkpoint = open_checkpoint(source, revision=options.revision)
    refuse_foreign(checkpoint)
    output = Path(output)
    refuse_sources(output, [checkpoint.path])
    conversion = find_conversion(checkpoint.config, checkpoint.source)
    if conversion is None or has_pieces(checkpoint):
        from llama_eagle.convert.upstream.convert import convert_by_llama_cpp

        return convert_by_llama_cpp(checkpoint, output, options)
    outtype = _outtype(checkpoint, options)
    quantize = options.quantize

    def write(path: Path, kind: str, more: float) -> TargetReport:
        kind = stored_outtype(checkpoint) if kind == "auto" else kind
        return _convert(checkpoint, conversion, path, kind, options, more)

    report, quantized = write_as(output, outtype, write, quantize)
    if quantized:
        report.outtype, report.outputs, report.n_bytes = outtype, [output], quantized.n_bytes
        report.seconds += quantized.seconds
        report.warnings += quantized.warnings
    return report
