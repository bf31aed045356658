"""Files and keys that `EagleLlama` hands on to llama.cpp: right ones act, wrong ones are refused by name."""

from __future__ import annotations

import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fixtures.adapters import BASE, PAIR, write_adapter
from fixtures.tiny_gguf import HIDDEN, Variant, write_draft, write_target
from fixtures.vision_files import make_vision_files
from fuzz.gguf_file import read
from llama_eagle import EagleLlama
from llama_eagle.errors import EagleError
from llama_eagle.gguf.header import read_model
from llama_eagle.vision.encoder import require_encoder

pytestmark = pytest.mark.native

OPTIONS = {"n_ctx": 64, "n_threads": 1, "verbose": False}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("foreign")
    write_target(folder / "target.gguf", Variant(spread=1.0))
    write_draft(folder / "draft.gguf")
    write_adapter(folder / "lora.gguf", size=2.0)
    write_adapter(folder / "wide.gguf", {**PAIR, f"{BASE}.lora_a": (2, 2 * HIDDEN)})
    return folder


def text(folder: Path, **arguments: Any) -> str:
    with EagleLlama(str(folder / "target.gguf"), **{**OPTIONS, **arguments}) as llm:
        return str(llm.create_completion("abc", max_tokens=8, temperature=0)["choices"][0]["text"])


def test_an_adapter_changes_the_text_and_a_draft_does_not(folder: Path) -> None:
    lora = str(folder / "lora.gguf")
    changed = text(folder, lora_path=lora)
    assert changed != text(folder) == text(folder, lora_path=lora, lora_scale=0.0)
    assert text(folder, lora_path=lora, draft_path=folder / "draft.gguf") == changed


def test_the_adapter_is_part_of_the_state(folder: Path) -> None:
    with EagleLlama(str(folder / "target.gguf"), lora_path=str(folder / "lora.gguf"), **OPTIONS) as llm:
        assert llm.__getstate__()["lora_path"] == llm.lora_path == str(folder / "lora.gguf")


def test_an_override_acts(folder: Path) -> None:
    with EagleLlama(str(folder / "target.gguf"), kv_overrides={"qwen35.context_length": 99}, **OPTIONS) as llm:
        assert llm._model.n_ctx_train() == 99


REFUSED: list[dict[str, Any]] = [
    {"lora_path": "/none.gguf"},
    {"lora_path": "@target.gguf"},
    {"lora_path": "@wide.gguf"},
    {"lora_path": "@"},
    {"lora_scale": float("nan")},
    {"kv_overrides": {"qwen35.block_count": 1000}},
    {"kv_overrides": {"qwen35.expert_count": 10**6}},
    {"kv_overrides": {"tokenizer.ggml.model": "llama"}},
    {"kv_overrides": {"tokenizer.ggml.model": "rwkv"}, "vocab_only": True},
    {"kv_overrides": [("a", 1)]},
    {"chat_handler": SimpleNamespace(clip_model_path="@target.gguf")},
    {"chat_handler": SimpleNamespace(clip_model_path="/none.gguf")},
    {"mmproj_path": "@lora.gguf"},
    {"pooling_type": 99, "embedding": True},
    {"split_mode": 9},
    {"rope_freq_base": float("nan")},
    {"tensor_split": [float("nan"), 1.0]},
    {"n_batch": 2**40},
]


@pytest.mark.parametrize("arguments", REFUSED, ids=str)
def test_refused(arguments: dict[str, Any], folder: Path) -> None:
    def place(value: Any) -> Any:
        if isinstance(value, SimpleNamespace):
            return SimpleNamespace(clip_model_path=place(value.clip_model_path))
        return str(folder / value[1:]) if isinstance(value, str) and value.startswith("@") else value

    with pytest.raises(EagleError):
        text(folder, **{name: place(value) for name, value in arguments.items()})


def test_a_vocabulary_alone_is_checked(folder: Path) -> None:
    whole = (folder / "target.gguf").read_bytes()
    with EagleLlama(str(folder / "target.gguf"), vocab_only=True, **OPTIONS) as llm:
        assert llm.tokenize(b"abc") == [97, 98, 99]
    damaged = folder / "damaged.gguf"
    at = whole.index(b"tokenizer.ggml.token_type") + len("tokenizer.ggml.token_type")
    damaged.write_bytes(whole[: at + 4] + struct.pack("<I", 4) + whole[at + 8 :])
    with pytest.raises(EagleError, match="token_type is u32"):
        EagleLlama(str(damaged), vocab_only=True, **OPTIONS)


@pytest.fixture(scope="module", params=["qwen3vl", "qwen35"])
def encoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    files = make_vision_files(request.param, tmp_path_factory.mktemp(request.param), mtp=request.param == "qwen35")
    return files.target, files.mmproj


def test_every_key_and_tensor_of_an_encoder_counts(encoder: tuple[Path, Path], tmp_path: Path) -> None:
    """A number of another type, or of a value that cannot be, and a tensor of another shape are refused."""
    path, (target, mmproj) = tmp_path / "mmproj.gguf", encoder
    header = read_model(target)[0]
    require_encoder(mmproj, header)
    names = [(name, kind) for name, kind, _ in read(mmproj).keys if name.startswith(b"clip.vision.") and kind == 4]
    assert len(names) > 5
    for name, _ in names:
        for kind, value in ((4, struct.pack("<I", 0)), (4, struct.pack("<I", 2**32 - 1)), (5, struct.pack("<i", 2))):
            file = read(mmproj)
            file.keys = [(n, kind, value) if n == name else (n, k, v) for n, k, v in file.keys]
            path.write_bytes(file.encode())
            with pytest.raises(EagleError):
                require_encoder(path, header)
    for at in range(len(read(mmproj).tensors)):
        file = read(mmproj)
        file.tensors[at].dims[0] //= 2
        path.write_bytes(file.encode())
        with pytest.raises(EagleError):
            require_encoder(path, header)
