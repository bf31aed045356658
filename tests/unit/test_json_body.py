"""JSON bodies: what is read, and the reasons for what is not."""

from __future__ import annotations

import json

import pytest
from llama_eagle.serving.api_errors import Refusal
from llama_eagle.serving.requests.json_body import MAX_DEPTH, MAX_KEYS, MAX_VALUES, read_json, read_json_body


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"a": 1}', {"a": 1}),
        (b'\xef\xbb\xbf{"a": 1}', {"a": 1}),
        (b'{"a": 1, "a": 2}', {"a": 2}),
        ('{"a": "é\\ud83d\\ude00\\u0000"}'.encode(), {"a": "é😀\0"}),
        (b'{"a": "\\\\ud800"}', {"a": "\\ud800"}),
        (b'{"a": [1.5, -0, 1e300, 1000000000000000000000000]}', {"a": [1.5, 0, 1e300, 10**24]}),
    ],
)
def test_what_is_read(data: bytes, expected: object) -> None:
    assert read_json_body(data) == expected


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "Expecting value at line 1, column 1"),
        (b"[]", "no JSON object"),
        (b"null", "no JSON object"),
        (b"prompt=a", "Expecting value"),
        (b'{"a": 1} x', "Extra data at line 1, column 10"),
        (b'{"a":\n NaN}', "NaN is no number"),
        (b'{"a": -Infinity}', "-Infinity is no number"),
        (b'{"a": 1e999}', "1e999 is no number"),
        (b'{"a": ' + b"9" * 5000 + b"}", "4300 digits"),
        (b'{"a": "\n"}', "control character"),
        (b'{"a": "\xff"}', "byte 8 is not UTF-8"),
        (b'{"a": "\xed\xa0\x80"}', "byte 8 is not UTF-8"),
        (b'{"a": "\\uD800"}', "half a character"),
        (b'{"\\udc00": 1}', "half a character"),
        ('{"a": 1}'.encode("utf-16"), "not UTF-8"),
        (b"[" * 100_000, "deeper than"),
        (json.dumps({str(i): 0 for i in range(MAX_KEYS + 1)}).encode(), "too many keys"),
        (json.dumps([{str(i): 0 for i in range(9000)}] * 5).encode(), "too many keys"),
        (b"[" + b"1," * MAX_VALUES + b"1]", f"more than {MAX_VALUES} values"),
    ],
)
def test_what_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(Refusal, match=reason) as caught:
        read_json_body(data)
    assert caught.value.status == 400 and len(str(caught.value)) < 200


def test_levels_and_keys_within_the_limits() -> None:
    def nested(n: int) -> bytes:
        return b'{"x": ' + b"[" * (n - 1) + b"]" * (n - 1) + b"}"

    assert read_json(nested(MAX_DEPTH))
    with pytest.raises(Refusal, match="deeper"):
        read_json(nested(MAX_DEPTH + 1))
    assert len(read_json_body(json.dumps({str(i): 0 for i in range(MAX_KEYS)}).encode())) == MAX_KEYS
    assert len(read_json_body(json.dumps({"x": [[{}]] * 1000}).encode())["x"]) == 1000
