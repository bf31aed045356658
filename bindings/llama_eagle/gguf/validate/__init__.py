"""Consistency checks of a GGUF file before llama.cpp reads it, which aborts on many of the faults refused here.

Every key must have the type that llama.cpp requires and a value in range, every tensor the shape given by the keys and
a type that the graph supports. For architectures without a table here, only the common rules are checked. No tensor
data is read except the draft's vocabulary map.

Source of the tables: llama.cpp's src/llama-model.cpp and src/models. The converter's tables define what it writes;
these define what can be read, from any writer.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from llama_eagle.errors import InputError
from llama_eagle.gguf.finding import Finding
from llama_eagle.gguf.header import Header, TensorInfo, read_model
from llama_eagle.gguf.names import ASSISTANT, DRAFT_KINDS
from llama_eagle.gguf.validate.assistant import check_assistant
from llama_eagle.gguf.validate.dflash import check_dflash
from llama_eagle.gguf.validate.eagle3 import check_draft
from llama_eagle.gguf.validate.families import FAMILIES
from llama_eagle.gguf.validate.keys import COMMON, GENERAL, check_keys, kind_of
from llama_eagle.gguf.validate.targets import check_target, unknown_tensors
from llama_eagle.gguf.validate.tokenizer import check_tokenizer

ALIGNMENT = 32  # of tensor data in memory, which is that of the file
WITHOUT_TEXT = ("none", "no_vocab")  # kinds of tokenizers for which llama.cpp asserts at every text
OTHER_KINDS = {"clip", "adapter", "imatrix", "mmproj"}  # architectures and types of files without a complete model


def read_sound(path: Path | str) -> tuple[Header, list[Header]]:
    """Read the headers as `read_model`. Raises `InputError` with the first fault of the file."""
    first, files = read_model(path)
    for finding in check_files(files):
        if finding.level == "error":
            raise InputError(f"{first.path}: {finding.message}. {finding.remedy}")
    return first, files


def require_vocabulary(files: list[Header]) -> None:
    """Check that the files contain a tokenizer that llama.cpp can load by itself. Raises `InputError`."""
    first = files[0]
    faults = [fault for file in files for fault in check_general(file)]
    prefix = f"{first.architecture}."
    if not first.n_vocab or first.keys.get("tokenizer.ggml.model") in WITHOUT_TEXT:
        faults.append("no tokenizer (tokenizer.ggml.tokens)")
    for fault in faults or [*check_keys(first, COMMON, prefix=prefix), *check_tokenizer(first)]:
        raise InputError(f"{first.path}: {fault}. {_remedy(first)}")


def check_files(files: list[Header], *, with_tokenizer: bool = True) -> Iterator[Finding]:
    """Yield all faults of a model, and remarkable facts. files: as returned by `read_model`.

    with_tokenizer: check every token too, which takes most of the time.
    """
    first = files[0]
    tensors = {name: tensor for file in files for name, tensor in file.tensors.items()}
    errors = [fault for file in files for fault in check_general(file)]
    is_model = not OTHER_KINDS & {first.architecture, first.keys.get("general.type")}
    if not errors and first.architecture in DRAFT_KINDS and len(files) > 1:
        kind = DRAFT_KINDS[first.architecture]
        errors.append(f"it is {kind} in {len(files)} files, which have to be one (llama-gguf-split --merge)")
    if not errors and is_model:
        errors += _check_model(first, tensors, with_tokenizer)
    yield from (Finding("error", error, str(first.path), _remedy(first)) for error in errors)
    if not errors and is_model and first.architecture in FAMILIES:
        unknown = unknown_tensors(first, tensors)
        if unknown:
            names = ", ".join(unknown[:3]) + (" ..." if len(unknown) > 3 else "")
            yield Finding(
                "warning",
                f"{len(unknown)} tensors are unknown for {first.architecture}, llama.cpp may refuse the file: {names}",
                str(first.path),
            )


def _remedy(first: Header) -> str:
    """Return the advice for a file with a fault.

    `mlx_lm.fuse --export-gguf` gives every model a tokenizer of SentencePiece's kind, with unsigned types of tokens
    (mlx-lm 0.32.2, mlx_lm/gguf.py), also when the file is made again.
    """
    types = "tokenizer.ggml.token_type"
    if first.architecture == "llama" and types in first.keys and kind_of(first, types) == "u32[]":
        folder = "Convert its folder of merged safetensors instead (llama-eagle convert FOLDER -o OUT.gguf)"
        return f"mlx_lm.fuse --export-gguf writes such files. {folder}."
    return Finding.remedy


def _check_model(first: Header, tensors: dict[str, TensorInfo], with_tokenizer: bool) -> list[str]:
    prefix = f"{first.architecture}."
    errors = [*check_keys(first, COMMON, prefix=prefix), *(check_tokenizer(first) if with_tokenizer else ())]
    if not errors:
        errors += _check_experts(first)
    if not errors and first.architecture == "eagle3":
        errors += check_draft(first)
    elif not errors and first.architecture == "dflash":
        errors += check_dflash(first)
    elif not errors and first.architecture == ASSISTANT:
        errors += check_assistant(first)
    elif not errors and first.architecture in FAMILIES:
        errors += check_target(first, tensors)
    return errors


def check_general(file: Header) -> Iterator[str]:
    """Yield faults that any GGUF file may have."""
    yield from _check_layout(file)
    yield from check_keys(file, GENERAL)


def _check_layout(file: Header) -> Iterator[str]:
    """Check keys' names, and that the tensors follow each other, aligned, as llama.cpp requires it.

    Their extents were checked when the header was read.
    """
    if "" in file.keys:
        yield "a key has no name"
    alignment, expected = file.keys.get("general.alignment", ALIGNMENT), 0
    for tensor in file.tensors.values():
        if tensor.n_bytes is None:
            yield f"the tensor {tensor.name} is {tensor.type_name}, which llama.cpp does not know"
            return
        if tensor.offset != expected:
            yield f"the tensor {tensor.name} is at byte {tensor.offset} of the data, expected {expected}"
            return
        if (file.data_offset + tensor.offset) % ALIGNMENT:
            yield f"the tensor {tensor.name} is not aligned to {ALIGNMENT} bytes (general.alignment)"
            return
        expected += -(-tensor.n_bytes // alignment) * alignment


def _check_experts(header: Header) -> Iterator[str]:
    """Check llama.cpp's assertions about experts, for all architectures."""
    n_expert = header.arch_key("expert_count", 0)
    used = header.arch_key("expert_used_count", 0)
    n_used = max(used, default=0) if isinstance(used, list) else used
    groups, groups_used = (header.arch_key(f"expert_group_{name}", 0) for name in ("count", "used_count"))
    if header.architecture.startswith("hunyuan") and n_expert <= 1:
        return
    if n_used > n_expert or (n_expert and not n_used):
        yield f"{n_used} of {n_expert} experts are used (expert_count, expert_used_count)"
    if groups and (groups >= n_expert or n_expert % groups or (groups > 1 and not 0 < groups_used < groups)):
        yield f"{groups_used} of {groups} groups of {n_expert} experts (expert_group_count, expert_group_used_count)"
