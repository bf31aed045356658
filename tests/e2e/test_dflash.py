"""Block drafts from the command line, in EagleLlama and in the server: the text of plain decoding."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fixtures.command import llama_eagle
from fixtures.dflash import CASES, OURS, DFlashSpec, make_dflash
from fixtures.eagle3_checkpoints import PEAGLE, DraftSpec, make_draft
from fixtures.serving import serve
from fixtures.targets import make_target
from llama_eagle.cli.commands.bench import Pair
from llama_eagle.convert.drafts import DraftOptions, convert_draft
from llama_eagle.convert.targets import TargetOptions, convert_target

pytestmark = pytest.mark.native
KINDS = {
    "dflash": CASES["dflash"], "dflash2": CASES["dflash2"], "dspark": OURS["dspark-rnn"], "gated": OURS["dspark-gated"],
    "peagle": PEAGLE["plain"],
}  # fmt: skip


@pytest.fixture(scope="module", params=["qwen3", "qwen35"])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target without a recurrent state, and one with it and with M-RoPE positions."""
    folder = tmp_path_factory.mktemp(request.param)
    checkpoint = make_target(request.param, folder / "checkpoint", seed=3)
    convert_target(checkpoint, folder / "target.gguf", TargetOptions(outtype="q8_0"))
    return folder / "target.gguf"


def draft_of(target: Path, spec: DFlashSpec | DraftSpec, name: str) -> Path:
    path, folder = target.with_name(f"{name}.gguf"), target.with_name(name)
    if not path.is_file():
        made = make_dflash(folder, spec) if isinstance(spec, DFlashSpec) else make_draft(folder, spec)
        convert_draft(made, target, path, DraftOptions(outtype="f16"))
    return path


def texts(llm: Any) -> list[str]:
    options: list[dict[str, Any]] = [{"temperature": 0}, {"seed": 1, "temperature": 1.5}, {"seed": 2, "top_k": 5}]
    return [llm.create_completion("a b c", max_tokens=40, **each)["choices"][0]["text"] for each in options]


@pytest.mark.parametrize("kind", KINDS)
def test_the_text_is_that_of_plain_decoding(kind: str, target: Path) -> None:
    from llama_eagle import EagleLlama

    settings: dict[str, Any] = {"n_ctx": 256, "n_threads": 1, "verbose": False}
    with EagleLlama(str(target), draft="none", **settings) as plain:
        expected = texts(plain)
    for n_draft in (3, 8, "auto"):
        with EagleLlama(
            str(target), draft=str(draft_of(target, KINDS[kind], kind)), n_draft=n_draft, lookup=False, **settings
        ) as llm:
            assert texts(llm) == expected
            assert llm.speculative_totals.n_drafted > 0
            state = llm.save_state()
            after = texts(llm)[0]
            llm.load_state(state)
            assert texts(llm)[0] == after


@pytest.mark.parametrize(
    ("kind", "name", "architecture"), [("dflash", "DFlash", "dflash"), ("peagle", "P-EAGLE", "eagle3")]
)
def test_generate_and_bench_name_the_drafter(kind: str, name: str, architecture: str, target: Path) -> None:
    draft = draft_of(target, KINDS[kind], kind)
    assert Pair(model=target, draft=str(draft)).drafter == architecture
    arguments = ["generate", "-m", str(target), "--raw", "-p", "a b c", "-n", "24", "--temp", "0", "--json"]
    plain = json.loads(llama_eagle(*arguments, "-d", "none").stdout)
    drafted = json.loads(llama_eagle(*arguments, "-d", str(draft), "--n-draft", "4").stdout)
    assert drafted["text"] == plain["text"]
    assert name in drafted["speculative"]["drafter"]


def test_a_server_drafts_for_several_clients(tmp_path: Path) -> None:
    """Mask rows of several slots pass through one graph; each client reads the text of plain decoding."""
    checkpoint = make_target("qwen3", tmp_path / "checkpoint", seed=3)
    convert_target(checkpoint, tmp_path / "tiny.gguf", TargetOptions(outtype="q8_0"))
    draft, found = draft_of(tmp_path / "tiny.gguf", KINDS["peagle"], "peagle"), []
    for options in (("-d", "none"), ("-d", draft, "--n-draft", 4, "--no-lookup")):
        arguments = ("-m", tmp_path / "tiny.gguf", *options, "--parallel", 3, "-c", 384, "-t", 1)
        with serve(*arguments) as server, ThreadPoolExecutor(3) as pool:
            asked = [
                pool.submit(server.complete, [7, n, 41], 24, temperature=0, ignore_eos=True) for n in (300, 20, 90)
            ]
            found.append([each.result() for each in asked])
    assert [answer["tokens"] for answer in found[0]] == [answer["tokens"] for answer in found[1]]
    assert all(answer["timings"]["draft_n"] > 0 for answer in found[1])


def test_a_draft_next_to_its_target_is_found(tmp_path: Path) -> None:
    checkpoint = make_target("qwen3", tmp_path / "checkpoint", seed=3)
    convert_target(checkpoint, tmp_path / "tiny.gguf", TargetOptions(outtype="q8_0"))
    draft_of(tmp_path / "tiny.gguf", KINDS["dflash"], "dflash-tiny")
    outcome = llama_eagle("generate", "-m", str(tmp_path / "tiny.gguf"), "--raw", "-p", "a", "-n", "4", "-v")
    assert "dflash-tiny.gguf" in outcome.stderr  # llama.cpp names the files that it loads
