"""Do a target and a draft fit together? Every reason why not, from the two GGUF files alone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

import numpy as np
from llama_eagle.convert.drafts.architectures import PUBLISHES_INPUTS, PUBLISHES_LAST
from llama_eagle.convert.drafts.mapping import Rule, expand
from llama_eagle.convert.gguf_file import GGUFFile

Level = Literal["error", "warning"]
I64 = 27  # ggml type id
MAX_LAYERS, MAX_AUX = 64, 64


@dataclass(frozen=True)
class Finding:
    """code names the kind of fault for programs; message says what was expected and found."""

    level: Level
    code: str
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
    """Raises ConversionError for a file that cannot be read as GGUF; every other fault is a finding."""
    tgt = GGUFFile(target)
    findings = list(_check_target(tgt))
    facts = None
    if draft is not None:
        dft = GGUFFile(draft)
        facts = _draft_facts(dft)
        findings += _check_draft(tgt, dft)
    compatible = not any(finding.level == "error" for finding in findings)
    return CheckReport(compatible, _target_facts(tgt), facts, findings)


def _error(code: str, message: str) -> Finding:
    return Finding("error", code, message)


def _number(file: GGUFFile, name: str) -> int:
    """A positive integer of the file's architecture, 0 if it is absent or no such thing."""
    value = file.arch_key(name)
    return value if type(value) is int and value > 0 else 0


def _n_layer(target: GGUFFile) -> int:
    return max(0, _number(target, "block_count") - _number(target, "nextn_predict_layers"))


def _tokens(file: GGUFFile) -> list[str]:
    value = file.get("tokenizer.ggml.tokens", [])
    return value if isinstance(value, list) else []


def _ids(draft: GGUFFile) -> list[int]:
    value = draft.arch_key("target_layers", [])
    return value if isinstance(value, list) and all(type(v) is int for v in value) else []


def _target_facts(target: GGUFFile) -> dict[str, Any]:
    return {
        "file": str(target.path),
        "name": target.get("general.name"),
        "architecture": target.arch,
        "hidden_size": _number(target, "embedding_length"),
        "n_layer": _n_layer(target),
        "n_vocab": len(_tokens(target)),
        "n_bytes": sum(tensor.n_bytes for tensor in target.tensors.values()),
    }


def _draft_facts(draft: GGUFFile) -> dict[str, Any]:
    d2t = draft.tensors.get("d2t")
    return {
        "file": str(draft.path),
        "name": draft.get("general.name"),
        "producer": draft.arch_key("producer"),
        "layout": "extended" if "extended" in draft.tensors else "stock",
        "hidden_size": _number(draft, "embedding_length"),
        "target_hidden_size": _number(draft, "target_hidden_size"),
        "n_vocab": len(_tokens(draft)),
        "n_vocab_draft": math.prod(d2t.shape) if d2t else len(_tokens(draft)),
        "layer_ids": _ids(draft),
        "layer_ids_source": draft.arch_key("target_layers_source"),
        "n_bytes": sum(tensor.n_bytes for tensor in draft.tensors.values()),
    }


def _check_target(target: GGUFFile) -> Iterator[Finding]:
    if target.arch == "eagle3":
        yield _error("not_a_target", f"{target.path.name} is a draft; name the target first, then the draft")
    elif target.arch not in PUBLISHES_INPUTS:
        yield _error("architecture", f"llama.cpp does not hand out layer states of {target.arch or 'such'} targets")


def _check_draft(target: GGUFFile, draft: GGUFFile) -> Iterator[Finding]:
    if draft.arch != "eagle3":
        yield _error("not_a_draft", f"{draft.path.name} has architecture {draft.arch or 'none'}, expected eagle3")
        return
    yield from _check_sizes(target, draft)
    yield from _check_layer_ids(target, draft)
    yield from _check_vocabulary(target, draft)
    yield from _check_tensors(draft)
    yield from _check_ownership(target, draft)


def _check_sizes(target: GGUFFile, draft: GGUFFile) -> Iterator[Finding]:
    width, expected = _number(draft, "target_hidden_size"), _number(target, "embedding_length")
    if width != expected:
        yield _error("hidden_size", f"the draft was made for a target of hidden size {width}, this one has {expected}")
    n_ctx, n_ctx_target = _number(draft, "context_length"), _number(target, "context_length")
    if n_ctx < n_ctx_target:
        message = f"the draft was trained for {n_ctx} tokens, the target for {n_ctx_target}; beyond, less is accepted"
        yield Finding("warning", "context", message)


def _check_layer_ids(target: GGUFFile, draft: GGUFFile) -> Iterator[Finding]:
    ids, n_layer = _ids(draft), _n_layer(target)
    if not ids or len(ids) > MAX_AUX:
        yield _error("layer_ids", "the draft names no layer ids (eagle3.target_layers); convert it again")
        return
    if sorted(set(ids)) != ids:
        yield _error("layer_ids", f"layer ids {ids} are not ascending and different")
    if ids[0] < 0 or ids[-1] > n_layer:
        yield _error("layer_ids", f"layer ids {ids} do not lie in a target of {n_layer} layers")
    elif ids[-1] == n_layer and target.arch not in PUBLISHES_LAST:
        yield _error("layer_ids", f"the state after the last block ({n_layer}) is not handed out for {target.arch}")


def _check_vocabulary(target: GGUFFile, draft: GGUFFile) -> Iterator[Finding]:
    key = "tokenizer.ggml.tokens"
    ours, theirs = _tokens(target), _tokens(draft)
    if target.raw.get(key) != draft.raw.get(key):
        pairs = enumerate(zip_longest(ours, theirs))
        at = next((i for i, (a, b) in pairs if a != b), 0)
        names = [repr(tokens[at]) if at < len(tokens) else "nothing" for tokens in (ours, theirs)]
        yield _error(
            "tokenizer",
            f"the tokenizers differ: {len(ours)} tokens in the target, {len(theirs)} in the draft; "
            f"the first difference is id {at}: {names[0]} and {names[1]}",
        )
    for name in ("model", "pre"):
        a, b = (file.get(f"tokenizer.ggml.{name}") for file in (target, draft))
        if a != b:
            yield Finding("warning", "tokenizer", f"tokenizer.ggml.{name} is {a!r} in the target, {b!r} in the draft")
    yield from _check_map(draft, len(ours))


def _check_map(draft: GGUFFile, n_vocab: int) -> Iterator[Finding]:
    d2t = draft.tensors.get("d2t")
    if d2t is None:
        return
    if d2t.kind != I64:
        yield _error("d2t", f"d2t has ggml type {d2t.kind}, expected I64; convert the draft again")
        return
    ids = draft.read("d2t").reshape(-1)
    if not ids.size or ids.min() < 0 or ids.max() >= n_vocab or len(np.unique(ids)) != len(ids):
        yield _error("d2t", f"d2t does not name {ids.size} different tokens of a vocabulary of {n_vocab}")


def _dimensions(draft: GGUFFile) -> dict[str, int]:
    """Sizes by the letters of drafts/mapping.py."""
    hidden, n_head = _number(draft, "embedding_length"), max(1, _number(draft, "attention.head_count"))
    head = _number(draft, "attention.key_length") or hidden // n_head
    width, n_aux, n_vocab = _number(draft, "target_hidden_size"), len(_ids(draft)), len(_tokens(draft))
    d2t = draft.tensors.get("d2t")
    return {
        "H": hidden,
        "T": width,
        "AT": n_aux * width,
        "F": _number(draft, "feed_forward_length"),
        "Q": n_head * head,
        "K": (_number(draft, "attention.head_count_kv") or n_head) * head,
        "d": head,
        "D": math.prod(d2t.shape) if d2t else n_vocab,
        "V": n_vocab,
    }


def _check_tensors(draft: GGUFFile) -> Iterator[Finding]:
    """Names and shapes against the table that the converter writes by."""
    n_layer, dims = _number(draft, "block_count"), _dimensions(draft)
    if not 0 < n_layer <= MAX_LAYERS:
        yield _error("tensors", f"eagle3.block_count is {n_layer}")
        return
    rows = expand(n_layer, len(_ids(draft))).values()
    table: dict[str, tuple[Rule, int]] = {rule.gguf: (rule, layer) for rule, layer in rows}
    for name, (rule, layer) in table.items():
        tensor = draft.tensors.get(name)
        shape = tuple({**dims, "W": dims["H"] * (1 if layer else 2)}[letter] for letter in rule.shape)
        if tensor is None and rule.required:
            yield _error("tensors", f"{name} is missing")
        elif tensor is not None and tensor.shape != shape:
            yield _error("tensors", f"{name} has shape {list(tensor.shape)}, expected {list(shape)}")
    unknown = [name for name in draft.tensors if name not in table and name not in ("rope_freqs.weight", "extended")]
    if unknown:
        yield _error("tensors", f"unknown tensors: {', '.join(unknown[:3])}")
    needs = any(name in draft.tensors and not rule.stock for name, (rule, _) in table.items())
    if "extended" not in draft.tensors and (needs or draft.arch_key("norm_output")):
        yield _error("layout", "an extended draft without its marker; convert it again")


def _check_ownership(target: GGUFFile, draft: GGUFFile) -> Iterator[Finding]:
    """What the draft does not store must be the target's, and fit."""
    same = _number(draft, "embedding_length") == _number(target, "embedding_length")
    whole = target.get("split.count", 1) == 1  # of a split target only the first file is read
    has_embedding = "token_embd.weight" in target.tensors or not whole
    if "token_embd.weight" not in draft.tensors and not (same and has_embedding):
        yield _error("embedding", "the draft has no embeddings, and the target's do not fit or are missing")
    if "output.weight" in draft.tensors:
        return
    if "d2t" in draft.tensors:
        yield _error("head", "the draft has no head for its own vocabulary; convert it with --share-head")
    elif not (same and ("output.weight" in target.tensors or has_embedding)):
        yield _error("head", "the draft has no head, and the target's does not fit or is missing")
