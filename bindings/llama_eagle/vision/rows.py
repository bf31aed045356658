"""Definition of a row, for sessions, for the trainer and for their tests.

A text with images is a sequence of rows. A token is one row. An image of height x width patches, after merging by the
encoder, is height * width rows, line by line. Its frame consists of tokens.

- The target's input in a token's row is its embedding. In an image's row it is the encoder's output for that patch,
  [T], followed by channels that later blocks add (deepstack), if any.
- The draft's input in row i is the target's features of row i, captured after those channels were added, and the input
  of row i + 1: its embedding, or the first T numbers of that image row.
- With M-RoPE a row has a position (time, height, width). Text increments all three by one. An image's rows share one
  time, and count lines and columns from there. The next row follows max(height, width) later in all three.
- A draft whose file has M-RoPE sections uses the target's positions. Other drafts use the number of the row.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

N_PARTS = 3  # parts of a position: time, height, width


def image_positions(height: int, width: int) -> NDArray[np.int32]:
    """Return [N_PARTS, height * width], relative to the position of the image's first row."""
    lines, columns = np.divmod(np.arange(height * width, dtype=np.int32), np.int32(width))
    return np.stack([np.zeros_like(lines), lines, columns])


def n_positions(height: int, width: int) -> int:
    """Return the distance from an image's first row to the row after the image."""
    return max(height, width)


def text_positions(is_image: NDArray[np.bool_], grids: Sequence[tuple[int, int]]) -> NDArray[np.int32]:
    """Return [n, N_PARTS], the positions of the rows of a text.

    is_image: [n]. grids: height and width of its images, in order.
    """
    found = np.empty((len(is_image), N_PARTS), np.int32)
    images, row, position = iter(grids), 0, 0
    while row < len(found):
        height, width = next(images) if is_image[row] else (1, 1)
        end = row + height * width
        found[row:end] = position + image_positions(height, width).T
        row, position = end, position + n_positions(height, width)
    return found


@dataclass(frozen=True)
class EmbeddedRows:
    """An image's rows.

    values: pointer to float32 [n, width], valid until the encoder encodes another image. positions: [N_PARTS, n] int32.
    n_positions: as above.
    """

    values: Any
    n: int
    width: int
    positions: NDArray[np.int32]
    n_positions: int

    @property
    def positions_pointer(self) -> Any:
        return self.positions.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))

    def as_array(self) -> NDArray[np.float32]:
        """Return a view [n, width]."""
        return np.ctypeslib.as_array(self.values, shape=(self.n, self.width))
