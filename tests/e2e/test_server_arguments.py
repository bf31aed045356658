"""Arguments after `--` that llama-server cannot use: one line and exit code 2, no crash."""

from __future__ import annotations

from pathlib import Path

import pytest
from fixtures.command import llama_eagle
from fixtures.tiny_gguf import write_target

pytestmark = pytest.mark.native

REFUSED = {
    "grammar of no rules": ("--grammar", "/nonexistent", "cannot be parsed: expecting name in line 1"),
    "grammar without a root": ("--grammar", 'answer ::= "a"', "cannot be parsed"),
    "grammar file": ("--grammar-file", 'root ::= "a"\nitem ::= (', "line 2"),
    "no grammar file": ("--grammar-file", None, "failed to open"),
    "schema of no type": ("--json-schema", '{"type": "strong"}', "strong"),
    "schema of no JSON": ("--json-schema", "{", "--json-schema"),
    "schema file": ("--json-schema-file", '{"pattern": "(?=a)", "type": "string"}', "look-ahead"),
    "template file": ("--chat-template-file", "{% if x", "template"),
    "template that refuses": ("--chat-template", '{{ raise_exception("no") }}', "no"),
    "template name": ("--chat-template", "llama3", "names of llama.cpp's templates need --no-jinja"),
    "number": ("--top-k", "many", "--top-k"),
    "mirostat": ("--mirostat", "7", "mirostat is 0, 1 or 2"),
    "draft context": ("--eagle-draft-ctx", "12x", '"--eagle-draft-ctx": expected a whole number from 0'),
    "draft vocabulary": ("--eagle-draft-vocab", "-1", '"--eagle-draft-vocab": expected a whole number from 0'),
    "draft length": ("--eagle-draft-length", "8", "\"--eagle-draft-length\": expected auto or fixed, found '8'"),
    "unknown": ("--no-such-argument", "1", "--no-such-argument"),
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "target.gguf"
    write_target(path)
    return path


@pytest.mark.parametrize("name", REFUSED)
def test_arguments_are_refused_by_name(tmp_path: Path, target: Path, name: str) -> None:
    argument, value, reason = REFUSED[name]
    if argument.endswith("-file"):
        path = tmp_path / "given"
        if value is not None:
            path.write_text(value)
        value = str(path)
    done = llama_eagle(
        "serve", "-m", str(target), "-d", "none", "-c", "512", "-t", "1", "--port", "0", "--", argument, str(value)
    )
    assert done.code == 2, done.stderr
    assert reason in done.stderr and "terminate" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
