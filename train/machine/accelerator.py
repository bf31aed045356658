"""Device and precision of a run."""

from __future__ import annotations

from typing import Any

import torch
from llama_eagle.errors import UsageError
from llama_eagle.native.processor.memory import keep_freed_memory
from llama_eagle.train.settings import Settings


def make_accelerator(settings: Settings) -> tuple[Any, torch.dtype]:
    """Return the accelerator of a run and the type of its activations. Raises UsageError without the device."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from accelerate.utils import DistributedDataParallelKwargs

    cuda = torch.cuda.is_available() and settings.device in ("auto", "cuda")
    if settings.device == "cuda" and not cuda:
        raise UsageError("--device cuda: this torch has no CUDA device. Use --device cpu.")
    bf16 = settings.dtype == "bf16" or (settings.dtype == "auto" and (cuda or _multiplies_bf16()))
    AcceleratorState._reset_state()  # discards the settings of an earlier run in this process
    accelerator = Accelerator(
        cpu=settings.device == "cpu",
        mixed_precision="bf16" if bf16 else "no",
        kwargs_handlers=[DistributedDataParallelKwargs(broadcast_buffers=False)],
    )
    if accelerator.device.type == "cpu":
        keep_freed_memory()
    return accelerator, torch.bfloat16 if bf16 else torch.float32


def _multiplies_bf16() -> bool:
    """Return whether the CPU has BF16 instructions, which make BF16 several times as fast as F32."""
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))
