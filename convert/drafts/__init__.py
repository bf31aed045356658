"""EAGLE-3 drafts of every published format to GGUF: `convert_draft`, and `is_draft` to tell them from targets."""

from __future__ import annotations

from pathlib import Path

from llama_eagle.convert.checkpoint import Checkpoint, open_checkpoint
from llama_eagle.convert.drafts.mapping import canonical
from llama_eagle.convert.drafts.producers import looks_like_draft
from llama_eagle.convert.drafts.reader import Draft, read_draft
from llama_eagle.convert.drafts.report import DraftOptions, DraftReport, OutType, TensorRow
from llama_eagle.convert.drafts.target import Target, open_target
from llama_eagle.convert.drafts.write import ARCH, add_keys, add_tensors, extended_because
from llama_eagle.convert.writer import GGUFOutput, Progress, gguf_output
from llama_eagle.errors import ConfigError, ConversionError, EagleError, UsageError
from llama_eagle.files import refuse_sources
from llama_eagle.gguf.header import read_model

__all__ = ["DraftOptions", "DraftReport", "OutType", "TensorRow", "convert_draft", "is_draft"]


def is_draft(checkpoint: Checkpoint) -> bool:
    """Is this checkpoint a draft head? Decided by its configuration, else by its tensor names."""
    if looks_like_draft(checkpoint.config):
        return True
    try:
        names = {canonical(name) for name in checkpoint.names()}
    except EagleError:
        return False  # a target without readable weights: its own conversion says what is wrong
    return "fc.weight" in names


def convert_draft(
    source: str | Path | Checkpoint,
    target: str | Path,
    output: str | Path,
    options: DraftOptions | None = None,
    progress: Progress | None = None,
) -> DraftReport:
    """Writes the draft `source` as `output`, to run beside `target`.

    source: folder, hub id or open checkpoint. target: folder, hub id or GGUF. Raises ConfigError or ConversionError
    for what is wrong with either (then nothing is written), EnvironmentFailure for the machine.
    """
    options = options or DraftOptions()
    if options.outtype not in ("auto", "f32", "f16", "bf16", "q8_0"):
        raise UsageError(f"type {options.outtype!r} is not one of auto, f32, f16, bf16 and q8_0")
    if options.rope_base is not None and not 1 < options.rope_base < 1e30:
        raise UsageError(f"RoPE base {options.rope_base} is not a number above 1")
    checkpoint = source if isinstance(source, Checkpoint) else open_checkpoint(source)
    path = Path(target).expanduser()
    files = [part.path for part in read_model(path)[1]] if path.is_file() else [path]
    refuse_sources(Path(output), [checkpoint.path, *files])
    goal = open_target(target, pre=options.pre, weights=options.share_head)
    try:
        draft = read_draft(checkpoint, goal, options)
        return _write(draft, checkpoint, goal, Path(output), options, progress)
    except (ConfigError, ConversionError) as error:
        if str(checkpoint.path) in str(error):
            raise
        raise type(error)(f"{checkpoint.source}: {error}") from error


def _write(
    draft: Draft, checkpoint: Checkpoint, target: Target, output: Path, options: DraftOptions, progress: Progress | None
) -> DraftReport:
    if options.dry_run:
        out = GGUFOutput(ARCH)
        rows = add_tensors(out, draft, checkpoint, target, options.outtype)
    else:
        with gguf_output(output, arch=ARCH, progress=progress) as out:
            add_keys(out, draft, checkpoint, target, options.outtype)
            rows = add_tensors(out, draft, checkpoint, target, options.outtype)
    return _report(draft, checkpoint, target, output, options, rows, out.n_bytes)


def _report(
    draft: Draft,
    checkpoint: Checkpoint,
    target: Target,
    output: Path,
    options: DraftOptions,
    rows: list[TensorRow],
    n_bytes: int,
) -> DraftReport:
    because = extended_because(draft)
    warnings = list(draft.warnings)
    if because:
        warnings.append(f"stock llama.cpp will refuse this file; llama-eagle runs it ({', '.join(because)})")
    fallen = [row.gguf for row in rows if options.outtype == "q8_0" and row.outtype == "f16"]
    if fallen:
        warnings.append(f"f16 instead of q8_0, because rows are no multiple of 32: {', '.join(map(str, fallen))}")
    flags, rope = draft.flags, draft.rope
    return DraftReport(
        source=checkpoint.source,
        revision=checkpoint.revision,
        target=target.name,
        target_architecture=target.architecture,
        output=None if options.dry_run else str(output),
        producer=draft.producer.name,
        evidence=list(draft.producer.evidence),
        layout="extended" if because else "stock",
        extended_because=because,
        layer_ids=list(draft.layer_ids.boundaries),
        layer_ids_source=draft.layer_ids.source,
        settings={
            "outtype": options.outtype,
            "n_vocab": draft.dims["V"],
            "n_vocab_draft": draft.dims["D"],
            "norm_before_residual": flags.norm_before_residual,
            "norm_before_fc": flags.norm_before_fc,
            "norm_output": flags.norm_output,
            "rope_type": rope.kind,
            "rope_base": rope.base,
        },
        tensors=rows,
        n_bytes=n_bytes,
        warnings=warnings,
    )
