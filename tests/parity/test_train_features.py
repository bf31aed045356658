"""The features a draft is trained on: those that the native side captures, from the target in the loop or from disk."""

from __future__ import annotations

import base64
import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from fixtures.native import NativeTarget
from fixtures.targets import FAMILIES
from fixtures.training import chat, make_training_target, write_jsonl
from fixtures.vision_files import png, png_head
from llama_eagle.convert.targets import TargetOptions, convert_target
from llama_eagle.errors import ConfigError, EnvironmentFailure, InputError
from llama_eagle.train.data.documents import read_documents
from llama_eagle.train.data.samples import Sample, SampleMaker
from llama_eagle.train.features import Batch, OnlineFeatures
from llama_eagle.train.store import FeatureStore
from llama_eagle.train.targets.checkpoint import (
    Target,
    TargetInfo,
    boundaries,
    load_images,
    load_tokenizer,
    read_target,
)
from PIL import Image

TOLERANCE = 1e-4  # relative to the largest value of the boundary
CPU = torch.device("cpu")
TEXT_FAMILIES = ["qwen35-text", "qwen35moe", "qwen3next", "qwen3", "qwen3vl", "llama3"]


def load(folder: Path, layers: tuple[int, ...] | None = None) -> Target:
    return Target(read_target(folder, layers), torch.float32, CPU)


def samples_of(lengths: Sequence[int]) -> list[Sample]:
    random = np.random.default_rng(4)
    return [Sample("", random.integers(0, 480, n).astype(np.int32), np.ones(n, np.bool_)) for n in lengths]


def assert_close(found: torch.Tensor, expected: torch.Tensor | np.ndarray) -> None:
    expected = torch.as_tensor(expected)
    assert found.shape == expected.shape
    assert (found - expected).abs().max() < TOLERANCE * expected.abs().max()


@pytest.mark.native
@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_features_are_those_of_the_native_side(family: str, tmp_path: Path) -> None:
    folder = make_training_target(family, tmp_path / "target", seed=1)
    target = load(folder, (4, 5, 6) if family in ("qwen35moe", "qwen3vl") else None)
    samples = samples_of((40, 64))  # the first is padded
    batch = OnlineFeatures(target, None, samples).batch([0, 1])
    convert_target(folder, tmp_path / "target.gguf", TargetOptions(outtype="f32"))
    layers = target.info.aux_layers
    for i, sample in enumerate(samples):
        n = len(sample.tokens)
        with NativeTarget(tmp_path / "target.gguf", layers=layers) as native:
            logits, features = native.decode(sample.tokens.tolist())
        for part, layer in zip(batch.features[i, :n].chunk(len(layers), dim=-1), layers, strict=True):
            assert_close(part, features[layer])
        assert_close(batch.final[i, :n] @ target.frozen().head.T, logits)
        assert not batch.mask[i, n:].any()


def test_the_gain_of_the_last_norm(tmp_path: Path) -> None:
    """Stored less 1 by Qwen3.5, as it is by Qwen3."""
    for family, offset in (("qwen35-text", 1), ("qwen3", 0)):
        target = load(make_training_target(family, tmp_path / family))
        stored = target.model.model.norm.weight
        torch.testing.assert_close(target.frozen().norm_gain, stored + offset, rtol=1e-5, atol=0)


# --- images ---------------------------------------------------------------------------------------------------------


def image_samples(folder: Path, tmp_path: Path) -> tuple[list[Sample], OnlineFeatures]:
    for name, size in (("red", (96, 96)), ("blue", (128, 64))):
        Image.new("RGB", size, name).save(tmp_path / f"{name}.png")
    see = [{"type": "text", "text": "what is"}, {"type": "image", "image": "red.png"}]
    both = [*see, {"type": "image", "image": "blue.png"}, {"type": "text", "text": "then"}]
    data = write_jsonl(tmp_path / "c.jsonl", chat(see, "a red fox"), chat("no image", "none"), chat(both, "dogs"))
    target = load(folder, (4, 5, 6))
    images = load_images(target.info)
    samples = SampleMaker(load_tokenizer(folder), 128, images).make(read_documents([data]))
    return samples, OnlineFeatures(target, images, samples)


@pytest.mark.parametrize("family", ["qwen35", "qwen3vl"])
def test_images_are_seen_by_the_target(family: str, tmp_path: Path) -> None:
    """Against transformers' own hidden states of each conversation alone; the draft's view holds the image's rows."""
    folder = make_training_target(family, tmp_path / "target", seed=1)
    samples, source = image_samples(folder, tmp_path)
    batch = source.batch([0, 1, 2])
    model = getattr(transformers, FAMILIES[family][1]).from_pretrained(folder, dtype=torch.float32).eval()
    n_rows = [9, 0, 17]  # of 32 x 32 pixels
    for i, sample in enumerate(samples):
        tokens = torch.from_numpy(sample.tokens).long()[None]
        is_image = tokens == model.config.image_token_id
        assert int(is_image.sum()) == n_rows[i]
        vision: dict[str, Any] = {}
        if sample.images:
            pixels = source.images.processor([Image.open(p) for p in sample.images], return_tensors="pt")
            vision = {**pixels, "mm_token_type_ids": is_image.int()}
        with torch.no_grad():
            hidden = model.model(tokens, output_hidden_states=True, **vision).hidden_states
            embedded = model.get_input_embeddings()(tokens)
            if sample.images:
                rows = model.model.get_image_features(pixels["pixel_values"], pixels["image_grid_thw"]).pooler_output
                embedded[is_image] = torch.cat(rows)
        n = len(sample.tokens)
        assert batch.tokens[i, :n].tolist() == tokens[0].tolist()
        assert_close(batch.features[i, :n], torch.cat([hidden[k][0] for k in (4, 5, 6)], dim=-1))
        assert batch.embedded is not None
        assert_close(batch.embedded[i, :n], embedded[0])
    assert source.batch([1]).embedded is None
    assert (source.batch([0]).features - batch.features[:1, : len(samples[0].tokens)]).abs().max() < 1e-3


@pytest.mark.parametrize("family", ["qwen35", "qwen3vl"])
def test_stored_features_hold_images(family: str, tmp_path: Path) -> None:
    folder = make_training_target(family, tmp_path / "target", seed=1)
    samples, source = image_samples(folder, tmp_path)
    info, cpu = source.target.info, torch.device("cpu")
    store = FeatureStore(tmp_path / "features", info, samples, torch.float32, cpu)
    store.write(source, source.target.frozen(), 2, lambda fraction: None)
    again = FeatureStore(tmp_path / "features", info, samples, torch.float32, cpu)
    assert again.is_complete
    for numbers in ([0, 1, 2], [2], [1], [0, 1]):
        found, expected = again.batch(numbers), source.batch(numbers)
        for i, n in enumerate(numbers):  # the values of the padding do not matter
            length = len(samples[n].tokens)
            assert_close(found.features[i, :length], expected.features[i, :length])
            assert (found.embedded is None) == (expected.embedded is None)
            if found.embedded is not None and expected.embedded is not None:
                assert_close(found.embedded[i, :length], expected.embedded[i, :length])
            assert (found.positions is None) == (expected.positions is None)
            if found.positions is not None and expected.positions is not None:
                assert found.positions.equal(expected.positions)


def test_bad_images_are_named_at_once(tmp_path: Path) -> None:
    folder = make_training_target("qwen3vl", tmp_path / "target")
    (tmp_path / "broken.png").write_bytes(b"\x89PNG broken")
    (tmp_path / "bomb.png").write_bytes(png_head(60_000, 60_000))
    Image.new("I", (64, 64)).save(tmp_path / "deep.tiff")
    (tmp_path / "good.png").write_bytes(png(1, 96, 96))
    good = "data:image/png;base64," + base64.b64encode(png(1, 96, 96)).decode()
    bad = ["broken.png", "bomb.png", "deep.tiff", "gone.png", "https://example.com/a.png", "data:image/png;base64,AAAA"]
    see = [chat([{"type": "image", "image": name}], "x") for name in ("good.png", good, *bad)]
    typed = chat("what is <|image_pad|>?", "x")
    tokenizer, images = load_tokenizer(folder), load_images(read_target(folder, (4, 5, 6)))
    maker = SampleMaker(tokenizer, 128, images)
    with pytest.raises(InputError) as caught:
        maker.make(read_documents([write_jsonl(tmp_path / "c.jsonl", chat("a", "b"), *see, typed)]))
    told = str(caught.value)
    assert re.search(r"c\.jsonl:4: image .*broken\.png cannot be read as a picture: .* Faulty, too: ", told), told
    places = [f"c.jsonl:{n} ({name[:40]})" for n, name in enumerate(bad, start=4)][1:-1]
    assert all(place in told for place in (*places, "c.jsonl:9 (a data URL)", "c.jsonl:10")) and "AAAA" not in told
    faults = {
        "bomb.png": "million pixels. Scale it down",
        "https://example.com/a.png": "is a URL of https: Save the picture",
        "data:image/png;base64,AAAA": "an image in a data URL cannot be read as a picture",
    }
    for name, fault in faults.items():
        with pytest.raises(InputError, match=fault):
            maker.make(
                read_documents([write_jsonl(tmp_path / "one.jsonl", chat([{"type": "image", "image": name}], "x"))])
            )
    with pytest.raises(InputError, match=r"one\.jsonl:1: its text contains <\|image_pad\|>"):
        maker.make(read_documents([write_jsonl(tmp_path / "one.jsonl", typed)]))
    assert images is not None
    first, second = SampleMaker(tokenizer, 128, images).make(
        read_documents([write_jsonl(tmp_path / "d.jsonl", *see[:2])])
    )
    pixels = [images.pixels(sample.images, "")["pixel_values"] for sample in (first, second)]
    assert first.tokens.tolist() == second.tokens.tolist() and pixels[0].equal(pixels[1])


# --- refusals -------------------------------------------------------------------------------------------------------


def test_a_target_that_goes_round_its_blocks_is_refused(tmp_path: Path) -> None:
    target = load(make_training_target("qwen3", tmp_path))
    tokens = torch.tensor([[1, 2, 3]])
    target.run(tokens)
    blocks = target.model.model.layers
    copies = [type(block).forward.__get__(block) for block in blocks]
    target.model.model.forward = lambda input_ids, **_: through(target, input_ids, copies)
    with pytest.raises(ConfigError, match=r"Qwen3ForCausalLM: boundary 2 was seen 0 times"):
        target.run(tokens)


def through(target: Target, tokens: torch.Tensor, blocks: list[Any]) -> Any:
    """A forward pass that calls the blocks' code without their hooks, as a compiled one does."""
    model = target.model.model
    x = model.embed_tokens(tokens)
    positions = model.rotary_emb(x, torch.arange(tokens.shape[1])[None])
    for block in blocks:
        x = block(x, position_embeddings=positions, attention_mask=None)
    return type("Output", (), {"last_hidden_state": model.norm(x)})


@pytest.mark.parametrize(
    ("family", "layers", "part"),
    [
        ("qwen3", (2, 4, 8), "from 1 to 7"),
        ("qwen3", (0, 4, 5), "boundary 0 is the embedding"),
        ("qwen3", (4, 4, 5), "different ones"),
        ("qwen3vl", (3, 4, 5), "they start at 4"),
    ],
)
def test_boundaries_that_no_draft_can_read(family: str, layers: tuple[int, ...], part: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=part):
        read_target(make_training_target(family, tmp_path), layers)


@pytest.mark.parametrize("has_vision", [False, True])
def test_default_boundaries_are_distinct_at_any_depth(has_vision: bool) -> None:
    lowest = 4 if has_vision else 1
    for n_layer in range(lowest + 1, 100):
        found = boundaries(None, n_layer, has_vision)
        assert len(set(found)) == len(found) == min(3, n_layer - lowest)
        usual = (4 if has_vision else 2, n_layer // 2, n_layer - 3)  # those of other trainers
        if usual[0] < usual[1] < usual[2]:
            assert found == usual
    with pytest.raises(ConfigError, match="--aux-layers"):
        boundaries(None, lowest, has_vision)


def test_an_unknown_or_incomplete_target_is_named(tmp_path: Path) -> None:
    folder = make_training_target("qwen3", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 9, "layer_types": None}))
    with pytest.raises(ConfigError, match="weights are missing"):
        load(folder)
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["GPT2LMHeadModel"]}))
    with pytest.raises(ConfigError, match="GPT2LMHeadModel"):
        read_target(folder)


# --- features on disk -----------------------------------------------------------------------------------------------


class Counting(OnlineFeatures):
    """Counts passes, and fails after `n_left` of them."""

    n_left = 1000

    def batch(self, numbers: Sequence[int]) -> Batch:
        if not self.n_left:
            raise KeyboardInterrupt
        self.n_left -= 1
        return super().batch(numbers)


def test_disk_space_is_reserved_before_the_target_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that another program fills meanwhile cannot end the process by SIGBUS."""
    target = load(make_training_target("qwen3", tmp_path / "target"))
    source = Counting(target, None, samples_of((20, 33)))
    source.n_left = 0
    with pytest.raises(KeyboardInterrupt):
        features(tmp_path, target, source).write(source, target.frozen(), 2, lambda fraction: None)
    stored = (tmp_path / "features" / "features.bin").stat()
    assert stored.st_size > 0 and stored.st_blocks * 512 >= stored.st_size
    shutil.rmtree(tmp_path / "features")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(EnvironmentFailure, match=r"the features need 0\.1 MiB; free some"):
        features(tmp_path, target, source).write(source, target.frozen(), 2, lambda fraction: None)


def features(folder: Path, target: Target, source: OnlineFeatures) -> FeatureStore:
    return FeatureStore(folder / "features", target.info, source.samples, torch.float32, CPU)


def test_stored_features_are_the_online_ones(tmp_path: Path) -> None:
    target = load(make_training_target("qwen3", tmp_path / "target"))
    samples = samples_of((20, 33, 5, 40, 12))
    source = Counting(target, None, samples)

    def store(info: TargetInfo = target.info, samples: list[Sample] = samples) -> FeatureStore:
        return FeatureStore(tmp_path / "features", info, samples, torch.float32, CPU)

    source.n_left = 1
    with pytest.raises(KeyboardInterrupt):
        store().write(source, target.frozen(), 2, lambda fraction: None)
    cut = store()
    assert not cut.is_complete
    source.n_left = 2 if cut.n_done else 3
    fractions: list[float] = []
    cut.write(source, target.frozen(), 2, fractions.append)
    assert fractions[-2:] == [0.8, 1.0]
    assert source.n_left == 0
    done = store()
    assert done.is_complete
    stored, online = done.batch([3, 0, 2]), OnlineFeatures(target, None, samples).batch([3, 0, 2])
    assert stored.embedded is online.embedded is None
    for found, expected in zip(stored[:4], online[:4], strict=True):
        valid = expected.new_ones(expected.shape, dtype=torch.bool)
        for i, n in enumerate((40, 20, 5)):
            valid[i, n:] = False  # what is padded differs, and is masked
        torch.testing.assert_close(found[valid], expected[valid], rtol=1e-4, atol=1e-5)
    done.device = torch.device("cpu", 0)  # as accelerate calls the device of one of several processes
    for name, tensor in target.frozen().tensors().items():
        assert torch.equal(getattr(done.frozen(), name), tensor)
    with pytest.raises(ConfigError, match="differ in data"):
        store(samples=samples[:4] + samples_of([12]))
    with pytest.raises(ConfigError, match="aux_layers"):
        store(info=read_target(tmp_path / "target", (3, 4, 5)))
    (tmp_path / "features" / "features.bin").write_bytes(b"")
    with pytest.raises(InputError, match="bytes expected"):
        store()
    (tmp_path / "features" / "index.json").write_text("{")
    with pytest.raises(InputError, match="damaged"):
        store()
