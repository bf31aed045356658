"""A target that drafts with its own MTP head: nothing is named, the text stays, and the reason is told."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixtures.command import assert_one_line_error, llama_eagle
from fixtures.dflash import DFlashSpec, make_dflash
from fixtures.eagle3_checkpoints import DraftSpec, make_draft
from fixtures.targets import make_target
from gguf import GGUFReader
from llama_eagle import cli
from llama_eagle.convert.drafts import convert_draft
from llama_eagle.convert.targets import TargetOptions, convert_target
from llama_eagle.drafting.options import DraftingOptions
from llama_eagle.errors import CHECK_FAILED
from llama_eagle.files import cache_dir
from llama_eagle.gguf import header
from llama_eagle.serving.llama_server.options import ServerOptions, check, server_args
from llama_eagle.sessions.options import MTP, ContextOptions

pytestmark = pytest.mark.native

PROMPT = [1, 2, 3, 4, 5, 6]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Targets with and without a head, and the head alone beside the one without."""
    folder = tmp_path_factory.mktemp("models")
    checkpoint = make_target("qwen35-text", folder / "hf", 1, dtype="float32", mtp=True)
    convert_target(checkpoint, folder / "whole.gguf", TargetOptions(outtype="f32"))
    (folder / "apart").mkdir()
    convert_target(checkpoint, folder / "apart/model-f32.gguf", TargetOptions(outtype="f32", mtp=False))
    convert_target(checkpoint, folder / "apart/mtp-model.gguf", TargetOptions(outtype="f32", mtp_only=True))
    (folder / "bare").mkdir()
    (folder / "bare/model.gguf").symlink_to(folder / "apart/model-f32.gguf")
    return folder


def load(path: Path, **options: Any) -> Any:
    from llama_eagle import EagleLlama

    return EagleLlama(path, n_ctx=256, n_threads=1, verbose=False, **options)


def texts(llm: Any) -> list[list[int]]:
    """Greedy and seeded."""
    found = []
    for temp in (0.0, 1.5):
        llm.set_seed(7)
        found.append([token for token, _ in zip(llm.generate(PROMPT, temp=temp), range(60), strict=False)])
    return found


def test_the_head_drafts_and_the_text_stays(folder: Path) -> None:
    with load(folder / "whole.gguf", draft="none") as plain:
        assert plain.drafter == "no drafter, as requested"
        expected = texts(plain)
        assert plain.speculative_stats.n_drafted == 0
    choices = {
        ("whole.gguf", None): "the target's own MTP head drafts (draft=none turns it off)",
        ("whole.gguf", "mtp"): "the target's MTP head is the drafter, as requested",
        ("apart/model-f32.gguf", None): (
            "the MTP head in mtp-model.gguf drafts: it has the target's name (draft=none turns it off)"
        ),
        ("bare/model.gguf", None): "drafts: prompt look-up",
        ("bare/model.gguf", str(folder / "whole.gguf")): (
            f"the MTP head of {folder / 'whole.gguf'}, and no more of that model, is the drafter, as requested"
        ),
    }
    for (name, draft), why in choices.items():
        with load(folder / name, draft=draft, n_draft=4) as llm:  # "auto" would look up first
            assert llm.drafter == why
            assert texts(llm) == expected
            assert llm.speculative_stats.n_drafted > 0
            assert llm.speculative_stats.drafter == ("look-up" if "look-up" in why else "MTP")


@pytest.mark.parametrize(
    ("target", "draft", "beside"),
    [
        ("whole.gguf", None, None),
        ("whole.gguf", "mtp", None),
        ("bare/model.gguf", "apart/mtp-model.gguf", "apart/mtp-model.gguf"),
        ("apart/model-f32.gguf", None, "apart/mtp-model.gguf"),
    ],
)
def test_every_file_is_read_once(
    folder: Path, target: str, draft: str | None, beside: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []
    whole = header.read_header
    monkeypatch.setattr(header, "read_header", lambda path: read.append(Path(path)) or whole(path))
    load(folder / target, draft=folder / draft if draft and "/" in draft else draft).close()
    assert read == [folder / name for name in (target, beside) if name]


@pytest.mark.parametrize("draft_vocab", [16, 64, "all"])
def test_a_trimmed_head_changes_no_text(folder: Path, draft_vocab: int | str) -> None:
    with load(folder / "whole.gguf", draft="none") as plain:
        expected = texts(plain)
    for n_draft in (1, 7, 16):
        with load(folder / "whole.gguf", n_draft=n_draft, draft_vocab=draft_vocab) as llm:
            assert texts(llm) == expected


def test_a_head_of_nans_changes_no_text(folder: Path, tmp_path: Path) -> None:
    """No checkpoint with one is converted; a file may have been damaged since."""
    path = tmp_path / "damaged.gguf"
    shutil.copyfile(folder / "whole.gguf", path)
    reader = GGUFReader(path, "r+")
    norm = next(tensor for tensor in reader.tensors if tensor.name.endswith("nextn.shared_head_norm.weight"))
    norm.data[:] = np.nan
    reader.data.flush()
    with load(folder / "whole.gguf", draft="none") as plain:
        expected = texts(plain)
    for draft_vocab in (64, "all"):
        with load(path, n_draft=4, draft_vocab=draft_vocab) as llm:
            assert texts(llm) == expected
            assert llm.speculative_stats.n_accepted < llm.speculative_stats.n_drafted / 10


def test_the_command_says_what_drafts(folder: Path) -> None:
    arguments = ["--tokens", "1,2,3,4,5,6", "-n", 30, "--temp", 0, "-t", 1, "--json", "-m"]
    drafted = llama_eagle("generate", *arguments, folder / "whole.gguf").json
    plain = llama_eagle("generate", *arguments, folder / "whole.gguf", "--draft", "none").json
    assert drafted["speculative"]["drafter"] == "look-up and MTP"
    assert plain["speculative"] is None
    assert drafted["tokens"] == plain["tokens"]


@pytest.mark.parametrize("kind", ["head", "chain", "block"])
def test_check_measures_the_costs_of_each_kind(
    kind: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a drafted token, or of a block for drafts that propose one in a pass."""
    files = [folder / "whole.gguf"]
    if kind != "head":
        files.append(tmp_path / "draft.gguf")
        make, spec = {"chain": (make_draft, DraftSpec()), "block": (make_dflash, DFlashSpec())}[kind]
        convert_draft(make(tmp_path / kind, spec), *files)
    monkeypatch.setenv("LLAMA_EAGLE_CACHE", str(tmp_path / "cache"))
    assert cli.run(["check", *map(str, files), "--measure", "-t", "1"]) in (0, CHECK_FAILED)  # the drafts are random
    (kept,) = (cache_dir() / "prices").iterdir()
    costs = json.loads(kept.read_text())
    assert (costs["token"] > 0, costs["block"] > 0) == (kind != "block", kind == "block")


def test_a_head_that_is_not_there(folder: Path) -> None:
    checked = llama_eagle("check", folder / "whole.gguf", "mtp")
    assert checked.code == 0 and "its MTP head reads, per drafted token" in checked.stdout
    outcome = llama_eagle("generate", "-m", folder / "bare/model.gguf", "--draft", "mtp", "-p", "a")
    assert_one_line_error(outcome, 3, "no MTP head")
    with pytest.raises(ValueError, match="draft_vocab trims the head of a draft model"):
        load(folder / "bare/model.gguf", draft_vocab=64)


@pytest.mark.parametrize(("n_draft", "length"), [("auto", "auto"), (4, "fixed")])
def test_draft_settings_are_arguments_of_the_server(folder: Path, n_draft: Any, length: str) -> None:
    drafting = DraftingOptions(MTP, n_draft=n_draft, draft_vocab=64, draft_n_ctx=128)
    given = server_args(check(ServerOptions(folder / "whole.gguf", drafting, ContextOptions())))
    expected = {"--eagle-draft-length": length, "--eagle-draft-vocab": "64", "--eagle-draft-ctx": "128"}
    assert {name: given[given.index(name) + 1] for name in expected} == expected
