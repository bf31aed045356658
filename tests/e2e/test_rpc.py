"""Layers on other machines: the same text with drafts, a server that dies, and servers that cannot be used."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fixtures.command import assert_one_line_error, llama_eagle
from fixtures.rpc import HOST, Meter, Program, about_devices, answering, free_port, rpc_program
from fixtures.serving import serve
from llama_eagle import EagleLlama
from llama_eagle.demo.run import DRAFT, TARGET
from llama_eagle.errors import EnvironmentFailure, NativeError, UsageError
from llama_eagle.generation.run import GREEDY
from llama_eagle.generation.sampling import Sampler
from llama_eagle.gguf.header import read_header
from llama_eagle.native import rpc
from llama_eagle.sessions import devices
from llama_eagle.sessions.models import Context, ModelPair
from llama_eagle.sessions.options import ContextOptions, LoadOptions, PairOptions, SessionOptions
from llama_eagle.sessions.session import EagleSession
from llama_eagle.synthetic.ggufs import convert_pair

pytestmark = pytest.mark.native

PROMPT = "Tell me of boats."
N = 40
SETTINGS = ("-p", PROMPT, "--raw", "-n", N, "-t", 1, "--temp", 0, "--no-lookup", "--ignore-eos")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return convert_pair(TARGET, DRAFT, tmp_path_factory.mktemp("demo"), "q8_0")


@pytest.fixture
def server() -> Iterator[Program]:
    with rpc_program() as program:
        yield program


def tokens(target: Path, draft: Path | str, *more: object) -> tuple[list[int], dict[str, object]]:
    length = ("--n-draft", 4) if draft != "none" else ()
    done = llama_eagle("generate", "-m", target, "-d", draft, *SETTINGS, *length, "--json", *more)
    assert done.code == 0, done.stderr
    return done.json["tokens"], done.json


def test_drafts_do_not_change_the_text(pair: tuple[Path, Path], server: Program) -> None:
    with rpc_program() as second:
        servers = ("--rpc", f"{server.endpoint},{second.endpoint}", "--tensor-split", "1,1")
        expected, report = tokens(pair[0], "none", *servers)
        placed = [part["server"] for part in report["placement"]]  # type: ignore[attr-defined]
        assert placed == [server.endpoint, second.endpoint]
        found, report = tokens(*pair, *servers)
        assert found == expected
        assert report["placement"][1]["head"]  # type: ignore[index]
    assert report["speculative"]["n_accepted"] > 0  # type: ignore[index]
    some = ("--rpc", server.endpoint, "-ngl", 2)
    plain, report = tokens(pair[0], "none", *some)
    assert [part["server"] for part in report["placement"]] == [None, server.endpoint]  # type: ignore[attr-defined]
    assert tokens(*pair, *some)[0] == plain


def test_doctor_says_where_layers_would_lie(pair: tuple[Path, Path], server: Program) -> None:
    found = llama_eagle("doctor", "-m", pair[0], "--rpc", server.endpoint, "-ngl", 2, "--json").json
    last = read_header(pair[0]).arch_key("block_count") - 1
    assert found["rpc_servers"][0]["server"] == server.endpoint
    assert found["rpc_servers"][0]["total_mib"] > 0
    local, remote = found["placement"]
    assert local == {"device": "CPU", "server": None, "layers": [0, last - 1], "head": False}
    assert remote == {"device": "RPC0", "server": server.endpoint, "layers": [last, last], "head": True}


def test_commands_take_servers(pair: tuple[Path, Path], server: Program, tmp_path: Path) -> None:
    target, draft = pair
    talk = llama_eagle(
        "chat", "-m", target, "-d", draft, "--rpc", server.endpoint, "-n", 8, "--temp", 0, stdin="Hello.\n"
    )
    assert talk.code == 0 and talk.stdout.strip(), talk.stderr
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": PROMPT}) + "\n")
    scores = llama_eagle(
        "evaluate", "-m", target, "-d", draft, "--data", prompts, "-n", 12, "--rpc", server.endpoint, "--json"
    ).json
    assert scores["rpc_servers"] == [server.endpoint]
    assert scores["overall"]["n_same"] == scores["overall"]["n_turns"] == 1
    runs = ("--n-draft", "3", "-n", 8, "--repetitions", 1)
    measured = llama_eagle("bench", "-m", target, "-d", draft, *runs, "--rpc", server.endpoint, "--json").json
    assert measured["plain_tps"] > 0 and measured["rpc_servers"] == [server.endpoint]


def test_serve(pair: tuple[Path, Path], server: Program) -> None:
    prompt = list(range(5, 25))
    expected = []
    for draft in ("none", pair[1]):
        settings = ("-m", pair[0], "-d", draft, "-c", 256, "-t", 1, "--rpc", server.endpoint)
        with serve(*settings) as served:
            expected.append(served.complete(prompt, N, temperature=0, ignore_eos=True)["tokens"])
    assert expected[0] == expected[1]
    with serve(*settings) as served:
        assert served.get("/health")[0] == 200
        server.kill()
        about = f"the RPC server {server.endpoint} is gone"
        for _ in range(2):  # before a request has failed, and after it
            status, answer = served.get("/health")
            assert status == 503 and about in answer["error"]["message"], answer
            status, answer = served.post("/completion", {"prompt": prompt, "n_predict": N})
            assert status == 503 and about in answer["error"]["message"], answer
        assert served.process.poll() is None


@pytest.mark.parametrize("drafts", [True, False])
def test_a_server_that_dies(pair: tuple[Path, Path], server: Program, drafts: bool) -> None:
    draft = {"draft": pair[1], "n_draft": 3} if drafts else {"draft": "none"}
    llm = EagleLlama(pair[0], rpc_servers=server.endpoint, n_ctx=256, n_threads=1, **draft)
    prompt = llm.tokenize(PROMPT.encode())
    text = [token for token, _ in zip(llm.generate(prompt, temp=0.0), range(N), strict=False)]
    state = llm.save_state()
    running = llm.generate(prompt, temp=0.0)
    begun = [next(running) for _ in range(5)]
    server.kill()
    with pytest.raises(NativeError, match=f"RPC server {server.endpoint} is gone"):
        begun += list(running)
    assert begun == text[: len(begun)]  # nothing of what was lost became text
    with pytest.raises(NativeError, match="is gone"):
        next(llm.generate(prompt, temp=0.0))
    for call in (llm.save_state, lambda: llm.load_state(state)):
        with pytest.raises(NativeError, match="is gone"):
            call()
    with pytest.raises(EnvironmentFailure, match="cannot be reached"):
        llm.reset()
    server.start()
    llm.reset()
    assert [token for token, _ in zip(llm.generate(prompt, temp=0.0), range(N), strict=False)] == text
    llm.close()


@pytest.mark.parametrize("part", [0.0, 0.3])
def test_a_server_that_dies_during_loading(pair: tuple[Path, Path], server: Program, part: float) -> None:
    """The files are not damaged: no advice to convert them again."""
    size = sum(path.stat().st_size for path in pair)
    found = []
    for load in (lambda endpoint: ModelPair(PairOptions(*pair, LoadOptions(rpc_servers=(endpoint,)))), drop_in(pair)):
        meter = Meter(server.endpoint, n_max=int(part * size) + 1000)
        with pytest.raises(EnvironmentFailure, match=r"is gone.* Start it again"):
            load(meter.endpoint).close()
        found.append(meter.n_sent)
    assert min(found) > 1000
    meter = Meter(server.endpoint, n_max=int(part * size) + 1000)
    done = llama_eagle("serve", "-m", pair[0], "-d", pair[1], "--port", 0, "--rpc", meter.endpoint)
    assert done.code == 4 and f"the RPC server {meter.endpoint} is gone" in done.stderr, done.stderr


def drop_in(pair: tuple[Path, Path]) -> Callable[[str], EagleLlama]:
    return lambda endpoint: EagleLlama(pair[0], draft=pair[1], rpc_servers=endpoint, n_ctx=256, n_threads=1)


def test_a_server_of_two_names(pair: tuple[Path, Path], server: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """llama.cpp would wait forever for its second connection."""
    monkeypatch.setattr(rpc, "TIMEOUT_S", 0.5)
    load = LoadOptions(rpc_servers=(server.endpoint, f"localhost:{server.port}"))
    with pytest.raises(EnvironmentFailure, match="has two of the given names"):
        devices.require_servers(load, pair[0])
    assert rpc.query(server.endpoint)  # and the server is usable


def test_a_session_of_a_dead_server_says_so(pair: tuple[Path, Path], server: Program) -> None:
    load = LoadOptions(rpc_servers=(server.endpoint,))
    with (
        ModelPair(PairOptions(*pair, load)) as models,
        Context(models.target, ContextOptions(256, n_threads=1, n_rs_seq=3)) as context,
        EagleSession(context, models.draft, SessionOptions(3)) as session,
    ):
        session.eval([5, 6, 7])
        server.kill()
        with pytest.raises(NativeError, match="is gone"):
            session.verify([8])


def test_a_round_in_bytes(pair: tuple[Path, Path], server: Program) -> None:
    """The server sends choices, no logits."""
    meter = Meter(server.endpoint)
    load = LoadOptions(rpc_servers=(meter.endpoint,))
    with (
        ModelPair(PairOptions(*pair, load)) as models,
        Context(models.target, ContextOptions(256, n_threads=1, n_rs_seq=3)) as context,
        EagleSession(context, models.draft, SessionOptions(3)) as session,
        Sampler(GREEDY, models.target.n_vocab) as sampler,
    ):
        session.eval([5, 6, 7])
        answers = []
        for _ in range(12):
            before = meter.n_received
            drafted = session.draft(8, 3)
            session.verify([8, *drafted])
            for row in range(4):
                sampler.sample(session.ctx, row)
            session.commit(4)
            answers.append(meter.n_received - before)
    n_vocab = read_header(pair[0]).n_vocab
    assert max(answers[2:]) < 512 < 4 * n_vocab  # of four rows of logits not one


def test_a_context_outlives_another(pair: tuple[Path, Path], server: Program) -> None:
    """A server drops its graph when a buffer is freed: the next decode sends it again."""
    load, options = LoadOptions(rpc_servers=(server.endpoint,)), ContextOptions(256, n_threads=1, n_rs_seq=3)
    chosen = []
    with (
        ModelPair(PairOptions(*pair, load)) as models,
        Context(models.target, options) as context,
        EagleSession(context, models.draft, SessionOptions(3)) as session,
        Sampler(GREEDY, models.target.n_vocab) as sampler,
    ):
        session.eval([5, 6, 7])
        for _ in range(3):
            session.verify([8])
            chosen.append(sampler.sample(session.ctx, 0))
            session.commit(0)
            Context(models.target, options).close()
    assert len(set(chosen)) == 1


# --- servers that cannot be used -----------------------------------------------------------------------------------


def test_nobody_there(pair: tuple[Path, Path]) -> None:
    port = free_port()
    for command in ("generate", "serve"):
        settings = SETTINGS if command == "generate" else ()
        done = llama_eagle(command, "-m", pair[0], "-d", "none", *settings, "--rpc", f"{HOST}:{port}")
        assert done.code == 4 and "cannot be reached" in done.stderr, done.stderr


def test_no_servers() -> None:
    assert_one_line_error(llama_eagle("doctor", "--rpc", "a:1,a:1"), 2, "--rpc", "names a server twice")


def test_too_little_memory(pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    load = LoadOptions(rpc_servers=(answering(*about_devices((1000, 1000))),))
    devices.require_servers(load, pair[0])
    with pytest.raises(UsageError, match="tensor_split has 9 shares for"):
        devices.require_servers(replace(load, tensor_split=[1.0] * 9), pair[0])
    monkeypatch.setattr(devices, "available_bytes", lambda: 1000)
    with pytest.raises(EnvironmentFailure, match="more than all machines have free"):
        devices.require_servers(load, pair[0])


def test_shares(pair: tuple[Path, Path]) -> None:
    for shares in ("x", "-1,2", "0,0"):
        outcome = llama_eagle("doctor", "--tensor-split", shares)
        assert_one_line_error(outcome, 2, "--tensor-split")


# --- the server's command ------------------------------------------------------------------------------------------


def test_rpc_server_listens_on_loopback_and_ends() -> None:
    port = free_port()
    command = [sys.executable, "-m", "llama_eagle", "rpc-server", "--port", str(port), "-t", "1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert re.fullmatch(rf"listening on 127\.0\.0\.1:{port}, \d+ of \d+ MiB free\n", line), line
    assert rpc.query(f"{HOST}:{port}")[0].total > 0
    taken = llama_eagle("rpc-server", "--port", port)
    assert_one_line_error(taken, 4, "cannot listen", str(port))
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(30) == 0
    with pytest.raises(EnvironmentFailure, match="cannot be reached"):
        rpc.query(f"{HOST}:{port}")


@pytest.mark.parametrize("host", ["", "::1", "[::1]"])
def test_rpc_server_listens_on_ipv4(host: str) -> None:
    assert_one_line_error(llama_eagle("rpc-server", "--host", host), 2, "--host", "IPv4")


def test_rpc_server_warns_of_trust() -> None:
    text = " ".join(llama_eagle("rpc-server", "--help").stdout.split())
    assert "not secure" in text and "Never expose it to a network that you do not trust" in text
