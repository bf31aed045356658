"""Prompt files of `llama-eagle evaluate`: the layouts it reads, and what it says about bad ones."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from llama_eagle.bench.prompts import OWN, read_prompts, take
from llama_eagle.errors import InputError
from llama_eagle.vision.encoder import MARKER


def write(path: Path, *lines: object) -> str:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines), "utf-8")
    return str(path)


def test_spec_bench_lines(tmp_path: Path) -> None:
    line = {"question_id": 81, "category": "writing", "turns": ["Hello", "Shorter"], "reference": ["x"]}
    (prompt,) = read_prompts([write(tmp_path / "question.jsonl", line)])
    assert (prompt.category, prompt.turns, prompt.text) == ("writing", ("Hello", "Shorter"), None)


def test_an_answer_after_the_last_user_message_is_left_out(tmp_path: Path) -> None:
    said = [("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello"), ("user", "Why?"), ("assistant", "So.")]
    line = {"messages": [{"role": role, "content": content} for role, content in said]}
    (prompt,) = read_prompts([write(tmp_path / "chats.jsonl", line)])
    assert [m["content"] for m in prompt.messages] == ["Be brief.", "Hi", "Hello"]
    assert prompt.turns == ("Why?",)


def test_blank_lines_are_skipped_but_counted(tmp_path: Path) -> None:
    file = write(tmp_path / "texts.jsonl", {"prompt": "One"}, "", {"prompt": "Two", "category": "b"})
    one, two = read_prompts([file])
    assert (one.text, one.category, two.text, two.category) == ("One", "all", "Two", "b")
    assert two.source == f"{file}:3"


def test_own_files_have_several_prompts_a_category() -> None:
    assert set(OWN) == {"chat", "lookup", "math"}
    prompts = read_prompts(["chat", "math"])
    assert len([p for p in prompts if p.category == "math"]) == 20
    assert len({p.category for p in prompts}) > 5
    assert len(take(prompts, 1)) == len({p.category for p in prompts})
    assert take(prompts, 0) == prompts


def test_each_marker_has_an_image_next_to_the_file(tmp_path: Path) -> None:
    line = {"images": ["a.png", "b/c.png"], "turns": [f"{MARKER} Which?", f"And {MARKER}?"]}
    (prompt,) = read_prompts([write(tmp_path / "images.jsonl", line)])
    assert prompt.images == (tmp_path / "a.png", tmp_path / "b/c.png")


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("{", "not JSON"),
        ("[1]", "expected a JSON object, found list"),
        ({"question": "x"}, "no turns, messages or prompt"),
        ({"turns": []}, "turns"),
        ({"turns": ["a", " "]}, "turns"),
        ({"turns": "a"}, "turns"),
        ({"messages": [{"role": "assistant", "content": "a"}]}, "no message of the user"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages"),
        ({"messages": []}, "no message of the user"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": "a", "category": 3}, "category"),
        ({"prompt": "a", "images": "a.png"}, "images is not a list"),
        ({"prompt": f"{MARKER} {MARKER}", "images": ["a.png"]}, "1 images, but 2 markers"),
        ({"turns": ["a"], "images": ["a.png"]}, "1 images, but 0 markers"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, line: object, part: str) -> None:
    file = write(tmp_path / "bad.jsonl", {"prompt": "good"}, line)
    with pytest.raises(InputError, match=part) as caught:
        read_prompts([file])
    assert str(caught.value).startswith(f"{file}:2: ")


def test_bad_bytes_are_named(tmp_path: Path) -> None:
    file = tmp_path / "latin.jsonl"
    file.write_bytes(b'{"prompt": "a"}\n{"prompt": "caf\xe9"}\n')
    with pytest.raises(InputError, match=r"latin.jsonl:2: not UTF-8"):
        read_prompts([str(file)])


def test_empty_and_missing_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="contains no prompts"):
        read_prompts([write(tmp_path / "empty.jsonl", "", "  ")])
    with pytest.raises(InputError, match=r"cannot be read.*chat, lookup, math"):
        read_prompts([str(tmp_path / "missing.jsonl")])


def test_prompts_of_look_up_are_of_every_kind() -> None:
    kinds = Counter(prompt.category for prompt in read_prompts(["lookup"]))
    assert set(kinds) == {"edit", "extract", "summarize", "rename", "agent", "repeat", "chat"}
    assert min(kinds.values()) >= 4
