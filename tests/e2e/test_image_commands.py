"""`generate`, `chat` and `evaluate` with images."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fixtures.command import assert_one_line_error, llama_eagle
from fixtures.vision_files import VisionFiles, make_vision_files, png

pytestmark = pytest.mark.native


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> VisionFiles:
    folder = tmp_path_factory.mktemp("vision")
    for name, data in (("a", png(1)), ("b", png(2)), ("large", png(3, 1600, 1600)), ("text", b"no picture")):
        (folder / f"{name}.png").write_bytes(data)
    return make_vision_files("qwen35", folder)


def models(files: VisionFiles, *options: object) -> tuple[object, ...]:
    return ("-m", files.target, "-d", files.draft, "--mmproj", files.mmproj, "-t", 1, *options)


def test_generate(files: VisionFiles) -> None:
    folder = files.target.parent
    a, b = ("--image", folder / "a.png"), ("--image", folder / "b.png")
    greedy = ("-n", 12, "--temp", 0, "--json")

    def text(prompt: str, *options: object) -> str:
        outcome = llama_eagle("generate", *models(files, *greedy), "-p", prompt, *options)
        assert outcome.code == 0, outcome
        return str(outcome.json["text"])

    said = text("what is this", *a)
    assert said == text("<__media__>what is this", *a)
    assert said == text("what is this", *a, "-d", "none")
    assert said != text("what is this", *b)
    assert text("<__media__> or <__media__>", *a, *b, "--system", "be brief") != said


def test_generate_refuses(files: VisionFiles) -> None:
    folder = files.target.parent

    def refused(code: int, part: str, image: str, *options: object) -> None:
        outcome = llama_eagle("generate", *models(files, "-n", 4), "--image", folder / image, *options)
        assert_one_line_error(outcome, code, part)

    refused(2, "2 markers", "a.png", "-p", "<__media__> <__media__>")
    refused(3, "unknown format", "text.png", "-p", "what")
    refused(3, "No such file", "missing.png", "-p", "what")
    refused(3, "fit into the context", "large.png", "-p", "what", "-c", 512)
    refused(2, "--image needs --mmproj", "a.png", "--tokens", "1,2")
    alone = llama_eagle("generate", "-m", files.target, "-p", "what", "--image", folder / "a.png")
    assert_one_line_error(alone, 2, "--image needs --mmproj")
    wrong = llama_eagle("generate", "-m", files.target, "--mmproj", files.draft, "-p", "what")
    assert_one_line_error(wrong, 3, "is not a vision encoder")


def test_chat(files: VisionFiles) -> None:
    folder = files.target.parent
    lines = [f"/image {folder}/a.png", "what is this", f"/image {folder}/text.png", "and now", "/stats", "/exit"]
    outcome = llama_eagle("chat", *models(files, "-n", 8, "--temp", 0), stdin="\n".join(lines))
    assert outcome.code == 3, outcome  # of the line that failed
    assert outcome.stderr.startswith("error: ") and "unknown format" in outcome.stderr
    assert len(outcome.stderr.splitlines()) == 1
    other = llama_eagle("chat", *models(files, "-n", 8, "--temp", 0), stdin="\n".join(lines[1:]))
    assert outcome.stdout.splitlines()[0] != other.stdout.splitlines()[0]
    blind = llama_eagle("chat", "-m", files.target, "-d", "none", stdin=f"/image {folder}/a.png\n")
    assert "loaded without --mmproj" in blind.stderr


def test_evaluate(files: VisionFiles) -> None:
    path = files.target.parent / "prompts.jsonl"
    records = [
        {"category": "images", "turns": ["what is <__media__>", "and <__media__>"], "images": ["a.png", "b.png"]},
        {"category": "texts", "prompt": "tell me <__media__>", "images": ["a.png"]},
    ]
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    options = ("--data", path, "-n", 8, "--ignore-eos", "--json")
    outcome = llama_eagle("evaluate", *models(files, *options))
    assert outcome.code == 0, outcome
    overall = outcome.json["overall"]
    assert (overall["n_turns"], overall["n_same"]) == (3, 3)
    record = {"turns": ["tell me", "and <__media__>" * 4], "images": ["large.png"] * 4}
    path.write_text(f"{path.read_text()}{json.dumps(record)}\n")  # found before the others are measured
    full = llama_eagle("evaluate", *models(files, *options))
    assert_in_json_error(full.json, "jsonl:3: 10143 tokens")
    blind = llama_eagle("evaluate", "-m", files.target, "-d", files.draft, *options)
    assert_in_json_error(blind.json, "--mmproj")


def assert_in_json_error(report: dict[str, object], part: str) -> None:
    assert part in str(report["error"])


@pytest.mark.parametrize("images", ["a.png", ["a.png", "b.png"], [5]])
def test_images_of_prompts_that_cannot_be(files: VisionFiles, images: object, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"prompt": "tell me <__media__>", "images": images}) + "\n")
    outcome = llama_eagle("evaluate", *models(files, "--data", path))
    assert_one_line_error(outcome, 3, "images")
