"""`llama-eagle generate`"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import typer

from llama_eagle import console
from llama_eagle.cli.options import (
    DraftCtxSize,
    DraftFile,
    DraftGpuLayers,
    GpuLayers,
    Json,
    NDraft,
    NDraftMax,
    PMin,
    TargetFile,
    Threads,
    Verbose,
    read_n_draft,
)
from llama_eagle.errors import InputError, UsageError
from llama_eagle.native.limits import LONGEST

DEFAULT_CONTEXT = 4096  # tokens, when neither -n nor the prompt asks for more


def generate(
    model: TargetFile,
    draft: DraftFile = None,
    prompt: Annotated[str | None, typer.Option("--prompt", "-p", help="The text to continue.")] = None,
    prompt_file: Annotated[
        Path | None, typer.Option("--prompt-file", "-f", help="Read it from a file, - : stdin.")
    ] = None,
    tokens: Annotated[str | None, typer.Option(metavar="1,2,3", help="Token ids instead of text.")] = None,
    system: Annotated[str | None, typer.Option(help="System message: the prompt becomes a chat turn.")] = None,
    n_predict: Annotated[int, typer.Option("-n", "--n-predict", help="Tokens to generate, -1: until the end.")] = 256,
    n_draft: NDraft = "auto",
    n_draft_max: NDraftMax = LONGEST,
    p_min: PMin = 0.0,
    exact: Annotated[bool, typer.Option("--exact", help="Verify bit by bit as plain decoding computes.")] = False,
    temp: Annotated[float, typer.Option(help="Temperature, 0: greedy.")] = 0.8,
    top_k: Annotated[int, typer.Option(help="0: off.")] = 40,
    top_p: Annotated[float, typer.Option(help="1: off.")] = 0.95,
    min_p: Annotated[float, typer.Option(help="0: off.")] = 0.05,
    repeat_penalty: Annotated[float, typer.Option(help="1: off.")] = 1.0,
    seed: Annotated[int | None, typer.Option(help="Random by default.")] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on past end-of-generation tokens.")] = False,
    threads: Threads = 0,
    n_gpu_layers: GpuLayers = 0,
    draft_gpu_layers: DraftGpuLayers = None,
    draft_ctx_size: DraftCtxSize = 0,
    ctx_size: Annotated[int, typer.Option("--ctx-size", "-c", min=0, help="Tokens, 0: what the job needs.")] = 0,
    batch_size: Annotated[int, typer.Option("--batch-size", "-b", help="Tokens per decode call.")] = 2048,
    ubatch_size: Annotated[int, typer.Option("--ubatch-size", "-ub", help="Tokens computed at once.")] = 512,
    flash_attn: Annotated[str, typer.Option(metavar="auto|on|off")] = "auto",
    cache_type_k: Annotated[str, typer.Option(help="Type of the K memory: f16, bf16, q8_0, ...")] = "f16",
    cache_type_v: Annotated[str, typer.Option(help="Type of the V memory.")] = "f16",
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Generate text, with a draft or without."""
    job = SimpleNamespace(**locals())
    job.text = _read_prompt(prompt, prompt_file, tokens)
    _run(job)


def _run(job: SimpleNamespace) -> None:
    from llama_eagle.generation.generate import GenerationOptions, choose_length
    from llama_eagle.generation.sampling import SamplingParams
    from llama_eagle.native import log
    from llama_eagle.sessions import exact
    from llama_eagle.sessions.models import Context, LoadOptions, ModelPair, PairOptions
    from llama_eagle.sessions.plain import open_session
    from llama_eagle.sessions.session import SessionOptions

    log.set_verbose(job.verbose)
    if job.exact:
        exact.set_mode("strict")
    sampling = SamplingParams(job.temp, job.top_k, job.top_p, job.min_p, job.repeat_penalty, seed=job.seed)
    limit = None if job.n_predict == -1 else job.n_predict
    options = GenerationOptions(limit, sampling, job.p_min, job.ignore_eos)
    n_draft = read_n_draft(job.n_draft)
    n_draft_max = max(n_draft, job.n_draft_max) if isinstance(n_draft, int) else job.n_draft_max
    length = choose_length(n_draft, n_draft_max, exact_only=job.exact)
    with console.progress("loading") as on_progress:
        load = LoadOptions(job.n_gpu_layers, on_progress=on_progress)
        pair = ModelPair(PairOptions(job.model, job.draft, load, job.draft_gpu_layers))
    with pair:
        if job.exact and (unverified := exact.require(pair.target)):
            console.warn(unverified)
        prompt = _tokenize(job, pair.target)
        context_options = _context_options(job, pair.target.n_ctx_train, len(prompt), n_draft_max)
        with (
            Context(pair.target, context_options) as context,
            open_session(context, pair.draft, SessionOptions(n_draft_max, job.draft_ctx_size)) as session,
        ):
            _generate(job, session, pair.target, prompt, options, length)


def _generate(job: SimpleNamespace, session: Any, target: Any, prompt: list[int], options: Any, length: Any) -> None:
    from llama_eagle.generation.generate import generate
    from llama_eagle.sessions import exact
    from llama_eagle.sessions.text import Tokenizer

    def show(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    result = generate(session, Tokenizer(target), prompt, options, length=length, on_text=None if job.json else show)
    if job.json:
        report = exact.report(target)
        held = {key: report[key] for key in ("exact", "inexact", "unverified")}
        console.result(result.as_dict() | held)
        return
    console.data("")
    statistics = result.speculative
    drafting = f", {statistics.mean_emitted:.2f} tokens a round" if statistics else ""
    console.note(
        f"{len(result.tokens)} tokens, {result.tokens_per_second:.1f} tokens/s{drafting} ({result.stop_reason})"
    )


def _read_prompt(prompt: str | None, file: Path | None, tokens: str | None) -> str | list[int]:
    if sum(given is not None for given in (prompt, file, tokens)) != 1:
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


def _tokenize(job: SimpleNamespace, target: Any) -> list[int]:
    from llama_eagle.sessions.text import Tokenizer, chat_prompt

    if isinstance(job.text, list):
        return job.text
    text = job.text if job.system is None else chat_prompt(target, job.system, job.text)
    return Tokenizer(target).encode(text, add_bos=job.system is None)


def _context_options(job: SimpleNamespace, n_ctx_train: int, n_prompt: int, n_draft_max: int) -> Any:
    from llama_eagle.sessions.models import ContextOptions

    needed = n_prompt + job.n_predict if job.n_predict > 0 else DEFAULT_CONTEXT + n_prompt
    return ContextOptions(
        n_ctx=job.ctx_size or min(needed, max(n_ctx_train, 1)),
        n_batch=job.batch_size,
        n_ubatch=job.ubatch_size,
        n_threads=job.threads,
        flash_attn=job.flash_attn,
        type_k=job.cache_type_k,
        type_v=job.cache_type_v,
        n_rs_seq=n_draft_max if job.draft is not None else 0,
    )
