"""A trained draft on its way into the engine: saved in either layout, converted, run; the network as trained judges."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from fixtures import upstream
from fixtures.native import NativeTarget
from fixtures.training import make_training_target
from llama_eagle.convert.drafts import DraftOptions, convert_draft
from llama_eagle.convert.targets import TargetOptions, convert_target
from llama_eagle.errors import ConfigError
from llama_eagle.train.export import DraftOf, check_layer_ids, export_draft, export_head
from llama_eagle.train.initial import make_draft
from llama_eagle.train.mtp.head import make_head
from llama_eagle.train.targets.checkpoint import Target, read_target
from parity.test_draft_native import N_STEPS, NativeDraft

TOLERANCE = 5e-4  # two implementations of target and draft after one another


class Pair:
    """A target, and a draft of it whose weights are BF16 values, as they are stored."""

    def __init__(self, folder: Path, n_draft: int, family: str = "qwen3", **parts: Any) -> None:
        self.folder = make_training_target(family, folder / "target", seed=2, dtype="float32")
        layers = (4, 5, 6) if "vision_config" in (self.folder / "config.json").read_text() else None
        self.target = Target(read_target(self.folder, layers), torch.float32, torch.device("cpu"))
        self.ids = torch.randperm(512, generator=torch.Generator().manual_seed(3))[:n_draft].sort().values
        geometry = replace(self.target.info.geometry(n_draft, ffn_size=72), **parts)
        self.draft = make_draft(geometry, self.target.frozen(), self.ids, seed=1)
        random = torch.Generator().manual_seed(4)
        for name, parameter in self.draft.named_parameters():
            is_gain = any(part in name for part in ("q_norm", "k_norm", "fc_norm"))
            gain = 1 + 0.3 * torch.randn(parameter.shape, generator=random) if is_gain else 1.0
            parameter.data = (parameter.data * gain).bfloat16().float()
        self.gguf = folder / "target.gguf"
        convert_target(self.folder, self.gguf, TargetOptions(outtype="f32"))

    def export(self, folder: Path, layout: str) -> Path:
        info = self.target.info
        export_draft(
            self.draft,
            folder,
            layout=layout,
            draft_ids=self.ids,
            embedding=self.target.frozen().embedding,
            target=DraftOf(str(self.folder), info.architecture, info.aux_layers),
        )
        return folder


def chain_in_torch(pair: Pair, tokens: list[int]) -> list[torch.Tensor]:
    """Logits of a greedy chain, by the training code: the last slot of a sequence that grows by each drafted token."""
    frozen = pair.target.frozen()
    features, _, _ = pair.target.run(torch.tensor([tokens[:-1]]))
    found = []
    with torch.no_grad():
        for k in range(N_STEPS):
            padded = torch.tensor([[*tokens, 0]])  # unroll leaves out slots without a token to predict
            embedded = frozen.embedding[padded]
            wide = torch.nn.functional.pad(features, (0, 0, 0, len(padded[0]) - features.shape[1]))
            hidden = pair.draft.unroll(embedded, wide, wide, k + 1)[k][0, -1]
            found.append(pair.draft.lm_head(pair.draft.norm(hidden)))
            tokens = [*tokens, int(pair.ids[found[-1].argmax()])]
    return found


PARTS = {"qk_norm": True, "fc_norm": True, "window": 6}


@pytest.mark.native
@pytest.mark.parametrize(
    ("n_draft", "layout", "parts"),
    [
        (160, "specforge", {}),
        (512, "speculators", {}),
        (512, "specforge", PARTS),
        (160, "speculators", PARTS),
    ],
)
def test_the_engine_computes_what_was_trained(n_draft: int, layout: str, parts: dict[str, Any], tmp_path: Path) -> None:
    pair = Pair(tmp_path, n_draft, **parts)
    folder = pair.export(tmp_path / "draft", layout)
    report = convert_draft(folder, pair.gguf, tmp_path / "draft.gguf", DraftOptions(outtype="f32"))
    assert (report.layout, report.layer_ids) == ("extended" if parts else "stock", [2, 4, 5])
    assert len(report.warnings) == len(report.extended_because[:1])
    assert report.producer == {"specforge": "SpecForge", "speculators": "speculators"}[layout]
    assert_same_chain(pair, tmp_path / "draft.gguf", 2 * TOLERANCE if parts else TOLERANCE)  # norms add roundings


@pytest.mark.native
@pytest.mark.parametrize("family", ["qwen35-text", "qwen35", "qwen35moe", "qwen3next", "qwen3moe", "qwen3vl", "llama3"])
def test_drafts_of_every_family(family: str, tmp_path: Path) -> None:
    pair = Pair(tmp_path, 160, family)
    folder = pair.export(tmp_path / "draft", "specforge")
    convert_draft(folder, pair.gguf, tmp_path / "draft.gguf", DraftOptions(outtype="f32"))
    assert_same_chain(pair, tmp_path / "draft.gguf")


def assert_same_chain(pair: Pair, path: Path, tolerance: float = TOLERANCE) -> None:
    """The native engine's draft against the trainer's own code."""
    tokens = np.random.default_rng(5).integers(0, 480, 10).tolist()
    expected = chain_in_torch(pair, tokens)
    with NativeTarget(pair.gguf, n_rs_seq=N_STEPS) as native:
        draft = NativeDraft(native, path, 64)
        draft.eval(tokens[:9])
        found = draft.chain(tokens[9])
        draft.close()
    for (logits, _, token, _), step in zip(found, expected, strict=True):
        assert np.abs(logits - step.numpy()).max() < tolerance * step.abs().max()
        assert token == pair.ids[step.argmax()]


@pytest.mark.parametrize("n_draft", [160, 512])
def test_both_layouts_convert_to_the_same_draft(n_draft: int, tmp_path: Path) -> None:
    """But for the embeddings, which only speculators' layout holds."""
    pair = Pair(tmp_path, n_draft)
    found = []
    for layout in ("specforge", "speculators"):
        folder, path = pair.export(tmp_path / layout, layout), tmp_path / f"{layout}.gguf"
        convert_draft(folder, pair.gguf, path, DraftOptions(outtype="bf16"))
        reader = gguf.GGUFReader(path)
        keys = {key: field.contents() for key, field in reader.fields.items() if key.startswith("eagle3.")}
        found.append(({tensor.name: tensor.data for tensor in reader.tensors}, keys))
    (ours, our_keys), (theirs, their_keys) = found
    embedding = theirs.pop("token_embd.weight").view(np.uint16)
    stored = pair.target.frozen().embedding.bfloat16().view(torch.uint16).numpy()
    assert np.array_equal(embedding, stored)
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(data, theirs[name]) for name, data in ours.items())
    sources = {"eagle3.producer", "eagle3.target_layers_source"}
    assert {k: v for k, v in our_keys.items() if k not in sources} == {
        k: v for k, v in their_keys.items() if k not in sources
    }


def test_the_head_starts_as_the_targets(tmp_path: Path) -> None:
    pair = Pair(tmp_path, 160)
    frozen = pair.target.frozen()
    hidden = torch.randn(64, generator=torch.Generator().manual_seed(0))
    expected = pair.target.model.lm_head(pair.target.model.model.norm(hidden))[pair.ids]
    found = pair.draft.lm_head(pair.draft.norm(hidden))
    assert (found - expected).abs().max() < 0.02 * expected.abs().max()  # its weights are rounded to BF16 here
    assert frozen.head.shape == (512, 64)


def test_a_failed_export_leaves_the_former_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(tmp_path, 160)
    folder = pair.export(tmp_path / "draft", "specforge")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def fail(tensors: object, path: Path, **_: object) -> None:
        path.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr("llama_eagle.train.export.save_file", fail)
    with pytest.raises(OSError, match="disk full"):
        pair.export(folder, "specforge")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_the_head_of_a_checkpoint_is_converted_as_the_targets_own(tmp_path: Path) -> None:
    """With the tokenizer and the chat template."""
    folder = make_training_target("qwen35", tmp_path / "target", mtp=True)
    info = read_target(folder, ())
    frozen = Target(info, torch.float32, torch.device("cpu")).frozen()
    export_head(make_head(info, frozen, torch.arange(info.n_vocab), seed=0), info, tmp_path / "head")
    found = []
    for source in (folder, tmp_path / "head"):
        convert_target(source, tmp_path / f"{source.name}.gguf", TargetOptions(outtype="f32", mtp_only=True))
        reader = gguf.GGUFReader(tmp_path / f"{source.name}.gguf")
        keys = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("general.")}
        found.append(({tensor.name: tensor.data for tensor in reader.tensors}, keys))
    (own, own_keys), (ours, our_keys) = found
    assert our_keys == own_keys and "tokenizer.chat_template" in our_keys
    assert ours.keys() == own.keys()
    for name, data in ours.items():
        np.testing.assert_allclose(data, own[name], rtol=0.01, atol=0.01, err_msg=name)


@pytest.mark.parametrize(
    ("layout", "layers", "n_layer", "fits"),
    [
        ("specforge", (2, 4, 5), 8, True),
        ("specforge", (4, 18, 33), 36, True),
        ("specforge", (3, 9, 20), 24, True),
        ("specforge", (3, 13, 22), 24, False),  # stored as 2, 12, 21: the default boundaries
        ("speculators", (3, 13, 22), 24, True),
    ],
)
def test_layer_ids_that_would_be_misread_are_refused(
    layout: str, layers: tuple[int, ...], n_layer: int, fits: bool
) -> None:
    if fits:
        check_layer_ids(layout, layers, n_layer)
        return
    with pytest.raises(ConfigError, match=r"would be read as \[2, 12, 21\]"):
        check_layer_ids(layout, layers, n_layer)


@pytest.mark.slow
@pytest.mark.parametrize("n_draft", [160, 512])
def test_llama_cpps_own_converter_takes_it(n_draft: int, tmp_path: Path) -> None:
    pair = Pair(tmp_path, n_draft)
    folder = pair.export(tmp_path / "draft", "specforge")
    ours, theirs = tmp_path / "ours.gguf", tmp_path / "theirs.gguf"
    convert_draft(folder, pair.folder, ours, DraftOptions(outtype="f32"))
    upstream.convert(folder, theirs, "f32", "qwen2", "--target-model-dir", str(pair.folder))
    found, expected = ({t.name: t.data for t in gguf.GGUFReader(path).tensors} for path in (ours, theirs))
    if n_draft == 512:  # ours leaves the identity out
        assert expected.pop("d2t").tolist() == list(range(512))
    assert found.keys() == expected.keys()
    for name, data in found.items():
        assert np.array_equal(data, expected[name]), name
