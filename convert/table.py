"""Declarative tables: source tensor, GGUF tensor, shape and transform.

`plan()` matches a table with a checkpoint before anything is written. Every stored tensor has a row or a stated reason
to be dropped, every required one is present, and every shape is the one implied by the configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from llama_eagle.convert.dtypes import require_finite
from llama_eagle.convert.source.weights import Piece, Weights, evaluated
from llama_eagle.errors import ConversionError
from llama_eagle.gguf.validate.table import size_of

Dims = Mapping[str, int]
Shape = tuple[int, ...]

# Matrices that llama.cpp reads as float32 only, in addition to all vectors and norms.
_ALWAYS_F32 = ("ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", "ssm_conv1d.weight")


@dataclass(frozen=True)
class Transform:
    """Change of one stored array (for experts: of each expert's slice) on its way into the GGUF.

    unit: number of rows that must stay together, in names of dims; the array is then transformed in pieces, which saves
    memory. "": transform it as a whole. note: for the user.
    """

    apply: Callable[[np.ndarray, Dims], np.ndarray]
    shape: Callable[[Shape, Dims], Shape] = lambda shape, dims: shape
    unit: str = ""
    note: str = ""


@dataclass(frozen=True)
class Row:
    """source and target are names inside their section; "{e}" is the number of an expert.

    shape: the stored shape, in names of dims ("2*ff" is a product). Several rows with one target are alternatives:
    names and shapes decide which one a checkpoint uses.
    """

    source: str
    target: str
    shape: tuple[str, ...]
    transform: Transform | None = None
    required: bool = True
    layout: str = ""  # all experts in one tensor, as "out_in" or "in_out"; if both fit, other tensors decide

    @property
    def per_expert(self) -> bool:
        """True if the output stacks one slice per expert."""
        return bool(self.layout) or "{e}" in self.source


@dataclass(frozen=True)
class Section:
    """Rows applied to one block, and the prefixes of its names in the checkpoint and in the GGUF."""

    rows: tuple[Row, ...]
    source: str = ""
    target: str = ""


@dataclass(frozen=True)
class Planned:
    """One tensor of the output.

    source: its name in the checkpoint, None if it is computed. load: returns its values.
    """

    name: str
    shape: Shape
    load: Callable[[], np.ndarray | Iterable[Piece]]
    source: str | None = None
    note: str = ""


@dataclass
class Plan:
    tensors: list[Planned] = field(default_factory=list)
    dropped: dict[str, str] = field(default_factory=dict)  # source tensor -> reason


def stored_type(name: str, shape: Shape, outtype: str) -> str:
    """Return the type of one tensor in a file of `outtype`, by llama.cpp's rules."""
    if len(shape) <= 1 or name.endswith(("_norm.weight", *_ALWAYS_F32)) or not name.endswith(".weight"):
        return "f32"
    return whole_blocks(shape, outtype)


def whole_blocks(shape: Shape, outtype: str) -> str:
    """Return outtype, or f16 if a row does not consist of complete blocks of it."""
    return "f16" if outtype == "q8_0" and shape[-1] % 32 else outtype


def resolve(shape: tuple[str, ...], dims: Dims) -> Shape:
    """Return the numbers of a shape rule."""
    return tuple(size_of(part, dims) for part in shape)


def computed(name: str, values: np.ndarray, note: str = "") -> Planned:
    """Return a tensor that is not in the checkpoint; its shape is that of the values."""
    return Planned(name, values.shape, partial(np.asarray, values), note=note)


def _names(row: Row, section: Section, dims: Dims) -> list[str]:
    """Return the source tensors of a row: one, or one per expert."""
    name = section.source + row.source
    return [name.replace("{e}", str(e)) for e in range(dims["experts"])] if "{e}" in name else [name]


def _fits(row: Row, names: list[str], weights: Weights, dims: Dims) -> bool:
    wanted = resolve(row.shape, dims)
    return all(weights.fits(name, wanted) for name in names)


def _fused_layout(sections: Sequence[Section], weights: Weights, dims: Dims) -> str | None:
    """Return the layout of fused experts, from the first tensor whose shape fits only one layout."""
    for section in sections:
        fused = [row for row in section.rows if row.layout]
        for source in {row.source for row in fused}:
            name = section.source + source
            rows = [row for row in fused if row.source == source]
            layouts = {row.layout for row in rows if name in weights and _fits(row, [name], weights, dims)}
            if len(layouts) == 1:
                return layouts.pop()
    return None


def _present(rows: list[Row], section: Section, weights: Weights, dims: Dims) -> tuple[list[Row], list[str]]:
    """Return the alternatives for one output tensor whose source is stored, and the names that are missing."""
    present = [row for row in rows if any(name in weights for name in _names(row, section, dims))]
    if present:
        return present, [n for row in present for n in _names(row, section, dims) if n not in weights]
    required = [section.source + row.source for row in rows if row.required]
    return [], [" or ".join(dict.fromkeys(required))] if required else []


def _choose(present: list[Row], section: Section, weights: Weights, dims: Dims, layout: str | None) -> Row:
    """Return the stored alternative that has the right shape."""
    fitting = [row for row in present if _fits(row, _names(row, section, dims), weights, dims)]
    fitting = [row for row in fitting if not row.layout or layout in (None, row.layout)]
    name = _names(present[0], section, dims)[0]
    if not fitting:
        expected = " or ".join(str(list(resolve(row.shape, dims))) for row in present)
        raise ConversionError(
            f"{weights.where}: tensor {weights.stored_name(name)} has shape {list(weights.shape(name))}, "
            f"but config.json implies {expected} ({', '.join(present[0].shape)})"
        )
    for each in _names(fitting[0], section, dims):
        weights.require_numbers(each)
    return fitting[0]


def _planned(row: Row, section: Section, weights: Weights, dims: Dims) -> Planned:
    names = _names(row, section, dims)
    change = row.transform
    each = resolve(row.shape, dims)[1 if row.layout else 0 :]
    if change:
        each = change.shape(each, dims)

    unit = resolve((change.unit,), dims)[0] if change and change.unit else 0 if change else 1

    def pieces() -> Iterator[Piece]:
        for name in names:
            if row.layout:
                yield from weights.slices(name, whole=change is not None)
            else:
                yield from weights.rows(name, unit) if unit else [weights.read(name)]

    def finish(piece: Piece) -> np.ndarray:
        values = require_finite(evaluated(piece))
        return change.apply(values, dims) if change else values

    def load() -> Iterator[Piece]:
        return (partial(finish, piece) if callable(piece) else finish(piece) for piece in pieces())

    name = section.target + row.target
    shape = (dims["experts"], *each) if row.per_expert else each
    return Planned(name, shape, load, names[0], change.note if change else "")


def plan(
    sections: Sequence[Section],
    weights: Weights,
    dims: Dims,
    dropped: Callable[[str], str | None],
) -> Plan:
    """Match the table with the checkpoint.

    dropped: returns the reason to drop a tensor without a row; None to refuse it, because the result would be silently
    wrong. Raises ConversionError for a mismatch; so does reading infinities or NaNs.
    """
    result = Plan()
    layout = _fused_layout(sections, weights, dims)
    used: set[str] = set()
    missing: list[str] = []
    for section in sections:
        by_target: dict[str, list[Row]] = {}
        for row in section.rows:
            by_target.setdefault(row.target, []).append(row)
        for rows in by_target.values():
            present, lacking = _present(rows, section, weights, dims)
            if lacking:
                missing += lacking
                used.update(name for row in present for name in _names(row, section, dims))
            elif present:
                chosen = _choose(present, section, weights, dims, layout)
                used.update(_names(chosen, section, dims))
                result.tensors.append(_planned(chosen, section, weights, dims))
    result.dropped = {name: _reason(name, weights, dropped) for name in weights.names() if name not in used}
    if missing:
        more = f" and {len(missing) - 4} more" if len(missing) > 4 else ""
        raise ConversionError(f"{weights.where}: missing: {', '.join(missing[:4])}{more}; is the download complete?")
    return result


def _reason(name: str, weights: Weights, dropped: Callable[[str], str | None]) -> str:
    if reason := dropped(name):
        return reason
    if weights.is_added_bias(name):
        return "zeros that the quantizer added as a bias"
    shape = list(weights.shape(name))
    raise ConversionError(f"{weights.where}: tensor {weights.stored_name(name)} {shape} is unknown in this model")
