"""Pictures among tokens, and where rows stand: without a model."""

from __future__ import annotations

import base64
import ctypes
import socket
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from fixtures.vision_files import encoded, png
from llama_eagle.errors import EagleError, InputError, UsageError
from llama_eagle.vision import in_text, pictures
from llama_eagle.vision.encoder import Frame
from llama_eagle.vision.in_text import PicturesInText, cut_before, with_markers
from llama_eagle.vision.pictures import Picture, Sources, fetch, open_picture, read_file
from llama_eagle.vision.rows import EmbeddedRows, image_positions, n_positions
from PIL import Image


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


def test_pictures_that_no_text_holds_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = table()
    monkeypatch.setattr(in_text, "KEPT_BYTES", 0)
    first, second = (pictures.ids(pictures.open(png(seed), f"{seed}")) for seed in (1, 2))
    pictures.keep(first, [5])
    pictures.rows(-2)
    with pytest.raises(InputError, match="Send it again"):
        pictures.rows(-3)
    assert pictures.ids(pictures.open(png(2), "2")) == second  # its id stays
    assert pictures.rows(-3).n == 6


def test_the_newest_pictures_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller may hold their ids, and complete them after another text."""
    pictures, files = table(), [png(seed) for seed in (1, 2, 3)]
    for name in ("first", "second", "third", "first"):
        pictures.ids(pictures.open(files[["first", "second", "third"].index(name)], name))
    monkeypatch.setattr(in_text, "KEPT_BYTES", len(files[0]) + len(files[2]))
    pictures.keep([5])
    assert pictures.rows(-2).n == pictures.rows(-4).n == 6
    with pytest.raises(InputError, match="Send it again"):
        pictures.rows(-3)


def test_parts_of_pictures() -> None:
    pictures = table()
    image = pictures.ids(pictures.open(png(1), ""))[1:-1]
    for text in ([], [5], image, [5, *image, 6], [*image, *image], [*image, 7, *image]):
        pictures.require_whole(np.array(text, np.intc))
    for text in (image[1:], [5, *image[:2]], [*image, -2, 7], [*image[:3], 7, *image[3:]]):
        with pytest.raises(InputError, match="rows of a picture that has 6"):
            pictures.require_whole(np.array(text, np.intc))
    with pytest.raises(InputError, match="no longer available"):
        pictures.require_whole(np.array([5, -9], np.intc))


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


@pytest.mark.parametrize("prefix", ["", "file://"])
def test_files_below_an_allowed_folder(prefix: str, tmp_path: Path) -> None:
    for folder in (tmp_path / "allowed", tmp_path / "other"):
        folder.mkdir()
        (folder / "a.png").write_bytes(folder.name.encode())
    sources = Sources(tmp_path / "allowed")
    assert fetch(f"{prefix}{tmp_path / 'allowed/a.png'}", sources, "image 1") == b"allowed"
    for path in ("other/a.png", "allowed/../other/a.png"):
        with pytest.raises(UsageError):
            fetch(f"{prefix}{tmp_path / path}", sources, "image 1")


def test_the_largest_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    data = png(1, 64, 32)
    monkeypatch.setattr(pictures, "MAX_PIXELS", 64 * 32)
    assert open_picture(data, "image 1").width == 64
    monkeypatch.setattr(pictures, "MAX_PIXELS", 64 * 32 - 1)
    with pytest.raises(InputError, match="million pixels"):
        open_picture(data, "image 1")
    monkeypatch.setattr(pictures, "MAX_BYTES", 300)
    for n_bytes, is_allowed in ((300, True), (303, False)):
        url = f"data:image/png;base64,{base64.b64encode(bytes(n_bytes)).decode()}"
        if is_allowed:
            assert fetch(url, Sources(), "image 1") == bytes(n_bytes)
        else:
            with pytest.raises(InputError, match="more than 0 MiB"):
                fetch(url, Sources(), "image 1")


BODY = base64.b64encode(b"ab>?~").decode()  # with each of +, / and =
URLS = {
    "parameters": f"data:image/png;name=a.png;base64,{BODY}",
    "upper case": f"DATA:IMAGE/PNG;BASE64,{BODY}",
    "lines": f" data:image/png;base64,\r\n{BODY[:4]}\n{BODY[4:]}\n",
    "spaces": f"data:image/png; base64, {BODY} ",
    "escapes": f"data:image/png;base64,{quote(BODY, safe='')}",
    "no padding": f"data:image/png;base64,{BODY.rstrip('=')}",
    "no type": f"data:;base64,{BODY}",
}


@pytest.mark.parametrize("name", URLS)
def test_data_urls_that_browsers_read(name: str) -> None:
    assert fetch(URLS[name], Sources(), "image 1") == b"ab>?~"


@pytest.mark.parametrize("url", ["http://[h/a.png", "//[h", "file://[h/a.png", "a\0.png", "\ud800.png", "http://h:x/a"])
def test_addresses_that_are_none(url: str, tmp_path: Path) -> None:
    for sources in (Sources(), Sources(tmp_path, remote=True)):
        with pytest.raises(EagleError):
            fetch(url, sources, "image 1")


def test_answers_that_are_not_http() -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        client, _ = listener.accept()
        with client:
            client.recv(1024)
            client.sendall(b"220 mail ready\r\n")

    Thread(target=answer, daemon=True).start()
    with listener, pytest.raises(InputError, match="cannot be fetched"):
        fetch(f"http://127.0.0.1:{listener.getsockname()[1]}/a.png", Sources(remote=True), "image 1")


@pytest.mark.parametrize(("most", "is_allowed"), [(10, True), (9, False)])
def test_the_longest_answer(most: int, is_allowed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(bytes(10))

        def log_message(self, *_: object) -> None: ...

    monkeypatch.setattr(pictures, "MAX_BYTES", most)
    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        Thread(target=server.handle_request, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/a.png"
        if is_allowed:
            assert fetch(url, Sources(remote=True), "image 1") == bytes(10)
        else:
            with pytest.raises(InputError, match="Use a smaller picture"):
                fetch(url, Sources(remote=True), "image 1")


def test_files_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "MAX_BYTES", 1 << 20)
    for name in (tmp_path, tmp_path / "missing", "a\0.png", "\ud800.png", "/dev/zero"):
        with pytest.raises(InputError):
            read_file(name)


def pixel(image: Image.Image, kind: str = "PNG", **options: Any) -> tuple[int, ...]:
    return tuple(open_picture(encoded(image, kind, **options), "image 1").pixels()[:3])


def test_values_of_16_bits_are_scaled() -> None:
    values = Image.fromarray(np.full((32, 32), 0x80FF, np.uint16))
    assert pixel(values) == pixel(values, "TIFF") == (0x80,) * 3
    gray = b"P5 1 1 65535\n\x80\xff"
    assert open_picture(gray, "image 1").pixels() == bytes([0x80] * 3)
    for mode in ("I", "F"):
        with pytest.raises(InputError, match="32 bits per value"):
            pixel(Image.new(mode, (32, 32), 1), "TIFF")


def test_transparent_parts_are_white() -> None:
    """Their hidden color is usually black, as that of a text in front."""
    for mode, color in {"RGBA": (0, 0, 0, 0), "LA": (0, 0)}.items():
        assert pixel(Image.new(mode, (32, 32), color)) == (255,) * 3
    for mode in ("P", "L", "RGB"):
        image = Image.new(mode, (32, 32), 0)
        assert pixel(image, transparency=(0, 0, 0) if mode == "RGB" else 0) == (255,) * 3
        assert pixel(image) == (0,) * 3


def test_no_program_reads_pictures() -> None:
    """PIL starts Ghostscript for EPS."""
    with pytest.raises(InputError, match="unknown format"):
        open_picture(encoded(Image.new("RGB", (32, 32)), "EPS"), "image 1")


def test_size_and_turn() -> None:
    assert (open_picture(png(1, 64, 32), "").width, open_picture(png(1, 64, 32), "").height) == (64, 32)
    assert len(open_picture(png(1, 64, 32), "").pixels()) == 64 * 32 * 3
