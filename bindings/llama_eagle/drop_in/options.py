"""What `EagleLlama` takes beyond `llama_cpp.Llama`, and the combinations it refuses, by name and before loading."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from llama_cpp import Llama

from llama_eagle.drafting.drafters import Drafter
from llama_eagle.errors import InputError, UsageError
from llama_eagle.gguf.pairing import require_models
from llama_eagle.gguf.size import require_memory
from llama_eagle.native.limits import LONGEST, MAX_THREADS
from llama_eagle.sessions import exact
from llama_eagle.sessions.models import CACHE_TYPES

PARENT_PARAMETERS = {
    name: parameter.default
    for name, parameter in inspect.signature(Llama.__init__).parameters.items()
    if parameter.kind is inspect.Parameter.KEYWORD_ONLY
}
F16 = 1


@dataclass(frozen=True)
class EagleOptions:
    """Raises `UsageError` for values out of range.

    draft_path: the EAGLE-3 draft, a GGUF; None: no draft, the same class otherwise.
    n_draft: tokens drafted in a round, or "auto": by measured acceptance and cost, down to none.
    n_draft_max: the longest draft; sets how far a recurrent state can be taken back.
    p_min: a draft ends where its cumulative probability falls below this.
    draft_sampling: "match": rows are sampled while the sample equals the most likely draft token; the same seed gives
        the same text as without a draft. "rejection": draft tokens are drawn and kept or replaced such that the
        distribution stays; more are kept at high temperatures, and a seed gives another text.
    exact: verification computes each row as plain decoding would, to the last bit; refused where it cannot.
    draft_gpu_layers: None: as `n_gpu_layers`. draft_n_ctx: positions the draft sees, 0: as the target.
    drafter: another source of drafts, such as `PromptLookup()`; with `draft_path`, it is asked first while it pays.
    checkpoint_mib: memory for checkpoints of a recurrent state. checkpoint_every: tokens between them in a long prompt.
    """

    draft_path: str | Path | None = None
    n_draft: int | str = "auto"
    n_draft_max: int = LONGEST
    p_min: float = 0.0
    draft_sampling: str = "match"
    exact: bool = False
    draft_gpu_layers: int | None = None
    draft_n_ctx: int = 0
    drafter: Drafter | None = None
    checkpoint_mib: int = 256
    checkpoint_every: int = 1024

    def __post_init__(self) -> None:
        fixed = None if self.n_draft == "auto" else self.n_draft
        problems = {
            f"n_draft={self.n_draft!r} is neither 'auto' nor a number of 0 or more": (
                fixed is not None and (isinstance(fixed, (str, bool)) or fixed < 0)
            ),
            f"n_draft_max={self.n_draft_max} is below 1": self.n_draft_max < 1,
            f"draft_sampling={self.draft_sampling!r} is neither 'match' nor 'rejection'": (
                self.draft_sampling not in ("match", "rejection")
            ),
            f"p_min={self.p_min} is not in [0, 1)": not 0 <= self.p_min < 1,
            f"draft_n_ctx={self.draft_n_ctx} is negative": self.draft_n_ctx < 0,
            f"checkpoint_mib={self.checkpoint_mib} is negative": self.checkpoint_mib < 0,
            f"checkpoint_every={self.checkpoint_every} is below 1": self.checkpoint_every < 1,
        }
        for problem, found in problems.items():
            if found:
                raise UsageError(f"{problem}. Correct it.")
        if self.exact and isinstance(self.n_draft, int):
            exact.require_length(self.n_draft)

    @property
    def drafts(self) -> bool:
        """Whether these options name something that drafts; the parent's `draft_model` is another one."""
        return self.draft_path is not None or self.drafter is not None

    @property
    def longest(self) -> int:
        """Tokens of the longest draft."""
        return max(self.n_draft_max, self.n_draft) if isinstance(self.n_draft, int) else self.n_draft_max


EAGLE_PARAMETERS = tuple(field.name for field in fields(EagleOptions))


def split_arguments(given: Mapping[str, Any]) -> tuple[EagleOptions, dict[str, Any]]:
    """Ours, and the parent's, which swallows arguments that it does not know: here a misspelt one is a `TypeError`."""
    for name in given:
        if name not in PARENT_PARAMETERS and name not in EAGLE_PARAMETERS:
            raise TypeError(f"EagleLlama.__init__() got an unexpected keyword argument {name!r}")
    ours = {name: value for name, value in given.items() if name in EAGLE_PARAMETERS}
    return EagleOptions(**ours), {name: value for name, value in given.items() if name not in ours}


def _refuse_values(given: Mapping[str, Any]) -> None:
    """What would end the process inside llama.cpp. Raises `UsageError`."""
    for name in ("n_threads", "n_threads_batch"):
        if (given.get(name) or 0) > MAX_THREADS:
            raise UsageError(f"{name}={given[name]} is above {MAX_THREADS}. Lower it.")
    for name in ("n_batch", "n_ubatch"):
        if given.get(name, 1) < 0:
            raise UsageError(f"{name}={given[name]} is negative. Correct it.")
    for name in ("type_k", "type_v"):
        if given.get(name) is not None and given[name] not in CACHE_TYPES.values():
            known = ", ".join(f"{value} ({kind})" for kind, value in CACHE_TYPES.items())
            raise UsageError(f"{name}={given[name]} is not one of {known}. Correct it.")


def refuse_conflicts(options: EagleOptions, given: Mapping[str, Any]) -> None:
    """What cannot work, with drafts or at all. Raises `UsageError`."""
    _refuse_values(given)
    if options.draft_path is not None and given.get("draft_model") is not None:
        raise UsageError("draft_path and draft_model exclude each other. Leave one out.")
    if options.draft_sampling == "rejection":
        _refuse_rejection(options)
    if not options.drafts and given.get("draft_model") is None:
        return
    for name in ("embedding", "vocab_only"):
        if given.get(name):
            raise UsageError(f"{name}=True does not work with a draft: nothing is generated. Leave the draft out.")
    n_ctx = given.get("n_ctx", PARENT_PARAMETERS["n_ctx"])
    if 0 < n_ctx < 3:
        raise UsageError(f"n_ctx={n_ctx} leaves no room for a draft. Raise it to 3 or more, or leave the draft out.")
    smallest = min(options.longest + 2, n_ctx or options.longest + 2)
    for name in ("n_batch", "n_ubatch"):
        size = given.get(name, PARENT_PARAMETERS[name])
        if size < smallest:
            raise UsageError(
                f"{name}={size} is below {smallest}, the longest draft + 2. Raise it or lower n_draft_max."
            )


def _refuse_rejection(options: EagleOptions) -> None:
    if options.draft_path is None or options.drafter is not None:
        raise UsageError(
            "draft_sampling='rejection' draws from the EAGLE-3 draft: it needs draft_path and takes no other drafter."
        )
    if options.exact:
        raise UsageError("exact=True promises the text of plain decoding, rejection sampling only its distribution.")


def check_files(model_path: str, options: EagleOptions, given: Mapping[str, Any]) -> None:
    """Both files are sound and fit, and the context fits into memory; of a vocabulary alone nothing is checked.

    Raises `InputError`, `IncompatibleModels` or `EnvironmentFailure`.
    """
    if not os.path.exists(model_path):  # noqa: PTH110 (as the parent says it)
        raise InputError(f"Model path does not exist: {model_path}")
    if given.get("vocab_only"):
        return
    target = require_models(model_path, options.draft_path)
    if given.get("n_gpu_layers", 0) == 0:
        n_ctx = given.get("n_ctx", PARENT_PARAMETERS["n_ctx"]) or int(target.arch_key("context_length", 0))
        types = (given.get(name) for name in ("type_k", "type_v"))
        require_memory(target, n_ctx, *(F16 if kind is None else kind for kind in types))


def with_our_defaults(given: Mapping[str, Any]) -> dict[str, Any]:
    """The parent's arguments: equal threads for one row and for many, as a verification is both."""
    arguments = dict(given)
    threads = arguments.get("n_threads") or arguments.get("n_threads_batch") or os.cpu_count() or 1
    arguments["n_threads"] = arguments.get("n_threads") or threads
    arguments["n_threads_batch"] = arguments.get("n_threads_batch") or threads
    arguments["flash_attn"] = bool(arguments.get("flash_attn"))
    arguments.pop("draft_model", None)
    arguments.pop("logits_all", None)
    return arguments
