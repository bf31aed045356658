"""Options of a draft's conversion, and its report."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from llama_eagle.errors import UsageError

_EAGLE3_OPTIONS = (
    "aux_layers", "rope_base", "norm_before_residual", "norm_output", "absolute_d2t", "share_head", "force",
)  # fmt: skip


@dataclass(frozen=True)
class DraftOptions:
    """Options of a conversion. Each value except `outtype` overrides the checkpoint; None uses the checkpoint's.

    outtype: of the matrices: "auto" (as stored), f32, f16, bf16, q8_0, or any type of llama.cpp's quantizer.
    aux_layers: boundaries (see drafts/layers.py). absolute_d2t: d2t contains target ids, not offsets. share_head: a
    draft without a head gets the target's rows. force: drop unknown tensors and accept a different vocabulary size.
    pre: llama.cpp's name of the target's pre-tokenizer.
    """

    outtype: str = "auto"
    aux_layers: tuple[int, ...] | None = None
    rope_base: float | None = None
    norm_before_residual: bool | None = None
    norm_output: bool | None = None
    absolute_d2t: bool = False
    share_head: bool = False
    force: bool = False
    dry_run: bool = False
    pre: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "outtype", self.outtype.lower())
        if self.rope_base is not None and not 1 < self.rope_base < 1e30:
            raise UsageError(f"RoPE base {self.rope_base} is not a number above 1")

    def refuse_eagle3(self, kind: str, but: str = "") -> None:
        """Raise `UsageError` for an option that only EAGLE-3 drafts have. kind: of this draft. but: it has this one."""
        for name in _EAGLE3_OPTIONS:
            if name != but and getattr(self, name) not in (None, False):
                raise UsageError(f"--{name.replace('_', '-')} does not apply to {kind}. Leave it out.")


@dataclass(frozen=True)
class TensorRow:
    """One line of the table. gguf is None for a dropped tensor, source None for a computed one. note: the reason."""

    source: str | None
    shape: tuple[int, ...]
    dtype: str
    gguf: str | None
    outtype: str | None
    note: str = ""


@dataclass
class DraftReport:
    """Report of a conversion, or with dry_run of the conversion that would be done. n_bytes: of tensor data."""

    source: str
    revision: str | None
    target: str
    target_architecture: str
    output: str | None
    producer: str
    evidence: list[str]
    layout: Literal["stock", "extended"]
    extended_because: list[str]
    layer_ids: list[int]
    layer_ids_source: str
    settings: dict[str, Any]
    tensors: list[TensorRow]
    n_bytes: int
    warnings: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
