"""llama.cpp's loader logs the beginning of each array of a file, whatever its length."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path

import gguf
import pytest
from fixtures.tiny_gguf import finish
from llama_eagle.errors import InputError
from llama_eagle.native import log
from llama_eagle.sessions.models import Model

pytestmark = pytest.mark.native
TEXT = ["a", 'a "quoted" text', "back\\slash", "", "é"]
VALUES = {
    "i32": (gguf.GGUFValueType.INT32, [-7, 0, 2**31 - 1], str),
    "f32": (gguf.GGUFValueType.FLOAT32, [0.5, -1000.0, 1e-7, float("inf")], "{:f}".format),
    "u8": (gguf.GGUFValueType.UINT8, [1, 255], str),
    "str": (gguf.GGUFValueType.STRING, TEXT, lambda text: json.dumps(text, ensure_ascii=False)),
}


@pytest.mark.parametrize("n", [1, 40, 41, 5000])
def test_beginnings(n: int, tmp_path: Path) -> None:
    writer, expected = gguf.GGUFWriter(tmp_path / "m.gguf", "llama"), {}
    for name, (kind, some, shown) in VALUES.items():
        values = [some[i % len(some)] for i in range(n)]
        writer.add_key_value(f"test.{name}", values, gguf.GGUFValueType.ARRAY, sub_type=kind)
        whole = f"[{', '.join(map(shown, values))}]".encode()
        expected[name] = (whole if len(whole) <= 40 else whole[:37] + b"...").decode("utf-8", "replace")
    lines: list[str] = []
    with log.passed_to(lines.append), suppress(InputError):  # the file has no tensors
        Model(finish(writer, tmp_path / "m.gguf"))
    assert dict(re.findall(r"test\.(\w+) +arr\[\w+,\d+\] += (.*)\n", "".join(lines))) == expected
