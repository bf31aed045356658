"""Settings of pictures and of answers: what a GGUF states of them equals transformers', the rest is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from fixtures.targets import make_target
from llama_eagle.convert.targets import TargetOptions, convert_target, convert_vision
from llama_eagle.errors import ConfigError
from PIL import Image

QWEN3VL = {  # of the published checkpoints
    "size": {"longest_edge": 16777216, "shortest_edge": 65536}, "patch_size": 16, "temporal_patch_size": 2,
    "merge_size": 2, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.25, 0.5],
    "processor_class": "Qwen3VLProcessor", "image_processor_type": "Qwen2VLImageProcessorFast",
}  # fmt: skip
ENGINE = {"size": {"longest_edge": 4096 * 32 * 32, "shortest_edge": 8 * 32 * 32}}


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {name: tmp_path_factory.mktemp(name) for name in ("qwen3vl", "qwen3")}
    return {name: make_target(name, folder, num_hidden_layers=2) for name, folder in folders.items()}


@pytest.fixture
def vision(originals: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(originals["qwen3vl"], tmp_path / "vision"))


@pytest.fixture
def text(originals: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(originals["qwen3"], tmp_path / "text"))


def write(folder: Path, file: str, value: dict[str, Any]) -> Path:
    (folder / file).write_text(json.dumps(value))
    return folder


def statistics(folder: Path) -> tuple[np.ndarray, np.ndarray, list[str]]:
    path = folder.parent / "mm.gguf"
    report = convert_vision(folder, path)
    fields = gguf.GGUFReader(path).fields
    mean, deviation = (np.array(fields[f"clip.vision.image_{name}"].contents()) for name in ("mean", "std"))
    return mean, deviation, report.warnings


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"do_normalize": False},
        {"do_rescale": False},
        {"do_rescale": False, "do_normalize": False},
        {"rescale_factor": 1 / 127.5},
        {"rescale_factor": 1 / 127.5, "do_normalize": False},
        {"do_convert_rgb": True, "default_to_square": False, "resample": 3, "crop_size": None, "do_pad": False},
    ],
)
def test_pixels_are_those_of_transformers(more: dict[str, Any], vision: Path) -> None:
    from transformers import Qwen2VLImageProcessorPil

    settings = {**QWEN3VL, **ENGINE, **more}
    mean, deviation, warnings = statistics(write(vision, "preprocessor_config.json", settings))
    assert not warnings
    colors = np.random.default_rng(1).integers(0, 256, 3)
    picture = Image.fromarray(np.broadcast_to(colors.astype(np.uint8), (96, 96, 3)).copy())
    given = {key: value for key, value in settings.items() if key not in ("processor_class", "image_processor_type")}
    rows = Qwen2VLImageProcessorPil(**given)(images=[picture], return_tensors="np")["pixel_values"]
    theirs = rows[0].reshape(3, -1)[:, 0]  # one color: every pixel of a channel is equal
    np.testing.assert_allclose((colors / 255 - mean) / deviation, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("file", ["preprocessor_config.json", "processor_config.json"])
def test_published_settings_are_accepted_and_their_sizes_are_named(file: str, vision: Path) -> None:
    value = QWEN3VL if file.startswith("pre") else {"image_processor": QWEN3VL, "processor_class": "Qwen3VLProcessor"}
    mean, deviation, warnings = statistics(write(vision, file, value))
    assert (mean.tolist(), deviation.tolist()) == ([0.5] * 3, [0.5, 0.25, 0.5])
    assert [warning.partition(": ")[2] for warning in warnings] == [
        "preprocessor_config.json: pictures of 64 to 16384 tokens, with llama.cpp 8 to 4096 (a GGUF of this encoder "
        "cannot state it): smaller and larger ones are resized differently"
    ]


@pytest.mark.parametrize("size", [{"min_pixels": 8192, "max_pixels": 4194304, "size": None}, ENGINE, {"size": None}])
def test_sizes_of_the_engine_are_silent(size: dict[str, Any], vision: Path) -> None:
    assert not statistics(write(vision, "preprocessor_config.json", {**QWEN3VL, **size}))[2]


def test_what_the_saving_class_adds_is_accepted(vision: Path) -> None:
    from transformers import Qwen2VLImageProcessorPil

    given = {key: value for key, value in QWEN3VL.items() if not key.endswith(("class", "type"))}
    (vision / "preprocessor_config.json").unlink()
    Qwen2VLImageProcessorPil(**given).save_pretrained(vision)
    assert statistics(vision)[1].tolist() == [0.5, 0.25, 0.5]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"image_processor_type": "SiglipImageProcessor"}, "image_processor_type is 'SiglipImageProcessor', which"),
        ({"processor_class": "LlavaProcessor"}, "processor_class is 'LlavaProcessor', which"),
        ({"do_resize": False}, "do_resize is False, supported: True"),
        ({"resample": 2}, "resample is 2, supported: 3"),
        ({"do_center_crop": True}, "do_center_crop is True"),
        ({"patch_size": 14}, "patch_size is 14, but config.json's encoder has 16"),
        ({"merge_size": 4}, "merge_size is 4, but config.json's encoder has 2"),
        ({"temporal_patch_size": 1}, "temporal_patch_size is 1"),
        ({"do_edge_enhance": True}, "do_edge_enhance is unknown here"),
        ({"rescale_factor": -1}, "rescale_factor is -1"),
        ({"size": [1, 2]}, "size is"),
    ],
)
def test_other_preparations_are_refused(more: dict[str, Any], told: str, vision: Path) -> None:
    write(vision, "preprocessor_config.json", {**QWEN3VL, **more})
    with pytest.raises(ConfigError) as caught:
        statistics(vision)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (vision.parent / "mm.gguf").exists()
    convert_target(vision, vision.parent / "out.gguf")  # the remedy: without the encoder


# --- generation_config.json --------------------------------------------------------------------------------------


def answers(folder: Path, settings: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    path = folder.parent / "out.gguf"
    report = convert_target(write(folder, "generation_config.json", settings), path, TargetOptions(name="x"))
    fields = gguf.GGUFReader(path).fields
    names = ("tokenizer.ggml.eos", "tokenizer.ggml.eot", "tokenizer.ggml.eom", "general.sampling.")
    found = {name: field.contents() for name, field in fields.items() if name.startswith(names)}
    return found, [warning for warning in report.warnings if "chat template" not in warning]


def ends(folder: Path, settings: dict[str, Any]) -> tuple[list[Any], list[str]]:
    found, warnings = answers(folder, settings)
    return [found.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")], warnings


def test_end_tokens_have_keys_as_far_as_there_are_any(text: Path) -> None:
    (eos, *others), _ = ends(text, {})
    assert others == [None, None]
    assert ends(text, {"eos_token_id": [eos, 70, 71]}) == ([eos, 70, 71], [])
    assert ends(text, {"eos_token_id": [70, 70, -1]}) == ([eos, 70, None], [])
    assert ends(text, {"eos_token_id": 70}) == ([eos, 70, None], [])
    assert ends(text, {"eos_token_id": eos, "_from_model_config": True}) == ([eos, None, None], [])
    found, (warning,) = ends(text, {"eos_token_id": [70, 71, eos, 72, 73]})
    assert found == [eos, 70, 71]
    named = [open_tokens(text)[n] for n in (72, 73)]
    assert warning.endswith(
        f"also ends an answer at {named[0]!r}, {named[1]!r}, but a GGUF states three tokens: stop there"
    )


def open_tokens(folder: Path) -> dict[int, str]:
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    return {token_id: token for token, token_id in vocabulary.items()}


def test_end_tokens_of_config_are_used_without_a_generation_config(text: Path) -> None:
    config = json.loads((text / "config.json").read_text())
    write(text, "config.json", {**config, "eos_token_id": [70, 71]})
    (eos, *others), _ = ends(text, {})
    assert (eos not in (70, 71), others) == (True, [70, 71])
    assert ends(text, {"eos_token_id": [72]})[0] == [eos, 72, None]


@pytest.mark.parametrize("ids", [[512], ["x"], [None], [True], [-2]])
def test_end_tokens_outside_the_vocabulary(ids: list[Any], text: Path) -> None:
    with pytest.raises(ConfigError, match="is not one of the 512 tokens"):
        ends(text, {"eos_token_id": ids})


def test_sampling_and_settings_without_a_key(text: Path) -> None:
    prefix = "general.sampling."
    found, warnings = answers(text, {"do_sample": True, "temperature": 0.5, "top_k": 20, "max_new_tokens": 9})
    assert ({key: value for key, value in found.items() if key.startswith(prefix)}, warnings) == (
        {f"{prefix}temp": 0.5, f"{prefix}top_k": 20}, [],
    )  # fmt: skip
    assert answers(text, {"do_sample": False, "temperature": 0.5})[0][f"{prefix}temp"] == 0
    neutral = {
        "num_beams": 1,
        "typical_p": 1.0,
        "no_repeat_ngram_size": 0,
        "bad_words_ids": None,
        "suppress_tokens": [],
    }
    assert answers(text, neutral)[1] == []
    (warning,) = answers(text, {"suppress_tokens": [1], "bad_words_ids": [[2]], "presence_penalty": 1.5})[1]
    assert (
        "generation_config.json: bad_words_ids, presence_penalty, suppress_tokens: a GGUF cannot state this" in warning
    )


def test_every_attribute_of_transformers_has_a_place() -> None:
    """An attribute in neither list chooses tokens, and is named."""
    from llama_eagle.convert.settings.generation import _SAMPLING, _SILENT
    from transformers import GenerationConfig

    named = set(vars(GenerationConfig())) - {*_SILENT.split(), *_SAMPLING}
    assert named == {
        "bad_words_ids", "begin_suppress_tokens", "constraints", "dola_layers", "epsilon_cutoff", "eta_cutoff",
        "exponential_decay_length_penalty", "force_words_ids", "forced_bos_token_id", "forced_eos_token_id",
        "guidance_scale", "min_length", "min_new_tokens", "no_repeat_ngram_size", "num_beams", "penalty_alpha",
        "sequence_bias", "stop_strings", "suppress_tokens", "top_h", "typical_p", "watermarking_config",
    }  # fmt: skip
