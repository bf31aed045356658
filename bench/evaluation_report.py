"""What an evaluation found: as one JSON object, as a table, as a plot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llama_eagle import console
from llama_eagle.bench.evaluate import Evaluation, Scores, total

OVERALL = "overall"
SHOWN = 5  # positions of a draft in the table, which fits 80 columns; --json has all


def as_dict(job: Evaluation, scores: Scores, lookup: Scores | None = None) -> dict[str, Any]:
    """lookup: of prompt look-up alone, next to a draft model."""
    return {
        "model": job.target.name,
        "draft": Path(str(job.drafting.draft or "lookup")).name,
        "n": job.n,
        "n_draft": job.drafting.n_draft,
        "temperature": job.sampling.temperature,
        "threads": job.threads,
        "rpc_servers": list(job.load.rpc_servers),
        "exact": job.drafting.exact,
        OVERALL: total(scores.values()).as_dict(),
        "categories": _categories(scores),
        "lookup": lookup and {OVERALL: total(lookup.values()).as_dict(), "categories": _categories(lookup)},
    }


def _categories(scores: Scores) -> dict[str, Any]:
    return {category: score.as_dict() for category, score in scores.items()}


def table(report: dict[str, Any]) -> Any:
    """A row for each category and one for all."""
    title = (
        f"{report['model']} with {report['draft']}\n{report['n_draft']} drafted a round, {report['threads']} threads"
    )
    caption = "p1, p2, ...: accepted there when all before it were"
    positions = min(SHOWN, len(report[OVERALL]["accepted_per_position"]))
    headings = ("", "turns", "tokens", "a\nround", "plain\ntok/s", "tok/s", "x\nplain", *_position_names(positions))
    out = console.compact_table(headings, title=title, caption=caption)
    _add_rows(out, report, positions)
    if report["lookup"]:
        out.add_section()
        out.add_row("look-up alone")
        _add_rows(out, report["lookup"], positions)
    return out


def _add_rows(out: Any, scores: dict[str, Any], positions: int) -> None:
    rows = dict(scores["categories"])
    if len(rows) > 1:
        rows[OVERALL] = scores[OVERALL]
    for name, score in rows.items():
        out.add_row(name, *_cells(score, positions))


def summary(report: dict[str, Any]) -> str:
    score = report[OVERALL]
    if report["temperature"] > 0:
        return "sampled: the draft changes which random numbers are used, not the distribution of the text"
    return f"{score['n_same']} of {score['n_turns']} answers are those of plain decoding"


def plot_scores(report: dict[str, Any], path: Path) -> None:
    """Left: acceptance by position, one line a category, all of them in black. Right: speed over plain decoding."""
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 4), layout="constrained")
    names = [*report["categories"], OVERALL]
    for name in names:
        score = report[OVERALL] if name == OVERALL else report["categories"][name]
        shares = score["accepted_per_position"]
        color = "black" if name == OVERALL else None
        (line,) = left.plot(range(1, len(shares) + 1), shares, "o-", color=color, label=name)
        right.barh(name, score["over_plain"], color=line.get_color())
        right.text(score["over_plain"], name, f" {score['mean_emitted']:.2f} a round", va="center", fontsize="small")
    left.set(xlabel="position in the draft", ylabel="accepted when all before it were", ylim=(0, 1))
    left.xaxis.get_major_locator().set_params(integer=True)
    left.legend(fontsize="small")
    right.axvline(1, color="gray", linestyle=":")
    right.set(xlabel="speed over plain decoding")
    right.margins(x=0.3)
    right.invert_yaxis()
    figure.suptitle(f"{report['model']}, {report['n_draft']} drafted a round, {report['threads']} threads")
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
