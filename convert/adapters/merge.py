"""Merging of an adapter into the tensors of a conversion, row by row, before they are encoded.

The updates are those of the GGUF's own tensors, so that the base model may be stored in any form, quantized too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from llama_eagle.convert.adapters.placed import Placed, module_of, place_pairs, unplaced
from llama_eagle.convert.adapters.reader import Adapter
from llama_eagle.convert.dtypes import to_f32
from llama_eagle.convert.source.adapter_kinds import BIASES
from llama_eagle.convert.source.storage import StoredTensor
from llama_eagle.convert.source.weights import Piece, Weights, evaluated
from llama_eagle.convert.table import Dims, Plan, Planned, Section
from llama_eagle.errors import ConversionError, IncompatibleModels

EMBEDDINGS, HEAD = "embed_tokens", "lm_head"
ELSEWHERE = ("visual.", "mtp.")  # parts that a conversion of the text may leave out


class Merge:
    """An adapter that a conversion merges: `Checkpoint.changes`."""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self.changes_vision = any(module_of(pair.module).startswith("visual.") for pair in adapter.pairs)

    def change_weights(self, weights: Weights, sections: Sequence[Section]) -> None:
        """Untie an adapted head, and put trained tensors in the place of the base model's."""
        whole = {module_of(name): tensor for name, tensor in self.adapter.whole.items()}
        changed = {module_of(pair.module) for pair in self.adapter.pairs}
        changed |= {name.removesuffix(".weight") for name in whole}
        if changed & {EMBEDDINGS, HEAD} and f"{HEAD}.weight" not in weights:
            weights.copy_name(f"{EMBEDDINGS}.weight", f"{HEAD}.weight")
        known = {section.source + row.source for section in sections for row in section.rows}
        for name, tensor in whole.items():
            if name in weights or name in known:
                self._replace(weights, name, tensor)
            elif _is_text(sections):
                raise self._foreign(tensor.info.name)
        for pair in self.adapter.pairs:
            if pair.bias is None:
                continue
            name, rank = f"{module_of(pair.module)}.bias", pair.a.shape[0]
            if name not in known and _is_text(sections):
                raise ConversionError(f"{self.adapter.where}: llama.cpp has no {name} for this model. {BIASES}.")
            added = pair.bias * np.float32(self.adapter.alpha(pair.module, rank) / rank)
            weights.replace(name, to_f32(weights.read(name)) + added if name in weights else added)

    def _replace(self, weights: Weights, name: str, tensor: StoredTensor) -> None:
        if name in weights and weights.shape(name) != tensor.info.shape:
            raise IncompatibleModels(
                f"{self.adapter.where}: {tensor.info.name} has shape {list(tensor.info.shape)}, the base model's has "
                f"{list(weights.shape(name))}. Give the base model that the adapter was trained with, with its tokens."
            )
        weights.replace(name, tensor.read())

    def change_plan(self, plan: Plan, sections: Sequence[Section], dims: Dims) -> None:
        """Add the updates to the planned tensors."""
        updates = {each.name: each for each in place_pairs(self.adapter, sections, dims)}
        if _is_text(sections):
            for module in unplaced(self.adapter, sections, dims):
                if not module_of(module).startswith(ELSEWHERE):
                    raise self._foreign(module)
        plan.tensors = [_updated(each, updates[each.name]) if each.name in updates else each for each in plan.tensors]

    def _foreign(self, name: str) -> IncompatibleModels:
        return IncompatibleModels(
            f"{self.adapter.where}: the base model has no place for {name}. Give the base model that the adapter was "
            "trained with."
        )


def _is_text(sections: Sequence[Section]) -> bool:
    """Return True for the table of a complete text model, not of its vision encoder or MTP head."""
    return any(section.target == "blk.0." for section in sections)


def _updated(planned: Planned, update: Placed) -> Planned:
    return replace(planned, load=partial(_load, planned, update), note=f"{planned.note} merged with an adapter".strip())


def _load(planned: Planned, update: Placed) -> Iterator[Piece]:
    """Yield the planned pieces with the update of their rows."""
    width, row = planned.shape[-1], 0
    found = planned.load()
    for piece in [found] if isinstance(found, np.ndarray) else found:
        values = to_f32(evaluated(piece)).reshape(-1, width)
        yield np.concatenate(list(_rows(values, row, update)))
        row += len(values)


def _rows(values: np.ndarray, row: int, update: Placed) -> Iterable[np.ndarray]:
    """Yield updated rows. row: the number of the first one, over all experts."""
    a, b = (each if each.ndim == 3 else each[None] for each in (update.a, update.b))
    n = b.shape[1]
    while len(values):
        expert, first = divmod(row, n)
        some = values[: n - first]
        found = some + np.float32(update.scale) * (b[expert, first : first + len(some)] @ a[expert])
        if update.magnitude is not None:  # DoRA: each row has the trained norm
            norms = np.linalg.norm(found, axis=1)
            found *= (update.magnitude[first : first + len(some)] / norms)[:, None]
        yield found
        values, row = values[len(some) :], row + len(some)
