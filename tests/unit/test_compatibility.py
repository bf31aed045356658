"""Compatibility of targets and drafts, decided from their headers alone."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
from fixtures.tiny_gguf import Variant, write_draft, write_target
from llama_eagle.errors import IncompatibleModels, InputError
from llama_eagle.gguf.header import Header, read_header
from llama_eagle.gguf.pairing import check_models, require_draft, require_models, require_target
from llama_eagle.gguf.validate import small


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Header:
    return read_header(write_target(tmp_path_factory.mktemp("pair") / "target.gguf"))


def draft_of(tmp_path: Path, **changes: object) -> Header:
    return read_header(write_draft(tmp_path / "draft.gguf", Variant(**changes)))  # type: ignore[arg-type]


def problems(target: Header, draft: Header) -> list[str]:
    """Return the findings of `check`; loading refuses exactly if there are any."""
    found = [finding for finding in check_models(target.path, draft.path).findings if finding.level == "error"]
    if not found:
        require_models(target.path, draft.path)
    else:
        with pytest.raises(InputError if found[0].file else IncompatibleModels, match=re.escape(found[0].message)):
            require_models(target.path, draft.path)
    return [finding.message for finding in found]


def test_a_pair_that_fits(target: Header, tmp_path: Path) -> None:
    assert problems(target, draft_of(tmp_path)) == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hidden": 32}, "hidden size of 32, the target has 64"),
        ({"n_vocab": 300}, "300 tokens, the target's 272"),
        ({"n_vocab": 260}, "260 tokens, the target's 272"),
        ({"target_layers": (1, 2, 7)}, "reads layer 7, the target has layers 0 to 3"),
        ({"target_layers": (1, 2, -1)}, "reads layer -1"),
        ({"target_layers": (1, 1, 2)}, "a layer twice"),
        ({"first_token": "other"}, "token 33 is '!' in the target and 'other' in the draft"),
    ],
)
def test_each_reason(target: Header, tmp_path: Path, changes: dict[str, object], reason: str) -> None:
    found = problems(target, draft_of(tmp_path, **changes))
    assert any(reason in problem for problem in found), found


@pytest.mark.parametrize("name", [b"[PADxyz]", b"<unused>"])
def test_padding_may_be_named_differently(tmp_path: Path, target: Header, name: bytes) -> None:
    """Two converters may call the unused ids differently."""
    data = bytearray((write_draft(tmp_path / "draft.gguf")).read_bytes())
    at = data.find(b"[PAD260]")
    data[at : at + 8] = name
    (tmp_path / "draft.gguf").write_bytes(data)
    assert problems(target, read_header(tmp_path / "draft.gguf")) == []


def test_d2t_outside_the_vocabulary(tmp_path: Path, target: Header) -> None:
    path = write_draft(tmp_path / "draft.gguf")
    header = read_header(path)
    with path.open("r+b") as file:
        file.seek(header.data_offset + header.tensors["d2t"].offset)
        file.write(np.int64(99999).tobytes())
    assert any("ids from 66 to 99999" in problem for problem in problems(target, read_header(path)))


def test_roles(target: Header, tmp_path: Path) -> None:
    draft = draft_of(tmp_path)
    require_target(target)
    require_draft([draft])
    with pytest.raises(InputError, match="is an EAGLE-3 draft, not a target"):
        require_target(draft)
    require_draft([target])  # a small model


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hidden": 32}, None),
        ({"hidden": 32, "n_vocab": 300}, None),  # 28 tokens of padding
        ({"n_vocab": 401}, "401 tokens, the target's 272"),
        ({"first_token": "other"}, "token 33 is '!' in the target and 'other' in the draft"),
    ],
)
def test_a_small_model(
    target: Header,
    tmp_path: Path,
    changes: dict[str, object],
    reason: str | None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    small = read_header(write_target(tmp_path / "small.gguf", Variant(**changes)))  # type: ignore[arg-type]
    found = problems(target, small)
    assert (found == []) if reason is None else (reason in found[0] and len(found) == 1)
    assert "will not pay" not in capsys.readouterr().err
    if reason is None:  # the other way round, it costs more than it saves
        assert any("will not pay" in finding.message for finding in check_models(small.path, target.path).findings)
        require_models(small.path, target.path)
        assert "will not pay" in capsys.readouterr().err


def test_what_is_no_small_model(target: Header, tmp_path: Path) -> None:
    assert problems(target, target) == ["it is the target itself. A draft is a smaller model of the same family."]
    data = target.path.read_bytes()
    for name, reason in (("bert", "it is an encoder"), ("llada", "it is a diffusion model")):
        (tmp_path / "other.gguf").write_bytes(data)
        other = replace(read_header(tmp_path / "other.gguf"), keys={**target.keys, "general.architecture": name})
        assert reason in next(small.problems(target, other))
    pooled = replace(read_header(tmp_path / "other.gguf"), keys={**target.keys, "qwen35.pooling_type": 3})
    assert "for embeddings or reranking" in next(small.problems(target, pooled))
    for key, value in (("add_bos_token", True), ("eos_token_id", 3)):
        keys = {**target.keys, "tokenizer.ggml.add_eos_token": True, "tokenizer.ggml.add_bos_token": False}
        of_target, of_draft = (replace(target, keys=each) for each in (keys, {**keys, f"tokenizer.ggml.{key}": value}))
        assert f"tokenizer.ggml.{key} is" in next(
            small.problems(of_target, replace(of_draft, path=tmp_path / "other.gguf"))
        )


def test_projector_is_no_target(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "mmproj.gguf", "clip")
    writer.add_tensor("v", np.ones(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(InputError, match="projector"):
        require_target(read_header(tmp_path / "mmproj.gguf"))
