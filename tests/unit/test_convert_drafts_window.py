"""Sliding-window EAGLE-3: the window and its layers reach the file, and stock llama.cpp is kept from ignoring them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import pytest
from fixtures.eagle3_checkpoints import CASES, make_draft, make_target_gguf
from llama_eagle.convert.drafts import convert_draft
from llama_eagle.gguf.header import read_model
from llama_eagle.gguf.validate import check_files

WINDOWS: dict[str, tuple[int, dict[str, Any], list[bool] | None]] = {
    "one layer": (1, {"sliding_window": 32, "layer_types": ["sliding_attention"]}, [True]),
    "one of two": (2, {"sliding_window": 32, "layer_types": ["full_attention", "sliding_attention"]}, [False, True]),
    "Qwen's flag": (2, {"sliding_window": 32, "use_sliding_window": True}, [True, True]),
    "Qwen's flag from a layer on": (
        2, {"sliding_window": 32, "use_sliding_window": True, "max_window_layers": 1}, [False, True]
    ),
    "switched off": (1, {"sliding_window": 32, "use_sliding_window": False}, None),
    "no window": (1, {"sliding_window": None, "layer_types": ["sliding_attention"]}, None),
    "full attention": (1, {"sliding_window": 32, "layer_types": ["full_attention"]}, None),
    "the target's layers": (1, {"sliding_window": 32, "layer_types": ["sliding_attention"] * 36}, None),
}  # fmt: skip


@pytest.mark.parametrize("case", WINDOWS)
@pytest.mark.parametrize("producer", ["speculators", "specforge"])
def test_a_sliding_window_reaches_the_file(producer: str, case: str, tmp_path: Path) -> None:
    n_layer, config, pattern = WINDOWS[case]
    folder = make_draft(tmp_path / "draft", replace(CASES[producer], n_layer=n_layer))
    path = folder / "config.json"
    whole = json.loads(path.read_text())
    whole.get("transformer_layer_config", whole).update(config)
    path.write_text(json.dumps(whole))
    report = convert_draft(folder, make_target_gguf(tmp_path / "target.gguf"), tmp_path / "out.gguf")
    reader = gguf.GGUFReader(tmp_path / "out.gguf")
    keys = {name: field.contents() for name, field in reader.fields.items()}
    extended = any(tensor.name == "extended" for tensor in reader.tensors)
    if pattern is None:
        assert not any("sliding" in name for name in keys)
        assert extended == (n_layer == 2)
    else:
        assert keys["eagle3.attention.sliding_window"] == 32
        assert keys["eagle3.attention.sliding_window_pattern"] == pattern
        assert "a sliding window of 32 tokens" in report.extended_because
        assert extended
    ignored = any("its sliding window of 32 is ignored" in warning for warning in report.warnings)
    assert ignored == (case == "the target's layers")


def test_a_window_without_its_layers_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "out.gguf"
    convert_draft(
        make_draft(tmp_path / "draft", CASES["specforge-windows"]), make_target_gguf(tmp_path / "target.gguf"), file
    )
    file.write_bytes(file.read_bytes().replace(b"sliding_window_pattern", b"sliding_window_unknown"))
    faults = [finding.message for finding in check_files(read_model(file)[1])]
    assert faults == ["0 entries for 3 blocks (eagle3.attention.sliding_window_pattern)"]
