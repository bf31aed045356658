"""`llama-eagle imatrix`: its statistics against torch, sums of several runs, what is not reached, and refusals."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
import transformers
from fixtures.command import PYTHON, assert_one_line_error, llama_eagle
from fixtures.targets import make_target
from fixtures.tiny_gguf import write_draft
from llama_eagle.convert.targets import TargetOptions, convert_target
from llama_eagle.quantize.collect import CollectReport
from llama_eagle.quantize.imatrix import read_imatrix
from parity.mtp_reference import MTPReference

pytestmark = pytest.mark.native

CHUNK, N_BLOCKS = 64, 8
LINE = "The quick brown fox jumps over the lazy dog, and says {} times that it is not tired. "


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("imatrix")
    (folder / "text.txt").write_text("".join(LINE.format(i) for i in range(12)))
    return folder


def converted(family: str, folder: Path, **more: int) -> Path:
    """A target with an MTP head, and its checkpoint in a folder of its name."""
    path = folder / f"{family}{len(more)}.gguf"
    if not path.exists():
        source = make_target(family, path.with_suffix(""), mtp=family != "qwen3moe", dtype="float32", **more)
        convert_target(source, path, TargetOptions(outtype="f32"))
    return path


def collect(model: Path, folder: Path, output: Path, *more: object) -> dict[str, np.ndarray]:
    """The sums and counts by name, as the file holds them."""
    text = () if "--in-file" in more and "--from-chunk" not in more else ("-f", folder / "text.txt")
    outcome = llama_eagle("imatrix", "-m", model, *text, "-o", output, "-c", CHUNK, "-t", 1, *more)
    assert outcome.code == 0, outcome
    return {tensor.name: np.array(tensor.data) for tensor in gguf.GGUFReader(output).tensors}


def chunks(model: Path, folder: Path) -> list[list[int]]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(model.with_suffix(""))
    ids = tokenizer((folder / "text.txt").read_text())["input_ids"]
    return [ids[i : i + CHUNK] for i in range(0, len(ids) - CHUNK + 1, CHUNK)]


def test_statistics_are_those_of_torch(folder: Path, tmp_path: Path) -> None:
    """The inputs of the first block, and of the head: the embedding and the state one position before it."""
    model = converted("qwen35", folder)
    found = collect(model, folder, tmp_path / "out.gguf")
    reference = MTPReference(model.with_suffix(""))
    target = transformers.AutoModelForImageTextToText.from_pretrained(model.with_suffix(""), dtype=torch.float32)
    weights = {tensor.name: torch.tensor(tensor.data) for tensor in gguf.GGUFReader(model).tensors}
    first, joined = torch.zeros(64), torch.zeros(128)
    texts = chunks(model, folder)
    for ids in texts:
        embedded = weights["token_embd.weight"][ids]
        normed = embedded * torch.rsqrt(embedded.square().mean(-1, keepdim=True) + 1e-6)
        first += (normed * weights["blk.0.attn_norm.weight"]).square().sum(0)
        with torch.no_grad():
            states = target(torch.tensor([ids]), output_hidden_states=True).hidden_states[-1][0]
        before = torch.cat([torch.zeros(1, 64), states[:-1]])
        halves = (reference._norm(embedded, "pre_fc_norm_embedding"), reference._norm(before, "pre_fc_norm_hidden"))
        joined += torch.cat(halves, dim=-1).square().sum(0)
    assert len(texts) >= 4
    np.testing.assert_allclose(found["blk.0.attn_qkv.weight.in_sum2"].ravel(), first, rtol=1e-3)
    np.testing.assert_allclose(found[f"blk.{N_BLOCKS}.nextn.eh_proj.weight.in_sum2"].ravel(), joined, rtol=1e-3)
    assert found[f"blk.{N_BLOCKS}.ffn_down.weight.counts"].item() == CHUNK * len(texts)


@pytest.mark.parametrize("family", ["qwen35", "qwen35moe", "qwen3next"])
def test_parts_of_a_chunk_and_several_at_once(family: str, folder: Path, tmp_path: Path) -> None:
    model = converted(family, folder)
    whole = collect(model, folder, tmp_path / "whole.gguf")
    assert sum(f"blk.{N_BLOCKS}." in name for name in whole) >= 16
    for size in (CHUNK // 2, 2 * CHUNK):
        found = collect(model, folder, tmp_path / f"{size}.gguf", "--batch-size", size)
        assert found.keys() == whole.keys()
        for name in whole:  # sums of chosen experts move where two of them are as likely
            np.testing.assert_allclose(found[name], whole[name], rtol=0.05 if "_exps" in name else 2e-3, err_msg=name)


def test_runs_on_parts_of_a_text_add_up(folder: Path, tmp_path: Path) -> None:
    model = converted("qwen35", folder)
    whole = collect(model, folder, tmp_path / "whole.gguf")
    first = tmp_path / "first, 1.gguf"
    collect(model, folder, first, "--chunks", 2)
    assert read_imatrix(first).n_chunks == 2
    continued = collect(model, folder, tmp_path / "both.gguf", "--from-chunk", 2, "--in-file", first)
    assert read_imatrix(tmp_path / "both.gguf").n_chunks == len(chunks(model, folder))
    for name in whole:
        np.testing.assert_allclose(continued[name], whole[name], rtol=1e-4, err_msg=name)
    twice = collect(model, folder, tmp_path / "twice.gguf", "--in-file", first, "--in-file", first)
    assert twice["blk.0.attn_qkv.weight.counts"].item() == 4 * CHUNK


def test_the_quantizer_takes_it(folder: Path, tmp_path: Path) -> None:
    model = converted("qwen35", folder, hidden_size=256, intermediate_size=256)
    outcome = llama_eagle("imatrix", "-m", model, "-f", folder / "text.txt", "-o", tmp_path / "im.gguf", "-c", CHUNK)
    assert "warning" not in outcome.stderr
    assert "matrices, " in outcome.stdout and "perplexity" in outcome.stdout
    outcome = llama_eagle("quantize", model, tmp_path / "q.gguf", "iq2_xxs", "--imatrix", tmp_path / "im.gguf")
    assert outcome.code == 0 and "warning" not in outcome.stderr
    found = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(tmp_path / "q.gguf").tensors}
    assert found[f"blk.{N_BLOCKS}.nextn.eh_proj.weight"] == found["blk.1.ffn_up.weight"] == "IQ2_XXS"


def test_experts_that_were_never_chosen_are_named(folder: Path, tmp_path: Path) -> None:
    model = converted("qwen3moe", folder, num_experts=64, moe_intermediate_size=64)
    imatrix = tmp_path / "im.gguf"
    arguments = ("-f", folder / "text.txt", "-o", imatrix, "-c", 32, "--chunks", 1, "--json")
    outcome = llama_eagle("imatrix", "-m", model, *arguments)
    unused = outcome.json["unused_experts"]
    assert "some experts were never chosen" in outcome.stderr
    some, total = unused["blk.0.ffn_up_exps.weight"]
    assert 0 < some < total == 64
    outcome = llama_eagle("quantize", model, tmp_path / "q.gguf", "q5_0", "--imatrix", imatrix, "--json")
    assert outcome.json["unused_experts"] == unused
    assert outcome.json["without_matrix"] == []
    assert "all their columns have the same weight" in outcome.stderr


def test_a_head_without_statistics_is_reported() -> None:
    missing = ("blk.8.nextn.eh_proj.weight", "blk.8.ffn_up.weight")
    assert "the MTP head has no statistics" in CollectReport(Path("x"), 1, 1, None, 1.0, missing).warnings[0]
    assert "blk.8.ffn_up.weight" in CollectReport(Path("x"), 1, 1, None, 1.0, missing[1:]).warnings[0]


def test_refusals(folder: Path, tmp_path: Path) -> None:
    model, text, out = converted("qwen35", folder), folder / "text.txt", tmp_path / "out.gguf"
    empty, draft = tmp_path / "empty.txt", write_draft(tmp_path / "draft.gguf")
    empty.write_text(" \n")
    os.mkfifo(pipe := tmp_path / "pipe.txt")
    cases = [
        (3, ("-m", model, "-f", text, "-c", 2048), "chunks of 2048 tokens need 4096. Give a longer text"),
        (3, ("-m", model, "-f", text, "-c", CHUNK, "--from-chunk", 100), "too few tokens after the chunks"),
        (3, ("-m", model, "-f", empty), "holds no text"),
        (3, ("-m", model, "-f", tmp_path / "none.txt"), "cannot be read"),
        (3, ("-m", model, "-f", pipe), "not a regular file"),
        (3, ("-m", model, "-f", text, "--in-file", model), "not an importance matrix"),
        (3, ("-m", draft, "-f", text), "draft"),
        (3, ("-m", tmp_path / "none.gguf", "-f", text), "no such file"),
        (2, ("-m", model), "--in-file"),
        (2, ("-m", model, "-f", text, "-c", 16), "--ctx-size"),
        (2, ("-m", model, "-f", text, "-c", 64, "-b", 100), "no multiple"),
    ]
    before = sorted(tmp_path.iterdir())
    for code, arguments, part in cases:
        assert_one_line_error(llama_eagle("imatrix", *arguments, "-o", out), code, part)
    assert sorted(tmp_path.iterdir()) == before
    out.write_text("mine")
    assert_one_line_error(llama_eagle("imatrix", "-m", model, "-f", text, "-o", out), 2, "--overwrite")
    outcome = llama_eagle("imatrix", "-m", model, "-f", text, "-o", text, "--overwrite")
    assert_one_line_error(outcome, 2, "is the input file")


def test_ctrl_c_keeps_what_was_collected(folder: Path, tmp_path: Path) -> None:
    model, text = converted("qwen35", folder), tmp_path / "long.txt"
    text.write_text("".join(LINE.format(i) for i in range(20_000)))
    command = [PYTHON, "-m", "llama_eagle", "imatrix", "-m", str(model), "-f", str(text), "-c", "32", "-t", "1"]
    process = subprocess.Popen([*command, "-o", str(tmp_path / "im.gguf")], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(".im.gguf.*/im.gguf")) and time.monotonic() < deadline:
        time.sleep(0.02)
    partial, told = tmp_path / "im.partial.gguf", ""
    os.kill(process.pid, signal.SIGINT)
    told = process.communicate(timeout=60)[1]
    assert process.returncode == 130, told
    assert not list(tmp_path.glob(".im*"))
    if partial.exists():  # a file that was being written is not kept
        done = read_imatrix(partial).n_chunks
        assert done >= 10
        assert f"Continue with --in-file {partial} --from-chunk {done}." in told
