"""From a checkpoint and data to a draft that drafts: the documented commands, every family, images, bad data."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from fixtures.training import chat, make_training_target, write_jsonl
from llama_eagle.bench.evaluate import Gain
from llama_eagle.cli import main
from llama_eagle.cli.commands.train import _advice
from llama_eagle.convert import drafts
from llama_eagle.convert.drafts import convert_draft
from llama_eagle.convert.targets import convert_target
from llama_eagle.errors import EnvironmentFailure
from llama_eagle.gguf.header import read_header
from llama_eagle.train.loss import TrainingPass
from llama_eagle.train.metrics import read_metrics
from llama_eagle.train.run import train
from llama_eagle.train.settings import Settings
from PIL import Image

TEXT = "the quick brown fox jumps over the lazy dog it's what they've said isn't 12 345 def verify ids list int sum"


def command(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, dict[str, Any], str]:
    """Exit code, the object of --json, stderr."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main([*map(str, arguments), "--json"])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), json.loads(out), err


def write_text(path: Path, n_words: int) -> Path:
    random = np.random.default_rng(1)
    path.write_text(" ".join(random.choice(TEXT.split(), n_words)))
    return path


# --- the documented way -----------------------------------------------------------------------------------------------


def make_target_that_knows(text: str, folder: Path) -> Path:
    """A tiny target trained on a text until it can say it by heart, almost."""
    make_training_target("qwen3", folder, seed=3, dtype="float32")
    model = transformers.Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.tensor(transformers.AutoTokenizer.from_pretrained(folder)(text)["input_ids"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    random = torch.Generator().manual_seed(0)
    for _ in range(60):
        starts = torch.randint(0, len(ids) - 32, (8,), generator=random)
        batch = torch.stack([ids[start : start + 32] for start in starts])
        loss = model(batch, labels=batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert loss < 1, loss
    model.bfloat16().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A text and the target that knows it."""
    folder = tmp_path_factory.mktemp("known")
    text = folder / "my-texts.txt"
    text.write_text(f"{TEXT}. " * 200)
    return text, make_target_that_knows(text.read_text(), folder / "my-model")


@pytest.mark.native
def test_train_convert_generate(known: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The commands of docs/training.md, on a text file: the draft pays, and the text stays the same."""
    target, draft = tmp_path / "target.gguf", tmp_path / "draft.gguf"
    text, folder = known
    options = ["--device", "cpu", "--max-length", 32, "--epochs", 1]
    code, trained, _ = command(
        capsys, "train", "--target", folder, "--data", text, "-o", tmp_path / "my-draft", *options
    )
    assert code == 0
    assert trained["vocab_coverage"] == 1
    for source, more in ((folder, ["-o", target]), (tmp_path / "my-draft", ["--target", target, "-o", draft])):
        assert command(capsys, "convert", source, *more, "--outtype", "q8_0")[0] == 0
    results = []
    for more in ([], ["-d", draft, "--n-draft", 4]):
        arguments = ["-m", target, "--raw", "-p", "the quick brown", "-n", 64, "--temp", 0, "--ignore-eos", "-t", 1]
        code, result, _ = command(capsys, "generate", *arguments, *more)
        assert code == 0, result
        results.append(result)
    plain, drafted = results
    assert drafted["tokens"] == plain["tokens"]
    assert drafted["speculative"]["mean_emitted"] > 2, (trained, drafted["speculative"])


def greedy(target: Path) -> tuple[object, ...]:
    """Return the arguments that continue a text of the known words."""
    options = ("-n", 64, "--temp", 0, "--ignore-eos", "-t", 1)
    return ("generate", "-m", target, "--raw", "-p", "the quick brown", *options)


@pytest.mark.native
def test_train_from_a_gguf_to_a_gguf(
    known: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One command: the draft of a GGUF target is found next to it. A wrong type is refused before training."""
    text, folder = known
    target, draft = tmp_path / "my-model.gguf", tmp_path / "eagle3-my-model.gguf"
    convert_target(folder, target)
    train = ("train", "--target", target, "--data", text, "-o", tmp_path / "my-draft", "--gguf", draft)
    options = ("--device", "cpu", "--max-length", 32, "--window", 16, "--epochs", 1, "--gguf-type")
    code, refused, _ = command(capsys, *train, *options, "q9")
    assert code == 2 and "q9" in refused["error"]["message"] and not (tmp_path / "my-draft").exists()
    assert command(capsys, *train, *options, "Q4_0")[0] == 0
    header = read_header(draft)
    assert header.tensors["blk.0.ffn_up.weight"].type_name == "Q4_0"
    assert header.arch_key("attention.sliding_window") == header.keys["llama_eagle.trained_length"] == 16
    with pytest.raises(SystemExit):  # a finished run is only reported
        main([*map(str, (*train, *options, "Q4_0", "--resume", "--overwrite"))])
    ended, advice, *_ = capsys.readouterr().out.splitlines()
    assert ended.endswith("on held-out data; 1 epoch is done")
    drafted, looked_up, plain = map(float, re.findall(r"(\d+\.\d) (?:tokens/s )?with ", advice))
    assert advice.startswith("Use it, " if drafted / max(looked_up, plain) >= 1.03 else "Do not use it yet, ")
    assert (f"llama-eagle generate -m {target} -d {draft}" in advice) == advice.startswith("Use it")
    generate = greedy(target)
    # Named: on a busy machine the draft next to the target can have been measured to be slower than plain decoding.
    drafting = ("-d", draft, "--n-draft", 4, "--no-lookup")
    plain, found = (command(capsys, *generate, *more)[1] for more in (("-d", "none"), drafting))
    assert found["tokens"] == plain["tokens"]
    assert found["speculative"]["mean_emitted"] > 1.5


def test_a_draft_that_look_up_beats_is_not_advised() -> None:
    advice = _advice("t.gguf", Path("d.gguf"), Gain(plain=100.0, lookup=150.0, draft=148.0))
    assert advice.startswith("Do not use it yet, 0.99 times the speed without it: 148.0 tokens/s with it, 150.0 with")
    assert _advice("t.gguf", Path("d.gguf"), Gain(100.0, None, 148.0)).endswith("generate -m t.gguf -d d.gguf")


@pytest.mark.native
def test_a_dspark_draft_of_a_gguf(known: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It accepts more than one that has hardly learned, and the text stays the same."""
    text, folder = known
    target, short = tmp_path / "my-model.gguf", tmp_path / "short.txt"
    convert_target(folder, target)
    short.write_text(text.read_text()[:500])
    generate = greedy(target)
    plain = command(capsys, *generate, "-d", "none")[1]
    emitted = []
    for data, rate in ((short, 1e-9), (text, 3e-3)):
        draft = tmp_path / f"{data.stem}.gguf"
        options = ("--device", "cpu", "--max-length", 32, "--epochs", 1, "--lr", rate, "--draft-vocab", 256)
        train = ("train", "--kind", "dspark", "--target", target, "--data", data, "-o", tmp_path / data.stem)
        assert command(capsys, *train, "--gguf", draft, *options)[0] == 0
        code, drafted, _ = command(capsys, *generate, "-d", draft, "--n-draft", 4, "--no-lookup")
        assert code == 0 and drafted["tokens"] == plain["tokens"], drafted
        emitted.append(drafted["speculative"]["mean_emitted"])
    assert emitted[0] + 1 < emitted[1], emitted
    assert read_header(draft).keys["llama_eagle.trained_length"] == 32


def test_a_failed_conversion_is_repeated_without_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its error names the two ways. --resume takes the first, and the second gives the same file."""
    folder = make_training_target("qwen3", tmp_path / "target", hidden_size=32, intermediate_size=48)
    text, draft, gguf = write_text(tmp_path / "a.txt", 200), tmp_path / "my draft", tmp_path / "out.gguf"
    given = ("train", "--target", folder, "--data", text, "-o", draft, "--device", "cpu", "--epochs", 1)
    converted = drafts.convert_draft

    def full(*_: Any) -> None:
        raise EnvironmentFailure("no space left.")

    monkeypatch.setattr(drafts, "convert_draft", full)
    code, failed, _ = command(capsys, *given, "--gguf", gguf)
    message = failed["error"]["message"]
    assert code == 4 and message.startswith("no space left. The draft in") and "--resume" in message
    monkeypatch.setattr(drafts, "convert_draft", converted)
    monkeypatch.setattr(TrainingPass, "forward", lambda *_: pytest.fail("it was trained again"))
    code, report, _ = command(capsys, *given, "--gguf", gguf, "--resume")
    assert code == 0, report
    found = gguf.read_bytes()
    gguf.unlink()
    arguments = shlex.split(message.split("`")[1])
    assert arguments[:2] == ["llama-eagle", "convert"]
    assert command(capsys, *arguments[1:])[0] == 0 and gguf.read_bytes() == found


@pytest.mark.parametrize("name", ["target.gguf", "data.txt", "head/model.safetensors", "draft/model.safetensors"])
def test_a_gguf_that_would_replace_an_input(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_training_target("qwen3", tmp_path / "target", hidden_size=32, intermediate_size=48)
    convert_target(folder, tmp_path / "target.gguf")
    text = write_text(tmp_path / "data.txt", 200)
    for earlier in ("head", "draft"):
        (tmp_path / earlier).mkdir()
    (tmp_path / "head/model.safetensors").touch()
    options = ("--target", tmp_path / "target.gguf", "--data", text, "-o", tmp_path / "draft", "--init", folder)
    inputs = ("--init", tmp_path / "head", "--gguf", tmp_path / name)
    code, refused, _ = command(capsys, "train", *options, *inputs, "--device", "cpu")
    assert code == 2 and name in refused["error"]["message"]
    assert not any((tmp_path / "draft").iterdir())


# --- every family -----------------------------------------------------------------------------------------------------


def picture(path: Path, color: str) -> Path:
    Image.new("RGB", (96, 64), color).save(path)
    return path


def image_chats(folder: Path) -> Path:
    """Pictures lie next to the JSONL and are named relative to it."""
    (folder / "pictures").mkdir(parents=True)
    colors = ("red", "green", "blue", "white")
    for color in colors:
        picture(folder / "pictures" / f"{color}.png", color)
    see = [[{"type": "text", "text": "what is"}, {"type": "image", "image": f"pictures/{c}.png"}] for c in colors]
    chats = [chat(part, f"it is {color}, isn't it?") for part, color in zip(see, colors, strict=True)]
    chats += [chat("who", "the quick brown fox"), chat(see[0], "a", see[1], "a b c d")]
    return write_jsonl(folder / "c.jsonl", *chats)


@pytest.mark.native
@pytest.mark.parametrize("family", ["qwen35-text", "qwen35moe", "qwen3next", "qwen3moe", "llama3", "qwen35", "qwen3vl"])
def test_a_few_steps_and_a_draft_that_runs(family: str, tmp_path: Path) -> None:
    """Families with a vision tower are trained on images, one of them from features on disk."""
    from llama_eagle import EagleLlama

    folder = make_training_target(family, tmp_path / "target", hidden_size=32, intermediate_size=48)
    has_vision = "vision_config" in (folder / "config.json").read_text()
    settings = Settings(
        output=tmp_path / "draft",
        target=str(folder),
        data=(str(image_chats(tmp_path / "data") if has_vision else write_text(tmp_path / "a.txt", 200)),),
        features=tmp_path / "features" if family == "qwen3vl" else "none",
        device="cpu",
        dtype="f32",
        aux_layers=(4, 5, 6) if has_vision else None,
        max_length=128,
        batch_size=2,
        epochs=2,
        learning_rate=3e-3,
        eval_share=0.2,
    )
    train(settings)
    losses = [sum(record["losses"]) for record in read_metrics(settings.output / "metrics.jsonl")]
    assert min(losses[1:]) < losses[0]
    convert_target(folder, tmp_path / "target.gguf")
    convert_draft(settings.output, tmp_path / "target.gguf", tmp_path / "draft.gguf")
    texts = []
    for draft in (None, tmp_path / "draft.gguf"):
        llm = EagleLlama(tmp_path / "target.gguf", draft_path=draft, n_ctx=128, n_threads=1, n_draft=3, verbose=False)
        texts.append(llm.create_completion([5, 6, 7, 8], max_tokens=24, temperature=0)["choices"][0]["text"])
        assert draft is None or llm.speculative_stats.n_drafted > 0
        llm.close()
    assert texts[0] == texts[1]


def test_bf16_follows_f32(tmp_path: Path) -> None:
    folder = make_training_target("qwen3", tmp_path / "target", hidden_size=32, intermediate_size=48)
    text = write_text(tmp_path / "a.txt", 200)
    curves = []
    for dtype in ("f32", "bf16"):
        out = tmp_path / dtype
        common: dict[str, Any] = {"max_length": 48, "batch_size": 2, "eval_share": 0, "learning_rate": 3e-3}
        train(Settings(output=out, target=str(folder), data=(str(text),), device="cpu", dtype=dtype, **common))
        curves.append([sum(record["losses"]) for record in read_metrics(out / "metrics.jsonl")])
    assert len(curves[0]) > 10
    assert curves[1] == pytest.approx(curves[0], rel=0.03)
    assert curves[1] != curves[0]


# --- bad data through the command -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("targets")
    for family in ("qwen3", "qwen3vl"):
        make_training_target(family, folder / family, hidden_size=32, intermediate_size=48)
    return folder


def with_image(name: str) -> bytes:
    return json.dumps(chat([{"type": "image", "image": name}], "an answer")).encode()


GOOD = json.dumps(chat("a question", "an answer")).encode()
BAD = {
    "empty.txt": (b"", "empty.txt: empty"),
    "latin.txt": (b"ok\nna\xefve\n", "latin.txt:2: not UTF-8"),
    "empty.jsonl": (b"\n", "empty.jsonl: empty"),
    "latin.jsonl": (GOOD + b'\n{"text": "na\xefve"}\n', "latin.jsonl:2: not UTF-8"),
    "user.jsonl": (GOOD + b'\n{"messages": [{"role": "user", "content": "x"}]}\n', "user.jsonl:2: no assistant"),
    "gone.jsonl": (GOOD + b"\n" + with_image("gone.png"), "gone.jsonl:2: image gone.png is missing"),
    "broken.jsonl": (GOOD + b"\n" + with_image("broken.png"), "broken.jsonl:2: image"),
    "text-target.jsonl": (GOOD + b"\n" + with_image("good.png"), "text-target.jsonl:2: has an image, but"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_data(name: str, targets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content, message = BAD[name]
    (tmp_path / name).write_bytes(content)
    (tmp_path / "broken.png").write_bytes(b"\x89PNG broken")
    picture(tmp_path / "good.png", "red")
    family = "qwen3" if name.startswith("text-target") else "qwen3vl"
    arguments = ["--target", targets / family, "-o", tmp_path / "draft", "--device", "cpu"]
    arguments += [] if family == "qwen3" else ["--aux-layers", "4,5,6"]
    code, result, err = command(capsys, "train", *arguments, "--data", tmp_path / name)
    assert code == 3
    assert result["error"]["exit_code"] == 3
    assert message in result["error"]["message"]
    assert err == f"error: {result['error']['message']}\n"
    assert not (tmp_path / "draft").exists()
