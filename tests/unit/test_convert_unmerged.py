"""Folders of adapters and training frameworks: each is named with a remedy, and the remedy leads to a file."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from fixtures.command import assert_one_line_error, llama_eagle
from fixtures.targets import make_target
from llama_eagle.convert.source import open_checkpoint
from llama_eagle.convert.targets import TargetOptions, convert_target
from llama_eagle.errors import ConfigError, EagleError
from safetensors.torch import load_file, save_file


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_target("qwen35-text", tmp_path_factory.mktemp("original"), num_hidden_layers=4, mtp=True)


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "folder"))


def converted(folder: Path, **options: Any) -> bytes:
    path = folder.parent / "out.gguf"
    path.unlink(missing_ok=True)
    convert_target(open_checkpoint(folder, **options), path, TargetOptions(outtype="f32", name="x"))
    return path.read_bytes()


def refusal(folder: Path) -> str:
    with pytest.raises(EagleError) as caught:
        converted(folder)
    assert caught.value.exit_code == 3
    assert "\n" not in str(caught.value)
    assert not (folder.parent / "out.gguf").exists()
    return str(caught.value)


def without_weights(folder: Path) -> dict[str, torch.Tensor]:
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    return state


def run_remedy(message: str, folder: Path) -> None:
    """Run the command that a message gives last."""
    command = message.rpartition("Join them: ")[2].replace("FOLDER", str(folder))
    words = shlex.split(command)
    words[:1] = (
        [sys.executable] if words[0] == "python" else [sys.executable, "-m", "accelerate.commands.accelerate_cli"]
    )
    subprocess.run(words, cwd=folder, check=True, capture_output=True)


# --- adapters ----------------------------------------------------------------------------------------------------


def add_adapter(folder: Path, kind: str | None = "LORA", file: str = "adapter_model.safetensors") -> None:
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": kind, "r": 8}))
    save_file({"base_model.model.model.layers.0.mlp.up_proj.lora_A.weight": torch.ones(2, 2)}, folder / file)


@pytest.mark.parametrize("file", ["adapter_model.safetensors", "adapter_model.bin"])
def test_an_adapter_next_to_the_weights(file: str, original: Path, folder: Path) -> None:
    add_adapter(folder, file=file)
    message = refusal(folder)
    assert "an adapter (adapter_config.json) is next to the model's weights" in message
    assert message.endswith("--merge converts both as one model, --ignore-adapter the weights without it")
    assert converted(folder, ignore_adapter=True) == converted(original)
    (folder / file).unlink()  # the settings alone are no adapter
    assert converted(folder) == converted(original)


def test_the_option_of_the_command(folder: Path, tmp_path: Path) -> None:
    add_adapter(folder)
    command = ("convert", folder, "-o", tmp_path / "out.gguf", "--outtype", "f32")
    assert_one_line_error(llama_eagle(*command), 3, "--ignore-adapter")
    assert llama_eagle(*command, "--ignore-adapter").code == 0


def test_training_refuses_the_same_folder(folder: Path) -> None:
    from llama_eagle.train.targets.checkpoint import read_target

    add_adapter(folder)
    with pytest.raises(ConfigError, match=r"an adapter .* is next to the model's weights.* or merge it with peft\.$"):
        read_target(folder)


KINDS = {
    "LORA": "a LoRA adapter, not a model. Merge it",
    None: "a LoRA adapter, not a model. Merge it",
    "OFT": "a PEFT adapter (OFT), not a model. Merge it",
    "PROMPT_TUNING": "a PEFT adapter (PROMPT_TUNING), not a model. Nothing of it can be merged",
}


@pytest.mark.parametrize("kind", KINDS)
def test_adapters_alone(kind: str | None, original: Path, folder: Path) -> None:
    without_weights(folder)
    add_adapter(folder, kind)
    assert KINDS[kind] in refusal(folder)
    (folder / "config.json").unlink()
    assert KINDS[kind] in refusal(folder)
    assert converted(original)  # the remedy of what cannot be merged


@pytest.mark.parametrize("what", ["checkpoints", "adapters"])
def test_one_level_down(what: str, original: Path, tmp_path: Path) -> None:
    for name in ("checkpoint-100", "checkpoint-200"):
        if what == "adapters":
            add_adapter(tmp_path / name)
        else:
            shutil.copytree(original, tmp_path / name)
    message = refusal(tmp_path)
    assert f"its {what} are in folders (checkpoint-100, checkpoint-200). " in message
    if what == "checkpoints":
        named = Path(message.rpartition("Give one of them: ")[2])
        assert converted(named) == converted(original)


# --- training frameworks -----------------------------------------------------------------------------------------


def test_distributed_shards_of_transformers(original: Path, folder: Path) -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import HuggingFaceStorageWriter

    state = without_weights(folder)
    writer = HuggingFaceStorageWriter(path=str(folder), save_distributed=True, enable_consolidation=False)
    dcp.save(state, storage_writer=writer)
    assert list(folder.glob("shard-*.safetensors"))
    message = refusal(folder)
    assert "its weights are the parts of several ranks (shard-*.safetensors" in message
    run_remedy(message, folder)
    assert converted(folder) == converted(original)


@pytest.mark.parametrize("place", [".", "pytorch_model_fsdp_0"])
def test_a_distributed_checkpoint_of_torch(place: str, original: Path, folder: Path) -> None:
    import torch.distributed.checkpoint as dcp

    state = without_weights(folder)
    dcp.save({"model": state}, checkpoint_id=folder / place)
    message = refusal(folder)
    assert "its weights are a distributed checkpoint of torch (.distcp" in message
    run_remedy(message, folder)
    assert converted(folder) == converted(original)


def test_parts_of_zero(folder: Path) -> None:
    """The program is DeepSpeed's and needs it."""
    state = without_weights(folder)
    (folder / "global_step10").mkdir()
    assert "DeepSpeed ZeRO" in refusal(folder)
    save_file({name: tensor[:0] for name, tensor in state.items()}, folder / "model.safetensors")
    assert refusal(folder).endswith("Join them with the program in the folder: python zero_to_fp32.py . .")


def test_a_checkpoint_of_litgpt(original: Path, folder: Path) -> None:
    state = without_weights(folder)
    (folder / "lit_model.pth").write_bytes(b"")
    message = refusal(folder)
    assert "litgpt convert_from_litgpt FOLDER OUT" in message
    (folder / "lit_model.pth").unlink()
    torch.save(state, folder / "model.pth")  # as litgpt writes it
    (folder / "model.pth").rename(folder / "pytorch_model.bin")
    assert converted(folder) == converted(original)


def test_a_folder_of_hqq(original: Path, folder: Path) -> None:
    without_weights(folder)
    (folder / "qmodel.pt").write_bytes(b"")
    assert refusal(folder).endswith("Convert the unquantized checkpoint and quantize the GGUF")
    assert converted(original)


# --- index files -------------------------------------------------------------------------------------------------


def split_head(folder: Path) -> dict[str, str]:
    """Store the MTP head as llm-compressor 0.14 does: in a file of its own, with an index of both."""
    state = without_weights(folder)
    parts = {True: "model_mtp.safetensors", False: "model.safetensors"}
    files = {name: parts[name.startswith("mtp.")] for name in state}
    for file in parts.values():
        save_file({name: state[name] for name in state if files[name] == file}, folder / file, {"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    return files


def test_a_head_in_a_second_file_that_the_index_lists(original: Path, folder: Path) -> None:
    files = split_head(folder)
    assert set(files.values()) == {"model.safetensors", "model_mtp.safetensors"}
    assert converted(folder) == converted(original)
    (folder / "model_mtp.safetensors").unlink()
    assert re.search(r"model_mtp.safetensors: cannot be read .*is the download complete", refusal(folder))


def test_an_index_of_earlier_shards_is_ignored(original: Path, folder: Path) -> None:
    """As in transformers, which opens model.safetensors."""
    names = load_file(folder / "model.safetensors")
    index = {"weight_map": dict.fromkeys(names, "model-00001-of-00002.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert converted(folder) == converted(original)


# --- quantized attention -----------------------------------------------------------------------------------------


def test_attention_alone_is_quantized(original: Path, folder: Path) -> None:
    """compressed-tensors 0.20.1 stores scales and zero points of queries, keys and values next to plain weights."""
    state = load_file(folder / "model.safetensors")
    for name in ("q", "k", "v"):
        at = f"model.layers.3.self_attn.{name}"
        state |= {f"{at}_scale": torch.ones(1), f"{at}_zero_point": torch.zeros(1, dtype=torch.int8)}
    save_file(state, folder / "model.safetensors")
    group = {"targets": ["Attention"], "weights": None, "input_activations": {"num_bits": 8, "type": "int"}}
    stated = {"quant_method": "compressed-tensors", "format": "dense", "config_groups": {"group_0": group}}
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": stated}))
    assert converted(folder) == converted(original)
