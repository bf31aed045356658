"""Keys of a draft's config.json that mean something are taken, or refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixtures.eagle3_checkpoints import DraftSpec, make_draft, make_target_gguf
from llama_eagle.convert.drafts import DraftOptions, convert_draft
from llama_eagle.convert.drafts.report import DraftReport
from llama_eagle.convert.source.storage import open_npy
from llama_eagle.errors import ConfigError, ConversionError

IDS = [2, 3, 4]


def dry(tmp_path: Path, changes: dict[str, Any], **options: Any) -> DraftReport:
    folder = make_draft(tmp_path / "draft", DraftSpec())
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    target = make_target_gguf(tmp_path / "target.gguf")
    return convert_draft(folder, target, tmp_path / "out.gguf", DraftOptions(dry_run=True, **options))


@pytest.mark.parametrize("name", ["eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids", "target_layer_ids"])
@pytest.mark.parametrize("is_nested", [False, True])
def test_every_name_of_the_layers(name: str, is_nested: bool, tmp_path: Path) -> None:
    report = dry(tmp_path, {"eagle_config": {name: IDS}} if is_nested else {name: IDS})
    assert report.layer_ids == [i + is_nested for i in IDS]
    assert "default" not in report.layer_ids_source


def test_two_names_that_differ(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the layer ids differ"):
        dry(tmp_path, {"aux_hidden_state_layer_ids": IDS, "target_layer_ids": [1, 3, 4]})


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"capture_layer_indices": IDS}, "capture_layer_indices"),
        ({"eagle_config": {"layer_indexes": ["2", "3", "4"]}}, "eagle_config.layer_indexes"),
        ({"eagle_layers_id": "2,3,4"}, "eagle_layers_id"),
        ({"training": {"feature_layers": [2.0, 3.0, 4.0]}}, "training.feature_layers"),
        ({"aux_layers": IDS}, "aux_layers"),
        ({"layers_to_capture": IDS}, "layers_to_capture"),
        ({"speculation": {"draft": {"target_layer_ids": IDS}}}, "speculation.draft.target_layer_ids"),
        (
            {"stages": [{}, {"inputs": {"aux_hidden_state_layer_ids": IDS}}]},
            "stages.1.inputs.aux_hidden_state_layer_ids",
        ),
    ],
)
def test_layers_under_another_name_are_refused(changes: dict[str, Any], name: str, tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match=f"{name} is .*Give them with --aux-layers"):
        dry(tmp_path, changes)
    assert dry(tmp_path / "again", changes, aux_layers=(1, 2, 3)).layer_ids == [1, 2, 3]


def test_other_lists_are_warnings(tmp_path: Path) -> None:
    """8 is the state after the last of the target's blocks."""
    others = {"odd": [1, 2], "layer_index": [0, 1, 2], "last": [4, 8], "eos_token_id": [1, 2], "beyond": [4, 9]}
    report = dry(tmp_path, {"target_layer_ids": IDS, **others})
    unread = [warning for warning in report.warnings if "which is ignored" in warning]
    assert [warning.split()[1] for warning in unread] == ["odd", "layer_index", "last"]


def test_lists_that_are_none_of_layers(tmp_path: Path) -> None:
    changes = {"layer_types": ["full_attention"], "mlp_only_layers": [], "odd": [10**6], "other": [-1], "x": [True]}
    assert not any("which is ignored" in warning for warning in dry(tmp_path, changes).warnings)


@pytest.mark.parametrize("kind", ["uint8", "int8", "bool", "uint16", "int64", "float32", "float16", ">i4"])
def test_arrays_of_numpy_keep_their_type(kind: str, tmp_path: Path) -> None:
    np.save(tmp_path / "t2d.npy", np.array([0, 1, 1], kind))
    tensor = open_npy(tmp_path / "t2d.npy")["t2d"]
    names = {"uint8": "U8", "int8": "I8", "bool": "BOOL", "uint16": "U16", "int64": "I64", "float32": "F32"}
    assert tensor.info.dtype == {**names, "float16": "F16", ">i4": "I32"}[kind]
    assert tensor.read().tolist() == [0, 1, 1]


def test_layers_with_settings_of_their_own(tmp_path: Path) -> None:
    """transformers 5.24 applies them."""
    dry(tmp_path, {"per_layer_config": {}})
    with pytest.raises(ConfigError, match="per_layer_config is"):
        dry(tmp_path, {"per_layer_config": {"0": {"rms_norm_eps": 0.1}}})


def test_the_case_of_the_type_is_nothing(tmp_path: Path) -> None:
    folder = make_draft(tmp_path / "draft", DraftSpec(ffn=72))
    target = make_target_gguf(tmp_path / "target.gguf")
    assert DraftOptions(outtype="Q8_0") == DraftOptions(outtype="q8_0")
    reports = [
        convert_draft(folder, target, tmp_path / "out.gguf", DraftOptions(outtype=outtype, dry_run=True))
        for outtype in ("q8_0", "Q8_0")
    ]
    assert any("f16 instead of q8_0" in warning for warning in reports[1].warnings)
    assert reports[0].warnings == reports[1].warnings and reports[0].settings == reports[1].settings
