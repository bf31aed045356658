"""A small language model as the draft of a larger one: both need the same vocabulary, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llama_eagle.gguf import mtp
from llama_eagle.gguf.architectures import DIFFUSION, ENCODERS, rollback_problem
from llama_eagle.gguf.header import ArrayRef, Header
from llama_eagle.gguf.names import DRAFT_KINDS
from llama_eagle.gguf.reading import bytes_per_token

# The rules of llama.cpp's common/speculative.cpp.
MAX_DIFFERENCE = 128  # tokens: models of one family pad their vocabularies differently
FIRST_COMPARED = 5  # control tokens before it may have different names

FAMILY = "Use a draft of the target's family."


def is_small(target: Header, draft: Sequence[Header]) -> bool:
    """Return True if the files of a draft are a whole model that reads the text alone, and no head of the target."""
    if draft[0].architecture in DRAFT_KINDS or mtp.is_head_alone(draft):
        return False
    return not mtp.has_head(draft) or bool(mtp.problems(target, draft[0]))


def problems(target: Header, draft: Header) -> Iterator[str]:
    """Yield every reason why a small model cannot draft for a target."""
    arch = draft.architecture
    if draft.path.samefile(target.path):
        yield "it is the target itself. A draft is a smaller model of the same family."
    elif arch in ENCODERS or draft.arch_key("attention.causal", True) is False:
        yield f"it is an encoder ({arch}), which generates no text. {FAMILY}"
    elif draft.number("pooling_type"):
        yield f"it is a model for embeddings or reranking (pooling_type), which generates no text. {FAMILY}"
    elif arch in DIFFUSION:
        yield f"it is a diffusion model ({arch}), which does not generate token by token. {FAMILY}"
    elif problem := rollback_problem(arch):
        yield f"{problem}. Use another draft."
    else:
        yield from _vocabulary_problems(target, draft)


def _vocabulary_problems(target: Header, draft: Header) -> Iterator[str]:
    kinds = [str(header.value("tokenizer.ggml.model")) for header in (draft, target)]
    if kinds[0] != kinds[1]:
        yield f"its tokenizer is {kinds[0]}, the target's {kinds[1]}. {FAMILY}"
        return
    if abs(target.n_vocab - draft.n_vocab) > MAX_DIFFERENCE:
        yield f"its vocabulary has {draft.n_vocab} tokens, the target's {target.n_vocab}. {FAMILY}"
        return
    different = _first_different_token(target, draft)
    if different is not None:
        yield f"token {different[0]} is {different[1]!r} in the target and {different[2]!r} in the draft. {FAMILY}"
    for name in ("bos", "eos"):
        yield from _special_problems(name, target, draft)


def _special_problems(name: str, target: Header, draft: Header) -> Iterator[str]:
    """Compare a special token that is added to texts. Without the keys, native code compares llama.cpp's defaults."""
    added, ids = (
        [header.value(f"tokenizer.ggml.{key}") for header in (draft, target)]
        for key in (f"add_{name}_token", f"{name}_token_id")
    )
    if None not in added and added[0] != added[1]:
        yield f"tokenizer.ggml.add_{name}_token is {added[1]} in the target and {added[0]} in the draft. {FAMILY}"
    elif all(added) and None not in ids and ids[0] != ids[1]:
        yield f"tokenizer.ggml.{name}_token_id is {ids[1]} in the target and {ids[0]} in the draft. {FAMILY}"


def _first_different_token(target: Header, draft: Header) -> tuple[int, str, str] | None:
    left, right = (header.keys.get("tokenizer.ggml.tokens") for header in (target, draft))
    if not isinstance(left, ArrayRef) or not isinstance(right, ArrayRef):
        return None
    if target.raw_array(left) == draft.raw_array(right):
        return None
    pairs = zip(target.read_array(left), draft.read_array(right), strict=False)
    return next(((i, a, b) for i, (a, b) in enumerate(pairs) if i >= FIRST_COMPARED and a != b), None)


def step_share(target: Sequence[Header], draft: Sequence[Header]) -> float:
    """Return the bytes read per drafted token as a share of those of a token of the target."""
    return bytes_per_token(draft) / bytes_per_token(target)


def warnings(target: Sequence[Header], draft: Sequence[Header]) -> Iterator[str]:
    """Yield a warning about a draft that costs as much as its target."""
    if (share := step_share(target, draft)) >= 1:
        yield f"it reads {share:.1f} times the bytes of its target for a token: drafting with it will not pay"
