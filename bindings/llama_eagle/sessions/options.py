"""How targets and drafts are loaded, and how contexts and sessions are made from them: values and their limits.

Light enough for the command line to import before it knows what it will do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from llama_eagle.errors import refuse
from llama_eagle.native.limits import LONGEST, MAX_CONTEXT
from llama_eagle.native.processor.threads import read_threads

if TYPE_CHECKING:
    from llama_eagle.gguf.header import Source

CACHE_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "iq4_nl": 20, "bf16": 30}
UNQUANTIZED = ("f32", "f16", "bf16")
MTP = "mtp"
SPLIT_NONE, SPLIT_LAYER = 0, 1
FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}


@dataclass(frozen=True)
class LoadOptions:
    """How weights are loaded. `n_gpu_layers` -1 offloads every layer.

    `split_mode` (llama.cpp's LLAMA_SPLIT_MODE_*) says how several GPUs share the layers, `tensor_split` in which
    proportions; with SPLIT_NONE all are on the one that `main_gpu` numbers.

    rpc_servers: HOST:PORT of machines that take layers too, before this machine's GPUs: where servers are named,
    `n_gpu_layers` 0 means all. devices: ggml's own devices to choose among, instead of all.
    """

    n_gpu_layers: int = 0
    main_gpu: int = 0
    split_mode: int = SPLIT_LAYER
    tensor_split: Sequence[float] = ()
    rpc_servers: Sequence[str] = ()
    devices: Sequence[int] = ()
    use_mmap: bool = True
    use_mlock: bool = False
    load_mtp: bool = False  # the MTP head as well, where the file has one
    no_alloc: bool = False  # the headers alone: nothing can be computed
    on_progress: Callable[[float], None] | None = None  # called with 0..1

    def __post_init__(self) -> None:
        refuse(
            {
                "tensor_split has a negative or infinite share, or no positive one": len(self.tensor_split) > 0
                and not (min(self.tensor_split) >= 0 and 0 < sum(self.tensor_split) < float("inf"))
            }
        )
        if self.rpc_servers and self.n_gpu_layers == 0:
            object.__setattr__(self, "n_gpu_layers", -1)


def of_draft(target: LoadOptions, n_gpu_layers: int | None) -> LoadOptions:
    """How a target's draft is loaded, `n_gpu_layers` None: as many layers as the target's.

    A draft is too small to share: one GPU has it whole, `main_gpu`, or the first with a share if that one has none.
    """
    gpu, shares = target.main_gpu, list(target.tensor_split)
    if target.split_mode != SPLIT_NONE and any(shares) and not (0 <= gpu < len(shares) and shares[gpu]):
        gpu = next(i for i, share in enumerate(shares) if share)
    layers = target.n_gpu_layers if n_gpu_layers is None else n_gpu_layers
    return replace(target, n_gpu_layers=layers, main_gpu=gpu, split_mode=SPLIT_NONE, tensor_split=(), load_mtp=True)


def batch_too_small(n_batch: int, n_ubatch: int, longest: int) -> str | None:
    """Return a message if these sizes have no room for a round with a draft of `longest` tokens."""
    for name, size in (("batch", n_batch), ("ubatch", n_ubatch)):
        if size < longest + 2:
            return f"{name} size {size} is below {longest + 2}, the longest draft + 2"
    return None


@dataclass(frozen=True)
class ContextOptions:
    """A target's context. Sizes in tokens; `n_threads` is for decode and batches alike, 0: the default number.

    `n_rs_seq`: how many tokens the recurrent state can be taken back, at least the longest draft.
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
    """How a target and its draft are loaded together. `draft` None: no draft model; `MTP`: the target's own head."""

    target: Source
    draft: Source | None = None
    load: LoadOptions = LoadOptions()
    draft_gpu_layers: int | None = None  # None: as the target


@dataclass(frozen=True)
class SessionOptions:
    """How a draft is bound to a target. `n_ctx_draft` and `n_threads` 0: as the target's context."""

    n_draft_max: int = LONGEST
    n_ctx_draft: int = 0
    n_threads: int = 0
    n_vocab_draft: int = 0  # rows of an MTP draft's head; 0: the whole vocabulary
    base_ids: Sequence[int] = ()  # the likeliest tokens, for the rows of such a head
