"""Bytes of weights that decoding reads: the library's numbers and those of the files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import pytest
from fixtures.native import NativeTarget, load_model
from fixtures.tiny_gguf import write_draft, write_target
from llama_eagle.sessions.options import SessionOptions
from llama_eagle.sessions.session import EagleSession
from parity.native_draft import N_STEPS
from parity.native_mtp import LoadedHead, MtpTarget, NativeMtp

pytestmark = pytest.mark.native

FIRST_OF_HEAD = "blk.8."  # of the tiny targets' blocks


def in_file(path: Path, is_read: Callable[[str], bool], share_of_experts: float = 1.0) -> float:
    """Bytes of the tensors that are read, of experts a share."""
    tensors = [tensor for tensor in gguf.GGUFReader(path).tensors if is_read(tensor.name)]
    return sum(float(t.n_bytes) * (share_of_experts if "_exps" in t.name else 1) for t in tensors)


def in_trunk(name: str) -> bool:
    return name != "token_embd.weight" and not name.startswith(FIRST_OF_HEAD)


@pytest.mark.parametrize("family", ["qwen35", "qwen35moe"])
@pytest.mark.parametrize("n_rows", [1, 2, 9])
def test_a_decode_reads_the_trunk_and_the_experts_of_its_rows(tmp_path: Path, family: str, n_rows: int) -> None:
    target = MtpTarget(family, tmp_path)
    reader = gguf.GGUFReader(target.gguf)
    counts = [reader.fields.get(f"{family}.expert_{what}count") for what in ("used_", "")]
    used = counts[0].contents() / counts[1].contents() if counts[0] and counts[1] else 1.0
    with target.open() as context, EagleSession(context, None, SessionOptions(0)) as session:
        read = session.bytes_read(n_rows)
    assert read == pytest.approx(in_file(target.gguf, in_trunk, 1 - (1 - used) ** n_rows), rel=1e-12)
    assert used == 1.0 or read < in_file(target.gguf, in_trunk)  # the mixture has experts that are left out


@pytest.mark.parametrize("family", ["qwen35", "qwen35moe"])
def test_an_mtp_head_reads_its_block_and_the_output(tmp_path: Path, family: str) -> None:
    target = MtpTarget(family, tmp_path)
    reader = gguf.GGUFReader(target.gguf)
    counts = [reader.fields.get(f"{family}.expert_{what}count") for what in ("used_", "")]
    used = counts[0].contents() / counts[1].contents() if counts[0] and counts[1] else 1.0
    with target.open() as context:
        draft = NativeMtp(context)
        whole = draft.session.draft_bytes_read
        draft.close()
        draft = NativeMtp(context, n_vocab_draft=160)
        trimmed = draft.session.draft_bytes_read
        draft.close()
    names = {tensor.name for tensor in reader.tensors}
    output = "output.weight" if "output.weight" in names else "token_embd.weight"
    norm = FIRST_OF_HEAD + "nextn.shared_head_norm.weight"
    head = in_file(target.gguf, lambda name: name.startswith(FIRST_OF_HEAD) or name == output, used)
    assert norm in names
    assert whole == pytest.approx(head, rel=1e-12)
    rows = in_file(target.gguf, lambda name: name == output)
    n_vocab = next(int(t.shape[1]) for t in reader.tensors if t.name == output)
    assert trimmed == pytest.approx(whole - rows * (1 - 160 / n_vocab), rel=1e-12)


def test_an_eagle3_draft_reads_all_but_embeddings_and_the_map(tmp_path: Path) -> None:
    target, draft = write_target(tmp_path / "target.gguf"), write_draft(tmp_path / "draft.gguf")
    with NativeTarget(target, n_ctx=256, n_rs_seq=N_STEPS) as context:
        model = load_model(draft)
        with EagleSession(context, LoadedHead(model, draft), SessionOptions(N_STEPS)) as session:
            read = session.draft_bytes_read
    names = {tensor.name for tensor in gguf.GGUFReader(draft).tensors}
    assert "output.weight" in names
    assert read == in_file(draft, lambda name: name not in ("token_embd.weight", "d2t"))
