"""A GGUF as the trainer's target: its features are those of transformers' forward pass of the same weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from fixtures.targets import make_target
from fixtures.training import chat, make_training_target, write_jsonl
from llama_eagle.convert.targets import TargetOptions, convert_target
from llama_eagle.errors import ConfigError, EagleError, InputError, UsageError
from llama_eagle.progress import progress
from llama_eagle.train import run as training_run
from llama_eagle.train import store, writing
from llama_eagle.train.checks import check_output
from llama_eagle.train.data.documents import read_documents
from llama_eagle.train.data.samples import Sample, SampleMaker
from llama_eagle.train.export import DraftOf, export_draft
from llama_eagle.train.features import OnlineFeatures
from llama_eagle.train.loop import Loop
from llama_eagle.train.machine.accelerator import make_accelerator
from llama_eagle.train.metrics import read_metrics
from llama_eagle.train.model import Eagle3Draft
from llama_eagle.train.run import train
from llama_eagle.train.settings import AUTO, NONE, Settings
from llama_eagle.train.targets.checkpoint import Target, TargetInfo, control_tokens, load_tokenizer, read_target
from llama_eagle.train.targets.engine import EngineFeatures, EngineTarget, EngineTokenizer, read_engine_target
from transformers import AutoTokenizer

pytestmark = pytest.mark.native

TOLERANCE = 1e-3  # relative to the largest value
CPU = torch.device("cpu")


def convert(folder: Path, outtype: str = "f32") -> Path:
    out = folder.with_suffix(".gguf")
    convert_target(folder, out, TargetOptions(outtype=outtype))
    return out


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= TOLERANCE * expected.abs().max()


@pytest.mark.parametrize("family", ["qwen35-text", "qwen35moe", "qwen3next", "qwen3", "qwen2", "llama3"])
def test_features_are_transformers(family: str, tmp_path: Path) -> None:
    """Also of a sequence that takes several decodes."""
    sizes = {"intermediate_size": None} if family == "qwen35moe" else {}  # as in the published ones
    folder = make_training_target(family, tmp_path / "target", seed=1, **sizes)
    layers = (4, 5, 6) if family == "qwen35moe" else None
    random = np.random.default_rng(4)
    samples = [Sample("", random.integers(0, 480, n).astype(np.int32), np.ones(n, np.bool_)) for n in (40, 600, 7)]
    theirs = Target(read_target(folder, layers), torch.float32, CPU)
    info = read_engine_target(str(convert(folder)), layers)
    assert info.geometry(96, None) == theirs.info.geometry(96, None)
    assert info.architecture.partition("For")[0] == theirs.info.architecture.partition("For")[0]
    assert info.aux_layers == theirs.info.aux_layers
    ours = EngineTarget(info, 640, "f32")
    expected = OnlineFeatures(theirs, None, samples).batch([0, 1, 2])
    found = EngineFeatures(ours, samples, torch.float32, CPU).batch([0, 1, 2])
    for i, sample in enumerate(samples):
        n = len(sample.tokens)
        parts = zip(found.features[i, :n].chunk(3, -1), expected.features[i, :n].chunk(3, -1), strict=True)
        for part, other in parts:
            assert_close(part, other)
        assert_close(found.final[i, :n], expected.final[i, :n])
    expected_weights, weights = theirs.frozen().tensors(), ours.frozen().tensors()
    assert weights.keys() == expected_weights.keys()
    assert ("mlp_up" in weights) == (family not in ("qwen35moe", "qwen3next"))
    for name, tensor in expected_weights.items():
        assert_close(weights[name], tensor)


def split_digits(folder: Path) -> None:
    """Give a checkpoint the pre-tokenizer and the class of SmolLM2, which transformers reads without that step."""
    path, settings = folder / "tokenizer.json", folder / "tokenizer_config.json"
    data = json.loads(path.read_text())
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    steps = [{"type": "Digits", "individual_digits": True}, byte_level]
    data["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
    data["normalizer"] = None
    model = data["model"]  # with two merges by which a number is not four tokens without the step
    by_id = sorted(model["vocab"], key=model["vocab"].get)
    model["vocab"] = {text: i for i, text in enumerate([*by_id[:-2], "20", "202"])}
    model["merges"] = [*model["merges"][:-2], ["2", "0"], ["20", "2"]]
    path.write_text(json.dumps(data))
    own = json.loads(settings.read_text()) if settings.exists() else {}
    settings.write_text(json.dumps(own | {"tokenizer_class": "GPT2Tokenizer"}))


def add_begin(folder: Path) -> None:
    """Let the tokenizer begin each text with a token."""
    path = folder / "tokenizer.json"
    data = json.loads(path.read_text())
    begin = next(token["id"] for token in data["added_tokens"] if token["content"] == "<|endoftext|>")
    data["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [],
        "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [begin], "tokens": ["<|endoftext|>"]}},
    }
    path.write_text(json.dumps(data))


@pytest.mark.parametrize("change", [None, split_digits, add_begin])
def test_samples_are_those_of_the_engine(change: Any, tmp_path: Path) -> None:
    """Tokens, masks and control tokens of a checkpoint and of its GGUF, also where transformers reads other tokens."""
    folder = make_training_target("qwen3", tmp_path / "target")
    if change is not None:
        change(folder)
    data = write_jsonl(
        tmp_path / "c.jsonl", chat("what is 12345?", "a number, isn't it?"), {"text": "def verify(ids): 2025\n\n  é"},
        {"messages": [{"role": "system", "content": "2 0 2 5"}, *chat("a", "b")["messages"]]},
    )  # fmt: skip
    theirs, info = load_tokenizer(folder), read_engine_target(str(convert(folder)))
    ours = EngineTokenizer(info)
    for found, expected in zip(*(SampleMaker(t, 64).make(read_documents([data])) for t in (ours, theirs)), strict=True):
        assert found.tokens.tolist() == expected.tokens.tolist()
        assert found.mask.tolist() == expected.mask.tolist()
    counts = np.ones(info.n_vocab, np.int64)
    assert control_tokens(info, ours, counts) == control_tokens(read_target(folder), theirs, counts)
    ids = theirs.encode("2025", add_special=True)
    assert len(ids) == {None: 4, split_digits: 4, add_begin: 5}[change]
    if change is split_digits:
        assert len(AutoTokenizer.from_pretrained(folder).encode("2025")) < 4, (
            "transformers reads it right: change this test"
        )


def test_a_draft_learns_alike(tmp_path: Path) -> None:
    """With the target in the loop and with its features on disk, within noise of training by the checkpoint."""
    folder = make_training_target("qwen3", tmp_path / "target", hidden_size=32, intermediate_size=48)
    sentences = ["The quick brown fox jumps over the lazy dog. ", "We'll see 12345 times, isn't it? "]
    data = write_jsonl(tmp_path / "t.jsonl", *({"text": sentences[i % 2] * 4} for i in range(26)))
    curves = []
    for number, (target, features) in enumerate(
        ((folder, AUTO), (convert(folder), NONE), (convert(folder), tmp_path / "features"))
    ):
        out = tmp_path / f"draft{number}"
        train(
            Settings(
                output=out, target=str(target), data=(str(data),), features=features, device="cpu", dtype="f32",
                n_vocab_draft=96, n_steps=3, max_length=32, batch_size=4, epochs=2, learning_rate=3e-3, eval_share=0.1,
                log_every=1, patience=0,
            )
        )  # fmt: skip
        curves.append([record["losses"][0] for record in read_metrics(out / "metrics.jsonl")])
    np.testing.assert_allclose(curves[1], curves[0], rtol=0.02)
    np.testing.assert_allclose(curves[2], curves[1], rtol=1e-4)
    assert curves[0][-1] < 0.9 * curves[0][0]


def test_features_are_kept_during_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the output folder. A run interrupted while they are computed continues there, and its time counts."""
    gguf = convert(make_training_target("qwen3", tmp_path / "target", hidden_size=32, intermediate_size=48))
    data = write_jsonl(tmp_path / "t.jsonl", *({"text": f"The quick brown fox {i} jumps. " * 3} for i in range(12)))
    settings = Settings(
        output=tmp_path / "draft", target=str(gguf), data=(str(data),), device="cpu", dtype="f32", n_steps=2,
        max_length=32, batch_size=2, epochs=2, eval_share=0, seconds=1000.0,
    )  # fmt: skip
    run, n_runs = EngineTarget.run, 0

    def interrupted(self: EngineTarget, tokens: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        nonlocal n_runs
        n_runs += 1
        if n_runs == 1 + 9:  # the first one is compared with the engine's logits
            raise KeyboardInterrupt
        return run(self, tokens)

    monkeypatch.setattr(EngineTarget, "run", interrupted)
    monkeypatch.setattr(store, "SAVE_EVERY", 4)
    with pytest.raises(KeyboardInterrupt):
        train(settings)
    with pytest.raises(UsageError, match="--resume"):
        train(settings)
    index = settings.output / "features" / "index.json"
    found = json.loads(index.read_text())
    assert found["n_done"] == 8 and found["spent"][""] > 0
    index.write_text(json.dumps({**found, "spent": {"": 998.0}}))
    left, begun = [], Mock(wraps=progress)
    monkeypatch.setattr(Loop, "run", lambda self, *_: left.append(self.settings.seconds))
    monkeypatch.setattr(training_run, "progress", begun)
    train(replace(settings, resume=True))
    assert 1 <= left[0] < 2 and n_runs == 10 + 4
    assert begun.call_args.kwargs["done"] == 8 / 12  # the bar continues
    assert not index.parent.exists()


def test_features_without_room_are_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_training_target("qwen3", tmp_path / "target", hidden_size=32, intermediate_size=48)
    gguf = read_engine_target(str(convert(folder)))
    settings = Settings(output=tmp_path / "draft", target="", data=())
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=training_run.SPARE * 1000))
    assert training_run._feature_folder(settings, gguf, 1000) == settings.output / "features"
    assert training_run._feature_folder(settings, gguf, 1001) is None
    assert training_run._feature_folder(replace(settings, epochs=1), gguf, 0) is None
    assert training_run._feature_folder(settings, read_target(str(folder)), 0) is None


def test_what_cannot_be_trained_for(tmp_path: Path) -> None:
    folder = make_training_target("qwen3", tmp_path / "target")
    gguf = convert(folder)
    data = write_jsonl(tmp_path / "t.jsonl", {"text": "abc " * 20})
    settings = {"output": tmp_path / "draft", "data": (str(data),)}
    with pytest.raises(ConfigError, match="--kind mtp: heads are trained for"):
        train(Settings(target=str(gguf), kind="mtp", **settings))
    with pytest.raises(ConfigError, match="boundaries"):
        train(Settings(target=str(gguf), aux_layers=(1, 99), **settings))
    with pytest.raises(InputError, match="no such file"):
        train(Settings(target=str(tmp_path / "none.gguf"), **settings))
    with pytest.raises(InputError, match="not a GGUF"):
        gguf.write_bytes(b"text" * 100)
        train(Settings(target=str(gguf), **settings))
    assert not (tmp_path / "draft").exists()


def test_a_target_writes_its_own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the server and the trainer. A second run needs --resume and uses the data as it is."""
    monkeypatch.setattr(writing, "N_DEFAULT", 6)
    folder = make_target("qwen3", tmp_path / "target", hidden_size=32, intermediate_size=48)
    settings = Settings(
        output=tmp_path / "draft", target=str(convert(folder)), data=("self",), device="cpu", dtype="f32",
        n_vocab_draft=96, n_steps=2, max_length=48, epochs=1, eval_share=0.2,
    )  # fmt: skip
    report = train(settings)
    assert report is not None and report.steps > 0
    written = (settings.output / "conversations.jsonl").read_text()
    assert len(written.splitlines()) == 6
    assert (settings.output / "model.safetensors").exists()
    with pytest.raises(UsageError, match="--resume"):
        train(settings)
    (settings.output / "training_state.pt").unlink()
    assert train(replace(settings, resume=True)) is not None
    assert (settings.output / "conversations.jsonl").read_text() == written


def exported(folder: Path, ffn_size: int, info: TargetInfo) -> str:
    """A draft before its first step, of this width and with the sizes of this target."""
    draft, ids = Eagle3Draft(info.geometry(96, ffn_size)), torch.arange(96)
    of = DraftOf("target", info.architecture, info.aux_layers)
    embedding = torch.zeros(info.n_vocab, info.text.hidden_size)
    export_draft(draft, folder, layout="specforge", draft_ids=ids, embedding=embedding, target=of)
    return str(folder)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"init": "none"}, "no draft to start from"),
        ({"init": "wide"}, "trained for a target of hidden size 48"),
        ({"mrope": True}, "has no mrope_section"),
        ({"features": Path("features")}, "its features are of other data"),
        ({"family": "qwen35-text", "kind": "mtp", "init": "none"}, "none"),
        ({"family": "qwen35-text", "kind": "mtp", "init": "head"}, r"pre_fc_norm_embedding\.weight is \[48\]"),
    ],
)
def test_what_is_refused_before_the_target_writes(
    options: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_run, "write_own_data", lambda *_: pytest.fail("the target wrote data"))
    monkeypatch.chdir(tmp_path)
    family = options.get("family", "qwen3")
    gguf = convert(make_training_target(family, tmp_path / "target", hidden_size=32, intermediate_size=48))
    wide = make_training_target("qwen35-text", tmp_path / "head", mtp=True, hidden_size=48, intermediate_size=48)
    exported(tmp_path / "wide", 40, read_target(wide))
    (tmp_path / "features").mkdir()
    (tmp_path / "features" / store.INDEX).touch()
    settings = Settings(output=tmp_path / "draft", target=str(gguf), data=("self",), device="cpu")
    with pytest.raises(EagleError, match=message):
        train(replace(settings, **{name: value for name, value in options.items() if name != "family"}))
    assert not settings.output.exists()


@pytest.mark.parametrize(("family", "kind"), [("qwen3", "eagle3"), ("qwen35-text", "mtp")])
def test_the_speed_is_measured_before_writing(
    family: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target's pass over two texts takes one second and a training step two; three epochs are planned."""
    gguf = convert(make_training_target(family, tmp_path / "target", hidden_size=32, intermediate_size=48))
    settings = Settings(
        output=tmp_path / "draft", target=str(gguf), data=("self",), device="cpu", dtype="f32", kind=kind, batch_size=2
    )  # fmt: skip
    seconds = iter([1.0, 2.0, 1.0, 2.0])
    monkeypatch.setattr(training_run, "_second_time", lambda work: (work(), next(seconds))[1])
    accelerator, dtype = make_accelerator(settings)
    info = read_engine_target(str(gguf))
    found = training_run._seconds_per_token(settings, info, accelerator, dtype)
    assert found == (1.0 + 3 * 2.0) / (2 * training_run.PROBE)
    found = training_run._seconds_per_token(replace(settings, max_length=48), info, accelerator, dtype)
    assert found == (1.0 + 3 * 2.0) / (2 * 48)
    assert not settings.output.exists()


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85"])
def test_a_written_conversation_may_contain_any_separator(separator: str, tmp_path: Path) -> None:
    settings = Settings(output=tmp_path, target=str(tmp_path / "t.gguf"), data=("self",), resume=True, seconds=100.0)
    records = ({**chat(f"a{separator}b", "c"), "elapsed_s": seconds} for seconds in (3.0, 7.0))
    write_jsonl(tmp_path / "conversations.jsonl", *records)
    assert writing.write_own_data(settings, lambda: 0.0).seconds == 93.0


def test_written_data_belongs_to_its_settings(tmp_path: Path) -> None:
    settings = Settings(output=tmp_path, target=str(tmp_path / "t.gguf"), data=("self",), resume=True)
    Path(settings.target).write_bytes(b"GGUF")
    part = tmp_path / "conversations.jsonl.part"
    part.write_text('{"identity": "of others"}\n{"number": 0, "answer": {"text": "abc", "elapsed_s": 1.0}}\n')
    with pytest.raises(UsageError, match="another target"):
        writing.write_own_data(settings, lambda: 0.0)
    with pytest.raises(UsageError, match="contains a training run"):
        check_output(replace(settings, resume=False))


def test_the_time_for_writing_is_stated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(output=tmp_path / "draft", target=str(tmp_path / "t.gguf"), data=("self",), seconds=180.0)
    Path(settings.target).write_bytes(b"GGUF")
    notes: list[str] = []
    monkeypatch.setattr(writing.console, "note", notes.append)
    monkeypatch.setattr(writing, "_write", lambda *_: writing.Written(settings.output, 1, 2, 30.0))
    assert writing.write_own_data(settings, lambda: 0.0025).seconds == 150.0
    assert notes[0].endswith("as much as fits into 3 minutes with 2.5 ms of training per token")


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("rest", ["", '{"number": 0, "answer": {"te', '{"number": 0, "answer": {}'])
def test_a_journal_without_a_conversation_starts_again(
    resume: bool, rest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With other settings too, and without --resume, because nothing is lost."""
    settings = Settings(output=tmp_path / "draft", target=str(tmp_path / "t.gguf"), data=("self",), resume=resume)
    Path(settings.target).write_bytes(b"GGUF")
    settings.output.mkdir()
    part = settings.output / "conversations.jsonl.part"
    part.write_text(f'{{"identity": "of others"}}\n{rest}')
    check_output(settings)
    written = writing.Written(settings.output, 1, 2, 3.0)
    monkeypatch.setattr(writing, "_write", lambda settings, journal, *_: (journal.add(0, {"text": "a"}), written)[1])
    writing.write_own_data(settings, lambda: 0.0)
    identity, answer = map(json.loads, part.read_text().split("\n")[:2])
    assert identity == {"identity": writing._identity(settings)} and answer["number"] == 0
