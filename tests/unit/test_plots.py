"""The plots and the tables of speed come from bench/results."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from llama_eagle.bench import report
from matplotlib import pyplot
from PIL import Image

ROOT = Path(__file__).parents[2]
NAMES = {"headline.png", "speed.png", "types.png", "rows.png", "busy.png", "wall.png", "peers.png"}


@pytest.fixture(scope="module")
def plots() -> Any:
    spec = importlib.util.spec_from_file_location("plots", ROOT / "bench/plots.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_file_names_its_machine(plots: Any) -> None:
    machines = plots.read_machines(ROOT / "bench/results")
    assert len({machine["name"] for machine in machines}) == len(machines) >= 4
    assert all(machine[key] for machine in machines for key in ("machine", "cores", "simd", "llama_cpp"))


def test_all_plots_are_drawn_and_committed(plots: Any, tmp_path: Path) -> None:
    plots.draw_all(plots.read_machines(ROOT / "bench/results"), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == NAMES
    for name in NAMES:
        with Image.open(tmp_path / name) as drawn, Image.open(ROOT / "docs/plots" / name) as committed:
            assert drawn.width > 800
            assert abs(drawn.height - committed.height) < 20, f"{name} is out of date: python bench/plots.py"


def test_pages_repeat_the_tables(plots: Any) -> None:
    """`python bench/plots.py --tables` prints a row that is missing here."""
    tables = plots.tables(plots.read_machines(ROOT / "bench/results"))
    missing = [row for page, rows in tables.items() for row in rows if row not in (ROOT / page).read_text("utf-8")]
    assert not missing


def test_a_new_machine_is_one_more_file(plots: Any, tmp_path: Path) -> None:
    speed = {"model": "M", "type": "Q8_0", "drafter": None, "text": None, "llama_cpp": 2, "ours": 5, "drafted": None}
    drafted = {**speed, "drafter": "MTP head", "drafted": 9, "llama_cpp_drafted": 3, "n_draft": 4, "text": "a text"}
    machine = {"name": "New", "machine": "New", "speed": [{**speed, "n_draft": None}, drafted]}
    (tmp_path / "new.json").write_text(json.dumps(machine))
    machines = plots.read_machines(tmp_path)
    assert plots.speed_table(machines)[-2] == "| New | M Q8_0 | none | 2 | 5 |  |  | 2.5 |"
    plots.draw_speed(machines, tmp_path / "new.png")
    assert (tmp_path / "new.png").stat().st_size > 1000


def test_the_plot_of_a_bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Lines of both engines over the draft lengths, and the times of rows; `auto` has no length."""
    figures: list[Any] = []
    monkeypatch.setattr(pyplot, "close", figures.append)
    ours, theirs = ([{"n_draft": n, "tps": tps} for n, tps in each] for each in (
        [(1, 20.0), (4, 40.0), ("auto", 44.0)], [(1, 10.0), (2, 15.0)]))  # fmt: skip
    steps = [{"depth": 0, "decode_ms": 50.0, "verify_ms": [51.0, 52.0, 55.0]}]
    result = {"model": "M", "type": "q8_0", "threads": 2, "accept": 0.7, "plain_tps": 12.0, "steps": steps}
    report.plot([{**result, "ours": ours, "upstream": theirs}], tmp_path / "plot.png")
    speeds, rows = figures[0].axes
    lines = {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in speeds.lines + rows.lines}
    assert list(speeds.get_xticks()) == [1, 4]
    assert lines["ours, acceptance 0.7"] == ([1, 4], [20.0, 40.0])
    assert lines["upstream, acceptance 0.7"] == ([1, 2], [10.0, 15.0])
    assert lines["ours, auto, acceptance 0.7"][1] == [44.0, 44.0] and lines["plain"][1] == [12.0, 12.0]
    assert lines["verification, depth 0"] == ([1, 2, 3], [51.0, 52.0, 55.0])
    assert (tmp_path / "plot.png").stat().st_size > 1000
