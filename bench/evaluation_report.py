"""Results of an evaluation as a JSON object, a table and a plot."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from llama_eagle import console
from llama_eagle.bench.evaluate import Evaluation, Scores, total

OVERALL = "overall"
TITLES = {"default": "default", "lookup": "look-up"}  # of further drafters
SHOWN = 5  # draft positions in the table, to fit 80 columns; --json has all


def as_dict(job: Evaluation, scores: Scores, others: Mapping[str, Scores] = MappingProxyType({})) -> dict[str, Any]:
    """Return the results for JSON. `others`: the scores of further drafters by the keys of TITLES."""
    return {
        "model": job.target.name,
        "draft": Path(str(job.drafting.draft or "lookup")).name,
        "n": job.n,
        "n_draft": job.drafting.n_draft,
        "temperature": job.sampling.temperature,
        "draft_sampling": job.drafting.draft_sampling,
        "threads": job.threads,
        "rpc_servers": list(job.load.rpc_servers),
        "exact": job.drafting.exact,
        **_scores(scores),
        **{name: _scores(others[name]) if name in others else None for name in TITLES},
    }


def _scores(scores: Scores) -> dict[str, Any]:
    categories = {category: score.as_dict() for category, score in scores.items()}
    return {OVERALL: total(scores.values()).as_dict(), "categories": categories}


def table(report: dict[str, Any]) -> Any:
    """Build a table with one row per category and one for all."""
    title = (
        f"{report['model']} with {report['draft']}\n{report['n_draft']} drafted per round, {report['threads']} threads"
    )
    caption = "p1, p2, ...: acceptance rate at this position if all before it were accepted"
    if report["default"]:
        caption += "\ndefault: both drafters, with automatic lengths"
    if report["lookup"]:
        caption += "\nlook-up: prompt look-up alone"
    positions = min(SHOWN, len(report[OVERALL]["accepted_per_position"]))
    headings = ("", "turns", "tokens", "per\nround", "plain\ntok/s", "tok/s", "x\nplain", *_position_names(positions))
    out = console.compact_table(headings, title=title, caption=caption)
    _add_rows(out, report, positions)
    for name, section in TITLES.items():
        if report[name]:
            out.add_section()
            out.add_row(section)
            _add_rows(out, report[name], positions)
    return out


def _add_rows(out: Any, scores: dict[str, Any], positions: int) -> None:
    rows = dict(scores["categories"])
    if len(rows) > 1:
        rows[OVERALL] = scores[OVERALL]
    for name, score in rows.items():
        out.add_row(name, *_cells(score, positions))


def summary(report: dict[str, Any]) -> str:
    score = report[OVERALL]
    if report["temperature"] > 0 and report["draft_sampling"] == "rejection":
        return "rejection sampling: drafting changes which random numbers are used, not the distribution of the text"
    return f"{score['n_same']} of {score['n_turns']} answers are identical to plain decoding"


def plot_scores(report: dict[str, Any], path: Path) -> None:
    """Plot acceptance by position and speed over plain decoding.

    Left: one line per category, all categories in black. Right: one bar per category.
    """
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 4), layout="constrained")
    names = [*report["categories"], OVERALL]
    for name in names:
        score = report[OVERALL] if name == OVERALL else report["categories"][name]
        shares = score["accepted_per_position"]
        color = "black" if name == OVERALL else None
        (line,) = left.plot(range(1, len(shares) + 1), shares, "o-", color=color, label=name)
        right.barh(name, score["over_plain"], color=line.get_color())
        right.text(score["over_plain"], name, f" {score['mean_emitted']:.2f} per round", va="center", fontsize="small")
    left.set(xlabel="position in the draft", ylabel="acceptance when all previous were accepted", ylim=(0, 1))
    left.xaxis.get_major_locator().set_params(integer=True)
    left.legend(fontsize="small")
    right.axvline(1, color="gray", linestyle=":")
    right.set(xlabel="speed over plain decoding")
    right.margins(x=0.3)
    right.invert_yaxis()
    figure.suptitle(f"{report['model']}, {report['n_draft']} drafted per round, {report['threads']} threads")
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def _position_names(n: int) -> list[str]:
    return [f"p{i + 1}" for i in range(n)]


def _cells(score: dict[str, Any], positions: int) -> list[str]:
    shares = [f"{share:.2f}" for share in score["accepted_per_position"][:positions]]
    return [
        str(score["n_turns"]),
        str(score["n_tokens"]),
        f"{score['mean_emitted']:.2f}",
        f"{score['plain_tps']:.2f}",
        f"{score['tps']:.2f}",
        f"{score['over_plain']:.2f}",
        *shares,
        *[""] * (positions - len(shares)),
    ]
