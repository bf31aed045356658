"""A checkpoint's folder as names and bytes, changed so that it stays one: configurations, headers, tensors, shards."""

from __future__ import annotations

import json
import math
import random
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

Files = dict[str, bytes]
Mutation = Callable[[Files, random.Random], None]

JUNK: list[Any] = [
    None, True, False, 0, -1, 1, 3, 2**31, 2**64, 10**400, 0.5, -0.0, 1e308, math.nan, math.inf, "", "x", "../x",
    [], [[]], {}, [1, 3, 4], [1, 1, 1], [-1, 2, 3], ["a"], [1.5], [2**70], {"a": 1}, "\ud800", "\n\n", list(range(500)),
]  # fmt: skip
EXTRA_KEYS = (
    "logit_scale", "norm_output", "fc_norm", "head_dim", "rope_parameters", "rope_scaling", "eagle_config",
    "architectures", "target_hidden_size", "transformer_layer_config", "num_experts", "layer_types", "text_config",
    "vision_config", "quantization_config", "num_nextn_predict_layers", "auto_map", "sliding_window", "model_type",
)  # fmt: skip
TENSOR_NAMES = ("lm_head.weight", "x", "", "fc.weight", "layers.7.a", "a" * 5000, "model.layers.99.mlp.up_proj.weight",
                "mtp.layers.1.input_layernorm.weight", "model.visual.blocks.9.attn.qkv.weight")  # fmt: skip
DTYPES = ("F32", "F16", "BF16", "F64", "I64", "I8", "BOOL", "F8_E4M3", "F4", "x")
SIZES = (0, 1, 7, 2**24, 2**31, 2**53, 2**63, 2**64 - 1)
GOALS = ("../x", "/etc/passwd", "", ".", "model.safetensors", "model-00001-of-00002.safetensors", None, 7)
INVENTED = ("pytorch_model.bin", "d2t.npy", "t2d.pt", "d2t.pt", "model-00001-of-00002.safetensors", "tokenizer.model",
            "generation_config.json", "chat_template.jinja", "model.safetensors.index.json")  # fmt: skip


def read(folder: Path) -> Files:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def write(files: Files, folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def mutated(files: Files, rng: random.Random) -> Files:
    changed = dict(files)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        rng.choice(MUTATIONS)(changed, rng)
    return changed


def some_name(files: Files, rng: random.Random, suffix: str) -> str | None:
    return rng.choice(sorted(name for name in files if name.endswith(suffix)) or [None])


def near(value: Any, rng: random.Random) -> Any:
    """Another value: of the same kind and size, or of none."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    if rng.random() < 0.4 or not number:
        return rng.choice(JUNK)
    return rng.choice([value + 1, value - 1, value * 2, value // 2, -value, float(value), str(value), [value]])


def change_value(value: Any, rng: random.Random) -> Any:
    """The document with one value, at any depth, changed, taken out, doubled or moved."""
    if not isinstance(value, dict | list) or not value or rng.random() < 0.1:
        return near(value, rng)
    changed = value.copy()
    at = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
    kind = rng.random()
    if kind < 0.15:
        del changed[at]
    elif kind < 0.25:
        other = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
        changed[at] = value[other]
    else:
        changed[at] = change_value(value[at], rng)
    return changed


def change_json(files: Files, rng: random.Random) -> None:
    name = "config.json" if rng.random() < 0.6 else some_name(files, rng, ".json")
    try:
        document = json.loads(files[name or ""])
    except (KeyError, ValueError):
        return  # damaged by an earlier mutation
    if isinstance(document, dict) and rng.random() < 0.2:
        document[rng.choice(EXTRA_KEYS)] = rng.choice(JUNK)
    else:
        document = change_value(document, rng)
    files[name or ""] = json.dumps(document).encode()


def change_bytes(files: Files, rng: random.Random) -> None:
    """Flips, cuts or doubles bytes, more often near the start, where the headers are."""
    filled = [name for name in files if files[name]]
    if not filled:
        return
    name = rng.choice(filled)
    data = bytearray(files[name])
    end = len(data) if rng.random() < 0.3 else min(len(data), 4096)
    at = rng.randrange(end)
    kind = rng.randrange(4)
    if kind == 0:
        for _ in range(rng.choice([1, 1, 2, 8])):
            data[rng.randrange(end)] = rng.randrange(256)
    elif kind == 1:
        del data[at:]
    elif kind == 2:
        del data[at : at + rng.randrange(1, 64)]
    else:
        data[at:at] = data[at : at + rng.randrange(1, 64)] if rng.random() < 0.5 else bytes(rng.randrange(1, 64))
    files[name] = bytes(data)


def change_header(files: Files, rng: random.Random) -> None:
    """One tensor's place, shape, type or name in a safetensors header, or the header's own size."""
    name = some_name(files, rng, ".safetensors")
    data = files.get(name or "", b"")
    try:
        (n,) = struct.unpack_from("<Q", data)
        header = json.loads(data[8 : 8 + n])
        change_entry(header, rng.choice(sorted(header)), rng)
        text = json.dumps(header).encode()
    except (ValueError, KeyError, IndexError, struct.error, TypeError):
        return  # damaged by an earlier mutation
    size = rng.choice([*SIZES, len(text) + 1, len(text) - 1]) if rng.random() < 0.1 else len(text)
    files[name or ""] = struct.pack("<Q", size) + text + data[8 + n :]


def change_entry(header: dict[str, Any], name: str, rng: random.Random) -> None:
    entry = header[name]
    kind = rng.randrange(6)
    if kind == 0:
        header[rng.choice(TENSOR_NAMES)] = header.pop(name)
    elif kind == 1:
        header[name] = change_value(entry, rng)
    elif kind == 2:
        entry["dtype"] = rng.choice(DTYPES)
    elif kind == 3:
        shape = entry["shape"]
        entry["shape"] = rng.choice([shape[::-1], [*shape, 1], shape[1:], [math.prod(shape)], [*shape[:-1], 0]])
    elif kind == 4:
        at = rng.randrange(2)
        entry["data_offsets"][at] = rng.choice([*SIZES, entry["data_offsets"][at] + rng.choice([-4, -1, 1, 2, 64])])
    else:
        entry["data_offsets"] = header[rng.choice(sorted(header))]["data_offsets"]


def change_tensor(files: Files, rng: random.Random) -> None:
    """Removes, renames, reshapes, retypes, poisons or adds a tensor; the file stays sound."""
    from safetensors.torch import load, save

    file = some_name(files, rng, ".safetensors") or ""
    try:
        tensors = load(files[file])
    except Exception:
        return  # damaged by an earlier mutation
    if tensors:
        change_one(tensors, rng.choice(sorted(tensors)), rng)
        files[file] = save({name: tensor.contiguous() for name, tensor in tensors.items()})


def change_one(tensors: dict[str, torch.Tensor], name: str, rng: random.Random) -> None:
    tensor = tensors[name]
    kind = rng.randrange(7)
    if kind == 0:
        del tensors[name]
    elif kind == 1:
        names = ("extra.weight", "model." + name, "d2t", "t2d", "midlayer.mlp.experts.0.w", name + "_scale_inv")
        tensors[rng.choice(names)] = tensor.clone()
    elif kind == 2:
        tensors[name] = tensor.reshape(-1)[: max(0, tensor.numel() - rng.randrange(1, 5))].clone()
    elif kind == 3:
        types = [torch.int64, torch.float64, torch.float16, torch.bool, torch.float8_e4m3fn]
        tensors[name] = tensor.to(rng.choice(types))
    elif kind == 4 and tensor.is_floating_point() and tensor.numel():
        tensor.view(-1)[rng.randrange(tensor.numel())] = rng.choice([math.nan, math.inf, -math.inf])
    elif kind == 5 and not tensor.is_floating_point() and tensor.numel():
        tensor.view(-1)[rng.randrange(tensor.numel())] = rng.choice([0, 1, -1, 40, 10**6, 2**31 - 1])
    else:
        tensors[name] = tensor.unsqueeze(0) if rng.random() < 0.5 else torch.cat([tensor, tensor])


def change_folder(files: Files, rng: random.Random) -> None:
    """Missing, empty, swapped and invented files."""
    if not files:
        return
    name, other = rng.choice(sorted(files)), rng.choice(sorted(files))
    kind = rng.randrange(4)
    if kind == 0:
        del files[name]
    elif kind == 1:
        files[name] = b""
    elif kind == 2:
        files[name] = files[other]
    else:
        files[rng.choice(INVENTED)] = files[name]


def change_index(files: Files, rng: random.Random) -> None:
    """An index that names other files, or shards that were exchanged."""
    shards = sorted(name for name in files if "-of-" in name)
    if len(shards) > 1 and rng.random() < 0.3:
        first, second = shards[:2]
        files[first], files[second] = files[second], files[first]
        return
    goal = rng.choice(GOALS)
    index = rng.choice([{"weight_map": {"fc.weight": goal}}, {"weight_map": goal}, [], {"weight_map": {}}])
    if "model.safetensors" in files and rng.random() < 0.5:
        files["model-00001-of-00002.safetensors"] = files.pop("model.safetensors")
    files["model.safetensors.index.json"] = json.dumps(index).encode()


MUTATIONS: tuple[Mutation, ...] = (
    change_json, change_json, change_json, change_bytes, change_header, change_header, change_tensor, change_tensor,
    change_folder, change_index,
)  # fmt: skip
