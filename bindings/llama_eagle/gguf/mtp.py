"""The multi-token-prediction (MTP) head of a checkpoint, in the target's file or in a separate one.

It is the block after the last one of the trunk (`blk.{n_layer}.nextn.*`), which llama.cpp loads only on request.
"""

from __future__ import annotations

from collections.abc import Sequence

from llama_eagle.gguf.header import ArrayRef, Header
from llama_eagle.gguf.reading import bytes_per_token, bytes_read

ARCHITECTURES = frozenset({"qwen35", "qwen35moe", "qwen3next"})  # with an MTP head that our engine runs
BASE_LIST = "llama_eagle.draft_vocab"  # tokens by descending frequency, for the rows of a trimmed head


def has_head(files: Sequence[Header]) -> bool:
    """Return True if a model's files contain an MTP head that our engine can run."""
    return files[0].architecture in ARCHITECTURES and _stores(files, "nextn.eh_proj.weight")


def is_head_alone(files: Sequence[Header]) -> bool:
    """Return True if they contain the head without the model."""
    return has_head(files) and not any("blk.0.attn_norm.weight" in file.tensors for file in files)


def base_ids(header: Header) -> list[int]:
    """Return the file's list of most frequent tokens; empty if it has none."""
    value = header.keys.get(BASE_LIST)
    return [int(token) for token in header.read_array(value)] if isinstance(value, ArrayRef) else []


def problems(target: Header, draft: Header) -> list[str]:
    """Return every reason why the head in `draft` cannot draft for `target`."""
    if target.architecture != draft.architecture:
        return [f"it is the head of a {draft.architecture} model, the target is {target.architecture}."]
    compared = {
        "hidden size": [header.arch_key("embedding_length") for header in (draft, target)],
        "number of blocks": [n_layers(header) for header in (draft, target)],
        "vocabulary": [header.n_vocab for header in (draft, target)],
    }
    return [
        f"its {what} is {ours}, the target's {theirs}. Use the head of this target."
        for what, (ours, theirs) in compared.items()
        if ours != theirs
    ]


def n_layers(header: Header) -> int:
    """Return the number of blocks in a model's trunk. MTP blocks, which are stored after them, do not count."""
    return int(header.arch_key("block_count", 0)) - int(header.arch_key("nextn_predict_layers", 0))


def step_share(files: Sequence[Header], n_rows: int) -> float:
    """Return the bytes read per drafted token as a share of those of plain decoding.

    A drafted token reads the head's block and `n_rows` of the output matrix, plain decoding the trunk and the whole
    matrix. On a CPU this share is about the relative time of drafting a token.
    """
    named = {tensor.name: tensor for file in files for tensor in file.tensors.values()}
    output = named.get("output.weight") or named["token_embd.weight"]
    drafted = _head_bytes(files) + (output.n_bytes or 0) * min(n_rows / files[0].n_vocab, 1.0)
    return drafted / plain_bytes(files)


def plain_bytes(files: Sequence[Header]) -> float:
    """Return the bytes of weights that plain decoding reads for one token: without the head's block."""
    return bytes_per_token(files) - _head_bytes(files)


def _head_bytes(files: Sequence[Header]) -> float:
    mark = f"blk.{n_layers(files[0])}."
    tensors = (tensor for file in files for tensor in file.tensors.values())
    return sum(bytes_read(files[0], tensor) for tensor in tensors if tensor.name.startswith(mark))


def _stores(files: Sequence[Header], suffix: str) -> bool:
    return any(name.endswith(suffix) for file in files for name in file.tensors)
