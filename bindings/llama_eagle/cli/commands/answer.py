"""`llama-eagle answer PROMPTS -m MODEL -o ANSWERS`"""

from __future__ import annotations

import secrets
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llama_eagle import console
from llama_eagle.cli.groups import grouped
from llama_eagle.cli.options import (
    CONTEXT_HELP,
    Json,
    Overwrite,
    Sampling,
    ServedComputing,
    ServedDrafting,
    Target,
    Verbose,
)
from llama_eagle.errors import CHECK_FAILED
from llama_eagle.native.limits import MAX_INT

if TYPE_CHECKING:
    from llama_eagle.generation.options import SamplingParams
    from llama_eagle.serving.llama_server.options import Checked
    from llama_eagle.serving.prompts import Journal, Prompt, Questions


@grouped
def answer(
    prompts: Annotated[
        Path,
        typer.Argument(
            metavar="PROMPTS.jsonl",
            help="Prompts: JSON lines with `messages` or `prompt`, or one text per line.",
        ),
    ],
    target: Target,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="ANSWERS.jsonl", help="Output file: one JSON line per prompt, in the same order."
        ),
    ],
    drafting: ServedDrafting,
    sampling: Sampling,
    computing: ServedComputing,
    parallel: Annotated[
        int,
        typer.Option("--parallel", "-np", min=1, max=16, help="Number of prompts to answer at the same time, 1 to 16."),
    ] = 4,
    n_predict: Annotated[
        int, typer.Option("-n", "--n-predict", min=1, max=MAX_INT, help="Maximum length of an answer in tokens.")
    ] = 1024,
    ctx_size: Annotated[
        int | None,
        typer.Option(
            "--ctx-size", "-c", min=0, help=f"Context size in tokens for each prompt and its answer {CONTEXT_HELP}"
        ),
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue each prompt as plain text, without the chat template.")
    ] = False,
    overwrite: Overwrite = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Answer a file of prompts, several at the same time.

    Repeat the command to continue an interrupted run: finished answers are kept in ANSWERS.jsonl.part. Each output line
    contains the keys of the prompt's line, the messages with the answer (`text` with --raw), finish_reason and
    n_tokens. A prompt that fails, for example because it is longer than the context, gets an `error` instead, and the
    exit code is 5. Without a chat template in the model, prompts are continued as with --raw.
    """
    from llama_eagle.drafting.resolve import without_effect
    from llama_eagle.files import check_output, refuse_existing, refuse_sources
    from llama_eagle.serving.llama_server import options as serving
    from llama_eagle.serving.prompts import Journal, identity, read_prompts

    found = read_prompts(prompts)
    check_output(output)
    refuse_sources(output, [prompts])
    refuse_existing([output], overwrite)
    drafts, params = drafting.options(), sampling.params()
    model = target.file(drafts)
    refuse_sources(output, [model])
    key = secrets.token_urlsafe()
    served = serving.check(
        serving.ServerOptions(
            model=model, drafting=drafts, context=computing.context(ctx_size or 1, 0), n_ctx=ctx_size,
            load=computing.load(), port=0, api_key=key, parallel=min(parallel, len(found)), verbose=verbose,
            cache_ram=0,
        )
    )  # fmt: skip
    questions = _questions(served, found, params, n_predict, raw)
    file = (model.resolve(), model.stat().st_size)
    same = identity(found, *file, params, n_predict, served.n_slot, questions.is_chat, *_adapter(served))
    with closing(Journal(output, same, overwrite)) as journal:
        n_earlier = len(journal.answers)
        if n_earlier:
            console.note(f"continuing: {n_earlier} of {len(found)} prompts are answered")
        console.note(served.why)
        if problem := without_effect(served.drafts):
            console.warn(f"{problem}: --draft, --lookup.")
        n_tokens, seconds = _answer_missing(served, key, found, questions, journal)
        journal.finish()
    _report(output, list(journal.answers.values()), n_earlier, n_tokens, seconds, json)


def _adapter(served: Checked) -> tuple[object, ...]:
    """Return what tells the answers with an adapter from those without it, or with another."""
    lora = served.options.load.lora
    return () if lora is None else (lora.path.resolve(), lora.path.stat().st_size, lora.scale)


def _answer_missing(
    served: Checked, key: str, prompts: list[Prompt], questions: Questions, journal: Journal
) -> tuple[int, float]:
    """Answer the prompts that the journal lacks; return the generated tokens and the seconds they took."""
    from llama_eagle.progress import progress
    from llama_eagle.serving.llama_server import options as serving
    from llama_eagle.serving.llama_server.process import background
    from llama_eagle.serving.prompts import answer_all

    n_tokens = 0
    if len(journal.answers) == len(prompts):
        return n_tokens, 0.0
    arguments, environment = serving.server_args(served), serving.server_env(served)
    with background(arguments, environment, served.options.verbose, served.learn) as address:
        start = time.monotonic()
        done = len(journal.answers) / len(prompts)
        with progress(f"answering {len(prompts)} prompts", done=done) as on_progress:

            def on_answer(record: dict[str, Any]) -> None:
                nonlocal n_tokens
                n_tokens += record.get("n_tokens", 0)
                on_progress(len(journal.answers) / len(prompts))

            answer_all(address, key, prompts, questions, journal, served.options.parallel, on_answer)
        return n_tokens, time.monotonic() - start


def _questions(served: Checked, prompts: list[Prompt], params: SamplingParams, n_predict: int, raw: bool) -> Questions:
    """Build the requests. Raises `InputError` for chats if the model has no template for them."""
    from llama_eagle.errors import InputError
    from llama_eagle.serving.prompts import Questions

    is_chat = not raw and "tokenizer.chat_template" in served.target.keys
    if not is_chat and (chats := [prompt for prompt in prompts if prompt.messages]):
        why = "--raw continues texts" if raw else f"{served.target.path} has no chat template"
        raise InputError(f"prompt {chats[0].number + 1} has `messages`, but {why}. Use `prompt` instead.")
    body = {
        "max_tokens": n_predict, "temperature": max(params.temperature, 0.0), "top_k": params.top_k,
        "top_p": params.top_p, "min_p": params.min_p, "repeat_penalty": params.repeat_penalty,
    }  # fmt: skip
    return Questions(is_chat, body, params.seed)


def _report(
    output: Path, answers: list[dict[str, Any]], n_earlier: int, n_tokens: int, seconds: float, json: bool
) -> None:
    """Print what this command did, and the errors of the whole output. n_earlier: prompts of the runs before it."""
    n_failed = sum("error" in found for found in answers)
    speed = n_tokens / seconds if n_tokens else 0.0
    if json:
        console.result(
            {"output": str(output), "prompts": len(answers) - n_earlier, "earlier": n_earlier, "errors": n_failed,
             "tokens": n_tokens, "tokens_per_second": round(speed, 1)}
        )  # fmt: skip
    else:
        before = f" (and {n_earlier} prompts before)" if n_earlier else ""
        console.data(f"{output}: {len(answers) - n_earlier} prompts, {n_tokens} tokens, {speed:.1f} tokens/s{before}")
    if n_failed:
        console.warn(f'{n_failed} of {len(answers)} prompts have no answer. See "error" in their lines of {output}.')
        raise typer.Exit(CHECK_FAILED)
