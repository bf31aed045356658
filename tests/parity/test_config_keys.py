"""Each key of config.json changed alone: the logits are those of transformers, or the conversion is refused."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from fixtures.native import NativeTarget
from fixtures.targets import FAMILIES, make_target
from llama_eagle.convert.targets import TargetOptions, convert_target
from llama_eagle.errors import EagleError

pytestmark = [pytest.mark.slow, pytest.mark.native]

TOKENS = np.random.default_rng(2).integers(0, 480, 48).tolist()
CLOSE = 1e-3
OTHERS: dict[str, list[Any]] = {  # values in addition to those of _changes()
    "hidden_act": ["gelu", "relu"],
    "sliding_window": [8, 4096],
    "layer_types": [["full_attention"], ["sliding_attention"], ["linear_attention"]],  # for all layers
    "mlp_only_layers": [[0], [3]],
    "rope_type": ["linear", "yarn", "dynamic", "llama3", "longrope", "proportional"],
    "head_dim": [None],
    "partial_rotary_factor": [0.5, 0.25],
    "mrope_section": [[2, 3, 3], [8, 4, 4]],
}
WITH_FACTOR = {"factor": 4.0, "original_max_position_embeddings": 32}
NAMES = ("model_type", "architectures", "transformers_version", "dtype")  # of the class itself, and of the writer


def _changes(key: str, value: Any, n_layer: int) -> Iterator[Any]:
    """Yield other values of a key."""
    for other in OTHERS.get(key, ()):
        yield other * n_layer if key == "layer_types" else other
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, value * 2)
    elif isinstance(value, float):
        yield from (value * 2, 0.05 if value < 1e-3 else value * 100)  # an epsilon that shows in the logits


def _paths(config: dict[str, Any], family: str) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Yield the place of a key, its value and another one."""
    text = config.get("text_config", config)
    for place, part in ((("text_config",) if "text_config" in config else (), text), ((), config)):
        for key, value in part.items():
            if key == "rope_parameters":
                for inner, found in {"partial_rotary_factor": None, **value}.items():
                    yield from (
                        ((*place, key, inner), found, v) for v in _changes(inner, found, text["num_hidden_layers"])
                    )
            elif key not in NAMES:
                yield from (((*place, key), value, v) for v in _changes(key, value, text["num_hidden_layers"]))


def cases(family: str, folder: Path) -> list[tuple[tuple[str, ...], Any, Any]]:
    """Return each change of a key once, with the class's own keys added where config.json omits them."""
    config = json.loads((folder / "config.json").read_text())
    stated = getattr(transformers, FAMILIES[family][0]).from_pretrained(folder).to_dict()
    text, full = config.get("text_config", config), stated.get("text_config", stated)
    text |= {key: value for key, value in full.items() if key not in text and key != "quantization_config"}
    found = {(place, json.dumps(other)): (place, value, other) for place, value, other in _paths(config, family)}
    return list(found.values())


def changed(config: dict[str, Any], place: tuple[str, ...], value: Any) -> dict[str, Any]:
    config = copy.deepcopy(config)
    part = config
    for name in place[:-1]:
        part = part.setdefault(name, {})
    part[place[-1]] = value
    if place[-1] == "rope_type":
        part.update(WITH_FACTOR, **({"low_freq_factor": 1.0, "high_freq_factor": 4.0} if value == "llama3" else {}))
    if place[-1] == "sliding_window" and "use_sliding_window" in part:
        part["use_sliding_window"] = True
    return config


def transformers_logits(family: str, folder: Path) -> np.ndarray | None:
    """Return None if transformers does not load or run the folder, or has weights that are not stored."""
    kind = getattr(transformers, FAMILIES[family][1])
    try:
        model, info = kind.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
        if info["missing_keys"] or info["mismatched_keys"]:
            return None
        with torch.no_grad():
            return np.array(model.eval()(torch.tensor([TOKENS]), use_cache=False).logits[0])
    except Exception:  # invalid values raise many types
        return None


def our_logits(folder: Path, output: Path) -> np.ndarray | str:
    """Return the refusal, if there is one."""
    try:
        convert_target(folder, output, TargetOptions(outtype="f32"))
    except EagleError as error:
        assert error.exit_code == 3
        return str(error)
    with NativeTarget(output) as target:
        return np.array(target.decode(TOKENS)[0])


@pytest.mark.parametrize("family", list(FAMILIES))
def test_no_key_is_silently_wrong(family: str, tmp_path: Path) -> None:
    folder = make_target(family, tmp_path / "target", seed=5, num_hidden_layers=4, dtype="float32")
    original = json.loads((folder / "config.json").read_text())
    path = shutil.copy(folder / "config.json", tmp_path / "config.json")
    base = our_logits(folder, tmp_path / "base.gguf")
    assert not isinstance(base, str)
    outcomes: dict[str, list[str]] = {"right": [], "refused": [], "wrong": []}
    for place, value, other in cases(family, folder):
        (folder / "config.json").write_text(json.dumps(changed(original, place, other)))
        theirs, ours = transformers_logits(family, folder), our_logits(folder, tmp_path / "changed.gguf")
        name = f"{'.'.join(place)}: {str(value)[:30]} -> {str(other)[:30]}"
        if isinstance(ours, str):
            outcomes["refused"].append(name)
            continue
        expected = base if theirs is None else theirs
        error = np.abs(ours - expected).max() if ours.shape == expected.shape else np.inf
        outcomes["right" if error < CLOSE else "wrong"].append(f"{name} ({error:.2g}{' alone' * (theirs is None)})")
    shutil.copy(path, folder / "config.json")
    assert not outcomes["wrong"], "\n".join(outcomes["wrong"])
    assert len(outcomes["right"]) > 10, outcomes
    assert len(outcomes["refused"]) > 10, outcomes
