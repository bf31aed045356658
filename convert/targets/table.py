"""Declarative tables: which source tensor becomes which GGUF tensor, in which shape, through which transform.

A family is one table. `plan()` matches it with a checkpoint before anything is written: every stored tensor has a
row or a stated reason to be dropped, every required one is there, every shape is the one the configuration implies.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from llama_eagle.convert.targets.config import ModelConfig
from llama_eagle.convert.targets.weights import Weights
from llama_eagle.errors import ConversionError

Dims = Mapping[str, int]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Transform:
    """What happens to one stored array (for experts: to each expert's slice) on its way into the GGUF."""

    apply: Callable[[np.ndarray, Dims], np.ndarray]
    shape: Callable[[Shape, Dims], Shape] = lambda shape, dims: shape


@dataclass(frozen=True)
class Row:
    """source and target are names inside their section; "{e}" stands for an expert's number.

    shape: the stored shape, in names of dims ("2*ff" is a product).
    Several rows with one target are alternatives: names and shapes decide which one a checkpoint uses.
    """

    source: str
    target: str
    shape: tuple[str, ...]
    transform: Transform | None = None
    required: bool = True
    layout: str = ""  # all experts in one tensor, as "out_in" or "in_out"; where shapes fit both, the others decide

    @property
    def per_expert(self) -> bool:
        """Does the output stack one slice per expert?"""
        return bool(self.layout) or "{e}" in self.source


@dataclass(frozen=True)
class Block:
    """One application of a section: its kind, and the prefixes of its tensors in the checkpoint and in the GGUF."""

    kind: str
    source: str
    target: str


def text_blocks(kinds: list[str]) -> list[Block]:
    """The blocks of a text model, of the given kinds."""
    return [Block(kind, f"layers.{i}.", f"blk.{i}.") for i, kind in enumerate(kinds)]


def text_dropped(name: str) -> str | None:
    """Why a text model leaves a tensor out."""
    if name.startswith("visual."):
        return "vision tower: converted by --mmproj"
    if name.endswith((".rotary_emb.inv_freq", ".attention.masked_bias")):
        return "computed, not learned"
    return None


@dataclass(frozen=True)
class Family:
    """One llama.cpp architecture. Sections are keyed by block kind; "model" rows belong to no block."""

    arch: str
    architectures: tuple[str, ...]  # values of config.json's `architectures`
    dims: Callable[[ModelConfig], dict[str, int]]
    keys: Callable[[ModelConfig, Dims], dict[str, Any]]  # GGUF keys without the "<arch>." prefix
    sections: dict[str, tuple[Row, ...]]
    blocks: Callable[[ModelConfig], list[Block]]
    extra: Callable[[ModelConfig, Dims], dict[str, np.ndarray]] = lambda config, dims: {}  # made, not stored
    dropped: Callable[[str], str | None] = text_dropped  # the reason to leave a tensor out, None to refuse it
    has_mtp: bool = False


@dataclass(frozen=True)
class Planned:
    """One tensor of the output: where its values come from and what happens to them."""

    name: str
    shape: Shape
    load: Callable[[], np.ndarray | Iterable[np.ndarray]]


@dataclass
class Plan:
    tensors: list[Planned] = field(default_factory=list)
    dropped: dict[str, str] = field(default_factory=dict)  # source tensor -> reason
    n_mtp: int = 0


def _resolve(shape: tuple[str, ...], dims: Dims) -> Shape:
    """Numbers for a shape rule."""
    return tuple(math.prod(int(f) if f.isdigit() else dims[f] for f in part.split("*")) for part in shape)


@dataclass(frozen=True)
class _Section:
    """A section applied to one block: its rows, and the prefixes of its names."""

    rows: tuple[Row, ...]
    source: str = ""
    target: str = ""


def _sections(family: Family, config: ModelConfig, n_mtp: int) -> Iterator[_Section]:
    yield _Section(family.sections["model"])
    blocks = family.blocks(config)
    for block in blocks:
        yield _Section(family.sections[block.kind], block.source, block.target)
    for i in range(n_mtp):
        number = len(blocks) + i
        yield _Section(family.sections["full"], f"mtp.layers.{i}.", f"blk.{number}.")
        yield _Section(family.sections["mtp"], "mtp.", f"blk.{number}.")


def _names(row: Row, section: _Section, dims: Dims) -> list[str]:
    """Source tensors of a row: one, or one per expert."""
    name = section.source + row.source
    return [name.replace("{e}", str(e)) for e in range(dims["experts"])] if "{e}" in name else [name]


def _fits(row: Row, names: list[str], weights: Weights, dims: Dims) -> bool:
    wanted = _resolve(row.shape, dims)
    return all(weights.shape(name) == wanted for name in names)


def _fused_layout(family: Family, config: ModelConfig, weights: Weights, dims: Dims) -> str | None:
    """How this checkpoint stores fused experts, decided by the first tensor whose shape fits one layout only."""
    for section in _sections(family, config, 0):
        fused = [row for row in section.rows if row.layout]
        for source in {row.source for row in fused}:
            name = section.source + source
            rows = [row for row in fused if row.source == source]
            layouts = {row.layout for row in rows if name in weights and _fits(row, [name], weights, dims)}
            if len(layouts) == 1:
                return layouts.pop()
    return None


def _choose(rows: list[Row], section: _Section, weights: Weights, dims: Dims, layout: str | None) -> Row | None:
    """Of the alternatives for one output tensor, the row that this checkpoint uses."""
    present = [row for row in rows if any(name in weights for name in _names(row, section, dims))]
    if not present:
        if any(row.required for row in rows):
            wanted = " or ".join(dict.fromkeys(section.source + row.source for row in rows))
            raise ConversionError(f"{weights.where}: the tensor {wanted} is missing")
        return None
    for row in present:
        missing = [name for name in _names(row, section, dims) if name not in weights]
        if missing:
            raise ConversionError(f"{weights.where}: the tensor {missing[0]} is missing ({len(missing)} such)")
    fitting = [row for row in present if _fits(row, _names(row, section, dims), weights, dims)]
    fitting = [row for row in fitting if not row.layout or layout in (None, row.layout)]
    if not fitting:
        name = _names(present[0], section, dims)[0]
        expected = " or ".join(str(list(_resolve(row.shape, dims))) for row in present)
        raise ConversionError(
            f"{weights.where}: tensor {name} has shape {list(weights.shape(name))}, "
            f"but config.json implies {expected} ({', '.join(present[0].shape)})"
        )
    return fitting[0]


def _planned(row: Row, section: _Section, weights: Weights, dims: Dims) -> Planned:
    names = _names(row, section, dims)
    each = _resolve(row.shape, dims)[1 if row.layout else 0 :]
    if row.transform:
        each = row.transform.shape(each, dims)

    def slices() -> Iterator[np.ndarray]:
        for name in names:
            for value in weights.slices(name) if row.layout else [weights.read(name)]:
                yield row.transform.apply(value, dims) if row.transform else value

    def load() -> np.ndarray | Iterator[np.ndarray]:
        return slices() if row.per_expert else next(slices())

    return Planned(section.target + row.target, (dims["experts"], *each) if row.per_expert else each, load)


def _mtp_blocks(weights: Weights) -> int:
    """Next-token-prediction blocks in the checkpoint, counted by their tensors: one, or an error."""
    numbers = {int(m[1]) for name in weights.names() if (m := re.match(r"mtp\.layers\.(\d+)\.", name))}
    if numbers != {0}:
        raise ConversionError(
            f"{weights.where}: it has MTP blocks {sorted(numbers)}, but llama.cpp runs exactly one: "
            "convert with --no-mtp"
        )
    return 1


def plan(family: Family, config: ModelConfig, weights: Weights, dims: Dims, *, keep_mtp: bool = True) -> Plan:
    """Matches the family's table with the checkpoint. Raises ConversionError for the first thing that does not fit."""
    has_mtp = family.has_mtp and keep_mtp and any(name.startswith("mtp.") for name in weights.names())
    result = Plan(n_mtp=_mtp_blocks(weights) if has_mtp else 0)
    layout = _fused_layout(family, config, weights, dims)
    used: set[str] = set()
    for section in _sections(family, config, result.n_mtp):
        by_target: dict[str, list[Row]] = {}
        for row in section.rows:
            by_target.setdefault(row.target, []).append(row)
        for rows in by_target.values():
            if chosen := _choose(rows, section, weights, dims, layout):
                used.update(_names(chosen, section, dims))
                result.tensors.append(_planned(chosen, section, weights, dims))
    for name, values in family.extra(config, dims).items():
        result.tensors.append(Planned(name, values.shape, partial(np.asarray, values)))
    for name in weights.names():
        if name not in used:
            result.dropped[name] = _reason(name, weights, family)
    return result


def _reason(name: str, weights: Weights, family: Family) -> str:
    """Why a stored tensor is left out; an unknown one is an error, because the result would be wrong in silence."""
    if name.startswith("mtp.") and family.has_mtp:
        return "MTP block: --no-mtp"
    if reason := family.dropped(name):
        return reason
    shape = list(weights.shape(name))
    raise ConversionError(f"{weights.where}: tensor {name} {shape} has no place in this architecture")
