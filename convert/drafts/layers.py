"""Which target states a draft reads: layer ids in either of two conventions, resolved to one.

OUT: id x is the output of block x. BND, which GGUF uses: id x is the residual stream entering block x, so that
OUT x = BND x + 1; boundary L is what leaves the last block, before the final norm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llama_eagle.convert.drafts.config import WHERE
from llama_eagle.errors import ConfigError, ConversionError


@dataclass(frozen=True)
class LayerIds:
    """Boundaries in ascending order, the rule that gave them, and a warning if it was a guess."""

    boundaries: tuple[int, ...]
    source: str
    warning: str | None = None


def resolve_layer_ids(
    *,
    n_aux: int,
    n_layer: int,
    top: Sequence[int] | None = None,
    nested: Sequence[int] | None = None,
    speculators: bool = False,
    override: Sequence[int] | None = None,
) -> LayerIds:
    """Boundaries for `n_aux` features of a target with `n_layer` text layers.

    top, nested: eagle_aux_hidden_state_layer_ids at the top level and in eagle_config. override: boundaries the user
    named. Raises ConfigError for ids that cannot be, ConversionError where only the user can tell.
    """
    ids, shift, source, warning = _convention(n_aux, n_layer, top, nested, speculators, override)
    boundaries = tuple(sorted(i + shift for i in ids))
    if len(boundaries) != n_aux:
        raise ConfigError(f"{source}: {len(boundaries)} layer ids {list(ids)}, but fc fuses {n_aux} features")
    if len(set(boundaries)) != n_aux or not boundaries[0] >= 0 or boundaries[-1] > n_layer:
        raise ConfigError(
            f"{source}: {list(ids)} gives the boundaries {list(boundaries)}, expected different ones from 0 to "
            f"{n_layer}; name them with --aux-layers"
        )
    return LayerIds(boundaries, source, warning)


def _convention(
    n_aux: int,
    n_layer: int,
    top: Sequence[int] | None,
    nested: Sequence[int] | None,
    speculators: bool,
    override: Sequence[int] | None,
) -> tuple[Sequence[int], int, str, str | None]:
    """(ids, shift to boundaries, rule, warning); the first rule that applies decides."""
    usual = [2, n_layer // 2, n_layer - 3]
    if override is not None:
        return override, 0, "--aux-layers", None
    if top is not None and nested is not None and sorted(top) != sorted(nested):
        raise ConfigError(
            f"{WHERE}: layer ids are {top} at the top level but {nested} in eagle_config; use --aux-layers"
        )
    ids = top if top is not None else nested
    if ids is None:
        if n_aux != 3:
            raise ConversionError(
                f"{WHERE} has no layer ids and fc fuses {n_aux} features; name them with --aux-layers"
            )
        return usual, 0, "default for three features", None
    ids = sorted(ids)
    if speculators:
        warning = "the first layer id is 1: if this draft was converted from one of SpecForge, its ids may be outputs"
        return ids, 0, "speculators: boundaries", f"{warning}; compare with --aux-layers" if ids[0] == 1 else None
    if ids[-1] == n_layer:
        return ids, 0, "the last id is the layer count: boundaries", None
    if ids[0] == 1:
        return ids, 1, "the first id is 1: outputs", None
    if ids == usual:
        return ids, 0, "the default of SafeAILab and vLLM: boundaries", None
    if ids[0] == 3 and ids[1:] == [n_layer // 2 - 1, n_layer - 4]:
        return ids, 1, "the template of SpecForge: outputs", None
    if top is None:
        return ids, 1, "in eagle_config only: outputs", "layer ids in eagle_config are taken as outputs"
    return ids, 0, "at the top level: boundaries", "layer ids at the top level are taken as boundaries"
