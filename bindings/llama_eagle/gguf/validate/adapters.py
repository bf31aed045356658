"""Checks of LoRA adapters and control vectors against their model.

Source of the rules: llama.cpp's src/llama-adapter.cpp, the products in src/llama-graph.cpp (build_lora_mm,
build_lora_mm_id, build_inp_embd) and common_control_vector_load_one in common/common.cpp.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from llama_eagle.errors import IncompatibleModels, InputError
from llama_eagle.gguf.header import Header, TensorInfo, read_header
from llama_eagle.gguf.validate import check_general
from llama_eagle.gguf.validate.keys import check_keys
from llama_eagle.gguf.validate.table import F32, Key, is_weight_type

EMBEDDING, HEAD = "token_embd.weight", "output.weight"
ACTIVATED = "adapter.alora.invocation_tokens"
REMEDY = "Convert it with llama-eagle convert ADAPTER --target MODEL.gguf, or merge it into its model (--merge)"
NVFP4 = 40
PARTS = (".lora_a", ".lora_b")
KEYS = (
    Key("general.architecture", "string", required=True),
    Key("general.type", "string", required=True, choices=("adapter",)),
    Key("adapter.type", "string", required=True, choices=("lora",)),
    Key("adapter.lora.alpha", "f32", -1e6, 1e6),
    Key(ACTIVATED, "u32[]"),
)


def require_adapter(path: Path | str, target: list[Header]) -> None:
    """Check that the file is a LoRA adapter of this model. target: headers of its files.

    Raises `InputError` for another kind of file, `IncompatibleModels` for an adapter of another model.
    """
    adapter = read_header(path)
    for fault in (*check_general(adapter), *check_keys(adapter, KEYS), *_check_names(adapter)):
        raise InputError(f"{path} is not a LoRA adapter in GGUF: {fault}. {REMEDY}.")
    if ACTIVATED in adapter.keys:
        raise InputError(
            f"{path} is an activated LoRA (aLoRA), which acts from its invocation tokens on; llama.cpp applies it to "
            "other tokens than peft. Use the model without it."
        )
    stored = {name: tensor for file in target for name, tensor in file.tensors.items()}
    for fault in _check_fit(adapter, target[0].architecture, stored):
        raise IncompatibleModels(f"{path} does not fit {target[0].path}: {fault}. Use the adapter of this model.")


def require_control_vector(path: Path | str, target: Header) -> None:
    """Check that the file contains directions for this model's layers. Raises `InputError` or `IncompatibleModels`."""
    vector = read_header(path)
    width, n_layer = (int(target.arch_key(name) or 0) for name in ("embedding_length", "block_count"))
    if not vector.tensors:
        raise InputError(f"{path} is not a control vector: it contains no tensors. Use another file.")
    for name, tensor in vector.tensors.items():
        kind, _, layer = name.partition(".")
        if kind != "direction" or not layer.isascii() or not layer.isdecimal() or tensor.type_id != F32:
            raise InputError(
                f"{path} is not a control vector: it contains {name} ({tensor.type_name}). Use another file."
            )
        if not 1 <= int(layer) < n_layer or tensor.shape[0] != width or tensor.n_elements != width:
            raise IncompatibleModels(
                f"{path} does not fit {target.path}: {name} has shape {list(tensor.shape)}, expected {width} values "
                f"for a layer of 1 to {n_layer - 1}. Use the control vector of this model."
            )


def _check_names(adapter: Header) -> Iterator[str]:
    pairs = 0
    for name, tensor in adapter.tensors.items():
        base, part = name[:-7], name[-7:]
        if part not in PARTS:
            skipped = ", and llama.cpp skips it" if name.endswith("_norm.weight") else ""
            yield f"the tensor {name} ends in neither .lora_a nor .lora_b{skipped}"
        elif any(base + other not in adapter.tensors for other in PARTS):
            yield f"the pair of {name} is missing"
        elif not is_weight_type(tensor.type_id):
            yield f"the tensor {name} is {tensor.type_name}, which is not a type for weights"
        pairs += 1
    if not pairs:
        yield "it contains no tensors"


def _check_fit(adapter: Header, architecture: str, stored: Mapping[str, TensorInfo]) -> Iterator[str]:
    if adapter.architecture != architecture:
        yield f"it is for a {adapter.architecture} model, this is {architecture}"
        return
    for name, a in adapter.tensors.items():
        base = name.removesuffix(".lora_a")
        if base == name:
            continue
        if base not in stored:
            yield f"the model has no tensor {base}"
        elif base == EMBEDDING and HEAD not in stored:
            yield f"it changes {EMBEDDING}, which is also this model's output matrix: llama.cpp cannot apply that"
        elif stored[base].type_id == NVFP4:
            yield f"{base} is NVFP4, to which llama.cpp applies no adapter"
        else:
            yield from _check_shapes(base, _four(a), _four(adapter.tensors[f"{base}.lora_b"]), _four(stored[base]))


def _check_shapes(base: str, a: tuple[int, ...], b: tuple[int, ...], weight: tuple[int, ...]) -> Iterator[str]:
    """Check that the products b(a x) have the shape of the model's own. For embeddings, rows of a are looked up."""
    rank = b[0]
    wanted_a = (rank, weight[1]) if base == EMBEDDING else (weight[0], rank)
    wanted_b = (rank, weight[0]) if base == EMBEDDING else (rank, weight[1])
    for part, found, wanted in (("a", a, wanted_a), ("b", b, wanted_b)):
        if found != (*wanted, *weight[2:]):
            expected = [*wanted, *(n for n in weight[2:] if n > 1)]
            yield f"{base}.lora_{part} has shape {[n for n in found if n > 1]}, expected {expected} (ggml order)"


def _four(tensor: TensorInfo) -> tuple[int, ...]:
    return (*tensor.shape, *[1] * (4 - len(tensor.shape)))
