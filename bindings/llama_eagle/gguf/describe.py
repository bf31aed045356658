"""Description of a GGUF file: its keys and tensors."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from llama_eagle import console
from llama_eagle.gguf.header import VALUE_TYPE_NAMES, ArrayRef, Header, read_model
from llama_eagle.gguf.validate import check_files
from llama_eagle.gguf.validate.keys import kind_of

SHORT_ARRAY = 128  # elements shown without --full
WIDTH, NAME_WIDTH = 110, 44  # widths of the table and its first column
MIN_WIDTH = 24  # width of the second column
LONG_NAME = 60  # characters


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
        "n_bytes": sum(file.file_size for file in files),
        "keys": {name: _value(first, name, full) for name in first.keys},
        "key_types": {name: kind_of(first, name) for name in first.keys},
        "tensors": [
            {"name": tensor.name, "shape": list(tensor.shape), "type": tensor.type_name, "n_bytes": tensor.n_bytes}
            for file in files
            for tensor in file.tensors.values()
        ],
    }


def render(description: dict[str, Any], width: int = WIDTH) -> str:
    """Format the description as a table for people, with values truncated to `width` columns."""
    tensors = description["tensors"]
    lines = [
        f"{description['path']}: {description['architecture'] or 'no architecture'}, GGUF version "
        f"{description['version']}, {len(tensors)} tensors, {console.size(description['n_bytes'])}",
        "",
    ]
    lines += [_line(name, _shown(value), width) for name, value in description["keys"].items()]
    lines.append("")
    lines += [f"{_first(tensor['name'])} {tensor['type']:<8} {tensor['shape']}" for tensor in tensors]
    return "\n".join(lines)


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
