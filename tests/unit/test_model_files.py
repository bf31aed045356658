"""Files of the served model: what counts as a change of them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from llama_eagle.serving.model_files import ModelFiles

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="mapped files cannot be overwritten there")


def test_an_overwritten_file_is_a_change_until_it_is_as_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.gguf"
    contents = bytes(range(256)) * 64
    path.write_bytes(contents)
    files = ModelFiles([path])
    os.utime(path, (1, 1))
    assert files.change() == ""
    for other in (contents[:-1], contents[:4096] + b"x" * 4096 + contents[8192:], b""):
        path.write_bytes(other)
        assert (
            files.change()
            == files.change()
            == f"the model file {path} was overwritten while this server ran: " + ("start the server again")
        )
        path.write_bytes(contents)
        os.utime(path, (2, 2))
        assert files.change() == ""
    assert capsys.readouterr().err.count("(requests get 503)") == 3


def test_a_file_in_its_place_is_a_change_if_it_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"a" * 99999)
    mapped, again = ModelFiles([path]), ModelFiles([path], are_read_again=True)
    (tmp_path / "new").write_bytes(b"b" * 99999)
    (tmp_path / "new").replace(path)
    assert mapped.change() == "" and "was replaced or overwritten" in again.change()
    path.unlink()
    assert mapped.change() == "" and "was replaced or overwritten" in again.change()
    path.write_bytes(b"a" * 99999)
    assert again.change() == ""
