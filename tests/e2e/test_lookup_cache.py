"""The file of a look-up: texts of earlier processes are found, and no file is lost or trusted blindly."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fixtures.command import Outcome, assert_one_line_error, llama_eagle
from fixtures.serving import serve
from fixtures.targets import make_dense_gguf
from fixtures.tiny_gguf import write_target
from llama_eagle.drafting.lookup import PromptLookup
from llama_eagle.errors import InputError, UsageError
from llama_eagle.sessions.models import Model

pytestmark = pytest.mark.native

PROMPT, OTHER, N = [5, 9, 14], [7, 3, 21], 40


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights, whose texts do not repeat."""
    return make_dense_gguf(tmp_path_factory.mktemp("dense"))


def run(model: Path, cache: Path | None, prompt: list[int] = PROMPT) -> Outcome:
    options = () if cache is None else ("--lookup-cache", cache)
    tokens = ",".join(map(str, prompt))
    given = ("--tokens", tokens, "-n", N, "--ignore-eos", "--temp", 0, "-t", 1, "--n-draft", 4, "--json")
    return llama_eagle("generate", "-m", model, *given, *options)


def assert_refused(model: Path, cache: Path, reason: str) -> None:
    outcome = run(model, cache)
    assert_one_line_error(Outcome(outcome.code, "", outcome.stderr), 3, str(cache), reason)


def load(model: Path, **options: Any) -> Any:
    from llama_eagle import EagleLlama

    return EagleLlama(model, n_ctx=128, n_threads=1, n_draft=4, **options)


def generate(llm: Any, prompt: list[int]) -> list[int]:
    return [token for token, _ in zip(llm.generate(prompt, temp=0), range(N), strict=False)]


def test_a_text_of_an_earlier_process_is_found(dense: Path, tmp_path: Path) -> None:
    cache = tmp_path / "texts"
    plain, first, second = run(dense, None).json, run(dense, cache).json, run(dense, cache).json
    assert plain["tokens"] == first["tokens"] == second["tokens"]
    assert first["speculative"]["n_accepted"] == plain["speculative"]["n_accepted"]
    assert second["speculative"]["n_accepted"] > 25 > first["speculative"]["n_accepted"]
    assert [path.name for path in tmp_path.iterdir()] == ["texts"]  # no temporary file


def test_servers_and_programs_share_a_file(dense: Path, tmp_path: Path) -> None:
    cache = tmp_path / "texts"
    common = ("-m", dense, "-c", 128, "-t", 1, "-np", 2, "--n-draft", 4, "--lookup-cache", cache)
    asked = {"temperature": 0, "ignore_eos": True, "cache_prompt": False}
    with serve(*common) as server:
        first = server.complete(PROMPT, N, id_slot=0, **asked)
        again = server.complete(PROMPT, N, id_slot=1, **asked)
    assert again["tokens"] == first["tokens"]
    assert again["timings"]["draft_n_accepted"] > 25
    assert run(dense, cache).json["speculative"]["n_accepted"] > 25
    with load(dense, lookup_cache=cache) as llm:
        generate(llm, OTHER)
    with serve(*common) as server:
        assert server.complete(OTHER, N, **asked)["timings"]["draft_n_accepted"] > 25


def test_two_at_once_lose_nothing(dense: Path, tmp_path: Path) -> None:
    cache = tmp_path / "texts"
    with load(dense, lookup_cache=cache) as one, load(dense, lookup_cache=cache) as two:
        texts = generate(one, PROMPT), generate(two, OTHER)
    with load(dense, lookup_cache=str(cache)) as both:
        for prompt, text in zip((PROMPT, OTHER), texts, strict=True):
            assert generate(both, prompt) == text
            assert both.speculative_stats.n_accepted > 25


def test_many_that_close_at_the_same_moment_lose_nothing(dense: Path, tmp_path: Path) -> None:
    """Each reads, adds its text and replaces the file while the others do."""
    cache, n = tmp_path / "texts", 6
    with Model.target(dense) as model:
        lookups = [PromptLookup() for _ in range(n)]
        for i, lookup in enumerate(lookups):
            lookup.open(cache, model.vocab)
            lookup.begin([10 * i + j for j in range(1, 9)])
        with ThreadPoolExecutor(n) as pool:
            list(pool.map(PromptLookup.save, lookups))
        everything = PromptLookup()
        everything.open(cache, model.vocab)
        for i in range(n):
            everything.begin([10 * i + 1])
            assert everything.draft(10 * i + 2, 6) == [10 * i + j for j in range(3, 9)]
    assert [path.name for path in tmp_path.iterdir()] == ["texts"]


@pytest.mark.parametrize("damage", ["cut", "short", "flipped", "longer", "tokens"])
def test_a_damaged_file_is_a_warning_and_a_fresh_start(dense: Path, tmp_path: Path, damage: str) -> None:
    cache = tmp_path / "texts"
    expected = run(dense, cache).json
    data = bytearray(cache.read_bytes())
    if damage == "flipped":
        data[len(data) // 2] ^= 1
    elif damage == "tokens":
        data[48:52] = b"\xff\xff\xff\x7f"
    cache.write_bytes({"cut": data[:-7], "short": data[:21], "longer": data + b"1"}.get(damage, data))
    again = run(dense, cache)
    assert again.code == 0
    assert again.stderr == f"warning: {cache} is damaged: the look-up begins anew.\n"
    assert again.json["tokens"] == expected["tokens"]
    assert again.json["speculative"]["n_accepted"] == expected["speculative"]["n_accepted"]
    assert run(dense, cache).stderr == ""


def test_files_that_are_not_ours_are_left_alone(dense: Path, tmp_path: Path) -> None:
    cache = tmp_path / "texts"
    other = write_target(tmp_path / "other.gguf")
    assert run(other, cache).code == 0
    kept = cache.read_bytes()
    assert_refused(dense, cache, "another vocabulary")
    later = bytearray(kept)
    later[8] += 1
    for content, reason in ((b"my notes\n" * 9, "no file of a look-up"), (bytes(later), "a later version")):
        cache.write_bytes(content)
        assert_refused(dense, cache, reason)
        with pytest.raises(InputError, match=reason):
            load(dense, lookup_cache=cache)
        assert cache.read_bytes() == content
    with pytest.raises(AssertionError, match="a later version"), serve("-m", dense, "-t", 1, "--lookup-cache", cache):
        pass
    assert_refused(dense, tmp_path / "none" / "texts", "its folder is not there")
    empty = tmp_path / "empty"
    empty.touch()
    assert run(dense, empty).code == 0
    assert empty.stat().st_size > 0


def test_a_file_that_cannot_be_written_is_a_warning(dense: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    llm = load(dense, lookup_cache=folder / "texts")
    generate(llm, PROMPT)
    folder.rmdir()
    with pytest.warns(UserWarning, match="it cannot be written"):
        llm.close()


def test_nothing_learned_writes_nothing(dense: Path, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(dense, lookup_cache=tmp_path / "texts").close()
    assert not (tmp_path / "texts").exists()


def test_a_file_turns_the_look_up_on(dense: Path, tmp_path: Path) -> None:
    with load(dense, lookup_cache=tmp_path / "texts") as llm:
        assert llm.drafter == "prompt look-up is the drafter, as requested"
    with pytest.raises(UsageError, match="lookup_cache needs prompt look-up"):
        load(dense, draft="none", lookup_cache=tmp_path / "texts")
