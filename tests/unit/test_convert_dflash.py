"""DFlash, DFlash2 and DSpark drafts: what reaches the GGUF, and what is refused and why.

tests/parity/test_upstream_converter.py compares the files with those of llama.cpp's own converter.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from fixtures.dflash import CASES, OURS, DFlashSpec, dflash_tensors, make_dflash
from fixtures.eagle3_checkpoints import DraftSpec, make_draft, make_target_gguf
from llama_eagle.cli import run
from llama_eagle.convert.drafts import DraftOptions, convert_draft, is_draft, layers
from llama_eagle.convert.source import open_checkpoint
from llama_eagle.errors import EagleError, UsageError
from safetensors.torch import load_file, save_file


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return make_target_gguf(tmp_path / "target.gguf")


def convert(tmp_path: Path, target: Path, spec: DFlashSpec, **options: Any) -> gguf.GGUFReader:
    folder = make_dflash(tmp_path / "draft", spec)
    convert_draft(folder, target, tmp_path / "out.gguf", DraftOptions(**options))
    return gguf.GGUFReader(tmp_path / "out.gguf")


@pytest.mark.parametrize("case", [*CASES, *OURS])
def test_every_stored_value_reaches_the_file(case: str, tmp_path: Path, target: Path) -> None:
    """Compared as bags of numbers: names and order of rows are the parity test's."""
    spec = replace({**CASES, **OURS}[case], dtype="float32")
    reader = convert(tmp_path, target, spec, outtype="f32")
    stored = {name: t for name, t in dflash_tensors(spec).items() if name not in ("d2t", "t2d")}
    if spec.top.get("has_embed_tokens") is False:
        del stored["embed_tokens.weight"]
    if spec.kind == "dspark" and spec.n_draft == 512:
        stored.pop("lm_head.weight", None)
    if not spec.markov:
        del stored["confidence_head.proj.weight"], stored["confidence_head.proj.bias"]
    found = [t.data for t in reader.tensors if t.name not in ("d2t", "rope_freqs.weight")]
    assert len(found) == len(stored)
    for a, b in ((found, [t.numpy() for t in stored.values()]),):
        sums = [sorted(float(np.sort(x.reshape(-1)).astype(np.float64).sum()) for x in each) for each in (a, b)]
        assert sums[0] == sums[1]


def test_the_map_of_a_small_vocabulary_holds_ids(tmp_path: Path, target: Path) -> None:
    spec = CASES["dspark-speculators"]
    reader = convert(tmp_path, target, spec)
    found = next(t for t in reader.tensors if t.name == "d2t")
    np.testing.assert_array_equal(found.data, dflash_tensors(spec)["d2t"].numpy() + np.arange(160))
    assert found.tensor_type == gguf.GGMLQuantizationType.I64


@pytest.mark.parametrize("kind", ["dflash", "dflash2", "dspark"])
def test_the_format_of_speculators_means_the_same_network(kind: str, tmp_path: Path, target: Path) -> None:
    """Upstream's converter reads that format for DSpark only; ids count boundaries there, outputs elsewhere."""
    files = []
    for speculators in (False, True):
        top = {"sample_from_anchor": False} if kind == "dspark" else {}
        reader = convert(tmp_path, target, DFlashSpec(kind, speculators=speculators, top=top))
        keys = {name: field.contents() for name, field in reader.fields.items()}
        files.append((keys, {t.name: t.data.tobytes() for t in reader.tensors}))
    assert files[0] == files[1]
    assert files[0][0]["dflash.target_layers"] == [2, 5, 7]


@pytest.mark.parametrize("speculators", [False, True])
@pytest.mark.parametrize("kind", ["dflash", "dflash2", "dspark"])
def test_detected(kind: str, speculators: bool, tmp_path: Path) -> None:
    assert is_draft(open_checkpoint(make_dflash(tmp_path, DFlashSpec(kind, speculators=speculators))))


KINDS = ["sliding_attention", "full_attention", "sliding_attention"]
WINDOWS: dict[str, tuple[DFlashSpec, dict[str, Any]]] = {
    "the kinds of speculators' layers": (
        DFlashSpec(speculators=True, extra={"sliding_window": 40, "layer_types": KINDS}),
        {"": 40, "_pattern": [True, False, True]},
    ),
    "switched off": (DFlashSpec(top={"sliding_window": 40, "layer_types": KINDS}), {}),
    "no size": (DFlashSpec(top={"use_sliding_window": True, "layer_types": KINDS}), {}),
}


@pytest.mark.parametrize("case", WINDOWS)
def test_windows(case: str, tmp_path: Path, target: Path) -> None:
    spec, expected = WINDOWS[case]
    fields, prefix = convert(tmp_path, target, spec).fields, "dflash.attention.sliding_window"
    assert {name.removeprefix(prefix): fields[name].contents() for name in fields if prefix in name} == expected


@pytest.mark.parametrize(("head", "n_rows"), [(0, 64), (31, 62), (32, 48)])
def test_rows_that_are_not_whole_heads_are_refused(head: int, n_rows: int, tmp_path: Path, target: Path) -> None:
    """The sizes of Gemma's heads are those of its tensors."""
    path = make_dflash(tmp_path / "draft", CASES["dspark-gemma"]) / "model.safetensors"
    changed = {"layers.0.self_attn.k_norm.weight": torch.ones(head)}
    changed["layers.0.self_attn.k_proj.weight"] = torch.ones(n_rows, 64)
    save_file(load_file(path) | changed, path)
    with pytest.raises(EagleError, match=f"has {n_rows} rows, which are not whole heads of {head},"):
        convert_draft(path.parent, target, tmp_path / "out.gguf")


REFUSED: dict[str, tuple[DFlashSpec, str]] = {
    "DeepSeek": (DFlashSpec(top={"architectures": ["DeepseekV4DSparkModel"]}), "convert_hf_to_gguf"),
    "Gemma's own values": (DFlashSpec("dspark", top={"architectures": ["Gemma4DSparkModel"]}), "attention_k_eq_v"),
    "Gemma's windows": (
        replace(CASES["dspark-gemma"], top=CASES["dspark-gemma"].top | {"layer_types": ["sliding_attention"] * 3}),
        "with a window",
    ),
    "Gemma's activation": (
        replace(CASES["dspark-gemma"], top=CASES["dspark-gemma"].top | {"hidden_activation": "silu"}),
        "hidden_activation is 'silu'",
    ),
    "no layer ids": (DFlashSpec(extra={"target_layer_ids": None}), "target_layer_ids .* with --aux-layers$"),
    "no layer ids, but a default": (
        DFlashSpec(extra={"target_layer_ids": None}, top={"num_target_layers": 36}),
        r"give the layers with --aux-layers \(trained with the default of its class: 2,18,34\)",
    ),
    "no layer ids of one layer": (
        DFlashSpec(n_layer=1, extra={"target_layer_ids": None}, top={"num_target_layers": 8}),
        r"--aux-layers \(trained with the default of its class: 5\)",
    ),
    "layers of two keys": (
        DFlashSpec(top={"aux_hidden_states_layer_ids": [1, 3, 6]}),
        r"the layers differ \(.*target_layer_ids: 2,5,7; aux_hidden_states_layer_ids: 2,4,7\); .* --aux-layers",
    ),
    "layers of two formats": (
        DFlashSpec(speculators=True, top={"target_layer_ids": [2, 5, 7]}),
        r"target_layer_ids: 3,6,8; aux_hidden_state_layer_ids: 2,5,7",
    ),
    "two layouts of RoPE": (
        DFlashSpec(top={"is_neox_style": False, "rope_is_neox_style": True}),
        "is_neox_style and rope_is_neox_style differ",
    ),
    "Gemma's rotary pairs": (
        replace(CASES["dspark-gemma"], top=CASES["dspark-gemma"].top | {"is_neox_style": False}),
        "is_neox_style is False",
    ),
    "ids beyond the target": (DFlashSpec(extra={"target_layer_ids": [1, 4, 8]}), "boundaries"),
    "ids twice": (DFlashSpec(extra={"target_layer_ids": [1, 1, 6]}), "boundaries"),
    "other ids than fc": (DFlashSpec(extra={"target_layer_ids": [1, 6]}), "aux"),
    "other vocabulary": (DFlashSpec(top={"vocab_size": 513}), "--target"),
    "other hidden size": (DFlashSpec(top={"hidden_size": 65}), "--target"),
    "other activation": (DFlashSpec(top={"hidden_act": "gelu"}), "hidden_act"),
    "biases": (DFlashSpec(top={"attention_bias": True}), "attention_bias"),
    "other Markov head": (
        DFlashSpec("dspark", top={"markov_head_type": "other"}),
        "markov_head_type is 'other', expected vanilla, gated, rnn",
    ),
    "a gate of another Markov head": (
        DFlashSpec("dspark", gate="gated", top={"markov_head_type": "rnn"}),
        "gate_proj",
    ),
    "a gate without a type": (DFlashSpec("dspark", gate="rnn", top={"markov_head_type": None}), "joint_proj"),
    "a recurrent head that begins after its training": (
        DFlashSpec("dspark", speculators=True, gate="rnn"),
        r"recurrent Markov head \(rnn\) with sample_from_anchor false is not supported",
    ),
    "other network": (DFlashSpec(top={"model_arch": "other"}), "model_arch 'other'"),
    "other projector": (DFlashSpec(extra={"projector_type": "other"}), "type 'other'"),
    "no rank": (DFlashSpec("dspark", top={"markov_rank": None}), "markov_w1"),
    "no map": (DFlashSpec(speculators=True, top={"draft_vocab_size": 160}), "no d2t"),
    "other map": (DFlashSpec("dspark", n_draft=160, top={"draft_vocab_size": 161}), "draft_vocab_size"),
    "too few kinds": (
        DFlashSpec(top={"use_sliding_window": True, "sliding_window": 8, "layer_types": []}),
        "layer_types",
    ),
    "kinds as text": (DFlashSpec(top={"layer_types": "full_attention"}), "layer_types .* expected a list of texts"),
    "kinds as numbers": (DFlashSpec(top={"layer_types": [1, 2, 3]}), "layer_types .* expected a list of texts"),
    "mask token beyond the vocabulary": (
        DFlashSpec(extra={"mask_token_id": 512}),
        "mask token is 512, expected an id below 512",
    ),
    "no mask token": (
        DFlashSpec(extra={"mask_token_id": None}),
        r"mask token is missing, .*; set dflash_config\.mask_token_id",
    ),
    "a mask token as text": (DFlashSpec(extra={"mask_token_id": "500"}), r"mask token is 500, .*mask_token_id"),
    "a block of one": (DFlashSpec(top={"block_size": 1}), "block_size is 1"),
    "no selector": (DFlashSpec("dflash2", extra={"selector_rank": None}), "unknown in this model|missing"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_a_reason(case: str, tmp_path: Path, target: Path) -> None:
    spec, message = REFUSED[case]
    with pytest.raises(EagleError, match=message) as caught:
        convert(tmp_path, target, spec)
    assert "\n" not in str(caught.value)
    assert {path.name for path in tmp_path.iterdir()} == {"draft", "target.gguf"}


def test_a_mask_embedding_is_refused(tmp_path: Path, target: Path) -> None:
    folder = make_dflash(tmp_path / "draft", DFlashSpec())
    torch.save({"mask_token_id": 500, "embedding": torch.ones(64)}, folder / "mask_embedding.pt")
    with pytest.raises(EagleError, match=r"mask_embedding\.pt"):
        convert_draft(folder, target, tmp_path / "out.gguf")


NO_CLASS = {"architectures": None}
MAKERS: dict[str, tuple[DFlashSpec, dict[str, Any], int]] = {  # as z-lab writes it; its maker's keys; warnings
    "NeMo": (DFlashSpec(), {"architectures": ["Qwen3DFlashDraftModel"], "num_target_layers": 8}, 0),
    "NeMo's DFlash2": (DFlashSpec("dflash2"), {"architectures": ["Qwen3DFlashDraftModel"]}, 0),
    "NeMo, of a hybrid": (
        DFlashSpec(top={"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
        {
            "architectures": ["Qwen3DFlashDraftModel"],
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
        },
        1,
    ),
    "AngelSlim": (
        DFlashSpec(),
        {"architectures": ["QwenDFlashDraftModel"], "aux_hidden_states_layer_ids": [1, 4, 6]},
        0,
    ),
    "AngelSlim, layers of its trainer unknown": (
        DFlashSpec(),
        {"architectures": ["QwenDFlashDraftModel"], "num_target_layers": 8},
        1,
    ),
    "a class to come": (DFlashSpec(), {"architectures": ["OtherDraftModel"]}, 1),
    "a class of EAGLE-3": (DFlashSpec(), {"architectures": ["LlamaForCausalLMEagle3"]}, 1),
    "no class": (DFlashSpec("dflash2"), NO_CLASS, 0),
    "vLLM's key of the layout": (DFlashSpec(top={"rope_is_neox_style": False}),
                                 {"is_neox_style": False, "rope_is_neox_style": None}, 0),
    "the layout of z-lab, stated": (DFlashSpec(), {"is_neox_style": True}, 0),
}  # fmt: skip


@pytest.mark.parametrize("maker", MAKERS)
def test_the_tensors_decide_and_not_the_class(maker: str, tmp_path: Path, target: Path) -> None:
    spec, keys, n_warnings = MAKERS[maker]
    changed = replace(spec, top=spec.top | keys)
    folder = make_dflash(tmp_path / "other/draft", changed)
    assert is_draft(open_checkpoint(folder))
    convert(tmp_path, target, spec)
    report = convert_draft(folder, target, tmp_path / "other.gguf")
    assert (tmp_path / "out.gguf").read_bytes() == (tmp_path / "other.gguf").read_bytes()
    assert len(report.warnings) == n_warnings, report.warnings


def test_the_last_state_needs_a_target_that_publishes_it(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = DFlashSpec(extra={"target_layer_ids": [1, 4, 7]})
    convert(tmp_path, target, spec)
    monkeypatch.setattr(layers, "LAST_BOUNDARY_TARGETS", frozenset())
    with pytest.raises(EagleError, match=r"state after the last block, .* targets; give other boundaries with --aux"):
        convert(tmp_path, target, spec)


def test_an_eagle3_draft_under_the_name_of_dflash(tmp_path: Path, target: Path) -> None:
    folder = make_draft(tmp_path / "draft", DraftSpec(config={"architectures": ["DFlashDraftModel"]}))
    convert_draft(folder, target, tmp_path / "out.gguf")
    assert gguf.GGUFReader(tmp_path / "out.gguf").fields["general.architecture"].contents() == "eagle3"


def test_layers_that_the_user_names(tmp_path: Path, target: Path) -> None:
    spec = DFlashSpec(extra={"target_layer_ids": None}, top={"architectures": ["Qwen3DFlashDraftModel"]})
    reader = convert(tmp_path, target, spec, aux_layers=(2, 3, 8))
    assert reader.fields["dflash.target_layers"].contents() == [2, 3, 8]
    with pytest.raises(EagleError, match=r"fc\.weight"):
        convert(tmp_path, target, spec, aux_layers=(2, 3))


@pytest.mark.parametrize("part", [None, 0.5])
@pytest.mark.parametrize("kind", ["dflash", "eagle3"])
def test_the_layout_of_rotary_pairs_is_the_drafts_own(
    kind: str, part: float | None, tmp_path: Path, target: Path
) -> None:
    """A checkpoint whose pairs are adjacent rows, and says so, has the file of the one with halves."""
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": part}}
    if kind == "dflash":
        folder = make_dflash(tmp_path / "draft", DFlashSpec(top=rope))
    else:
        folder = make_draft(tmp_path / "draft", DraftSpec(head_dim=32, qk_norm=True, bias=True, config=rope))
    convert_draft(folder, target, tmp_path / "halves.gguf")
    n_rot = int(32 * (part or 1))
    order = torch.cat([torch.arange(n_rot).view(2, -1).T.reshape(-1), torch.arange(n_rot, 32)])
    state = load_file(folder / "model.safetensors")
    for name in [name for name in state if re.search(r"[qk]_(proj|norm)", name)]:
        state[name] = state[name].view(-1, 32, *state[name].shape[1:])[:, order].reshape(state[name].shape).clone()
    save_file(state, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "is_neox_style": False}))
    convert_draft(folder, target, tmp_path / "pairs.gguf")
    assert (tmp_path / "pairs.gguf").read_bytes() == (tmp_path / "halves.gguf").read_bytes()


def test_options_of_eagle3_do_not_apply(tmp_path: Path, target: Path) -> None:
    with pytest.raises(UsageError, match="--rope-base does not apply"):
        convert(tmp_path, target, DFlashSpec(), rope_base=1e4)


def test_dry_run_and_command(tmp_path: Path, target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_dflash(tmp_path / "draft", CASES["dspark"])
    arguments = ["convert", str(folder), "--target", str(target), "-o", str(tmp_path / "out.gguf"), "--json"]
    arguments += ["--outtype", "auto"]  # the quantizer decides the bytes of others
    assert run([*arguments, "--dry-run"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["output"] is None
    assert not (tmp_path / "out.gguf").exists()
    assert run(arguments) == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["producer"], done["layer_ids"]) == ("DSpark", [2, 5, 7])
    assert (done["tensors"], done["n_bytes"]) == (planned["tensors"], planned["n_bytes"])


def test_stock_llama_cpp_does_not_read_the_anchor_of_dflash(tmp_path: Path, target: Path) -> None:
    for name, anchored in (("dflash-anchor", True), ("dspark-no-markov", True), ("dflash-speculators", None)):
        folder = make_dflash(tmp_path / name, OURS[name])
        report = convert_draft(folder, target, tmp_path / "out.gguf")
        field = gguf.GGUFReader(tmp_path / "out.gguf").fields.get("dflash.sample_from_anchor")
        assert (field.contents() if field else None) == anchored
        assert any("sample_from_anchor" in warning for warning in report.warnings) == bool(anchored)


def test_the_assistant_of_muse_glimmer(tmp_path: Path, target: Path) -> None:
    """Its class has other names of two tensors, and defaults: the target's vocabulary, windows, no causal mask."""
    windows = {"layer_types": ["sliding_attention"] * 3, "sliding_window": 2048}
    spec = DFlashSpec(top={**windows, "use_sliding_window": True, "is_causal": False})
    convert(tmp_path, target, spec)
    path = make_dflash(tmp_path / "other/draft", DFlashSpec(top=windows)) / "model.safetensors"
    names = {"fc.weight": "encoder.fc.weight", "hidden_norm.weight": "encoder.output_norm_enc.weight"}
    save_file({names.get(name, name): tensor for name, tensor in load_file(path).items()}, path)
    config = json.loads((path.parent / "config.json").read_text())
    config |= config.pop("dflash_config") | {"architectures": ["MuseGlimmerAssistantModel"]}
    del config["vocab_size"], config["use_sliding_window"]
    (path.parent / "config.json").write_text(json.dumps(config))
    assert is_draft(open_checkpoint(path.parent))
    report = convert_draft(path.parent, target, tmp_path / "other.gguf")
    assert (tmp_path / "out.gguf").read_bytes() == (tmp_path / "other.gguf").read_bytes()
    assert report.layer_ids == [2, 5, 7] and not report.warnings
