"""Texts with an EAGLE-3 draft are those of plain decoding, on targets whose states our patch publishes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fixtures.architectures import NO_FLASH_ATTENTION, Architecture, every_architecture, keys
from fixtures.eagle3_checkpoints import DraftSpec, make_draft
from fixtures.llama_pairs import complete, load
from llama_eagle.convert.drafts import DraftOptions, convert_draft
from llama_eagle.gguf.architectures import FEATURE_TARGETS

pytestmark = pytest.mark.native

COMMON = ("command-r", "deepseek2", "gemma3", "granite", "olmo2", "phi3")
OTHERS = sorted(str(of) for of in every_architecture() if of.name in FEATURE_TARGETS and of.name not in COMMON)


def write_pair(of: Architecture, folder: Path) -> dict[str, Path]:
    """Write a random target and a random draft that reads its boundaries 1 and 2."""
    command = [sys.executable, "-m", "parity.architecture_worker", "--write", str(folder), str(of)]
    subprocess.run(command, cwd=Path(__file__).parents[1], check=True, capture_output=True)
    target, about = folder / f"{of}.gguf", keys(of)
    spec = DraftSpec(n_vocab=about["vocab_size"], target_hidden=about["embedding_length"], n_aux=2, embedding=True)
    draft = folder / "draft.gguf"
    convert_draft(
        make_draft(folder / "checkpoint", spec), target, draft, DraftOptions(outtype="f16", aux_layers=(1, 2))
    )
    return {"target": target, "draft": draft}


@pytest.mark.parametrize("name", [*COMMON, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_texts_are_those_of_plain_decoding(name: str, tmp_path: Path) -> None:
    of = next(of for of in every_architecture() if str(of) == name)
    files = write_pair(of, tmp_path)
    more = {"n_ctx": 192} | ({"flash_attn": False} if of.name in NO_FLASH_ATTENTION else {})
    with load(files, draft=None, **more) as plain, load(files, n_draft=3, lookup=False, **more) as llm:
        for options in ({"temperature": 0}, {"seed": 3, "temperature": 1.5}):
            expected = complete(plain, "abc", max_tokens=40, **options)["text"]
            assert complete(llm, "abc", max_tokens=40, **options)["text"] == expected
        assert llm.speculative_stats.n_drafted > 0
