"""Conversion of one draft checkpoint to one GGUF, for use with its target."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llama_eagle.convert.drafts.dflash import convert_dflash
from llama_eagle.convert.drafts.dflash_config import is_dflash
from llama_eagle.convert.drafts.family import ARCH, canonical
from llama_eagle.convert.drafts.gemma4.assistant import convert_assistant, is_assistant
from llama_eagle.convert.drafts.producers import looks_like_draft
from llama_eagle.convert.drafts.reader import Draft, read_draft
from llama_eagle.convert.drafts.report import DraftOptions, DraftReport, TensorRow
from llama_eagle.convert.drafts.target import Target, open_target
from llama_eagle.convert.drafts.write import add_keys, add_tensors, draft_report, extended_because, write_draft
from llama_eagle.convert.foreign import refuse_foreign
from llama_eagle.convert.quantized import check_quantizer
from llama_eagle.convert.source import Checkpoint, open_checkpoint
from llama_eagle.convert.writer import GGUFOutput, Progress
from llama_eagle.errors import ConfigError, ConversionError, EagleError
from llama_eagle.files import expand_home, refuse_sources
from llama_eagle.gguf.header import read_model


def is_draft_config(config: dict[str, Any]) -> bool:
    """Return True if this is the configuration of a draft. That of some drafts does not show it."""
    return looks_like_draft(config) or is_dflash(config) or is_assistant(config)


def is_draft(checkpoint: Checkpoint) -> bool:
    """Return True if this checkpoint is a draft, by its configuration or else by its tensor names."""
    if is_draft_config(checkpoint.config):
        return True
    try:
        names = {canonical(name) for name in checkpoint.names()}
    except EagleError:
        return False  # a target without readable weights: its own conversion reports the fault
    return is_dflash({}, names) or not names.isdisjoint(("fc.weight", "fc.weight_packed"))


def convert_draft(
    source: str | Path | Checkpoint,
    target: str | Path,
    output: str | Path,
    options: DraftOptions | None = None,
    progress: Progress | None = None,
) -> DraftReport:
    """Convert the draft `source` to `output`, for use with `target`.

    source: folder, hub id or open checkpoint. target: folder, hub id or GGUF. Raises ConfigError or ConversionError for
    a fault of either (then nothing is written), EnvironmentFailure for the machine.
    """
    options = options or DraftOptions()
    check_quantizer(options.outtype)
    checkpoint = open_checkpoint(source)
    refuse_foreign(checkpoint)
    path = expand_home(target)
    files = [part.path for part in read_model(path)[1]] if path.is_file() else [path]
    refuse_sources(Path(output), [checkpoint.path, *files])
    goal = open_target(target, pre=options.pre, weights=options.share_head)
    try:
        if is_dflash(checkpoint.config, {canonical(name) for name in checkpoint.names()}):
            return convert_dflash(checkpoint, goal, Path(output), options, progress)
        if is_assistant(checkpoint.config):
            return convert_assistant(checkpoint, goal, Path(output), options, progress)
        draft = read_draft(checkpoint, goal, options)
        job = _Job(draft, checkpoint, goal, options)
        return write_draft(job.declare, ARCH, Path(output), options, progress)
    except (ConfigError, ConversionError) as error:
        if str(checkpoint.path) in str(error) or checkpoint.source in str(error):
            raise
        raise type(error)(f"{checkpoint.source}: {error}") from error


@dataclass(frozen=True)
class _Job:
    """A draft that has been read, and the options of its conversion."""

    draft: Draft
    checkpoint: Checkpoint
    target: Target
    options: DraftOptions

    def declare(self, out: GGUFOutput, outtype: str) -> DraftReport:
        """Declare keys and tensors; "auto" keeps the stored type."""
        add_keys(out, self.draft, self.checkpoint, self.target, outtype)
        return self._report(add_tensors(out, self.draft, self.target, outtype), out.n_bytes)

    def _report(self, rows: list[TensorRow], n_bytes: int) -> DraftReport:
        draft, options = self.draft, self.options
        because = extended_because(draft)
        warnings = list(draft.warnings)
        if because:
            warnings.append(f"stock llama.cpp will refuse this file; llama-eagle runs it ({', '.join(because)})")
        fallen = [row.gguf for row in rows if options.outtype == "q8_0" and row.outtype == "f16"]
        if fallen:
            warnings.append(
                f"f16 instead of q8_0, because rows are not a multiple of 32: {', '.join(map(str, fallen))}"
            )
        flags, rope = draft.flags, draft.rope
        return draft_report(
            self.checkpoint,
            self.target,
            producer=draft.producer.name,
            evidence=list(draft.producer.evidence),
            layout="extended" if because else "stock",
            extended_because=because,
            layer_ids=list(draft.layer_ids.boundaries),
            layer_ids_source=draft.layer_ids.source,
            settings={
                "outtype": options.outtype,
                "n_vocab": draft.dims["vocab"],
                "n_vocab_draft": draft.dims["draft_vocab"],
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
