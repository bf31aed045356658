"""The Python and curl examples of the documentation, run as written, on tiny files with the names they use."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fixtures import tiny_gguf
from fixtures.command import PYTHON
from fixtures.serving import Served, serve
from fixtures.vision_files import make_vision_files, png

pytestmark = pytest.mark.native

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = [
    pytest.param(code, id=f"{path.stem}-{i}", marks=[pytest.mark.slow] if "langchain" in code else [])
    for path in DOCUMENTS
    for i, code in enumerate(re.findall(r"^```python\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL))
]
REQUESTS = [
    line
    for block in re.findall(r"^```sh\n(curl .*?)^```", (ROOT / "docs/server.md").read_text(), re.MULTILINE | re.DOTALL)
    for line in re.split(r"\n(?=curl )", block)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    # An answer that ends by itself: the target spells B to Z after an A.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny_gguf, "CHAT_TEMPLATE", tiny_gguf.CHAT_TEMPLATE + "A")
        tiny_gguf.write_target(folder / "qwen3-8b.gguf")
    tiny_gguf.write_draft(folder / "draft.gguf")
    return folder


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target with a vision encoder, whose answers are random, and pictures."""
    folder = tmp_path_factory.mktemp("pictures")
    make_vision_files("qwen3vl", folder)
    for name, seed in (("photo.jpg", 1), ("b.png", 2)):
        (folder / name).write_bytes(png(seed))
    return folder


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 3


@pytest.mark.parametrize("code", EXAMPLES)
def test_example(folder: Path, pictures: Path, code: Any) -> None:
    where = pictures if "mmproj" in code else folder
    done = subprocess.run([PYTHON, "-c", code], cwd=where, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert where == pictures or "BCDEFGHIJKLMNOPQRSTUVWXYZ" in done.stdout
    assert done.stdout.strip()


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Served]:
    with serve("-m", folder / "qwen3-8b.gguf", "-d", folder / "draft.gguf", "-c", 512, "-t", 1) as running:
        yield running


@pytest.mark.parametrize("request_line", REQUESTS)
def test_request(server: Served, request_line: str) -> None:
    line = request_line.replace("curl ", "curl --silent --show-error --fail-with-body ", 1)
    line = line.replace("http://127.0.0.1:8000", server.address)
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done
    assert done.stdout.strip()


def test_there_are_requests() -> None:
    assert len(REQUESTS) >= 6
