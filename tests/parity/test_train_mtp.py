"""The MTP head in training against the reference, token by token; and its way into a GGUF that drafts."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixtures.command import llama_eagle
from fixtures.training import make_training_target, write_jsonl
from llama_eagle.errors import ConfigError, InputError
from llama_eagle.train.metrics import Journal, read_metrics
from llama_eagle.train.mtp.gguf_head import stored_head
from llama_eagle.train.mtp.head import head_tensors, make_head
from llama_eagle.train.run import train
from llama_eagle.train.settings import Settings
from llama_eagle.train.targets.checkpoint import Target, read_target
from llama_eagle.train.targets.engine import EngineTarget, read_engine_target
from parity.mtp_reference import MTPReference, TargetStates
from safetensors.torch import load_file

N_STEPS = 4
SENTENCES = ["The quick brown fox jumps over the lazy dog. ", "We'll see 12345 times, isn't it? ", "def verify(ids): "]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a random head, so that all its parts count."""
    return make_training_target("qwen35", tmp_path_factory.mktemp("target"), mtp=True, dtype="float32")


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_training_target("qwen35", tmp_path_factory.mktemp("bare"), dtype="float32")


@pytest.fixture
def settings(bare: Path, tmp_path: Path) -> Settings:
    texts = ({"text": SENTENCES[i % 3] * 3 + SENTENCES[(i + 1) % 3] * 2} for i in range(26))
    data = write_jsonl(tmp_path / "text.jsonl", *texts)
    return Settings(
        tmp_path / "head", str(bare), (str(data),), kind="mtp", device="cpu", dtype="f32", n_steps=3, max_length=32,
        batch_size=4, epochs=6, learning_rate=3e-3, eval_share=0.1, eval_every=5, save_every=4, log_every=1,
    )  # fmt: skip


def test_every_step_is_the_references(target: Path) -> None:
    """Row j of step k: what a draft of k + 1 tokens from there computes when it is fed the text's own tokens."""
    info = read_target(target, ())
    frozen = Target(info, torch.float32, torch.device("cpu")).frozen()
    head = make_head(info, frozen, torch.arange(info.n_vocab), seed=0)
    tokens = torch.randint(0, info.n_vocab, (12,), generator=torch.Generator().manual_seed(3)).tolist()
    states = TargetStates(target).hidden(tokens)
    with torch.no_grad():
        steps = head.unroll(frozen.embedding[torch.tensor([tokens])], states[None], states[None], N_STEPS)
        found = [head.norm(step)[0] for step in steps]
    reference = MTPReference(target)
    for j in range(1, len(tokens) - 1):
        reference.reset()
        reference.prefill(tokens[:j], states)
        hidden = states[j - 1]
        for k in range(min(N_STEPS, len(tokens) - 1 - j)):
            step = reference.row(tokens[j + k], hidden)
            hidden = step.hidden
            error = (found[k][j - 1] - hidden).abs().max() / hidden.abs().max()
            assert error < 1e-4, (j, k)


def test_a_stored_head_is_where_training_starts(target: Path) -> None:
    info = read_target(target, ())
    frozen = Target(info, torch.float32, torch.device("cpu")).frozen()
    head = make_head(info, frozen, torch.arange(info.n_vocab), seed=0)
    stored = {name: tensor for name, tensor in load_file(target / "model.safetensors").items() if "mtp." in name}
    assert {name: tensor.shape for name, tensor in head_tensors(head).items()} == {
        name: tensor.shape for name, tensor in stored.items()
    }
    for name, tensor in head_tensors(head).items():
        assert torch.allclose(tensor.float(), stored[name].float(), atol=1e-2, rtol=1e-2), name


def test_an_earlier_head_is_gone_on_with(target: Path, bare: Path, settings: Settings) -> None:
    info = read_target(bare, ())
    frozen = Target(info, torch.float32, torch.device("cpu")).frozen()
    head = make_head(info, frozen, torch.arange(info.n_vocab), seed=0, earlier=target)
    stored = load_file(target / "model.safetensors")
    for name, tensor in head_tensors(head).items():
        assert torch.allclose(tensor.float(), stored[name].float(), atol=1e-2, rtol=1e-2), name
    with pytest.raises(InputError, match="has no MTP head"):
        train(replace(settings, init=str(bare)))


def test_it_learns_goes_on_and_becomes_a_file(settings: Settings, bare: Path, tmp_path: Path) -> None:
    from llama_eagle.convert.targets import TargetOptions, convert_target
    from llama_eagle.gguf import mtp
    from llama_eagle.gguf.header import read_model

    report = train(settings)
    assert report is not None
    losses = [
        sum(record["losses"]) for record in read_metrics(settings.output / "metrics.jsonl") if not record["held_out"]
    ]
    assert losses[-1] < 0.9 * losses[0]
    convert_target(settings.output, tmp_path / "mtp-model.gguf", TargetOptions(outtype="f32", mtp_only=True))
    convert_target(bare, tmp_path / "model.gguf", TargetOptions(outtype="f32"))
    header, files = read_model(tmp_path / "mtp-model.gguf")
    assert mtp.has_head(files)
    assert not mtp.problems(read_model(tmp_path / "model.gguf")[0], header)


def test_other_targets_are_refused(settings: Settings, tmp_path: Path) -> None:
    other = make_training_target("qwen3", tmp_path / "other")
    with pytest.raises(ConfigError, match="--kind mtp: heads are trained for Qwen3_5ForCausalLM"):
        train(replace(settings, target=str(other)))


def test_an_interrupted_run_goes_on_as_if_it_had_not_been(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same head; tests/e2e/test_train_processes.py kills one."""
    settings = replace(settings, epochs=1)
    train(settings)
    cut = replace(settings, output=tmp_path / "cut")
    write = Journal.write

    def stopping(self: Journal, record: dict[str, Any]) -> None:
        write(self, record)
        if record["step"] == 7:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "write", stopping)
        with pytest.raises(KeyboardInterrupt):
            train(cut)
    train(replace(cut, resume=True))
    for name in ("model.safetensors", "config.json"):
        assert (cut.output / name).read_bytes() == (settings.output / name).read_bytes()


@pytest.fixture(scope="module")
def files(target: Path, bare: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Both targets as GGUF, F32."""
    from llama_eagle.convert.targets import TargetOptions, convert_target

    folder = tmp_path_factory.mktemp("files")
    found = {"target": folder / "base-F32.gguf", "bare": folder / "tuned-F32.gguf"}
    convert_target(target, found["target"], TargetOptions(outtype="f32"))
    convert_target(bare, found["bare"], TargetOptions(outtype="f32"))
    return found


@pytest.mark.native
@pytest.mark.parametrize("name", ["target", "bare"])
def test_a_head_from_a_gguf_is_the_checkpoints(
    name: str, target: Path, bare: Path, files: dict[str, Path], tmp_path: Path
) -> None:
    """Stored heads, last blocks with attention, and heads to start from."""
    folder = target if name == "target" else bare
    info = read_target(folder, ())
    frozen = Target(info, torch.float32, torch.device("cpu")).frozen()
    engine = read_engine_target(str(files[name]), ())
    ids = torch.arange(info.n_vocab)
    for earlier in (None, (target, files["target"])):
        wanted = make_head(info, frozen, ids, 0, earlier and earlier[0])
        found = make_head(engine, EngineTarget(engine, 16).frozen(), ids, 0, earlier and earlier[1])
        for (key, ours), theirs in zip(found.named_parameters(), wanted.parameters(), strict=True):
            assert torch.allclose(ours, theirs, atol=1e-5), key
    with pytest.raises(InputError, match="it has no MTP head"):
        make_head(engine, frozen, ids, 0, files["bare"])


@pytest.mark.native
def test_a_head_is_trained_through_a_gguf(settings: Settings, files: dict[str, Path], tmp_path: Path) -> None:
    """The losses of the checkpoint's way, and a file that is found next to the target and holds what was learned."""
    from llama_eagle.gguf.header import read_model
    from llama_eagle.gguf.sidecars import find_sidecars

    settings = replace(settings, epochs=2)
    train(settings)
    through = replace(settings, target=str(files["bare"]), output=tmp_path / "through")
    report = train(through)
    assert report is not None and report.mean_emitted is not None
    curves = [[sum(r["losses"]) for r in read_metrics(s.output / "metrics.jsonl")] for s in (settings, through)]
    assert np.allclose(*curves, rtol=0.02)
    head = through.output / "mtp-tuned.gguf"
    for path in (files["bare"], head):
        shutil.copy(path, tmp_path)
    model = read_model(tmp_path / files["bare"].name)[1]
    (found,) = find_sidecars(model)
    assert found.files is not None, found
    assert stored_head(found.files).keys() == {name.removeprefix("mtp.") for name in _names(settings.output)}
    common = ("generate", "-m", tmp_path / files["bare"].name, "--raw", "-p", SENTENCES[0], "-n", 24, "--temp", 0)
    drafted = llama_eagle(*common, "-t", 1, "-d", tmp_path / head.name, "--n-draft", 3, "--json").json
    plain = llama_eagle(*common, "-t", 1, "-d", "none", "--json").json
    assert drafted["text"] == plain["text"] and drafted["speculative"]["n_drafted"] > 0, drafted
    more = replace(through, output=tmp_path / "more", init=str(head), epochs=1, learning_rate=1e-9)
    train(more)
    losses = [sum(r["losses"]) for r in read_metrics(more.output / "metrics.jsonl") if r["held_out"]]
    assert losses[-1] == pytest.approx(curves[1][-1], rel=0.05)


def _names(folder: Path) -> list[str]:
    return [name for name in load_file(folder / "model.safetensors") if name.startswith("mtp.")]
