"""Lines of llama-server's log: warnings lose what precedes the message, and lines about one request are dropped."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest
from llama_eagle.errors import EnvironmentFailure, UsageError
from llama_eagle.serving.llama_server.process import PromptLines, complaint, follow_log, until_end


@pytest.mark.parametrize(
    "text, message",
    [
        ("srv    load_model: failed to load the model", "failed to load the model"),
        ("spc         accept: none of 300 drafted tokens was accepted", "none of 300 drafted tokens was accepted"),
        ("slot update_slots: id  0 | task 12 | erased checkpoints", "erased checkpoints"),
        ("slot      release: id  3 | task -1 | no task", "no task"),
        ("llama_context: n_ctx_seq (512) < n_ctx_train (2048)", "n_ctx_seq (512) < n_ctx_train (2048)"),
        ("no origin at all", "no origin at all"),
        ('srv    operator(): got exception: {"error":{"code":400}}', ""),
        ("srv          stop: cancel task, id_task = 3", ""),
        ("srv    send_error: task id = 7, error: Prompt contains invalid tokens", ""),
        ("common_chat_peg_parse: unparsed peg-native output: {", ""),
        ("slot update_slots: id  0 | task 5 | n_past was set to 32", ""),
        ("slot update_slots: id  0 | task 5 | need to evaluate at least 1 token for each active slot (n_past = 3)", ""),
    ],
)
def test_messages(text: str, message: str) -> None:
    assert complaint("W", text) == complaint("E", text) == message
    assert complaint("I", text) == ""


def test_long_prompts_have_a_line_every_few_seconds() -> None:
    now = [0.0]
    prompts = PromptLines(lambda: now[0])
    text = (
        "slot print_timing: id  {} | task 7 | prompt processing, n_tokens =   {}, progress = 0.35, "
        "t =   3.51 s / 583.9 tokens per second"
    )
    assert prompts.line(text.format(1, 2048)) == "slot 1 reads its prompt: 35%, 2048 tokens, 584 tokens/s"
    now[0] = 4.0
    assert not prompts.line(text.format(1, 4096)) and prompts.line(text.format(0, 512)).startswith("slot 0 ")
    now[0] = 5.0
    assert prompts.line(text.format(1, 6144)).startswith("slot 1 reads its prompt: 35%, 6144 tokens")
    assert not prompts.line("slot update_slots: id  0 | task 12 | erased checkpoints")


def test_counts_of_drafts_are_reported() -> None:
    lines = ["0.00.123.456 I spec         accept: drafts by position: tried 300 150 50; accepted 150 50 7", "other"]
    seen: list[tuple[list[int], list[int]]] = []
    process = subprocess.Popen([sys.executable, "-c", f"print({chr(10).join(lines)!r})"], stdout=-1, text=True)
    follow_log(process, False, lambda _: None, on_drafts=lambda *counts: seen.append(counts))
    assert process.wait() == 0 and seen == [([300, 150, 50], [150, 50, 7])]


@pytest.mark.parametrize(
    "end, reason",
    [
        ("os.kill(os.getpid(), signal.SIGBUS)", "a file of the model was truncated"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "killed, perhaps for lack of memory"),
        ("sys.exit(3)", "status 3: no reason given"),
    ],
)
def test_an_end_without_a_word_has_a_reason(end: str, reason: str) -> None:
    process = subprocess.Popen([sys.executable, "-c", f"import os, signal, sys; {end}"], text=True)
    with pytest.raises(EnvironmentFailure, match=reason):
        until_end(process, lambda _: "", "See --verbose.")


END_OF_A_TEMPLATE = (
    "0.00.312.441 E common_chat_verify_template: failed to apply template: it never ends",
    "error: the supplied chat template is not supported: {% for",
)


@pytest.mark.parametrize("lines", list(itertools.permutations(END_OF_A_TEMPLATE)))
def test_the_reason_of_a_refused_template_does_not_depend_on_the_order_of_lines(lines: tuple[str, str]) -> None:
    """The log's thread writes one, the reader of arguments the other: llama.cpp 0c1e57098, common/arg.cpp."""
    process = subprocess.Popen(["printf", "%s\n", *lines], stdout=subprocess.PIPE, text=True)
    with pytest.raises(UsageError, match=r"arguments: failed to apply template: it never ends\."):
        until_end(process, lambda _: follow_log(process, False, print), "See --verbose.")
