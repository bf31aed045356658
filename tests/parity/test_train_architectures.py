"""Random models of every architecture as targets: the trainer's logits are the engine's, its start the last block."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from fixtures.architectures import NO_FLASH_ATTENTION, every_architecture
from llama_eagle.cli import main
from llama_eagle.convert.drafts import DraftOptions, convert_draft
from llama_eagle.errors import ConfigError
from llama_eagle.gguf.architectures import FEATURE_TARGETS
from llama_eagle.train.model import Eagle3Draft
from llama_eagle.train.run import train
from llama_eagle.train.settings import Settings
from llama_eagle.train.targets.engine import EngineTarget, read_engine_target
from llama_eagle.train.targets.output import Output, difference
from torch.nn.functional import linear, rms_norm, silu

pytestmark = pytest.mark.native

# A divided scale, scales without a key, a cap, a bias, another name of the last norm, a gate of GELU.
FEATURES = ("granite", "minicpm3", "gemma2", "phi2", "lfm2", "gemma")
EVERY = [str(of) for of in every_architecture() if of.name in FEATURE_TARGETS - NO_FLASH_ATTENTION]
# The same and others: latent attention, heads by block, layer norms, experts.
TRAINED = ("granite", "gemma2", "phi2", "lfm2", "cohere2", "gemma4", "deepseek2", "falcon", "gpt-oss")
REFUSED = {
    "chameleon": "neither a scale nor a bias explains them",  # llama.cpp excludes tokens of images
    "deepseek4": "its last states have 2048 values",  # its streams
    "qwen2vl": "the engine's",  # has a bias that llama.cpp does not add
}
TOLERANCE = 1e-5  # of the largest value


@pytest.fixture(scope="module")
def write(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that writes random models to a folder, each with its states around the last MLP."""
    folder = tmp_path_factory.mktemp("models")

    def run(*names: str) -> Path:
        command = [sys.executable, "-m", "parity.architecture_worker", "--write", str(folder), *names]
        subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, check=True)
        return folder

    return run


def target_of(path: Path) -> EngineTarget:
    return EngineTarget(read_engine_target(str(path)), 64)


def require_start(target: EngineTarget, path: Path) -> bool:
    """Compare the MLP that a draft starts with, if any, with the target's last block; return True if it was seen."""
    states, start = np.load(path.with_suffix(".npz")), target.frozen()
    if start.mlp_up is None or not {"ffn_inp", "l_out"} <= set(states.files):
        return False
    x, expected = (torch.tensor(states[name]) for name in ("ffn_inp", "l_out"))
    assert start.mlp_norm is not None and start.mlp_gate is not None and start.mlp_down is not None
    normed = rms_norm(x, start.mlp_norm.shape, start.mlp_norm, 1e-5)
    found = x + linear(silu(linear(normed, start.mlp_gate)) * linear(normed, start.mlp_up), start.mlp_down)
    assert (found - expected).abs().max() <= TOLERANCE * expected.abs().max(), path.stem
    return True


def test_features_of_the_output(write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(*FEATURES)
    targets = {name: target_of(folder / f"{name}.gguf") for name in FEATURES}
    seen = set()
    for name, target in targets.items():
        target.require_equal_logits()
        seen |= {name} if require_start(target, folder / f"{name}.gguf") else set()
        Eagle3Draft(target.info.geometry(16, None))
    assert seen == {"granite", "minicpm3"}
    changes = {"granite": {"scale": 1.0}, "minicpm3": {"scale": 2.0}, "gemma2": {"cap": 0.0}}
    for name, change in changes.items():
        monkeypatch.setattr(targets[name], "_output", replace(targets[name]._output, **change))
        with pytest.raises(ConfigError, match="the trainer's logits differ"):
            targets[name].require_equal_logits()
    monkeypatch.setattr(Output, "bias", lambda *_: None)
    with pytest.raises(ConfigError, match="the engine adds up to"):
        targets["phi2"].require_equal_logits()


@pytest.mark.slow
def test_every_architecture(write: Callable[..., Path]) -> None:
    folder = write(*EVERY)
    problems, n_seen = {}, 0
    for name in EVERY:
        try:
            target = target_of(folder / f"{name}.gguf")
            target.require_equal_logits()
        except ConfigError as error:
            problems[name] = str(error)
            continue
        n_seen += require_start(target, folder / f"{name}.gguf")
        draft = Eagle3Draft(target.info.geometry(16, None))
        states = draft.unroll(torch.zeros(1, 5, 1).expand(1, 5, draft.geometry.hidden_size), *_features(draft), 2)
        assert len(states) == 2
    assert problems.keys() == REFUSED.keys()
    assert all(REFUSED[name] in text for name, text in problems.items())
    assert n_seen >= 30


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
def test_a_draft_leaves_the_text_as_it_is(
    name: str, write: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From a random GGUF to a GGUF of a draft, which drafts without a change of the text."""
    target, draft = write(name) / f"{name}.gguf", tmp_path / "draft.gguf"
    data = tmp_path / "data.txt"
    data.write_text("the quick brown fox jumps over the lazy dog. " * 20)
    settings = Settings(
        tmp_path / "draft", str(target), (str(data),), device="cpu", dtype="f32", n_steps=2, max_length=64, epochs=1
    )
    assert train(settings) is not None
    convert_draft(settings.output, target, draft, DraftOptions())
    found = []
    for more in (["none", "--no-lookup"], [str(draft), "--n-draft", "2", "--no-lookup"]):
        with pytest.raises(SystemExit):
            main([*f"generate -m {target} --raw -p abc -n 24 --temp 0 --ignore-eos --json -d".split(), *more])
        found.append(json.loads(capsys.readouterr().out))
    assert found[1]["tokens"] == found[0]["tokens"]
    assert found[1]["speculative"]["n_drafted"] > 0


def _features(draft: Eagle3Draft) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(1, 5, draft.geometry.n_aux * draft.geometry.hidden_size), torch.zeros(0)


def test_the_difference_is_named() -> None:
    random = torch.Generator().manual_seed(1)
    ours, added = torch.randn(64, 40, generator=random), torch.linspace(0, 1, 40)
    noise = torch.randn(64, 40, generator=random) / 100
    assert difference(ours, ours + torch.arange(64)[:, None], 0.0) == ""
    assert "are 0.25 times as large" in difference(ours, ours / 4, 0.0)
    assert "adds up to 0.5 to" in difference(ours, ours + added, 0.0)
    assert "neither a scale nor a bias" in difference(ours, 2 * torch.tanh(ours / 2), 0.0)
    assert difference(ours, ours + noise, 0.1) == ""
    assert "neither" in difference(ours, ours + noise, 0.0)
    assert "times as large" in difference(ours, ours * 1.05 + noise, 0.1)
    assert "adds up to" in difference(ours, ours + noise + added / 5, 0.1)
