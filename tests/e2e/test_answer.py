"""`llama-eagle answer`: a file of prompts, in order, resumed after a kill, with an error for each prompt that fails."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from fixtures.command import Outcome, llama_eagle, start
from fixtures.tiny_gguf import write_draft, write_target

pytestmark = pytest.mark.native


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(write_target(tmp_path_factory.mktemp("target") / "target.gguf"))


def command(prompts: Path, target: Path, out: Path, *more: object) -> list[object]:
    return ["answer", prompts, "-m", target, "-o", out, "-c", 256, "-t", 1, "-n", 4, "--temp", 0, *more]


def answer(prompts: Path, target: Path, out: Path, *more: object, **environment: str) -> Outcome:
    return llama_eagle(*command(prompts, target, out, *more), **environment)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").strip().split("\n")]


def write(path: Path, *entries: object) -> Path:
    path.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))
    return path


def test_texts_and_errors_in_order(target: Path, tmp_path: Path) -> None:
    """One at a time and several at once, with the input's own keys; a prompt that is too long has an error."""
    prompts = write(tmp_path / "p.jsonl", {"prompt": "abc", "id": 7}, "hij", {"prompt": "a" * 400}, "klm")
    for parallel in (1, 4):
        out = tmp_path / f"{parallel}.jsonl"
        done = answer(prompts, target, out, "--raw", "--parallel", parallel, "--json")
        assert done.code == 5, done.stderr
        assert json.loads(done.stdout)["errors"] == 1
        first, second, third, fourth = lines(out)
        assert (first["id"], first["text"], second["text"], fourth["text"]) == (7, "abcdefg", "hijklmn", "klmnopq")
        assert (first["finish_reason"], first["n_tokens"]) == ("length", 4)
        assert "exceed" in third["error"] and "text" not in third
        assert not out.with_name(f"{out.name}.part").exists()


def test_prompts_that_never_return_are_not_kept(target: Path, tmp_path: Path) -> None:
    """llama-server's cache of prompts would take memory, and warn as soon as it is full."""
    done = answer(write(tmp_path / "p.jsonl", "abc"), target, tmp_path / "out.jsonl", "--raw", "--verbose")
    assert done.code == 0 and "prompt cache is disabled" in done.stderr


def test_the_end_of_a_drafts_context_is_reported_once(target: Path, tmp_path: Path) -> None:
    """In the words of `generate`, for both prompts together."""
    prompts, draft = write(tmp_path / "p.jsonl", "a" * 40, "b" * 40), write_draft(tmp_path / "draft.gguf")
    done = answer(prompts, target, tmp_path / "out.jsonl", "--raw", "-d", draft, "--draft-ctx-size", 16, "--n-draft", 2)
    notice = "the text is longer than the draft's context: it drafts from the last 16 tokens"
    assert (done.code, done.stderr) == (0, f"warning: {notice}.\n")


class Proxy(BaseHTTPRequestHandler):
    """A proxy that answers every request itself, and so shows that it received one."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


def test_a_proxy_is_not_used(target: Path, tmp_path: Path) -> None:
    """The server is on this machine, and no proxy can reach it."""
    prompts, out = write(tmp_path / "p.jsonl", "abc"), tmp_path / "out.jsonl"
    with HTTPServer(("127.0.0.1", 0), Proxy) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        names = dict.fromkeys(("http_proxy", "HTTP_PROXY", "all_proxy"), f"http://127.0.0.1:{proxy.server_port}")
        done = answer(prompts, target, out, "--raw", **names, no_proxy="", NO_PROXY="")
        proxy.shutdown()
    assert done.code == 0, done.stderr
    assert [record["text"] for record in lines(out)] == ["abcdefg"]


def test_chats_keep_their_messages(target: Path, tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "abc"}]
    out = tmp_path / "out.jsonl"
    done = answer(write(tmp_path / "p.jsonl", {"messages": chat}, "hij"), target, out)
    assert done.code == 0, done.stderr
    for record, given in zip(lines(out), (chat, [{"role": "user", "content": "hij"}]), strict=True):
        assert record["messages"][:-1] == given and record["messages"][-1]["role"] == "assistant"


def test_a_killed_run_continues(target: Path, tmp_path: Path) -> None:
    prompts = write(tmp_path / "p.jsonl", *[chr(97 + n % 20) * 3 for n in range(400)])
    out, part = tmp_path / "out.jsonl", tmp_path / "out.jsonl.part"
    running = start(command(prompts, target, out, "--raw", "-n", 64), (0, 1, 2))
    while not part.exists() or part.read_text().count("\n") < 5:
        assert running.poll() is None
        time.sleep(0.01)
    running.kill()
    running.wait()
    kept = part.read_text().splitlines()[1:]
    assert not out.exists() and 4 <= len(kept) < 400
    part.write_text(part.read_text() + '{"number": 399, "ans')  # as a kill in the middle of a write leaves it
    marked = json.loads(kept[0])
    part.write_text(
        part.read_text().replace(kept[0], json.dumps({**marked, "answer": {**marked["answer"], "kept": 1}}))
    )
    other = answer(prompts, target, out, "--raw", "-n", 63)
    assert other.code == 2 and "other prompts or settings" in other.stderr
    n_earlier = part.read_text().count("\n") - 1
    done = answer(prompts, target, out, "--raw", "-n", 64, "--json")
    assert done.code == 0, done.stderr
    found = lines(out)
    report = json.loads(done.stdout)
    assert (report["prompts"], report["earlier"]) == (400 - n_earlier, n_earlier)
    assert report["tokens"] < sum(record["n_tokens"] for record in found)
    assert [record["prompt"] for record in found] == [json.loads(line) for line in prompts.read_text().splitlines()]
    assert [n for n, record in enumerate(found) if "kept" in record] == [marked["number"]]
    again = answer(prompts, target, out, "--raw", "-n", 64)
    assert again.code == 2 and "--overwrite" in again.stderr


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('"a"\n{"prompt": 5}\n{"messages": []}\n[1]\n', "line 2: neither"),
        ('"a"\nplain text\n', "line 2: not JSON"),
        ("\n\n", "contains no prompts"),
        ("[" * 100000, "line 1: nested too deeply"),
        ('"a"\n"b \\ud800 c"\n', "line 2: contains a lone surrogate, '\\ud800', which is no character"),
        ('{"messages": [{"role": "user", "content": "\\udfff"}]}\n', "line 1: contains a lone surrogate"),
        ('{"prompt": "a", "score": NaN}\n', "line 1: NaN is not JSON. Write null"),
        ('{"prompt": "a", "score": [-Infinity]}\n', "line 1: -Infinity is not JSON"),
        ('{"prompt": "a", "score": 1e999}\n', "line 1: contains a number that is too large"),
        ('{"prompt": "a", "score": ' + "9" * 5000 + "}\n", "line 1: contains a number that is too large"),
    ],
)
def test_faulty_files_are_refused_before_work(target: Path, tmp_path: Path, content: str, reason: str) -> None:
    prompts, out = tmp_path / "p.jsonl", tmp_path / "out.jsonl"
    prompts.write_text(content)
    done = answer(prompts, target, out)
    assert done.code == 3 and reason in " ".join(done.stderr.split())
    assert list(tmp_path.iterdir()) == [prompts]


def test_messages_need_a_template(target: Path, tmp_path: Path) -> None:
    prompts = write(tmp_path / "p.jsonl", {"messages": [{"role": "user", "content": "abc"}]})
    done = answer(prompts, target, tmp_path / "out.jsonl", "--raw")
    assert done.code == 3 and "Use `prompt` instead" in " ".join(done.stderr.split())


def test_drafting_options_have_an_effect_or_are_refused(target: Path, tmp_path: Path) -> None:
    prompts = write(tmp_path / "p.jsonl", "abc")
    done = answer(prompts, target, tmp_path / "out.jsonl", "--draft-sampling", "rejection")
    assert done.code == 2 and "--draft-sampling" in done.stderr
    done = answer(prompts, target, tmp_path / "out.jsonl", "--raw", "-d", "none", "--n-draft", 4)
    assert done.code == 0 and "a draft length of 4 has no effect" in " ".join(done.stderr.split())


def test_a_text_a_line(target: Path, tmp_path: Path) -> None:
    prompts, out = tmp_path / "p.txt", tmp_path / "out.jsonl"
    prompts.write_text("abc\n\nhij\n")
    assert answer(prompts, target, out, "--raw").code == 0
    assert [record["text"] for record in lines(out)] == ["abcdefg", "hijklmn"]
