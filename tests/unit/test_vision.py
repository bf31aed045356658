"""Pictures among tokens, and where rows stand: without a model."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from fixtures.vision_files import png
from llama_eagle.errors import InputError, UsageError
from llama_eagle.vision.encoder import Frame
from llama_eagle.vision.in_text import PicturesInText, cut_before, with_markers
from llama_eagle.vision.pictures import Picture, Sources, fetch, open_picture
from llama_eagle.vision.rows import EmbeddedRows, image_positions, n_positions


class Encoder:
    """Frames a picture by 900 before and 901 behind; a row for each 32 x 32 pixels."""

    def frame(self, picture: Picture) -> Frame:
        return Frame((900,), picture.height // 32, picture.width // 32, (901,))

    def encode(self, picture: Picture) -> EmbeddedRows:
        return rows(picture.height // 32, picture.width // 32)


def rows(height: int, width: int) -> EmbeddedRows:
    values = (ctypes.c_float * (height * width * 2))()
    return EmbeddedRows(values, height * width, 2, image_positions(height, width), n_positions(height, width))


def table() -> PicturesInText:
    encoder: Any = Encoder()
    return PicturesInText(encoder)


def encode(text: str, is_first: bool) -> list[int]:
    return [0] * is_first + [ord(letter) for letter in text]


def test_pictures_stand_in_texts_as_negative_ids() -> None:
    pictures = table()
    a, b = (pictures.open(png(seed), f"{seed}") for seed in (1, 2))
    ids = pictures.insert("x<__media__>y<__media__>", [a, b], encode)
    assert ids == [0, ord("x"), 900, *[-2] * 6, 901, ord("y"), 900, *[-3] * 6, 901]
    assert pictures.insert(with_markers("z", 1), [pictures.open(png(2), "again")], encode)[2:8] == [-3] * 6
    assert pictures.open(png(1), "another name") is a  # and is not decoded again
    assert pictures.n_encoded == 0
    assert pictures.rows(-2).n == 6
    with pytest.raises(UsageError, match="1 markers <__media__> for 2 pictures"):
        pictures.insert("<__media__>", [a, b], encode)


def test_pictures_that_no_text_holds_are_forgotten() -> None:
    pictures = table()
    first, second = (pictures.ids(pictures.open(png(seed), f"{seed}")) for seed in (1, 2))
    pictures.keep(first, [5])
    pictures.rows(-2)
    with pytest.raises(InputError, match="Send it again"):
        pictures.rows(-3)
    assert pictures.ids(pictures.open(png(2), "2")) == second  # its id stays
    assert pictures.rows(-3).n == 6


def test_texts_of_another_table() -> None:
    one, other = table(), table()
    text = np.array(one.ids(one.open(png(1), "1")), np.intc)
    other.ids(other.open(png(2), "2"))
    adopted = other.adopt(text, one.describe(text))
    assert adopted.tolist() == [900, *[-3] * 6, 901]
    assert other.ids(other.open(png(1), "1")) == adopted.tolist()


def test_texts_are_cut_before_pictures() -> None:
    pictures = table()
    image = pictures.ids(pictures.open(png(1), ""))[1:-1]
    text = [7, 8, *image, *image, 9]  # the same picture twice, nothing in between
    expected = [0, 1, *[2] * 6, *[8] * 6, 14, 15]
    assert [cut_before(text, n, pictures) for n in range(len(text) + 1)] == expected
    assert [cut_before(text, n, None) for n in (3, 9)] == [3, 9]


@pytest.mark.parametrize("url", ["http://h/a.png", "https://h/a.png", "/etc/passwd", "file:///a.png", "a.png", "x:y"])
def test_addresses_are_refused_unless_allowed(url: str) -> None:
    with pytest.raises(UsageError):
        fetch(url, Sources(), "image 1")


def test_size_and_turn() -> None:
    assert (open_picture(png(1, 64, 32), "").width, open_picture(png(1, 64, 32), "").height) == (64, 32)
    assert len(open_picture(png(1, 64, 32), "").pixels()) == 64 * 32 * 3
