"""Adapters, control vectors and replaced keys, checked against the model that they change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fixtures.adapters import BASE, PAIR, RANK, write_adapter, write_control_vector
from fixtures.tiny_gguf import HIDDEN, N_VOCAB, write_draft, write_target
from llama_eagle.errors import EagleError, IncompatibleModels, InputError, UsageError
from llama_eagle.gguf.header import Header, read_model
from llama_eagle.gguf.validate.adapters import require_adapter, require_control_vector
from llama_eagle.gguf.validate.overrides import with_overrides
from llama_eagle.serving.llama_server.extra_args import changed_models, refuse_unchecked


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Header]:
    return read_model(write_target(tmp_path_factory.mktemp("adapters") / "target.gguf"))[1]


def test_a_sound_adapter(files: list[Header], tmp_path: Path) -> None:
    embedding = {"token_embd.weight.lora_a": (N_VOCAB, RANK), "token_embd.weight.lora_b": (HIDDEN, RANK)}
    require_adapter(write_adapter(tmp_path / "lora.gguf", {**PAIR, **embedding}), files)


ADAPTERS: dict[str, tuple[dict[str, Any], str]] = {
    "no tensors": ({"shapes": {}}, "contains no tensors"),
    "another architecture": ({"arch": "llama"}, "for a llama model, this is qwen35"),
    "another kind": ({"kind": "ia3"}, "adapter.type is 'ia3'"),
    "alpha that is no number": ({"alpha": float("nan")}, "adapter.lora.alpha is nan"),
    "one half": ({"shapes": {f"{BASE}.lora_a": (RANK, HIDDEN)}}, "the pair of output.weight.lora_a is missing"),
    "a norm": (
        {"shapes": {**PAIR, "blk.0.attn_norm.weight": (HIDDEN,)}},
        "attn_norm.weight ends in .* llama.cpp skips it",
    ),
    "activated": ({"invocation": [1, 2]}, r"an activated LoRA \(aLoRA\).* Use the model without it"),
    "another ending": ({"shapes": {**PAIR, "output.weight.lora_c": (1, 1)}}, "ends in neither"),
    "a tensor that is not there": (
        {"shapes": {"blk.9.attn_q.weight.lora_a": (1, 1), "blk.9.attn_q.weight.lora_b": (1, 1)}},
        "no tensor blk.9.attn_q.weight",
    ),
    "another width": (
        {"shapes": {**PAIR, f"{BASE}.lora_a": (RANK, 2 * HIDDEN)}},
        r"lora_a has shape \[128, 2\], expected \[64, 2\]",
    ),
    "another vocabulary": (
        {"shapes": {**PAIR, f"{BASE}.lora_b": (N_VOCAB - 1, RANK)}},
        r"lora_b has shape \[2, 271\], expected \[2, 272\]",
    ),
    "two ranks": ({"shapes": {**PAIR, f"{BASE}.lora_a": (RANK + 1, HIDDEN)}}, "lora_a has shape"),
    "embeddings of another rank": (
        {"shapes": {"token_embd.weight.lora_a": (N_VOCAB, 2), "token_embd.weight.lora_b": (HIDDEN, 3)}},
        "lora_a has shape",
    ),
    "a third dimension": (
        {"shapes": {f"{BASE}.lora_a": (2, RANK, HIDDEN), f"{BASE}.lora_b": (2, N_VOCAB, RANK)}},
        "has shape",
    ),
}


@pytest.mark.parametrize("fault", ADAPTERS)
def test_adapters_that_do_not_fit(fault: str, files: list[Header], tmp_path: Path) -> None:
    arguments, message = ADAPTERS[fault]
    with pytest.raises((InputError, IncompatibleModels), match=message):
        require_adapter(write_adapter(tmp_path / "lora.gguf", **arguments), files)


def test_an_adapter_of_embeddings_that_are_the_head_too(files: list[Header], tmp_path: Path) -> None:
    """llama.cpp multiplies the halves in the wrong order there, and aborts."""
    path = write_adapter(
        tmp_path / "lora.gguf", {"token_embd.weight.lora_a": (N_VOCAB, 2), "token_embd.weight.lora_b": (HIDDEN, 2)}
    )
    del files[0].tensors[BASE]
    try:
        with pytest.raises(IncompatibleModels, match="output matrix"):
            require_adapter(path, files)
    finally:
        files[0] = read_model(files[0].path)[0]


VECTORS: dict[str, tuple[dict[str, tuple[int, ...]], str]] = {
    "none": ({}, "contains no tensors"),
    "another name": ({"output.weight": (HIDDEN,)}, "contains output.weight"),
    "no number": ({"direction.": (HIDDEN,)}, "contains direction."),
    "the first layer": ({"direction.0": (HIDDEN,)}, "a layer of 1 to 3"),
    "a layer beyond": ({"direction.1": (HIDDEN,), "direction.2147483647": (HIDDEN,)}, "direction.2147483647"),
    "another width": ({"direction.1": (HIDDEN + 1,)}, r"shape \[65\]"),
    "two dimensions": ({"direction.1": (HIDDEN, HIDDEN)}, r"shape \[64, 64\]"),
}


@pytest.mark.parametrize("fault", VECTORS)
def test_control_vectors(fault: str, files: list[Header], tmp_path: Path) -> None:
    shapes, message = VECTORS[fault]
    with pytest.raises((InputError, IncompatibleModels), match=message):
        require_control_vector(write_control_vector(tmp_path / "vector.gguf", shapes), files[0])
    require_control_vector(write_control_vector(tmp_path / "sound.gguf", {"direction.3": (HIDDEN,)}), files[0])


OVERRIDES: list[tuple[dict[Any, Any], str]] = [
    ({"qwen35.block_count": 1000}, "block_count is 1000, it must be in 1..512"),
    ({"qwen35.block_count": 5}, "the tensor blk.4"),
    ({"qwen35.expert_count": 10**6}, "expert_count is 1000000"),
    ({"qwen35.expert_used_count": 3}, "3 of 0 experts"),
    ({"qwen35.attention.head_count": 0}, "0 heads"),
    ({"qwen35.attention.head_count": -1}, "u32, which cannot hold -1"),
    ({"qwen35.embedding_length": 2**33}, "cannot hold 8589934592"),
    ({"qwen35.embedding_length": True}, "is u32, not bool"),
    ({"qwen35.rope.freq_base": 10000}, "is f32, not int"),
    ({"qwen35.rope.freq_base": float("inf")}, "finite float"),
    ({"qwen35.attention.causal": 1}, "attention.causal is u32, it must be bool"),
    ({"qwen35.rope.dimension_sections": 3}, "is an array"),
    ({"qwen35.pooling_type": 9}, "pooling_type is 9"),
    ({"general.architecture": "llama"}, "llama.context_length is missing"),
    ({"split.count": 3}, "cannot be replaced"),
    ({"": 3}, "cannot be replaced"),
    ({"x" * 128: 3}, "exceeds 127 bytes"),
    ({"general.name": "ä" * 64}, "exceeds 127 bytes"),
    ({"general.name": "a\0b"}, "contains a zero"),
    ({"general.name": None}, "give a bool, int"),
    ({3: 3}, "give a bool, int"),
]


@pytest.mark.parametrize(("overrides", "message"), OVERRIDES)
def test_overrides(overrides: dict[Any, Any], message: str, files: list[Header]) -> None:
    with pytest.raises(UsageError, match=message):
        with_overrides(files, overrides, "kv_overrides")


def test_overrides_that_are_right(files: list[Header]) -> None:
    given = {"qwen35.rope.freq_base": 5e5, "general.name": "ä" * 63, "tokenizer.ggml.add_bos_token": False}
    changed = with_overrides(files, given, "kv_overrides")
    assert all(changed[0].keys[key] == value for key, value in given.items())
    assert files[0].keys["qwen35.rope.freq_base"] == 10000
    assert with_overrides(files, None, "kv_overrides") is files


@pytest.mark.parametrize(
    "extra",
    [
        ["-md", "x"], ["--model_draft", "x"], ["--spec-draft-model", "x"], ["-hf", "x"], ["--model-url=x"], ["-m", "x"],
        ["--ctx_size", "9"], ["--mmproj-url", "x"], ["--models-dir", "x"], ["-lcs", "x"], ["--gpt-oss-20b-default"],
    ],
)  # fmt: skip
def test_models_that_nobody_has_checked(extra: list[str]) -> None:
    with pytest.raises(UsageError, match=r"after -- would bypass our checks\. (Give|Draft) .* before --"):
        refuse_unchecked(extra)
    with pytest.raises(UsageError, match="LLAMA_ARG_SPEC_DRAFT_MODEL in the environment"):
        refuse_unchecked([], ["PATH", "LLAMA_ARG_SPEC_DRAFT_MODEL"])


def test_arguments_of_the_server(files: list[Header], tmp_path: Path) -> None:
    sound = write_adapter(tmp_path / "a,b.gguf")
    vector = write_control_vector(tmp_path / "vector.gguf", {"direction.2": (HIDDEN,)})
    draft = read_model(write_draft(tmp_path / "draft.gguf"))[1]
    extra = [
        "--lora", f'"{sound}"', "--control-vector-scaled", f"{vector}:0.5", "--temp", "0",
        "--override-kv", "qwen35.rope.freq_base=float:5e5,tokenizer.ggml.add_bos_token=bool:true",
    ]  # fmt: skip
    assert changed_models((), files, None) == (files, None)
    changed, beside = changed_models(extra, files, draft)
    assert changed[0].keys["qwen35.rope.freq_base"] == 5e5
    assert beside is not None and beside[0].keys["tokenizer.ggml.add_bos_token"] is True


@pytest.mark.parametrize(
    "extra",
    [
        ["--lora", "/none.gguf"], ["--lora", "@sound.gguf,/none.gguf"], ["--lora_scaled", "@sound.gguf:nan"],
        ["--lora-scaled", "@sound.gguf"], ["--control-vector", "@sound.gguf"], ["--control-vector-scaled", "/none:1"],
        ["--override-kv", "qwen35.block_count=int:1000"], ["--override-kv", "eagle3.block_count=int:1000"],
        ["--override-kv", "a=int:1.5"], ["--override-kv", "a=bool:yes"], ["--override-kv", "a"],
        ["--override-kv", "a=list:1"], ["--override-kv", "qwen35.context_length=int:99,qwen35.block_count=int:0"],
    ],
)  # fmt: skip
def test_arguments_of_the_server_that_are_refused(extra: list[str], files: list[Header], tmp_path: Path) -> None:
    write_adapter(tmp_path / "sound.gguf")
    draft = read_model(write_draft(tmp_path / "draft.gguf"))[1]
    with pytest.raises(EagleError, match=r"\.$"):
        changed_models([word.replace("@", f"{tmp_path}/") for word in extra], files, draft)
