"""llama.cpp's own tests of its server: what passes on the unmodified build passes on ours, with a draft too."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest
from fixtures.serving import free_port
from fixtures.upstream import source_folder
from llama_eagle.bench.peer import SERVER, TOOLS, build_peer
from llama_eagle.demo.run import DRAFT, TARGET
from llama_eagle.native.build import library_folder
from llama_eagle.synthetic.ggufs import convert_pair

pytestmark = [pytest.mark.native, pytest.mark.slow]

# Of these, nothing runs without a download: adapters, a reranker's scores, pictures by URL, tool calls of real models.
LEFT_OUT = ("test_lora", "test_rerank", "test_vision_api", "test_tool_call", "test_speculative")
# The sampled text of this model ends by itself where roundings are ours; a picture without an encoder is the request's
# fault, which ours answers with 400.
DIFFERENT = {
    "unit.test_ctx_shift::test_ctx_shift_disabled_stream",
    "unit.test_compat_anthropic::test_anthropic_tool_result_with_image",
    "unit.test_compat_anthropic::test_anthropic_vision_format_accepted",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return convert_pair(TARGET, DRAFT, tmp_path_factory.mktemp("demo"), "q8_0")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tests, at their place in a tree that has what they read."""
    root, source = tmp_path_factory.mktemp("upstream"), source_folder()
    folder = root / "tools/server/tests"
    shutil.copytree(source / "tools/server/tests", folder)
    (root / "models").symlink_to(source / "models")
    return folder


def outcomes(copy: Path, server: Path, target: Path, draft: Path | None = None) -> dict[str, str]:
    """By test: passed, failure, error or skipped."""
    report = copy / "report.xml"
    given = {
        "PYTHONPATH": f"{copy}:{Path(__file__).parents[1] / 'fixtures'}", "LLAMA_SERVER_BIN_PATH": str(server),
        "EAGLE_TEST_TARGET": str(target), "EAGLE_TEST_DRAFT": str(draft or ""), "PORT": str(free_port()),
        "LLAMA_CACHE": str(copy / "tmp"),
    }  # fmt: skip
    left_out = [f"--ignore=unit/{name}.py" for name in LEFT_OUT]
    command = [sys.executable, "-m", "pytest", "-p", "upstream_server_plugin", "-m", "not slow", f"--junitxml={report}"]
    environment = {**os.environ, **given}
    with (copy / "log.txt").open("w") as log:
        subprocess.run([*command, *left_out], cwd=copy, env=environment, stdout=log, stderr=log, check=False)
    cases = ET.parse(report).iter("testcase")
    return {f"{c.get('classname')}::{c.get('name')}": next((o.tag for o in outcome(c)), "passed") for c in cases}


def outcome(case: ET.Element) -> Iterator[ET.Element]:
    return (child for child in case if child.tag in ("failure", "error", "skipped"))


def test_what_passes_there_passes_here(files: tuple[Path, Path], copy: Path) -> None:
    target, draft = files
    theirs = outcomes(copy, build_peer(tools=(*TOOLS, SERVER)).folder / SERVER, target)
    ours = outcomes(copy, library_folder() / SERVER, target)
    drafting = outcomes(copy, library_folder() / SERVER, target, draft)
    assert list(theirs.values()).count("passed") > 100
    for found in (ours, drafting):
        worse = {name for name, how in theirs.items() if how == "passed" and found[name] != "passed"}
        assert worse <= DIFFERENT
