"""`llama-eagle bench`: what it reports, its figures' arithmetic, and llama.cpp's own driver on our files."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from fixtures.command import assert_one_line_error, llama_eagle
from llama_eagle.bench import peer
from llama_eagle.bench.costs import MOST_ROWS, decode_bytes
from llama_eagle.bench.measurement import Measurement, middle
from llama_eagle.bench.peer import Peer, PeerJob
from llama_eagle.bench.run import PeerRuns
from llama_eagle.gguf.header import Header, TensorInfo
from llama_eagle.synthetic.cycle import Cycle
from llama_eagle.synthetic.shapes import SHAPES

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


def test_figures_of_the_peer(tmp_path: Path) -> None:
    tool = tmp_path / "llama-speculative-simple"
    tool.write_text(f"#!/bin/sh\ncat >&2 <<'END'{RECORDED}END\n")
    tool.chmod(0o755)
    job = PeerJob(tmp_path / "t.gguf", n=120, threads=1)
    measured = Peer(tmp_path, "commit").speculate(job, tmp_path / "d.gguf", "text", 4)
    assert measured == Measurement(
        tps=30.0, accept_rate=0.5, mean_emitted=3.0, round_ms=100.0, verify_ms=75.0, draft_ms=25.0
    )


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


@pytest.mark.native
def test_report(tmp_path: Path) -> None:
    plot = tmp_path / "speed.png"
    options = ("--synthetic", "tiny", "-n", 40, "-t", 1, "--repetitions", 1, "--accept", "0.7,0.9")
    outcome = llama_eagle(
        "bench",
        *options,
        "--n-draft",
        "2,auto",
        "--draft-type",
        "q4_0",
        "--chat",
        50,
        "--plot",
        plot,
        "--json",
        LLAMA_EAGLE_CACHE=str(tmp_path),
    )
    assert outcome.code == 0, outcome
    report = outcome.json
    assert [run["accept"] for run in report["by_accept"]] == [0.7, 0.9]
    assert (report["type"], report["draft_type"]) == ("q8_0", "q4_0")
    assert [row["n_draft"] for row in report["ours"]] == [2, "auto"]
    runs = [*report["ours"], report["lookup"]]
    assert report["best_over_plain"] == pytest.approx(max(r["tps"] for r in runs) / report["plain_tps"])
    assert (report["upstream"], report["best_over_upstream"]) == ([], None)
    (costs,) = report["steps"]
    assert costs["depth"] == 64
    assert len(costs["verify_ms"]) == MOST_ROWS
    assert costs["verify_over_decode"][4] == pytest.approx(costs["verify_ms"][4] / costs["decode_ms"])
    assert report["prompts"] == []
    assert report["hardware"]["cores"] >= 1
    for row in report["ours"]:
        assert row["draft_ms"] + row["verify_ms"] <= row["round_ms"]
        assert 0 <= row["python_share"] < 1
    assert report["sampled"]["over_greedy"] > 0
    (row,) = (row for row in report["ours"] if row["n_draft"] == report["chat"]["n_draft"])  # the fastest length
    assert 1 < report["chat"]["mean_emitted"] <= MOST_ROWS
    if row["n_draft"] != "auto":  # whose lengths follow measured times
        assert report["chat"]["mean_emitted"] == pytest.approx(row["mean_emitted"], rel=0.2)
    assert 0 < report["chat"]["python_share"] < 1
    assert plot.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


@pytest.mark.native
def test_steps_and_prompts_in_a_quantized_memory(tmp_path: Path) -> None:
    options = ("--synthetic", "tiny", "-n", 8, "-t", 1, "--repetitions", 1, "--n-draft", 2)
    what = ("--depths", "200,32", "--prompts", "40,700", "--cache-type-k", "q8_0", "--cache-type-v", "q8_0")
    report = llama_eagle("bench", *options, *what, "--json", LLAMA_EAGLE_CACHE=str(tmp_path)).json
    assert [costs["depth"] for costs in report["steps"]] == [32, 200]
    assert [costs["n"] for costs in report["prompts"]] == [40, 700]
    for costs in report["prompts"]:
        assert costs["draft_over_plain"] == pytest.approx(costs["draft_tps"] / costs["plain_tps"])
        assert costs["upstream_tps"] is None
    text = llama_eagle("bench", *options, *what, LLAMA_EAGLE_CACHE=str(tmp_path))
    assert text.code == 0, text
    assert all(len(line) <= 80 for line in text.stdout.splitlines())


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


@pytest.mark.native
@pytest.mark.parametrize("rows", ["512", "all"])
def test_the_targets_own_head(rows: str, tmp_path: Path) -> None:
    """The constructed acceptance with all rows; 512 of the text's 2048 words draft less."""
    options = ("--synthetic", "tiny", "-d", "mtp", "-n", 200, "-t", 1, "--repetitions", 1, "--n-draft", 3)
    chat = ("--chat", 60)
    outcome = llama_eagle("bench", *options, *chat, "--draft-vocab", rows, "--json", LLAMA_EAGLE_CACHE=str(tmp_path))
    assert outcome.code == 0, outcome
    report = outcome.json
    assert report["chat"]["n_draft"] == 3
    assert report["chat"]["accept_rate"] == pytest.approx(report["ours"][0]["accept_rate"], abs=0.2)
    assert (report["drafter"], report["draft_vocab"]) == ("mtp", 512 if rows == "512" else None)
    (made,) = (tmp_path / "llama-eagle" / "synthetic" / "tiny").glob("*.gguf")
    assert made.name == "mtp-0.7-q8_0.gguf"
    shape = SHAPES["tiny"]
    cycle = Cycle(shape.n_vocab, shape.n_draft_vocab, 0.7, 0, mtp=True)
    expected = cycle.simulate(int(cycle.ids[2]), 200, 3).accept_rate
    found = report["ours"][0]["accept_rate"]
    assert found == pytest.approx(expected, abs=0.02) if rows == "all" else found < expected / 2


@pytest.mark.native
def test_a_file_with_a_smaller_draft(tmp_path: Path) -> None:
    from llama_eagle.gguf.header import read_model
    from llama_eagle.synthetic.ggufs import PairFolder

    files = PairFolder(tmp_path / "pair", "tiny").files(0.9, "q8_0")
    options = ("-m", files.target, "-d", files.draft, "-n", 16, "-t", 1, "--repetitions", 1, "--n-draft", "auto")
    outcome = llama_eagle("bench", *options, "--draft-type", "q4_0", "--json", LLAMA_EAGLE_CACHE=str(tmp_path))
    assert outcome.code == 0, outcome
    assert outcome.json["draft_type"] == "q4_0"
    (made,) = (tmp_path / "llama-eagle" / "drafts").iterdir()
    assert read_model(made)[0].tensors["blk.0.ffn_up.weight"].type_name == "Q4_0"


@pytest.mark.native
@pytest.mark.slow
@pytest.mark.parametrize("drafter", ["eagle3", "mtp"])
@pytest.mark.parametrize("outtype", ["q8_0", "q4_k_m", "q4_0"])
def test_llama_cpp_runs_our_files(drafter: str, outtype: str, tmp_path: Path) -> None:
    """The stock driver on converted and quantized files: text and acceptance as constructed."""
    from llama_eagle.synthetic.ggufs import PairFolder

    built, folder = peer.build_peer(), PairFolder(tmp_path / "tiny", "tiny")
    files = folder.mtp(0.7, outtype) if drafter == "mtp" else folder.files(0.7, outtype)
    draft = getattr(files, "draft", None)
    command = [
        *(str(built.folder / "llama-speculative-simple"), "-m", str(files.target), "--spec-type", f"draft-{drafter}"),
        *("--spec-draft-n-max", "4", "-p", " A B C", "-n", "300", "--temp", "0", "-t", "1", "-tb", "1", "-c", "1024"),
        *(("-md", str(draft), "-td", "1", "-tbd", "1") if draft else ()),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert files.cycle.expected_text(int(files.cycle.ids[2]), 295) in done.stdout
    measured = built.speculate(PeerJob(files.target, n=300, threads=1), draft, " A B C", 4)
    expected = files.cycle.simulate(int(files.cycle.ids[1]), 300, 4)
    assert measured.accept_rate == pytest.approx(expected.accept_rate, abs=0.02)


@pytest.mark.native
def test_a_model_without_a_draft(tmp_path: Path) -> None:
    """Look-up drafts where nothing else does, and next to a draft it is measured alone."""
    from llama_eagle.synthetic.ggufs import PairFolder

    files = PairFolder(tmp_path / "pair", "tiny").files(0.7, "q8_0")
    (tmp_path / "alone").mkdir()
    target = tmp_path / "alone" / "target.gguf"
    target.symlink_to(files.target)
    options = ("-n", 40, "-t", 1, "--repetitions", 1, "--n-draft", "2", "--chat", 16, "--json")
    for given in ((), ("-d", "lookup")):
        report = llama_eagle("bench", "-m", target, *given, *options).json
        assert (report["drafter"], report["lookup"]) == ("lookup", None)
        assert [row["n_draft"] for row in report["ours"]] == [2]
        assert report["steps"][0]["draft_ms"] is None
    both = llama_eagle("bench", "-m", target, "-d", files.draft, *options)
    assert (both.json["drafter"], both.json["lookup"]["n_draft"]) == ("eagle3", "auto")
    assert both.json["upstream_lookup"] == []
    steps = [line for line in both.stderr.splitlines() if line.startswith("[")]
    assert [step[:8] for step in steps] == ["[1 of 2]", "[2 of 2]"]
    text = llama_eagle("bench", "-m", target, *options[:-1])
    assert "prompt look-up" in text.stdout
