"""`llama-eagle generate` on the tiny pair: known text, known acceptance, the same with and without the draft."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from fixtures.command import assert_one_line_error, llama_eagle
from fixtures.tiny_gguf import END, Variant, write_draft, write_target
from llama_eagle.generation.stats import Statistics

pytestmark = pytest.mark.native

ALPHABET = "abcdefghijklmnopqrstuvwxyz"
KEYS = {
    "text", "tokens", "n_prompt", "n_generated", "prompt_ms", "decode_ms", "tokens_per_second", "stop_reason",
    "speculative", "draft_device", "drafter", "placement", "exact", "inexact", "unverified",
}  # fmt: skip
SPECULATIVE_KEYS = {
    "drafter", "rounds", "rounds_of", "n_drafted", "n_accepted", "accept_rate", "mean_emitted",
    "accepted_per_position", "ms",
}  # fmt: skip


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(tmp_path_factory.mktemp("models") / "target.gguf")


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_draft(tmp_path_factory.mktemp("models") / "draft.gguf")


def test_plain(target: Path) -> None:
    given = ("--raw", "-p", "abc", "-n", 60, "--temp", 0, "-t", 1, "-d", "none", "--json")
    result = llama_eagle("generate", "-m", target, *given).json
    assert set(result) == KEYS
    assert result["text"] == (ALPHABET * 4)[3:63]
    assert result["tokens"] == [ord(c) for c in result["text"]]
    assert (result["n_prompt"], result["n_generated"], result["speculative"]) == (3, 60, None)


@pytest.mark.parametrize("n_draft", ["0", "1", "2", "7", "16", "auto"])
def test_the_draft_changes_nothing_but_the_rounds(target: Path, draft: Path, n_draft: str) -> None:
    result = llama_eagle(
        "generate",
        "-m",
        target,
        "-d",
        draft,
        "--raw",
        "-p",
        "abc",
        "-n",
        60,
        "--temp",
        0,
        "-t",
        1,
        "--n-draft",
        n_draft,
        "--json",
    ).json
    assert result["text"] == (ALPHABET * 4)[3:63]
    assert result["draft_device"] == "CPU"
    speculative = result["speculative"]
    assert set(speculative) == SPECULATIVE_KEYS
    assert set(speculative["ms"]) == {"draft", "verify", "sample", "commit", "python"}
    if n_draft in "127":  # the first token is always right, the second always wrong; the first of all is no round's
        assert speculative["accepted_per_position"] == ([1.0] if n_draft == "1" else [1.0, 0.0])
        assert speculative["rounds"] == 30
        assert speculative["mean_emitted"] == pytest.approx(59 / 30)
    if n_draft == "0":
        assert speculative["rounds"] == 59
        assert speculative["n_drafted"] == 0


def test_stops_at_the_end_token_in_the_middle_of_a_round(target: Path, draft: Path) -> None:
    for extra in ([], ["-d", draft, "--n-draft", 1], ["-d", draft, "--n-draft", 4]):
        for prompt in ("AB", "ABC"):  # the end token is drafted, or the target's own
            result = llama_eagle(
                "generate", "-m", target, *extra, "--raw", "-p", prompt, "-n", 60, "--temp", 0, "-t", 1, "--json"
            ).json
            assert prompt + result["text"] == ALPHABET.upper()
            assert result["stop_reason"] == "end"
            assert END not in result["tokens"]


def test_ignore_eos(target: Path, draft: Path) -> None:
    arguments = ["--raw", "-p", "XY", "-n", 10, "--temp", 0, "-t", 1, "--ignore-eos", "--json"]
    plain = llama_eagle("generate", "-m", target, *arguments).json
    speculative = llama_eagle("generate", "-m", target, "-d", draft, "--n-draft", 3, *arguments).json
    assert plain["tokens"] == speculative["tokens"]
    assert plain["tokens"][:2] == [ord("Z"), END]
    assert plain["n_generated"] == 10


@pytest.mark.parametrize("n_draft", [1, 3])
def test_ends_with_the_context_exactly_where_plain_decoding_does(target: Path, draft: Path, n_draft: int) -> None:
    arguments = ["--raw", "-p", "abc", "-n", -1, "--temp", 0, "-t", 1, "--ctx-size", 40, "--json"]
    plain = llama_eagle("generate", "-m", target, *arguments).json
    speculative = llama_eagle("generate", "-m", target, "-d", draft, "--n-draft", n_draft, *arguments).json
    assert plain["stop_reason"] == speculative["stop_reason"] == "context"
    assert plain["tokens"] == speculative["tokens"]
    assert plain["n_generated"] == 40 - 3 + 1  # the last token needs no room


def test_seeded_sampling_is_the_same_with_the_draft(tmp_path: Path) -> None:
    soft = Variant(sharpness=4.0)
    target, draft = write_target(tmp_path / "t.gguf", soft), write_draft(tmp_path / "d.gguf", soft)
    arguments = [
        "--raw",
        "-p",
        "abc",
        "-n",
        80,
        "--temp",
        1.0,
        "--top-k",
        0,
        "--top-p",
        1,
        "--min-p",
        0,
        "-t",
        1,
        "--json",
    ]
    texts = set()
    for seed in (1, 2):
        plain = llama_eagle("generate", "-m", target, *arguments, "--seed", seed, "--ignore-eos").json
        with_draft = llama_eagle(
            "generate", "-m", target, "-d", draft, "--n-draft", 3, *arguments, "--seed", seed, "--ignore-eos"
        ).json
        assert plain["tokens"] == with_draft["tokens"]
        texts.add(plain["text"])
    assert len(texts) == 2


def test_repeat_penalty_is_the_same_with_the_draft(target: Path, draft: Path) -> None:
    arguments = [
        "--raw",
        "-p",
        "abcabcdabc",
        "-n",
        60,
        "--temp",
        0,
        "--repeat-penalty",
        3,
        "-t",
        1,
        "--ignore-eos",
        "--json",
    ]
    plain = llama_eagle("generate", "-m", target, *arguments).json
    assert plain["text"] != (ALPHABET * 4)[3:63]
    assert (
        plain["tokens"] == llama_eagle("generate", "-m", target, "-d", draft, "--n-draft", 4, *arguments).json["tokens"]
    )


def test_token_ids_files_and_chat(target: Path, tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text("abc")
    common = ["-n", 4, "--temp", 0, "-t", 1]
    assert llama_eagle("generate", "-m", target, "--tokens", "97,98,99", *common).stdout == "defg\n"
    assert llama_eagle("generate", "-m", target, "--raw", "-f", tmp_path / "prompt.txt", *common).stdout == "defg\n"
    assert llama_eagle("generate", "-m", target, "--raw", "-f", "-", *common, stdin="abc").stdout == "defg\n"
    chat = llama_eagle("generate", "-m", target, "-p", "hi", "--system", "be brief", *common, "--json").json
    assert chat["n_prompt"] == len("system\nbe brief\nuser\nhi\nassistant\n") + 5
    assert chat["text"] == "abcd"


def test_nothing_but_data_on_stdout_and_nothing_on_a_stderr_that_is_no_terminal(target: Path) -> None:
    outcome = llama_eagle("generate", "-m", target, "--raw", "-p", "abc", "-n", 4, "--temp", 0, "-t", 1)
    assert (outcome.stdout, outcome.stderr) == ("defg\n", "")
    verbose = llama_eagle("generate", "-m", target, "--raw", "-p", "abc", "-n", 4, "--temp", 0, "-t", 1, "-v")
    assert verbose.stdout == "defg\n"
    assert "llama_model_loader" in verbose.stderr


def test_ctrl_c_leaves_cleanly(target: Path) -> None:
    command = [sys.executable, "-m", "llama_eagle", "generate", "-m", str(target), "--raw", "-p", "abc", "-n", "-1"]
    process = subprocess.Popen(
        [*command, "--temp", "0", "-t", "1", "--ctx-size", "100000"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.read(5) == "defgh"
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert stderr.splitlines()[1:] == ["error: interrupted"]  # after a warning about the context


def test_a_reader_that_goes_away_is_no_error(target: Path) -> None:
    command = f"{sys.executable} -m llama_eagle generate -m {target} --raw -p abc -n 1000 --temp 0 -t 1 | head -c 3"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("def", "")


def test_past_the_drafts_own_context_its_memory_slides(target: Path, draft: Path) -> None:
    def run(*options: object, prompt: str = "abc", n: int = 400) -> tuple[dict[str, Any], str]:
        pair = ("-m", target, "-d", draft, "--raw", "-p", prompt, "-n", n, "--temp", 0, "-t", 1, "--n-draft", 1)
        done = llama_eagle("generate", *pair, *options, "--json")
        return done.json, done.stderr

    (whole, said), (short, warned) = run(), run("--draft-ctx-size", 64)
    assert short["text"] == whole["text"]
    assert short["speculative"]["n_drafted"] > 0.9 * whole["speculative"]["n_drafted"]
    assert warned.count("it drafts from the last 64 tokens.") == 1 and "it drafts from" not in said
    _, warned = run("--draft-ctx-size", 64, prompt="abc" * 40, n=8)  # during the prompt
    assert warned.count("it drafts from the last 64 tokens.") == 1


@pytest.mark.parametrize(
    ("options", "who"),
    [
        (("--draft", "lookup"), "look-up"),
        (("--draft", "lookup", "--n-draft", "4"), "look-up"),
        ((), "look-up and EAGLE-3"),
        (("--lookup", "--n-draft", "4"), "look-up and EAGLE-3"),
        (("--no-lookup",), "EAGLE-3"),
        (("--n-draft", "4"), "EAGLE-3"),
        (("--draft", "none"), None),
    ],
)
def test_look_up_on_the_command_line(target: Path, draft: Path, options: tuple[str, ...], who: str | None) -> None:
    """Alone, and before a draft model; the text is that of plain decoding."""
    given = options if "--draft" in options else (*options, "-d", draft)
    arguments = ("-m", target, "--raw", "-p", ALPHABET * 2, "-n", 60, "--temp", 0, "-t", 1, "--json")
    result = llama_eagle("generate", *arguments, *given).json
    assert result["text"] == (ALPHABET * 4)[:60]
    if who is None:
        assert result["speculative"] is None
    else:
        assert result["speculative"]["drafter"] == who
        assert set(result["speculative"]["rounds_of"]) <= {"look-up", "EAGLE-3", "none"}
        if "4" in options:  # "auto" decides by time
            assert result["speculative"]["n_accepted"] > 20


def test_the_chat_template_is_the_default(target: Path) -> None:
    common = ("generate", "-m", target, "-n", 4, "--temp", 0, "-t", 1, "--json")
    assert llama_eagle(*common, "-p", "hi").json["n_prompt"] == len("user\nhi\nassistant\n") + 3
    assert llama_eagle(*common, "--raw", "-p", "hi").json["n_prompt"] == len("hi")
    assert_one_line_error(
        llama_eagle(*common[:-1], "--raw", "-p", "hi", "--system", "x"), 2, "--raw uses no chat template"
    )


@pytest.mark.parametrize("given", [(), ("--n-draft", 3)])
def test_stop_texts(target: Path, draft: Path, given: tuple[object, ...]) -> None:
    drafting = ("-d", draft, *given) if given else ()
    common = ("generate", "-m", target, *drafting, "--raw", "-p", "abc", "-n", 60, "--temp", 0, "-t", 1, "--json")
    result = llama_eagle(*common, "--stop", "mno", "--stop", "klx").json
    assert (result["text"], result["stop_reason"]) == ("defghijkl", "stop")
    result = llama_eagle(*common, "--stop", "nothing like it").json
    assert (result["n_generated"], result["stop_reason"]) == (60, "length")
    assert_one_line_error(llama_eagle(*common[:-1], "--stop", ""), 2, "empty stop text")


def test_grammars_and_schemas(target: Path, draft: Path, tmp_path: Path) -> None:
    common = ("generate", "-m", target, "-p", "abc", "-n", 40, "--temp", 0, "-t", 1, "--json")
    (tmp_path / "few.gbnf").write_text('root ::= ("x" | "q")+')
    texts = [llama_eagle(*common, "-d", draft, *more, "--grammar", tmp_path / "few.gbnf").json["text"]
             for more in ((), ("--n-draft", 0), ("--n-draft", 5))]  # fmt: skip
    assert texts[0] == texts[1] == texts[2]
    assert set(texts[0]) <= set("xq")
    schema = '{"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}'
    assert json.loads(llama_eagle(*common, "-n", 120, "--json-schema", schema).json["text"])["a"] in (1, 2)
    broken = llama_eagle(*common, "--grammar", "root ::= (")  # llama.cpp reports it on stderr too
    assert (broken.code, broken.json["error"]["type"]) == (2, "UsageError")
    log = llama_eagle(*common[:-1], "--grammar", "root ::= (", "-v").stderr
    assert "cannot be parsed" in log and "load_tensors: " not in log  # found before the weights are loaded
    assert_one_line_error(llama_eagle(*common[:-1], "--json-schema", "{]"), 2, "cannot be turned into a grammar")
    assert_one_line_error(llama_eagle(*common[:-1], "--json-schema", schema, "--grammar", "x"), 2, "not both")


def test_what_is_told_of_a_generation() -> None:
    from llama_eagle.cli.commands.generate import MIN_COMPARED, summary
    from llama_eagle.generation.generate import GenerationResult

    statistics = Statistics("EAGLE-3")
    statistics.add_round(3, 1, 2, "EAGLE-3")
    common = {"text": "", "n_prompt": 10, "prompt_ms": 100.0}
    fast, slow, short, alone = (
        summary(GenerationResult(
            **common, tokens=[1] * n, decode_ms=50.0 * n, stop_reason="end", speculative=said, plain_ms=plain
        ))
        for said, plain, n in (
            (statistics, 100.0, MIN_COMPARED), (statistics, 25.0, 20), (statistics, 100.0, MIN_COMPARED - 1),
            (None, None, 20),
        )
    )  # fmt: skip
    assert alone == "prompt: 10 tokens, 100 tokens/s; answer: 20 tokens, 20.0 tokens/s (complete)"
    assert "plain decoding" not in short
    assert "20.0 tokens/s, 2.00 tokens per round (EAGLE-3 1) (complete)" in fast
    assert fast.endswith("plain decoding: about 10.0 tokens/s; with drafting 2.00 x as fast")
    assert "0.50 x as fast: drafting is slower here (--draft none" in slow
