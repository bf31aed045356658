"""The documentation names what exists: files, links, modules, environment variables and pages of its own."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from llama_eagle.drafting.options import DraftingOptions, about

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
NAMED = ("architecture", "exactness", "gpu", "upstream")
GUIDES = [ROOT / "CONTRIBUTING.md", *(ROOT / f"docs/{name}.md" for name in NAMED)]
# Where a guide's file names begin: at the root, in the package, or in the library's sources.
STARTS = [ROOT, ROOT / "bindings/llama_eagle", ROOT / "native/src/llama"]
OURS = re.compile(r"\b(?:LLAMA_)?EAGLE_(?:EXACT|RS|DEBUG|API_KEY|LIB_PATH|CACHE)\b|\bLLAMA_CPP_SOURCE_DIR\b")


def named_files(page: Path) -> Iterator[str]:
    """Return the paths of this repository between backticks."""
    for name in re.findall(r"`([\w./-]+)`", page.read_text()):
        if "/" in name and not name.startswith((".", "/", "build/", "vendor/", "-")):
            yield name


def anchors(page: Path) -> set[str]:
    """Return the names of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_every_file_that_a_guide_names_exists(page: Path) -> None:
    names = set(named_files(page))
    assert names
    assert not {name for name in names if not any((start / name).exists() for start in STARTS)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(page: Path) -> None:
    text = page.read_text()
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    places = [(page.parent / link.partition("#")[0] if link[0] != "#" else page, link) for link in links]
    assert not [link for place, link in places if not place.exists()]
    assert not [link for place, link in places if "#" in link and link.partition("#")[2] not in anchors(place)]


def test_the_index_names_every_page() -> None:
    text = (ROOT / "docs/README.md").read_text()
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert not [name for name in pages if f"({name})" not in text]
    assert "(docs/README.md)" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize(("page", "limit"), [("README.md", 150), ("docs/LOG.md", 150)])
def test_pages_for_everybody_stay_short(page: str, limit: int) -> None:
    assert len((ROOT / page).read_text().splitlines()) <= limit


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


@pytest.mark.parametrize("page", ["docs/commands.md", "docs/eagle-llama.md"])
def test_tables_of_drafting_options_are_those_of_the_code(page: str) -> None:
    """A row that is missing here can be copied from the failure."""
    known = {name: about(name) for name in DraftingOptions.__dataclass_fields__}
    names = {name: each.flag if page == "docs/commands.md" else name for name, each in known.items()}
    rows = [f"| `{names[name]}` | {each.help} |" for name, each in known.items() if names[name]]
    text = (ROOT / page).read_text()
    assert not [row for row in rows if row not in text]
