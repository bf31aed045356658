"""Description of a GGUF file: its keys and tensors."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gguf import LlamaFileType

from llama_eagle import console
from llama_eagle.gguf.header import VALUE_TYPE_NAMES, ArrayRef, Header, read_model
from llama_eagle.gguf.validate import check_files
from llama_eagle.gguf.validate.keys import kind_of

SHORT_ARRAY = 128  # elements shown without --full
WIDTH, NAME_WIDTH = 110, 44  # widths of the table and its first column
MIN_WIDTH = 24  # width of the second column
LONG_NAME = 60  # characters
GUESSED = 1024  # flag of a file type that its producer has guessed


def describe(path: Path | str, *, full: bool = False) -> dict[str, Any]:
    """Return architecture, keys and tensors of a file and its splits. Raises `InputError`.

    Long arrays are returned as `{"array": type, "length": n}` unless `full`. Shapes are in ggml order, fastest
    dimension first.
    """
    first, files = read_model(path)
    return {
        "path": str(first.path),
        "architecture": first.architecture,
        "version": first.version,
        "findings": [asdict(finding) for finding in check_files(files)],
        "file_type": file_type(files),
        "n_weights": sum(tensor.n_elements for file in files for tensor in file.tensors.values()),
        "n_bytes": sum(file.file_size for file in files),
        "keys": {name: _value(first, name, full) for name in first.keys},
        "key_types": {name: kind_of(first, name) for name in first.keys},
        "tensors": [
            {"name": tensor.name, "shape": list(tensor.shape), "type": tensor.type_name, "n_bytes": tensor.n_bytes}
            for file in files
            for tensor in file.tensors.values()
        ],
    }


def file_type(files: list[Header]) -> str:
    """Return the name of a model's type, such as Q4_K_M, or the type of most weights if the file states none."""
    stated = files[0].keys.get("general.file_type")
    names = {int(kind): kind.name.partition("_")[2] for kind in LlamaFileType}
    if isinstance(stated, int) and names.get(stated & ~GUESSED):
        return names[stated & ~GUESSED]
    sizes: Counter[str] = Counter()
    for tensor in (tensor for file in files for tensor in file.tensors.values()):
        sizes[tensor.type_name] += tensor.n_elements
    return max(sizes, key=sizes.__getitem__, default="no type")


def render(description: dict[str, Any], width: int = WIDTH) -> str:
    """Format the description as a table for people, with values truncated to `width` columns."""
    tensors = description["tensors"]
    lines = [
        f"{description['path']}: {description['architecture'] or 'no architecture'}, {description['file_type']}, "
        f"{_count(description['n_weights'])} weights in {len(tensors)} tensors, "
        f"{console.size(description['n_bytes'])}, GGUF version {description['version']}",
        "",
    ]
    lines += [_line(name, _shown(value), width) for name, value in description["keys"].items()]
    lines.append("")
    lines += [f"{_first(tensor['name'])} {tensor['type']:<8} {tensor['shape']}" for tensor in tensors]
    return "\n".join(lines)


def _count(n: int) -> str:
    """Format a number of weights, such as 4.02 B."""
    return next((f"{n / size:.3g} {unit}" for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "K")) if n >= size), str(n))


def _value(header: Header, name: str, full: bool) -> Any:
    value = header.keys[name]
    if isinstance(value, ArrayRef) and value.count > SHORT_ARRAY and not full:
        return {"array": VALUE_TYPE_NAMES[value.type_id], "length": value.count}
    return header.value(name)


def _line(name: str, value: str, width: int) -> str:
    first = _first(name)
    return f"{first} {_short(value, max(width - len(first) - 1, MIN_WIDTH))}"


def _first(name: str) -> str:
    return f"  {_short(name, LONG_NAME):<{NAME_WIDTH}}"


def _shown(value: Any) -> str:
    return f"{value['length']} x {value['array']}" if isinstance(value, dict) else str(value)


def _short(text: str, n_most: int) -> str:
    line = " ".join(text.split())  # names in a file may contain line breaks
    return line if len(line) <= n_most else line[: n_most - 1] + "…"
