"""`llama-eagle convert` and `check` on drafts, as a user runs them: outputs, errors, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fixtures.command import assert_one_line_error, llama_eagle
from fixtures.eagle3_checkpoints import CASES, DraftSpec, make_draft, make_target_gguf


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return make_target_gguf(tmp_path / "target.gguf")


def test_convert_and_check(tmp_path: Path, target: Path) -> None:
    folder, out = make_draft(tmp_path / "draft", CASES["biases"]), tmp_path / "draft.gguf"
    done = llama_eagle("convert", folder, "--target", target, "-o", out, "--outtype", "q8_0", "--json")
    assert done.code == 0, done.stderr
    report = done.json
    assert (report["layout"], report["layer_ids"], report["producer"]) == ("extended", [2, 4, 5], "SpecForge")
    assert "stock llama.cpp will refuse" in done.stderr
    assert llama_eagle("check", target, out).code == 0
    other = make_target_gguf(tmp_path / "other.gguf", n_layer=4)
    failed = llama_eagle("check", other, out, "--json")
    assert failed.code == 5
    assert not failed.json["compatible"]


def test_dry_run_prints_the_table(tmp_path: Path, target: Path) -> None:
    folder, out = make_draft(tmp_path / "draft", DraftSpec()), tmp_path / "draft.gguf"
    for options, kind, later in ((), "bf16", "as q4_k_m."), (("--outtype", "q8_0"), "q8_0", ""):
        done = llama_eagle("convert", folder, "--target", target, "-o", out, "--dry-run", *options)
        assert done.code == 0 and done.stderr.rstrip().endswith(later), done.stderr
        assert f"blk.0.attn_q.weight {kind}" in done.stdout
        assert "only checks d2t" in done.stdout
    assert not out.exists()


def test_bad_drafts_end_in_one_line(tmp_path: Path, target: Path) -> None:
    out = tmp_path / "draft.gguf"
    for name, (data, reason) in {
        "cut": (b"\x10\0\0\0\0\0\0\0{", "truncated"), "empty": (b"", "an empty file"),
    }.items():  # fmt: skip
        folder = make_draft(tmp_path / name, DraftSpec())
        (folder / "model.safetensors").write_bytes(data)
        assert_one_line_error(llama_eagle("convert", folder, "--target", target, "-o", out), 3, reason)
    folder = make_draft(tmp_path / "speculators", DraftSpec(producer="speculators"))
    failed = llama_eagle("convert", folder, "--target", target, "-o", out, "--json")
    assert failed.code == 3
    assert "--norm-before-residual" in json.dumps(failed.json)
    assert len(failed.stderr.splitlines()) == 1
    assert_one_line_error(llama_eagle("convert", folder, "-o", out), 2, "--target")
    assert {path.suffix for path in tmp_path.iterdir() if path.is_file()} == {".gguf"}
    assert not out.exists()
