"""`llama-eagle generate`"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from llama_eagle import console
from llama_eagle.cli.groups import grouped
from llama_eagle.cli.options import Computing, Drafting, Json, Sampling, TargetFile, Verbose
from llama_eagle.errors import InputError, UsageError
from llama_eagle.generation.options import GenerationOptions

DEFAULT_CONTEXT = 4096  # tokens, when neither -n nor the prompt asks for more


@dataclass(frozen=True)
class Prompt:
    """What to continue."""

    prompt: Annotated[str | None, typer.Option("--prompt", "-p", help="The text to continue.")] = None
    prompt_file: Annotated[Path | None, typer.Option("--prompt-file", "-f", help="Read it from a file, - : stdin.")] = (
        None
    )
    tokens: Annotated[str | None, typer.Option(metavar="1,2,3", help="Token ids instead of text.")] = None
    system: Annotated[str | None, typer.Option(help="System message: the prompt becomes a chat turn.")] = None


@dataclass(frozen=True)
class Length:
    """How long the answer and the context may be."""

    n_predict: Annotated[int, typer.Option("-n", "--n-predict", help="Tokens to generate, -1: until the end.")] = 256
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on past end-of-generation tokens.")] = False
    ctx_size: Annotated[int, typer.Option("--ctx-size", "-c", min=0, help="Tokens, 0: what the job needs.")] = 0

    def n_ctx(self, n_prompt: int, n_ctx_train: int) -> int:
        needed = n_prompt + self.n_predict if self.n_predict > 0 else DEFAULT_CONTEXT + n_prompt
        return self.ctx_size or min(needed, max(n_ctx_train, 1))


@grouped
def generate(
    model: TargetFile,
    prompt: Prompt,
    length: Length,
    drafting: Drafting,
    sampling: Sampling,
    computing: Computing,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Generate text, with a draft or without."""
    from llama_eagle.drafting.resolve import resolve, session_options
    from llama_eagle.generation.generate import generate
    from llama_eagle.native import log
    from llama_eagle.sessions import exact
    from llama_eagle.sessions.models import Context, ModelPair
    from llama_eagle.sessions.open import open_session
    from llama_eagle.sessions.options import LoadOptions, PairOptions
    from llama_eagle.sessions.text import Tokenizer

    given = _read_prompt(prompt)
    log.set_verbose(verbose)
    if drafting.exact:
        exact.set_mode("strict")
    choice = resolve(model, drafting.options())
    drafts = choice.options
    console.note(choice.why)
    limit = None if length.n_predict == -1 else length.n_predict
    options = GenerationOptions(limit, sampling.params(), length.ignore_eos)
    with console.progress("loading") as on_progress:
        load = LoadOptions(computing.n_gpu_layers, on_progress=on_progress)
        pair = ModelPair(PairOptions(choice.target, drafts.model, load, drafts.draft_gpu_layers))
    with pair:
        if drafting.exact and (unverified := exact.require(pair.target)):
            console.warn(unverified)
        ids = _tokenize(given, prompt.system, pair.target)
        header = pair.draft.header if pair.draft else None
        context_options = computing.context(length.n_ctx(len(ids), pair.target.n_ctx_train), drafts.longest)
        with (
            Context(pair.target, context_options) as context,
            open_session(context, pair.draft, session_options(header, drafts)) as session,
        ):
            on_text = None if json else _show
            result = generate(session, Tokenizer(pair.target), ids, options, drafting=drafts, on_text=on_text)
        _report(result, exact.report(pair.target) if json else None)


def _show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _report(result: Any, exact_report: dict[str, Any] | None) -> None:
    """One JSON object with what holds for the weights, or a line for people."""
    if exact_report is not None:
        held = {key: exact_report[key] for key in ("exact", "inexact", "unverified")}
        console.result(result.as_dict() | held)
        return
    console.data("")
    statistics = result.speculative
    drafting = f", {statistics.mean_emitted:.2f} tokens a round" if statistics else ""
    console.note(
        f"{len(result.tokens)} tokens, {result.tokens_per_second:.1f} tokens/s{drafting} ({result.stop_reason})"
    )


def _read_prompt(given: Prompt) -> str | list[int]:
    prompt, file, tokens = given.prompt, given.prompt_file, given.tokens
    if sum(way is not None for way in (prompt, file, tokens)) != 1:
        raise UsageError("give the prompt by one of -p, --prompt-file and --tokens.")
    if tokens is not None:
        return _read_tokens(tokens)
    text = prompt if prompt is not None else _read_file(file)
    if not text:
        raise UsageError("the prompt is empty: there is nothing to continue. Give some text.")
    return text


def _read_tokens(text: str) -> list[int]:
    try:
        ids = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise UsageError(f"--tokens {text[:40]!r}: give token ids separated by commas, such as 1,2,3.") from None
    if not ids:
        raise UsageError("--tokens is empty: there is nothing to continue. Give at least one id.")
    return ids


def _read_file(file: Path | None) -> str:
    try:
        data = sys.stdin.buffer.read() if str(file) == "-" else Path(str(file)).read_bytes()
        return data.decode("utf-8")
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror}). Give a text file.") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: not UTF-8 text (byte {error.start}). Convert it to UTF-8.") from None


def _tokenize(prompt: str | list[int], system: str | None, target: Any) -> list[int]:
    from llama_eagle.sessions.text import Tokenizer, chat_prompt

    if isinstance(prompt, list):
        return prompt
    text = prompt if system is None else chat_prompt(target, system, prompt)
    return Tokenizer(target).encode(text, add_bos=system is None)
