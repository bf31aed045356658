"""Places of an adapter's pairs in a GGUF: the tensor of each, with the order of rows and columns that it has there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from llama_eagle.convert.adapters.reader import Adapter, Pair
from llama_eagle.convert.rows import TILE_COLUMNS
from llama_eagle.convert.source.adapter_kinds import BY_PEFT
from llama_eagle.convert.table import Dims, Row, Section, resolve
from llama_eagle.convert.targets.convert import canonical
from llama_eagle.errors import ConversionError, IncompatibleModels

EXPERTS = "mlp.experts"


@dataclass(frozen=True)
class Placed:
    """An update alpha / rank * b @ a of the GGUF tensor `name`. a: [rank, in], b: [out, rank], both with the experts
    first where the tensor has them. magnitude: as in Pair, [out].
    """

    name: str
    module: str
    a: np.ndarray
    b: np.ndarray
    alpha: float
    magnitude: np.ndarray | None = None

    @property
    def rank(self) -> int:
        return int(self.a.shape[-2])

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


@dataclass(frozen=True)
class _Place:
    """A row of the table, and the GGUF tensor that it fills. expert: number in a row that stacks experts."""

    row: Row
    name: str
    expert: int | None = None


def module_of(name: str) -> str:
    """Return the table's name of a module."""
    return canonical(name.removeprefix("base_model.model.").replace(".base_layer", ""))


def place_pairs(adapter: Adapter, sections: Sequence[Section], dims: Dims) -> Iterator[Placed]:
    """Yield the updates of a model's GGUF tensors.

    Pairs of other parts, such as a vision encoder, are left to the caller: `unplaced`. Raises `IncompatibleModels` for
    a shape of another model.
    """
    places = _places(sections, dims)
    stacked: dict[str, dict[int, Placed]] = {}
    for pair in adapter.pairs:
        module = module_of(pair.module)
        if module.endswith(EXPERTS):
            yield from _fused(adapter, pair, places.get(module, []), dims)
            continue
        for place in places.get(f"{module}.weight", []):
            placed = _placed(adapter, pair, place, dims)
            if place.expert is None:
                yield placed
            else:
                stacked.setdefault(place.name, {})[place.expert] = placed
    for found in stacked.values():
        if with_norms := next((each.module for each in found.values() if each.magnitude is not None), None):
            raise ConversionError(f"{adapter.where}: DoRA of single experts ({with_norms}) is not merged. {BY_PEFT}.")
        yield _stack(found, dims["experts"])


def unplaced(adapter: Adapter, sections: Sequence[Section], dims: Dims) -> list[str]:
    """Return the modules of pairs that no row of the table has."""
    places = _places(sections, dims)
    names = {pair.module: module_of(pair.module) for pair in adapter.pairs}
    return [name for name, module in names.items() if module not in places and f"{module}.weight" not in places]


def _places(sections: Iterable[Section], dims: Dims) -> dict[str, list[_Place]]:
    """Return the places of each stored matrix; those of fused experts by the name of their module."""
    found: dict[str, list[_Place]] = {}
    for section in sections:
        for row in section.rows:
            source, target = section.source + row.source, section.target + row.target
            if row.layout == "out_in" and row.source.startswith(f"{EXPERTS}."):
                found.setdefault(source.rpartition(".")[0], []).append(_Place(row, target))
            elif "{e}" in source:
                for e in range(dims["experts"]):
                    found.setdefault(source.replace("{e}", str(e)), []).append(_Place(row, target, e))
            elif len(row.shape) == 2:
                found.setdefault(source, []).append(_Place(row, target))
    return found


def _placed(adapter: Adapter, pair: Pair, place: _Place, dims: Dims) -> Placed:
    wanted, found = resolve(place.row.shape, dims), (pair.b.shape[0], pair.a.shape[1])
    if wanted != found:
        raise _other_model(adapter, pair, [wanted], found)
    rank = pair.a.shape[0]
    placed = Placed(place.name, pair.module, pair.a, pair.b, adapter.alpha(pair.module, rank), pair.magnitude)
    change = place.row.transform
    if change is None:
        return placed
    if change is TILE_COLUMNS:
        return replace(placed, a=change.apply(pair.a, dims))
    magnitude = None if pair.magnitude is None else change.apply(pair.magnitude[:, None], dims)[:, 0]
    return replace(placed, b=change.apply(pair.b, dims), magnitude=magnitude)


def _fused(adapter: Adapter, pair: Pair, places: Sequence[_Place], dims: Dims) -> Iterator[Placed]:
    """Yield the updates of a parameter of experts, which the pair does not name: its shapes do.

    Expert e has the rows e * rank + i of a, and the columns i * experts + e of b. Before peft 0.19 both are swapped.
    """
    n, found = dims["experts"], (pair.b.shape[0], pair.a.shape[1])
    shapes = {place.row.source: resolve(place.row.shape, dims)[1:] for place in places}
    fits = [(source, swapped) for source, shape in shapes.items() for swapped in (False, True)
            if (shape[::-1] if swapped else shape) == found]  # fmt: skip
    fits = [each for each in fits if each[1] == adapter.is_swapped] or fits
    if not fits or pair.a.shape[0] % n:
        raise _other_model(adapter, pair, list(shapes.values()), found)
    source, swapped = fits[0]
    a = pair.a.reshape(n, -1, pair.a.shape[1])
    b = pair.b.reshape(pair.b.shape[0], -1, n).transpose(2, 0, 1)
    if swapped:
        a, b = b.transpose(0, 2, 1), a.transpose(0, 2, 1)
    alpha = adapter.alpha(f"{pair.module}.{source.rpartition('.')[2]}", a.shape[1])
    for place in places:
        if place.row.source == source:
            change = place.row.transform
            rows = b if change is None else np.stack([change.apply(each, dims) for each in b])
            yield Placed(place.name, pair.module, a, rows, alpha)


def _stack(found: dict[int, Placed], n: int) -> Placed:
    """Return the pairs of single experts as one; experts without a pair, and rows above an expert's rank, are zeros."""
    first = next(iter(found.values()))
    rank = max(each.rank for each in found.values())
    a = np.zeros((n, rank, first.a.shape[1]), np.float32)
    b = np.zeros((n, first.b.shape[0], rank), np.float32)
    alpha = first.alpha * rank / first.rank  # of the stack, so that the first one keeps its values
    for e, each in found.items():
        a[e, : each.rank] = each.a
        b[e, :, : each.rank] = each.b if each.scale == first.scale else each.b * (each.scale / (alpha / rank))
    return Placed(first.name, first.module, a, b, alpha)


def _other_model(adapter: Adapter, pair: Pair, wanted: Sequence[Sequence[int]], found: Sequence[int]) -> Exception:
    expected = " or ".join(" x ".join(map(str, shape)) for shape in dict.fromkeys(map(tuple, wanted))) or "no experts"
    return IncompatibleModels(
        f"{adapter.where}: the pair of {pair.module} is for a matrix of {' x '.join(map(str, found))}, the model has "
        f"{expected}. Give the model that the adapter was trained for."
    )
