"""The demo pair at the cost of a 0.8B model: the same functions in wider and more matrices, with zeros elsewhere.

The target's width grows from 256 to 1024, its MLPs to 10,240, its 8 blocks to 24, and its MTP head accordingly. Every
matrix is read and multiplied completely, so a token costs as much as in a model of 0.76 billion parameters, while the
text is that of the demo model. A norm over a wider row divides by less, and its weights compensate for that. The draft
keeps its size and contains its own embeddings, because the target's are wider now.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from llama_eagle.convert.source import Checkpoint, open_checkpoint
from llama_eagle.synthetic.weights import Rows, Tensor, write_checkpoint
from numpy.typing import NDArray

WIDTH, FFN, N_LAYERS = 1024, 10240, 24
COPIED = ("chat_template.jinja", "generation_config.json", "tokenizer.json", "tokenizer_config.json")


def widen_pair(target: Path, draft: Path, folder: Path) -> tuple[Path, Path]:
    """Write both checkpoints below `folder`, about 1.7 GB; return their folders. The target may have an MTP head."""
    source = open_checkpoint(target)
    wide, fitting = folder / "target", folder / "draft"
    for path in (wide, fitting):
        path.mkdir(parents=True, exist_ok=True)
    write_checkpoint(wide, [*_target(source)])
    write_checkpoint(fitting, [*_draft(open_checkpoint(draft), source)])
    for name in COPIED:
        shutil.copyfile(target / name, wide / name)
    kinds = source.config["layer_types"]
    types = [kinds[i % len(kinds)] for i in range(N_LAYERS)]
    changed = {"hidden_size": WIDTH, "intermediate_size": FFN, "num_hidden_layers": N_LAYERS, "layer_types": types}
    _write_config(wide, source.config | changed)
    _write_config(fitting, open_checkpoint(draft).config | {"target_hidden_size": WIDTH})
    return wide, fitting


def _write_config(folder: Path, config: dict[str, Any]) -> None:
    (folder / "config.json").write_text(json.dumps(config, indent=2), "utf-8")


def _target(source: Checkpoint) -> Iterator[Tensor]:
    n_layers = source.config["num_hidden_layers"]
    for name in source.names():
        if name == "mtp.fc.weight":
            yield _wider_fc(name, source)
            continue
        yield _padded(name, source, keep=True)
        layer = name.split(".")[2] if name.startswith("model.layers.") else None
        for copy in range(int(layer) + n_layers, N_LAYERS, n_layers) if layer is not None else ():
            yield _padded(name, source, keep=False, named=name.replace(f".layers.{layer}.", f".layers.{copy}."))


def _padded(name: str, source: Checkpoint, *, keep: bool, named: str = "") -> Tensor:
    """Return the tensor in its wider shape; without `keep` only zeros, which make a block that adds nothing."""
    old, ffn = source.config["hidden_size"], source.config["intermediate_size"]
    values = source.read_f32(name)
    wider = {old: WIDTH} | ({ffn: FFN} if ".mlp." in name else {})
    axes = [axis for axis, size in enumerate(values.shape) if size in wider and _is_padded(name, axis)]
    shape = tuple(wider[size] if axis in axes else size for axis, size in enumerate(values.shape))
    if values.ndim == 1 and axes:
        return Tensor(named or name, shape, _norm_rows(values, keep), "F32")

    def rows(low: int, high: int) -> NDArray[np.float32]:
        out = np.zeros((high - low, *shape[1:]), np.float32)
        part = values[low:high] if keep else values[:0]
        out[tuple(slice(size) for size in part.shape)] = part
        return out

    return Tensor(named or name, shape, rows)


def _wider_fc(name: str, source: Checkpoint) -> Tensor:
    """Return [H, A * H] of an MTP head, which maps its embedding and its hidden state to its block."""
    fc = source.read_f32(name)
    out = np.zeros((WIDTH, fc.shape[1] // len(fc) * WIDTH), np.float32)
    out[: len(fc)] = _wider_features(fc, len(fc))
    return Tensor(name, out.shape, lambda low, high: out[low:high])


def _norm_rows(values: NDArray[np.float32], keep: bool) -> Rows:
    """Return the weights of a norm, stored minus one, that multiply new dimensions by zero."""
    out = np.full(WIDTH, -1, np.float32)
    if keep:
        out[: values.size] = (1 + values) * (values.size / WIDTH) ** 0.5 - 1
    return lambda low, high: out[low:high]


def _is_padded(name: str, axis: int) -> bool:
    """Return True if an axis has the model's width, or the MLP's."""
    if name.endswith(("o_proj.weight", "out_proj.weight")):
        return axis == 0
    if ".mlp." in name:
        return True
    if name.endswith("proj.weight") or "in_proj_" in name or "embed_tokens" in name:
        return axis == 1
    of_head = name.startswith(("mtp.norm.", "mtp.pre_fc_norm_"))
    return of_head or name.endswith(("layernorm.weight", "model.norm.weight"))


def _rows(values: NDArray[Any], low: int, high: int) -> NDArray[Any]:
    return values[low:high]


def _draft(source: Checkpoint, target: Checkpoint) -> Iterator[Tensor]:
    for name in source.names():
        kind, values = source.info(name).dtype, source.read(name)
        if name == "fc.weight":
            values = _wider_features(source.read_f32(name), target.config["hidden_size"])
        elif kind == "BF16":
            values = source.read_f32(name)
        yield Tensor(name, values.shape, partial(_rows, values), kind)
    embedding = target.read_f32("model.embed_tokens.weight")
    yield Tensor("embed_tokens.weight", embedding.shape, lambda low, high: embedding[low:high])


def _wider_features(fc: NDArray[np.float32], width: int) -> NDArray[np.float32]:
    """Widen [H, A * width] to [H, A * WIDTH]: new dimensions of each feature have no weight."""
    parts = fc.reshape(len(fc), -1, width)
    out = np.zeros((len(fc), parts.shape[1], WIDTH), np.float32)
    out[:, :, :width] = parts
    return out.reshape(len(fc), -1)
