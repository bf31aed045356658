"""DFlash, DFlash2 and DSpark drafts: what reaches the GGUF, and what is refused and why.

tests/parity/test_upstream_converter.py compares the files with those of llama.cpp's own converter.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from fixtures.dflash import CASES, OURS, DFlashSpec, dflash_tensors, make_dflash
from fixtures.eagle3_checkpoints import make_target_gguf
from llama_eagle.cli import run
from llama_eagle.convert.drafts import DraftOptions, convert_draft, is_draft
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
    "no layer ids": (DFlashSpec(extra={"target_layer_ids": None}), "target_layer_ids"),
    "ids beyond the target": (DFlashSpec(extra={"target_layer_ids": [1, 4, 8]}), "boundaries"),
    "ids twice": (DFlashSpec(extra={"target_layer_ids": [1, 1, 6]}), "boundaries"),
    "other ids than fc": (DFlashSpec(extra={"target_layer_ids": [1, 6]}), "aux"),
    "other vocabulary": (DFlashSpec(top={"vocab_size": 513}), "--target"),
    "other hidden size": (DFlashSpec(top={"hidden_size": 65}), "--target"),
    "other activation": (DFlashSpec(top={"hidden_act": "gelu"}), "hidden_act"),
    "biases": (DFlashSpec(top={"attention_bias": True}), "attention_bias"),
    "recurrent Markov head": (DFlashSpec("dspark", top={"markov_head_type": "rnn"}), "type 'rnn'"),
    "gated Markov head": (DFlashSpec("dspark", extra={"markov_head_type": "gated"}), "type 'gated'"),
    "DFlare": (DFlashSpec(n_layer=9, top={"model_arch": "dflare"}), "model_arch 'dflare'"),
    "other projector": (DFlashSpec(extra={"projector_type": "domino"}), "type 'domino'"),
    "no rank": (DFlashSpec("dspark", top={"markov_rank": None}), "markov_w1"),
    "no map": (DFlashSpec(speculators=True, top={"draft_vocab_size": 160}), "no d2t"),
    "other map": (DFlashSpec("dspark", n_draft=160, top={"draft_vocab_size": 161}), "draft_vocab_size"),
    "too few kinds": (
        DFlashSpec(top={"use_sliding_window": True, "sliding_window": 8, "layer_types": []}),
        "layer_types",
    ),
    "kinds as text": (DFlashSpec(top={"layer_types": "full_attention"}), "layer_types .* expected a list of texts"),
    "kinds as numbers": (DFlashSpec(top={"layer_types": [1, 2, 3]}), "layer_types .* expected a list of texts"),
    "mask token beyond the vocabulary": (DFlashSpec(extra={"mask_token_id": 512}), "mask token is 512 of 512"),
    "no mask token": (DFlashSpec(extra={"mask_token_id": None}), "mask token is None"),
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
