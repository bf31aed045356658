"""`convert` of families without a table of ours: llama.cpp's converter, in a child process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import gguf
import numpy as np
import pytest
from fixtures.command import llama_eagle
from fixtures.families import edit, make
from fixtures.hub import serve_hub
from llama_eagle.convert.upstream import driver
from llama_eagle.sessions.models import Model
from llama_eagle.sessions.options import LoadOptions
from llama_eagle.sessions.text import Tokenizer
from safetensors.numpy import load_file

CODE = """
import pathlib
pathlib.Path({!r}).write_text("ran")
from transformers import PreTrainedTokenizerFast
class Own(PreTrainedTokenizerFast): pass
"""


def with_code(folder: Path) -> Path:
    """Add code to a checkpoint that writes a file when it is imported; return that file."""
    ran = folder.parent / "ran"
    (folder / "own.py").write_text(CODE.format(str(ran)))
    edit(folder / "tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["own.Own", "own.Own"]}})
    edit(folder / "config.json", {"auto_map": {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"}})
    return ran


def test_a_repository_without_a_table_is_converted_and_its_code_never_runs(tmp_path: Path) -> None:
    folder = make("nemotronh", tmp_path / "hub/me/model")
    ran = with_code(folder)
    (folder / "consolidated.safetensors").write_bytes(b"the same weights under other names")
    out, cache = tmp_path / "out.gguf", tmp_path / "cache"
    with serve_hub(tmp_path / "hub") as endpoint:
        done = llama_eagle("convert", "me/model", "-o", out, "--json", HF_ENDPOINT=endpoint, HF_HOME=str(cache))
    assert done.code == 0, done.stderr
    assert [path.name for path in cache.rglob("*.safetensors")] == ["model.safetensors"]
    assert (done.json["way"], done.json["arch"], done.json["outtype"]) == ("llama.cpp", "nemotron_h", "f32")
    assert not ran.exists()
    found = {tensor.name: tensor.data for tensor in gguf.GGUFReader(out).tensors}
    stored = load_file(folder / "model.safetensors")
    for ours, theirs in (("token_embd", "embeddings"), ("blk.5.ffn_down", "layers.5.mixer.down_proj")):
        assert np.array_equal(found[f"{ours}.weight"], stored[f"backbone.{theirs}.weight"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "hub", "out.gguf"]


@pytest.mark.slow
def test_types_of_the_quantizer_use_an_importance_matrix(tmp_path: Path) -> None:
    folder = make("granite", tmp_path / "model", hidden_size=256, intermediate_size=256)
    plain, imatrix, out = (tmp_path / name for name in ("plain.gguf", "imatrix.gguf", "out.gguf"))
    (tmp_path / "text").write_text("The quick brown fox jumps over the lazy dog. " * 40)
    assert llama_eagle("convert", folder, "-o", plain).code == 0
    collected = llama_eagle("imatrix", "-m", plain, "-f", tmp_path / "text", "-o", imatrix, "-c", 32)
    assert collected.code == 0, collected.stderr
    done = llama_eagle("convert", folder, "-o", out, "--outtype", "iq2_xxs", "--imatrix", imatrix, "--json")
    assert done.code == 0, done.stderr
    assert (done.json["way"], done.json["outtype"], done.json["n_bytes"]) == (
        "llama.cpp",
        "iq2_xxs",
        out.stat().st_size,
    )
    again = llama_eagle("quantize", plain, tmp_path / "again.gguf", "iq2_xxs", "--imatrix", imatrix)
    assert again.code == 0, again.stderr
    found, expected = (
        {tensor.name: (tensor.tensor_type, tensor.data.tobytes()) for tensor in gguf.GGUFReader(file).tensors}
        for file in (out, tmp_path / "again.gguf")
    )
    assert found == expected
    assert gguf.GGMLQuantizationType.IQ2_XXS in {kind for kind, _ in found.values()}


@pytest.mark.slow
def test_tekken_json_alone(tmp_path: Path) -> None:
    """Mistral's tokenizer file without one of transformers."""
    common = pytest.importorskip("mistral_common.tokens.tokenizers.tekken")
    folder = make("ministral3", tmp_path / "model", tokenizer="tekken")
    done = llama_eagle("convert", folder, "-o", tmp_path / "out.gguf", "--json")
    assert done.code == 0, done.stderr
    assert done.json["way"] == "llama.cpp" and "to compare its tokens with" in done.json["warnings"][0]
    reference = common.Tekkenizer.from_file(folder / "tekken.json")
    texts = ["The quick brown fox", "def f(x: int) -> str:\n    return x\n", "Gurkensalat 12345, isn't it?"]
    with Model(tmp_path / "out.gguf", LoadOptions(vocab_only=True)) as model:
        found = [Tokenizer(model).encode(text) for text in texts]
    assert found == [reference.encode(text, True, False) for text in texts]
    file = folder / "tekken.json"
    file.write_text(file.read_text().replace("\\\\p{N}|", "\\\\p{N}{1,3}|"))
    refused = llama_eagle("convert", folder, "-o", tmp_path / "other.gguf")
    assert refused.code == 3 and "tekken.json splits text by another expression" in refused.stderr


def test_a_class_that_neither_way_has_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["NoSuchForCausalLM"]}))
    done = llama_eagle("convert", tmp_path, "-o", tmp_path / "out.gguf")
    assert (done.code, done.stdout) == (3, "")
    assert "'NoSuchForCausalLM' is not supported" in done.stderr and "--list" in done.stderr


@pytest.mark.parametrize("option", [["--calibration", "text"], ["--split-max-size", "1M"]])
def test_options_of_tables_are_refused(option: list[str], tmp_path: Path) -> None:
    (tmp_path / "text").write_text("words")
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["GraniteForCausalLM"]}))
    given = [option[0], tmp_path / "text" if option[1] == "text" else option[1]]
    done = llama_eagle("convert", tmp_path, "-o", tmp_path / "out.gguf", *given)
    assert (done.code, done.stdout) == (2, "")
    assert f"{option[0]} does not apply to" in done.stderr


@pytest.mark.parametrize(("file", "package"), [("tokenizer.model", "sentencepiece"), ("tekken.json", "mistral_common")])
def test_a_missing_package_is_named_before_any_work(file: str, package: str, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps({"architectures": ["MistralForCausalLM"]}))
    (tmp_path / "model" / file).touch()
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden/sitecustomize.py").write_text(f"import sys; sys.modules[{package!r}] = None")
    done = llama_eagle(
        "convert",
        tmp_path / "model",
        "-o",
        tmp_path / "out.gguf",
        PYTHONPATH=os.pathsep.join([str(tmp_path / "hidden"), *sys.path]),
    )
    assert (done.code, done.stdout) == (4, "")
    assert f"pip install {package.replace('_', '-')}" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "out.gguf").exists()


def test_a_damaged_tokenizer_is_named_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["GraniteForCausalLM"]}))
    (tmp_path / "tokenizer.json").write_text("{")
    done = llama_eagle("convert", tmp_path, "-o", tmp_path / "out.gguf")
    assert (done.code, done.stdout) == (3, "")
    assert f"{tmp_path / 'tokenizer.json'}: not valid JSON" in done.stderr and "download" in done.stderr


def test_failures_of_the_converter_name_a_remedy(tmp_path: Path) -> None:
    class AutoTokenizer:
        @staticmethod
        def from_pretrained(*_args: object, **_kwargs: object) -> None:
            raise TypeError("no such class")

    driver._without_code(AutoTokenizer)
    with pytest.raises(driver.RefusedError, match=r"no file of a tokenizer, such as tokenizer.json. Download it"):
        AutoTokenizer.from_pretrained(tmp_path)
    (tmp_path / "rwkv_vocab.txt").touch()
    with pytest.raises(TypeError) as raised:
        AutoTokenizer.from_pretrained(tmp_path)
    found = driver._explained(raised.value)
    assert found["kind"] == "input"
    assert found["message"].endswith("(TypeError: no such class); LLAMA_EAGLE_DEBUG=1 shows its log")


@pytest.mark.skipif(sys.platform != "linux", reason="finds the child in /proc")
def test_ctrl_c_ends_the_child_and_leaves_nothing(tmp_path: Path) -> None:
    folder, out = make("granite", tmp_path / "model"), tmp_path / "out.gguf"
    command = [sys.executable, "-m", "llama_eagle", "convert", str(folder), "-o", str(out)]
    mark = f"LLAMA_EAGLE_TEST_MARK={tmp_path}"
    process = subprocess.Popen(
        command, env={**os.environ, **dict([mark.split("=", 1)])}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    while not any("convert.upstream" in arguments for arguments in with_mark(mark)):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    while with_mark(mark):  # one that was just started ends as soon as it reads its request
        time.sleep(0.05)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def with_mark(mark: str) -> list[str]:
    """Return the arguments of the living processes whose environment contains `mark`."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (each / "environ").read_bytes().split(b"\0"):
                found.append((each / "cmdline").read_text())
    return found


def test_classes_are_listed_by_way() -> None:
    found = llama_eagle("convert", "--list", "--json").json
    assert "Qwen3ForCausalLM" in found["llama-eagle"] and "Qwen3ForCausalLM" not in found["llama.cpp"]
    assert {"SmolLM3ForCausalLM", "Gemma3ForCausalLM", "GptOssForCausalLM"} <= {*found["llama.cpp"]}
    lines = llama_eagle("convert", "--list").stdout.splitlines()
    assert lines == [f"{name:<48} {way}" for way, names in found.items() for name in names]
