"""The documentation names what exists: files, links, modules, environment variables and pages of its own."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from llama_eagle.drafting.options import DraftingOptions, about

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMED = ("architecture", "exactness", "gpu", "upstream")
GUIDES = [ROOT / "CONTRIBUTING.md", *(ROOT / f"docs/{name}.md" for name in NAMED)]
# Where a guide's file names begin: at the root, in the package, or in the library's sources.
STARTS = [ROOT, ROOT / "bindings/llama_eagle", ROOT / "native/src/llama"]
OURS = re.compile(r"\b(?:LLAMA_)?EAGLE_(?:EXACT|RS|DEBUG|API_KEY|LIB_PATH|CACHE)\b|\bLLAMA_CPP_SOURCE_DIR\b")


def named_files(page: Path) -> Iterator[str]:
    """What stands between backticks and looks like a path of this repository."""
    for name in re.findall(r"`([\w./-]+)`", page.read_text()):
        if "/" in name and not name.startswith((".", "/", "build/", "vendor/", "-")):
            yield name


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_every_file_that_a_guide_names_exists(page: Path) -> None:
    names = set(named_files(page))
    assert names
    assert not {name for name in names if not any((start / name).exists() for start in STARTS)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_link_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
    assert not [link for link in links if "://" not in link and not (page.parent / link).exists()]


def test_readme_names_every_page() -> None:
    text = (ROOT / "README.md").read_text()
    assert not [page.name for page in (ROOT / "docs").glob("*.md") if f"(docs/{page.name})" not in text]


def test_architecture_names_every_decision() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    assert not [page.name for page in (ROOT / "docs/adr").glob("*.md") if f"(adr/{page.name})" not in text]


def test_every_layer_is_described() -> None:
    spec = importlib.util.spec_from_file_location("layers", ROOT / "tests/unit/test_layers.py")
    assert spec is not None and spec.loader is not None
    layers = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(layers)
    text = (ROOT / "docs/architecture.md").read_text()
    table = text[text.index("| layer | holds |") :]
    rows = [tuple(re.findall(r"`(\w+)`", row.split("|")[1])) for row in table.splitlines()[2 : 2 + len(layers.LAYERS)]]
    assert rows == list(layers.LAYERS)


def test_every_environment_variable_is_documented() -> None:
    text = (ROOT / "docs/environment.md").read_text()
    sources = [
        path
        for folder in ("bindings", "bench", "native/src", "native/cmake")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".cpp", ".cu", ".h")
    ]
    read = {name for path in sources for name in OURS.findall(path.read_text())}
    assert len(read) >= 6
    assert not {name for name in read if f"`{name}`" not in text}


@pytest.mark.parametrize("page", ["README.md", "docs/eagle-llama.md"])
def test_tables_of_drafting_options_are_those_of_the_code(page: str) -> None:
    """A row that is missing here can be copied from the failure."""
    known = {name: about(name) for name in DraftingOptions.__dataclass_fields__}
    names = {name: each.flag if page == "README.md" else name for name, each in known.items()}
    rows = [f"| `{names[name]}` | {each.help} |" for name, each in known.items() if names[name]]
    text = (ROOT / page).read_text()
    assert not [row for row in rows if row not in text]
