"""Prompts of `answer`, and its journal and that of `train --data self`: what is continued, and what is refused."""

from __future__ import annotations

import json
import re
import threading
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from llama_eagle.errors import InputError, UsageError
from llama_eagle.serving.prompts import (
    CHAT,
    MAX_NAMED,
    Journal,
    Prompt,
    Questions,
    Refused,
    post,
    read_prompts,
)


@pytest.mark.parametrize(("n_more", "end"), [(0, ""), (1, "; and 1 more")])
def test_the_first_faulty_lines_are_named_and_the_others_counted(tmp_path: Path, n_more: int, end: str) -> None:
    (tmp_path / "prompts.jsonl").write_text("[]\n" * (MAX_NAMED + n_more))
    named = "; ".join(f"line {n}: neither[^;]*" for n in range(1, MAX_NAMED + 1))
    with pytest.raises(InputError, match=rf"prompts\.jsonl: {named}\){end}\. Correct"):
        read_prompts(tmp_path / "prompts.jsonl")


def test_each_prompt_has_a_seed_of_its_own() -> None:
    """The same in every run, and one that the server accepts; none for random answers."""
    prompts = [Prompt(number, text="a") for number in range(3)]
    for seed, expected in ((5, [5, 6, 7]), (2**32 - 3, [2**32 - 3, 2**32 - 2, 0]), (None, [None] * 3)):
        questions = Questions(is_chat=False, body={}, seed=seed)
        assert [questions.request(prompt)[1].get("seed") for prompt in prompts] == expected


def interrupted(output: Path, identity: str, n_answers: int) -> Path:
    """Leave the journal of a run that ended after `n_answers`, and return its path."""
    with closing(Journal(output, identity, overwrite=True)) as journal:
        for number in range(n_answers):
            journal.add(number, {"text": f"{number}"})
    return output.with_name(f"{output.name}.part")


def continued(output: Path, identity: str, overwrite: bool) -> list[int]:
    with closing(Journal(output, identity, overwrite)) as journal:
        return sorted(journal.answers)


@pytest.mark.parametrize("overwrite", [False, True])
def test_the_same_command_continues(tmp_path: Path, overwrite: bool) -> None:
    """--overwrite concerns the output: a repeated command keeps its own answers."""
    interrupted(tmp_path / "a.jsonl", "same", 3)
    assert continued(tmp_path / "a.jsonl", "same", overwrite) == [0, 1, 2]
    assert continued(tmp_path / "a.jsonl", "same", overwrite) == [0, 1, 2]


@pytest.mark.parametrize("left", ['{"identity": "other"}\n', '{"identity": "oth', '{"iden', ""])
def test_a_journal_without_answers_blocks_no_other_run(tmp_path: Path, left: str) -> None:
    """A run that stopped while the model was loading, or on a full disk, leaves such a file."""
    (tmp_path / "a.jsonl.part").write_text(left)
    assert continued(tmp_path / "a.jsonl", "same", overwrite=False) == []
    assert (tmp_path / "a.jsonl.part").read_text() == '{"identity": "same"}\n'


@pytest.mark.parametrize("data", ["a download", '{"identity": "other"}\n{"number": 0, "answer": {}}\n'])
def test_a_file_of_others_is_kept(tmp_path: Path, data: str) -> None:
    (tmp_path / "a.jsonl.part").write_text(data)
    with pytest.raises(UsageError, match="--overwrite"):
        continued(tmp_path / "a.jsonl", "same", overwrite=False)
    assert (tmp_path / "a.jsonl.part").read_text() == data


def test_answers_of_another_run(tmp_path: Path) -> None:
    part = interrupted(tmp_path / "a.jsonl", "other", 3)
    with pytest.raises(UsageError, match="belongs to other prompts or settings"):
        continued(tmp_path / "a.jsonl", "same", overwrite=False)
    assert part.read_text().count("\n") == 4
    assert continued(tmp_path / "a.jsonl", "same", overwrite=True) == []
    assert json.loads(part.read_text()) == {"identity": "same"}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"error": {"message": "too long"}}', "too long"),
        (b"<html>gateway</html>", "<html>gateway</html>"),
        (b'{"error": "busy"}', '{"error": "busy"}'),
        (b"", "HTTP Error 400: Bad Request"),
    ],
)
def test_the_reason_of_a_refusal(body: bytes, reason: str) -> None:
    """Servers and what stands before them answer with JSON, with a page or with nothing."""

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(400)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        with pytest.raises(Refused, match=f"^{re.escape(reason)}$"):
            post(f"http://127.0.0.1:{server.server_port}", "key", CHAT, {})
