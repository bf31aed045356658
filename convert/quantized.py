"""Output in types of llama.cpp's quantizer: conversion to a temporary file, then quantization."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from llama_eagle.convert.dtypes import FILE_TYPE
from llama_eagle.files import temporary_next_to
from llama_eagle.quantize.reach import require_matrix

if TYPE_CHECKING:
    from llama_eagle.quantize.quantize import QuantizeOptions, QuantizeReport

Report = TypeVar("Report")


def is_direct(outtype: str) -> bool:
    """Return True if the converter writes this type itself."""
    return outtype == "auto" or outtype in FILE_TYPE


def require_type(outtype: str) -> None:
    """Raise `UsageError` for a type that neither the converter nor llama.cpp's quantizer writes."""
    if not is_direct(outtype.lower()):
        from llama_eagle.quantize.quantize import check_type  # needs the native library

        check_type(outtype)


def check_quantizer(outtype: str, options: QuantizeOptions | None = None) -> None:
    """Check the type and the quantizer's options, which are used only after the conversion.

    Raises `UsageError`, and `InputError` for an importance matrix that cannot be read.
    """
    require_type(outtype)
    require_matrix(outtype, None if options is None else options.imatrix)
    if options is not None:
        from llama_eagle.quantize.quantize import check_options  # needs the native library

        check_options(options)


def largest_share(outtype: str) -> float:
    """Return an upper bound of a quantized file's size, relative to its source: names of types contain their bits."""
    bits = re.search(r"\d+", outtype)
    return min(1.0, (int(bits[0]) + 1) / 16) if bits else 1.0


def write_as(
    output: Path, outtype: str, write: Callable[[Path, str, float], Report], options: QuantizeOptions | None = None
) -> tuple[Report, QuantizeReport | None]:
    """Return the result of `write(path, type, share)`, and the quantizer's report if the type or `options` need it.

    write makes a file of a type that is_direct(), and checks that its disk has room for it and for `share` of it more.
    "auto" keeps the stored type. Raises UsageError for unknown types.
    """
    if is_direct(outtype) and options is None:
        return write(output, outtype, 0.0), None
    check_quantizer(outtype, options)
    from llama_eagle.quantize.quantize import quantize  # needs the native library

    with temporary_next_to(output) as (middle,):
        return write(middle, "auto", largest_share(outtype)), quantize(middle, output, outtype, options)
