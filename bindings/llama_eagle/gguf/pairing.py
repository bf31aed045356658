"""Do a target and a draft fit? Decided from the two GGUF headers, before any native code runs.

Source of the rules: llama.cpp's src/models/eagle3.cpp and the aux-layer convention "boundary k = residual entering
block k" of its `eagle3.target_layers`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from llama_eagle.errors import IncompatibleModels, InputError
from llama_eagle.gguf.header import ArrayRef, Header

DRAFT_ARCHITECTURE = "eagle3"

# Architectures whose graph publishes the residual stream at every block, those of our patch 0101 included.
FEATURE_TARGETS = frozenset({
    "bailingmoe3", "deepseek4", "gemma4", "gpt-oss", "hunyuan_vl", "lfm2", "lfm2moe", "llama", "mimo2", "minimax-01",
    "minimax-m2", "muse-glimmer", "nanbeige", "nemotron_h", "nemotron_h_moe", "qwen2", "qwen3", "qwen35",
    "qwen35moe", "qwen3moe", "qwen3next", "qwen3vl", "qwen3vlmoe", "qwen4exp",
})  # fmt: skip
# Those that publish the last boundary (after the last block) before the final norm.
LAST_BOUNDARY_TARGETS = frozenset({"deepseek4", "gpt-oss", "mimo2", "nemotron_h", "nemotron_h_moe"})

KNOWN_NON_TARGETS = {
    "clip": "a vision or audio projector (mmproj)",
    "adapter": "a LoRA adapter",
    "imatrix": "an importance matrix",
}
I64 = 27


def require_target(header: Header) -> None:
    """The file is a whole model of its own. Raises `InputError` otherwise."""
    arch = header.architecture
    if arch == DRAFT_ARCHITECTURE:
        raise InputError(
            f"{header.path} is an EAGLE-3 draft, not a target. Give it as -d/--draft and a full model as -m/--model."
        )
    kind = KNOWN_NON_TARGETS.get(arch) or KNOWN_NON_TARGETS.get(str(header.keys.get("general.type", "")))
    if kind:
        raise InputError(f"{header.path} is {kind}, not a language model. Give the model's own GGUF as -m/--model.")
    if not arch:
        raise InputError(f"{header.path}: no general.architecture. It is not a llama.cpp model; convert it again.")
    if not header.n_vocab:
        raise InputError(f"{header.path}: no tokenizer (tokenizer.ggml.tokens). Convert it again with its tokenizer.")


def require_draft(header: Header) -> None:
    """The file is an EAGLE-3 draft. Raises `InputError` otherwise."""
    if header.architecture != DRAFT_ARCHITECTURE:
        raise InputError(
            f"{header.path} is a {header.architecture or 'nameless'} model, not an EAGLE-3 draft. "
            "Convert a draft checkpoint first: llama-eagle convert DRAFT --target TARGET -o draft.gguf"
        )


def require_pair(target: Header, draft: Header) -> None:
    """Raises `IncompatibleModels` with the first reason why the two do not fit."""
    require_target(target)
    require_draft(draft)
    for problem in pair_problems(target, draft):
        raise IncompatibleModels(f"{draft.path} does not fit {target.path}: {problem}")


def pair_problems(target: Header, draft: Header) -> list[str]:
    """Every reason why the draft cannot run with the target; empty when they fit."""
    return [*_width_problems(target, draft), *_layer_problems(target, draft), *_vocabulary_problems(target, draft)]


def n_layers(target: Header) -> int:
    """Text layers of a target; multi-token-prediction blocks stored behind them do not count."""
    return int(target.arch_key("block_count", 0)) - int(target.arch_key("nextn_predict_layers", 0))


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
    fc = draft.tensors.get("fc.weight")
    layers = draft.arch_key("target_layers") or []
    if fc is None:
        yield "it has no fc.weight. Convert it again."
    elif layers and fc.shape[0] != len(layers) * width:
        yield f"fc.weight takes {fc.shape[0]} values, {len(layers)} layers of {width} give {len(layers) * width}."


def _layer_problems(target: Header, draft: Header) -> Iterator[str]:
    layers = draft.arch_key("target_layers")
    last = n_layers(target)
    arch = target.architecture
    if not layers:
        yield "it names no target layers (eagle3.target_layers). Convert it again."
        return
    if arch not in FEATURE_TARGETS:
        yield f"the {arch} architecture does not publish its layer inputs in this build."
    outside = [layer for layer in layers if not 0 <= layer <= last]
    if outside:
        yield f"it reads layer {outside[0]}, the target has layers 0 to {last - 1}. Use the draft of this target."
    elif last in layers and arch not in LAST_BOUNDARY_TARGETS:
        yield (
            f"it reads the output of the last block (boundary {last}), which llama.cpp gives only after the final norm "
            f"for {arch}. Convert it with --aux-layers."
        )
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
    yield from _d2t_problems(n_target, draft)


def _first_different_token(target: Header, draft: Header) -> tuple[int, str, str] | None:
    """Padding entries have no text of their own and may differ."""
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


def _d2t_problems(n_vocab: int, draft: Header) -> Iterator[str]:
    """Ids outside the target's vocabulary would be read as array indices by the engine."""
    head, d2t = draft.tensors.get("output.weight"), draft.tensors.get("d2t")
    if d2t is None:
        if head is not None and head.shape[1] != n_vocab:
            yield f"its head has {head.shape[1]} rows, the vocabulary {n_vocab} tokens, and there is no d2t map."
        return
    n_draft = d2t.n_elements
    if d2t.type_id != I64:
        yield f"d2t is {d2t.type_name}, expected I64. Convert it again."
    elif head is not None and head.shape[1] != n_draft:
        yield f"d2t maps {n_draft} tokens, its head has {head.shape[1]} rows. Convert it again."
    else:
        ids = struct.unpack(f"<{n_draft}q", draft.read_tensor_bytes("d2t"))
        if min(ids) < 0 or max(ids) >= n_vocab:
            yield f"d2t holds ids from {min(ids)} to {max(ids)}, the vocabulary has {n_vocab}. Convert it again."
        elif len(set(ids)) != n_draft:
            yield "d2t maps two draft tokens to the same id. Convert it again."
