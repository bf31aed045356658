"""The plots and the tables of speed come from bench/results."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]
NAMES = {"headline.png", "speed.png", "types.png", "rows.png", "busy.png", "wall.png"}


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
    machine = {"name": "New", "machine": "New", "speed": [{**speed, "n_draft": None, "headline": True}]}
    (tmp_path / "new.json").write_text(json.dumps(machine))
    machines = plots.read_machines(tmp_path)
    assert plots.speed_table(machines)[-1] == "| New | M Q8_0 | none | 2 | 5 |  | 2.5 |"
    plots.draw_speed(machines, tmp_path / "new.png", headline=True)
    assert (tmp_path / "new.png").stat().st_size > 1000
