"""`llama-eagle bench` on small pairs: what it reports, and llama.cpp's own driver on our files."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from fixtures.command import llama_eagle
from fixtures.upstream import source_folder
from llama_eagle.bench import peer
from llama_eagle.bench.costs import MOST_ROWS
from llama_eagle.bench.peer import PeerJob
from llama_eagle.synthetic.cycle import Cycle
from llama_eagle.synthetic.shapes import SHAPES


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
    options = ("--synthetic", "tiny", "-n", 8, "-t", 1, "--repetitions", 1, "--n-draft", 2, "--accept", 0.7)
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


@pytest.mark.native
@pytest.mark.parametrize("rows", ["512", "all"])
def test_the_targets_own_head(rows: str, tmp_path: Path) -> None:
    """The constructed acceptance with all rows; 512 of the text's 2048 words draft less."""
    options = ("--synthetic", "tiny", "-d", "mtp", "-n", 200, "-t", 1, "--repetitions", 1, "--n-draft", 3)
    options += ("--accept", 0.7)
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
        assert (report["drafter"], report["lookup"], report["type"]) == ("lookup", None, "Q8_0")
        assert [row["n_draft"] for row in report["ours"]] == [2]
        assert report["steps"][0]["draft_ms"] is None
    both = llama_eagle("bench", "-m", target, "-d", files.draft, *options)
    assert (both.json["drafter"], both.json["lookup"]["n_draft"]) == ("eagle3", "auto")
    assert both.json["upstream_lookup"] == []
    steps = [line for line in both.stderr.splitlines() if line.startswith("[")]
    assert [step[:8] for step in steps] == ["[1 of 2]", "[2 of 2]"]
    text = llama_eagle("bench", "-m", target, *options[:-1])
    assert "target.gguf, Q8_0, 40 tokens" in text.stdout and "prompt look-up" in text.stdout


@pytest.mark.native
def test_llama_cpps_tools_can_be_configured(tmp_path: Path) -> None:
    """The slow tests compile them."""
    peer._compile(source_folder(), tmp_path / "build", [], tmp_path / "log", ["help"])
    targets = (tmp_path / "log").read_text()
    assert all(tool in targets for tool in (*peer.TOOLS, peer.SERVER))
