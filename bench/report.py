"""Benchmark results as tables and as a plot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llama_eagle import console
from llama_eagle.drafting.options import LOOKUP
from llama_eagle.errors import EnvironmentFailure, UsageError
from llama_eagle.files import check_output, refuse_existing

AT_MEMORY = 0.75  # share of the bandwidth from which memory limits a decode


def tables(result: dict[str, Any]) -> list[Any]:
    """Build the tables: speed, costs of steps, and prompts if measured."""
    return [
        _speeds(result),
        *([_steps(result)] if result["steps"] else []),
        *([_prompts(result)] if result["prompts"] else []),
    ]


def _steps(result: dict[str, Any]) -> Any:
    """Build two rows per depth: times in ms, and the same as multiples of a plain decode."""
    n_most = len(result["steps"][0]["verify_ms"])
    title = "ms per step by context depth, and the same in decodes"
    caption = "draft: 4 tokens; 1, 2, ...: verification of N rows"
    out = console.compact_table(
        ("tokens", "decode", "draft", *map(str, range(1, n_most + 1))), title=title, caption=caption
    )
    for costs in result["steps"]:
        decode, draft = costs["decode_ms"], costs["draft_ms"]
        times = (decode, draft, *costs["verify_ms"])
        out.add_row(str(costs["depth"]), *("" if ms is None else f"{ms:.1f}" for ms in times))
        out.add_row("", *("" if ms is None else f"{ms / decode:.2f}" for ms in times))
    return out


def _prompts(result: dict[str, Any]) -> Any:
    others = ("upstream",) if result["prompts"][0]["upstream_tps"] is not None else ()
    out = console.compact_table(("prompt", "tok/s", "with a draft", "x plain", *others), title="evaluating a prompt")
    for costs in result["prompts"]:
        speeds = [f"{costs[name]:.0f}" for name in ("plain_tps", "draft_tps", *(f"{other}_tps" for other in others))]
        out.add_row(str(costs["n"]), *speeds[:2], f"{costs['draft_over_plain']:.3f}", *speeds[2:])
    return out


def _speeds(result: dict[str, Any]) -> Any:
    """Build a row for plain decoding and one for each draft length, of ours and of upstream."""
    title = f"{result['model']}, {result['type']}, {result['n_generated']} tokens, {result['threads']} threads"
    if result["accept"] is not None:
        title += f", acceptance {result['accept']:g}"
    if result["drafter"] == "mtp":
        title += f", MTP head with {result['draft_vocab'] or 'all'} tokens"
    elif result["drafter"] == LOOKUP:
        title += ", prompt look-up"
    else:
        title += f", {result['drafter']}"
    caption = "n: draft length; per round: tokens emitted; round, verify, draft: mean ms"
    headings = ("", "n", "tok/s", "x plain", "accepted", "per round", "round", "verify", "draft", "python")
    out = console.compact_table(headings, title=title, caption=caption)
    plain = result["plain_tps"]
    out.add_row("ours", "plain", f"{plain:.2f}", "1.00")
    if upstream := result["upstream_plain_tps"]:
        out.add_row("upstream", "plain", f"{upstream:.2f}", f"{upstream / plain:.2f}")
    for who in ("ours", "upstream"):
        for row in result[who]:
            out.add_row(who, *_cells(row, plain))
    if result["lookup"]:
        out.add_row("look-up", *_cells(result["lookup"], plain))
    for row in result["upstream_lookup"]:
        out.add_row("upstream", *_cells(row | {"n_draft": row["n_draft"].removeprefix("ngram-")}, plain))
    out.add_row("sampled", *_cells(result["sampled"], plain))
    if result["chat"]:
        out.add_row("streamed", *_cells(result["chat"], plain))
    return out


def summary(result: dict[str, Any]) -> str:
    lines = [f"best over plain          {result['best_over_plain']:.2f}"]
    if result["best_over_upstream"] is not None:
        lines.append(f"best over upstream's     {result['best_over_upstream']:.2f}")
    lines.append(f"sampled over greedy      {result['sampled']['over_greedy']:.3f}")
    lines.append(_memory_line(result["memory"], result["steps"][0]["decode_ms"]))
    return "\n".join(lines)


def _memory_line(memory: dict[str, Any], decode_ms: float) -> str:
    """Compare the bandwidth of a decode with the machine's."""
    size, best, one = (memory[key] / 1e9 for key in ("decode_bytes", "read_rate", "read_rate_of_one"))
    reached = size / decode_ms * 1e3
    limit = "memory" if reached > AT_MEMORY * best else "computation"
    rates = f"all threads read {best:.1f} GB/s, one {one:.1f}"
    start = f"a decode reads           {size * 1e3:.0f} MB at {reached:.1f} GB/s: {limit} limits it"
    return f"{start}\n                         {rates}"


def require_plotting(path: Path, overwrite: bool) -> None:
    """Check, before minutes of measuring, that a plot can be written to `path`.

    Raises UsageError or EnvironmentFailure if not.
    """
    try:
        import matplotlib
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError:
        raise EnvironmentFailure("--plot requires matplotlib. Run `pip install 'llama-eagle[bench]'`.") from None
    matplotlib.use("Agg")
    check_output(path)
    refuse_existing([path], overwrite)
    known = FigureCanvasBase.filetypes
    if path.suffix[1:].lower() not in known:
        raise UsageError(f"--plot {path}: unknown image format. Use one of the endings {', '.join(sorted(known))}.")


def plot(results: Sequence[dict[str, Any]], path: Path) -> None:
    """Plot tokens/s over the draft length, and verification time over rows.

    The first panel has one color per acceptance rate, the second one per depth.
    """
    from matplotlib import pyplot

    figure, (speeds, steps) = pyplot.subplots(1, 2, figsize=(12, 4.5), layout="constrained")
    colors = pyplot.rcParams["axes.prop_cycle"].by_key()["color"] * 3
    for color, result in zip(colors, results, strict=False):
        _plot_speeds(speeds, result, color)
    speeds.axhline(results[0]["plain_tps"], color="gray", linestyle=":", label="plain")
    speeds.set(xlabel="draft length, tokens", ylabel="tokens/s", ylim=(0, None))
    speeds.set_xticks(sorted({r["n_draft"] for result in results for r in result["ours"] if r["n_draft"] != "auto"}))
    for color, costs in zip(colors, results[0]["steps"], strict=False):
        rows = range(1, len(costs["verify_ms"]) + 1)
        steps.plot(rows, costs["verify_ms"], "o-", color=color, label=f"verification, depth {costs['depth']}")
        steps.axhline(costs["decode_ms"], color=color, linestyle=":", label=f"decode, depth {costs['depth']}")
    steps.set(xlabel="rows", ylabel="ms", ylim=(0, None))
    figure.suptitle(f"{results[0]['model']}, {results[0]['type']}, {results[0]['threads']} threads")
    for axes in (speeds, steps):
        axes.legend(fontsize="small")
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def _plot_speeds(axes: Any, result: dict[str, Any], color: str) -> None:
    """Plot ours solid, upstream dashed and `auto` as a thin line."""
    label = "" if result["accept"] is None else f", acceptance {result['accept']:g}"
    for who, style in (("ours", "o-"), ("upstream", "s--")):
        points = [(r["n_draft"], r["tps"]) for r in result[who] if r["n_draft"] != "auto"]
        if points:
            axes.plot(*zip(*points, strict=True), style, color=color, label=f"{who}{label}")
    for row in result["ours"]:
        if row["n_draft"] == "auto":
            axes.axhline(row["tps"], color=color, linewidth=0.8, label=f"ours, auto{label}")


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
