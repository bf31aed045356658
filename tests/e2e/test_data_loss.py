"""No command writes over what it reads, keeps half of its work, or runs code that came with a file."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from fixtures.command import assert_one_line_error, llama_eagle
from fixtures.eagle3_checkpoints import DraftSpec, make_draft, make_target_gguf
from fixtures.targets import make_target
from fixtures.training import make_training_target, write_jsonl
from llama_eagle.errors import ConfigError
from llama_eagle.train.targets.checkpoint import VISION_TARGETS, load_images, load_tokenizer, read_target

USAGE, INPUT = 2, 3
UPSTREAM = Path(__file__).parents[2] / "native" / "cmake" / "upstream.py"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_training_target("qwen3", tmp_path_factory.mktemp("target"), hidden_size=32, intermediate_size=48)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("option", ["-o", "--features"])
def test_training_leaves_other_folders_alone(option: str, target: Path, tmp_path: Path) -> None:
    before = contents(target)
    data = write_jsonl(tmp_path / "data.jsonl", *({"text": "The quick brown fox. " * 5} for _ in range(20)))
    link = tmp_path / "link"
    link.symlink_to(target, target_is_directory=True)
    outputs = ["-o", tmp_path / "draft", option, link] if option != "-o" else ["-o", link]
    outcome = llama_eagle("train", "--target", target, "--data", data, *outputs)
    assert_one_line_error(outcome, USAGE, option, "contains other files", "Choose another folder")
    assert contents(target) == before
    assert not (tmp_path / "draft").exists()


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "../hard"])
def test_conversion_leaves_its_source_alone(name: str, tmp_path: Path) -> None:
    source = make_target("qwen3", tmp_path / "source", num_hidden_layers=2)
    (tmp_path / "hard").hardlink_to(source / "model.safetensors")
    before = contents(tmp_path)
    for arguments in (["-o", source / name], ["-o", tmp_path / "out.gguf", "--mmproj", source / name]):
        outcome = llama_eagle("convert", source, *arguments, "--outtype", "bf16", "--overwrite")
        assert_one_line_error(outcome, USAGE, name, "name another output")
    assert contents(tmp_path) == before


def test_a_draft_is_not_written_over_its_target(tmp_path: Path) -> None:
    target, draft = make_target_gguf(tmp_path / "target.gguf"), make_draft(tmp_path / "draft", DraftSpec())
    before = contents(tmp_path)
    for name in ("target.gguf", "draft/model.safetensors"):
        outcome = llama_eagle("convert", draft, "--target", target, "-o", tmp_path / name, "--overwrite")
        assert_one_line_error(outcome, USAGE, name, "name another output")
    assert contents(tmp_path) == before


def test_quantization_leaves_its_sources_alone(tmp_path: Path) -> None:
    source = make_target_gguf(tmp_path / "target.gguf")
    imatrix = tmp_path / "imatrix.gguf"
    imatrix.write_bytes(source.read_bytes())
    before = contents(tmp_path)
    for output in (source, imatrix):
        outcome = llama_eagle("quantize", source, output, "q8_0", "--imatrix", imatrix, "--overwrite")
        assert_one_line_error(outcome, USAGE, output.name, "name another output")
    assert contents(tmp_path) == before


def test_an_output_is_replaced_only_when_asked(tmp_path: Path) -> None:
    source = make_target("qwen3vl", tmp_path / "source")
    (source / "preprocessor_config.json").write_text('{"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}')
    out, vision, small = (tmp_path / name for name in ("out.gguf", "vision.gguf", "small.gguf"))
    commands = {
        out: ["convert", source, "-o", out],
        vision: ["convert", source, "-o", tmp_path / "other.gguf", "--mmproj", vision],
        small: ["quantize", make_target_gguf(tmp_path / "target.gguf"), small, "q8_0"],
    }
    for path, command in commands.items():
        path.write_text("something dear")
        assert_one_line_error(llama_eagle(*command), USAGE, f"{path} exists", "--overwrite")
        assert path.read_text() == "something dear"
        assert llama_eagle(*command, "--overwrite").code == 0
        assert path.read_bytes().startswith(b"GGUF")
    plot, data = tmp_path / "plot.png", write_jsonl(tmp_path / "data.jsonl", {"text": "The quick brown fox."})
    plot.write_text("something dear")
    for command in (
        ("train", "--target", source, "--data", data, "-o", tmp_path / "draft", "--gguf", plot),
        ("evaluate", "-m", small, "--plot", plot),
        ("bench", "-m", small, "--plot", plot),
    ):
        assert_one_line_error(llama_eagle(*command), USAGE, f"{plot} exists", "--overwrite")
    assert plot.read_text() == "something dear" and not (tmp_path / "draft").exists()
    (tmp_path / "parts-00001-of-00002.gguf").write_text("something dear")
    outcome = llama_eagle("convert", source, "-o", tmp_path / "parts.gguf", "--split-max-size", "1M")
    assert_one_line_error(outcome, USAGE, "parts-00001-of-00002.gguf exists")


def test_outputs_have_ordinary_modes(target: Path, tmp_path: Path) -> None:
    data = write_jsonl(tmp_path / "data.jsonl", *({"text": "The quick brown fox. " * 5} for _ in range(8)))
    course = ["--draft-vocab", 64, "--steps", 2, "--max-length", 16, "--epochs", 1, "--features", tmp_path / "features"]
    done = llama_eagle("train", "--target", target, "--data", data, "-o", tmp_path / "draft", *course)
    assert done.code == 0, done.stderr
    assert llama_eagle("convert", target, "-o", tmp_path / "out.gguf", "--outtype", "q4_0").code == 0
    ordinary = 0o666 & ~(mask := os.umask(0))
    os.umask(mask)
    made = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.name: path.stat().st_mode & 0o777 for path in made} == {path.name: ordinary for path in made}


def test_a_checkpoint_without_chat_template_says_so(target: Path, tmp_path: Path) -> None:
    bare = make_target("qwen3", tmp_path / "bare", num_hidden_layers=2)
    for name in ("chat_template.jinja", "tokenizer_config.json"):
        (bare / name).unlink(missing_ok=True)
    outcome = llama_eagle("convert", bare, "-o", tmp_path / "bare.gguf")
    assert outcome.code == 0
    assert "no chat template" in outcome.stderr
    assert outcome.stdout.startswith(f"{tmp_path / 'bare.gguf'}: bf16, ")  # the type that "auto" found
    assert llama_eagle("convert", target, "-o", tmp_path / "whole.gguf").stderr == ""


def test_text_and_vision_or_neither(tmp_path: Path) -> None:
    source = make_target("qwen3vl", tmp_path / "source")
    (source / "preprocessor_config.json").unlink()
    text, vision = tmp_path / "text.gguf", tmp_path / "vision.gguf"
    outcome = llama_eagle("convert", source, "-o", text, "--mmproj", vision)
    assert_one_line_error(outcome, INPUT, "image_mean")
    (source / "preprocessor_config.json").write_text('{"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}')
    assert_one_line_error(
        llama_eagle("convert", source, "-o", text, "--mmproj", text), USAGE, "is the same file as --output"
    )
    tokenizer = (source / "tokenizer.json").rename(source / "elsewhere.json")
    assert_one_line_error(llama_eagle("convert", source, "-o", text, "--mmproj", vision), INPUT, "no tokenizer.json")
    tokenizer.rename(source / "tokenizer.json")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
    assert llama_eagle("convert", source, "-o", text, "--mmproj", vision).code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "text.gguf", "vision.gguf"]


EVIL = "from pathlib import Path\nPath({mark!r}).write_text('ran')\n"


def hostile(folder: Path, file: str, **settings: object) -> Path:
    """A target one of whose settings files names code; `ran` beside the folder appears when it runs."""
    make_training_target("qwen3", folder, num_hidden_layers=8)
    (folder / "evil.py").write_text(EVIL.format(mark=str(folder.parent / "ran")))
    path = folder / file
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    return folder


def test_training_runs_no_code_of_a_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even when stdin says yes: transformers would ask."""
    maps = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    folder = hostile(tmp_path / "model", "config.json", auto_map=maps, model_type="unheard_of")
    data = write_jsonl(tmp_path / "data.jsonl", *({"text": "The quick brown fox. " * 5} for _ in range(20)))
    outcome = llama_eagle("train", "--target", folder, "--data", data, "-o", tmp_path / "draft", stdin="y\n" * 9)
    assert_one_line_error(outcome, INPUT, str(folder))
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    folder = hostile(
        tmp_path / "tokenizer", "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.Tokenizer", None]}
    )
    with contextlib.suppress(ConfigError):  # transformers has a tokenizer of its own for this model
        load_tokenizer(folder)
    (folder / "preprocessor_config.json").write_text('{"auto_map": {"AutoImageProcessor": "evil.Images"}}')
    with pytest.raises(ConfigError, match="image processor"):
        load_images(replace(read_target(folder), architecture=VISION_TARGETS[0]))
    assert not (tmp_path / "ran").exists()


def test_the_build_runs_no_code_before_it_has_the_pinned_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("upstream", UPSTREAM)
    assert spec is not None and spec.loader is not None
    upstream = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "upstream", upstream)
    spec.loader.exec_module(upstream)
    mark, tree = tmp_path / "ran", tmp_path / "pinned_package-1.0"
    tree.mkdir()
    backend = EVIL.format(mark=str(mark)) + "def prepare_metadata_for_build_wheel(*_): raise SystemExit\n"
    (tree / "backend.py").write_text(backend)
    (tree / "pyproject.toml").write_text('[build-system]\nrequires=[]\nbuild-backend="backend"\nbackend-path=["."]\n')
    (tree / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: pinned-package\nVersion: 1.0\n")
    with tarfile.open(tmp_path / "pinned_package-1.0.tar.gz", "w:gz") as archive:
        archive.add(tree, tree.name)
    pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "LLAMA_EAGLE_CACHE": str(tmp_path / "cache")}
    for name, value in pip.items():
        monkeypatch.setenv(name, value)
    pin = {"package": "pinned-package", "version": "1.0"}
    with pytest.raises(upstream.UpstreamError, match=r"(?s)could not download.*[Hh]ash"):
        upstream.fetch_sdist({**pin, "sha256": "0" * 64})
    assert not mark.exists()
    right = upstream.sha256(tmp_path / "pinned_package-1.0.tar.gz")
    with pytest.raises(upstream.UpstreamError):  # its backend ends the download, having run
        upstream.fetch_sdist({**pin, "sha256": right})
    assert mark.exists()
