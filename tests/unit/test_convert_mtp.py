"""The next-token-prediction head: alone in a file, and the vocabulary that a trimmed one should know."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import gguf
import pytest
from fixtures.targets import HYBRID, make_target
from llama_eagle.cli import run
from llama_eagle.convert.calibration import require_text
from llama_eagle.convert.targets import TargetOptions, convert_target
from llama_eagle.errors import ConversionError, InputError, UsageError
from transformers import PreTrainedTokenizerFast

TEXT = "The lazy dog says: é ü 你好 verify(ids) verify(ids)\r\nThe dog. The dog, the dog!\n<|im_start|>12345 fox\n" * 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_target("qwen35", tmp_path_factory.mktemp("qwen35"), seed=7, mtp=True)


def read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    reader = gguf.GGUFReader(path)
    return {k: v.contents() for k, v in reader.fields.items()}, {t.name: t for t in reader.tensors}


@pytest.mark.parametrize("family", HYBRID)
def test_the_head_alone_is_that_of_the_whole_file(family: str, tmp_path: Path) -> None:
    source = make_target(family, tmp_path / "hf", seed=7, mtp=True)
    convert_target(source, tmp_path / "whole.gguf", TargetOptions(outtype="q8_0"))
    report = convert_target(source, tmp_path / "mtp-x.gguf", TargetOptions(outtype="q8_0", mtp_only=True))
    keys, whole = read(tmp_path / "whole.gguf")
    alone_keys, alone = read(tmp_path / "mtp-x.gguf")
    arch = keys["general.architecture"]
    assert set(alone) == {n for n in whole if n.startswith("blk.8.") or not n.startswith("blk.")}
    assert all(tensor.data.tobytes() == whole[name].data.tobytes() for name, tensor in alone.items())
    assert (alone_keys[f"{arch}.block_count"], alone_keys[f"{arch}.nextn_predict_layers"]) == (9, 1)
    different = {name for name in keys if alone_keys[name] != keys[name]}
    assert different <= {"general.size_label", "GGUF.tensor_count"}
    assert report.n_mtp == 1


def test_a_target_without_a_head_has_none_to_convert(tmp_path: Path) -> None:
    source = make_target("qwen3", tmp_path / "hf", seed=7)
    with pytest.raises(ConversionError, match="no MTP block"):
        convert_target(source, tmp_path / "out.gguf", TargetOptions(mtp_only=True))
    assert not (tmp_path / "out.gguf").exists()


def test_only_the_head_and_no_head_exclude_each_other(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--no-mtp"):
        convert_target(folder, tmp_path / "out.gguf", TargetOptions(mtp=False, mtp_only=True))


# --- the vocabulary of a trimmed head ----------------------------------------------------------------------------


def expected(folder: Path, text: str) -> list[int]:
    """Counted with transformers: the control and end tokens, then the others by falling frequency, ties by id."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    counts = Counter(tokenizer(text, add_special_tokens=False)["input_ids"])
    ends = json.loads((folder / "generation_config.json").read_text()).get("eos_token_id")
    always = sorted({*tokenizer.all_special_ids, *(ends if isinstance(ends, list) else [])})
    always = sorted({*always, *(i for i, t in tokenizer.added_tokens_decoder.items() if t.special)})
    return always + sorted((i for i in counts if i not in always), key=lambda i: (-counts[i], i))


def test_calibration_stores_the_tokens_of_a_text(folder: Path, tmp_path: Path) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [70, 71]}))
    (tmp_path / "text.txt").write_text(TEXT, newline="")
    for only in (False, True):
        options = TargetOptions(outtype="bf16", calibration=tmp_path / "text.txt", mtp_only=only)
        convert_target(folder, tmp_path / "out.gguf", options)
        field = gguf.GGUFReader(tmp_path / "out.gguf").fields["llama_eagle.draft_vocab"]
        assert field.types == [gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.UINT32]
        assert field.contents() == expected(folder, TEXT)


def test_a_long_text_is_counted_in_parts(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text.txt").write_text(TEXT, newline="")
    options = TargetOptions(outtype="bf16", calibration=tmp_path / "text.txt")
    found = []
    for size in (1 << 20, 100):
        monkeypatch.setattr("llama_eagle.convert.calibration._CHUNK", size)
        convert_target(folder, tmp_path / "out.gguf", options)
        found.append(read(tmp_path / "out.gguf")[0]["llama_eagle.draft_vocab"])
    assert found[0] == found[1]


def test_limits_that_training_tools_leave_in_tokenizer_json_do_not_count(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    data = json.loads((copy / "tokenizer.json").read_text())
    data["truncation"] = {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
    data["padding"] = {"strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": None}
    data["padding"] |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "!"}
    (copy / "tokenizer.json").write_text(json.dumps(data))
    (tmp_path / "text.txt").write_text(TEXT, newline="")
    options = TargetOptions(outtype="bf16", calibration=tmp_path / "text.txt")
    found = []
    for source in (folder, copy):
        convert_target(source, tmp_path / "out.gguf", options)
        found.append(read(tmp_path / "out.gguf")[0]["llama_eagle.draft_vocab"])
    assert found[0] == found[1]


def test_without_calibration_nothing_is_stored(folder: Path, tmp_path: Path) -> None:
    convert_target(folder, tmp_path / "out.gguf", TargetOptions(outtype="bf16"))
    assert "llama_eagle.draft_vocab" not in read(tmp_path / "out.gguf")[0]


@pytest.mark.parametrize(
    ("content", "message"), [(b"\xff\xfe\x00", "UTF-8"), (b"", "no text"), (None, "cannot be read")]
)
def test_texts_that_cannot_be_counted(content: bytes | None, message: str, folder: Path, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "text.txt").write_bytes(content)
    with pytest.raises(InputError, match=message):
        convert_target(folder, tmp_path / "out.gguf", TargetOptions(calibration=tmp_path / "text.txt"))
    assert not (tmp_path / "out.gguf").exists()


def test_a_pipe_is_refused_because_the_text_is_read_twice(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="not a regular file"):
        require_text(tmp_path / "pipe")


@pytest.mark.native
def test_the_quantizer_keeps_the_vocabulary_and_the_head(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    options = ["--calibration", str(tmp_path / "text.txt"), "--mtp-only", "--outtype", "q5_k_m"]
    assert run(["convert", str(folder), "-o", str(tmp_path / "mtp-q.gguf"), *options]) == 0
    keys, tensors = read(tmp_path / "mtp-q.gguf")
    assert keys["llama_eagle.draft_vocab"]
    assert "blk.8.nextn.eh_proj.weight" in tensors
