"""Messages of the library on the command line: arguments have the names of its options."""

from __future__ import annotations

import dataclasses
import re

import pytest
from llama_eagle import cli, console
from llama_eagle.cli.app import command
from llama_eagle.cli.options import in_flags
from llama_eagle.drafting.options import DraftingOptions
from llama_eagle.generation.options import GenerationOptions, SamplingParams
from llama_eagle.quantize.quantize import QuantizeOptions
from llama_eagle.serving.llama_server.options import ServerOptions
from llama_eagle.sessions.options import ContextOptions, LoadOptions

OPTIONS = (
    ContextOptions,
    DraftingOptions,
    GenerationOptions,
    LoadOptions,
    QuantizeOptions,
    SamplingParams,
    ServerOptions,
)
# Arguments that the command line does not take, or only as a whole.
NOT_THERE = {
    "alias", "cache_ram", "context", "devices", "drafter", "drafting", "extra", "load", "load_mtp", "main_gpu", "model",
    "n_rs_seq", "no_alloc", "on_progress", "open_to_all", "penalty_last_n", "progress", "sampling", "split_mode",
    "tensor_types", "use_mlock", "use_mmap", "vocab_only",
}  # fmt: skip


def flags() -> set[str]:
    commands = [*command().commands.values()]
    return {flag for each in commands for option in each.params for flag in (*option.opts, *option.secondary_opts)}


@pytest.mark.parametrize("options", OPTIONS, ids=lambda kind: kind.__name__)
def test_every_argument_with_an_option_is_translated(options: type) -> None:
    known = flags()
    for field in dataclasses.fields(options):
        flag, _, rest = in_flags(f"{field.name}=5 is wrong").partition("=")
        if field.name in NOT_THERE:
            continue
        assert flag in known, field.name
        assert rest == "5 is wrong"


@pytest.mark.parametrize(
    ("message", "translated"),
    [
        ("(draft=FILE names one, draft=none turns it off)", "(--draft=FILE names one, --draft=none turns it off)"),
        ("draft='lookup' and lookup=False contradict", "--draft='lookup' and --no-lookup contradict"),
        ("exact=True guarantees the text", "--exact guarantees the text"),
        ("Lower n_draft or omit exact.", "Lower --n-draft or omit exact."),
        ("max_tokens=0: give 1 or more, or no limit (None).", "--n-predict=0: give 1 or more, or -1 for no limit."),
        ("the draft of n_batch", "the draft of --batch-size"),
        ("qwen35.n_ctx, /home/draft=1.gguf, n_ctx_train", "qwen35.n_ctx, /home/draft=1.gguf, n_ctx_train"),
        ("--draft=FILE, --temp=2", "--draft=FILE, --temp=2"),
    ],
)
def test_names_and_values(message: str, translated: str) -> None:
    assert in_flags(message) == translated


def test_notes_warnings_and_errors_are_translated(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """During a command: programs that call one in their own process get their own messages as they are."""

    def write(*_: object) -> None:
        for each in (console.note, console.warn, console.error, lambda text: console.failure("x", text, 2)):
            each("draft=none, n_ctx")

    monkeypatch.setattr(console, "on_terminal", lambda: True)
    monkeypatch.setattr(cli, "_keep_completion_in_one_line", write)
    assert cli.run(["doctor", "--typo", "--json"]) == 2
    output = capsys.readouterr()
    assert re.findall(r"--draft=none, (\S+)\n", output.err) == ["--ctx-size"] * 4
    write()
    output = capsys.readouterr()
    assert re.findall(r" ?draft=none, (\S+)\n", output.err) == ["n_ctx"] * 4 and not output.out
