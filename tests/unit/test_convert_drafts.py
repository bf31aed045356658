"""Draft conversion: what upstream's converter gets wrong, what is refused and why, files, overrides, metadata."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from fixtures.eagle3_checkpoints import (
    CASES,
    GEMMA,
    LLAMA3,
    PEAGLE,
    YARN,
    DraftSpec,
    draft_tensors,
    make_draft,
    make_target_gguf,
)
from llama_eagle.convert.drafts import DraftOptions, DraftReport, convert_draft, is_draft, layers
from llama_eagle.convert.export import export_draft
from llama_eagle.convert.source import open_checkpoint
from llama_eagle.errors import ConfigError, ConversionError, EagleError, UsageError
from safetensors.torch import load_file, save_file


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return make_target_gguf(tmp_path / "target.gguf")


class Converted:
    """A converted file read back by the gguf package."""

    def __init__(self, folder: Path, target: Path, **options: Any) -> None:
        self.path = folder.parent / "out.gguf"
        self.report: DraftReport = convert_draft(folder, target, self.path, DraftOptions(**options))
        reader = gguf.GGUFReader(self.path)
        self.keys = {name: field.contents() for name, field in reader.fields.items()}
        self.types = {t.name: t.tensor_type.name for t in reader.tensors}
        self.tensors = {t.name: t.data for t in reader.tensors}


def convert(tmp_path: Path, target: Path, spec: DraftSpec, **options: Any) -> Converted:
    return Converted(make_draft(tmp_path / "draft", spec), target, **options)


def edit(folder: Path, **changes: Any) -> None:
    """Changes keys of config.json; None removes one."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in config.items() if value is not None}))


def change_tensors(folder: Path, **changes: torch.Tensor | None) -> None:
    """Replaces tensors of model.safetensors ("__" stands for "."); None removes one."""
    path = folder / "model.safetensors"
    tensors = load_file(path) | {name.replace("__", "."): value for name, value in changes.items()}
    save_file({name: value for name, value in tensors.items() if value is not None}, path)


# --- known defects of llama.cpp's converter ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["safeailab", "modelopt-full-vocabulary", "speculators-two-layers"])
def test_detected_without_draft_vocab_size_or_with_more_layers(name: str, tmp_path: Path) -> None:
    folder = make_draft(tmp_path / "draft", CASES[name])
    edit(folder, draft_vocab_size=None)
    assert is_draft(open_checkpoint(folder))


def test_nested_eagle_config_is_read_and_outputs_are_shifted(tmp_path: Path, target: Path) -> None:
    done = convert(tmp_path, target, DraftSpec(ids_nested=(1, 3, 5)))
    assert done.keys["eagle3.target_layers"] == [2, 4, 6]
    assert done.keys["eagle3.target_layers_source"] == "the first id is 1: outputs"


@pytest.mark.parametrize("place", ["top", "eagle_config"])
def test_norm_output_is_kept(place: str, tmp_path: Path, target: Path) -> None:
    folder = make_draft(tmp_path / "draft", DraftSpec())
    edit(folder, **({"norm_output": True} if place == "top" else {place: {"return_hidden_post_norm": True}}))
    done = Converted(folder, target)
    assert done.keys["eagle3.norm_output"] is True
    assert "extended" in done.tensors


def test_logit_scale_is_folded_into_the_head(tmp_path: Path, target: Path) -> None:
    spec = DraftSpec(config={"logit_scale": 0.25})
    done = convert(tmp_path, target, spec, outtype="f32")
    expected = draft_tensors(spec)["lm_head.weight"].float().numpy() * 0.25
    np.testing.assert_array_equal(done.tensors["output.weight"], expected)


def test_hidden_act_is_not_ignored(tmp_path: Path, target: Path) -> None:
    with pytest.raises(ConversionError, match="gelu"):
        convert(tmp_path, target, DraftSpec(config={"hidden_act": "gelu"}))


def test_fc_norms_and_head_norms_are_mapped(tmp_path: Path, target: Path) -> None:
    done = convert(tmp_path, target, DraftSpec(fc_norm=True, qk_norm=True))
    assert {"fc_norm.0.weight", "fc_norm.2.weight", "blk.0.attn_q_norm.weight"} <= set(done.tensors)


@pytest.mark.parametrize(
    "architecture",
    ["Eagle3Qwen3ForCausalLM", "Eagle3Qwen2_5vlForCausalLM", "Eagle3MiniMaxM2ForCausalLM", "EAGLE3LlamaForCausalLM",
     "Eagle3DeepseekV2ForCausalLM", "LlamaForCausalLM", "SomethingNew"],
)  # fmt: skip
def test_any_architecture_name_of_a_llama_shaped_draft(architecture: str, tmp_path: Path, target: Path) -> None:
    done = convert(tmp_path, target, DraftSpec(config={"architectures": [architecture]}))
    assert f"architecture {architecture}" in done.report.evidence


def test_a_configuration_copied_from_the_target_does_not_mislead(tmp_path: Path, target: Path) -> None:
    convert(tmp_path, target, DraftSpec(config={"num_experts": 8, "kv_lora_rank": 512, "num_hidden_layers": 24}))


def test_prefixed_input_norm_and_d2t(tmp_path: Path, target: Path) -> None:
    folder = make_draft(tmp_path / "draft", CASES["nvidia-v3"], prefix="model.")
    done = Converted(folder, target)
    assert done.tensors["enc.output_norm.weight"].shape == (192,)
    assert done.types["d2t"] == "I64"


@pytest.mark.parametrize("name", ["speculators", "speculators-old"])
def test_speculators_without_norm_before_residual_is_refused(name: str, tmp_path: Path, target: Path) -> None:
    spec = replace(CASES[name], norm_before_residual=None)
    with pytest.raises(ConfigError, match="--no-norm-before-residual"):
        convert(tmp_path, target, spec)
    for value in (True, False):
        assert convert(tmp_path, target, spec, norm_before_residual=value).keys["eagle3.norm_before_residual"] is value


def test_yarn_magnitude(tmp_path: Path, target: Path) -> None:
    done = convert(tmp_path, target, CASES["rope-yarn-mscale"])
    usual = 1 + 0.1 * np.log(16)
    magnitude = usual / (1 + 0.07 * np.log(16))
    assert done.keys["eagle3.rope.scaling.attn_factor"] == pytest.approx(magnitude / usual, rel=1e-6)
    assert done.keys["eagle3.rope.scaling.type"] == "yarn"


def test_rope_base_override(tmp_path: Path, target: Path) -> None:
    spec = replace(CASES["angelslim"], rope={"rope_type": "default", "rope_theta": 1e6})
    done = convert(tmp_path, target, spec)
    assert done.keys["eagle3.rope.freq_base"] == 1e6
    assert any("--rope-base 10000" in warning for warning in done.report.warnings)
    done = convert(tmp_path, target, spec, rope_base=10000.0)
    assert done.keys["eagle3.rope.freq_base"] == 1e4
    assert not any("--rope-base" in warning for warning in done.report.warnings)


def test_mrope_sections(tmp_path: Path, target: Path) -> None:
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [3, 3, 2]}
    done = convert(tmp_path, target, DraftSpec(rope=rope))
    assert done.keys["eagle3.rope.dimension_sections"] == [3, 3, 2, 0]
    assert "eagle3.rope.mrope_interleaved" not in done.keys
    done = convert(tmp_path, target, DraftSpec(rope={**rope, "mrope_interleaved": True}))
    assert done.keys["eagle3.rope.mrope_interleaved"] is True
    long = {**rope, "mrope_interleaved": True, "mrope_section": [24, 20, 20]}  # a target's, with larger heads
    assert convert(tmp_path, target, DraftSpec(rope=long)).keys["eagle3.rope.dimension_sections"] == [3, 3, 2, 0]
    for wrong in ([24, 20, 20], [3, 3], [0, 0, 0], [3, 3, -1], [3, 3, 1.5], "3"):
        with pytest.raises(ConfigError, match="mrope_section"):
            convert(tmp_path, target, DraftSpec(rope={**rope, "mrope_section": wrong}))


# --- vocabulary map ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int64", "int32", "int16", "float32", "float64"])
def test_d2t_becomes_absolute_ids(dtype: str, tmp_path: Path, target: Path) -> None:
    spec = DraftSpec(sorted_d2t=False, d2t_dtype=dtype)
    done = convert(tmp_path, target, spec)
    offsets = draft_tensors(spec)["d2t"].numpy()
    np.testing.assert_array_equal(done.tensors["d2t"], offsets + np.arange(len(offsets)))
    assert done.types["d2t"] == "I64"


def test_absolute_d2t_needs_the_flag(tmp_path: Path, target: Path) -> None:
    folder = make_draft(tmp_path / "draft", DraftSpec())
    ids = draft_tensors(DraftSpec())["d2t"] + torch.arange(160)
    change_tensors(folder, d2t=ids)
    with pytest.raises(ConversionError, match="--absolute-d2t"):
        Converted(folder, target)
    np.testing.assert_array_equal(Converted(folder, target, absolute_d2t=True).tensors["d2t"], ids.numpy())


def test_the_map_of_a_full_vocabulary_is_dropped_if_it_is_the_identity(tmp_path: Path, target: Path) -> None:
    folder = make_draft(tmp_path / "draft", DraftSpec(n_draft=512))
    change_tensors(folder, d2t=torch.zeros(512, dtype=torch.int64))
    done = Converted(folder, target)
    assert "d2t" not in done.tensors
    assert [row.note for row in done.report.tensors if row.source == "d2t"] == ["the identity"]
    ids = torch.arange(512).flip(0)
    change_tensors(folder, d2t=ids - torch.arange(512))
    np.testing.assert_array_equal(Converted(folder, target).tensors["d2t"], ids.numpy())


def _offsets(change: Any) -> torch.Tensor:
    ids = draft_tensors(DraftSpec())["d2t"] + torch.arange(160)
    return change(ids) - torch.arange(160)


BAD_MAPS = {
    "all zeros": (torch.zeros(160, dtype=torch.int64), "never filled"),
    "a duplicate": (_offsets(lambda ids: torch.cat([ids[:1], ids[:-1]])), "twice"),
    "out of range": (_offsets(lambda ids: ids + 400), "outside the vocabulary"),
    "negative": (_offsets(lambda ids: ids - 200), "outside the vocabulary"),
    "overflow": (torch.full((160,), 2**62), "beyond any vocabulary"),
    "fractions": (torch.linspace(0, 1, 160), "not integers"),
    "NaN": (torch.full((160,), float("nan")), "not integers"),
    "half floats": (torch.ones(160, dtype=torch.float16), "expected integers"),
    "other tokens than t2d": (_offsets(lambda ids: (ids + 1) % 512), "disagrees with t2d"),
    "too short": (_offsets(lambda ids: ids)[:-1], "draft_vocab_size"),
}


@pytest.mark.parametrize("fault", BAD_MAPS)
def test_bad_vocabulary_maps(fault: str, tmp_path: Path, target: Path) -> None:
    tensor, message = BAD_MAPS[fault]
    folder = make_draft(tmp_path / "draft", DraftSpec())
    change_tensors(folder, d2t=tensor.contiguous())
    with pytest.raises((ConversionError, ConfigError), match=message):
        Converted(folder, target)
    assert not (tmp_path / "out.gguf").exists()


# --- refusals ----------------------------------------------------------------------------------------------------

NORM, MASK = torch.ones(64), torch.ones(1, 1, 192)
PARALLEL = {"parallel_drafting": True, "mask_token_id": 7}
REFUSED: dict[str, tuple[dict[str, Any], dict[str, torch.Tensor | None], str]] = {
    "MLA": ({"kv_lora_rank": 512}, {"midlayer__self_attn__k_proj__weight": None}, "MLA"),
    "MLA tensors": ({}, {"midlayer__self_attn__kv_b_proj__weight": NORM}, "MLA"),
    "MoE": ({"num_experts": 8}, {"midlayer__mlp__gate_proj__weight": None}, "mixture of experts"),
    "MoE tensors": ({}, {"midlayer__mlp__experts__0__up_proj__weight": NORM}, "mixture of experts"),
    "P-EAGLE without a mask token": ({}, {"mask_hidden": MASK}, "mask token of this P-EAGLE draft is None, expected"),
    "P-EAGLE with a large mask token": (
        {**PARALLEL, "mask_token_id": 512},
        {"mask_hidden": MASK},
        "512, expected an id b",
    ),
    "P-EAGLE with two mask tokens": ({**PARALLEL, "pard_token": 1}, {"mask_hidden": MASK}, "mask tokens differ"),
    "P-EAGLE without states for masks": (PARALLEL, {}, "there is no mask_hidden"),
    "P-EAGLE with narrow states": (PARALLEL, {"mask_hidden": torch.ones(1, 1, 64)}, "mask_hidden has shape"),
    "P-EAGLE with many depths": ({**PARALLEL, "num_depths": 65}, {"mask_hidden": MASK}, "expected 1 to 64"),
    "no aux states": ({"eagle_config": {"use_aux_hidden_state": False}}, {}, "last hidden state"),
    "MTP": ({}, {"eh_proj__weight": NORM}, "eh_proj"),
    "parallel heads": ({}, {"parallel_draft_heads__0__weight": NORM}, "parallel"),
    "parallel steps": ({"eagle_config": {"parallel_draft_step": 4}}, {}, "parallel"),
    "quantized": ({}, {"midlayer__mlp__up_proj__weight_scale": NORM}, "quantized"),
    "FP8": ({}, {"midlayer__mlp__up_proj__weight": torch.ones(96, 64).to(torch.float8_e4m3fn)}, "dequantize"),
    "MLP bias": ({}, {"midlayer__mlp__up_proj__bias": NORM}, "biases"),
    "sinks": ({}, {"midlayer__self_attn__sinks": NORM}, "sinks"),
    "Gemma's block": ({}, {"midlayer__pre_feedforward_layernorm__weight": NORM}, "its block is Gemma's"),
    "other speculator": ({"speculators_model_type": "medusa"}, {}, "medusa"),
    "EAGLE-1": ({}, {"midlayer__hidden_norm__weight": None}, "EAGLE-2"),
    "not a draft": ({}, {"fc__weight": None}, "not an EAGLE-3 draft"),
    "unknown tensor": ({}, {"surprise__weight": NORM}, "--force"),
    "missing tensor": ({}, {"midlayer__mlp__down_proj__weight": None}, "missing: layers.0.mlp.down_proj.weight"),
    "wrong shape": ({}, {"midlayer__mlp__down_proj__weight": torch.ones(64, 95)}, "shape"),
    "wrong dtype": ({}, {"norm__weight": torch.ones(64, dtype=torch.int32)}, "I32"),
    "infinity": ({}, {"norm__weight": torch.full((64,), float("inf"))}, "infinities or NaNs"),
    "too large for F32": ({}, {"fc__weight": torch.full((64, 192), 1e300, dtype=torch.float64)}, "infinities or NaNs"),
    "NaN in BF16": ({}, {"lm_head__weight": torch.full((160, 64), float("nan")).bfloat16()}, "infinities or NaNs"),
    "lonely head norm": ({}, {"midlayer__self_attn__q_norm__weight": torch.ones(16)}, "k_norm"),
    "no head for a small vocabulary": ({}, {"lm_head__weight": None}, "--share-head"),
    "norm_before_fc without weights": ({"norm_before_fc": True}, {}, "norm_before_fc"),
    "weights against norm_before_fc": ({"norm_before_fc": False}, {"input_norm__weight": torch.ones(192)}, "stored"),
    "attention_bias without biases": ({"attention_bias": True}, {}, "attention_bias"),
    "other hidden size": ({"target_hidden_size": 128}, {}, "--target"),
    "other vocabulary": ({"vocab_size": 513}, {}, "--force"),
    "conflicting flags": ({"norm_output": True, "eagle_config": {"norm_output": False}}, {}, "norm_output"),
    "conflicting ids": (
        {
            "eagle_aux_hidden_state_layer_ids": [2, 4, 5],
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]},
        },
        {},
        "--aux-layers",
    ),
    "unknown rope": ({"rope_scaling": {"rope_type": "longrope", "factor": 2}}, {}, "longrope"),
    "llama3 without fields": ({"rope_scaling": {"rope_type": "llama3", "factor": 2}}, {}, "low_freq_factor"),
    "odd heads": ({"num_key_value_heads": 3}, {}, "key-value heads"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_a_reason(case: str, tmp_path: Path, target: Path) -> None:
    config, tensors, message = REFUSED[case]
    folder = make_draft(tmp_path / "draft", DraftSpec())
    edit(folder, **config)
    change_tensors(folder, **tensors)
    with pytest.raises((ConversionError, ConfigError), match=message) as caught:
        Converted(folder, target)
    assert "\n" not in str(caught.value)
    assert {path.name for path in tmp_path.iterdir()} == {"draft", "target.gguf"}


@pytest.mark.parametrize("name", PEAGLE)
def test_p_eagle(name: str, tmp_path: Path, target: Path) -> None:
    spec = PEAGLE[name]
    found = convert(tmp_path, target, spec)
    assert found.report.layout == "extended" and "mask rows of P-EAGLE" in found.report.extended_because
    assert found.keys["eagle3.block_size"] == spec.config.get("num_depths", 8)
    assert found.keys["tokenizer.ggml.mask_token_id"] == 17
    stored = load_file(tmp_path / "draft/model.safetensors")["mask_hidden"].flatten()
    assert found.types["fc.mask"] == "F32" and np.array_equal(found.tensors["fc.mask"], stored.float().numpy())
    with pytest.raises(ConversionError, match="a P-EAGLE draft"):
        export_draft(found.path, target, tmp_path / "out", "speculators")


def test_p_eagle_as_vllm_names_it(tmp_path: Path, target: Path) -> None:
    """Its tensors show what it is; the number of tokens of a pass is that of speculators if none is stated."""
    folder = make_draft(tmp_path / "draft", DraftSpec(mask_token=17))
    edit(folder, ptd_token_id=9, parallel_drafting=True)
    found = Converted(folder, target)
    assert found.keys["tokenizer.ggml.mask_token_id"] == 9 and found.keys["eagle3.block_size"] == 8
    assert "states no num_depths" in " ".join(found.report.warnings)


def test_nemo_stores_no_layers(tmp_path: Path, target: Path) -> None:
    folder = make_draft(tmp_path / "draft", DraftSpec(config={"architectures": ["LlamaEagle3DraftModel"]}))
    for layers_given, n_warnings in ((None, 1), ((1, 4, 6), 0)):
        report = Converted(folder, target, aux_layers=layers_given).report
        assert report.producer == "NeMo"
        assert len([w for w in report.warnings if "NeMo stores no layer ids" in w]) == n_warnings


def test_the_last_state_needs_a_target_that_publishes_it(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_draft(tmp_path / "draft", DraftSpec())
    edit(folder, eagle_aux_hidden_state_layer_ids=[2, 4, 8])
    Converted(folder, target)
    monkeypatch.setattr(layers, "LAST_BOUNDARY_TARGETS", frozenset())
    with pytest.raises(
        ConversionError, match="after the last block, which is computed for output rows alone in qwen35"
    ):
        Converted(folder, target)


GEMMA_REFUSED: dict[str, tuple[dict[str, Any], dict[str, torch.Tensor | None], str]] = {
    "activation": ({"hidden_activation": "silu"}, {}, "activation is 'silu', not gelu_pytorch_tanh"),
    "several blocks": ({}, {"layers__1__hidden_norm__weight": NORM}, "several of Gemma's blocks"),
    "no norm of keys": ({}, {"layers__0__self_attn__k_norm__weight": None}, "k_norm.weight is missing"),
    "heads of another size": ({}, {"layers__0__self_attn__k_norm__weight": torch.ones(24)}, "not whole heads of 24"),
    **{
        f"rotation of {share}": (
            {"rope_parameters": {"rope_type": "proportional", "rope_theta": 1e4, "partial_rotary_factor": share}},
            {},
            f"partial_rotary_factor is {share}",
        )
        for share in (0, 1.5)
    },
}


@pytest.mark.parametrize("case", GEMMA_REFUSED)
def test_gemma_block_is_refused_with_a_reason(case: str, tmp_path: Path, target: Path) -> None:
    config, tensors, message = GEMMA_REFUSED[case]
    folder = make_draft(tmp_path / "draft", GEMMA["values"])
    edit(folder, **config)
    change_tensors(folder, **tensors)
    with pytest.raises((ConversionError, ConfigError), match=message):
        Converted(folder, target)


# --- outputs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize(("outtype", "kind"), [("f32", "F32"), ("f16", "F16"), ("bf16", "BF16"), ("q8_0", "Q8_0")])
def test_outtypes(outtype: str, kind: str, dtype: str, tmp_path: Path, target: Path) -> None:
    spec = DraftSpec(dtype=dtype)
    done = convert(tmp_path, target, spec, outtype=outtype)
    assert {done.types[name] for name in ("fc.weight", "output.weight", "blk.0.attn_q.weight")} == {kind}
    assert {done.types[name] for name in ("output_norm.weight", "blk.0.attn_norm.weight")} == {"F32"}
    found = gguf.dequantize(done.tensors["fc.weight"], gguf.GGMLQuantizationType[kind])
    expected = draft_tensors(spec)["fc.weight"].float().numpy()
    np.testing.assert_allclose(found, expected, atol={"f32": 0, "f16": 2e-4, "bf16": 3e-3, "q8_0": 3e-3}[outtype])


@pytest.mark.parametrize(("dtype", "kind"), [("float32", "F32"), ("float16", "F16"), ("bfloat16", "BF16")])
def test_auto_keeps_the_stored_type(dtype: str, kind: str, tmp_path: Path, target: Path) -> None:
    done = convert(tmp_path, target, DraftSpec(dtype=dtype))
    assert done.types["fc.weight"] == kind


def test_rows_without_whole_blocks_fall_back(tmp_path: Path, target: Path) -> None:
    done = convert(tmp_path, target, DraftSpec(ffn=72), outtype="q8_0")
    assert done.types["blk.0.ffn_down.weight"] == "F16"
    assert any("blk.0.ffn_down.weight" in warning for warning in done.report.warnings)


def test_f16_overflow_is_an_error(tmp_path: Path, target: Path) -> None:
    folder = make_draft(tmp_path / "draft", DraftSpec())
    change_tensors(folder, fc__weight=torch.full((64, 192), 1e6).bfloat16())
    with pytest.raises(ConversionError, match="bf16"):
        Converted(folder, target, outtype="f16")


def test_share_head_takes_the_targets_rows(tmp_path: Path, target: Path) -> None:
    spec = DraftSpec(head=False, config={"logit_scale": 2.0})
    done = convert(tmp_path, target, spec, share_head=True, outtype="f32")
    head = next(t for t in gguf.GGUFReader(target).tensors if t.name == "output.weight")
    expected = gguf.dequantize(head.data, head.tensor_type)[done.tensors["d2t"]] * 2
    np.testing.assert_array_equal(done.tensors["output.weight"], expected)


def test_dry_run_writes_nothing_and_reports_the_same(tmp_path: Path, target: Path) -> None:
    folder = make_draft(tmp_path / "draft", CASES["everything"])
    planned = convert_draft(folder, target, tmp_path / "out.gguf", DraftOptions(dry_run=True))
    assert not (tmp_path / "out.gguf").exists()
    done = Converted(folder, target)
    assert planned.tensors == done.report.tensors
    assert planned.n_bytes == done.report.n_bytes
    json.dumps(done.report.to_json())


def test_every_tensor_is_accounted_for(tmp_path: Path, target: Path) -> None:
    done = convert(tmp_path, target, CASES["speculators"])
    assert {row.source for row in done.report.tensors} == set(draft_tensors(CASES["speculators"]))
    assert [(row.source, row.note) for row in done.report.tensors if row.gguf is None] == [("t2d", "only checks d2t")]


def test_force_drops_unknown_tensors(tmp_path: Path, target: Path) -> None:
    folder = make_draft(tmp_path / "draft", DraftSpec())
    change_tensors(folder, surprise__weight=NORM)
    done = Converted(folder, target, force=True)
    assert any("surprise.weight" in warning for warning in done.report.warnings)


def test_metadata(tmp_path: Path, target: Path) -> None:
    done = convert(tmp_path, target, CASES["rope-llama3"])
    keys = done.keys
    assert keys["general.architecture"] == "eagle3"
    assert (keys["eagle3.producer"], keys["llama_eagle.source"]) == ("SpecForge", "draft")
    assert (keys["eagle3.target_hidden_size"], keys["eagle3.vocab_size"], keys["eagle3.block_count"]) == (64, 512, 1)
    assert keys["tokenizer.ggml.tokens"][:2] == ["<0>", "<1>"]
    assert not any(str(tmp_path) in str(value) for value in keys.values())
    assert done.tensors["rope_freqs.weight"].shape == (8,)
    assert LLAMA3["rope_theta"] == keys["eagle3.rope.freq_base"]


def test_head_size_keys_only_where_needed(tmp_path: Path, target: Path) -> None:
    assert "eagle3.attention.key_length" not in convert(tmp_path, target, DraftSpec()).keys
    keys = convert(tmp_path / "b", target, DraftSpec(head_dim=40)).keys
    assert (keys["eagle3.attention.key_length"], keys["eagle3.attention.value_length"]) == (40, 40)


@pytest.mark.parametrize(
    ("name", "producer"),
    [("safeailab", "SafeAILab"), ("specforge", "SpecForge"), ("sglang-export", "SpecForge"), ("modelopt", "ModelOpt"),
     ("angelslim", "AngelSlim"), ("speculators", "speculators"), ("speculators-old", "speculators"),
     ("nvidia-v3", "NVIDIA"), ("qwen3-style", "unknown"), ("deepspec", "DeepSpec")],
)  # fmt: skip
def test_producers(name: str, producer: str, tmp_path: Path, target: Path) -> None:
    assert convert(tmp_path, target, CASES[name]).report.producer == producer


@pytest.mark.parametrize("ids", [{"ids_nested": None}, {"ids_top": None, "ids_nested": (1, 3, 4)}])
def test_nvidia_writes_layer_ids_twice(ids: dict[str, Any], tmp_path: Path, target: Path) -> None:
    spec = replace(CASES["nvidia-v3"], **ids)
    assert convert(tmp_path, target, spec).report.producer == "ModelOpt"


def test_layer_ids_of_deepspec_are_outputs(tmp_path: Path, target: Path) -> None:
    done = convert(tmp_path, target, CASES["deepspec"])
    assert done.keys["eagle3.target_layers"] == [1, 3, 4, 6, 7]
    assert done.report.layout == "extended"
    assert "5 aux features" in " ".join(done.report.extended_because)


def test_output_may_not_be_the_target(tmp_path: Path, target: Path) -> None:
    folder = make_draft(tmp_path / "draft", DraftSpec())
    before = target.read_bytes()
    with pytest.raises(UsageError):
        convert_draft(folder, target, target)
    assert target.read_bytes() == before


def test_a_draft_is_no_target(tmp_path: Path, target: Path) -> None:
    done = convert(tmp_path, target, DraftSpec())
    with pytest.raises(EagleError, match="not a target"):
        convert_draft(tmp_path / "draft", done.path, tmp_path / "second.gguf")


def test_targets_are_no_drafts(tmp_path: Path) -> None:
    save_file({"model.embed_tokens.weight": torch.ones(4, 4)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    assert not is_draft(open_checkpoint(tmp_path))


def test_yarn_with_other_betas_becomes_factors(tmp_path: Path, target: Path) -> None:
    done = convert(tmp_path, target, DraftSpec(rope={**YARN, "truncate": False}))
    assert done.keys["eagle3.rope.scaling.type"] == "none"
    assert done.keys["eagle3.rope.scaling.attn_factor"] == pytest.approx(1 + 0.1 * np.log(16))
    assert done.report.layout == "stock"
