"""`llama-eagle convert SOURCE -o OUT.gguf` and `llama-eagle export DRAFT -o FOLDER`"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llama_eagle import console
from llama_eagle.cli.adapters import AdapterFlags, convert_adapter
from llama_eagle.cli.groups import grouped
from llama_eagle.cli.options import ADVANCED, Json, Overwrite, read_layers
from llama_eagle.errors import UsageError
from llama_eagle.native.limits import read_size
from llama_eagle.pairs import DRAFT_TYPE
from llama_eagle.progress import conversion, progress_later, working

if TYPE_CHECKING:
    from llama_eagle.convert.drafts import DraftOptions, DraftReport
    from llama_eagle.convert.source import Checkpoint
    from llama_eagle.convert.targets import TargetOptions
    from llama_eagle.quantize.quantize import QuantizeOptions


@dataclass(frozen=True)
class DraftFlags:
    """Options that apply to a draft only."""

    aux_layers: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,C",
            help="Numbers of target blocks after which the draft reads the hidden state (default: from the draft's "
            "config).",
            rich_help_panel=ADVANCED,
        ),
    ] = None
    rope_base: Annotated[
        float | None,
        typer.Option(help="RoPE base frequency of the draft (default: from its config).", rich_help_panel=ADVANCED),
    ] = None
    norm_before_residual: Annotated[
        bool | None,
        typer.Option(
            help="Take the draft's residual after the norm (default: by its format).", rich_help_panel=ADVANCED
        ),
    ] = None
    norm_output: Annotated[
        bool | None,
        typer.Option(
            help="Feed the draft's hidden state back after the norm (default: by its format).", rich_help_panel=ADVANCED
        ),
    ] = None
    absolute_d2t: Annotated[
        bool,
        typer.Option(
            "--absolute-d2t",
            help="Read the draft's token table d2t as absolute target ids, not as offsets.",
            rich_help_panel=ADVANCED,
        ),
    ] = False
    share_head: Annotated[
        bool,
        typer.Option(
            "--share-head",
            help="Copy the target's rows of the output matrix into a draft that has none.",
            rich_help_panel=ADVANCED,
        ),
    ] = False
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Accept a draft that does not match the target's vocabulary or layers, and drop unknown tensors.",
            rich_help_panel=ADVANCED,
        ),
    ] = False
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the table of the draft's tensors and write no file.")
    ] = False

    def options(self, outtype: str, pre: str | None) -> DraftOptions:
        """Return the library's options. Raises `UsageError` for layers that are not numbers."""
        from llama_eagle.convert.drafts import DraftOptions

        given = {**vars(self), "aux_layers": read_layers(self.aux_layers)}
        return DraftOptions(outtype=outtype, pre=pre, **given)


@dataclass(frozen=True)
class ExportFlags(DraftFlags):
    """Options of a draft for an export, which refuses two of them: the help leaves those out."""

    share_head: Annotated[bool, typer.Option("--share-head", help="Does not apply to an export.", hidden=True)] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Does not apply to an export.", hidden=True)] = False


@dataclass(frozen=True)
class TargetFlags:
    """Options that apply to a target only."""

    no_mtp: Annotated[
        bool, typer.Option("--no-mtp", help="Leave out the target's multi-token-prediction (MTP) head.")
    ] = False
    mtp_only: Annotated[
        bool,
        typer.Option(
            "--mtp-only",
            help="Write only the target's MTP head. As mtp-NAME.gguf next to NAME.gguf, it drafts by default.",
        ),
    ] = False
    calibration: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Text file similar to the expected answers. Its most frequent tokens are stored for the MTP head to "
            "propose first (see --draft-vocab of `generate`).",
            rich_help_panel=ADVANCED,
        ),
    ] = None
    split_max_size: Annotated[
        str | None,
        typer.Option(
            metavar="N(M|G)",
            help="Split the target into files of at most this size in MB or GB, such as 2G (default: one file).",
        ),
    ] = None
    mmproj: Annotated[
        Path | None, typer.Option(metavar="OUT.gguf", help="Also write the target's vision encoder to this file.")
    ] = None
    imatrix: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Importance matrix, to quantize the target with less loss (see `imatrix`)."),
    ] = None
    recipe: Annotated[
        str | None,
        typer.Option(metavar="speculation", help="Named set of tensor types for the target (see `quantize --recipe`)."),
    ] = None

    force_tokenizer: Annotated[
        bool,
        typer.Option(
            "--force-tokenizer",
            help="Write the file although its tokens differ from those of tokenizer.json, with a warning.",
            rich_help_panel=ADVANCED,
        ),
    ] = False

    def options(self, outtype: str, pre: str | None) -> TargetOptions:
        """Return the library's options. Raises `UsageError` for a wrong size."""
        from llama_eagle.convert.targets import TargetOptions

        return TargetOptions(
            outtype=outtype,
            mtp=not self.no_mtp,
            mtp_only=self.mtp_only,
            calibration=self.calibration,
            pre=pre,
            force_tokenizer=self.force_tokenizer,
            split_max_size=_size(self.split_max_size),
            quantize=self._quantize(),
        )

    def _quantize(self) -> QuantizeOptions | None:
        """Return None if no option needs the quantizer, so that no native library is loaded."""
        if not self.imatrix and not self.recipe:
            return None
        from llama_eagle.quantize.quantize import QuantizeOptions

        return QuantizeOptions(imatrix=self.imatrix, recipe=self.recipe)


def _list_classes(wanted: bool) -> None:
    """Print each class that config.json may name, with its way, as a line or, with --json, as one object."""
    if not wanted:
        return
    from llama_eagle.convert.targets import ways

    found = ways()
    if console.uses_json():
        console.result(found)
    else:
        console.data("\n".join(f"{name:<48} {way}" for way, names in found.items() for name in names))
    raise typer.Exit


@grouped
def convert(
    *,
    source: Annotated[
        str,
        typer.Argument(
            metavar="FOLDER_OR_HUB_ID",
            help="Hugging Face checkpoint of a target model, or of a draft model or a LoRA adapter of peft, which need "
            "--target.",
        ),
    ],
    out: Annotated[Path, typer.Option("--output", "-o", metavar="OUT.gguf", help="GGUF file to write.")],
    target: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Model that the draft or the adapter was trained for: a folder, a hub id or a GGUF file; for an "
            "adapter a GGUF file.",
        ),
    ] = None,
    outtype: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE",
            help="Type of the matrices: auto (as stored), f32, f16, bf16, q8_0, q4_k_m, ... (default: auto; for drafts "
            "q4_k_m, which reads a third of the bytes at almost the same acceptance rate).",
        ),
    ] = None,
    revision: Annotated[
        str | None, typer.Option(metavar="REV", help="Branch, tag or commit of the hub repository (default: main).")
    ] = None,
    draft_flags: DraftFlags,
    target_flags: TargetFlags,
    adapter_flags: AdapterFlags,
    pre: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Name of the pre-tokenizer in llama.cpp (default: detected).", rich_help_panel=ADVANCED
        ),
    ] = None,
    list_classes: Annotated[
        bool,
        typer.Option(
            "--list",
            callback=_list_classes,
            is_eager=True,
            help="Print the classes of models that are converted, each with its way, and exit.",
        ),
    ] = False,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Convert a model, a draft model or a LoRA adapter to GGUF.

    Families with a table here are converted by it, all others by llama.cpp's converter, without code of the checkpoint.
    """
    from llama_eagle.convert.drafts import is_draft
    from llama_eagle.files import expand_home
    from llama_eagle.native.processor.memory import keep_freed_memory

    keep_freed_memory(largest=4 << 20, kept=8 << 20)  # arrays of decoders, freed after every operation
    if revision is not None and expand_home(source).is_dir():
        raise UsageError("--revision does not apply to a folder. Leave it out.")
    draft_options = draft_flags.options((outtype or DRAFT_TYPE).lower(), pre)
    target_options = target_flags.options((outtype or "auto").lower(), pre)
    outputs = [out, *([target_flags.mmproj] if target_flags.mmproj else [])]
    adapter_flags.check(target)
    _check_before_work(outputs, target, draft_options, target_options, overwrite)
    if target is not None and (adapter := adapter_flags.without_model(source, revision)):
        for flags in (draft_flags, target_flags):
            _refuse(flags, "an adapter")
        _show(convert_adapter(adapter, target, out, outtype or "auto"), json)
        return
    base, base_revision = adapter_flags.model(source, revision)
    checkpoint = _open(base, base_revision, adapter_flags.ignored, target, target_flags)
    checkpoint.changes = adapter_flags.changes(source, revision, target_flags.mmproj)
    if is_draft(checkpoint):
        _require_target(source, target)
        _refuse(target_flags, "a draft")
        report = _convert_draft(checkpoint, str(target), out, draft_options)
    else:
        if target is not None:
            raise UsageError(f"{source} is not a draft: leave out --target, or give the draft's folder.")
        _refuse(draft_flags, "a target")
        report = _convert_target(checkpoint, out, target_options, target_flags.mmproj)
        report = {"kind": "target", "source": source, **report}
    _show(report, json)


def _check_before_work(
    outputs: list[Path], target: str | None, drafts: DraftOptions, targets: TargetOptions, overwrite: bool
) -> None:
    """Check what needs neither weights nor the whole target, before a download and a long conversion."""
    from llama_eagle.convert.calibration import require_text
    from llama_eagle.convert.quantized import check_quantizer
    from llama_eagle.convert.source import open_checkpoint
    from llama_eagle.files import check_output, expand_home, refuse_existing
    from llama_eagle.gguf.header import read_model

    if len({str(each.resolve()).casefold() for each in outputs}) < len(outputs):
        raise UsageError(f"--mmproj {outputs[1]} is the same file as --output. Name another file.")
    if not drafts.dry_run:
        refuse_existing(outputs, overwrite)
        for output in outputs:
            check_output(output)
    check_quantizer(targets.outtype, targets.quantize)
    if targets.calibration is not None:
        require_text(targets.calibration)
    if target is not None and (path := expand_home(target)).is_file():
        read_model(path)
    elif target is not None:
        open_checkpoint(target, weights=False)


def _open(
    source: str, revision: str | None, ignore_adapter: bool, target: str | None, target_flags: TargetFlags
) -> Checkpoint:
    """Open the checkpoint. What its configuration excludes is refused before its weights are downloaded."""
    from llama_eagle.convert.drafts import is_draft_config
    from llama_eagle.convert.foreign import refuse_foreign
    from llama_eagle.convert.source import open_checkpoint
    from llama_eagle.convert.targets import check_target
    from llama_eagle.files import expand_home

    opened = partial(open_checkpoint, source, revision=revision, ignore_adapter=ignore_adapter)
    small = opened(weights=False)
    refuse_foreign(small)
    if is_draft_config(small.config):
        _require_target(source, target)
        _refuse(target_flags, "a draft")
    elif target is None:
        check_target(small, encoder=target_flags.mmproj is not None)
    return small if expand_home(source).is_dir() else opened()


def _require_target(source: str, target: str | None) -> None:
    if target is None:
        raise UsageError(f"{source} is a draft: name its target with --target (folder, hub id or GGUF).")


def _convert_draft(checkpoint: Checkpoint, target: str, out: Path, options: DraftOptions) -> dict[str, Any]:
    from llama_eagle.convert.drafts import convert_draft

    with conversion() as meter:
        report = convert_draft(checkpoint, target, out, options, meter)
    return {"kind": "draft", **report.to_json(), "outtype": _actual_outtype(options.outtype, report)}


def _with_progress(options: QuantizeOptions | None, on_progress: Callable[[float], None]) -> QuantizeOptions:
    from llama_eagle.quantize.quantize import QuantizeOptions

    return replace(options or QuantizeOptions(), progress=on_progress)


def _actual_outtype(outtype: str, report: DraftReport) -> str:
    """Return the most common type of the draft's matrices if `outtype` is "auto"."""
    kinds = [row.outtype for row in report.tensors if row.gguf and row.outtype and len(row.shape) > 1]
    return max(kinds, key=kinds.count) if outtype == "auto" and kinds else outtype


def _convert_target(checkpoint: Checkpoint, out: Path, options: TargetOptions, mmproj: Path | None) -> dict[str, Any]:
    from llama_eagle.sessions.same_tokens import compare_pieces, compare_tokens

    options = replace(options, check_tokenizer=compare_tokens, check_pieces=compare_pieces)
    if mmproj is None:
        report = _convert_text(checkpoint, out, options)
    else:
        report = _convert_with_vision(checkpoint, out, mmproj, options)
    outputs = [str(path) for path in report.pop("outputs")]
    return {"output": outputs[0], "outputs": outputs, **report}


def _convert_text(checkpoint: Checkpoint, out: Path, options: TargetOptions) -> dict[str, Any]:
    from llama_eagle.convert.quantized import is_direct
    from llama_eagle.convert.targets import convert_target

    with conversion() as meter, progress_later("quantizing", "finishing") as on_quantize:
        options = replace(options, progress=meter)
        if options.quantize is not None or not is_direct(options.outtype):
            options = replace(options, quantize=_with_progress(options.quantize, on_quantize))
        return asdict(convert_target(checkpoint, out, options))


def _convert_with_vision(source: Checkpoint, out: Path, mmproj: Path, options: TargetOptions) -> dict[str, Any]:
    """Write both files or none: the vision file keeps a temporary name until the text model is written."""
    from llama_eagle.convert.targets import convert_vision
    from llama_eagle.files import refuse_sources, temporary_next_to

    refuse_sources(mmproj, [source.path])
    with temporary_next_to(mmproj) as (middle,):
        with conversion("converting the encoder") as meter:
            vision = convert_vision(source, middle, replace(options, progress=meter))
        report = _convert_text(source, out, replace(options, encoder=middle))
        middle.replace(mmproj)
    report["warnings"] += vision.warnings
    report["mmproj"] = {"output": str(mmproj), "outtype": vision.outtype, "n_bytes": vision.n_bytes}
    return report


def _show(report: dict[str, Any], json: bool) -> None:
    warnings = report.get("warnings", [])
    for warning in warnings:
        console.warn(warning)
    from llama_eagle.convert.quantized import is_direct

    if json:
        console.result(report)
        return
    if report.get("tensors") and report["output"] is None:
        console.data(_table(report["tensors"]))
        if not is_direct(report["outtype"]):
            console.log(f"llama.cpp's quantizer then writes the matrices as {report['outtype']}.")
    else:
        console.data(f"{report['output']}: {report['outtype']}, {console.size(report['n_bytes'])}")
    if report.get("is_reranker"):
        console.log(f"A reranking model. It gives scores: llama-eagle serve -m {report['output']} --reranking")


def _table(rows: list[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        gguf = f"{row['gguf']} {row['outtype']}" if row["gguf"] else "dropped"
        lines.append(f"{row['source'] or '-':<50} {list(row['shape'])!s:<18} {gguf:<36} {row['note']}".rstrip())
    return "\n".join(lines)


def _refuse(group: DraftFlags | TargetFlags, what: str) -> None:
    """Raise `UsageError` for an option that would be ignored."""
    for option in fields(group):
        if getattr(group, option.name) != option.default:
            raise UsageError(f"--{option.name.replace('_', '-')} does not apply to {what}. Leave it out.")


def _size(text: str | None) -> int:
    """Parse a size such as "500M" or "2G" into bytes."""
    size = 0 if text is None else read_size(text)
    if size is None:
        raise UsageError(f"--split-max-size {text!r}: give a number with M or G, such as 2G.")
    return size


@grouped
def export(
    draft: Annotated[
        str, typer.Argument(metavar="DRAFT", help="Draft to export: a checkpoint folder, a hub id or a GGUF file.")
    ],
    out: Annotated[Path, typer.Option("--output", "-o", metavar="FOLDER", help="Folder to create for the checkpoint.")],
    to: Annotated[str, typer.Option(metavar="vllm|sglang|speculators", help="Engine to write the checkpoint for.")],
    target: Annotated[
        str,
        typer.Option(metavar="MODEL", help="Model that the draft was trained for: a folder, a hub id or a GGUF file."),
    ],
    draft_flags: ExportFlags,
    json: Json = False,
) -> None:
    """Export an EAGLE-3 draft for vLLM, SGLang or speculators.

    Tensors keep their stored type (BF16, F16 or F32). The command fails if the engine does not support a property of
    the draft, and names that property.
    """
    from llama_eagle.convert.export import export_draft

    if draft_flags.dry_run or draft_flags.share_head:
        raise UsageError("--dry-run and --share-head do not apply to an export. Leave them out.")
    with working("exporting"):
        report = export_draft(draft, target, out, to, draft_flags.options("auto", None))
    for warning in report.warnings:
        console.warn(warning)
    if json:
        console.result(report.to_json())
    else:
        console.data(f"{report.output}: {report.dtype}, {console.size(report.n_bytes)}, layers {report.layer_ids}")
