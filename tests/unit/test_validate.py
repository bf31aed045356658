"""The validator: silent about every sound file that we can make, and an error with the name for each contradiction."""

from __future__ import annotations

from pathlib import Path

import pytest
from fixtures.eagle3_checkpoints import CASES, make_draft, make_target_gguf
from fixtures.targets import FAMILIES, HYBRID, make_target
from fixtures.tiny_gguf import Variant, write_draft, write_target
from fuzz.gguf_file import read
from llama_eagle.convert.drafts import DraftOptions, convert_draft
from llama_eagle.convert.targets import TargetOptions, convert_target, convert_vision
from llama_eagle.errors import UsageError
from llama_eagle.gguf.header import read_model
from llama_eagle.gguf.validate import check_files
from llama_eagle.quantize.quantize import QuantizeOptions, file_types, quantize


def assert_sound(path: Path) -> None:
    assert list(check_files(read_model(path)[1])) == []


@pytest.mark.parametrize("family", FAMILIES)
def test_every_conversion_is_sound(family: str, tmp_path: Path) -> None:
    for number, options in enumerate(({}, {"tie_word_embeddings": True, "num_hidden_layers": 4})):
        source = make_target(family, tmp_path / f"source{number}", mtp=family in HYBRID, **options)
        for outtype in ("bf16", "q8_0"):
            convert_target(source, tmp_path / "out.gguf", TargetOptions(outtype=outtype))
            assert_sound(tmp_path / "out.gguf")
        report = convert_target(source, tmp_path / "out.gguf", TargetOptions(outtype="f32", split_max_size=300_000))
        assert len(report.outputs) > 1
        assert_sound(report.outputs[0])
    if FAMILIES[family][4]:
        convert_vision(source, tmp_path / "vision.gguf")
        assert_sound(tmp_path / "vision.gguf")


@pytest.mark.native
@pytest.mark.parametrize("family", ["qwen35moe", "llama3"])
def test_every_type_is_sound(family: str, tmp_path: Path) -> None:
    """K-quants and I-quants need rows of 256."""
    wide = {"hidden_size": 256, "intermediate_size": 256, "moe_intermediate_size": 256, "num_hidden_layers": 4}
    wide |= {"shared_expert_intermediate_size": 256, "num_experts": 2} if family == "qwen35moe" else {}
    source = make_target(family, tmp_path / "source", mtp=family in HYBRID, **wide)
    convert_target(source, tmp_path / "f32.gguf", TargetOptions(outtype="f32"))
    made = 0
    for name in file_types():
        try:
            quantize(tmp_path / "f32.gguf", tmp_path / "out.gguf", name, QuantizeOptions(threads=1))
        except UsageError as error:  # those of the fewest bits need an importance matrix
            assert "imatrix" in str(error)
            continue
        assert_sound(tmp_path / "out.gguf")
        made += 1
    assert made > 20


@pytest.mark.parametrize("case", CASES)
def test_every_draft_is_sound(case: str, tmp_path: Path) -> None:
    target = make_target_gguf(tmp_path / "target.gguf")
    for outtype in ("auto", "q8_0"):
        draft = make_draft(tmp_path / outtype, CASES[case])
        convert_draft(draft, target, tmp_path / "out.gguf", DraftOptions(outtype=outtype))
        assert_sound(tmp_path / "out.gguf")


@pytest.mark.parametrize("variant", [Variant(), Variant(hidden=32), Variant(n_vocab=300, target_layers=(0, 1, 2))])
def test_files_of_the_tests_are_sound(variant: Variant, tmp_path: Path) -> None:
    assert_sound(write_target(tmp_path / "target.gguf", variant))
    assert_sound(write_draft(tmp_path / "draft.gguf", variant))
    assert_sound(make_target_gguf(tmp_path / "other.gguf", n_layer=5))


def test_keys_with_defaults_may_be_missing(tmp_path: Path) -> None:
    """The numbers of blocks say which are recurrent, and prediction blocks are not: files of other converters."""
    converted = convert_target(
        make_target("qwen35", tmp_path / "source", mtp=True), tmp_path / "full.gguf", TargetOptions(outtype="bf16")
    ).outputs[0]
    file = read(converted)
    names = {b"qwen35.attention.recurrent_layers", b"qwen35.full_attention_interval"}
    file.keys = [key for key in file.keys if key[0] not in names]
    (tmp_path / "short.gguf").write_bytes(file.encode())
    assert_sound(tmp_path / "short.gguf")


@pytest.mark.parametrize(
    ("groups", "used", "is_sound"), [(1, 1, True), (2, 1, True), (2, 2, False), (3, 1, False), (4, 1, False)]
)
def test_groups_of_experts(groups: int, used: int, is_sound: bool, tmp_path: Path) -> None:
    """llama.cpp asserts that they divide the experts, and that fewer than all are used."""
    source = make_target("qwen35moe", tmp_path / "source", num_experts=4, num_hidden_layers=4)
    file = read(convert_target(source, tmp_path / "out.gguf", TargetOptions(outtype="bf16")).outputs[0])
    for name, value in (("count", groups), ("used_count", used)):
        file.keys.append((f"qwen35moe.expert_group_{name}".encode(), 4, value.to_bytes(4, "little")))
    (tmp_path / "out.gguf").write_bytes(file.encode())
    faults = list(check_files(read_model(tmp_path / "out.gguf")[1]))
    assert bool(faults) != is_sound and all("of 4 experts" in str(fault) for fault in faults)
