"""Plots and tables of the committed results: one JSON file for each machine in bench/results.

    python bench/plots.py [--results bench/results] [--out docs/plots]      # redraws every plot
    python bench/plots.py --tables                                          # prints the tables of docs/performance.md

A new machine is one more file. Every section of a file may be left out:

| section | content |
|---|---|
| `machine`, `name`, `cores`, `simd`, `llama_cpp` | the machine and the commit of llama.cpp |
| `peers` | tokens/s of real models in several engines, by drafter and text (bench/studies/peers.py) |
| `speed` | tokens/s of a model: llama.cpp without drafts and with its best drafts, ours without and with drafts |
| `lookup` | tokens/s with prompt look-up by kind of text, next to the fastest of llama.cpp's look-ups |
| `prompts` | tokens/s while a prompt is evaluated |
| `decodes` | ms of a decode by its number of rows, of llama.cpp's kernels and of ours |
| `types` | the same by weight type, with ik_llama.cpp where it was measured |
| `busy` | tokens/s while other programs compute |
| `clients` | tokens/s of all clients of a server together |
| `memory` | MiB of a loaded model |
| `memory_wall` | tokens/s of a shape at `limit` GB/s (bench/studies/memory_wall.py); `model`: 0.8B if missing |
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LLAMA_CPP, IK, PLAIN, DRAFTED = "#a3a8ae", "#d8b365", "#7fb3dc", "#14508c"
INK, MUTED = "#1f2328", "#59636e"
ROWS = ("1", "2", "3", "5", "9")
PROMPT = "prompt of 512"
LOOKUP_SIDES = (("llama_cpp", "llama_cpp_drafted"), ("ours", "drafted"))
DPI = 150
DESKTOPS = (6, 9, 12.5)  # GB/s for two cores: what the computers of docs/performance.md have
SYNTHETIC = "synthetic, acceptance 0.7"
MEASURED, RATES = 0.7, (0.5, 0.65, 0.8)  # acceptance of synthetic drafts; prose, all texts and code with an MTP head
OURS, PEER = "llama-eagle", "llama.cpp"
TEXTS = {"edit": "a code edit", "chat": "questions"}
BEST = "llama.cpp's best of no drafts, look-up and drafts"

Machine = dict[str, Any]


def read_machines(folder: Path) -> list[Machine]:
    """Read all results, in the order of their file names."""
    return [json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.json"))]


def entries(machines: list[Machine], section: str) -> Iterator[tuple[Machine, dict[str, Any]]]:
    """Yield each entry of a list section with its machine."""
    for machine in machines:
        for entry in machine.get(section, []):
            yield machine, entry


# --- plots -----------------------------------------------------------------------------------------------------------


def style() -> Any:
    """Return pyplot with the settings that all plots share."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update({
        "font.size": 9, "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": "#d0d7de", "xtick.color": MUTED,
        "ytick.color": INK, "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 9,
        "legend.frameon": False, "figure.facecolor": "white",
    })  # fmt: skip
    return pyplot


def save(figure: Any, out: Path) -> None:
    """Write a figure as PNG with a palette, which takes a third of the bytes."""
    from matplotlib import pyplot
    from PIL import Image

    figure.savefig(out, dpi=DPI)
    pyplot.close(figure)
    with Image.open(out) as image:
        small = image.convert("RGB").quantize(64)
    small.save(out, optimize=True)


def best_side(model: dict[str, Any], engine: str, text: str, drafts: bool | None = None) -> dict[str, Any]:
    """Return an engine's fastest side on a text. drafts: only with them, or only without; empty: none was measured."""
    sides = [
        side
        for side in model["sides"]
        if side["engine"] == engine and text in side and drafts in (None, bool(side["drafter"]))
    ]
    return max(sides, key=lambda side: float(side[text]), default={})


def real_models(machines: list[Machine]) -> Iterator[tuple[Machine, dict[str, Any]]]:
    """Yield real models with each text of TEXTS, as `draw_model` takes them: ours next to the best of llama.cpp."""
    for machine in machines:
        for model in machine.get("peers", {}).get("models", []):
            for text, name in TEXTS.items() if not model.get("busy") else ():
                plain, drafted = (best_side(model, OURS, text, drafts) for drafts in (False, True))
                limit = f", {model['limit']:g} GB/s" if model.get("limit") else ""
                yield machine, {
                    **model, "drafter": drafted["drafter"], "text": name + limit,
                    "llama_cpp": best_side(model, PEER, text)[text], "ours": plain[text], "drafted": drafted[text],
                }  # fmt: skip


def at_rates(entry: dict[str, Any]) -> list[float]:
    """Return tokens/s of a synthetic draft at RATES: its rounds, measured at MEASURED, take the same time there."""
    if entry["text"] != SYNTHETIC or not entry["n_draft"]:
        return []
    tokens = {rate: sum(rate**i for i in range(entry["n_draft"] + 1)) for rate in (MEASURED, *RATES)}
    return [float(f"{entry['drafted'] * tokens[rate] / tokens[MEASURED]:.3g}") for rate in RATES]


def draw_headline(machines: list[Machine], out: Path) -> None:
    """Draw the real models of the last machine that has any, ours next to the best of llama.cpp."""
    draw_models(list(real_models([machine for machine in machines if "peers" in machine][-1:])), 4, out)


def draw_speed(machines: list[Machine], out: Path) -> None:
    """Draw shapes whose drafts were measured in both programs."""
    shown = []
    for machine, entry in entries(machines, "speed"):
        if all(entry.get(side) for side in LOOKUP_SIDES[0]):
            rates = at_rates(entry)
            changed = {"llama_cpp": max(entry[side] for side in LOOKUP_SIDES[0]), "range": rates}
            shown.append((machine, {**entry, **changed, "drafted": rates[1] if rates else entry["drafted"]}))
    draw_models(shown, 4, out)


def draw_wall(machines: list[Machine], out: Path) -> None:
    """Draw the speeds at the bandwidths of desktops."""
    shown = []
    for machine, entry in entries(machines, "memory_wall"):
        if entry["limit"] in DESKTOPS and entry["build"] == "AVX2" and "model" not in entry:
            drafter = f"{entry['limit']:g} GB/s, {entry['drafter'].partition(',')[0]}"
            theirs = max(entry[side] for side in LOOKUP_SIDES[0])
            changed = {"model": "0.8B", "drafter": drafter, "text": SYNTHETIC, "llama_cpp": theirs}
            shown.append((machine, {**entry, **changed}))
    shown.sort(key=lambda each: (each[0]["name"], each[1]["limit"]))
    draw_models(shown, -(-len(shown) // 2), out)


def draw_peers(machines: list[Machine], out: Path) -> None:
    """Draw the fastest side of each engine with real models, a panel for each model and text."""
    pyplot = style()
    shown = [
        (machine, model, text)
        for machine in machines
        for model in machine.get("peers", {}).get("models", [])
        if not model.get("limit") and not model.get("busy")
        for text in TEXTS
    ]
    columns = len(TEXTS)
    lines = -(-len(shown) // columns)
    figure, axes = pyplot.subplots(lines, columns, figsize=(10, 2.2 * lines), layout="constrained", squeeze=False)
    for axis, (machine, model, text) in zip(axes.flat, shown, strict=True):
        sides = [best_side(model, engine, text) for engine in {side["engine"]: None for side in model["sides"]}]
        draw_engines(axis, [side for side in sides if side][::-1], text)
        title = f"{model['model']} {model['type']}, {TEXTS[text]}, {machine['name']}"
        axis.set_title(title, fontweight="bold", fontsize=8)
    save(figure, out)


def draw_engines(axis: Any, sides: list[dict[str, Any]], text: str) -> None:
    """Draw a bar for each engine, with its drafter and its tokens/s."""
    colors = {OURS: DRAFTED, PEER: LLAMA_CPP}
    names = [f"{side['engine']}, {side['drafter'] or 'no drafts'}" for side in sides]
    bars = axis.barh(names, [side[text] for side in sides], color=[colors.get(s["engine"], IK) for s in sides])
    axis.bar_label(bars, [f"{side[text]:.3g}" for side in sides], padding=3)
    axis.margins(x=0.15)
    axis.set_xticks([])
    axis.spines["bottom"].set_visible(False)


def draw_models(shown: list[tuple[Machine, dict[str, Any]]], columns: int, out: Path) -> None:
    """Draw a panel for each model in lines of `columns` panels."""
    pyplot = style()
    lines = -(-len(shown) // columns)
    size = (1.95 * columns, 2.9 * lines + 0.35)
    figure, axes = pyplot.subplots(lines, columns, figsize=size, layout="constrained", squeeze=False)
    for axis in axes.flat[len(shown) :]:
        axis.axis("off")
    for axis, (machine, entry) in zip(axes.flat, shown, strict=False):
        draw_model(axis, machine, entry)
    labels = (BEST, "llama-eagle, no drafts", "llama-eagle, drafts")
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=color) for color in (LLAMA_CPP, PLAIN, DRAFTED)]
    figure.legend(handles, labels, loc="outside upper center", ncols=3, fontsize=9, columnspacing=1)
    save(figure, out)


def draw_model(axis: Any, machine: Machine, entry: dict[str, Any]) -> None:
    """Draw the bars of one model; each panel has its own scale, its bars carry the numbers."""
    bars = [(LLAMA_CPP, entry["llama_cpp"]), (PLAIN, entry["ours"]), (DRAFTED, entry["drafted"])]
    bars = [(color, value) for color, value in bars if value]
    low, _, high = entry.get("range") or [entry["drafted"]] * 3
    top = max(high or 0, *(value for _, value in bars))
    for place, (color, value) in enumerate(bars):
        axis.bar(place, value, color=color, width=0.78)
        end = high if color == DRAFTED else value
        if color == DRAFTED and high > low:
            axis.vlines(place, low, high, color=INK, linewidth=1.5)
        axis.text(place, end + top * 0.02, f"{value:g}", ha="center", va="bottom", fontweight="bold")
        if place:
            gain = f"×{value / entry['llama_cpp']:.1f}"
            ink = "white" if color == DRAFTED else INK
            axis.text(place, value * 0.5, gain, ha="center", va="center", color=ink, fontsize=10)
    axis.set_ylim(0, top * 1.15)
    axis.set_xlim(-0.55, 2.55)
    axis.set_xticks([])
    axis.set_yticks([])
    axis.spines["left"].set_visible(False)
    name = entry["model"].replace(" shape", "")
    axis.set_title(f"{name}\n{entry['type']}, {machine['name']}", fontweight="bold", fontsize=9)
    axis.set_xlabel(caption(entry), fontsize=8, color=MUTED)


def caption(entry: dict[str, Any]) -> str:
    """Return what the drafts of an entry were and what was generated."""
    if not entry["drafter"]:
        return "tokens/s\n "
    rate = "65 % (50 to 80)" if entry.get("range") else "synthetic, 70 %"
    text = f"{rate} accepted" if entry["text"] == SYNTHETIC else entry["text"]
    return f"tokens/s, {entry['drafter']}\n{text}"


def draw_types(machines: list[Machine], out: Path) -> None:
    """Draw the decode speed of each weight type, of each machine that has both llama.cpp's and ours."""
    pyplot = style()
    shown = [machine for machine in machines if "types" in machine]
    size = (10, 2.5 * len(shown) + 0.4)
    figure, axes = pyplot.subplots(len(shown), 2, figsize=size, layout="constrained", squeeze=False)
    sides = (
        ("llama_cpp", "llama.cpp", LLAMA_CPP),
        ("ik_llama_cpp", "ik_llama.cpp", IK),
        ("ours", "llama-eagle", DRAFTED),
    )
    for line, machine in zip(axes, shown, strict=True):
        present = [each for each in sides if each[0] in machine["types"]["ms"][0]]
        for axis, what, tokens in zip(line, ("1", PROMPT), (1, 512), strict=True):
            draw_bars(axis, machine["types"]["ms"], present, what, tokens)
            title = "generation" if what == "1" else "prompt of 512 tokens"
            axis.set_title(f"{machine['name']}: {title}, {machine['types']['model']}", fontweight="bold")
            axis.set_ylabel("tokens/s")
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=color) for _, _, color in sides]
    figure.legend(handles, [name for _, name, _ in sides], loc="outside upper center", ncols=3, fontsize=10)
    save(figure, out)


def draw_bars(axis: Any, rows: list[dict[str, Any]], sides: list[tuple[str, str, str]], what: str, tokens: int) -> None:
    """Draw a group of bars for each weight type: `tokens` over the time in ms, as tokens/s."""
    width = 0.8 / len(sides)
    for place, (key, _, color) in enumerate(sides):
        heights = [1000 * tokens / row[key][what] for row in rows]
        at = [i + (place - (len(sides) - 1) / 2) * width for i in range(len(rows))]
        axis.bar(at, heights, width=width, color=color)
    axis.set_xticks(range(len(rows)), [row["type"] for row in rows], rotation=45, ha="right", rotation_mode="anchor")


def draw_rows(machines: list[Machine], out: Path, model: str = "0.8B", kind: str = "Q4_K_M") -> None:
    """Draw ms of a decode over its number of rows: a panel for each CPU, llama.cpp's kernels and ours."""
    pyplot = style()
    shown = [
        (machine, entry)
        for machine, entry in entries(machines, "decodes")
        if (entry["model"], entry["type"]) == (model, kind)
    ]
    shown.sort(key=lambda each: str(each[1]["build"]), reverse=True)
    shown.sort(key=lambda each: str(each[1]["build"]) == "AVX2")
    size = (1.95 * len(shown), 2.9)
    figure, axes = pyplot.subplots(1, len(shown), figsize=size, layout="constrained", sharey=True, squeeze=False)
    for axis, (machine, entry) in zip(axes.flat, shown, strict=True):
        for key, color in (("llama_cpp", LLAMA_CPP), ("ours", DRAFTED)):
            times = [entry[key][row] for row in ROWS]
            axis.plot([int(row) for row in ROWS], times, "o-", color=color, linewidth=2, markersize=4)
            axis.annotate(
                f"{times[-1]:.0f}", (9, times[-1]), (0, 5), textcoords="offset points", ha="center", fontsize=8
            )
        axis.set_title(f"{machine['name']}, {entry['build']}", fontweight="bold")
        axis.set_xticks([int(row) for row in ROWS])
        axis.set_xlabel("rows")
    top = max(entry[key]["9"] for _, entry in shown for key in ("llama_cpp", "ours"))
    axes.flat[0].set_ylim(0, top * 1.1)
    axes.flat[0].set_ylabel("ms of a decode")
    handles = [pyplot.Line2D([], [], color=color, linewidth=2, marker="o") for color in (LLAMA_CPP, DRAFTED)]
    names = (f"llama.cpp, {model} {kind}", f"llama-eagle, {model} {kind}")
    figure.legend(handles, names, loc="outside upper center", ncols=2, fontsize=10)
    save(figure, out)


def draw_busy(machines: list[Machine], out: Path) -> None:
    """Draw the speed next to other programs: ours, the same kernels with OpenMP's barriers, llama.cpp's kernels."""
    pyplot = style()
    shown = [machine for machine in machines if "busy" in machine]
    figure, axes = pyplot.subplots(len(shown), 1, figsize=(8, 2.9 * len(shown)), layout="constrained", squeeze=False)
    sides = (
        ("llama.cpp's kernels", "llama.cpp's kernels, OpenMP", LLAMA_CPP),
        ("OpenMP's barriers", "our kernels, OpenMP", PLAIN),
        ("two threads", "llama-eagle", DRAFTED),
    )
    for axis, machine in zip(axes.flat, shown, strict=True):
        busy = machine["busy"]
        loads = [load for load in busy["tokens_per_second"] if load["programs"] == "none" or sides[0][0] in load]
        for place, (key, _, color) in enumerate(sides):
            for i, load in enumerate(loads):
                if key in load:
                    at = i + (place - 1) * 0.27 if sum(side[0] in load for side in sides) > 1 else i
                    axis.bar(at, load[key], width=0.25, color=color)
                    axis.text(at, load[key] + 1, f"{load[key]:.0f}", ha="center", fontsize=8)
        axis.set_xticks(range(len(loads)), [f"{load['programs']}".replace(", ", ",\n") for load in loads])
        axis.set_xlabel("programs that compute at the same time")
        axis.set_ylabel("tokens/s")
        axis.set_title(f"{busy['model']} {busy['type']}, {machine['name']}, two threads", fontweight="bold")
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=color) for _, _, color in sides]
    figure.legend(handles, [name for _, name, _ in sides], loc="outside upper center", ncols=3, fontsize=10)
    save(figure, out)


def draw_all(machines: list[Machine], out: Path) -> None:
    """Write every plot of the documentation into the folder `out`."""
    out.mkdir(parents=True, exist_ok=True)
    draw_headline(machines, out / "headline.png")
    if any("peers" in machine for machine in machines):
        draw_peers(machines, out / "peers.png")
    draw_speed(machines, out / "speed.png")
    draw_types(machines, out / "types.png")
    draw_rows(machines, out / "rows.png")
    draw_busy(machines, out / "busy.png")
    draw_wall(machines, out / "wall.png")


# --- tables ----------------------------------------------------------------------------------------------------------


def cell(value: float | None) -> str:
    return "" if value is None else f"{value:,g}"


def speed_table(machines: list[Machine]) -> list[str]:
    """Return the Markdown rows of the table of speeds."""
    rows = [
        "| CPU | model | drafter | llama.cpp, no drafts | ours, no drafts | ours, drafts "
        "| at 0.5, 0.65, 0.8 | over llama.cpp |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for machine, entry in entries(machines, "speed"):
        best, base = entry["drafted"] or entry["ours"], entry["llama_cpp"]
        length = f" ({entry['n_draft']})" if entry["n_draft"] else ""
        drafter = f"{entry['drafter']}{length}" if entry["drafter"] else "none"
        values = " | ".join(cell(entry[key]) for key in ("llama_cpp", "ours", "drafted"))
        gain = f"{best / base:.1f}" if base else ""
        rates = ", ".join(map(cell, at_rates(entry)))
        model = f"{entry['model']} {entry['type']}"
        rows.append(f"| {machine['name']} | {model} | {drafter} | {values} | {rates} | {gain} |")
    return rows


def lookup_table(machines: list[Machine]) -> list[str]:
    """Return the Markdown rows of the table of prompt look-up."""
    rows = [
        "| CPU | model | text | llama.cpp, its best look-up | ours, look-up | over our plain decoding |",
        "|---|---|---|---|---|---|",
    ]
    for machine, entry in entries(machines, "lookup"):
        theirs, mine = (f"{cell(entry[plain])}, {cell(entry[drafted])}" for plain, drafted in LOOKUP_SIDES)
        gain = f"{entry['drafted'] / entry['ours']:.2f}"
        model = f"{entry['model']} {entry['type']}"
        rows.append(f"| {machine['name']} | {model} | {entry['text']} | {theirs} | {mine} | {gain} |")
    return rows


def clients_table(machines: list[Machine]) -> list[str]:
    """Return the Markdown rows of the table of several clients."""
    rows = ["| CPU | server | 1 client | 2 | 4 | 8 |", "|---|---|---|---|---|---|"]
    for machine in machines:
        for name, speeds in machine.get("clients", {}).get("tokens_per_second", {}).items():
            values = " | ".join(cell(speeds[n]) for n in ("1", "2", "4", "8"))
            rows.append(f"| {machine['name']} | {name} | {values} |")
    return rows


def rows_table(machines: list[Machine]) -> list[str]:
    """Return the Markdown rows of the table of decodes: one row, five rows and a prompt, of llama.cpp and of ours."""
    rows = [
        f"| CPU, build | model | 1 row: llama.cpp, ours | 5 rows: llama.cpp, ours | {PROMPT}: llama.cpp, ours |",
        "|---|---|---|---|---|",
    ]
    for machine, entry in entries(machines, "decodes"):
        pairs = [f"{cell(entry['llama_cpp'][row])}, {cell(entry['ours'][row])}" for row in ("1", "5", PROMPT)]
        build = f"{machine['name']}, {entry['build']}"
        rows.append(f"| {build} | {entry['model']} {entry['type']} | {' | '.join(pairs)} |")
    return rows


def wall_table(machines: list[Machine]) -> list[str]:
    """Return the Markdown rows of the table of emulated memory bandwidths."""
    rows = [
        "| CPU, build | shape | drafter | GB/s | plain: llama.cpp, ours | drafts: llama.cpp, ours | over plain "
        "| over llama.cpp |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for machine, entry in entries(machines, "memory_wall"):
        build, limit = f"{machine['name']}, {entry['build']}", entry["limit"] or "no limit"
        plain, drafted = (
            f"{cell(entry[theirs])}, {cell(entry[mine])}" for theirs, mine in zip(*LOOKUP_SIDES, strict=True)
        )
        theirs = max(entry[side] or 0 for side in LOOKUP_SIDES[0])
        gains = [f"{entry['drafted'] / base:.2f}" if base else "" for base in (entry["ours"], theirs)]
        kind = f"{entry.get('model', '0.8B')} {entry['type']} | {entry['drafter']}"
        rows.append(f"| {build} | {kind} | {limit} | {plain} | {drafted} | {' | '.join(gains)} |")
    return rows


def peers_table(machines: list[Machine]) -> list[str]:
    """Return the Markdown rows of the table of engines: each without drafts and with its best drafter for a text."""
    texts = [f"{name}: no drafts, best drafter" for name in TEXTS.values()]
    rows = [
        f"| CPU | model | engine | {' | '.join(texts)} | prompts of 512, 4,096 | MiB | first token, s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for machine in machines:
        for model in machine.get("peers", {}).get("models", []):
            state = [f"{model['limit']:g} GB/s"] if model.get("limit") else []
            state += ["next to another program"] if model.get("busy") else []
            name = ", ".join([f"{model['model']} {model['type']}", *state])
            for engine in {side["engine"]: None for side in model["sides"]}:
                cells = " | ".join(engine_cells(model, engine))
                rows.append(f"| {machine['name']} | {name} | {engine} | {cells} |")
    return rows


def engine_cells(model: dict[str, Any], engine: str) -> list[str]:
    """Return an engine's cells of the table: speeds by text, then prompts, memory and first token without drafts."""
    cells = []
    for text in TEXTS:
        plain, drafted = (best_side(model, engine, text, drafts) for drafts in (False, True))
        speeds = [
            cell(side.get(text)) + (f" ({side['drafter']})" if side.get("drafter") else "") for side in (plain, drafted)
        ]
        cells.append(", ".join(filter(None, speeds)))
    plain = next(side for side in model["sides"] if side["engine"] == engine and not side["drafter"])
    if "failure" in plain:
        return [f"fails: {plain['failure']}", *[""] * 4]
    return [
        *cells,
        f"{cell(plain['512'])}, {cell(plain['4096'])}",
        cell(plain["peak_mib"]),
        cell(plain["first_token_s"]),
    ]


def tables(machines: list[Machine]) -> dict[str, list[str]]:
    """Return the tables that the documentation repeats, by page."""
    return {
        "docs/performance.md": [
            *speed_table(machines),
            *lookup_table(machines),
            *peers_table(machines),
            *rows_table(machines),
            *wall_table(machines),
        ],
        "docs/server.md": clients_table(machines),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw the plots of the documentation from bench/results.")
    parser.add_argument("--results", type=Path, default=ROOT / "bench/results", help="Folder of the machines' results.")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/plots", help="Folder of the plots.")
    parser.add_argument("--tables", action="store_true", help="Print the tables of the documentation instead.")
    arguments = parser.parse_args()
    machines = read_machines(arguments.results)
    if arguments.tables:
        for page, rows in tables(machines).items():
            print(f"{page}:", *rows, sep="\n")
    else:
        draw_all(machines, arguments.out)


if __name__ == "__main__":
    main()
