"""`check`: pairs that fit, and every way in which one does not."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from fixtures.eagle3_checkpoints import CASES, DraftSpec, make_draft, make_target_gguf
from fixtures.targets import VOCAB_SIZE, make_target
from fixtures.tiny_gguf import finish
from llama_eagle.convert.drafts import convert_draft
from llama_eagle.convert.targets import TargetOptions, convert_target
from llama_eagle.errors import InputError
from llama_eagle.gguf import pairing
from llama_eagle.gguf.header import read_model
from llama_eagle.gguf.mtp import step_share
from llama_eagle.gguf.pairing import CheckReport, check_models


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("pair")
    target = make_target_gguf(folder / "target.gguf")
    convert_draft(make_draft(folder / "draft", DraftSpec()), target, folder / "draft.gguf")
    return target, folder / "draft.gguf"


def errors(report: CheckReport) -> list[str]:
    assert report.compatible == (not [f for f in report.findings if f.level == "error"])
    return [finding.message for finding in report.findings if finding.level == "error"]


@pytest.mark.parametrize("name", CASES)
def test_what_is_converted_fits(name: str, tmp_path: Path) -> None:
    target = make_target_gguf(tmp_path / "target.gguf")
    report = convert_draft(make_draft(tmp_path / "draft", CASES[name]), target, tmp_path / "draft.gguf")
    found = check_models(target, tmp_path / "draft.gguf")
    assert errors(found) == []
    assert found.draft is not None
    assert (found.draft["layout"], found.draft["layer_ids"]) == (report.layout, report.layer_ids)
    json.dumps(found.to_json())


def test_a_target_alone(pair: tuple[Path, Path]) -> None:
    report = check_models(pair[0])
    assert report.compatible
    assert (report.target["n_layer"], report.target["n_vocab"], report.draft) == (8, 512, None)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [({"hidden": 96}, "hidden size"), ({"n_vocab": 500}, "vocabulary has 512"), ({"n_layer": 4}, "reads layer 5")],
)
def test_another_target(sizes: dict[str, int], message: str, pair: tuple[Path, Path], tmp_path: Path) -> None:
    target = make_target_gguf(tmp_path / "other.gguf", **sizes)
    assert any(message in error for error in errors(check_models(target, pair[1])))


def rewritten(source: Path, goal: Path, *, keys: dict[str, Any] | None = None, drop: str = "", add: str = "") -> Path:
    """The same file with other keys, without the tensor `drop`, with a tensor named `add`."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(goal, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture" and name not in (keys or {}):
            sub = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(name, field.contents(), field.types[0], sub)
    for name, value in (keys or {}).items():
        kinds = {bool: gguf.GGUFValueType.BOOL, int: gguf.GGUFValueType.UINT32, str: gguf.GGUFValueType.STRING}
        if isinstance(value, list):
            writer.add_array(name, value)
        elif value is not None:
            writer.add_key_value(name, value, kinds[type(value)])
    for tensor in reader.tensors:
        if tensor.name != drop:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    if add:
        writer.add_tensor(add, np.ones(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return goal


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "layer out of range": ({"keys": {"eagle3.target_layers": [2, 4, 9]}}, "reads layer 9"),
    "repeated layer": ({"keys": {"eagle3.target_layers": [2, 2, 5]}}, "twice"),
    "four layers for three features": (
        {"keys": {"eagle3.target_layers": [1, 2, 3, 4]}},
        "not marked as extended layout",
    ),
    "no layers": ({"keys": {"eagle3.target_layers": None}}, "no target layers"),
    "no head": ({"drop": "output.weight"}, "--share-head"),
    "no map": ({"drop": "d2t"}, "d2t"),
    "missing tensor": ({"drop": "blk.0.ffn_up.weight"}, "blk.0.ffn_up.weight is missing"),
    "unknown tensor": ({"add": "surprise"}, "do not belong to a draft"),
    "wrong width": ({"keys": {"eagle3.feed_forward_length": 95}}, "by its keys"),
    "absurd layers": ({"keys": {"eagle3.block_count": 2**31}}, "must be in 1..512"),
    "unmarked norm_output": ({"keys": {"eagle3.norm_output": True}}, "not marked"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faulty_drafts(fault: str, pair: tuple[Path, Path], tmp_path: Path) -> None:
    changes, message = FAULTS[fault]
    draft = rewritten(pair[1], tmp_path / "bad.gguf", **changes)
    found = errors(check_models(pair[0], draft))
    assert any(message in error for error in found), found


def test_a_differing_token_is_named(pair: tuple[Path, Path], tmp_path: Path) -> None:
    tokens = [f"<{i}>" for i in range(512)]
    tokens[77] = "other"
    draft = rewritten(pair[1], tmp_path / "bad.gguf", keys={"tokenizer.ggml.tokens": tokens})
    assert any("77" in error and "other" in error for error in errors(check_models(pair[0], draft)))


def test_a_refused_file_has_the_facts_of_a_valid_one(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """Callers read the same names; their values are None, because the keys of a refused file may have any type."""
    target = rewritten(pair[0], tmp_path / "target.gguf", keys={"general.name": ["a", "b"]})
    found, valid = check_models(target, pair[1]), check_models(*pair)
    assert found.draft is not None and valid.draft is not None
    assert valid.target["capture_problem"] is valid.target["rollback_problem"] is None
    assert found.target.keys() == valid.target.keys() and found.draft.keys() == valid.draft.keys()
    assert {name for name, value in found.target.items() if value is not None} == {"file", "architecture"}
    assert {**valid.draft, "step_share": None} == found.draft
    json.dumps(found.to_json())


def of_architecture(arch: str, path: Path) -> Path:
    """A target by its keys alone, of an architecture without a table of tensors."""
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(8)
    writer.add_embedding_length(48)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"<{i}>" for i in range(512)])
    writer.add_token_merges(["< 1"])
    return finish(writer, path)


def test_a_target_whose_state_cannot_go_back_takes_no_draft(pair: tuple[Path, Path], tmp_path: Path) -> None:
    for arch in ("minimax-01", "jamba"):
        other = of_architecture(arch, tmp_path / "target.gguf")
        assert check_models(other).target["rollback_problem"].startswith(f"the recurrent state of {arch} models")
        reason = f"the recurrent state of {arch} models cannot be rolled back in this build"
        assert errors(check_models(other, pair[1])) == [f"{reason}, so the target runs without drafts."]


def test_boundaries_that_an_architecture_does_not_publish(pair: tuple[Path, Path], tmp_path: Path) -> None:
    for arch, layer, message in (
        (
            "mistral3",
            8,
            r"output of the last block \(boundary 8\), which mistral3 models compute for output rows alone",
        ),
        ("mistral3", 0, r"the embeddings \(boundary 0\), which mistral3 models do not publish"),
        ("gemma3n", 3, "this build does not publish the states between blocks of gemma3n models: .* several streams"),
        ("hrm_text", 3, "hrm_text .* read more of the blocks before"),
        ("of tomorrow", 3, "of tomorrow .* nobody has compared them"),
    ):
        target = of_architecture(arch, tmp_path / "target.gguf")
        layers = sorted([layer, 4, 5])
        draft = rewritten(pair[1], tmp_path / "draft.gguf", keys={"eagle3.target_layers": layers})
        found = errors(check_models(target, draft))
        assert any(re.search(message, error) for error in found), found


def test_warnings_do_not_part_a_pair(pair: tuple[Path, Path], tmp_path: Path) -> None:
    keys = {"tokenizer.ggml.pre": "other", "eagle3.context_length": 2048}
    report = check_models(pair[0], rewritten(pair[1], tmp_path / "draft.gguf", keys=keys))
    assert report.compatible
    assert len(report.findings) == 2
    refused = check_models(
        pair[0], rewritten(pair[1], tmp_path / "refused.gguf", keys={**keys, "eagle3.target_layers": [2, 2, 3]})
    )
    assert {finding.level for finding in refused.findings} == {"error"}


def test_files_of_other_kinds(pair: tuple[Path, Path], tmp_path: Path) -> None:
    for target, draft in ((pair[1], None), (pair[0], tmp_path / "absent.gguf")):
        with pytest.raises(InputError):
            check_models(target, draft)
    assert check_models(pair[0], pair[0]).compatible  # its own MTP head drafts
    cut = tmp_path / "cut.gguf"
    shutil.copy(pair[1], cut)
    cut.write_bytes(cut.read_bytes()[:3000])
    with pytest.raises(InputError):
        check_models(pair[0], cut)


@pytest.mark.parametrize("family", ["qwen35", "qwen35moe"])
def test_what_a_token_drafted_by_the_own_head_costs(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bytes read, counted here by what is multiplied: of the experts, those that a token is sent to."""
    monkeypatch.setattr(pairing, "HEAD_ROWS", (VOCAB_SIZE // 2, VOCAB_SIZE))
    source = make_target(family, tmp_path / "source", mtp=True)
    convert_target(source, tmp_path / "target.gguf", TargetOptions(outtype="f32"))
    tensors = {t.name: int(t.n_bytes) for t in gguf.GGUFReader(tmp_path / "target.gguf").tensors}
    config = json.loads((source / "config.json").read_text())
    config = config.get("text_config", config)
    used = config.get("num_experts_per_tok", 1) / config.get("num_experts", 1)
    head_mark = f"blk.{config['num_hidden_layers']}."
    parts = {True: 0.0, False: 0.0}
    for name, n_bytes in tensors.items():
        if name not in ("token_embd.weight", "output.weight"):
            parts[name.startswith(head_mark)] += n_bytes * (used if "_exps." in name else 1)
    output = tensors.get("output.weight", tensors["token_embd.weight"])
    found = check_models(tmp_path / "target.gguf", None).target["mtp_step_share"]
    assert found == {
        name: pytest.approx((parts[True] + output * share) / (parts[False] + output), abs=1e-4)
        for name, share in ((str(VOCAB_SIZE // 2), 0.5), ("all", 1))
    }
    assert step_share(read_model(tmp_path / "target.gguf")[1], 0) == pytest.approx(
        parts[True] / (parts[False] + output)
    )
