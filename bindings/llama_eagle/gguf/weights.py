"""Check of the weights themselves: NaN, infinities, blocks of absurd scale, norms of zeros. Reads all data once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from llama_eagle.errors import InputError
from llama_eagle.gguf.header import Header, TensorInfo, quant_sizes
from llama_eagle.gguf.tensors import read_rows

LARGEST = 1e4  # magnitude in a matrix; those of trained models stay below a few hundred
RATIO = 1e4  # magnitude of a block relative to the tensor's median block
CHUNK = 1 << 22  # values that are read at once
MEANT = ("rope_",)  # factors that may be infinite in effect: 1e30 switches a frequency off


@dataclass(frozen=True)
class Damage:
    """A tensor that no training has written. n_wrong: blocks with NaN or infinities. n_absurd: blocks whose values are
    far larger than others. largest: the largest magnitude. remark: a remarkable fact that is no damage by itself."""

    file: str
    tensor: str
    type_name: str
    n_blocks: int
    n_wrong: int = 0
    n_absurd: int = 0
    largest: float = 0.0
    remark: str = ""

    def __str__(self) -> str:
        name = f"{self.tensor} ({self.type_name})"
        if self.remark:
            return f"{name}: {self.remark}"
        if self.n_wrong:
            return f"{name}: NaN or infinities in {self.n_wrong} of {self.n_blocks} blocks"
        if self.n_absurd:
            return f"{name}: values up to {self.largest:.2g} in {self.n_absurd} of {self.n_blocks} blocks"
        return f"{name}: all values are 0"


def damaged(files: Sequence[Header], on_progress: Callable[[float], None] | None = None) -> Iterator[Damage]:
    """Yield the tensors of a model that are damaged or remarkable. on_progress receives the fraction that is read."""
    tensors = [(file, tensor) for file in files for tensor in file.tensors.values()]
    n_total = sum(tensor.n_elements for _, tensor in tensors) or 1
    n_done = 0

    def read(n_elements: int) -> None:
        nonlocal n_done
        n_done += n_elements
        if on_progress is not None:
            on_progress(n_done / n_total)

    for file, tensor in tensors:
        is_integer = tensor.type_name in ("I8", "I16", "I32", "I64")
        if not is_integer and (found := _damage(file, tensor, read)):
            yield found


def _damage(file: Header, tensor: TensorInfo, on_read: Callable[[int], None]) -> Damage | None:
    try:
        peaks = np.concatenate([*_peaks(file, tensor, on_read)])
    except InputError:
        return Damage(str(file.path), tensor.name, tensor.type_name, 0, remark="this type is not checked")
    is_finite = np.isfinite(peaks)
    finite = peaks[is_finite]
    n_wrong = int((~is_finite).sum())
    n_absurd, largest = 0, float(finite.max(initial=0))
    is_meant = len(tensor.shape) < 2 or any(part in tensor.name for part in MEANT)
    if not is_meant and finite.any():
        limit = min(LARGEST, RATIO * float(np.median(finite[finite > 0])))
        n_absurd = int((finite > limit).sum())
    is_norm = tensor.name.endswith("_norm.weight")
    is_zero = not n_wrong and largest == 0 and (len(tensor.shape) > 1 or is_norm)
    if not (n_wrong or n_absurd or is_zero):
        return None
    remark = "all values are 0" if is_zero and not is_norm else ""  # as in models that were made for a test
    return Damage(str(file.path), tensor.name, tensor.type_name, len(peaks), n_wrong, n_absurd, largest, remark)


def _peaks(file: Header, tensor: TensorInfo, on_read: Callable[[int], None]) -> Iterator[np.ndarray]:
    """Yield the largest magnitude of each block, in pieces; NaN for a block with one. on_read: gets their number."""
    width = tensor.shape[0]
    block = quant_sizes()[tensor.type_id][0]
    if block == 1:  # without scales
        block = 32 if width % 32 == 0 else width
    step = max(CHUNK // width, 1)
    for begin in range(0, tensor.n_elements // width, step):
        values = read_rows([file], tensor.name, slice(begin, begin + step))
        if values is not None:
            with np.errstate(invalid="ignore"):  # of signaling NaN
                yield np.abs(values).reshape(-1, block).max(axis=1)
            on_read(values.size)
