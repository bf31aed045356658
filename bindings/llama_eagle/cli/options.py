"""Options shared by several commands. Their defaults are the library's own."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from llama_eagle import console
from llama_eagle.drafting.options import DraftingOptions, about
from llama_eagle.errors import UsageError
from llama_eagle.generation.options import GenerationOptions, SamplingParams
from llama_eagle.native.limits import CHAT_CONTEXT, MAX_INT, read_number
from llama_eagle.native.processor.threads import read_threads, warn_excess
from llama_eagle.native.rpc import read_servers
from llama_eagle.sessions.options import ContextOptions, LoadOptions, batch_too_small, read_lora


def _threads(value: str | int) -> int:
    """Parse --threads, which a configuration file may give as an int. Warn if it exceeds the number of cores."""
    try:
        number = read_threads(value, "threads")
    except UsageError as error:
        raise typer.BadParameter(str(error)) from None
    warn_excess(number, console.warn)
    return number


ADVANCED = "Advanced"  # the help panel of expert options

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout, also on failure.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show llama.cpp's log on stderr.")]
Plain = Annotated[bool, typer.Option("--plain", help="Print the answer as plain text, without rendering Markdown.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace existing output files.")]
MODEL_HELP = (
    "a GGUF file (the first one of a split model), a folder, a Hugging Face hub id as OWNER/NAME[/SUBFOLDER][:TYPE], "
    "or a name that `llama-eagle list` shows."
)
KEPT_HELP = "a GGUF file, a folder, or a name that `llama-eagle list` shows"
Yes = Annotated[
    bool,
    typer.Option(
        "--yes",
        help="Download and convert the model if necessary, without a terminal too. On a terminal this is the default.",
        rich_help_panel=ADVANCED,
    ),
]
OutType = Annotated[
    str | None,
    typer.Option(
        "--type",
        metavar="TYPE",
        help="Quantization type to convert a checkpoint to (default: the one in the cache, else q4_k_m), or to choose "
        "among a repository's GGUF files (default: q4_k_m, or another one if that does not fit into memory).",
    ),
]
TargetOption = typer.Option("--model", "-m", metavar="MODEL", help=f"Target model: {MODEL_HELP}")
ParseSpecial = Annotated[
    bool,
    typer.Option(
        "--parse-special/--no-parse-special",
        help="Recognize control tokens such as <|im_end|> in prompts and messages. Off: they are text there, and only "
        "those of the chat template are control tokens.",
        rich_help_panel=ADVANCED,
    ),
]
NPredict = Annotated[
    int, typer.Option("-n", "--n-predict", help="Maximum length of an answer in tokens (-1: no limit).")
]
GpuLayers = Annotated[
    int,
    typer.Option(
        "--n-gpu-layers",
        "-ngl",
        min=-1,
        max=MAX_INT,
        help="Number of the target's layers on the GPU (-1: all). docs/gpu.md describes builds for GPUs.",
    ),
]
Threads = Annotated[
    int,
    typer.Option(
        "--threads",
        "-t",
        metavar="N|auto",
        parser=_threads,
        show_default=False,
        help="Number of CPU threads (default: auto or 0, one per physical performance core available to this process).",
    ),
]


CacheTypeK = Annotated[
    str,
    typer.Option(
        metavar="TYPE",
        help="Data type of the K cache: f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0 or iq4_nl. Quantized types save "
        "memory and lose precision.",
        rich_help_panel=ADVANCED,
    ),
]
CacheTypeV = Annotated[
    str,
    typer.Option(
        metavar="TYPE",
        help="Data type of the V cache (see --cache-type-k). Quantized types require flash attention.",
        rich_help_panel=ADVANCED,
    ),
]
EXPERT_DRAFTING = ("n_draft_max", "p_min", "draft_vocab", "draft_gpu_layers", "draft_n_ctx")


def drafting_option(name: str, *short: str) -> Any:
    """Return the command-line option for a field of `DraftingOptions`."""
    known, panel = about(name), ADVANCED if name in EXPERT_DRAFTING else None
    return typer.Option(
        known.flag, *short, metavar=known.metavar, min=known.least, help=known.help, rich_help_panel=panel
    )


DraftGpuLayers = Annotated[int | None, drafting_option("draft_gpu_layers")]
PMin = Annotated[float, drafting_option("p_min")]
DRAFTING = DraftingOptions.__dataclass_fields__

CONTEXT_HELP = f"(default: {CHAT_CONTEXT}, or the model's training context if that is less; 0: that)."


@dataclass(frozen=True)
class ServedDrafting:
    """Drafting options that llama-server supports too."""

    draft: Annotated[str | None, drafting_option("draft", "-d")] = None
    lookup: Annotated[bool | None, drafting_option("lookup")] = DraftingOptions.lookup
    lookup_cache: Annotated[Path | None, drafting_option("lookup_cache")] = None
    n_draft: Annotated[str, drafting_option("n_draft")] = "auto"
    n_draft_max: Annotated[int, drafting_option("n_draft_max")] = DraftingOptions.n_draft_max
    p_min: PMin = DraftingOptions.p_min
    exact: Annotated[bool, drafting_option("exact")] = DraftingOptions.exact
    draft_vocab: Annotated[str | None, drafting_option("draft_vocab")] = None
    draft_gpu_layers: DraftGpuLayers = DraftingOptions.draft_gpu_layers
    draft_n_ctx: Annotated[int, drafting_option("draft_n_ctx")] = DraftingOptions.draft_n_ctx

    def options(self) -> DraftingOptions:
        """Return the library's options. Raises `UsageError` for values out of range."""
        given = {field.name: getattr(self, field.name) for field in fields(self) if field.name in DRAFTING}
        texts = {"n_draft": read_n_draft(self.n_draft), "draft_vocab": read_vocab(self.draft_vocab)}
        return DraftingOptions(**{**given, **texts})


def find_model(model: str | Path, yes: bool, drafts: DraftingOptions | None = None, outtype: str | None = None) -> Path:
    """Return the GGUF file of a MODEL argument; download and convert what is missing if `yes` or on a terminal.

    drafts: the command's drafting options, whose draft file is checked first; without a drafter among them, a published
    draft is fetched too. Raises the errors of `store.find.prepare`.
    """
    from llama_eagle.store.find import NotFetched, is_name, prepare

    if drafts is not None and drafts.draft_file is not None and is_name(model):
        from llama_eagle.gguf.pairing import read_draft

        read_draft(drafts.draft_file)
    try:
        with_draft = drafts is not None and drafts.draft is None
        return prepare(model, outtype, with_draft=with_draft, fetch=yes or console.on_terminal())
    except NotFetched as error:
        error.args = (f"{error} (or repeat this command with --yes)",)
        raise


def find_kept(model: str | Path) -> Path:
    """Return the GGUF file of a MODEL argument, for commands that neither download nor convert it."""
    from llama_eagle.store.find import prepare

    return prepare(model, with_draft=False, fetch=False)


@dataclass(frozen=True)
class Target:
    """The target model."""

    model: Annotated[str, TargetOption]
    yes: Yes = False

    def file(self, drafts: DraftingOptions | None = None) -> Path:
        """Return its GGUF file, as `find_model` does."""
        return find_model(self.model, self.yes, drafts)


@dataclass(frozen=True)
class Drafting(ServedDrafting):
    """All drafting options of the command line."""

    draft_sampling: Annotated[str, drafting_option("draft_sampling")] = DraftingOptions.draft_sampling


@dataclass(frozen=True)
class Sampling:
    """Options of the sampler."""

    temp: Annotated[
        float,
        typer.Option(min=0, help="Sampling temperature (0: greedy decoding). Lower values give more predictable text."),
    ] = SamplingParams.temperature
    top_k: Annotated[int, typer.Option(help="Sample from the N most likely tokens (0: off).")] = SamplingParams.top_k
    top_p: Annotated[
        float, typer.Option(help="Sample from the most likely tokens whose probabilities sum to this (1: off).")
    ] = SamplingParams.top_p
    min_p: Annotated[
        float, typer.Option(help="Drop tokens below this fraction of the most likely token's probability (0: off).")
    ] = SamplingParams.min_p
    repeat_penalty: Annotated[
        float,
        typer.Option(
            help="Penalty on each of the last 64 tokens (1: off). Values above 1 reduce repetition.",
            rich_help_panel=ADVANCED,
        ),
    ] = SamplingParams.repeat_penalty
    seed: Annotated[int | None, typer.Option(help="Random seed of sampling (default: a new one in each run).")] = (
        SamplingParams.seed
    )

    def params(self) -> SamplingParams:
        """Return the library's parameters. Raises `UsageError` for values out of range."""
        return SamplingParams(
            temperature=self.temp,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repeat_penalty=self.repeat_penalty,
            seed=self.seed,
        )


@dataclass(frozen=True)
class Vision:
    """Options for images."""

    mmproj: Annotated[
        Path | None,
        typer.Option(
            metavar="MMPROJ.gguf",
            help="Vision encoder of the target, from `convert --mmproj`; required to read images.",
        ),
    ] = None


@dataclass(frozen=True)
class Devices:
    """Placement of layers on GPUs and RPC servers."""

    n_gpu_layers: GpuLayers = LoadOptions.n_gpu_layers
    rpc: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT,...",
            help="Machines that hold a part of the layers and run `llama-eagle rpc-server`. With them, -ngl 0 means "
            "all layers.",
            rich_help_panel=ADVANCED,
        ),
    ] = None
    tensor_split: Annotated[
        str | None,
        typer.Option(
            "--tensor-split",
            "-ts",
            metavar="N,...",
            help="Split ratio of the layers: RPC servers first, then local GPUs, for example 3,1 (default: by free "
            "memory).",
            rich_help_panel=ADVANCED,
        ),
    ] = None

    def load(self) -> LoadOptions:
        """Return the library's options. Raises `UsageError` for a wrong server or split ratio."""
        servers, shares = read_servers(self.rpc), _read_split(self.tensor_split)
        if self.n_gpu_layers and not servers:
            warn_without_gpu(self.n_gpu_layers)
        return LoadOptions(self.n_gpu_layers, tensor_split=shares, rpc_servers=servers)


@dataclass(frozen=True)
class Loading(Devices):
    """Placement of layers, and the target's adapter."""

    lora: Annotated[
        str | None,
        typer.Option(
            metavar="FILE[:SCALE]",
            help="LoRA adapter of the target, from `convert ADAPTER --target`, and its strength (default: 1).",
        ),
    ] = None

    def load(self) -> LoadOptions:
        """Return the library's options. Raises `UsageError` for a wrong scale."""
        return replace(super().load(), lora=None if self.lora is None else read_lora(self.lora))


@dataclass(frozen=True)
class ServedComputing(Loading):
    """Placement and computation of the target in llama-server, whose batch is one micro-batch."""

    threads: Threads = ContextOptions.n_threads
    ubatch_size: Annotated[
        int,
        typer.Option(
            "--ubatch-size",
            "-ub",
            help="Maximum number of tokens computed at once (llama.cpp's physical batch). A larger value reads long "
            "prompts faster and takes more memory.",
            rich_help_panel=ADVANCED,
        ),
    ] = ContextOptions.n_ubatch
    flash_attn: Annotated[
        str,
        typer.Option(
            metavar="auto|on|off",
            help="Flash attention: on, off, or auto (on if the device supports it).",
            rich_help_panel=ADVANCED,
        ),
    ] = ContextOptions.flash_attn
    cache_type_k: CacheTypeK = ContextOptions.type_k
    cache_type_v: CacheTypeV = ContextOptions.type_v

    def context(self, n_ctx: int, n_rs_seq: int) -> ContextOptions:
        """Return options for a context of `n_ctx` tokens; `n_rs_seq`: rollback depth of its recurrent state."""
        return ContextOptions(
            n_ctx=n_ctx,
            n_ubatch=self.ubatch_size,
            n_threads=self.threads,
            flash_attn=self.flash_attn,
            type_k=self.cache_type_k,
            type_v=self.cache_type_v,
            n_rs_seq=n_rs_seq,
        )


@dataclass(frozen=True)
class Computing(ServedComputing):
    """Placement and computation of the target."""

    batch_size: Annotated[
        int,
        typer.Option(
            "--batch-size",
            "-b",
            help="Maximum number of tokens per decode call (llama.cpp's logical batch).",
            rich_help_panel=ADVANCED,
        ),
    ] = ContextOptions.n_batch

    def too_small_for(self, longest: int) -> str | None:
        """Return a message if batches have no room for a round with a draft of `longest` tokens."""
        return batch_too_small(self.batch_size, self.ubatch_size, longest)

    def context(self, n_ctx: int, n_rs_seq: int) -> ContextOptions:
        """Return the same options with --batch-size."""
        return replace(super().context(n_ctx, n_rs_seq), n_batch=self.batch_size)


@functools.cache
def warn_without_gpu(n_gpu_layers: int) -> None:
    """Warn once where layers are to run on a GPU, and this build has or finds none."""
    from llama_eagle.sessions.devices import GPUS, devices_of_kind

    if not devices_of_kind(GPUS):
        console.warn(
            f"--n-gpu-layers {n_gpu_layers} has no effect: this build has no GPU backend, or finds no GPU. "
            "`llama-eagle doctor` shows both; docs/gpu.md explains how to build with a GPU backend."
        )


# The library's name of an argument -> the option of the command line.
FLAGS = {
    **{
        name: f"--{name.replace('_', '-')}"
        for group in (SamplingParams, GenerationOptions, ContextOptions, LoadOptions)
        for name in group.__dataclass_fields__
        if "_" in name
    },
    "max_tokens": "--n-predict",
    "n_ctx": "--ctx-size",
    "n_batch": "--batch-size",
    "n_ubatch": "--ubatch-size",
    "n_threads": "--threads",
    "type_k": "--cache-type-k",
    "type_v": "--cache-type-v",
    **{name: about(name).flag for name in DRAFTING if "_" in name},
    "mmproj_path": "--mmproj",
    "rpc_servers": "--rpc",
    "api_key": "--api-key",
    "parse_special": "--parse-special",
    "cache_disk": "--cache-disk",
    "output_type": "--output-type",
}
# Arguments named by ordinary words, which are names only before "=": draft=FILE, exact=True, lookup=False.
WORDS = {
    **{
        name: f"--{name}"
        for name in ("draft", "lookup", "exact", "seed", "grammar", "stop", "imatrix", "lora", "recipe")
    },
    **{name: f"--{name}" for name in ("threads", "requantize", "verbose", "host", "port", "parallel", "mmproj")},
    "temperature": "--temp",
    "draft_path": "--draft",
}
_NAMES = re.compile(rf"(?<![\w.'/-])(?:({'|'.join(WORDS | FLAGS)})=((?:True|False)\b)?|({'|'.join(FLAGS)})(?!\w))")


def in_flags(message: str) -> str:
    """Return a message of the library with the command line's names of its arguments."""
    return _NAMES.sub(_flag, message).replace("no limit (None)", "-1 for no limit")


def _flag(found: re.Match[str]) -> str:
    name, value, alone = found.groups()
    if alone is not None:
        return FLAGS[alone]
    flag = (WORDS | FLAGS)[name]
    return {"True": flag, "False": flag.replace("--", "--no-", 1)}.get(value, f"{flag}=")


def read_n_draft(text: str) -> int | str:
    """Parse a draft length: a number of 0 or more, or "auto". Raises `UsageError` for anything else."""
    if text == "auto":
        return text
    number = read_number(text)
    if number is None:
        raise UsageError(f"draft length {text!r} (n_draft): give a number of 0 or more, or auto.")
    return number


def _read_split(text: str | None) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise UsageError(f"tensor_split {text!r}: give numbers separated by commas, such as 3,1.") from None


def read_vocab(text: str | None) -> int | str | None:
    """Parse --draft-vocab: a number or all. Raises `UsageError` for anything else."""
    if text is None or text == "all":
        return text
    number = read_number(text)
    if number is None:
        raise UsageError(f"draft_vocab {text!r}: give a number of tokens, or all.")
    return number


def read_layers(text: str | None) -> tuple[int, ...] | None:
    """Parse --aux-layers. Raises `UsageError` unless it is a list of numbers."""
    try:
        return None if text is None else tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--aux-layers {text!r}: give numbers separated by commas, such as 2,12,21.") from None
