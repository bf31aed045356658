"""Rerankers of the Qwen3 family, whose score is the probability of "yes" instead of "no" as the next token.

llama.cpp computes it with pooling "rank" from a head of these two rows. The template `rerank` has the prompt.
"""

from __future__ import annotations

import numpy as np
from llama_eagle.convert.general import publishable_name
from llama_eagle.convert.source import Checkpoint
from llama_eagle.convert.source.weights import evaluated
from llama_eagle.convert.table import Plan, Planned
from llama_eagle.convert.tokenizer import TokenizerData
from llama_eagle.convert.writer import GGUFOutput
from llama_eagle.errors import ConversionError
from llama_eagle.gguf.pairing import RANK

ARCHITECTURES = ("qwen3", "qwen3vl")  # llama.cpp's graphs of these apply a softmax to the scores
LABELS = ["yes", "no"]
_NAMES = ("qwen3-reranker", "qwen3-vl-reranker")
# The prompt of the models' cards. llama-server fills in the query and the document.
TEMPLATE = (
    "<|im_start|>system\n"
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
    "<Query>: {query}\n<Document>: {document}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n"
)


def is_reranker(checkpoint: Checkpoint, arch: str) -> bool:
    """Return True for a reranker by the heading of its README, its name, or its configuration.

    Source: llama.cpp's converter, which recognizes the same.
    """
    if arch not in ARCHITECTURES:
        return False
    readme, config = checkpoint.path / "README.md", checkpoint.config
    text = readme.read_bytes().decode("utf-8", "replace").lower() if readme.is_file() else ""
    architecture = str(config.get("architectures")).lower()
    hints = [publishable_name(checkpoint), config.get("_name_or_path"), config.get("model_type"), architecture]
    return (
        any(f"# {name}" in text for name in _NAMES)
        or any(name in str(hint).lower() for name in _NAMES for hint in hints)
        or "sequenceclassification" in architecture
    )


def replace_head(plan: Plan, tokenizer: TokenizerData, *, tied: bool) -> None:
    """Plan the head of a reranker, of shape [2, embd], and its prompt.

    It replaces the output matrix, unless that is tied to the embeddings. Raises `ConversionError` without the tokens.
    """
    if missing := [label for label in LABELS if label not in tokenizer.tokens]:
        raise ConversionError(
            f"the token {missing[0]!r} is missing in tokenizer.json, from which a Qwen3 reranker computes its score"
        )
    ids = [tokenizer.tokens.index(label) for label in LABELS]
    heads = {tensor.name: tensor for tensor in plan.tensors if tensor.name in ("token_embd.weight", "output.weight")}
    is_tied = tied or "output.weight" not in heads
    head = heads["token_embd.weight" if is_tied else "output.weight"]
    if not is_tied:
        plan.tensors.remove(head)
    shape = (len(ids), *head.shape[1:])
    plan.tensors.append(Planned("cls.output.weight", shape, lambda: _rows(head, ids), head.source))
    tokenizer.chat_templates["rerank"] = TEMPLATE


def _rows(tensor: Planned, ids: list[int]) -> np.ndarray:
    """Return rows of a matrix, which is read in pieces."""
    found, first = {}, 0
    for piece in map(evaluated, tensor.load()):
        found.update({i: piece[i - first] for i in ids if first <= i < first + len(piece)})
        first += len(piece)
    return np.stack([found[i] for i in ids])


def write_keys(out: GGUFOutput, arch: str) -> None:
    out.key(f"{arch}.pooling_type", RANK)
    out.key(f"{arch}.classifier.output_labels", LABELS)
