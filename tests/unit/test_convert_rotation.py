"""Rotary settings and block kinds of a target equal those that transformers computes from the same configuration."""

from __future__ import annotations

from typing import Any

import pytest
from fixtures.targets import FAMILIES
from llama_eagle.convert.rope import draft_rope, target_sections
from llama_eagle.convert.source.config import Fields
from llama_eagle.convert.targets.config import ModelConfig
from llama_eagle.convert.targets.conversion import CONVERSIONS
from llama_eagle.errors import ConfigError
from transformers import LlamaConfig, Qwen3_5TextConfig, Qwen3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5TextRotaryEmbedding

torch = pytest.importorskip("torch")
LENGTH = "original_max_position_embeddings"


def keys_of(family: str, **changed: Any) -> dict[str, Any]:
    """The GGUF keys of a tiny model with a changed config.json."""
    _, name, _, fields, _ = FAMILIES[family]
    config = ModelConfig({**fields, **changed, "architectures": [name]}, "folder")
    found = CONVERSIONS[name]
    return found.keys(config, found.dims(config))


# --- YaRN and llama3 ---------------------------------------------------------------------------------------------

YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0}
LENGTHS: dict[str, dict[str, Any]] = {
    "inside": {"rope_parameters": {**YARN, LENGTH: 1024}},
    "next to it": {"rope_parameters": YARN, LENGTH: 512},
    "both": {"rope_parameters": {**YARN, LENGTH: 1024}, LENGTH: 512},
    "none": {"rope_parameters": YARN},
    "null factor": {"rope_parameters": {**YARN, "factor": None, LENGTH: 1024}},
    "null factor, both": {"rope_parameters": {**YARN, "factor": None, LENGTH: 1024}, LENGTH: 512},
    "old name, both": {"rope_scaling": {**YARN, LENGTH: 1024}, LENGTH: 512},
    "null next to it": {"rope_parameters": {**YARN, LENGTH: 1024}, LENGTH: None},
}


@pytest.mark.parametrize("case", LENGTHS)
def test_yarn_has_the_length_and_the_factor_of_transformers(case: str) -> None:
    changed = {name: value for name, value in LENGTHS[case].items() if value is not None}
    config = Qwen3Config(**{**FAMILIES["qwen3"][3], "rope_parameters": None, **changed})
    frequencies, magnitude = ROPE_INIT_FUNCTIONS["yarn"](config, "cpu")
    found = keys_of("qwen3", **{"rope_parameters": None, **LENGTHS[case]})
    assert found["rope.scaling.original_context_length"] == config.rope_parameters[LENGTH]
    slowest = 1e6 ** (-(config.head_dim - 2) / config.head_dim)  # divided by the whole factor
    assert found["rope.scaling.factor"] == pytest.approx(slowest / float(frequencies[-1]), rel=1e-5)
    assert found.get("rope.scaling.attn_factor", 1.0) == 1.0
    assert magnitude == pytest.approx(1 + 0.1 * torch.log(torch.tensor(found["rope.scaling.factor"])).item())


@pytest.mark.parametrize("fields", [{"beta_fast": 16}, {"beta_slow": 2.0}, {"truncate": False}])
def test_what_llama_cpp_ignores_of_yarn_is_refused(fields: dict[str, Any]) -> None:
    usual = {"beta_fast": 32, "beta_slow": 1, "truncate": None}
    keys_of("qwen3", rope_parameters={**YARN, LENGTH: 1024, **usual})
    with pytest.raises(ConfigError, match=f"{next(iter(fields))} is "):
        keys_of("qwen3", rope_parameters={**YARN, LENGTH: 1024, **usual, **fields})


def test_a_missing_factor_is_refused() -> None:
    with pytest.raises(ConfigError, match="factor is missing"):
        keys_of("qwen3", rope_parameters={"rope_type": "yarn", "rope_theta": 1e6, LENGTH: 1024})


@pytest.mark.parametrize("base", [10.0, 1e4])
@pytest.mark.parametrize("betas", [{"truncate": False}, {"beta_fast": 8.0, "beta_slow": 2.0}, {"beta_slow": 0.1}])
def test_the_factors_of_a_draft_with_other_betas_are_those_of_transformers(base: float, betas: dict[str, Any]) -> None:
    """With the low base, YaRN also stretches pairs beyond the last one."""
    rope = {"rope_type": "yarn", "rope_theta": base, "factor": 16.0, LENGTH: 256, **betas}
    expected, _ = ROPE_INIT_FUNCTIONS["yarn"](LlamaConfig(head_dim=32, rope_parameters=rope), "cpu")
    factors = draft_rope(Fields({"rope_parameters": rope}), 32, 4096).factors
    plain = base ** -(torch.arange(0, 32, 2) / 32)
    torch.testing.assert_close(plain / torch.from_numpy(factors), expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("outer", [None, 512])
def test_llama3_factors_are_those_of_transformers(outer: int | None) -> None:
    fields = {**FAMILIES["llama3"][3], **({LENGTH: outer} if outer else {})}
    config = LlamaConfig(**fields)
    expected, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    family = CONVERSIONS["LlamaForCausalLM"]
    model = ModelConfig({**FAMILIES["llama3"][3], **({LENGTH: outer} if outer else {})}, "folder")
    factors = torch.from_numpy(family.extra(model, family.dims(model))["rope_freqs.weight"])
    plain = 5e5 ** -(torch.arange(0, 32, 2) / 32)
    torch.testing.assert_close(plain / factors, expected, rtol=1e-5, atol=0)


# --- kinds of blocks ---------------------------------------------------------------------------------------------

L, F = "linear_attention", "full_attention"


@pytest.mark.parametrize(
    "types, stated, interval",
    [
        ([L, F] * 4, None, 2), ([L, L, L, F] * 2, None, 4), ([L] * 7 + [F], None, 8), ([L] * 8, 16, 16),
        ([L, F] * 4, 4, 2), ([F] * 8, None, 1), ([L, L, F, L, F, L, L, F], None, None), ([F, L] * 4, 4, None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("family", ["qwen35-text", "qwen3next"])
def test_the_interval_is_that_of_the_blocks(
    family: str, types: list[str], stated: int | None, interval: int | None
) -> None:
    found = keys_of(family, layer_types=types, full_attention_interval=stated)
    assert found["attention.recurrent_layers"] == [kind == L for kind in types]
    assert found.get("full_attention_interval") == interval


# --- M-RoPE ------------------------------------------------------------------------------------------------------


def parts_of_transformers(sections: list[int], head: int, part: float) -> list[int]:
    """The part of a position (0: time, 1: height, 2: width) that rotates each pair."""
    rope = {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": part, "mrope_section": sections}
    config = Qwen3_5TextConfig(**{**FAMILIES["qwen35-text"][3], "head_dim": head, "rope_parameters": rope})
    module = Qwen3_5TextRotaryEmbedding(config)
    one = torch.eye(3, dtype=torch.long).reshape(3, 3, 1)  # part, sample, position
    sines = module(torch.zeros(1), one)[1][:, 0, : len(module.inv_freq)]
    return (sines != 0).float().argmax(0).tolist()


def parts_of_llama_cpp(sections: list[int], n_pairs: int) -> list[int]:
    """ggml_mrope_cache_init, for interleaved sections."""
    total, found = sum(sections), []
    for pair in range(n_pairs):
        sector = pair % total
        if sector % 3 == 1 and sector < 3 * sections[1]:
            found.append(1)
        elif sector % 3 == 2 and sector < 3 * sections[2]:
            found.append(2)
        elif sector % 3 == 0 and sector < 3 * sections[0]:
            found.append(0)
        else:
            found.append(3)
    return found


@pytest.mark.parametrize("n_rot", [2, 4, 6, 8, 12, 16, 30, 32, 64, 128])
@pytest.mark.parametrize("stated", [[11, 11, 10], [3, 3, 2], [24, 20, 20], [1, 1, 1], [0, 40, 40], [8, 2, 2]])
def test_sections_give_each_pair_to_the_part_of_transformers(stated: list[int], n_rot: int) -> None:
    expected = parts_of_transformers(stated, n_rot, 1.0)
    params = Fields({"mrope_section": stated}, "config.json")
    try:
        written = target_sections(params, n_rot)
    except ConfigError as error:
        assert "mrope_section" in str(error)
        rest = [len(expected) - stated[1] - stated[2], *stated[1:], 0]
        assert parts_of_llama_cpp(rest, n_rot // 2) != expected
        return
    found = parts_of_llama_cpp(written, n_rot // 2)
    if (stated, n_rot) == ([24, 20, 20], 128):  # Qwen3-VL, as llama.cpp runs it
        found[61:63] = [0, 0]
    assert found == expected
    assert sum(written) == n_rot // 2


def test_long_default_sections_are_cut_to_the_rotated_pairs() -> None:
    rope = {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25}
    assert keys_of("qwen35-text", head_dim=16, rope_parameters=rope)["rope.dimension_sections"] == [1, 1, 0, 0]
    assert keys_of("qwen35-text", head_dim=128, rope_parameters=rope)["rope.dimension_sections"] == [6, 5, 5, 0]
