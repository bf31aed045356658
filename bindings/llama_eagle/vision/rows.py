"""What a row is: for sessions, for the trainer and for their tests, one definition.

A text with images is a sequence of rows. A token is one row; an image of height x width patches, after the encoder's
merging, is height * width rows, line by line, and nothing else: what frames it are tokens.

- A target reads in a token's row its embedding, in an image's row what the encoder made of that patch: [T], behind it
  channels that later blocks add (deepstack), if any.
- A draft reads in row i the target's features of row i, captured after those channels were added, and the input of row
  i + 1: that embedding, or the first T numbers of that image row.
- With M-RoPE a row stands at (time, height, width). Text goes on by one in all three. An image's rows share one time
  and count lines and columns from there; the row after it stands max(height, width) later in all three.
- A draft whose file has M-RoPE sections stands where the target stands; another one's row stands at its own number.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

N_PARTS = 3  # of a position: time, height, width


def image_positions(height: int, width: int) -> NDArray[np.int32]:
    """[N_PARTS, height * width], from the position of the image's first row."""
    lines, columns = np.divmod(np.arange(height * width, dtype=np.int32), np.int32(width))
    return np.stack([np.zeros_like(lines), lines, columns])


def n_positions(height: int, width: int) -> int:
    """How far after an image's first row the row behind the image stands."""
    return max(height, width)


def text_positions(is_image: NDArray[np.bool_], grids: Sequence[tuple[int, int]]) -> NDArray[np.int32]:
    """[n, N_PARTS], where the rows of a text stand. is_image: [n]. grids: height and width of its images, in turn."""
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
    """An image's rows. `values`: pointer to float32 [n, width], valid as long as their encoder encodes nothing else.
    positions: [N_PARTS, n] int32. n_positions: as above."""

    values: Any
    n: int
    width: int
    positions: NDArray[np.int32]
    n_positions: int

    @property
    def positions_pointer(self) -> Any:
        return self.positions.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))

    def as_array(self) -> NDArray[np.float32]:
        """View [n, width]."""
        return np.ctypeslib.as_array(self.values, shape=(self.n, self.width))
