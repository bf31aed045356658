"""Compatibility of a target and a draft, from the two GGUF headers, before native code runs.

Source of the rules: llama.cpp's src/models/eagle3.cpp and the aux-layer convention "boundary k = residual entering
block k" of its `eagle3.target_layers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from llama_eagle import console
from llama_eagle.errors import IncompatibleModels, InputError
from llama_eagle.gguf import mtp
from llama_eagle.gguf.architectures import (
    FEATURE_TARGETS,
    FIRST_BOUNDARY_TARGETS,
    LAST_BOUNDARY_TARGETS,
    capture_problem,
    rollback_problem,
)
from llama_eagle.gguf.finding import Finding
from llama_eagle.gguf.header import GIVE_PATH, HUB_ID, NO_FILE, ArrayRef, Header, Source, read_model
from llama_eagle.gguf.names import ASSISTANT, DRAFT_KINDS, FEATURE_DRAFTS, draft_kind, is_parallel
from llama_eagle.gguf.reading import LOOKED_UP, bytes_read
from llama_eagle.gguf.size import require_addresses
from llama_eagle.gguf.validate import WITHOUT_TEXT, assistant, check_files, small

KNOWN_NON_TARGETS = {
    "clip": "a vision or audio projector (mmproj)",
    "adapter": "a LoRA adapter",
    "imatrix": "an importance matrix",
}

MODEL_END = "-o model.gguf"
DRAFT_END = "-o draft.gguf --target TARGET.gguf (a small model: without --target)"
RANK = 4  # llama_pooling_type
HEAD, EMBEDDINGS = "output.weight", "token_embd.weight"
HEAD_ROWS = (8192, 16384, 32768)  # numbers of rows whose cost a check reports


@dataclass(frozen=True)
class CheckReport:
    """Result of a check.

    compatible: no finding is an error. target, draft: facts about the files. For a refused file all but `file` and
    `architecture` are None.
    """

    compatible: bool
    target: dict[str, Any]
    draft: dict[str, Any] | None
    findings: list[Finding]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def require_target(header: Header) -> None:
    """Check that the file is a complete model. Raises `InputError`."""
    arch = header.architecture
    if arch in DRAFT_KINDS:
        raise InputError(
            f"{header.path} is {draft_kind(header)}, not a target. Give it as the draft, and a full model as the "
            "target."
        )
    kind = KNOWN_NON_TARGETS.get(arch) or KNOWN_NON_TARGETS.get(str(header.keys.get("general.type", "")))
    if kind:
        raise InputError(f"{header.path} is {kind}, not a language model. Use the GGUF of a model.")
    if not arch:
        raise InputError(f"{header.path}: no general.architecture. It is not a llama.cpp model; convert it again.")
    if not header.n_vocab or header.keys.get("tokenizer.ggml.model") in WITHOUT_TEXT:
        raise InputError(f"{header.path}: no tokenizer (tokenizer.ggml.tokens). Convert it again with its tokenizer.")


def require_draft(files: list[Header]) -> None:
    """Check that the file only drafts, contains an MTP head, or is a model. Raises `InputError`."""
    if files[0].architecture not in DRAFT_KINDS and not mtp.has_head(files):
        require_target(files[0])


def require_models(target: Source, draft: Source | None = None) -> tuple[Header, Header | None]:
    """Return the headers of target and draft, if both are valid and fit. Warns about a draft as slow as its target.

    Raises `InputError` for an invalid file, `IncompatibleModels` for a pair, each with the first reason, and
    `EnvironmentFailure` if the process's limit of address space is too low for both.
    """
    target_files, draft_files = _read(target, draft)
    for finding in find(target_files, draft_files):
        if finding.level == "error" and finding.file:
            raise InputError(f"{finding.file}: {finding.message}. {finding.remedy}")
        if finding.level == "error":
            assert draft_files is not None
            raise IncompatibleModels(f"{draft_files[0].path} does not fit {target_files[0].path}: {finding.message}")
    if draft_files and small.is_small(target_files[0], draft_files):
        for warning in small.warnings(target_files, draft_files):
            console.warn(f"{draft_files[0].path}: {warning}")
    require_addresses({file.path: file for file in (*target_files, *(draft_files or ()))}.values())
    return target_files[0], draft_files[0] if draft_files else None


def check_models(target: Path | str, draft: Path | str | None = None) -> CheckReport:
    """Return a report of everything that `require_models` refuses, and more.

    Raises `InputError` for a file that cannot be read, or is neither a target nor a draft.
    """
    target_files, draft_files = _read(target, draft)
    findings = find(target_files, draft_files)
    refused = {finding.file for finding in findings if finding.level == "error"}
    target_facts = _facts(TARGET_FACTS, target_files, refused)
    draft_facts = _facts(DRAFT_FACTS, draft_files, refused) if draft_files else None
    if draft_files and draft_facts and not refused:
        draft_facts["step_share"] = draft_shares(target_files, draft_files) or None
    return CheckReport(not refused, target_facts, draft_facts, findings)


def find(target: list[Header], draft: list[Header] | None) -> list[Finding]:
    """Return every reason why these files cannot run, or would draft badly.

    Findings without a file are about the pair, which is checked only if both files are valid. A refused pair has
    errors alone.
    """
    findings = [finding for files in (target, draft) if files for finding in check_files(files)]
    if draft is None or any(finding.level == "error" for finding in findings):
        return findings
    if problem := rollback_problem(target[0].architecture):
        return [*findings, Finding("error", f"{problem}, so the target runs without drafts.")]
    if small.is_small(target[0], draft):
        problems, warnings = small.problems(target[0], draft[0]), small.warnings(target, draft)
    else:
        stored = {name for file in target for name in file.tensors}
        problems, warnings = iter(pair_problems(target[0], draft[0], stored)), iter(())
    if errors := [Finding("error", problem) for problem in problems]:
        return findings + errors
    return findings + [Finding("warning", warning) for warning in (*warnings, *_warnings(target[0], draft[0]))]


def draft_problem(target: list[Header], draft: list[Header]) -> str:
    """Return the reason why a draft cannot draft for a target; empty if it can."""
    if draft[0].architecture not in DRAFT_KINDS:
        return next(iter(mtp.problems(target[0], draft[0])), "") if mtp.has_head(draft) else "it has no MTP head."
    return next((finding.message for finding in find(target, draft) if finding.level == "error"), "")


def require_scores(target: list[Header], remedy: str) -> None:
    """Raise `IncompatibleModels` for a model without a classification head, whose scores would be those of no text."""
    if not any("cls.output.weight" in file.tensors for file in target):
        raise IncompatibleModels(
            f"{target[0].path}: no classification head (cls.output.weight), so it has no scores. "
            f"Use a reranking model, or {remedy}."
        )


def without_text(target: Header) -> str | None:
    """Return a warning for a model that is for vectors or scores (pooling_type), if text is generated with it."""
    pooling = target.arch_key("pooling_type", 0)
    if not pooling:
        return None
    what, mode = ("reranking", "--reranking") if pooling == RANK else ("embeddings", "--embeddings")
    return (
        f"{target.path} is a model for {what}, so its text is likely to be wrong. "
        f"It works in a server: llama-eagle serve -m {target.path} {mode}"
    )


def _read(target: Source, draft: Source | None) -> tuple[list[Header], list[Header] | None]:
    target_files = read_model(target)[1]
    require_target(target_files[0])
    if draft is None:
        return target_files, None
    draft_files = read_draft(draft)
    require_draft(draft_files)
    return target_files, draft_files


def read_draft(draft: Source) -> list[Header]:
    """Return the headers of a draft's files. Raises `InputError` with the remedy for a draft."""
    try:
        return read_model(draft)[1]
    except InputError as error:
        text, path = str(error).replace(MODEL_END, DRAFT_END), str(draft)
        hub_id = path.partition(":")[0].replace("\\", "/")
        if text.startswith(f"{path}: {NO_FILE}") and HUB_ID.fullmatch(hub_id):
            text = f"{path}: {NO_FILE} If it is on the hub: llama-eagle convert {hub_id} {DRAFT_END}"
        elif text.endswith(GIVE_PATH):
            text = f"{text[:-1]}, or draft=mtp, draft=lookup, draft=none or draft=auto."
        raise InputError(text) from None


def pair_problems(target: Header, draft: Header, stored: set[str]) -> list[str]:
    """Return every reason why a valid draft cannot run with a valid target.

    stored: names of all the target's tensors.
    """
    if draft.architecture not in DRAFT_KINDS:
        return mtp.problems(target, draft)
    if draft.architecture == ASSISTANT:
        return [*assistant.problems(target, draft), *_vocabulary_problems(target, draft)]
    return [
        *_width_problems(target, draft),
        *_ownership_problems(stored, draft),
        *_layer_problems(target, draft),
        *_vocabulary_problems(target, draft),
    ]


def _width_problems(target: Header, draft: Header) -> Iterator[str]:
    width = int(target.arch_key("embedding_length", 0))
    expected = int(draft.arch_key("target_hidden_size", draft.arch_key("embedding_length", 0)))
    if expected != width:
        yield f"it was trained for a hidden size of {expected}, the target has {width}. Use the draft of this target."
        return
    own = int(draft.arch_key("embedding_length", 0))
    for tensor, what in (("token_embd.weight", "embedding"), ("output.weight", "output head")):
        if own != width and tensor not in draft.tensors:
            yield (
                f"its hidden size {own} differs from the target's {width} and it has no {what} of its own "
                f"({tensor}). Convert it with its {what}."
            )


def _layer_problems(target: Header, draft: Header) -> Iterator[str]:
    layers = draft.arch_key("target_layers")
    last = mtp.n_layers(target)
    arch = target.architecture
    if problem := capture_problem(arch):
        yield f"{problem}."
    outside = [layer for layer in layers if not 0 <= layer <= last]
    if outside:
        yield f"it reads layer {outside[0]}, the target has layers 0 to {last - 1}. Use the draft of this target."
    elif last in layers and arch not in LAST_BOUNDARY_TARGETS:
        yield (
            f"it reads the output of the last block (boundary {last}), which {arch} models compute for output rows "
            "alone. Convert it with --aux-layers."
        )
    elif 0 in layers and arch not in FIRST_BOUNDARY_TARGETS:
        yield f"it reads the embeddings (boundary 0), which {arch} models do not publish. Convert it with --aux-layers."
    if len(set(layers)) != len(layers):
        yield f"it names a layer twice: {layers}. Convert it again with --aux-layers."


def _vocabulary_problems(target: Header, draft: Header) -> Iterator[str]:
    n_target, n_draft = target.n_vocab, draft.n_vocab or int(draft.arch_key("vocab_size", 0))
    if n_target != n_draft:
        yield f"its vocabulary has {n_draft} tokens, the target's {n_target}. Use the draft of this target."
        return
    different = _first_different_token(target, draft)
    if different is not None:
        yield f"token {different[0]} is {different[1]!r} in the target and {different[2]!r} in the draft."


def _first_different_token(target: Header, draft: Header) -> tuple[int, str, str] | None:
    """Return the first token that differs. Padding tokens have no text of their own and may differ."""
    left, right = (header.keys.get("tokenizer.ggml.tokens") for header in (target, draft))
    if not isinstance(left, ArrayRef) or not isinstance(right, ArrayRef):
        return None
    if target.raw_array(left) == draft.raw_array(right):
        return None
    pairs = zip(target.read_array(left), draft.read_array(right), strict=True)
    for i, (a, b) in enumerate(pairs):
        if a != b and not (a.startswith("[PAD") or b.startswith("[PAD")):
            return i, a, b
    return None


def _ownership_problems(stored: set[str], draft: Header) -> Iterator[str]:
    """Check that the target has the tensors that the draft lacks."""
    if "token_embd.weight" not in draft.tensors and "token_embd.weight" not in stored:
        yield "neither it nor the target has embeddings (token_embd.weight)."
    if "output.weight" in draft.tensors:
        return
    if "d2t" in draft.tensors:
        yield "it has no head for its own vocabulary. Convert it with --share-head."
    elif not stored & {"output.weight", "token_embd.weight"}:
        yield "neither it nor the target has a head (output.weight)."


def _warnings(target: Header, draft: Header) -> Iterator[str]:
    n_ctx, n_ctx_target = (header.arch_key("context_length") or 0 for header in (draft, target))
    if n_ctx < n_ctx_target:
        yield f"its context is {n_ctx} tokens, the target's {n_ctx_target}: longer texts are drafted from their end"
    for name in ("model", "pre"):
        key = f"tokenizer.ggml.{name}"
        if target.value(key) != draft.value(key):
            yield f"{key} is {target.value(key)!r} in the target, {draft.value(key)!r} in the draft"


def _step_shares(files: Sequence[Header]) -> dict[str, float]:
    """Return the cost of a token drafted by the target's own head, relative to a plain decode, by output rows."""
    rows = {str(n): n for n in HEAD_ROWS if n < files[0].n_vocab} | {"all": files[0].n_vocab}
    return {name: round(mtp.step_share(files, n), 4) for name, n in rows.items()}


TARGET_FACTS: dict[str, Callable[[list[Header]], Any]] = {
    "name": lambda files: files[0].value("general.name"),
    "publishes_layer_inputs": lambda files: files[0].architecture in FEATURE_TARGETS,
    "capture_problem": lambda files: capture_problem(files[0].architecture) or None,
    "rollback_problem": lambda files: rollback_problem(files[0].architecture) or None,
    "mtp_head": mtp.has_head,
    "mtp_step_share": lambda files: _step_shares(files) if mtp.has_head(files) else None,
    "hidden_size": lambda files: files[0].arch_key("embedding_length"),
    "n_layer": lambda files: mtp.n_layers(files[0]),
    "n_vocab": lambda files: files[0].n_vocab,
    "n_bytes": lambda files: sum(file.file_size for file in files),
}
DRAFT_FACTS: dict[str, Callable[[list[Header]], Any]] = {
    "name": TARGET_FACTS["name"],
    "producer": lambda files: files[0].arch_key("producer"),
    "layout": lambda files: "extended" if "extended" in files[0].tensors else "stock",
    "hidden_size": TARGET_FACTS["hidden_size"],
    "target_hidden_size": lambda files: files[0].arch_key("target_hidden_size"),
    "n_vocab": TARGET_FACTS["n_vocab"],
    "n_vocab_draft": lambda files: d2t.n_elements if (d2t := files[0].tensors.get("d2t")) else files[0].n_vocab,
    "layer_ids": lambda files: files[0].arch_key("target_layers"),
    "layer_ids_source": lambda files: files[0].arch_key("target_layers_source"),
    "n_bytes": TARGET_FACTS["n_bytes"],
    "drafts_blocks": lambda files: drafts_blocks(files[0]),
    "step_share": lambda files: None,  # of its target, if it fits
}


def _facts(table: dict[str, Callable[[list[Header]], Any]], files: list[Header], refused: set[str]) -> dict[str, Any]:
    """Return the facts of a model. Values of a refused file are None: its keys may have any type."""
    path = str(files[0].path)
    facts = {name: None if path in refused else read(files) for name, read in table.items()}
    return {"file": path, "architecture": files[0].architecture} | facts


def draft_shares(target: Sequence[Header], draft: Sequence[Header] | None) -> dict[str, float]:
    """Return the bytes read for a drafted token, or a block, relative to a plain decode of the target, by output rows.

    draft: None for the target's own MTP head. Drafts with a vocabulary of their own have no choice of rows. Empty for
    a pair without a head.
    """
    if draft is None:
        return _step_shares(target)
    own, theirs = ({name: each for file in files for name, each in file.tensors.items()} for files in (draft, target))
    arch = draft[0].architecture
    tied = None if arch in FEATURE_DRAFTS else own.get(EMBEDDINGS)
    head = own.get(HEAD) or tied or theirs.get(HEAD) or theirs.get(EMBEDDINGS)
    if head is None:
        return {}
    is_head = mtp.has_head(draft) and not small.is_small(target[0], draft)
    block = f"blk.{mtp.n_layers(draft[0])}." if is_head else ""  # a whole model's file may hold the head
    read = (each for name, each in own.items() if name.startswith(block) and name not in (HEAD, *LOOKED_UP))
    body = sum(bytes_read(draft[0], each) for each in read)
    head_bytes, n_rows = head.n_bytes or 0, head.n_elements // head.shape[0]
    can_trim = arch != "eagle3" and "d2t" not in own and "markov_w1.weight" not in own
    rows = {str(n): n for n in HEAD_ROWS if can_trim and n < n_rows} | {"all": n_rows}
    whole = mtp.plain_bytes(target)
    return {name: round((body + head_bytes * n / n_rows) / whole, 4) for name, n in rows.items()}


def drafts_blocks(draft: Header) -> bool:
    """Return True for a draft that proposes all tokens of a round in one pass."""
    return draft.architecture == "dflash" or is_parallel(draft)
