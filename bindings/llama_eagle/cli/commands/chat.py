"""`llama-eagle chat`"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from llama_eagle import console
from llama_eagle.cli.chat_loop import Chat
from llama_eagle.cli.conversation import Conversation
from llama_eagle.cli.groups import grouped
from llama_eagle.cli.options import (
    CONTEXT_HELP,
    Computing,
    Drafting,
    NPredict,
    ParseSpecial,
    Plain,
    Sampling,
    Target,
    Verbose,
    Vision,
)
from llama_eagle.drafting.options import DraftingOptions
from llama_eagle.generation.options import RANDOM_SEED, GenerationOptions
from llama_eagle.progress import Bar


@dataclass(frozen=True)
class ChatOptions:
    """Options of the conversation and its display."""

    system: Annotated[str | None, typer.Option(help="System message of the conversation (default: none).")] = None
    no_think: Annotated[
        bool, typer.Option("--no-think", help="Answer without thinking, if the chat template supports it.")
    ] = False
    n_predict: NPredict = -1
    ctx_size: Annotated[
        int | None, typer.Option("--ctx-size", "-c", min=0, help=f"Context size in tokens {CONTEXT_HELP}")
    ] = None
    parse_special: ParseSpecial = True
    plain: Plain = False
    verbose: Verbose = False

    def chat(self, sampling: Sampling) -> Chat:
        """Return the chat before its first message. Raises `UsageError` for values out of range."""
        settings = settings_of(sampling, self.n_predict)
        return Chat(Conversation(self.system), settings, not self.no_think, plain=self.plain)

    def options(self, vision: Vision, drafts: DraftingOptions, computing: Computing) -> dict[str, Any]:
        """Return the arguments of `EagleLlama`. Raises `UsageError` for values out of range.

        Without --ctx-size there is no n_ctx: its default depends on the model.
        """
        from llama_eagle.drop_in.options import from_options

        options = from_options(drafts, computing.context(self.ctx_size or 1, 0), computing.load())
        del options["n_ctx"]
        options |= {"n_ctx": self.ctx_size} if self.ctx_size is not None else {}
        own = {"verbose": self.verbose, "parse_special": self.parse_special, "mmproj_path": vision.mmproj}
        return options | own


@grouped
def chat(
    target: Target,
    vision: Vision,
    drafting: Drafting,
    sampling: Sampling,
    computing: Computing,
    chat_options: ChatOptions,
) -> None:
    """Chat with a model on the terminal.

    Type /help in the chat for its commands. Input from a file or a pipe is read line by line, one message per line;
    the exit code is then that of the last line that failed.
    """
    from llama_eagle.drop_in.llama import EagleLlama
    from llama_eagle.drop_in.options import check_arguments

    drafts = drafting.options()
    options, chat = chat_options.options(vision, drafts, computing), chat_options.chat(sampling)
    check_arguments(options)  # before a download
    run_chat(target.file(drafts), options, chat, EagleLlama)


def settings_of(sampling: Sampling, n_predict: int) -> dict[str, Any]:
    """Return the arguments of `create_chat_completion`. Raises `UsageError` for values out of range."""
    params = sampling.params()
    length = GenerationOptions(max_tokens=None if n_predict == -1 else n_predict)
    return {
        "temperature": params.temperature,
        "top_k": params.top_k,
        "top_p": params.top_p,
        "min_p": params.min_p,
        "repeat_penalty": params.repeat_penalty,
        "seed": params.seed,
        "max_tokens": length.max_tokens,
    }


def run_chat(
    model: Path, options: dict[str, Any], chat: Chat, make: Callable[..., Any], question: str | None = None
) -> None:
    """Load `model` with the arguments `options` of `EagleLlama`, and chat until the end of the input.

    With a `question`, answer only that. Raises the errors of the answer, and `typer.Exit` if a line of a pipe failed.
    """
    from llama_eagle.gguf.header import read_model
    from llama_eagle.gguf.rotation import default_context
    from llama_eagle.native.processor.competition import report_to

    report_to(console.warn_after_answer)
    defaults = {"n_ctx": default_context(read_model(model)[0]), "seed": 1 + secrets.randbelow(RANDOM_SEED - 1)}
    options = {**defaults, **options}  # the library's seed is the same in each load
    bars = {"loading": Bar("loading", then="preparing"), "prompt": chat.prompt_bar}
    bars["loading"].start(after_s=1.0)
    try:
        llm = make(model, **options, on_progress=lambda what, done: bars[what].show(done))
    finally:
        bars["loading"].stop()
    with contextlib.closing(llm):
        console.note(llm.drafter)
        if question is None:
            code = chat.run(llm)
        else:
            code = 0
            chat.once(llm, question)
        llm.keep_acceptance()
    if code:
        raise typer.Exit(code)
