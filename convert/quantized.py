"""Files of the types that llama.cpp's quantizer makes: converted to a temporary file, then quantized."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from llama_eagle.convert.dtypes import FILE_TYPE
from llama_eagle.files import temporary_beside

if TYPE_CHECKING:
    from llama_eagle.quantize.quantize import QuantizeOptions, QuantizeReport

Report = TypeVar("Report")


def is_direct(outtype: str) -> bool:
    """Is this a type that the converter writes itself?"""
    return outtype == "auto" or outtype in FILE_TYPE


def write_as(
    output: Path, outtype: str, write: Callable[[Path, str], Report], options: QuantizeOptions | None = None
) -> tuple[Report, QuantizeReport | None]:
    """What `write(path, type)` returns, and what the quantizer reports if the type or `options` need it.

    write makes a file of a type that is_direct(); "auto" keeps what is stored. Raises UsageError for unknown types.
    """
    if is_direct(outtype) and options is None:
        return write(output, outtype), None
    from llama_eagle.quantize.quantize import check_type, quantize  # needs the native library

    check_type(outtype)
    with temporary_beside(output) as (middle,):
        return write(middle, "auto"), quantize(middle, output, outtype, options)
