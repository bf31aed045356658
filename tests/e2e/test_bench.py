"""`llama-eagle bench`: its figures' arithmetic, its jobs, what it refuses, and llama.cpp's driver as it is run."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fixtures.command import assert_one_line_error, llama_eagle
from fixtures.tiny_gguf import write_pair
from llama_eagle import console
from llama_eagle.bench import costs, peer, report
from llama_eagle.bench.costs import decode_bytes
from llama_eagle.bench.measurement import Measurement, middle
from llama_eagle.bench.ours import Job, loaded
from llama_eagle.bench.peer import Peer, PeerJob
from llama_eagle.bench.run import PeerRuns
from llama_eagle.cli.commands.bench import Pair, Runs, _jobs
from llama_eagle.drafting.options import DRAFT_VOCAB
from llama_eagle.generation.stats import NATIVE_PHASES, Statistics
from llama_eagle.gguf.header import Header, TensorInfo
from llama_eagle.synthetic.ggufs import PairFolder

ROOT = Path(__file__).parents[2]
RECORDED = """
0.02.043.897 I decoded  120 tokens in    4.000 seconds, speed:   30.000 t/s
0.02.043.915 I n_drafted = 160
0.02.043.922 I n_accept  = 80
0.02.045.387 I common_perf_print: prompt eval time =    2500.00 ms /   203 tokens (   12.32 ms per token)
0.02.045.393 I common_perf_print:        eval time =     500.00 ms /    12 runs   (   41.67 ms per token)
"""


def test_middle_is_the_median_of_each_field() -> None:
    runs = [Measurement(tps, 0.5, 2.0, 10.0, 8.0, tps, share) for tps, share in ((1.0, None), (9.0, 0.3), (5.0, 0.1))]
    assert middle(runs) == Measurement(5.0, 0.5, 2.0, 10.0, 8.0, 5.0, 0.2)


def test_figures_of_our_rounds() -> None:
    spent = {**dict.fromkeys(NATIVE_PHASES, 0.0), "verify": 60.0, "draft": 20.0}
    counted = Statistics(rounds=4, n_drafted=8, n_accepted=6, n_emitted=10, ms=spent)
    assert Measurement.of_rounds(counted, 9, 100.0) == Measurement(90.0, 0.75, 2.5, 25.0, 15.0, 5.0, pytest.approx(0.2))


def test_figures_of_the_peer(tmp_path: Path) -> None:
    """The arguments of llama.cpp's driver, the room of its context among them, and the figures in its log."""
    tool = tmp_path / "llama-speculative-simple"
    tool.write_text(f"#!/bin/sh\necho \"$@\" > {tmp_path}/arguments\ncat >&2 <<'END'{RECORDED}END\n")
    tool.chmod(0o755)
    job = PeerJob(tmp_path / "t.gguf", n=120, threads=1)
    measured = Peer(tmp_path, "commit").speculate(job, tmp_path / "d.gguf", "text", 4)
    assert measured == Measurement(
        tps=30.0, accept_rate=0.5, mean_emitted=3.0, round_ms=100.0, verify_ms=75.0, draft_ms=25.0
    )
    assert f" -n 120 --temp 0 -c {4 + 120 + 512} " in (tmp_path / "arguments").read_text()


def test_the_peer_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source is repaired; the second call finds the tools and starts no cmake, which only writes them here."""
    monkeypatch.setattr(peer, "NATIVE", ROOT / "native")
    source = {"ggml/CMakeLists.txt": [""]}
    for name in peer.REPAIRS:
        for part in peer._upstream_module().parse(ROOT / "native/patches" / name)[1]:
            lines = source[part.path] = [""] * 1000
            for hunk in part.hunks:
                lines[hunk.start : hunk.start + len(hunk.old)] = hunk.old
    for path, lines in source.items():
        (tmp_path / "source" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "source" / path).write_text("\n".join(lines))
    cmake, built = tmp_path / "bin/cmake", tmp_path / "peer/build"
    cmake.parent.mkdir()
    cmake.write_text(f'#!/bin/sh\necho "$@"\nmkdir -p {built}/bin\ntouch {built}/bin/tool\n')
    cmake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{cmake.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("LLAMA_CPP_SOURCE_DIR", str(tmp_path / "source"))
    for _ in range(2):
        assert peer.build_peer(tools=["tool"], folder=tmp_path / "peer").folder == built / "bin"
        cmake.unlink(missing_ok=True)
    configured, compiled = (tmp_path / "peer/build.log").read_text().splitlines()
    assert f"-B {built} " in configured and compiled.endswith("--target tool")
    repaired = [
        path for path, lines in source.items() if (tmp_path / "peer/source" / path).read_text().split("\n") != lines
    ]
    assert repaired == ["ggml/src/ggml-cpu/amx/mmq.cpp"]


ABORTED = """0.01.006 E llama_init_from_model: failed to initialize the context
src/llama-graph.cpp:1384: GGML_ASSERT(t_layer_inp[il] != nullptr) failed
#0  0x00007fba816f1c17 in __GI___wait4 ()
[Inferior 1 (process 20019) detached]
"""


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (ABORTED, "GGML_ASSERT"),
        ("0.01 E no such model\n0.02 I end\n", "no such model"),
        ("killed\n", "killed"),
        ("", "no"),
    ],
)
def test_a_peer_that_fails_is_left_out(tmp_path: Path, log: str, reason: str) -> None:
    """llama.cpp cannot run every pair: the reason is kept, and the tool does not run again."""
    tool, counter = tmp_path / "llama-speculative-simple", tmp_path / "runs"
    tool.write_text(f"#!/bin/sh\necho >> {counter}\ncat >&2 <<'END'\n{log}END\nexit 134\n")
    tool.chmod(0o755)
    job, peers = PeerJob(tmp_path / "t.gguf", n=120, threads=1), PeerRuns(Peer(tmp_path, "commit"))
    for _ in range(2):
        assert peers.measure("draft", lambda built: built.speculate(job, None, "text", 4)) == []
    assert reason in peers.failures["draft"] and counter.read_text() == "\n"
    assert PeerRuns(None).measure("draft", lambda built: 1) == []


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ((), "--synthetic"),
        (("--synthetic", "0.8b", "-m", "x.gguf"), "--synthetic"),
        (("-m", "x.gguf", "-d", "y.gguf", "--draft-type", "q9"), "q9"),
        (("--synthetic", "3b"), "3b"),
        (("--synthetic", "tiny", "--accept", "70"), "--accept"),
        (("--synthetic", "tiny", "--n-draft", "0"), "--n-draft"),
        (("--synthetic", "tiny", "--depths", "1k"), "--depths"),
        (("--synthetic", "tiny", "--depths", ""), "--depths"),
        (("--synthetic", "tiny", "--prompts", "0"), "--prompts"),
        (("--synthetic", "tiny", "--cache-type-k", "q9"), "cache type"),
        (("--synthetic", "tiny", "--peers", "vllm"), "upstream"),
        (("--synthetic", "tiny", "-d", "mtp", "--draft-vocab", "0"), "--draft-vocab"),
        (("--synthetic", "tiny", "-d", "mtp", "--draft-vocab", "few"), "--draft-vocab"),
        (("--synthetic", "tiny", "-d", "y.gguf"), "--draft y.gguf does not apply"),
        (("--synthetic", "tiny", "-d", "none"), "--draft none"),
        (("--synthetic", "tiny", "-d", "mtp", "--draft-type", "q8_0"), "--draft-type does not apply"),
        (("--synthetic", "tiny", "-d", "lookup", "--draft-vocab", "all"), "--draft-vocab does not apply"),
        (("-m", "x.gguf", "-d", "mtp", "--accept", "0.5"), "--accept does not apply to -m"),
        (("-m", "x.gguf", "-d", "mtp", "--type", "q4_0"), "--type does not apply to -m"),
        (("-m", "x.gguf", "-d", "lookup", "--draft-type", "q8_0"), "--draft-type does not apply to drafter lookup"),
        (("--synthetic", "tiny", "--draft-vocab", "all"), "--draft-vocab does not apply to drafter eagle3"),
    ],
)
def test_usage_errors(arguments: tuple[str, ...], part: str) -> None:
    assert_one_line_error(llama_eagle("bench", *arguments), 2, part)


@pytest.mark.native
@pytest.mark.parametrize("option", ["--type", "--draft-type"])
def test_types_are_checked_before_the_pair_is_made(tmp_path: Path, option: str) -> None:
    outcome = llama_eagle("bench", "--synthetic", "tiny", option, "q4km", LLAMA_EAGLE_CACHE=str(tmp_path))
    assert_one_line_error(outcome, 2, "unknown type 'q4km'")
    assert list(tmp_path.iterdir()) == []


ROW = {"tps": 30.0, "accept_rate": 0.5, "mean_emitted": 2.5, "round_ms": 40.0, "verify_ms": 30.0, "draft_ms": 5.5}
RESULT: dict[str, Any] = {
    "model": "synthetic tiny", "type": "q8_0", "n_generated": 40, "threads": 2, "accept": 0.7, "drafter": "mtp",
    "draft_vocab": 512, "plain_tps": 20.0, "upstream_plain_tps": 10.0,
    "ours": [{"n_draft": 2, "python_share": 0.125, **ROW}], "upstream": [{"n_draft": 3, "python_share": None, **ROW}],
    "lookup": {"n_draft": "auto", "python_share": 0.25, **ROW},
    "upstream_lookup": [{"n_draft": "ngram-mod", "python_share": None, **ROW}],
    "sampled": {"n_draft": 2, "python_share": 0.5, "over_greedy": 0.875, **ROW}, "chat": None,
    "steps": [{"depth": 64, "decode_ms": 50.0, "draft_ms": None, "verify_ms": [55.0, 75.0]}],
    "prompts": [{"n": 700, "plain_tps": 80.0, "draft_tps": 76.0, "draft_over_plain": 0.95, "upstream_tps": 60.0}],
    "best_over_plain": 1.5, "best_over_upstream": 3.0,
    "memory": {"decode_bytes": 1.5e9, "read_rate": 39e9, "read_rate_of_one": 20e9},
}  # fmt: skip


def test_tables_and_summary(capsys: pytest.CaptureFixture[str]) -> None:
    for table in report.tables(RESULT):
        console.table(table)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    cells = ["30.00", "1.50", "0.500", "2.50", "40.0", "30.0", "5.5"]
    for row in (
        ["ours", "plain", "20.00", "1.00"], ["upstream", "plain", "10.00", "0.50"], ["ours", "2", *cells, "12.5%"],
        ["upstream", "3", *cells], ["look-up", "auto", *cells, "25.0%"], ["upstream", "mod", *cells],
        ["sampled", "2", *cells, "50.0%"], ["64", "50.0", "55.0", "75.0"], ["1.00", "1.10", "1.50"],
        ["700", "80", "76", "0.950", "60"],
    ):  # fmt: skip
        assert row in rows, rows
    assert report.summary(RESULT).splitlines()[::3] == [
        "best over plain          1.50",
        "a decode reads           1500 MB at 30.0 GB/s: memory limits it",
    ]
    assert report.summary(RESULT).endswith("all threads read 39.0 GB/s, one 20.0")
    slow = {**RESULT["memory"], "read_rate": 40.0e9}
    assert "30.0 GB/s: computation" in report.summary({**RESULT, "memory": slow, "best_over_upstream": None})
    titles = [str(report.tables({**RESULT, **given})[0].title) for given in ({}, {"accept": None, "drafter": "lookup"})]
    start = "synthetic tiny, q8_0, 40 tokens, 2 threads"
    assert titles == [f"{start}, acceptance 0.7, MTP head with 512 tokens", f"{start}, prompt look-up"]


@pytest.mark.parametrize(
    ("draft", "draft_type", "names"),
    [
        (None, None, ("target-q8_0.gguf", "draft-0-q8_0.gguf")),
        (None, "Q4_0", ("target-q8_0.gguf", "draft-0-q4_0.gguf")),
        ("dflash", None, ("blocks-q8_0.gguf", "dflash-0-q8_0.gguf")),
        ("dflash", "Q4_0", ("blocks-q8_0.gguf", "dflash-0-q4_0.gguf")),
        ("mtp", None, ("mtp-0-q8_0.gguf", None)),
        ("lookup", None, ("target-q8_0.gguf", None)),
    ],
)
def test_jobs_of_a_synthetic_pair(
    draft: str | None,
    draft_type: str | None,
    names: tuple[str, str | None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One job for each acceptance rate, the bounds included; the output rows of an MTP head are limited by default."""
    monkeypatch.setenv("LLAMA_EAGLE_CACHE", str(tmp_path))
    monkeypatch.setattr(PairFolder, "_make", lambda self, write, name, convert, out, outtype: out.touch())
    jobs = _jobs(Pair("tiny", draft=draft, draft_type=draft_type, accept="0,1"), Runs())
    assert [(facts["accept"], facts["draft_vocab"]) for facts, _ in jobs] == [
        (share, DRAFT_VOCAB if draft == "mtp" else None) for share in (0, 1)
    ]
    job = jobs[0][1]
    assert (job.target.name, job.draft and job.draft.name) == names


@pytest.mark.native
def test_costs_are_measured_up_to_the_longest_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call takes 2 ms. Contexts have multiples of 256 tokens: these texts end just behind the first of them."""

    def timed(call: Callable[[], object]) -> float:
        call()
        return 2.0

    monkeypatch.setattr(costs, "_timed", timed)
    depth = 256 - costs.N_TIMES * costs.MOST_ROWS - costs.MOST_ROWS + 2
    pair = write_pair(tmp_path)
    with loaded(Job(pair / "target.gguf", pair / "draft.gguf", "abc", n=9, threads=1, n_draft_max=4)) as ours:
        steps = list(costs.step_costs(ours, [depth, 32], 1))
        assert steps == [costs.StepCosts(n, 2.0, 2.0, [2.0] * costs.MOST_ROWS) for n in (32, depth)]
        assert list(costs.prompt_costs(ours, [40, 257], 1)) == [
            costs.PromptCosts(n, plain_tps=n * 500, draft_tps=n * 500) for n in (40, 257)
        ]


def test_steps_of_all_jobs_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """Each job has a step for each repetition, and one for sampling."""
    Runs(repetitions=5).plan(None, n_jobs=3).log("reading")
    assert capsys.readouterr().err == "[1 of 18] reading\n"


def test_bytes_of_a_decode(tmp_path: Path) -> None:
    """A dense target's file but its embeddings and its MTP head; of a mixture, the experts in use."""
    shape = {"block_count": 3, "nextn_predict_layers": 1, "expert_count": 8, "expert_used_count": 2}
    tensors = {
        "token_embd.weight": 100,
        "output.weight": 7,
        "blk.0.ffn_down_exps.weight": 80,
        "blk.0.ffn_down_shexp.weight": 5,
        "blk.1.attn_q.weight": 11,
        "blk.2.attn_q.weight": 1000,
    }
    assert decode_bytes([_header(shape, tensors)]) == 4 * (7 + 80 * 2 // 8 + 5 + 11)
    del tensors["output.weight"]
    assert decode_bytes([_header(shape, tensors)]) == 4 * (100 + 20 + 5 + 11)
    assert decode_bytes([_header({"block_count": 3}, tensors)]) == 4 * (100 + 80 + 5 + 11 + 1000)


def _header(keys: dict[str, int], sizes: dict[str, int]) -> Header:
    """F32 tensors of so many elements."""
    tensors = {name: TensorInfo(name, (n,), 0, 0) for name, n in sizes.items()}
    values = {"general.architecture": "qwen35moe", **{f"qwen35moe.{key}": n for key, n in keys.items()}}
    return Header(Path("target.gguf"), 3, values, tensors, 0, 0, {})
