"""The reference of the Python API (`make docs`): every public name has a docstring, and pdoc renders it."""

from __future__ import annotations

import html
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import llama_eagle
import pytest
from llama_eagle import integrations

PROGRAM = Path(__file__).parents[2] / "packaging/reference.py"


def own_docstring(thing: Any) -> str:
    """Return the docstring of `thing` itself: neither a parent's nor the signature that a dataclass gets."""
    text = inspect.cleandoc(vars(thing).get("__doc__") or "" if inspect.isclass(thing) else thing.__doc__ or "")
    return "" if text.startswith(f"{thing.__name__}(") else text


@pytest.mark.parametrize("name", llama_eagle.__all__)
def test_every_public_name_has_a_docstring(name: str) -> None:
    assert len(own_docstring(getattr(llama_eagle, name)).split()) >= 4


def words(text: str) -> list[str]:
    return re.findall(r"\w+", html.unescape(re.sub(r"<[^>]*>", " ", text)))


def test_pdoc_renders_every_public_name(tmp_path: Path) -> None:
    pytest.importorskip("pdoc", reason="pdoc is not installed: make docs")
    subprocess.run([sys.executable, PROGRAM, tmp_path], check=True)
    page = (tmp_path / "llama_eagle.html").read_text("utf-8")
    text = " ".join(words(page))
    for name in llama_eagle.__all__:
        assert f'id="{name}"' in page, name
        start = " ".join(words(own_docstring(getattr(llama_eagle, name)))[:8])
        assert start in text, (name, start)
    assert 'id="patch_llama_cpp"' in (tmp_path / "llama_eagle/integrations.html").read_text("utf-8")
    assert sorted(path.name for path in tmp_path.rglob("*.html")) == [
        "index.html",
        "integrations.html",
        "llama_eagle.html",
    ]
    assert own_docstring(integrations.patch_llama_cpp)
