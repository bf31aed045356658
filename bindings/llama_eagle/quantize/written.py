"""The types of a quantized file, and its size compared with that of its type."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from llama_eagle.gguf.header import Header, TensorInfo, quant_sizes, quant_type_name

TOLERATED = 1.1  # size relative to the file's type without a warning


def types_of(file: Header) -> dict[str, int]:
    """Return type name -> number of tensors; first the types of most bytes."""
    n_tensors, n_bytes = Counter[str](), Counter[str]()
    for tensor in file.tensors.values():
        n_tensors[tensor.type_name] += 1
        n_bytes[tensor.type_name] += tensor.n_bytes or 0
    return {name: n_tensors[name] for name, _ in n_bytes.most_common()}


def type_line(types: Mapping[str, int]) -> str:
    """Format the result of `types_of` for people."""
    return ", ".join(f"{n} tensor{'s' * (n > 1)} in {name}" for name, n in types.items())


def excess(file: Header, intended: Mapping[str, str]) -> float:
    """Return the size of the tensors, relative to that in the intended types (tensor name -> type name)."""
    ids = {quant_type_name(value): value for value in quant_sizes()}
    n_bytes = n_intended = 0.0
    for name, tensor in file.tensors.items():
        n_bytes += tensor.n_bytes or 0
        kind = ids[intended[name].upper()] if name in intended else tensor.type_id
        n_intended += _n_bytes(tensor, kind)
    return n_bytes / n_intended if n_intended else 1.0


def about_excess(file: Header, ftype: str, intended: Mapping[str, str]) -> str | None:
    """Return the sentence about a file that is larger than its type, because its rows do not divide into blocks."""
    ratio = excess(file, intended)
    if ratio <= TOLERATED:
        return None
    others = [file.tensors[name] for name, kind in intended.items() if file.tensors[name].type_name != kind.upper()]
    found = type_line(dict(Counter(tensor.type_name for tensor in others).most_common()))
    rows = sorted({tensor.shape[0] for tensor in others})
    sizes = ", ".join(map(str, rows[:3])) + ", ..." * (len(rows) > 3)
    block = max(size for kind, (size, _) in quant_sizes().items() if quant_type_name(kind).lower() in intended.values())
    return (
        f"the file is {ratio - 1:.0%} larger than its type {ftype}: rows of {sizes} values do not divide into blocks "
        f"of {block}, so llama.cpp wrote {found}."
    )


def _n_bytes(tensor: TensorInfo, kind: int) -> float:
    block, n_bytes = quant_sizes()[kind]
    return tensor.n_elements / block * n_bytes
