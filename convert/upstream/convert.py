"""Conversion of one checkpoint to one GGUF by llama.cpp's converter."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from math import prod
from pathlib import Path

from llama_eagle.convert.dtypes import STORAGE
from llama_eagle.convert.general import publishable_name, stored_outtype
from llama_eagle.convert.quantized import is_direct, write_as
from llama_eagle.convert.settings.generation import unstated_settings
from llama_eagle.convert.settings.options import BY_LLAMA_CPP, TargetOptions, TargetReport
from llama_eagle.convert.source import Checkpoint
from llama_eagle.convert.source.adapter_kinds import BY_PEFT
from llama_eagle.convert.upstream.check import check_logits
from llama_eagle.convert.upstream.converter import ENCODER, require_class, require_packages
from llama_eagle.convert.upstream.encoders import check_encoder, refuse_unlike
from llama_eagle.convert.upstream.process import run_child
from llama_eagle.convert.upstream.stored import is_quantized
from llama_eagle.convert.upstream.vocabulary import check_tokens
from llama_eagle.errors import ConversionError, InputError, UsageError
from llama_eagle.files import check_output, temporary_next_to, write_error
from llama_eagle.gguf.header import read_header
from llama_eagle.gguf.validate import check_files
from llama_eagle.native.trials.decode import decode_logits

DRIVER = "llama_eagle.convert.upstream.driver"
CANNOT_RUN = "llama.cpp's converter wrote a model that cannot run"
REMEDY = "Download the checkpoint again; if it is complete, llama.cpp does not support it"
TRIED = (1,)  # token of the first decode


def convert_by_llama_cpp(checkpoint: Checkpoint, output: Path, options: TargetOptions) -> TargetReport:
    """Convert a target. Errors are those of `convert_target`."""
    _refuse_adapter(checkpoint)
    require_class(checkpoint.config, checkpoint.source)
    require_packages(checkpoint)
    _refuse_options(options, checkpoint.source)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        checkpoint.json_file(name)  # a damaged one is named before any work
    warnings = check_logits(checkpoint)
    outtype = _outtype(checkpoint, options.outtype)

    def write(path: Path, kind: str, more: float) -> TargetReport:
        start = time.monotonic()
        with _written(checkpoint, path, _outtype(checkpoint, kind), options, more) as temporary:
            found = check_tokens(temporary, checkpoint, options)
            _require_sound(temporary, checkpoint.source)
            if options.encoder:
                check_encoder(options.encoder, temporary, checkpoint)
            report = _report(temporary, path, _outtype(checkpoint, kind), start)
        report.warnings += [*warnings, *found, *unstated_settings(checkpoint)]
        return report

    report, quantized = write_as(output, outtype, write, options.quantize)
    if quantized:
        report.outtype, report.outputs, report.n_bytes = outtype, [output], quantized.n_bytes
        report.seconds += quantized.seconds
        report.warnings += quantized.warnings
    return report


def convert_encoder(checkpoint: Checkpoint, output: Path, options: TargetOptions) -> TargetReport:
    """Convert the encoder of images or sound. Types of the quantizer become f16."""
    _refuse_adapter(checkpoint)
    require_class(checkpoint.config, checkpoint.source, table=ENCODER)
    refuse_unlike(checkpoint.config, checkpoint.source)
    require_packages(checkpoint)
    start = time.monotonic()
    outtype = _outtype(checkpoint, options.outtype)
    outtype = outtype if is_direct(outtype) else "f16"
    with _written(checkpoint, output, outtype, options, 0.0, mmproj=True) as temporary:
        return _report(temporary, output, outtype, start)


def _outtype(checkpoint: Checkpoint, outtype: str) -> str:
    return stored_outtype(checkpoint) if outtype == "auto" else outtype.lower()


def _refuse_adapter(checkpoint: Checkpoint) -> None:
    if checkpoint.changes:
        raise ConversionError(
            f"{checkpoint.source}: llama.cpp's converter converts it, which merges no adapter. {BY_PEFT}."
        )


def _refuse_options(options: TargetOptions, source: str) -> None:
    given = {"--calibration": options.calibration, "--split-max-size": options.split_max_size}
    if name := next((name for name, value in given.items() if value), None):
        raise UsageError(f"{name} does not apply to {source}, which llama.cpp's converter converts. Leave it out.")


@contextlib.contextmanager
def _written(
    checkpoint: Checkpoint, output: Path, outtype: str, options: TargetOptions, more: float, *, mmproj: bool = False
) -> Iterator[Path]:
    """Yield a temporary file of a type that needs no quantizer; it gets its name at the end of the block.

    more: share of the file that the disk must have room for in addition.
    """
    total = _n_bytes(checkpoint, outtype)
    check_output(output, round(total * (1 + more)))
    with temporary_next_to(output) as (temporary,):
        request = {
            "folder": str(checkpoint.path.absolute()),
            "output": str(temporary.absolute()),
            "outtype": outtype,
            "name": options.name or publishable_name(checkpoint).rpartition("/")[2],
            "pre": options.pre,
            "decoded": is_quantized(checkpoint),
            "mmproj": mmproj,
            "no_mtp": not options.mtp,
            "mtp_only": options.mtp_only,
        }

        def show() -> None:
            if options.progress and temporary.exists():
                options.progress(min(temporary.stat().st_size, total), total, "")

        run_child(DRIVER, request, checkpoint.source, show)
        if options.progress:
            options.progress(total, total, "")
        yield temporary
        try:
            temporary.replace(output)
        except OSError as error:
            raise write_error(error, output, total) from error


def _n_bytes(checkpoint: Checkpoint, outtype: str) -> int:
    """Return about the size of the file."""
    _, block, size = STORAGE[outtype]
    return sum(checkpoint.info(name).n_elements for name in checkpoint.names()) * size // block


def _require_sound(file: Path, source: str) -> None:
    """Raise `ConversionError` for a model that `check` refuses or that llama.cpp does not run."""
    for finding in check_files([read_header(file)], with_tokenizer=False):
        if finding.level == "error":
            raise ConversionError(f"{source}: {CANNOT_RUN}: {finding.message}. {REMEDY}")
    try:
        decode_logits(file, TRIED)
    except InputError as error:
        raise ConversionError(f"{source}: {CANNOT_RUN}: {error}. {REMEDY}") from error


def _report(file: Path, output: Path, outtype: str, start: float) -> TargetReport:
    header = read_header(file)
    n_mtp = header.number("nextn_predict_layers")
    return TargetReport(
        arch=header.architecture,
        outtype=outtype,
        outputs=[output],
        n_tensors=len(header.tensors),
        n_params=sum(prod(tensor.shape) for tensor in header.tensors.values()),
        n_bytes=file.stat().st_size,
        n_layer=header.number("block_count") - n_mtp,
        n_mtp=n_mtp,
        seconds=time.monotonic() - start,
        way=BY_LLAMA_CPP,
    )
