"""Do a target and a draft fit together? Every reason why not, from the two GGUF files alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from llama_eagle.convert.drafts.family import is_extended, table
from llama_eagle.convert.table import Row, resolve
from llama_eagle.gguf.header import Header, TensorInfo, read_model
from llama_eagle.gguf.pairing import FEATURE_TARGETS, n_layers, pair_problems, require_draft, require_target

MAX_LAYERS, MAX_AUX = 64, 64  # above them a file is nonsense, and a table for it would not end


@dataclass(frozen=True)
class Finding:
    """An error keeps the pair from running; a warning costs acceptance at most."""

    level: Literal["error", "warning"]
    message: str


@dataclass(frozen=True)
class CheckReport:
    """compatible: no finding is an error. target, draft: what the files say of themselves."""

    compatible: bool
    target: dict[str, Any]
    draft: dict[str, Any] | None
    findings: list[Finding]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def check_models(target: str | Path, draft: str | Path | None = None) -> CheckReport:
    """Raises InputError for a damaged file, or one that is no target or no draft; other faults are findings."""
    tgt, parts = read_model(target)
    require_target(tgt)
    findings: list[Finding] = []
    facts = None
    if draft is not None:
        dft = read_model(draft)[0]
        require_draft(dft)
        facts = _draft_facts(dft)
        stored = {name for part in parts for name in part.tensors}
        errors = [*pair_problems(tgt, dft), *_tensor_problems(dft), *_ownership_problems(stored, dft)]
        findings = [Finding("error", message) for message in errors]
        findings += [Finding("warning", message) for message in _warnings(tgt, dft)]
    compatible = not any(finding.level == "error" for finding in findings)
    return CheckReport(compatible, _target_facts(tgt, parts), facts, findings)


def _target_facts(target: Header, parts: list[Header]) -> dict[str, Any]:
    return {
        "file": str(target.path),
        "name": target.value("general.name"),
        "architecture": target.architecture,
        "publishes_layer_inputs": target.architecture in FEATURE_TARGETS,
        "hidden_size": target.arch_key("embedding_length"),
        "n_layer": n_layers(target),
        "n_vocab": target.n_vocab,
        "n_bytes": sum(part.file_size for part in parts),
    }


def _draft_facts(draft: Header) -> dict[str, Any]:
    d2t = draft.tensors.get("d2t")
    return {
        "file": str(draft.path),
        "name": draft.value("general.name"),
        "producer": draft.arch_key("producer"),
        "layout": "extended" if "extended" in draft.tensors else "stock",
        "hidden_size": draft.arch_key("embedding_length"),
        "target_hidden_size": draft.arch_key("target_hidden_size"),
        "n_vocab": draft.n_vocab,
        "n_vocab_draft": d2t.n_elements if d2t else draft.n_vocab,
        "layer_ids": draft.arch_key("target_layers"),
        "layer_ids_source": draft.arch_key("target_layers_source"),
        "n_bytes": draft.file_size,
    }


def _number(draft: Header, name: str) -> int:
    """An integer key, 0 if it is absent or none."""
    value = draft.arch_key(name)
    return value if type(value) is int else 0


def _dimensions(draft: Header) -> dict[str, int]:
    """Sizes by the names of drafts/family.py."""
    hidden, n_head = _number(draft, "embedding_length"), max(1, _number(draft, "attention.head_count"))
    head = _number(draft, "attention.key_length") or hidden // n_head
    d2t = draft.tensors.get("d2t")
    return {
        "embd": hidden,
        "target": _number(draft, "target_hidden_size"),
        "aux": len(draft.arch_key("target_layers") or []),
        "ff": _number(draft, "feed_forward_length"),
        "q": n_head * head,
        "kv": (_number(draft, "attention.head_count_kv") or n_head) * head,
        "head": head,
        "draft_vocab": d2t.n_elements if d2t else draft.n_vocab,
        "vocab": draft.n_vocab,
    }


def _tensor_problems(draft: Header) -> Iterator[str]:
    """Names and shapes against the table that the converter writes by."""
    n_layer, n_aux = _number(draft, "block_count"), len(draft.arch_key("target_layers") or [])
    if not 0 < n_layer <= MAX_LAYERS or n_aux > MAX_AUX:
        yield f"it claims {n_layer} layers and {n_aux} target layers. Convert it again."
        return
    dims = _dimensions(draft)
    known: dict[str, Row] = {s.target + row.target: row for s in table(n_layer, n_aux) for row in s.rows}
    for name, row in known.items():
        tensor: TensorInfo | None = draft.tensors.get(name)
        shape = tuple(reversed(resolve(row.shape, dims)))
        if tensor is None and row.required:
            yield f"{name} is missing. Convert it again."
        elif tensor is not None and tensor.shape != shape:
            yield f"{name} has shape {list(tensor.shape)}, its keys say {list(shape)} (ggml order). Convert it again."
    unknown = [name for name in draft.tensors if name not in known and name not in ("rope_freqs.weight", "extended")]
    if unknown:
        yield f"it holds tensors that are no part of a draft: {', '.join(unknown[:3])}."
    extra = any(map(is_extended, draft.tensors))
    if "extended" not in draft.tensors and (extra or draft.arch_key("norm_output")):
        yield "it needs the extended layout but is not marked so. Convert it again."


def _ownership_problems(stored: set[str], draft: Header) -> Iterator[str]:
    """What the draft does not hold must be the target's."""
    if "token_embd.weight" not in draft.tensors and "token_embd.weight" not in stored:
        yield "neither it nor the target has embeddings (token_embd.weight)."
    if "output.weight" in draft.tensors:
        return
    if "d2t" in draft.tensors:
        yield "it has no head for its own vocabulary. Convert it with --share-head."
    elif not stored & {"output.weight", "token_embd.weight"}:
        yield "neither it nor the target has a head (output.weight)."


def _warnings(target: Header, draft: Header) -> Iterator[str]:
    n_ctx, n_ctx_target = _number(draft, "context_length"), _number(target, "context_length")
    if n_ctx < n_ctx_target:
        yield f"it was trained for {n_ctx} tokens, the target for {n_ctx_target}: beyond, less is accepted"
    for name in ("model", "pre"):
        key = f"tokenizer.ggml.{name}"
        if target.value(key) != draft.value(key):
            yield f"{key} is {target.value(key)!r} in the target, {draft.value(key)!r} in the draft"
