"""Types, patterns and files for which llama.cpp's quantizer ends the process or names a wrong cause."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fixtures.adapters import write_adapter
from fixtures.command import assert_one_line_error, llama_eagle
from fixtures.tiny_gguf import write_target
from fuzz.gguf_file import Tensor, read
from llama_eagle.convert.writer import gguf_output
from llama_eagle.gguf.header import read_header

pytestmark = pytest.mark.native

USAGE, INPUT = 2, 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("imatrix")  # a name that is part of llama.cpp's messages
    file = read(write_target(folder / "target.gguf"))
    file.tensors.append(Tensor(b"conv.weight", [32, 2, 2, 2], 0, bytes(4 * 256)))
    (folder / "conv.gguf").write_bytes(file.encode())
    write_adapter(folder / "lora.gguf")
    with gguf_output(folder / "matrix.gguf", arch="imatrix") as out:
        out.key("general.type", "imatrix")
        out.key("imatrix.chunk_count", 1)
        out.tensor("blk.0.ffn_up.weight.in_sum2", (1, 64), lambda: np.ones((1, 64), np.float32), "f32")
        out.tensor("blk.0.ffn_up.weight.counts", (1, 1), lambda: np.ones((1, 1), np.float32), "f32")
    with gguf_output(folder / "other.gguf", arch="no-such-architecture") as out:
        out.tensor("a.weight", (4, 256), lambda: np.ones((4, 256), np.float32), "f32")
    return folder


REFUSED = [
    ("target", ["--tensor-type", "ffn_up=i8"], USAGE, ["unknown tensor type 'i8'"]),
    ("target", ["--tensor-type", "ffn_up=f64"], USAGE, ["unknown tensor type 'f64'"]),
    ("target", ["--output-type", "i32"], USAGE, ["unknown tensor type 'i32'"]),
    ("target", ["--tensor-type", "(?<=q8_0"], USAGE, ["'(?<' is not a regular expression"]),
    ("target", ["--output-type", "q6_k"], USAGE, ["output.weight has rows of 64", "q8_0"]),
    ("conv", [], INPUT, ["cannot quantize conv.weight of 4 dimensions"]),
    ("lora", [], INPUT, ["is a LoRA adapter"]),
    ("matrix", [], INPUT, ["is an importance matrix"]),
    ("other", [], INPUT, ["unknown model architecture", "Use another type or model"]),
]


@pytest.mark.parametrize(("name", "options", "code", "parts"), REFUSED)
def test_refusals(
    name: str, options: list[str], code: int, parts: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    before = sorted(folder.iterdir())
    outcome = llama_eagle("quantize", folder / f"{name}.gguf", folder / "out.gguf", "q8_0", "-t", 1, *options)
    assert_one_line_error(outcome, code, *parts)
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize("kind", ["bf16", "nvfp4", "q2_0"])
def test_every_type_of_weights_can_be_chosen(kind: str, folder: Path, tmp_path: Path) -> None:
    options = ["--tensor-type", f"blk.0.ffn_up={kind}", "-t", 1]
    assert llama_eagle("quantize", folder / "target.gguf", tmp_path / "q.gguf", "q8_0", *options).code == 0
    assert read_header(tmp_path / "q.gguf").tensors["blk.0.ffn_up.weight"].type_name == kind.upper()
    assert llama_eagle("check", tmp_path / "q.gguf").code == 0


def test_patterns_are_those_of_python_and_idle_ones_are_named(folder: Path, tmp_path: Path) -> None:
    patterns = ["(?i)FFN_UP=q4_0", r"(?<=1\.)ffn_gate=q4_0", r"\Aoutput\.=q4_1", "ffn_upp=q4_0"]
    options = [word for pattern in patterns for word in ("--tensor-type", pattern)]
    outcome = llama_eagle("quantize", folder / "target.gguf", tmp_path / "q.gguf", "q8_0", "-t", 1, *options, "--json")
    assert outcome.json["without_effect"] == ["ffn_upp"]
    written, warning = outcome.stderr.splitlines()
    assert warning == "warning: no tensor got the type that was chosen for 'ffn_upp'."
    assert written == "written: 27 tensors in Q8_0, 5 tensors in Q4_0, 23 tensors in F32, 1 tensor in Q4_1"
    assert outcome.json["types"] == {"Q8_0": 27, "Q4_0": 5, "F32": 23, "Q4_1": 1}
    assert outcome.json["oversize"] is None
    found = {name: tensor.type_name for name, tensor in read_header(tmp_path / "q.gguf").tensors.items()}
    assert found["blk.2.ffn_up.weight"] == found["blk.1.ffn_gate.weight"] == "Q4_0"
    assert (found["output.weight"], found["blk.2.ffn_gate.weight"]) == ("Q4_1", "Q8_0")
