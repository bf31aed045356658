"""`llama-eagle train`, whole: a draft from a target and a text, resumed runs, early stops, errors."""

from __future__ import annotations

import itertools
import json
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fixtures.command import assert_one_line_error, llama_eagle
from fixtures.eagle3_checkpoints import YARN, DraftSpec, make_draft
from fixtures.training import chat, make_training_target, write_jsonl
from llama_eagle import cli
from llama_eagle.errors import ConfigError, EagleError, InputError, UsageError
from llama_eagle.train import loop as training_loop
from llama_eagle.train import run as training_run
from llama_eagle.train.loss import TrainingPass
from llama_eagle.train.metrics import Journal, mean_emitted, read_metrics
from llama_eagle.train.run import train
from llama_eagle.train.settings import Settings
from llama_eagle.train.state import FILE
from safetensors.torch import load_file

SENTENCES = ["The quick brown fox jumps over the lazy dog. ", "We'll see 12345 times, isn't it? ", "def verify(ids): "]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_training_target("qwen3", tmp_path_factory.mktemp("target"), hidden_size=32, intermediate_size=48)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "text.jsonl"
    return write_jsonl(path, *({"text": SENTENCES[i % 3] * 3 + SENTENCES[(i + 1) % 3] * 2} for i in range(26)))


@pytest.fixture
def settings(target: Path, data: Path, tmp_path: Path) -> Settings:
    return Settings(
        output=tmp_path / "draft",
        target=str(target),
        data=(str(data),),
        device="cpu",
        dtype="f32",
        n_vocab_draft=96,
        n_steps=3,
        max_length=32,
        batch_size=4,
        epochs=1,
        learning_rate=3e-3,
        eval_share=0.1,
        eval_every=5,
        save_every=4,
        log_every=1,
    )


def curve(folder: Path) -> list[dict[str, Any]]:
    """metrics.jsonl but for the clock."""
    records = read_metrics(folder / "metrics.jsonl")
    return [{k: v for k, v in record.items() if k != "tokens_per_s"} for record in records]


def test_training_learns_and_reports(settings: Settings) -> None:
    report = train(replace(settings, epochs=4))
    assert report is not None
    folder = settings.output
    records = curve(folder)
    training = [record for record in records if not record["held_out"]]
    judged = [record for record in records if record["held_out"]]
    assert [record["step"] for record in training] == list(range(1, report.steps + 1))
    assert training[-1]["losses"][0] < 0.9 * training[0]["losses"][0]  # later ones weigh little while that is high
    assert judged[-1]["step"] == report.steps
    assert report.mean_emitted == max(record["mean_emitted"] for record in judged) > 1
    assert training[-1]["lr"] < training[len(training) // 2]["lr"] < settings.learning_rate
    assert {path.name for path in folder.iterdir()} == {
        "config.json", "model.safetensors", "metrics.jsonl", "training.png", "training_state.pt",
    }  # fmt: skip
    assert (folder / "training.png").read_bytes().startswith(b"\x89PNG")
    assert load_file(folder / "model.safetensors")["lm_head.weight"].shape == (96, 32)


def interrupted(where: tuple[Any, str], n_calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the middle of that call, when it has done its work."""
    owner, name = where
    original, calls = getattr(owner, name), itertools.count(1)

    def call(*arguments: Any, **options: Any) -> Any:
        result = original(*arguments, **options)
        if next(calls) == n_calls:
            signal.raise_signal(signal.SIGINT)
        return result

    monkeypatch.setattr(owner, name, call)


LOSSES = (TrainingPass, "forward"), 7
# Where, at which call, and the last whole step then. Every fourth is saved, every fifth judged.
PLACES = {
    "online": (*LOSSES, 5),
    "offline": (*LOSSES, 5),
    "step": ((torch.optim.AdamW, "step"), 7, 7),
    "journal": ((Journal, "write"), 7, 6),
    "judging": ((training_loop.Loop, "_evaluate"), 2, 10),
    "export": ((training_run, "export_draft"), 1, 5),
    "saving": ((training_loop, "save_state"), 1, 4),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_resumed_run_has_the_same_curve(
    place: str, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if place == "offline":
        settings = replace(settings, features=tmp_path / "features")
    train(settings)
    cut = replace(settings, output=tmp_path / "cut")
    where, n_calls, n_steps = PLACES[place]
    with monkeypatch.context() as patch:
        interrupted(where, n_calls, patch)
        with pytest.raises(KeyboardInterrupt):
            train(cut)
    assert torch.load(cut.output / FILE, weights_only=True)["progress"]["step"] == n_steps
    with pytest.raises(UsageError, match="--resume"):
        train(cut)
    train(replace(cut, resume=True))
    assert curve(cut.output) == curve(settings.output)
    for name in ("model.safetensors", "config.json"):
        assert (cut.output / name).read_bytes() == (settings.output / name).read_bytes()


def test_what_cannot_be_resumed(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"has no training_state\.pt"):
        train(replace(settings, resume=True))
    train(settings)
    again = replace(settings, resume=True)
    with pytest.raises(ConfigError, match=r"learning_rate 0\.003, not 0\.1"):
        train(replace(again, learning_rate=0.1))
    other = write_jsonl(tmp_path / "other.jsonl", {"text": SENTENCES[0] * 20}, {"text": SENTENCES[1] * 20})
    with pytest.raises(ConfigError, match="data"):
        train(replace(again, data=(str(other),)))
    with monkeypatch.context() as patch:
        patch.setattr(training_run, "LOSS", "another")
        with pytest.raises(ConfigError, match="started with loss reached in rounds, not another"):
            train(again)
    before = curve(settings.output)
    assert curve(settings.output) == before
    (settings.output / "training_state.pt").write_bytes(b"PK broken")
    with pytest.raises(InputError, match="start again"):
        train(again)


@pytest.mark.parametrize("patience", [5, 1])
def test_a_finished_run_is_only_reported(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patience: int
) -> None:
    """The target is not run again, nor loaded, and the report is the same."""
    given = replace(settings, features=tmp_path / "features", learning_rate=1e-12, eval_every=2, patience=patience)
    report = train(given)
    assert report is not None and report.stopped_early == (patience == 1)
    before = curve(settings.output)
    shutil.rmtree(given.features)
    monkeypatch.setattr(training_run, "_online", lambda *_: pytest.fail("the target was loaded"))
    again = replace(given, resume=True)
    assert train(again) == report
    assert curve(settings.output) == before
    with pytest.raises(ConfigError, match="seed 0, not 7"):
        train(replace(again, seed=7))


def test_accumulated_passes_are_one_large_pass(settings: Settings, tmp_path: Path) -> None:
    """Samples alike in length, so that the mean of means is the mean; one step of all of them."""
    words = SENTENCES[0].split()
    texts = [{"text": "".join(f" {word}" for word in words[i:] + words[:i])} for i in range(8)]
    data = write_jsonl(tmp_path / "even.jsonl", *texts)
    once = replace(settings, data=(str(data),), eval_share=0, n_vocab_draft=512)
    losses = []
    for name, size, passes in (("whole", 8, 1), ("parts", 2, 4)):
        run = replace(once, output=tmp_path / name, batch_size=size, accumulate=passes)
        assert train(run).steps == 1
        losses.append(curve(run.output)[0])
    assert losses[0]["gradient_norm"] == pytest.approx(losses[1]["gradient_norm"], rel=1e-4)
    assert losses[0]["losses"] == pytest.approx(losses[1]["losses"], rel=1e-4)


def test_it_stops_when_acceptance_no_longer_rises(settings: Settings) -> None:
    report = train(replace(settings, learning_rate=1e-12, eval_every=2, patience=2, epochs=3))
    assert report is not None
    assert report.stopped_early and report.ended == "no gain in 2 evaluations: 52 samples are too few"
    assert report.steps == 6  # the first evaluation is the best, two more are not


def test_a_loss_that_is_not_finite_ends_the_run(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_loop, "schedule", lambda *_: float("inf"))
    with pytest.raises(EagleError, match="--lr"):
        train(settings)


def test_mean_emitted_counts_the_bonus_token() -> None:
    assert mean_emitted([]) == 1
    assert mean_emitted([0.5, 0.5]) == 1.75
    assert mean_emitted([0.0, 1.0]) == 1


def test_the_command(settings: Settings, tmp_path: Path) -> None:
    arguments = ["train", "--target", settings.target, "-o", tmp_path / "out", "--device", "cpu", "--max-length", 32]
    good = write_jsonl(tmp_path / "good.jsonl", *(chat("who " * i, SENTENCES[i % 3]) for i in range(8)))
    done = llama_eagle(*arguments, "--data", good, "--draft-vocab", 64, "--format", "speculators", "--json")
    assert done.code == 0, done.stderr
    assert done.json["n_vocab_draft"] == 64
    assert json.loads((tmp_path / "out" / "config.json").read_text())["architectures"] == ["Eagle3DraftModel"]
    bad = write_jsonl(tmp_path / "bad.jsonl", chat("q", "a"), {"messages": [{"role": "user", "content": "q"}]})
    arguments[4] = tmp_path / "other"
    assert_one_line_error(llama_eagle(*arguments, "--data", bad), 3, "bad.jsonl:2", "no assistant message")
    assert_one_line_error(llama_eagle(*arguments, "--data", good, "--format", "gguf"), 2, "speculators")
    assert not (tmp_path / "other").exists()


def test_options_of_a_head(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    """Without options of its shape, the target's architecture is checked next."""
    given = ["--target", settings.target, "--data", *settings.data, "-o", str(settings.output)]
    arguments = ["train", *given, "--kind", "mtp"]
    assert cli.run(arguments) == 3
    assert "--kind mtp: heads are trained for" in capsys.readouterr().err
    for more in (["--format", "speculators"], ["--ffn", "32"], ["--mrope"], ["--aux-layers", "1,2,3"]):
        assert cli.run([*arguments, *more]) == 2
        assert "--kind mtp: the head has the target's shape" in capsys.readouterr().err
    for more in (["--init", "draft"], ["--window", "64"], ["--steps", "1"]):
        assert cli.run(["train", *given, "--kind", "dspark", *more]) == 2
        assert more[0] in capsys.readouterr().err


@pytest.mark.parametrize("layout", ["specforge", "speculators"])
def test_a_run_starts_from_an_earlier_draft(settings: Settings, tmp_path: Path, layout: str) -> None:
    """Its weights, vocabulary, width, layers and window; at a rate of nothing, what comes out is what went in."""
    train(replace(settings, format=layout, ffn_size=40, aux_layers=(2, 3, 6), window=8))
    first = load_file(settings.output / "model.safetensors")
    again = replace(settings, output=tmp_path / "again", init=str(settings.output), format=layout, n_steps=2)
    train(replace(again, n_vocab_draft=None, learning_rate=1e-30, seed=5))
    second = load_file(again.output / "model.safetensors")
    assert second.keys() == first.keys()
    assert all(second[name].equal(first[name]) for name in first)
    configs = [json.loads((run.output / "config.json").read_text()) for run in (settings, again)]
    for config in configs:
        del config["held_out_acceptance"]  # by the length of its drafts
    assert configs[0] == configs[1] and configs[0]["trained_length"] == 8
    better = replace(again, output=tmp_path / "better", n_steps=3, window=12)
    train(better)
    config = json.loads((better.output / "config.json").read_text())
    assert config.get("transformer_layer_config", config)["sliding_window"] == 12
    assert curve(better.output)[0]["losses"][0] < curve(settings.output)[0]["losses"][0]


def test_a_run_continues_a_draft_of_another_producer(settings: Settings, tmp_path: Path) -> None:
    """With its heads, RoPE, M-RoPE under an old name and norms; at a rate of nothing, its weights come out."""
    rope = {**YARN, "mrope_section": [6, 3, 3]}
    spec = DraftSpec(
        hidden=32, target_hidden=32, n_head=6, n_head_kv=3, head_dim=24, ffn=40, norm_before_residual=True, rope=rope,
        legacy_rope=True,
    )  # fmt: skip
    folder = make_draft(tmp_path / "other", spec)
    train(replace(settings, init=str(folder), n_vocab_draft=None, learning_rate=1e-30))
    second = load_file(settings.output / "model.safetensors")
    for name, tensor in load_file(folder / "model.safetensors").items():
        assert second[name].equal(tensor), name
    config = json.loads((settings.output / "config.json").read_text())
    assert rope.items() <= config["rope_parameters"].items()
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]) == (6, 3, 24)
    assert config["norm_before_residual"] is True


@pytest.mark.parametrize("layout", ["specforge", "speculators"])
def test_a_draft_with_the_positions_of_its_target(settings: Settings, tmp_path: Path, layout: str) -> None:
    """Its file says so, and a run that starts from it keeps them."""
    target = make_training_target("qwen35-text", tmp_path / "target", hidden_size=32, intermediate_size=48)
    flat = replace(settings, target=str(target), format=layout, output=tmp_path / "flat")
    first = replace(flat, mrope=True, output=tmp_path / "first")
    second = replace(flat, init=str(first.output), output=tmp_path / "second")
    found = []
    for run in (flat, first, second):
        train(run)
        config = json.loads((run.output / "config.json").read_text())
        rope = config.get("transformer_layer_config", config)["rope_parameters"]
        found.append((rope.get("mrope_section"), rope.get("mrope_interleaved")))
    assert found == [(None, None), ([3, 3, 2], True), ([3, 3, 2], True)]
    with pytest.raises(ConfigError, match="flat has no mrope_section"):
        train(replace(flat, mrope=True, init=str(flat.output), output=tmp_path / "third"))


def test_what_a_run_cannot_start_from(settings: Settings, target: Path, tmp_path: Path) -> None:
    train(settings)
    with pytest.raises(InputError, match="no draft to start from"):
        train(replace(settings, output=tmp_path / "a", init=str(tmp_path)))
    with pytest.raises(InputError, match=r"it has no fc\.weight, so it is not an EAGLE-3 draft"):
        train(replace(settings, output=tmp_path / "b", init=str(target)))
    with pytest.raises(ConfigError, match=r"target.* has no mrope_section"):
        train(replace(settings, output=tmp_path / "d", mrope=True))
    again = replace(settings, output=tmp_path / "c", init=str(settings.output))
    for options, message in (
        ({"n_vocab_draft": 64}, "--draft-vocab 64: the draft in .*draft has 96"),
        ({"ffn_size": 40}, "--ffn 40: the draft in .*draft has 48"),
        ({"aux_layers": (2, 3)}, "--aux-layers 2,3: the draft in .*draft has 2,4,5"),
    ):
        with pytest.raises(UsageError, match=message):
            train(replace(again, **options))
    other = make_training_target("qwen3", tmp_path / "other", hidden_size=48, intermediate_size=48)
    with pytest.raises(InputError, match=r"trained for a target of hidden size 32, .* has 48"):
        train(replace(again, target=str(other)))


class Clock:
    """Each look at the clock takes a second."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def test_the_time_given_decides_the_steps(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The learning rate reaches its end with the time, however long the data would last; the bar does not jump."""
    monkeypatch.setattr(training_loop.time, "perf_counter", Clock())
    shares = [0.0]
    monkeypatch.setattr(Journal, "advance", lambda self, step, n_steps, done: shares.append(done))
    timed = replace(settings, epochs=50, eval_every=None, save_every=None, patience=0, seconds=200.0)
    report = train(timed)
    assert report is not None
    assert all(0 <= after - before < 0.1 for before, after in itertools.pairwise(shares)) and shares[-1] > 0.9
    records = [record for record in curve(settings.output) if not record["held_out"]]
    assert 10 < report.steps < 50 * 6
    assert records[-1]["lr"] < 0.02 * settings.learning_rate
    assert not report.stopped_early

    few = replace(timed, output=settings.output.with_name("few"), epochs=1, seconds=4000.0)
    assert (found := train(few)) is not None and found.steps == 12 and not found.stopped_early

    short = replace(timed, output=settings.output.with_name("short"), seconds=1.0)
    assert (found := train(short)) is not None and found.steps <= 2 and not found.stopped_early
    assert (short.output / "model.safetensors").exists()


def test_a_run_pays_for_its_own_features(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for those of another run with the same folder, also when it is resumed; and again for none of its own."""
    left = []

    def interrupt(self: training_loop.Loop, *_: Any) -> None:
        left.append(self.settings.seconds)
        (self.settings.output / FILE).touch()
        raise KeyboardInterrupt

    def spent(run: Settings, seconds: float) -> None:
        index = tmp_path / "features" / "index.json"
        found = json.loads(index.read_text())
        assert str(run.output) in found["spent"]
        index.write_text(json.dumps({**found, "spent": {str(run.output): seconds}}))

    monkeypatch.setattr(training_loop.Loop, "run", interrupt)
    monkeypatch.setattr(training_loop.Loop, "restore", lambda *_: None)
    monkeypatch.setattr(training_run.state, "load_state", lambda *_: None)
    first = replace(settings, features=tmp_path / "features", seconds=1000.0)
    second = replace(first, output=tmp_path / "second")
    for run in (first, replace(first, resume=True), second, replace(second, resume=True)):
        with pytest.raises(KeyboardInterrupt):
            train(run)
        if run == first:
            spent(run, 600.0)
    assert left[0] > 900 and left[1:] == [400.0, 1000.0, 1000.0]
    (first.output / FILE).unlink()
    with pytest.raises(KeyboardInterrupt):
        train(first)  # a new run in the same place
    assert left[-1] == 1000.0


def test_data_self_needs_an_engine(settings: Settings) -> None:
    with pytest.raises(UsageError, match="--data self needs a GGUF"):
        train(replace(settings, data=("self",)))
