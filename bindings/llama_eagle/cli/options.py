"""Options that several commands share. Their defaults are the library's own."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from llama_eagle import console
from llama_eagle.drafting.options import DraftingOptions, about
from llama_eagle.errors import UsageError
from llama_eagle.generation.options import SamplingParams
from llama_eagle.native.processor.threads import read_threads, warn_excess
from llama_eagle.native.rpc import read_servers
from llama_eagle.sessions.options import ContextOptions, LoadOptions, batch_too_small


def _threads(value: str | int) -> int:
    """Value of --threads, which may be a configuration file's; a number that exceeds the machine is a warning."""
    try:
        number = read_threads(value, "threads")
    except UsageError as error:
        raise typer.BadParameter(str(error)) from None
    warn_excess(number, console.warn)
    return number


Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout, also for failures.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show llama.cpp's log on stderr.")]
Plain = Annotated[bool, typer.Option("--plain", help="Print answers as they come, without rendering Markdown.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an output that exists.")]
TargetFile = Annotated[Path, typer.Option("--model", "-m", metavar="TARGET.gguf", help="The target model.")]
GpuLayers = Annotated[int, typer.Option("--n-gpu-layers", "-ngl", help="Layers on the GPU, -1: all.")]
Threads = Annotated[
    int,
    typer.Option(
        "--threads",
        "-t",
        metavar="N|auto",
        parser=_threads,
        show_default="auto",
        help="CPU threads (auto or 0: one for each physical performance core that this process may use).",
    ),
]


def drafting_option(name: str, *short: str) -> Any:
    """Return the option of a field of `DraftingOptions`."""
    known = about(name)
    return typer.Option(known.flag, *short, metavar=known.metavar, min=known.least, help=known.help)


DraftGpuLayers = Annotated[int | None, drafting_option("draft_gpu_layers")]
PMin = Annotated[float, drafting_option("p_min")]
DRAFTING = DraftingOptions.__dataclass_fields__

CHAT_CONTEXT = 8192  # tokens, where a conversation is kept


@dataclass(frozen=True)
class ServedDrafting:
    """Drafting options that llama-server has too."""

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
        """Raises `UsageError` for values out of range."""
        given = {field.name: getattr(self, field.name) for field in fields(self) if field.name in DRAFTING}
        texts = {"n_draft": read_n_draft(self.n_draft), "draft_vocab": _read_vocab(self.draft_vocab)}
        return DraftingOptions(**{**given, **texts})


@dataclass(frozen=True)
class Drafting(ServedDrafting):
    """All drafting options of the command line."""

    draft_sampling: Annotated[str, drafting_option("draft_sampling")] = DraftingOptions.draft_sampling


@dataclass(frozen=True)
class Sampling:
    """How each token is drawn."""

    temp: Annotated[float, typer.Option(help="Temperature, 0: greedy.")] = SamplingParams.temperature
    top_k: Annotated[int, typer.Option(help="0: off.")] = SamplingParams.top_k
    top_p: Annotated[float, typer.Option(help="1: off.")] = SamplingParams.top_p
    min_p: Annotated[float, typer.Option(help="0: off.")] = SamplingParams.min_p
    repeat_penalty: Annotated[float, typer.Option(help="1: off.")] = SamplingParams.repeat_penalty
    seed: Annotated[int | None, typer.Option(help="Random by default.")] = SamplingParams.seed

    def params(self) -> SamplingParams:
        """Raises `UsageError` for values out of range."""
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
    """Images beside the text."""

    mmproj: Annotated[
        Path | None, typer.Option(metavar="MMPROJ.gguf", help="The target's vision encoder: images can be read then.")
    ] = None


@dataclass(frozen=True)
class Devices:
    """Where layers lie: this machine's GPUs, and other machines."""

    n_gpu_layers: GpuLayers = LoadOptions.n_gpu_layers
    rpc: Annotated[
        str | None, typer.Option(metavar="HOST:PORT,...", help="RPC servers that take layers too (rpc-server).")
    ] = None
    tensor_split: Annotated[
        str | None, typer.Option("--tensor-split", "-ts", metavar="N,...", help="Shares of servers, then of GPUs.")
    ] = None

    def load(self) -> LoadOptions:
        """Raises `UsageError` for what is no server, or no share."""
        servers, shares = read_servers(self.rpc), _read_shares(self.tensor_split)
        if self.n_gpu_layers and not servers:
            warn_without_gpu(self.n_gpu_layers)
        return LoadOptions(self.n_gpu_layers, tensor_split=shares, rpc_servers=servers)


@dataclass(frozen=True)
class Computing(Devices):
    """Where and how the target is computed."""

    threads: Threads = ContextOptions.n_threads
    batch_size: Annotated[int, typer.Option("--batch-size", "-b", help="Tokens per decode call.")] = (
        ContextOptions.n_batch
    )
    ubatch_size: Annotated[int, typer.Option("--ubatch-size", "-ub", help="Tokens computed at once.")] = (
        ContextOptions.n_ubatch
    )
    flash_attn: Annotated[str, typer.Option(metavar="auto|on|off")] = ContextOptions.flash_attn
    cache_type_k: Annotated[str, typer.Option(help="Type of the K memory: f16, bf16, q8_0, ...")] = (
        ContextOptions.type_k
    )
    cache_type_v: Annotated[str, typer.Option(help="Type of the V memory.")] = ContextOptions.type_v

    def too_small_for(self, longest: int) -> str | None:
        """Return a message if batches have no room for a round with a draft of `longest` tokens."""
        return batch_too_small(self.batch_size, self.ubatch_size, longest)

    def context(self, n_ctx: int, n_rs_seq: int) -> ContextOptions:
        """For `n_ctx` tokens, of whose recurrent state the last `n_rs_seq` can be undone."""
        return ContextOptions(
            n_ctx=n_ctx,
            n_batch=self.batch_size,
            n_ubatch=self.ubatch_size,
            n_threads=self.threads,
            flash_attn=self.flash_attn,
            type_k=self.cache_type_k,
            type_v=self.cache_type_v,
            n_rs_seq=n_rs_seq,
        )


@functools.cache
def warn_without_gpu(n_gpu_layers: int) -> None:
    """Warn once where layers are to run on a GPU, and this build has or finds none."""
    from llama_eagle.sessions.devices import GPUS, devices_of_kind

    if not devices_of_kind(GPUS):
        console.warn(
            f"--n-gpu-layers {n_gpu_layers} has no effect: this build has no GPU backend, or finds no GPU. "
            "`llama-eagle doctor` shows both, docs/gpu.md how to build one."
        )


# What the library's messages call a thing, and what it is called here.
FLAGS = {
    **{
        name: f"--{name.replace('_', '-')}"
        for group in (SamplingParams, ContextOptions, LoadOptions)
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
    "requantize=True": "--requantize",
}
_NAMES = re.compile(rf"(?<![\w.'-])({'|'.join(FLAGS)})(?!\w)")


def in_flags(message: str) -> str:
    """A message of the library, with the command line's names for its arguments."""
    return _NAMES.sub(lambda found: FLAGS[found[0]], message)


def read_n_draft(text: str) -> int | str:
    """A number of 0 or more, or "auto". Raises `UsageError` for anything else."""
    if text == "auto":
        return text
    if not text.isdigit():
        raise UsageError(f"draft length {text!r} (n_draft): give a number of 0 or more, or auto.")
    return int(text)


def _read_shares(text: str | None) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise UsageError(f"tensor_split {text!r}: give shares separated by commas, such as 3,1.") from None


def _read_vocab(text: str | None) -> int | str | None:
    if text is not None and text != "all" and not text.isdigit():
        raise UsageError(f"draft_vocab {text!r}: give a number of tokens, or all.")
    return int(text) if text and text.isdigit() else text


def read_layers(text: str | None) -> tuple[int, ...] | None:
    """The numbers of --aux-layers. Raises `UsageError` for anything else."""
    try:
        return None if text is None else tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--aux-layers {text!r}: give numbers separated by commas, such as 2,12,21.") from None
