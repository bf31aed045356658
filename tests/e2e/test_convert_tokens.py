"""`convert` compares the tokens of its output with those of tokenizer.json before it writes weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
from fixtures.command import assert_one_line_error, llama_eagle
from fixtures.targets import make_target

pytestmark = pytest.mark.native


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_target("qwen3", tmp_path_factory.mktemp("hf"), 1, dtype="float32", num_hidden_layers=1)


@pytest.fixture
def changed(checkpoint: Path, tmp_path: Path) -> Path:
    """The checkpoint with a post-processor that puts a token before each text twice, which no GGUF states."""
    folder = tmp_path / "hf"
    folder.mkdir()
    for file in checkpoint.iterdir():
        (folder / file.name).symlink_to(file)
    data = json.loads((checkpoint / "tokenizer.json").read_text())
    token = data["added_tokens"][0]
    first, text = {"SpecialToken": {"id": "first", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    known = {"first": {"id": "first", "ids": [token["id"]], "tokens": [token["content"]]}}
    template = {
        "type": "TemplateProcessing",
        "single": [first, first, text],
        "pair": [first, text, {"Sequence": {"id": "B", "type_id": 1}}],
    }
    data["post_processor"] = {**template, "special_tokens": known}
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").write_text(json.dumps(data))
    return folder


@pytest.mark.parametrize("options", [(), ("--outtype", "q4_k_m"), ("--split-max-size", "1M")])
def test_other_tokens_are_refused(options: tuple[Any, ...], changed: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    done = llama_eagle("convert", changed, "-o", out / "m.gguf", *options)
    assert_one_line_error(done, 3, "its post-processor", "has the tokens [", "in the engine", "--force-tokenizer")
    assert list(out.iterdir()) == []


def test_they_are_written_on_demand(changed: Path, tmp_path: Path) -> None:
    done = llama_eagle("convert", changed, "-o", tmp_path / "m.gguf", "--force-tokenizer", "--json")
    assert done.code == 0, done.stderr
    (warning,) = done.json["warnings"]
    assert "its post-processor" in warning and "its post-processor" in done.stderr
    assert gguf.GGUFReader(tmp_path / "m.gguf").tensors


@pytest.mark.parametrize("options", [(), ("--outtype", "q4_k_m"), ("--split-max-size", "1M")])
def test_equal_tokens_pass(options: tuple[Any, ...], checkpoint: Path, tmp_path: Path) -> None:
    done = llama_eagle("convert", checkpoint, "-o", tmp_path / "m.gguf", *options, "--json")
    assert done.code == 0, done.stderr
    assert not any("token" in warning and "template" not in warning for warning in done.json["warnings"])


def test_run_refuses_them_too(changed: Path, tmp_path: Path) -> None:
    done = llama_eagle("run", changed, "-p", "x", XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert done.code == 3 and "its post-processor" in done.stderr, done
    assert not list((tmp_path / "cache").rglob("*.gguf"))
