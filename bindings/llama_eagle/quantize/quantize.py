"""Quantization of a GGUF with llama.cpp's own quantizer, inside the library we build."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from llama_eagle.errors import EnvironmentFailure, InputError, NativeError, UsageError
from llama_eagle.files import check_output, refuse_sources, temporary_next_to
from llama_eagle.gguf.header import Header, quant_sizes, quant_type_name, read_header
from llama_eagle.gguf.pairing import KNOWN_NON_TARGETS
from llama_eagle.gguf.validate import read_sound
from llama_eagle.gguf.validate.table import is_weight_type
from llama_eagle.native import log
from llama_eagle.native.calls import library
from llama_eagle.native.processor.threads import n_threads, read_threads
from llama_eagle.quantize.imatrix import read_imatrix
from llama_eagle.quantize.reach import about_experts, listed, require_matrix
from llama_eagle.quantize.written import about_excess, types_of

_BUFFER = 16 << 20  # bytes of rows in memory at once: the work between two writes, less than a second
# Beginning and end of the log's line about a tensor: number, number of tensors, name; its new type if it changes.
_TENSOR = re.compile(r"\[\s*(\d+)/\s*(\d+)\]\s(.+?)\s+- \[")
_TYPE = re.compile(r"size = .* -> .*\((\w+)\)")
# The log's line about a tensor whose rows do not divide into the blocks of its type, and gets another one.
_OTHER_TYPE = re.compile(r"warning: (\S+)\s+- ncols .*\(required for type\s+(\w+)\)")
# Types that llama.cpp refuses without an importance matrix, and the one that a matrix without statistics gets instead.
_NEEDS_MATRIX = {"iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs"}
# Of these, the types for which llama.cpp ends the process unless it refuses them (embeddings and output).
_ENDS_WITHOUT_MATRIX = {"iq1_s", "iq2_xxs", "iq2_xs"}
_WITHOUT_MATRIX = "q3_k"
_ALIASES = {"q3_k": "q3_k_m", "q4_k": "q4_k_m", "q5_k": "q5_k_m"}


@dataclass(frozen=True)
class QuantizeOptions:
    """Options of the quantizer.

    output_type: type of output.weight. tensor_types: pattern -> type; the pattern is a regular expression searched in
    tensor names, and the first match wins. imatrix: an importance matrix file. recipe: a name in RECIPES. threads 0:
    the default number.
    """

    output_type: str | None = None
    tensor_types: Mapping[str, str] = field(default_factory=dict)
    imatrix: Path | None = None
    recipe: str | None = None
    threads: int = 0
    requantize: bool = False  # allow quantized input; this reduces quality
    progress: Callable[[float], None] | None = None  # receives the fraction of tensors that is done


@dataclass(frozen=True)
class QuantizeReport:
    """The written file. n_bytes, n_source_bytes: file sizes in bytes.

    without_matrix: tensors without statistics in the importance matrix, which got a type that needs none.
    unused_experts: for each matrix with experts that were never chosen, their number and the number of experts.
    without_effect: patterns that gave no tensor their type. types: type name -> number of tensors in the file, in the
    order of their bytes. oversize: a sentence if the file is more than a tenth larger than its type.
    """

    output: Path
    ftype: str
    n_source_bytes: int
    n_bytes: int
    seconds: float
    without_matrix: tuple[str, ...] = ()
    unused_experts: dict[str, tuple[int, int]] = field(default_factory=dict)
    without_effect: tuple[str, ...] = ()
    types: dict[str, int] = field(default_factory=dict)
    oversize: str | None = None

    @property
    def warnings(self) -> list[str]:
        """Return what the importance matrix lacks, patterns without effect, and a surprising size, in sentences."""
        found = [self.oversize] if self.oversize else []
        found += [f"no tensor got the type that was chosen for {pattern!r}." for pattern in self.without_effect]
        if self.without_matrix:
            names = listed(self.without_matrix)
            found.append(f"the importance matrix has no statistics for {names}: written as {_WITHOUT_MATRIX} instead.")
        if self.unused_experts:
            found.append(about_experts(self.unused_experts))
        return found


def _api() -> Any:
    library()
    from llama_eagle.native import llama_cpp

    return llama_cpp


def file_types() -> dict[str, int]:
    """Return name -> llama_ftype of every type that llama.cpp's quantizer supports."""
    api = _api()
    prefix = "LLAMA_FTYPE_MOSTLY_"
    known = {name.removeprefix(prefix).lower(): getattr(api, name) for name in dir(api) if name.startswith(prefix)}
    known["f32"] = api.LLAMA_FTYPE_ALL_F32
    return {name: value for name, value in known.items() if not re.search(r"_\d_\d$|nvfp4", name)}


def check_type(ftype: str) -> int:
    """Return the llama_ftype of a name such as "q4_k_m". Raises UsageError with the known names."""
    types = file_types()
    name = _ALIASES.get(ftype.lower(), ftype.lower())
    if name not in types:
        raise UsageError(f"unknown type {ftype!r}. Choose one of {', '.join(sorted(types))}.")
    return types[name]


def _tensor_type(name: str) -> int:
    """Return the ggml_type of a name such as "q8_0". Types of integers and of a product's other operand are unknown."""
    for value in filter(is_weight_type, quant_sizes()):
        if quant_type_name(value) == name.upper():
            return value
    raise UsageError(f"unknown tensor type {name!r}. Examples: f16, bf16, q8_0, q6_k, q5_k, q4_k, q4_0, iq4_nl.")


def _overrides(options: QuantizeOptions) -> dict[str, str]:
    """Return patterns in the order they are tried: the caller's, then the recipe's."""
    from llama_eagle.quantize.recipes import recipe_types

    patterns = dict(options.tensor_types)
    if options.recipe:
        for pattern, name in recipe_types(options.recipe).items():
            patterns.setdefault(pattern, name)
    for pattern in patterns:
        _check_pattern(pattern)
    return patterns


def check_options(options: QuantizeOptions) -> None:
    """Check what needs no model: patterns, types, recipe, importance matrix. Raises `UsageError`, `InputError`."""
    for name in (*filter(None, [options.output_type]), *_overrides(options).values()):
        _tensor_type(name)
    if options.imatrix:
        read_imatrix(options.imatrix)


def _check_pattern(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise UsageError(f"{pattern!r} is not a regular expression: {error}") from None


def _first_matches(patterns: Iterable[str], shards: list[Header]) -> dict[str, str]:
    """Return the first pattern found in each tensor's name, if there is one."""
    found: dict[str, str] = {}
    for pattern in map(re.compile, patterns):
        for name in (name for shard in shards for name in shard.tensors):
            if name not in found and pattern.search(name):
                found[name] = pattern.pattern
    return found


class _Parameters:
    """llama_model_quantize_params, and the memory it points into."""

    def __init__(self, shards: list[Header], ftype: str, options: QuantizeOptions) -> None:
        self._api = api = _api()
        self.struct = api.llama_model_quantize_default_params()
        self.struct.ftype = check_type(ftype)
        self.struct.nthread = n_threads(read_threads(options.threads, "threads"))
        self.struct.allow_requantize = options.requantize
        self.struct.max_buf_size = _BUFFER
        if options.output_type:
            self.struct.output_tensor_type = _tensor_type(options.output_type)
            _check_rows(shards, self.struct.output_tensor_type)
        self._keep: list[Any] = []
        self.without_matrix: tuple[str, ...] = ()
        self.unused_experts: dict[str, tuple[int, int]] = {}
        self.patterns = _overrides(options)
        self.chosen = _first_matches(self.patterns, shards)
        types = {name: self.patterns[pattern] for name, pattern in self.chosen.items()}
        self._set_types(types)  # for the plan
        entries: dict[str, np.ndarray] = {}
        if options.imatrix:
            matrix = read_imatrix(options.imatrix)
            entries = _matching(matrix.entries, shards, options.imatrix)
            self.unused_experts = {name: n for name, n in matrix.unused_experts.items() if name in entries}
            self._set_imatrix(entries)
        planned, self.intended = _planned(shards[0].path, self)
        _check_dimensions(shards, planned)
        lacking = [*_lacking(planned, ftype.lower(), entries)]
        _require_matrix(shards[0].path, [name for name in lacking if not (entries and name.startswith("blk."))])
        self.without_matrix = tuple(lacking)
        self._set_types(types | dict.fromkeys(lacking, _WITHOUT_MATRIX))
        self.n_bytes = _n_bytes(shards, planned | dict.fromkeys(lacking, _WITHOUT_MATRIX))  # of the output, about

    def _set_types(self, chosen: Mapping[str, str]) -> None:
        """Set the types of tensors, by name. llama.cpp takes patterns, in C++'s syntax."""
        types = [(f"^{re.escape(name)}$".encode(), _tensor_type(kind)) for name, kind in chosen.items()]
        table = (self._api.llama_model_tensor_override * (len(types) + 1))()
        for row, (pattern, kind) in zip(table, types, strict=False):
            row.pattern, row.type = pattern, kind
        self._keep.append(table)
        self.struct.tt_overrides = table

    def _set_imatrix(self, entries: dict[str, np.ndarray]) -> None:
        table = (self._api.llama_model_imatrix_data * (len(entries) + 1))()
        for row, (name, values) in zip(table, entries.items(), strict=False):
            values = np.ascontiguousarray(values, dtype=np.float32)
            self._keep.append(values)
            row.name, row.size = name.encode(), values.size
            row.data = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        self._keep.append(table)
        self.struct.imatrix = table


def _lacking(planned: Mapping[str, str], ftype: str, entries: Mapping[str, object]) -> Iterator[str]:
    """Yield the tensors without statistics for which llama.cpp would choose a type that needs them.

    llama.cpp reports those of blocks one by one, each after the work on all tensors before it. For others it ends the
    process.
    """
    needs = _NEEDS_MATRIX | ({"q2_k"} if ftype == "q2_k_s" else set())
    for name, kind in planned.items():
        if name not in entries and kind in (needs if name.startswith("blk.") else _ENDS_WITHOUT_MATRIX):
            yield name


def _require_matrix(source: Path, lacking: list[str]) -> None:
    if lacking:
        raise InputError(
            f"{source}: no statistics for {listed(lacking)}, whose type needs them. Give --imatrix FILE that has them, "
            "or choose another type, such as q3_k_m."
        )


def _check_rows(shards: list[Header], output_type: int) -> None:
    """Raise `UsageError` if the output matrix does not divide into the type's blocks: llama.cpp ends the process."""
    tensors = {name: tensor for shard in shards for name, tensor in shard.tensors.items()}
    output = tensors.get("output.weight", tensors.get("token_embd.weight"))
    block = quant_sizes()[output_type][0]
    if output is not None and output.shape[0] % block:
        raise UsageError(
            f"{output.name} has rows of {output.shape[0]} elements, {quant_type_name(output_type)} has blocks of "
            f"{block}. Choose another type for --output-type, such as q8_0."
        )


def _check_dimensions(shards: list[Header], planned: Mapping[str, str]) -> None:
    """Raise `InputError` if a tensor with four dimensions would change: llama.cpp ends the process."""
    for shard in shards:
        for name, tensor in shard.tensors.items():
            if name in planned and tensor.shape[3:] > (1,):
                raise InputError(f"{shard.path}: llama.cpp cannot quantize {name} of 4 dimensions. Use it as is.")


def _planned(source: Path, parameters: _Parameters) -> tuple[dict[str, str], dict[str, str]]:
    """Return the types of the tensors that llama.cpp would change, from the log of a run without output.

    The second table has the types that it would prefer for tensors whose rows do not divide into their blocks.
    """
    planned: dict[str, str] = {}
    intended: dict[str, str] = {}
    name = ""

    def report(piece: str) -> None:
        nonlocal name
        if tensor := _TENSOR.match(piece):
            name = tensor[3]
        if kind := _TYPE.search(piece):
            planned[name] = kind[1].lower()
        if other := _OTHER_TYPE.match(piece):
            intended[other[1]] = other[2].lower()

    parameters.struct.dry_run = True
    try:
        with log.passed_to(report):
            _api().llama_model_quantize(os.fsencode(source), os.fsencode(source), ctypes.byref(parameters.struct))
    finally:
        parameters.struct.dry_run = False
    return planned, intended


def _matching(entries: dict[str, np.ndarray], shards: list[Header], path: Path) -> dict[str, np.ndarray]:
    """Return the entries for this model's tensors. Raises InputError if there are none, or a size differs."""
    tensors = {name: tensor for shard in shards for name, tensor in shard.tensors.items()}
    found = {name: values for name, values in entries.items() if name in tensors}
    if not found:
        raise InputError(f"{path}: made for another model: it contains no tensor of {shards[0].path}.")
    for name, values in found.items():
        ne = tensors[name].shape
        columns = ne[0] * (ne[2] if len(ne) == 3 else 1)
        if values.size != columns:
            raise InputError(f"{path}: {values.size} weights for {name}, but the model needs {columns}: wrong model.")
    return found


def _run(source: Path, target: Path, parameters: _Parameters, progress: Callable[[float], None] | None) -> int:
    """Run llama_model_quantize on a thread, so that Ctrl-C ends the wait.

    The native work then writes to a deleted file.
    """
    result: list[int] = []

    def work() -> None:
        call = _api().llama_model_quantize
        result.append(call(os.fsencode(source), os.fsencode(target), ctypes.byref(parameters.struct)))

    thread = threading.Thread(target=work, name="quantize", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.2)
        if progress is not None and target.is_file():
            progress(min(target.stat().st_size / parameters.n_bytes, 1.0))
    return result[0] if result else -1


def _n_bytes(shards: list[Header], types: Mapping[str, str]) -> int:
    """Return the size of a file with the tensors in bytes, those of `types` in their new type."""
    total = shards[0].data_offset
    for tensor in (tensor for shard in shards for tensor in shard.tensors.values()):
        kind = _tensor_type(types[tensor.name]) if tensor.name in types else tensor.type_id
        block, n_bytes = quant_sizes()[kind]
        total += tensor.n_elements // block * n_bytes
    return total


def _failure(source: Path, output: Path, status: int) -> Exception:
    """Build the error for a failed quantization from the log."""
    reason = log.last_error().rpartition("failed to quantize: ")[2] or f"status {status}"
    if "failed to load model" in reason:
        reason = log.first_error()  # the newest one names only the file
    if shutil.disk_usage(output.parent).free < _BUFFER:
        return EnvironmentFailure(f"no space left in {output.parent} for {output.name}")
    if "requantizing from type" in reason:
        return InputError(f"{source}: already quantized ({reason}). Use a bf16 or f16 file, or set requantize=True.")
    if any(word in reason for word in ("iostream", "bad_alloc", "failed to open")):
        return NativeError(f"{output}: quantization failed: {reason}", code=status, call="llama_model_quantize")
    return InputError(f"{source}: llama.cpp cannot quantize it: {reason.rstrip('.')}. Use another type or model.")


def quantize(
    source: str | Path, output: str | Path, ftype: str, options: QuantizeOptions | None = None
) -> QuantizeReport:
    """Write `source` (f32, f16 or bf16 GGUF; the first part of a split one) as `ftype`, such as "q4_k_m".

    Raises UsageError for unknown types, and for types that need an importance matrix if there is none, InputError for
    an unsuitable source or imatrix, EnvironmentFailure for disk errors. On failure, an existing output is unchanged and
    no new file remains.
    """
    start = time.monotonic()
    source, output = Path(source), Path(output)
    first, shards = read_sound(source)
    for kind in ("adapter", "imatrix"):
        if kind in (first.architecture, first.keys.get("general.type")):
            raise InputError(f"{source} is {KNOWN_NON_TARGETS[kind]}, not a model. Quantize the model's GGUF.")
    check_output(output)
    options = options or QuantizeOptions()
    refuse_sources(output, [*(shard.path for shard in shards), *([options.imatrix] if options.imatrix else [])])
    require_matrix(ftype, options.imatrix)
    parameters = _Parameters(shards, ftype, options)
    with temporary_next_to(output) as (temporary,):
        log.clear()
        status = _run(source, temporary, parameters, options.progress)
        if status != 0:
            raise _failure(source, output, status)
        written = read_header(temporary)
        temporary.replace(output)
    n_source = sum(shard.file_size for shard in shards)
    seconds = time.monotonic() - start
    effective = {
        pattern
        for name, pattern in parameters.chosen.items()
        if name in parameters.without_matrix  # which has a warning of its own
        or written.tensors[name].type_id == _tensor_type(parameters.patterns[pattern])
    }
    return QuantizeReport(
        output, ftype.lower(), n_source, written.file_size, seconds, parameters.without_matrix,
        parameters.unused_experts, tuple(each for each in options.tensor_types if each not in effective),
        types_of(written), about_excess(written, ftype.lower(), parameters.intended),
    )  # fmt: skip
