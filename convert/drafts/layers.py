"""The target states that a draft reads: layer ids in either of two conventions, resolved to one.

OUT: id x is the output of block x. BND, which GGUF uses: id x is the residual stream entering block x, so that OUT x =
BND x + 1. Boundary L is the output of the last block, before the final norm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llama_eagle.convert.drafts.config import WHERE
from llama_eagle.convert.drafts.target import Target
from llama_eagle.errors import ConfigError, ConversionError
from llama_eagle.gguf.architectures import LAST_BOUNDARY_TARGETS

DEFAULT_LAYERS = "default for three features"


def unpublished(boundaries: Sequence[int], target: Target) -> str | None:
    """Return the reason why a draft cannot read these boundaries, if it reads one that the target does not publish."""
    architecture = target.architecture
    if boundaries[-1] < target.n_layer or architecture in LAST_BOUNDARY_TARGETS:
        return None
    return f"it reads the state after the last block, which is computed for output rows alone in {architecture} targets"


@dataclass(frozen=True)
class LayerIds:
    """Boundaries in ascending order, the rule that determined them, and a warning if it was a guess."""

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
    outputs: bool = False,
    override: Sequence[int] | None = None,
) -> LayerIds:
    """Return boundaries for `n_aux` features of a target with `n_layer` text layers.

    top, nested: eagle_aux_hidden_state_layer_ids at the top level and in eagle_config. override: boundaries named by
    the user. outputs: this producer's ids are always outputs. Raises ConfigError for impossible ids, ConversionError if
    only the user can decide.
    """
    if override is not None:
        ids: Sequence[int] = override
        shift, source, warning = 0, "--aux-layers", None
    else:
        stated = _stated(top, nested, n_aux)
        ids = [2, n_layer // 2, n_layer - 3] if stated is None else sorted(stated)
        place = "default" if stated is None else "speculators" if speculators else "nested" if top is None else "top"
        place = "outputs" if outputs and stated is not None else place
        shift, source, warning = _convention(ids, n_layer, place)
    boundaries = tuple(sorted(i + shift for i in ids))
    if len(boundaries) != n_aux:
        raise ConfigError(f"{source}: {len(boundaries)} layer ids {list(ids)}, but fc fuses {n_aux} features")
    if len(set(boundaries)) != n_aux or not boundaries[0] >= 0 or boundaries[-1] > n_layer:
        raise ConfigError(
            f"{source}: {list(ids)} gives the boundaries {list(boundaries)}, expected different ones from 0 to "
            f"{n_layer}; give them with --aux-layers"
        )
    return LayerIds(boundaries, source, warning)


def _stated(top: Sequence[int] | None, nested: Sequence[int] | None, n_aux: int) -> Sequence[int] | None:
    """Return the ids of config.json; None if it has none and the default three apply."""
    if top is not None and nested is not None and sorted(top) != sorted(nested):
        raise ConfigError(
            f"{WHERE}: layer ids are {top} at the top level but {nested} in eagle_config; use --aux-layers"
        )
    ids = top if top is not None else nested
    if ids is None and n_aux != 3:
        raise ConversionError(f"{WHERE} has no layer ids and fc fuses {n_aux} features; give them with --aux-layers")
    return ids


def _convention(ids: Sequence[int], n_layer: int, place: str) -> tuple[int, str, str | None]:
    """Return (shift to boundaries, rule, warning) by the first rule that applies. place: of the ids in config.json."""
    if place == "default":
        return 0, DEFAULT_LAYERS, None
    if place == "outputs":
        return 1, "DeepSpec: outputs", None
    if place == "speculators":
        warning = "the first layer id is 1: if this draft was converted from a SpecForge draft, its ids may be outputs"
        return 0, "speculators: boundaries", f"{warning}; compare with --aux-layers" if ids[0] == 1 else None
    if ids[-1] == n_layer:
        return 0, "the last id is the layer count: boundaries", None
    if ids[0] == 1:
        return 1, "the first id is 1: outputs", None
    if ids == [2, n_layer // 2, n_layer - 3]:
        return 0, "the default of SafeAILab and vLLM: boundaries", None
    if ids[0] == 3 and ids[1:] == [n_layer // 2 - 1, n_layer - 4]:
        return 1, "the template of SpecForge: outputs", None
    if place == "nested":
        return 1, "in eagle_config only: outputs", "layer ids in eagle_config are read as outputs"
    return 0, "at the top level: boundaries", "layer ids at the top level are read as boundaries"
