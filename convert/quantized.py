"""Files of the types that llama.cpp's quantizer makes: converted to a temporary file, then quantized."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from llama_eagle.convert.dtypes import FILE_TYPE
from llama_eagle.files import temporary_next_to

if TYPE_CHECKING:
    from llama_eagle.quantize.quantize import QuantizeOptions, QuantizeReport

Report = TypeVar("Report")


def is_direct(outtype: str) -> bool:
    """Is this a type that the converter writes itself?"""
    return outtype == "auto" or outtype in FILE_TYPE


def largest_share(outtype: str) -> float:
    """How large a quantized file is at most, of the one that it is made of: types name their bits."""
    bits = re.search(r"\d+", outtype)
    return min(1.0, (int(bits[0]) + 1) / 16) if bits else 1.0


def write_as(
    output: Path, outtype: str, write: Callable[[Path, str, float], Report], options: QuantizeOptions | None = None
) -> tuple[Report, QuantizeReport | None]:
    """What `write(path, type, share)` returns, and what the quantizer reports if the type or `options` need it.

    write makes a file of a type that is_direct(), and sees that its disk has room for it and for `share` of it more;
    "auto" keeps what is stored. Raises UsageError for unknown types.
    """
    if is_direct(outtype) and options is None:
        return write(output, outtype, 0.0), None
    from llama_eagle.quantize.quantize import check_type, quantize  # needs the native library

    check_type(outtype)
    with temporary_next_to(output) as (middle,):
        return write(middle, "auto", largest_share(outtype)), quantize(middle, output, outtype, options)
