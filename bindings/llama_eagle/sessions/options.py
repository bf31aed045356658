"""Options for loading models and for creating contexts and sessions, with their limits.

Imports no native library, so that the command line can import it at start-up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from llama_eagle.errors import UsageError, refuse
from llama_eagle.native.limits import LONGEST, MAX_CONTEXT, MAX_FLOAT, MAX_INT
from llama_eagle.native.processor.threads import read_threads

if TYPE_CHECKING:
    from llama_eagle.gguf.header import Source

CACHE_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "iq4_nl": 20, "bf16": 30}
UNQUANTIZED = ("f32", "f16", "bf16")
MTP = "mtp"
SPLIT_NONE, SPLIT_LAYER = 0, 1
FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}


@dataclass(frozen=True)
class Lora:
    """A LoRA adapter of a target, as GGUF, and its strength."""

    path: Path
    scale: float = 1.0


def read_lora(text: str) -> Lora:
    """Parse FILE or FILE:SCALE."""
    path, colon, scale = text.rpartition(":")
    if not colon or Path(text).exists():
        return Lora(Path(text))
    try:
        number = float(scale)
    except ValueError:
        if not Path(path).is_file():
            return Lora(Path(text))
        number = math.nan
    if not path or not abs(number) <= MAX_FLOAT:
        raise UsageError(f"--lora {text}: expected FILE or FILE:SCALE with a finite scale, such as lora.gguf:0.5.")
    return Lora(Path(path), number)


@dataclass(frozen=True)
class LoadOptions:
    """Options for loading a model. `n_gpu_layers` -1 offloads every layer.

    `split_mode` (llama.cpp's LLAMA_SPLIT_MODE_*): division of the layers among GPUs; `tensor_split`: its ratio. With
    SPLIT_NONE all layers are on the GPU with number `main_gpu`.

    rpc_servers: HOST:PORT of RPC servers, which get layers before the local GPUs; with servers, `n_gpu_layers` 0 means
    all. devices: ggml's devices to use, instead of all. lora: adapter of a target, for every context of it.
    """

    n_gpu_layers: int = 0
    main_gpu: int = 0
    split_mode: int = SPLIT_LAYER
    tensor_split: Sequence[float] = ()
    rpc_servers: Sequence[str] = ()
    devices: Sequence[int] = ()
    use_mmap: bool = True
    use_mlock: bool = False
    load_mtp: bool = False  # load the file's MTP head too
    no_alloc: bool = False  # load headers only; nothing can be computed
    vocab_only: bool = False  # load the vocabulary only
    on_progress: Callable[[float], None] | None = None  # called with 0..1
    lora: Lora | None = None

    def __post_init__(self) -> None:
        refuse(
            {
                "tensor_split has a negative or infinite share, or no positive one": len(self.tensor_split) > 0
                and not (min(self.tensor_split) >= 0 and 0 < sum(self.tensor_split) < MAX_FLOAT)
            }
        )
        if self.rpc_servers and self.n_gpu_layers == 0:
            object.__setattr__(self, "n_gpu_layers", -1)


def for_draft(target: LoadOptions, n_gpu_layers: int | None) -> LoadOptions:
    """Return the options for loading a target's draft. `n_gpu_layers` None: the same number as for the target.

    A draft is too small to split: it is on one GPU, `main_gpu`, or the first with a share if that has none.
    """
    gpu, shares = target.main_gpu, list(target.tensor_split)
    if target.split_mode != SPLIT_NONE and any(shares) and not (0 <= gpu < len(shares) and shares[gpu]):
        gpu = next(i for i, share in enumerate(shares) if share)
    layers = target.n_gpu_layers if n_gpu_layers is None else n_gpu_layers
    return replace(
        target, n_gpu_layers=layers, main_gpu=gpu, split_mode=SPLIT_NONE, tensor_split=(), load_mtp=True, lora=None
    )


def batch_too_small(n_batch: int, n_ubatch: int, longest: int) -> str | None:
    """Return a message if these sizes have no room for a round with a draft of `longest` tokens."""
    for name, size in (("batch", n_batch), ("ubatch", n_ubatch)):
        if size < longest + 2:
            return f"{name} size {size} (n_{name}) is below {longest + 2}, the longest draft + 2"
    return None


@dataclass(frozen=True)
class ContextOptions:
    """Options of a target's context. Sizes are in tokens. `n_threads` 0: the default number.

    `n_threads` applies to single tokens and batches. `n_rs_seq`: rollback depth of the recurrent state in tokens, at
    least the maximum draft length.
    """

    n_ctx: int = 4096
    n_batch: int = 2048
    n_ubatch: int = 512
    n_threads: int = 0
    flash_attn: str = "auto"
    type_k: str = "f16"
    type_v: str = "f16"
    n_rs_seq: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_threads", read_threads(self.n_threads))
        too_small = batch_too_small(self.n_batch, self.n_ubatch, self.n_rs_seq)
        refuse(
            {
                f"context size {self.n_ctx} (n_ctx) is not in 1..{MAX_CONTEXT}": not 0 < self.n_ctx <= MAX_CONTEXT,
                str(too_small): too_small is not None,
                f"n_batch={self.n_batch} is above {MAX_INT}": self.n_batch > MAX_INT,
                f"n_ubatch={self.n_ubatch} is above {MAX_INT}": self.n_ubatch > MAX_INT,
                f"flash_attn={self.flash_attn!r} is not one of {', '.join(FLASH_ATTENTION)}": (
                    self.flash_attn not in FLASH_ATTENTION
                ),
                f"cache type {self.type_k} or {self.type_v} is not one of {', '.join(CACHE_TYPES)}": not {
                    self.type_k,
                    self.type_v,
                }
                <= CACHE_TYPES.keys(),
                f"cache type {self.type_v} of V needs flash attention, which is off": (
                    self.flash_attn == "off" and self.type_v not in UNQUANTIZED
                ),
            }
        )


@dataclass(frozen=True)
class PairOptions:
    """Options for loading a target with its draft. `draft` None: no draft model; `MTP`: the target's own head."""

    target: Source
    draft: Source | None = None
    load: LoadOptions = LoadOptions()
    draft_gpu_layers: int | None = None  # None: same as the target


@dataclass(frozen=True)
class SessionOptions:
    """Options of a session. `n_ctx_draft` and `n_threads` 0: the same as the target's context."""

    n_draft_max: int = LONGEST
    n_ctx_draft: int = 0
    n_threads: int = 0
    n_vocab_draft: int = 0  # rows of an MTP draft's head; 0: the whole vocabulary
    base_ids: Sequence[int] = ()  # the likeliest tokens, for the rows of such a head
