"""`llama-eagle convert SOURCE -o OUT.gguf`"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llama_eagle import console
from llama_eagle.cli.options import Json, read_layers
from llama_eagle.errors import UsageError

if TYPE_CHECKING:
    from llama_eagle.convert.source import Checkpoint
    from llama_eagle.convert.targets import TargetOptions

DRAFT_ONLY = ("aux_layers", "rope_base", "norm_before_residual", "norm_output", "absolute_d2t", "share_head", "force")
TARGET_ONLY = ("no_mtp", "mtp_only", "calibration", "split_max_size", "mmproj", "imatrix", "recipe")


def convert(
    source: Annotated[str, typer.Argument(metavar="FOLDER_OR_HUB_ID", help="A target, or with --target its draft.")],
    out: Annotated[Path, typer.Option("--output", "-o", metavar="OUT.gguf")],
    target: Annotated[str | None, typer.Option(help="The draft's target: folder, hub id or GGUF.")] = None,
    outtype: Annotated[str, typer.Option(help="auto (as stored), f32, f16, bf16, q8_0, q4_k_m, ...")] = "auto",
    aux_layers: Annotated[str | None, typer.Option(metavar="A,B,C", help="Draft: boundaries it reads.")] = None,
    rope_base: Annotated[float | None, typer.Option(help="Draft: RoPE base.")] = None,
    norm_before_residual: Annotated[bool | None, typer.Option(help="Draft: residual after the norm.")] = None,
    norm_output: Annotated[bool | None, typer.Option(help="Draft: feed back the normed hidden.")] = None,
    absolute_d2t: Annotated[bool, typer.Option("--absolute-d2t", help="Draft: d2t holds ids, not offsets.")] = False,
    share_head: Annotated[bool, typer.Option("--share-head", help="Draft without a head: the target's rows.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Draft: drop unknown tensors.")] = False,
    no_mtp: Annotated[bool, typer.Option("--no-mtp", help="Target: drop the multi-token-prediction block.")] = False,
    mtp_only: Annotated[bool, typer.Option("--mtp-only", help="Target: that block alone, as mtp-*.gguf.")] = False,
    calibration: Annotated[
        Path | None, typer.Option(metavar="TEXT", help="Target: count tokens for a trimmed draft head.")
    ] = None,
    split_max_size: Annotated[str | None, typer.Option(metavar="N(M|G)", help="Target: split the file.")] = None,
    mmproj: Annotated[Path | None, typer.Option(metavar="OUT.gguf", help="Target: its vision tower, too.")] = None,
    imatrix: Annotated[Path | None, typer.Option(help="Target: llama.cpp's importance matrix.")] = None,
    recipe: Annotated[str | None, typer.Option(help="Target: a named set of types, see quantize.")] = None,
    pre: Annotated[str | None, typer.Option(help="llama.cpp's name of the pre-tokenizer.")] = None,
    revision: Annotated[str | None, typer.Option(help="Of a hub id.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Draft: show the table, write nothing.")] = False,
    json: Json = False,
) -> None:
    """Convert a Hugging Face target, or an EAGLE-3 draft, to GGUF."""
    given = dict(locals())
    from llama_eagle.convert.drafts import is_draft
    from llama_eagle.convert.source import open_checkpoint

    if Path(source).is_dir():
        _refuse(given, ("revision",), "a folder")
    checkpoint = open_checkpoint(source, revision=revision)
    if is_draft(checkpoint):
        if target is None:
            raise UsageError(f"{source} is a draft: name its target with --target (folder, hub id or GGUF).")
        _refuse(given, TARGET_ONLY, "a draft")
        report = _convert_draft(checkpoint, given)
    else:
        if target is not None:
            raise UsageError(f"{source} is not a draft: leave out --target, or give the draft's folder.")
        _refuse(given, (*DRAFT_ONLY, "dry_run"), "a target")
        report = _convert_target(checkpoint, given)
    _show(report, json)


def _convert_draft(checkpoint: Checkpoint, given: dict[str, Any]) -> dict[str, Any]:
    from llama_eagle.convert.drafts import DraftOptions, convert_draft

    options = DraftOptions(
        outtype=given["outtype"].lower(),
        aux_layers=read_layers(given["aux_layers"]),
        **{name: given[name] for name in (*DRAFT_ONLY[1:], "dry_run", "pre")},
    )
    with console.progress("converting") as on_progress:
        meter = lambda done, total, _name: on_progress(done / max(total, 1))  # noqa: E731
        report = convert_draft(checkpoint, given["target"], given["out"], options, meter)
    return {"kind": "draft", **report.to_json(), "outtype": options.outtype}


def _convert_target(checkpoint: Checkpoint, given: dict[str, Any]) -> dict[str, Any]:
    from llama_eagle.convert.targets import TargetOptions, convert_target

    with console.progress("converting") as on_progress:
        options = TargetOptions(
            outtype=given["outtype"].lower(),
            mtp=not given["no_mtp"],
            mtp_only=given["mtp_only"],
            calibration=given["calibration"],
            pre=given["pre"],
            split_max_size=_size(given["split_max_size"]),
            quantize=_quantize_options(given),
            progress=lambda done, total, _name: on_progress(done / max(total, 1)),
        )
        if given["mmproj"] is None:
            report = asdict(convert_target(checkpoint, given["out"], options))
        else:
            report = _convert_with_vision(checkpoint, given["out"], given["mmproj"], options)
    outputs = [str(path) for path in report.pop("outputs")]
    return {"kind": "target", "source": given["source"], "output": outputs[0], "outputs": outputs, **report}


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


def _quantize_options(given: dict[str, Any]) -> Any:
    """Options of the quantizer, None where none is needed: then no native library is loaded."""
    if not given["imatrix"] and not given["recipe"]:
        return None
    from llama_eagle.quantize.quantize import QuantizeOptions

    return QuantizeOptions(imatrix=given["imatrix"], recipe=given["recipe"])


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
        console.data(f"{report['output']}: {report['outtype']}, {report['n_bytes'] / 2**20:.1f} MiB")


def _table(rows: list[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        gguf = f"{row['gguf']} {row['outtype']}" if row["gguf"] else "dropped"
        lines.append(f"{row['source'] or '-':<50} {list(row['shape'])!s:<18} {gguf:<36} {row['note']}".rstrip())
    return "\n".join(lines)


def _refuse(given: dict[str, Any], names: tuple[str, ...], what: str) -> None:
    """An option that would be ignored is an error."""
    for name in names:
        if given[name] not in (None, False):
            raise UsageError(f"--{name.replace('_', '-')} does not apply to {what}. Leave it out.")


def _size(text: str | None) -> int:
    """Bytes of "500M" or "2G"."""
    if text is None:
        return 0
    units = {"M": 1000**2, "G": 1000**3}
    number, unit = text[:-1], text[-1:].upper()
    if unit not in units or not number.isdigit() or int(number) == 0:
        raise UsageError(f"--split-max-size {text!r}: give a number with M or G, such as 2G.")
    return int(number) * units[unit]
