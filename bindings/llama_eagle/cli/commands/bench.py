"""`llama-eagle bench`"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llama_eagle import console
from llama_eagle.cli.groups import grouped
from llama_eagle.cli.options import (
    ADVANCED,
    MODEL_HELP,
    CacheTypeK,
    CacheTypeV,
    DraftGpuLayers,
    Json,
    Loading,
    Overwrite,
    PMin,
    Threads,
    Yes,
    drafting_option,
    find_model,
    read_vocab,
)
from llama_eagle.drafting.options import AUTO, DRAFT_VOCAB, LOOKUP, NONE, DraftingOptions
from llama_eagle.errors import UsageError
from llama_eagle.files import cache_dir
from llama_eagle.native.limits import LONGEST, read_number
from llama_eagle.native.processor.threads import n_threads
from llama_eagle.progress import numbered
from llama_eagle.sessions.options import MTP, ContextOptions

if TYPE_CHECKING:
    from llama_eagle.bench.ours import Job
    from llama_eagle.bench.peer import Peer
    from llama_eagle.bench.run import Plan

EAGLE3 = "eagle3"
DFLASH = "dflash"  # a word for --draft with --synthetic
SYNTHETIC_PROMPT = " A B C"
WORDS_OF_PROMPT = 40  # for a DFlash draft, which reads the words of a block before
PROMPT = "Explain in simple words how a sailing boat can sail against the wind."


@dataclass(frozen=True)
class Pair:
    """The models to measure: a synthetic pair, or files."""

    synthetic: Annotated[
        str | None,
        typer.Option(
            metavar="0.8b|2b|4b|9b|35b-a3b-N|small|tiny",
            help="Generate and benchmark a target and a draft with the tensor shapes of this Qwen3.5 model. 35b-a3b-N "
            "has N blocks: 8, 16, 24, 32 or 40.",
        ),
    ] = None
    accept: Annotated[
        str,
        typer.Option(
            metavar="P[,P...]",
            help="Acceptance rates of the synthetic draft, from 0 to 1; each is measured. The defaults are about those "
            "of prose, of all texts, and of easy texts such as code with an MTP head.",
        ),
    ] = "0.5,0.65,0.8"
    outtype: Annotated[
        str, typer.Option("--type", metavar="TYPE", help="Quantization type of the synthetic target: q8_0, q4_k_m, ...")
    ] = "q8_0"
    draft_type: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE",
            help="Quantize the draft to this type before measuring (default: leave it unchanged).",
            rich_help_panel=ADVANCED,
        ),
    ] = None
    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", metavar="MODEL", help=f"Target to benchmark, instead of --synthetic: {MODEL_HELP}"
        ),
    ] = None
    yes: Yes = False
    draft: Annotated[str | None, drafting_option("draft", "-d")] = None
    draft_vocab: Annotated[str | None, drafting_option("draft_vocab")] = None
    prompt: Annotated[
        str | None,
        typer.Option(
            "--prompt",
            "-p",
            help="Question that each run answers (default: a built-in one). A target without a chat template "
            "continues it.",
        ),
    ] = None

    def __post_init__(self) -> None:
        if self.draft == AUTO:
            object.__setattr__(self, "draft", None)

    @property
    def drafter(self) -> str:
        """The kind of drafter: mtp, lookup, small, or the architecture of a model that only drafts."""
        if self.model is None or self.draft in (None, MTP, LOOKUP):
            return self.draft or EAGLE3
        from llama_eagle.gguf.header import read_model
        from llama_eagle.gguf.names import DRAFT_KINDS
        from llama_eagle.gguf.pairing import read_draft
        from llama_eagle.gguf.validate.small import is_small

        files = read_draft(self.draft)
        if files[0].architecture in DRAFT_KINDS:
            return files[0].architecture
        return "small" if is_small(read_model(self.model)[0], files) else MTP

    @property
    def n_rows(self) -> int | str | None:
        """Rows of the head that are computed; None: all of an MTP head, the default of others. Raises `UsageError`."""
        given = self.drafting().draft_vocab
        if self.drafter != MTP:
            return given
        return None if given == "all" else given or DRAFT_VOCAB

    def drafting(self) -> DraftingOptions:
        """Return the library's options. Raises `UsageError` for values out of range."""
        return DraftingOptions(self.draft, draft_vocab=read_vocab(self.draft_vocab))

    def resolved(self) -> Pair:
        """Return a copy with the target's file, whose `draft` names the target's drafter.

        Raises the errors of `find_model`, and `InputError` for a file that is no model.
        """
        if self.model is None:
            return self
        from llama_eagle.drafting.resolve import resolve

        target = find_model(self.model, self.yes, self.drafting())
        found = self.draft or resolve(target, self.drafting()).options.model
        return replace(self, model=str(target), draft=LOOKUP if found is None else str(found))


@dataclass(frozen=True)
class Runs(Loading):
    """Settings of the measurement."""

    n_draft: Annotated[
        str,
        typer.Option(metavar="N[,N...][,auto]", help="Draft lengths to measure, in tokens; auto: the adaptive length."),
    ] = "1,2,3,4,6,8,auto"
    n_predict: Annotated[
        int, typer.Option("-n", "--n-predict", min=8, help="Number of tokens generated in each run.")
    ] = 256
    threads: Threads = 0
    draft_gpu_layers: DraftGpuLayers = None
    p_min: PMin = 0.0
    repetitions: Annotated[int, typer.Option(min=1, help="Number of runs per setting. The report shows medians.")] = 3
    chat: Annotated[
        int, typer.Option(metavar="N", min=0, help="Also measure a streamed chat answer of N tokens (0: skip this).")
    ] = 0
    peers: Annotated[
        str | None,
        typer.Option(
            metavar="upstream",
            help="Also measure llama.cpp's own speculative decoding on the same files. Builds llama.cpp's tools if "
            "they are not in the cache.",
        ),
    ] = None

    depths: Annotated[
        str,
        typer.Option(
            metavar="N[,N...]",
            help="Context depths in tokens at which single decodes, draft steps and verifications are timed.",
            rich_help_panel=ADVANCED,
        ),
    ] = "64"
    prompts: Annotated[
        str,
        typer.Option(
            metavar="N[,N...]",
            help="Prompt lengths in tokens whose reading is timed too, with and without a draft (default: none).",
            rich_help_panel=ADVANCED,
        ),
    ] = ""
    cache_type_k: CacheTypeK = ContextOptions.type_k
    cache_type_v: CacheTypeV = ContextOptions.type_v

    @property
    def n_threads(self) -> int:
        return n_threads(self.threads)

    @property
    def lengths(self) -> tuple[int | str, ...]:
        """Draft lengths. Raises `UsageError` for other values."""
        return _lengths(self.n_draft)

    def job(self, pair: Pair, target: Path, draft: Path | None, prompt: str) -> Job:
        """Return the job that measures these files."""
        from llama_eagle.bench.ours import Job

        return Job(
            target,
            draft,
            prompt,
            n=self.n_predict,
            threads=self.n_threads,
            n_draft_max=max([LONGEST, *(length for length in self.lengths if isinstance(length, int))]),
            load=self.load(),
            draft_gpu_layers=self.draft_gpu_layers,
            p_min=self.p_min,
            draft_vocab=pair.n_rows,
            looks_up=pair.drafter == LOOKUP,
            type_k=self.cache_type_k,
            type_v=self.cache_type_v,
        )

    def plan(self, peer: Peer | None, n_jobs: int = 1) -> Plan:
        """Return the plan of all runs. Raises `UsageError` for values that are not numbers."""
        from llama_eagle.bench.run import Plan

        depths, prompts = _numbers("--depths", self.depths), _numbers("--prompts", self.prompts)
        if not depths:
            raise UsageError("--depths: give at least one number.")
        log_step = numbered(n_jobs * (self.repetitions + 1))
        return Plan(self.lengths, self.repetitions, peer, self.chat, depths, prompts, log_step)


@grouped
def bench(
    pair: Pair,
    runs: Runs,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Write a plot of speed by draft length to this file.")
    ] = None,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Measure decoding speed without drafts and by draft length.

    Give --synthetic, which generates a target and an EAGLE-3 draft (with --draft mtp, an MTP head; with --draft dflash,
    a DFlash draft), or --model. Without a draft model, prompt look-up is the drafter; with one, look-up alone is
    measured too. With --peers upstream, llama.cpp's own drafters run on the same files, alternating with ours.
    """
    from llama_eagle.bench import report

    _refuse_conflicts(pair, runs)
    pair = pair.resolved()
    _refuse_unused(pair)
    if plot is not None:
        report.require_plotting(plot, overwrite)
    runs.plan(None)  # refuses wrong values before the files are made
    jobs = _jobs(pair, runs)
    plan = runs.plan(_peer() if runs.peers else None, len(jobs))
    results = [_measure(facts, job, plan) for facts, job in jobs]
    if plot is not None:
        report.plot(results, plot)
    if json:
        console.result(results[0] if len(results) == 1 else {**results[0], "by_accept": results})
        return
    for result in results:
        for table in report.tables(result):
            console.table(table)
            console.data("")
        console.data(report.summary(result))
        for kind, reason in result["upstream_failures"].items():
            console.warn(f"llama.cpp's run ({kind}) is missing: {reason}")


def _refuse_conflicts(pair: Pair, runs: Runs) -> None:
    if runs.peers not in (None, "upstream"):
        raise UsageError(f"--peers {runs.peers!r}: the only peer is upstream.")
    if runs.peers and runs.rpc:
        raise UsageError("--peers upstream is built without RPC. Leave one of --peers and --rpc out.")
    if runs.peers and runs.lora:
        raise UsageError("--peers upstream: llama-bench has no adapters. Leave one of --peers and --lora out.")
    if (pair.synthetic is None) == (pair.model is None):
        raise UsageError("give either --synthetic SHAPE or -m MODEL.")
    if pair.draft == NONE:
        raise UsageError("--draft none: decoding without drafts is always measured. Name a drafter, or leave it out.")
    if pair.synthetic is not None and pair.draft not in (None, MTP, LOOKUP, DFLASH):
        raise UsageError(f"--synthetic generates its draft, so --draft {pair.draft} does not apply. Leave one out.")


def _refuse_unused(pair: Pair) -> None:
    """Raise `UsageError` for an option that would be ignored with this target and drafter."""
    unused = {
        "accept": pair.synthetic is None, "outtype": pair.synthetic is None,
        "draft_type": pair.draft in (MTP, LOOKUP),
        "draft_vocab": pair.draft_vocab is not None and pair.drafter in (EAGLE3, LOOKUP),
    }  # fmt: skip
    for option in fields(pair):
        if unused.get(option.name) and getattr(pair, option.name) != option.default:
            flag = "--type" if option.name == "outtype" else f"--{option.name.replace('_', '-')}"
            where = (
                "-m" if pair.synthetic is None and option.name in ("accept", "outtype") else f"drafter {pair.drafter}"
            )
            raise UsageError(f"{flag} does not apply to {where}. Leave it out.")


def _measure(facts: dict[str, Any], job: Job, plan: Plan) -> dict[str, Any]:
    from llama_eagle.bench.run import run
    from llama_eagle.bench.surroundings import surroundings

    return {**facts, **run(job, plan).as_dict(), "repetitions": plan.repetitions, **surroundings()}


def _jobs(pair: Pair, runs: Runs) -> list[tuple[dict[str, Any], Job]]:
    """Return one job per acceptance rate, with the facts that the report repeats."""
    from llama_eagle.quantize.quantize import check_type

    if pair.model is not None and pair.draft_type is not None:
        check_type(pair.draft_type.lower())  # before the draft is read
    facts: dict[str, Any] = {"type": pair.outtype, "draft_type": pair.draft_type, "n": runs.n_predict}
    facts |= {
        "threads": runs.n_threads,
        "drafter": pair.drafter,
        "draft_vocab": pair.n_rows,
        "rpc_servers": list(runs.load().rpc_servers),
    }
    from llama_eagle.convert.quantized import require_type

    if pair.model is not None:
        target = Path(pair.model)
        from llama_eagle.gguf.describe import file_type
        from llama_eagle.gguf.header import read_model

        facts["type"] = file_type(read_model(target)[1])
        return [({"model": target.name, "accept": None, **facts}, _real_job(pair, runs, target))]
    for kind in filter(None, (pair.outtype, pair.draft_type)):
        require_type(kind.lower())  # before the files are made
    return [
        ({"model": f"synthetic {pair.synthetic}", "accept": accept, **facts}, _synthetic_job(pair, runs, accept))
        for accept in _rates(pair.accept)
    ]


def _real_job(pair: Pair, runs: Runs, target: Path) -> Job:
    from llama_eagle.drafting.resolve import resolve
    from llama_eagle.gguf.header import read_model

    draft = resolve(target, pair.drafting()).options.draft_file  # refuses a target without the named head
    if draft is not None and pair.draft_type is not None:
        draft = _in_type(draft, pair.draft_type.lower())
    job = runs.job(pair, target, draft, pair.prompt or PROMPT)
    return replace(job, is_chat=bool(read_model(target)[0].keys.get("tokenizer.chat_template")))


def _in_type(draft: Path, outtype: str) -> Path:
    """Return the draft in another type, converted once and cached. Requantizing lowers its acceptance rate."""
    from llama_eagle.gguf.header import read_model
    from llama_eagle.quantize.quantize import QuantizeOptions, quantize

    path = read_model(draft)[0].path.resolve()
    state = path.stat()
    out = cache_dir() / "drafts" / f"{path.stem}-{state.st_size:x}-{state.st_mtime_ns:x}-{outtype}.gguf"
    if not out.is_file():
        out.parent.mkdir(parents=True, exist_ok=True)
        console.note(f"quantizing the draft to {outtype}")
        quantize(path, out, outtype, QuantizeOptions(requantize=True))
    return out


def _synthetic_job(pair: Pair, runs: Runs, accept: float) -> Job:
    from llama_eagle.synthetic.ggufs import PairFolder
    from llama_eagle.synthetic.shapes import SHAPES

    shape = str(pair.synthetic)
    if shape not in SHAPES:
        raise UsageError(f"--synthetic {shape!r}: shapes are {', '.join(SHAPES)}.")
    folder = PairFolder(cache_dir() / "synthetic" / shape, shape, fresh=False, log=console.note)
    outtype, prompt = pair.outtype.lower(), pair.prompt or SYNTHETIC_PROMPT
    if pair.drafter == DFLASH:
        blocks = folder.blocks(accept, outtype, pair.draft_type and pair.draft_type.lower())
        return runs.job(pair, blocks.target, blocks.draft, pair.prompt or blocks.cycle.counting(WORDS_OF_PROMPT))
    if pair.drafter == MTP:
        return runs.job(pair, folder.mtp(accept, outtype).target, None, prompt)
    files = folder.files(accept, outtype, pair.draft_type and pair.draft_type.lower())
    return runs.job(pair, files.target, None if pair.drafter == LOOKUP else files.draft, prompt)


def _peer() -> Peer:
    from llama_eagle.bench.peer import build_peer

    console.note("building llama.cpp's tools if they are not in the cache")
    return build_peer()


def _lengths(text: str) -> tuple[int | str, ...]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part == "auto" or (read_number(part) or 0) > 0 for part in parts):
        raise UsageError(f"--n-draft {text!r}: give lengths from 1 and auto, such as 1,2,4,auto.")
    return tuple("auto" if part == "auto" else int(part) for part in parts)


def _numbers(option: str, text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all((read_number(part) or 0) > 0 for part in parts):
        raise UsageError(f"{option} {text!r}: give numbers of tokens from 1, such as 512,8192.")
    return tuple(int(part) for part in parts)


def _rates(text: str) -> list[float]:
    try:
        shares = [float(part) for part in text.split(",")]
    except ValueError:
        shares = []
    if not shares or not all(0 <= share <= 1 for share in shares):
        raise UsageError(f"--accept {text!r}: give probabilities from 0 to 1, such as 0.7 or 0.5,0.7,0.9.")
    return shares
