"""`llama-eagle check MODEL [DRAFT.gguf]`"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llama_eagle import console
from llama_eagle.cli.options import MODEL_HELP, GpuLayers, Json, Threads, Yes, find_model
from llama_eagle.errors import CHECK_FAILED, EnvironmentFailure, InputError, UsageError
from llama_eagle.progress import working
from llama_eagle.sessions.options import MTP

if TYPE_CHECKING:
    from llama_eagle.drafting.outlook import Outlook
    from llama_eagle.drafting.price import Costs, Price
    from llama_eagle.generation.stats import Statistics
    from llama_eagle.gguf.header import Header
    from llama_eagle.gguf.pairing import CheckReport
    from llama_eagle.gguf.weights import Damage

MEASURED = "Once upon a time there was a small house by the sea. Every morning the"  # what --measure continues
N_MEASURED = 128  # tokens
N_DRAFT = 4  # in each measured round
MAX_NAMED = 5  # damaged tensors in a line


def check(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help=f"Model to check, or the target of DRAFT.gguf: {MODEL_HELP}")
    ],
    draft: Annotated[
        Path | None,
        typer.Argument(
            metavar="DRAFT.gguf", help="Draft model whose fit to the target is checked, or mtp: the target's own head."
        ),
    ] = None,
    exact: Annotated[
        bool,
        typer.Option(
            "--exact", help="Decode a text token by token and in random batches, and compare all logits bit by bit."
        ),
    ] = False,
    text: Annotated[
        Path | None, typer.Option("--text", metavar="FILE", help="Text file for --exact (default: a built-in text).")
    ] = None,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="Read all weights and name damaged tensors (NaN, infinities, absurd scales); then generate 128 tokens "
            "with the draft, if there is one, and show its acceptance rate and its price. The price is kept in the "
            "cache; commands use it to choose among several drafts.",
        ),
    ] = False,
    threads: Threads = 0,
    n_gpu_layers: GpuLayers = 0,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Check a model, or whether a draft fits its target.

    The exit code is 5 if the check fails.
    """
    from llama_eagle.gguf.header import read_model
    from llama_eagle.gguf.pairing import check_models
    from llama_eagle.gguf.reading import cost_of

    if text is not None and not exact:
        raise UsageError("--text is the text for --exact. Add --exact, or leave it out.")
    target = find_model(model, yes)
    draft = _draft_file(target, draft)
    with working("checking"):
        report = _with_trials(check_models(target, draft), target, draft)
        problems = [(f.file or draft, f.message) for f in report.findings if f.level == "error"]
        exactness = _exactness(target, text, threads, n_gpu_layers) if exact and not problems else None
        if exactness is not None and exactness["difference"] is not None:
            problems.append((target, _difference_text(target, exactness)))
        models = [read_model(path)[1] for path in (target, draft) if path is not None and not problems]
        damage = _damage([file for files in models for file in files]) if measure and models else []
        problems += [(Path(file), text) for file, text in _summaries(damage)]
        drafter = draft or (MTP if not problems and report.target["mtp_head"] else None)
        acceptance = measure_drafting(target, drafter, threads, n_gpu_layers) if measure and not problems else None
        cost = _price(models, report) if not problems else None
    if acceptance is not None and acceptance["problem"] is not None:
        problems.append((draft or target, acceptance["problem"]))
    for finding in report.findings:
        if finding.level == "warning":
            console.warn(f"{finding.file or draft}: {finding.message}")
    if draft is not None and not problems and (remark := cost_of(*models)):
        console.warn(f"{draft}: {remark}")
    if json:
        weights = {"measure": acceptance, "damaged": [asdict(each) for each in damage]}
        more = ({"exact": exactness} if exact else {}) | (weights if measure else {})
        priced = {"price": cost and asdict(cost), "problems": [problem for _, problem in problems]}
        more |= {"outlook": asdict(_outlook(target))} if draft is None and not problems else {}
        console.result(report.to_json() | priced | more)
    else:
        lines = [f"{file}: {problem}" for file, problem in problems] or _sound(target, draft, report, exactness)
        lines += [f"expected speed with drafts of {cost.n_draft}: {cost}"] if cost is not None else []
        console.data("\n".join([*lines, *([acceptance["summary"]] if acceptance is not None else [])]))
    if problems:
        raise typer.Exit(CHECK_FAILED)


def _with_trials(report: CheckReport, target: Path, draft: Path | None) -> CheckReport:
    """Return the report with the reasons why llama.cpp cannot build the graph of a model that seems valid."""
    from llama_eagle.gguf.finding import Finding
    from llama_eagle.gguf.header import read_model
    from llama_eagle.gguf.validate.small import is_small
    from llama_eagle.native.trials.trial import graph_problem

    if not report.compatible:
        return report
    models = [read_model(path)[1] for path in (target, draft) if path is not None]
    whole = models if draft is None or is_small(models[0][0], models[1]) else models[:1]
    problems = {files[0].path: graph_problem([file.path for file in files]) for files in whole}
    found = [Finding("error", problem, str(path)) for path, problem in problems.items() if problem]
    return replace(report, compatible=not found, findings=[*report.findings, *found])


def _draft_file(target: Path, draft: Path | None) -> Path | None:
    """Return the file of the draft to check; None for the target's own head, which is checked with the target.

    Raises `UsageError` for other drafters without a file, `InputError` for a head or file that does not exist.
    """
    from llama_eagle.drafting.options import AUTO, LOOKUP, NONE, DraftingOptions
    from llama_eagle.drafting.resolve import resolve
    from llama_eagle.gguf.header import GIVE_PATH, HUB_ID, NO_FILE

    if str(draft) in (AUTO, LOOKUP, NONE):
        raise UsageError(f"{draft} has no file to check. Give the file of a draft, mtp, or the target alone.")
    if str(draft) == MTP:
        resolve(target, DraftingOptions(draft=MTP))
        return None
    if draft is not None and not (HUB_ID.fullmatch(str(draft)) or draft.exists()):
        raise InputError(f"{draft}: {NO_FILE} {GIVE_PATH}")
    return draft


def _sound(target: Path, draft: Path | None, report: CheckReport, exactness: dict[str, Any] | None) -> list[str]:
    """Return the lines about files without a problem."""
    about = report.target
    model = f"{target}: a valid {about['architecture']} model{_head_text(about)}"
    lines = [model if draft is None else f"{draft} fits {target}{_price_text(report.draft)}"]
    if draft is None:
        lines += _outlook(target).lines(target)
    if exactness is not None:
        sizes = f"{exactness['n_tokens']} tokens have equal logits alone and in {exactness['n_batches']} batches"
        lines.append(f"{target}: {sizes}")
    return lines


def _outlook(target: Path) -> Outlook:
    from llama_eagle.drafting.outlook import outlook
    from llama_eagle.gguf.header import read_model

    return outlook(read_model(target)[1])


def _damage(files: list[Header]) -> list[Damage]:
    """Read the weights of models; return the damaged tensors, and warn about remarkable ones."""
    from llama_eagle.gguf.weights import damaged
    from llama_eagle.progress import progress

    with progress("reading the weights", after_s=1.0) as on_progress:
        found = [*damaged(files, on_progress)]
    for remark in dict.fromkeys(each.remark for each in found if each.remark):
        names = [each.tensor for each in found if each.remark == remark]
        console.warn(f"{remark}: {', '.join(names[:MAX_NAMED])}{', ...' * (len(names) > MAX_NAMED)}.")
    return [each for each in found if not each.remark]


def _summaries(damage: list[Damage]) -> Iterator[tuple[str, str]]:
    """Yield a line for each file with damaged tensors."""
    for file in dict.fromkeys(each.file for each in damage):
        own = [str(each) for each in damage if each.file == file]
        more = f"; and {len(own) - MAX_NAMED} more" if len(own) > MAX_NAMED else ""
        what = f"{len(own)} damaged tensor{'s' * (len(own) > 1)}"
        yield file, f"{what}: {'; '.join(own[:MAX_NAMED])}{more}. Download or convert it again."


def _price(models: list[list[Header]], report: CheckReport) -> Price | None:
    """Return the price of the draft, or of the target's own head; None without one."""
    from llama_eagle.drafting.price import price

    return price(*models) if len(models) > 1 or report.target["mtp_head"] else None


def measure_drafting(
    target: Path, draft: Path | str | None, threads: int = 0, n_gpu_layers: int = 0
) -> dict[str, Any] | None:
    """Measure drafting on a short text, and keep the draft's price on the CPU; return None without a drafter."""
    from llama_eagle.drafting.options import DraftingOptions
    from llama_eagle.drafting.price import keep
    from llama_eagle.drafting.resolve import resolve
    from llama_eagle.generation.generate import Watch
    from llama_eagle.generation.run import Run, decode
    from llama_eagle.generation.stats import unaccepted
    from llama_eagle.gguf.header import read_model
    from llama_eagle.gguf.pairing import drafts_blocks
    from llama_eagle.sessions.models import ModelPair
    from llama_eagle.sessions.options import LoadOptions, PairOptions
    from llama_eagle.sessions.text import Tokenizer

    choice = resolve(str(target), DraftingOptions(draft=draft, n_draft=N_DRAFT, lookup=False))
    if choice.options.model is None:
        console.note(f"no acceptance rate: {choice.why}")
        return None
    target_files = read_model(choice.target)[1]
    files = read_model(choice.draft)[1] if choice.draft and choice.options.draft_file else None
    with ModelPair(PairOptions(choice.target, choice.draft, LoadOptions(n_gpu_layers))) as pair:
        prompt = Tokenizer(pair.target).encode(MEASURED)
        result = decode(pair, prompt, Run(N_MEASURED, threads), choice.options, watch=Watch(compare=True))
    assert result.speculative is not None
    if result.plain_ms and not n_gpu_layers and result.speculative.n_drafted:
        is_block = files is not None and drafts_blocks(files[0])
        try:
            keep(target_files, files, _costs(result.speculative, result.plain_ms, is_block))
        except (EnvironmentFailure, OSError) as error:
            console.warn(f"the price is not kept in the cache: {error}")
    return {
        **result.speculative.as_dict(),
        "summary": str(result.speculative),
        "problem": unaccepted(result.speculative),
    }


def _costs(measured: Statistics, plain_ms: float, is_block: bool) -> Costs:
    """Return the costs of drafts by the times of the measured rounds."""
    from llama_eagle.drafting.price import Costs

    draft, verify = (measured.ms[name] / measured.rounds / plain_ms for name in ("draft", "verify"))
    row = max(verify - 1, 0.0) / N_DRAFT
    return Costs(measured.accepted_per_position, row, 0.0 if is_block else draft / N_DRAFT, draft * is_block)


def _head_text(target: dict[str, Any]) -> str:
    """Describe the cost of drafting with the target's MTP head; "" if it has none."""
    if not target["mtp_head"]:
        return ""
    shares = ", ".join(f"{share:.1%} with {rows} rows" for rows, share in target["mtp_step_share"].items())
    return f"\nits MTP head reads, per drafted token, a share of the bytes of a decode: {shares}"


def _price_text(draft: dict[str, Any] | None) -> str:
    """Describe the cost of drafting with a draft; "" if it is unknown."""
    if draft is None or not draft.get("step_share"):
        return ""
    shares = ", ".join(f"{share:.1%} with {rows} rows" for rows, share in draft["step_share"].items())
    per = "block of drafted tokens" if draft["drafts_blocks"] else "drafted token"
    return f"\nit reads, per {per}, a share of the bytes of a decode: {shares}"


def _exactness(target: Path, text: Path | None, threads: int, n_gpu_layers: int) -> dict[str, Any]:
    """Return the result of `check_exact` on a text, with the report on the weights."""
    from llama_eagle.sessions.exact import get_mode, report, set_mode
    from llama_eagle.sessions.exact_check import CheckOptions, check_exact, check_tokens
    from llama_eagle.sessions.models import Model
    from llama_eagle.sessions.options import ContextOptions, LoadOptions

    set_mode(get_mode())  # CUDA's kernels are exact only if the mode is set
    with Model.target(target, LoadOptions(n_gpu_layers)) as model:
        tokens = check_tokens(model, text)
        context = ContextOptions(n_ctx=max(512, len(tokens)), n_threads=threads)
        found = check_exact(model, tokens, CheckOptions(max_threads=threads, context=context))
        return found.to_json() | {"weights": report(model)}


def _difference_text(target: Path, exactness: dict[str, Any]) -> str:
    found = exactness["difference"]
    inexact = ", ".join(f"{w['tensors']} {w['type']} in {w['where']}" for w in exactness["weights"]["inexact"])
    return (
        f"token {found['token']} is not exact: row {found['row']} of a batch of {found['n_rows']} on "
        f"{found['n_threads']} threads gives {found['batch']!r} for logit {found['logit']}, "
        f"decoded alone {found['alone']!r} (bit {found['bit']})"
        + (f". No exact kernel for: {inexact}" if inexact else "")
    )
