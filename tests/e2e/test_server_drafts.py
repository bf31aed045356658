"""llama.cpp's server on our engine: many clients at once read what each would read alone and without a draft."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fixtures.serving import Served, serve
from fixtures.targets import make_target
from fixtures.tiny_gguf import write_target
from llama_eagle.convert.targets import TargetOptions, convert_target
from llama_eagle.demo.run import DRAFT, TARGET
from llama_eagle.synthetic.ggufs import MTPFile, PairFolder, convert_pair

pytestmark = pytest.mark.native

N_CLIENTS = 8
CONTEXT = ("-c", 512, "-t", 1)


@pytest.fixture(scope="module")
def eagle3(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    """The trained demo pair: recurrent, with an EAGLE-3 draft whose tokens are often right."""
    target, draft = convert_pair(TARGET, DRAFT, tmp_path_factory.mktemp("demo"), "q8_0")
    return ["-m", target, "-d", draft]


@pytest.fixture(scope="module")
def mtp(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    """Random weights with an MTP head: near ties, and drafts that are mostly wrong."""
    folder = tmp_path_factory.mktemp("mtp")
    checkpoint = make_target("qwen35", folder / "target", seed=5, dtype="float32", mtp=True)
    convert_target(checkpoint, folder / "target.gguf", TargetOptions(outtype="f16"))
    return ["-m", folder / "target.gguf", "-d", "mtp"]


@pytest.fixture(scope="module")
def dflash(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    """A synthetic pair: the draft proposes a block, of which most tokens are right."""
    files = PairFolder(tmp_path_factory.mktemp("blocks") / "tiny", "tiny").blocks(0.9, "q8_0")
    return ["-m", files.target, "-d", files.draft]


@pytest.fixture(params=["eagle3", "mtp", "dflash"])
def pair(request: pytest.FixtureRequest) -> list[object]:
    return list(request.getfixturevalue(request.param))


def requests(n: int, seed: int) -> list[dict[str, Any]]:
    """Prompts, lengths and samplers at random; half of them greedy."""
    rng = random.Random(seed)
    return [
        {
            "prompt": rng.choices(range(5, 300), k=rng.randint(1, 60)),
            "n": rng.randint(1, 48),
            "temperature": rng.choice([0, 0.9]),
            "seed": i,
            "ignore_eos": True,
            "cache_prompt": False,
        }
        for i in range(n)
    ]


def answers(server: Served, asked: list[dict[str, Any]], n_clients: int) -> list[dict[str, Any]]:
    with ThreadPoolExecutor(n_clients) as pool:
        return list(pool.map(lambda request: server.complete(**request), asked))


def texts(found: list[dict[str, Any]]) -> list[list[int]]:
    return [answer["tokens"] for answer in found]


def drafts(found: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """Per answer: tokens drafted and accepted."""
    return [(answer["timings"].get("draft_n", 0), answer["timings"].get("draft_n_accepted", 0)) for answer in found]


def test_many_clients_read_what_each_reads_alone(pair: list[object]) -> None:
    """And get the drafts that each would get alone: one graph for all of them changes no bit of any."""
    asked = requests(20, seed=1)
    with serve(*pair[:2], "-d", "none", "--parallel", 1, *CONTEXT) as server:
        expected = texts(answers(server, asked, 1))
    with serve(*pair, "--n-draft", 4, "--parallel", N_CLIENTS, *CONTEXT) as server:
        with ThreadPoolExecutor(2) as strangers:
            for i in range(8):
                strangers.submit(server.hang_up, [7, 8, 9 + i], 400, 300 * i)
            together = answers(server, asked, N_CLIENTS)
        alone = answers(server, asked, 1)
    assert texts(together) == texts(alone) == expected
    assert drafts(together) == drafts(alone)
    assert sum(map(len, expected)) > 300
    assert sum(n for n, _ in drafts(alone)) > 300


def test_lengths_that_adapt_change_no_text(eagle3: list[object]) -> None:
    """The batch has no room for the longest drafts of all clients."""
    asked = requests(24, seed=2)
    with serve(*eagle3[:2], "-d", "none", "--parallel", 1, *CONTEXT) as server:
        expected = texts(answers(server, asked, 1))
    with serve(*eagle3, "--parallel", N_CLIENTS, "-ub", 24, *CONTEXT) as server:
        found = answers(server, asked, N_CLIENTS)
    assert texts(found) == expected
    assert sum(n for n, _ in drafts(found)) > 0


@pytest.mark.slow
def test_a_thousand_requests(pair: list[object]) -> None:
    """Lengths of drafts that adapt, random starts and ends, a stream that is left for every fifth request."""
    asked = requests(1000, seed=3)
    rng = random.Random(4)
    leavers = [(rng.choices(range(5, 300), k=rng.randint(1, 60)), rng.randint(1, 9000)) for _ in range(200)]
    with serve(*pair[:2], "-d", "none", "--parallel", 1, *CONTEXT) as server:
        expected = texts(answers(server, asked, 1))
    with serve(*pair, "--parallel", N_CLIENTS, *CONTEXT) as server, ThreadPoolExecutor(1) as stranger:
        for prompt, after in leavers:
            stranger.submit(server.hang_up, prompt, 400, after)
        found = answers(server, asked, N_CLIENTS)
    assert texts(found) == expected
    assert sum(n for n, _ in drafts(found)) > 200


@pytest.fixture(scope="module")
def demo(eagle3: list[object], tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Path]]:
    slots = tmp_path_factory.mktemp("slots")
    options = ["--n-draft", 4, "--parallel", 2, *CONTEXT, "--", "--slot-save-path", slots]
    with serve(*eagle3, *options) as server:
        yield server, slots


def ask(server: Served, slot: int, prompt: list[int], n: int = 24) -> dict[str, Any]:
    body = {"prompt": prompt, "n_predict": n, "return_tokens": True, "id_slot": slot, "temperature": 0}
    status, answer = server.post("/completion", {**body, "ignore_eos": True, "cache_prompt": True})
    assert status == 200
    return dict(answer)


def test_statistics_reach_the_client(demo: tuple[Served, Path]) -> None:
    server, _ = demo
    timings = ask(server, 0, [40, 41, 42])["timings"]
    assert 0 < timings["draft_n_accepted"] <= timings["draft_n"]
    assert timings["drafter"] == "draft-eagle3"
    slot = server.get("/slots")[1][0]
    assert slot["drafter"] == "draft-eagle3" and 1 <= slot["n_draft"] <= 4
    for name in ("drafted", "accepted"):
        total = server.metric(f"spec_decode_num_{name.replace('drafted', 'draft')}_tokens_total")
        assert server.metric(f'drafter_{name}_tokens_total{{drafter="draft-eagle3"}}') == total > 0
    accepted, rounds, per_round = (
        server.metric(f'drafter_{name}{{drafter="draft-eagle3"}}')
        for name in ("accepted_tokens_total", "rounds_total", "tokens_per_round")
    )
    assert per_round == pytest.approx(1 + accepted / rounds, rel=1e-4)


def test_acceptance_is_kept_for_the_next_price(eagle3: list[object], tmp_path: Path) -> None:
    """Figures behind the last report are lost if the server has no time to end."""
    with serve(*eagle3, "--n-draft", 4, *CONTEXT, LLAMA_EAGLE_CACHE=str(tmp_path)) as server:
        answers = [server.complete([40, 41, n], 400, temperature=0, ignore_eos=True) for n in (42, 43, 44)]
    (kept,) = (json.loads(file.read_text()) for file in tmp_path.rglob("acceptance/*.json"))
    drafted, accepted = (sum(each["timings"][name] for each in answers) for name in ("draft_n", "draft_n_accepted"))
    assert len(kept["tried"]) == 4 and 500 <= sum(kept["tried"]) <= drafted
    assert 0 < sum(kept["accepted"]) <= accepted


def test_two_conversations_in_turn_read_only_what_is_new(demo: tuple[Served, Path]) -> None:
    server, _ = demo
    talks = {slot: [50 + slot] * 100 for slot in (0, 1)}
    for _turn in range(3):
        for slot, text in talks.items():
            answer = ask(server, slot, text)
            if len(text) > 100:
                assert answer["timings"]["prompt_n"] <= 40
            talks[slot] = [*text, *answer["tokens"], 60, 61, 62]


def test_a_saved_slot_keeps_its_draft(demo: tuple[Served, Path]) -> None:
    """A draft that knows the text proposes the same as without saving."""
    server, slots = demo
    text = [70, 71, 72] * 40
    text += ask(server, 0, text)["tokens"]
    assert server.post("/slots/0?action=save", {"filename": "a.bin"})[0] == 200
    straight = ask(server, 0, [*text, 9, 10, 11])
    assert (slots / "a.bin.draft").stat().st_size > 1000
    ask(server, 1, [5, 6, 7])
    assert server.post("/slots/1?action=restore", {"filename": "a.bin"})[0] == 200
    restored = ask(server, 1, [*text, 9, 10, 11])
    assert restored["tokens"] == straight["tokens"]
    for name in ("prompt_n", "draft_n", "draft_n_accepted"):
        assert restored["timings"][name] == straight["timings"][name]
    (slots / "a.bin.draft").write_bytes(b"damaged")
    assert server.post("/slots/1?action=restore", {"filename": "a.bin"})[0] == 200
    assert ask(server, 1, [*text, 9, 10, 11])["tokens"] == straight["tokens"]


def test_a_prompt_from_the_cache_in_memory_keeps_its_draft(eagle3: list[object]) -> None:
    """With one slot, a second conversation evicts the first, which returns with the draft that it had."""
    found = []
    for others in ([], [[5, 6, 7] * 30, [8, 9] * 20]):
        with serve(*eagle3, "--n-draft", 4, "--parallel", 1, *CONTEXT) as server:
            text = random.Random(1).choices(range(40, 300), k=200)
            text += server.complete(text, 24, temperature=0, ignore_eos=True)["tokens"]
            for other in others:
                server.complete(other, 8)
            timings = server.complete([*text, 9, 10, 11], 96, temperature=0, ignore_eos=True)["timings"]
        found.append([timings[name] for name in ("prompt_n", "draft_n", "draft_n_accepted")])
    assert found[0] == found[1]


def test_several_answers_to_one_question(demo: tuple[Served, Path]) -> None:
    """Each drafts as it would alone: the draft's memory is copied with the target's."""
    server, _ = demo
    texts: set[str] = set()
    n_drafted = []
    for n in (1, 2):
        before = server.metric("spec_decode_num_draft_tokens_total")
        body = {"prompt": [40, 41, 42] * 20, "n": n, "max_tokens": 24, "temperature": 0, "cache_prompt": False}
        status, answer = server.post("/v1/completions", body)
        assert (status, len(answer["choices"])) == (200, n)
        texts |= {choice["text"] for choice in answer["choices"]}
        n_drafted.append(server.metric("spec_decode_num_draft_tokens_total") - before)
    assert len(texts) == 1
    assert n_drafted[1] == 2 * n_drafted[0] > 0


@pytest.fixture(scope="module")
def rare(tmp_path_factory: pytest.TempPathFactory) -> tuple[MTPFile, Path]:
    """A target that repeats 40 words of any ids and whose head knows them; and a copy that names them the likeliest."""
    folder = PairFolder(tmp_path_factory.mktemp("rare") / "tiny", "tiny", keep=True)
    found = folder.mtp(1.0, "q8_0", rare=40)
    text, copy = folder.path / "words.txt", folder.path / "copy.gguf"
    text.write_text(found.cycle.expected_text(START, 40))
    convert_target(folder.path / "mtp-1-rare-40", copy, TargetOptions(outtype="q8_0", calibration=text))
    return found, copy


START = 300  # a token
TRIMMED = ("-d", "mtp", "--draft-vocab", 64, "--parallel", 1, *CONTEXT)


def test_a_trimmed_head_has_the_likeliest_tokens(rare: tuple[MTPFile, Path]) -> None:
    """In the first 30 words: those that the text has had get rows anyway."""
    accepted = []
    for target in (rare[0].target, rare[1]):
        with serve("-m", target, *TRIMMED, "--n-draft", 3) as server:
            answer = server.complete([START], 30, temperature=0)
        assert answer["tokens"] == rare[0].cycle.expected_tokens(START, 30)
        accepted.append(answer["timings"]["draft_n_accepted"])
    assert accepted[0] < 5 and accepted[1] > 15


def test_a_text_that_repeats_is_looked_up(tmp_path: Path) -> None:
    """Next to a draft whose length adapts, unless told otherwise. The head is mostly wrong, so no time favours it."""
    pair = PairFolder(tmp_path / "tiny", "tiny").mtp(0.1, "q8_0", rare=40)
    expected = pair.cycle.expected_tokens(START, 300)
    for options, looks_up in (((), True), (("--no-lookup",), False), (("--n-draft", 3), False)):
        with serve("-m", pair.target, *TRIMMED, *options) as server:
            answer = server.complete([START], 300, temperature=0)
            assert answer["tokens"] == expected
            assert ("ngram-simple" in answer["timings"]["drafter"]) == looks_up
            assert (server.metric('drafter_accepted_tokens_total{drafter="ngram-simple"}') > 20) == looks_up


def test_an_answer_that_fills_its_context_keeps_its_end(tmp_path: Path) -> None:
    """Drafts may reach beyond the last token; text, count and reason are those of plain decoding."""
    target = write_target(tmp_path / "target.gguf")
    found: list[list[dict[str, Any]]] = []
    for draft in (("-d", "none"), ("-d", "lookup", "--n-draft", 8)):
        with serve("-m", target, *draft, "-c", 256, "-t", 1, "--parallel", 1) as server:
            prompts = [[40 + i % 5 for i in range(n)] for n in range(60, 120, 9)]
            given = [server.complete(prompt, 300, temperature=0, ignore_eos=True) for prompt in prompts]
            stop = given[0]["content"][150:152]
            given.append(server.complete(prompts[0], 300, temperature=0, ignore_eos=True, stop=[stop]))
        keys = ("content", "tokens", "tokens_predicted", "tokens_cached", "stop_type", "truncated")
        found.append([{key: answer[key] for key in keys} for answer in given])
    assert found[0] == found[1] and (found[0][0]["stop_type"], found[0][-1]["stop_type"]) == ("limit", "word")
    assert any(answer["timings"]["draft_n_accepted"] for answer in given)
