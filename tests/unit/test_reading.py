"""Bytes that a draft reads per token, and the remark of `check` about a draft that is not quantized."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from fixtures.tiny_gguf import write_draft, write_target
from llama_eagle.gguf import reading
from llama_eagle.gguf.header import Header, read_model
from llama_eagle.gguf.reading import bytes_per_token, cost_of

Q8_0 = 8


@pytest.fixture
def pair(tmp_path: Path) -> tuple[list[Header], list[Header]]:
    return read_model(write_target(tmp_path / "target.gguf"))[1], read_model(write_draft(tmp_path / "draft.gguf"))[1]


def quantized(header: Header) -> Header:
    tensors = {
        name: dataclasses.replace(tensor, type_id=Q8_0) if len(tensor.shape) > 1 else tensor
        for name, tensor in header.tensors.items()
    }
    return dataclasses.replace(header, tensors=tensors)


def test_rows_that_are_looked_up_do_not_count(pair: tuple[list[Header], list[Header]]) -> None:
    for files in pair:
        tensors = files[0].tensors
        looked_up = sum(tensors[name].n_bytes or 0 for name in ("token_embd.weight", "d2t") if name in tensors)
        assert bytes_per_token(files) == sum(tensor.n_bytes or 0 for tensor in tensors.values()) - looked_up


def test_drafts_that_are_not_quantized_are_named(
    pair: tuple[list[Header], list[Header]], monkeypatch: pytest.MonkeyPatch
) -> None:
    target, draft = pair
    assert cost_of(target, draft) is None  # it stays in a cache
    monkeypatch.setattr(reading, "MIN_BYTES", 0)
    remark = cost_of(target, draft)
    assert remark is not None and "llama-eagle quantize draft.gguf OUT.gguf q4_k_m" in remark
    assert cost_of(target, [quantized(draft[0])]) is None
    monkeypatch.setattr(reading, "MAX_SHARE", 1e9)
    assert cost_of(target, draft) is None
