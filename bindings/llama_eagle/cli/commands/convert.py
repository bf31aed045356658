"""`llama-eagle convert SOURCE -o OUT.gguf` and `llama-eagle export DRAFT -o FOLDER`"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llama_eagle import console
from llama_eagle.cli.groups import grouped
from llama_eagle.cli.options import Json, Overwrite, read_layers
from llama_eagle.errors import UsageError
from llama_eagle.progress import progress, progress_later

if TYPE_CHECKING:
    from llama_eagle.convert.drafts import DraftOptions, DraftReport
    from llama_eagle.convert.source import Checkpoint
    from llama_eagle.convert.targets import TargetOptions
    from llama_eagle.quantize.quantize import QuantizeOptions


@dataclass(frozen=True)
class OfDraft:
    """What applies to a draft alone."""

    aux_layers: Annotated[str | None, typer.Option(metavar="A,B,C", help="Draft: boundaries it reads.")] = None
    rope_base: Annotated[float | None, typer.Option(help="Draft: RoPE base.")] = None
    norm_before_residual: Annotated[bool | None, typer.Option(help="Draft: residual after the norm.")] = None
    norm_output: Annotated[bool | None, typer.Option(help="Draft: feed back the normed hidden.")] = None
    absolute_d2t: Annotated[bool, typer.Option("--absolute-d2t", help="Draft: d2t holds ids, not offsets.")] = False
    share_head: Annotated[bool, typer.Option("--share-head", help="Draft without a head: the target's rows.")] = False
    force: Annotated[bool, typer.Option("--force", help="Draft: drop unknown tensors.")] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Draft: show the table, write nothing.")] = False

    def options(self, outtype: str, pre: str | None) -> DraftOptions:
        """Raises `UsageError` for layers that are no numbers."""
        from llama_eagle.convert.drafts import DraftOptions

        given = {**vars(self), "aux_layers": read_layers(self.aux_layers)}
        return DraftOptions(outtype=outtype, pre=pre, **given)


@dataclass(frozen=True)
class OfTarget:
    """What applies to a target alone."""

    no_mtp: Annotated[bool, typer.Option("--no-mtp", help="Target: drop the multi-token-prediction block.")] = False
    mtp_only: Annotated[bool, typer.Option("--mtp-only", help="Target: that block alone, as mtp-*.gguf.")] = False
    calibration: Annotated[
        Path | None, typer.Option(metavar="TEXT", help="Target: count tokens for a trimmed draft head.")
    ] = None
    split_max_size: Annotated[str | None, typer.Option(metavar="N(M|G)", help="Target: split the file.")] = None
    mmproj: Annotated[Path | None, typer.Option(metavar="OUT.gguf", help="Target: its vision tower, too.")] = None
    imatrix: Annotated[Path | None, typer.Option(help="Target: llama.cpp's importance matrix.")] = None
    recipe: Annotated[str | None, typer.Option(help="Target: a named set of types, see quantize.")] = None

    def options(self, outtype: str, pre: str | None) -> TargetOptions:
        """Raises `UsageError` for a size that is none."""
        from llama_eagle.convert.targets import TargetOptions

        return TargetOptions(
            outtype=outtype,
            mtp=not self.no_mtp,
            mtp_only=self.mtp_only,
            calibration=self.calibration,
            pre=pre,
            split_max_size=_size(self.split_max_size),
            quantize=self._quantize(),
        )

    def _quantize(self) -> QuantizeOptions | None:
        """None where no option needs the quantizer: then no native library is loaded."""
        if not self.imatrix and not self.recipe:
            return None
        from llama_eagle.quantize.quantize import QuantizeOptions

        return QuantizeOptions(imatrix=self.imatrix, recipe=self.recipe)


@grouped
def convert(
    source: Annotated[str, typer.Argument(metavar="FOLDER_OR_HUB_ID", help="A target, or with --target its draft.")],
    out: Annotated[Path, typer.Option("--output", "-o", metavar="OUT.gguf")],
    of_draft: OfDraft,
    of_target: OfTarget,
    target: Annotated[str | None, typer.Option(help="The draft's target: folder, hub id or GGUF.")] = None,
    outtype: Annotated[str, typer.Option(help="auto (as stored), f32, f16, bf16, q8_0, q4_k_m, ...")] = "auto",
    pre: Annotated[str | None, typer.Option(help="llama.cpp's name of the pre-tokenizer.")] = None,
    revision: Annotated[str | None, typer.Option(help="Of a hub id.")] = None,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Convert a Hugging Face target, or an EAGLE-3 draft, to GGUF."""
    from llama_eagle.convert.drafts import is_draft
    from llama_eagle.convert.source import open_checkpoint
    from llama_eagle.files import refuse_existing

    if revision is not None and Path(source).is_dir():
        raise UsageError("--revision does not apply to a folder. Leave it out.")
    if not of_draft.dry_run:
        refuse_existing([out, *([of_target.mmproj] if of_target.mmproj else [])], overwrite)
    checkpoint = open_checkpoint(source, revision=revision)
    if is_draft(checkpoint):
        if target is None:
            raise UsageError(f"{source} is a draft: name its target with --target (folder, hub id or GGUF).")
        _refuse(of_target, "a draft")
        report = _convert_draft(checkpoint, target, out, of_draft.options(outtype.lower(), pre))
    else:
        if target is not None:
            raise UsageError(f"{source} is not a draft: leave out --target, or give the draft's folder.")
        _refuse(of_draft, "a target")
        report = _convert_target(checkpoint, out, of_target.options(outtype.lower(), pre), of_target.mmproj)
        report = {"kind": "target", "source": source, **report}
    _show(report, json)


def _convert_draft(checkpoint: Checkpoint, target: str, out: Path, options: DraftOptions) -> dict[str, Any]:
    from llama_eagle.convert.drafts import convert_draft

    with progress("converting") as on_progress:
        meter = lambda done, total, _name: on_progress(done / max(total, 1))  # noqa: E731
        report = convert_draft(checkpoint, target, out, options, meter)
    return {"kind": "draft", **report.to_json(), "outtype": _chosen(options.outtype, report)}


def _watched(options: QuantizeOptions | None, on_progress: Callable[[float], None]) -> QuantizeOptions:
    from llama_eagle.quantize.quantize import QuantizeOptions

    return replace(options or QuantizeOptions(), progress=on_progress)


def _chosen(outtype: str, report: DraftReport) -> str:
    """The type of a draft's matrices: what "auto" found."""
    kinds = [row.outtype for row in report.tensors if row.gguf and row.outtype and len(row.shape) > 1]
    return max(kinds, key=kinds.count) if outtype == "auto" and kinds else outtype


def _convert_target(checkpoint: Checkpoint, out: Path, options: TargetOptions, mmproj: Path | None) -> dict[str, Any]:
    from llama_eagle.convert.quantized import is_direct
    from llama_eagle.convert.targets import convert_target

    with progress("converting") as on_progress, progress_later("quantizing") as on_quantize:
        options = replace(options, progress=lambda done, total, _name: on_progress(done / max(total, 1)))
        if options.quantize is not None or not is_direct(options.outtype):
            options = replace(options, quantize=_watched(options.quantize, on_quantize))
        if mmproj is None:
            report = asdict(convert_target(checkpoint, out, options))
        else:
            report = _convert_with_vision(checkpoint, out, mmproj, options)
    outputs = [str(path) for path in report.pop("outputs")]
    return {"output": outputs[0], "outputs": outputs, **report}


def _convert_with_vision(source: Checkpoint, out: Path, mmproj: Path, options: TargetOptions) -> dict[str, Any]:
    """Both parts, or none: the vision part waits under another name until the text is written."""
    from llama_eagle.convert.targets import convert_target, convert_vision
    from llama_eagle.files import refuse_sources, temporary_beside

    if str(mmproj.resolve()).casefold() == str(out.resolve()).casefold():
        raise UsageError(f"--mmproj {mmproj} is the output itself. Name another file.")
    refuse_sources(mmproj, [source.path])
    with temporary_beside(mmproj) as (middle,):
        vision = convert_vision(source, middle, options)
        report = asdict(convert_target(source, out, options))
        middle.replace(mmproj)
    report["mmproj"] = {"output": str(mmproj), "outtype": vision.outtype, "n_bytes": vision.n_bytes}
    return report


def _show(report: dict[str, Any], json: bool) -> None:
    warnings = report.get("warnings", [])
    for warning in warnings:
        console.warn(warning)
    if json:
        console.result(report)
        return
    if report.get("tensors") and report["output"] is None:
        console.data(_table(report["tensors"]))
    else:
        console.data(f"{report['output']}: {report['outtype']}, {console.size(report['n_bytes'])}")


def _table(rows: list[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        gguf = f"{row['gguf']} {row['outtype']}" if row["gguf"] else "dropped"
        lines.append(f"{row['source'] or '-':<50} {list(row['shape'])!s:<18} {gguf:<36} {row['note']}".rstrip())
    return "\n".join(lines)


def _refuse(group: OfDraft | OfTarget, what: str) -> None:
    """An option that would be ignored is an error."""
    for option in fields(group):
        if getattr(group, option.name) != option.default:
            raise UsageError(f"--{option.name.replace('_', '-')} does not apply to {what}. Leave it out.")


def _size(text: str | None) -> int:
    """Bytes of "500M" or "2G"."""
    if text is None:
        return 0
    units = {"M": 1000**2, "G": 1000**3}
    number, unit = text[:-1], text[-1:].upper()
    if unit not in units or not number.isdigit() or int(number) == 0:
        raise UsageError(f"--split-max-size {text!r}: give a number with M or G, such as 2G.")
    return int(number) * units[unit]


@grouped
def export(
    draft: Annotated[str, typer.Argument(metavar="DRAFT", help="A checkpoint's folder, a hub id, or a GGUF.")],
    out: Annotated[Path, typer.Option("--output", "-o", metavar="FOLDER", help="A new folder.")],
    to: Annotated[str, typer.Option(metavar="vllm|sglang|speculators", help="The engine that will read it.")],
    target: Annotated[str, typer.Option(help="The draft's target: folder, hub id or GGUF.")],
    of_draft: OfDraft,
    json: Json = False,
) -> None:
    """Hand an EAGLE-3 draft over to vLLM, SGLang or speculators.

    Values stay as they are stored (BF16, F16 or F32). What the engine cannot express is refused by name.
    """
    from llama_eagle.convert.export import export_draft

    if of_draft.dry_run or of_draft.share_head:
        raise UsageError("--dry-run and --share-head do not apply to an export. Leave them out.")
    report = export_draft(draft, target, out, to, of_draft.options("auto", None))
    for warning in report.warnings:
        console.warn(warning)
    if json:
        console.result(report.to_json())
    else:
        console.data(f"{report.output}: {report.dtype}, {console.size(report.n_bytes)}, layers {report.layer_ids}")
