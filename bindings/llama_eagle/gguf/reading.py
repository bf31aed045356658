"""Bytes that models read per token: what decoding costs where computers wait for their memory."""

from __future__ import annotations

from collections.abc import Sequence

from llama_eagle.gguf.header import Header, TensorInfo

MAX_SHARE = 0.05  # of the target's bytes, for a drafted token
MIN_BYTES = 64 << 20  # smaller drafts stay in the caches of large processors
WIDE = {"F32", "F16", "BF16"}
LOOKED_UP = ("token_embd.weight", "rope_freqs.weight", "d2t")  # a row of them per token


def bytes_read(header: Header, tensor: TensorInfo) -> float:
    """Return the bytes read for one token; for experts, those of the experts in use."""
    n_bytes = tensor.n_bytes or 0
    if "_exps" not in tensor.name:
        return float(n_bytes)
    return n_bytes * header.number("expert_used_count", 1) / header.number("expert_count", 1)


def bytes_per_token(files: Sequence[Header]) -> float:
    """Return the bytes of weights that a model reads for one token, a tied output matrix included."""
    tensors = {name: tensor for file in files for name, tensor in file.tensors.items()}
    is_tied = files[0].architecture != "eagle3" and "output.weight" not in tensors
    left_out = LOOKED_UP[1:] if is_tied else LOOKED_UP
    return sum(bytes_read(files[0], tensor) for name, tensor in tensors.items() if name not in left_out)


def cost_of(target: Sequence[Header], draft: Sequence[Header]) -> str | None:
    """Return a remark about a draft that reads much for each token because its matrices are not quantized."""
    own, of_target = bytes_per_token(draft), bytes_per_token(target)
    tensors = [tensor for file in draft for tensor in file.tensors.values() if tensor.name not in LOOKED_UP]
    wide = sum(bytes_read(draft[0], tensor) for tensor in tensors if tensor.type_name.upper() in WIDE)
    if own < MIN_BYTES or own <= MAX_SHARE * of_target or wide < own / 2:
        return None
    return (
        f"it reads {own / 1e6:.0f} MB for each drafted token, {100 * own / of_target:.0f} % of the target's "
        f"{of_target / 1e6:.0f} MB for a token. `llama-eagle quantize {draft[0].path.name} OUT.gguf q4_k_m` leaves "
        "about a third of it at nearly the same acceptance rate."
    )
