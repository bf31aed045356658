"""Benchmark results as a table and as a plot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llama_eagle import console
from llama_eagle.errors import EnvironmentFailure, UsageError
from llama_eagle.files import check_output


def table(result: dict[str, Any]) -> Any:
    """Rows: plain decoding, then each draft length of ours and of upstream; "a round": tokens emitted."""
    title = f"{result['model']}, {result['type']}, {result['n']} tokens, {result['threads']} threads"
    if result["accept"] is not None:
        title += f", acceptance {result['accept']:g}"
    if result["drafter"] == "mtp":
        title += f", MTP head of {result['draft_vocab'] or 'all'} tokens"
    caption = "n: tokens drafted in a round; round, verify, draft: ms of a mean round"
    headings = ("", "n", "tok/s", "x plain", "accepted", "a round", "round", "verify", "draft", "python")
    out = console.compact_table(headings, title=title, caption=caption)
    plain = result["plain_tps"]
    out.add_row("ours", "plain", f"{plain:.2f}", "1.00")
    if upstream := result["upstream_plain_tps"]:
        out.add_row("upstream", "plain", f"{upstream:.2f}", f"{upstream / plain:.2f}")
    for who in ("ours", "upstream"):
        for row in result[who]:
            out.add_row(who, *_cells(row, plain))
    out.add_row("sampled", *_cells(result["sampled"], plain))
    if result["chat"]:
        out.add_row("streamed", *_cells(result["chat"], plain))
    return out


def summary(result: dict[str, Any]) -> str:
    lines = [f"best over plain          {result['best_over_plain']:.2f}"]
    if result["best_over_upstream"] is not None:
        lines.append(f"best over upstream's     {result['best_over_upstream']:.2f}")
    lines.append(f"sampled over greedy      {result['sampled']['over_greedy']:.3f}")
    lines.append(f"verify of 5 / decode     {result['verify5_over_decode1']:.2f}")
    return "\n".join(lines)


def require_plotting(path: Path) -> None:
    """Raises UsageError or EnvironmentFailure when `path` cannot be drawn: before minutes of measuring, not after."""
    try:
        import matplotlib
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError:
        raise EnvironmentFailure("--plot needs matplotlib: pip install 'llama-eagle[bench]'") from None
    matplotlib.use("Agg")
    check_output(path)
    known = FigureCanvasBase.filetypes
    if path.suffix[1:].lower() not in known:
        raise UsageError(f"--plot {path}: no picture format of that ending. Choose one of {', '.join(sorted(known))}.")


def plot(results: Sequence[dict[str, Any]], path: Path) -> None:
    """Tokens per second over the draft length, one line per acceptance: ours solid, upstream dashed, plain dotted."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    for color, result in zip(pyplot.rcParams["axes.prop_cycle"].by_key()["color"] * 3, results, strict=False):
        label = "" if result["accept"] is None else f", acceptance {result['accept']:g}"
        for who, style in (("ours", "o-"), ("upstream", "s--")):
            points = [(r["n_draft"], r["tps"]) for r in result[who] if r["n_draft"] != "auto"]
            if points:
                axes.plot(*zip(*points, strict=True), style, color=color, label=f"{who}{label}")
        for row in result["ours"]:
            if row["n_draft"] == "auto":
                axes.axhline(row["tps"], color=color, linewidth=0.8, label=f"ours, auto{label}")
    axes.axhline(results[0]["plain_tps"], color="gray", linestyle=":", label="plain")
    axes.set(xlabel="tokens drafted in a round", ylabel="tokens/s", ylim=(0, None))
    axes.set_title(f"{results[0]['model']}, {results[0]['type']}, {results[0]['threads']} threads")
    axes.set_xticks(sorted({r["n_draft"] for result in results for r in result["ours"] if r["n_draft"] != "auto"}))
    figure.legend(fontsize="small", loc="outside right upper")
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def _cells(row: dict[str, Any], plain: float) -> list[str]:
    python = "" if row["python_share"] is None else f"{row['python_share']:.1%}"
    return [
        str(row["n_draft"]),
        f"{row['tps']:.2f}",
        f"{row['tps'] / plain:.2f}",
        f"{row['accept_rate']:.3f}",
        f"{row['mean_emitted']:.2f}",
        f"{row['round_ms']:.1f}",
        f"{row['verify_ms']:.1f}",
        f"{row['draft_ms']:.1f}",
        python,
    ]
