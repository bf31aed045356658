"""Names of pre-tokenizers against llama.cpp's own converter: its table, and vocabularies of its source."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fixtures.pre_tokenizers import NAMES, PUBLISHED, steps, write_tokenizer
from fixtures.upstream import source_folder
from llama_eagle.convert.pre_hashes import SUMS, TEXT
from llama_eagle.convert.pre_tokenizers import IGNORE_MERGES, StoredEncoder, pre_tokenizer_name
from llama_eagle.errors import ConfigError

# The converter's own function on folders. Of a tokenizer it uses only the ids, which transformers has from tokenizers.
_DRIVER = """
import sys
root, *folders = sys.argv[1:]
sys.path[:0] = [root, root + "/gguf-py"]
from conversion.base import TextModel
from tokenizers import Tokenizer
class Ids:
    def __init__(self, folder): self.tokenizer = Tokenizer.from_file(folder + "/tokenizer.json")
    def encode(self, text): return self.tokenizer.encode(text).ids
for folder in folders:
    print(TextModel.get_vocab_base_pre(None, Ids(folder)))
"""


def test_the_table_is_that_of_the_pinned_converter() -> None:
    tree = ast.parse((source_folder() / "conversion" / "base.py").read_text("utf-8"))
    (function,) = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "get_vocab_base_pre")
    texts, sums = [], {}
    for node in function.body:
        match node:
            case ast.Assign(targets=[ast.Name("chktxt")], value=ast.Constant(text)):
                texts.append(text)
            case ast.If(
                test=ast.Compare(left=ast.Name("chkhsh"), comparators=[ast.Constant(found)]),
                body=[ast.Assign(value=ast.Constant(name))],
            ):
                sums[found] = name
    assert texts == [TEXT]
    assert {value: name for name, values in SUMS.items() for value in values} == sums


def test_the_rule_of_merges_is_that_of_the_pinned_loader() -> None:
    source = (source_folder() / "src" / "llama-vocab.cpp").read_text("utf-8")
    branches = re.split(r"else if \(", source[source.index('tokenizer_pre == "default"') :])
    found = {
        name
        for branch in branches[: branches.index(next(b for b in branches if "unknown pre-tokenizer type" in b)) + 1]
        if "ignore_merges = true" in branch
        for name in re.findall(r'tokenizer_pre == "([^"]+)"', branch)
    }
    assert found == IGNORE_MERGES


@pytest.mark.slow
def test_vocabularies_have_the_name_of_the_converter(tmp_path: Path) -> None:
    for name in PUBLISHED:
        (tmp_path / name).mkdir()
        write_tokenizer(name, tmp_path / name)
    folders = [str(tmp_path / name) for name in PUBLISHED]
    command = [sys.executable, "-c", _DRIVER, str(source_folder()), *folders]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == list(PUBLISHED)
    for name in PUBLISHED:
        data = json.loads((tmp_path / name / "tokenizer.json").read_text("utf-8"))
        assert pre_tokenizer_name(data, StoredEncoder(tmp_path / name / "tokenizer.json")) == name
        assert pre_tokenizer_name(data) == PUBLISHED[name][0], "without its vocabulary the form decides"


def test_a_known_vocabulary_has_its_own_name(tmp_path: Path) -> None:
    """Refact's tokenizer splits as SmolLM's does."""
    data = write_tokenizer("refact", tmp_path)
    assert pre_tokenizer_name(data) == "smollm"
    assert pre_tokenizer_name(data, StoredEncoder(tmp_path / "tokenizer.json")) == "refact"


def test_a_known_vocabulary_with_another_split(tmp_path: Path) -> None:
    """The text of the converter has the same tokens with both; others have not."""
    data = write_tokenizer("qwen2", tmp_path)
    data["pre_tokenizer"]["pretokenizers"] = steps("qwen35")
    (tmp_path / "tokenizer.json").write_text(json.dumps(data), "utf-8")
    assert pre_tokenizer_name(data, StoredEncoder(tmp_path / "tokenizer.json")) == "qwen35"


@pytest.mark.parametrize("name", NAMES)
def test_forms(name: str) -> None:
    data = {"pre_tokenizer": {"type": "Sequence", "pretokenizers": steps(name)}}
    assert pre_tokenizer_name(data) == name
    data["pre_tokenizer"]["pretokenizers"].insert(0, {"type": "Whitespace"})
    with pytest.raises(ConfigError, match="--pre"):
        pre_tokenizer_name(data)
