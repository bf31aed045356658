"""The number of threads through every front end: automatic, too many, and values that are refused."""

from __future__ import annotations

import json
import os
import re
import warnings
from pathlib import Path

import pytest
from fixtures.command import Outcome, assert_one_line_error, llama_eagle
from fixtures.tiny_gguf import write_target
from llama_eagle.drafting.options import DraftingOptions
from llama_eagle.drop_in.options import PARENT_PARAMETERS, EagleOptions, refuse_conflicts, with_our_defaults
from llama_eagle.errors import UsageError
from llama_eagle.native.processor import threads
from llama_eagle.serving.llama_server.options import ServerOptions, from_config
from llama_eagle.sessions.options import ContextOptions

TOO_MANY = 400


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(tmp_path_factory.mktemp("threads") / "target.gguf")


def generate(target: Path, *arguments: object, config: Path | None = None) -> Outcome:
    environment = {"LLAMA_EAGLE_CONFIG": str(config or os.devnull)}
    return llama_eagle("generate", "-m", target, "--raw", "-p", "abc", "-n", 2, "--temp", 0, *arguments, **environment)


@pytest.mark.native
class TestCommands:
    @pytest.mark.parametrize("value", ["auto", "0", "Auto"])
    def test_automatic(self, target: Path, value: str) -> None:
        outcome = generate(target, "-t", value)
        assert (outcome.code, outcome.stdout, outcome.stderr) == (0, "de\n", "")

    def test_more_than_there_are(self, target: Path) -> None:
        outcome = generate(target, "-t", max(os.cpu_count() or 1, 3) + 1)
        assert (outcome.code, outcome.stdout) == (0, "de\n")
        assert outcome.stderr.startswith("warning: ")
        assert outcome.stderr.count("\n") == 1

    @pytest.mark.parametrize("value", ["0", "auto", 0])
    def test_automatic_in_the_configuration(self, target: Path, tmp_path: Path, value: object) -> None:
        config = tmp_path / "config.toml"
        config.write_text(f"threads = {json.dumps(value)}\n")
        assert (outcome := generate(target, config=config)).code == 0, outcome


@pytest.mark.parametrize("command", ["generate", "chat", "serve", "evaluate", "bench", "run", "demo", "rpc-server"])
@pytest.mark.parametrize("value", ["-1", "two", "2.5", "100000", ""])
def test_refused_by_name(command: str, value: str) -> None:
    assert_one_line_error(llama_eagle(command, "--threads", value), 2, "--threads", "from 1 to 512, or auto")


@pytest.mark.parametrize("text", ["-2", '"many"', "true", "1.5", "[1]", '""'])
@pytest.mark.parametrize("table", ["", "[generate]\n"])
def test_the_configuration_file_is_named(tmp_path: Path, table: str, text: str) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f"{table}threads = {text}\n")
    assert_one_line_error(generate(tmp_path / "no.gguf", config=config), 2, f"{config}: threads: ")


def test_an_option_on_the_command_line_is_not_blamed_on_the_file(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("threads = 1\n")
    outcome = generate(tmp_path / "no.gguf", "-t", "x", config=config)
    assert_one_line_error(outcome, 2, "--threads")
    assert str(config) not in outcome.stderr


@pytest.mark.native
def test_doctor() -> None:
    report = llama_eagle("doctor", "--json").json["processor"]
    assert report["default_threads"] == threads.default_threads()
    assert report["allowed_cores"] == len(os.sched_getaffinity(0))
    assert 1 <= report["physical_cores"] <= report["logical_cores"]
    assert report["total_mib"] > 0
    text = llama_eagle("doctor", "--memory").stdout
    assert re.search(r"^memory bandwidth +[\d.]+ GB/s with \d+ threads, [\d.]+ with one$", text, re.M)
    (bound,) = re.findall(r"^plain decoding +at most ([\d.]+) tokens/s per GB", text, re.M)
    assert f" {bound} GB/s with " in text
    one = report["default_threads"] == 1
    assert bool(re.search(r"^drafts +(threads wait for memory|each thread reads at full speed)", text, re.M)) is not one
    for part in (f"{report['physical_cores']} physical", f"{report['default_threads']} by default", "quota: "):
        assert part in text


class TestEagleLlama:
    @pytest.mark.parametrize("value", [None, 0, "auto"])
    def test_automatic(self, value: object) -> None:
        given = with_our_defaults({"n_threads": value, "n_threads_batch": value}, EagleOptions())
        assert given["n_threads"] == given["n_threads_batch"] == threads.default_threads()

    def test_one_stands_for_both(self) -> None:
        assert with_our_defaults({"n_threads": 1}, EagleOptions())["n_threads_batch"] == 1
        assert with_our_defaults({"n_threads_batch": "1"}, EagleOptions())["n_threads"] == 1
        given = with_our_defaults({"n_threads": 2, "n_threads_batch": 1}, EagleOptions())
        assert (given["n_threads"], given["n_threads_batch"]) == (2, 1)

    @pytest.mark.parametrize("name", ["n_threads", "n_threads_batch"])
    @pytest.mark.parametrize("value", [-1, "four", 1.5, True, 513])
    def test_refused(self, name: str, value: object) -> None:
        with pytest.raises(UsageError, match=f"^{name} "):
            refuse_conflicts(EagleOptions(), {**PARENT_PARAMETERS, name: value})

    def test_more_than_there_are(self) -> None:
        with pytest.warns(UserWarning, match=f"{TOO_MANY} threads"):
            refuse_conflicts(EagleOptions(), {**PARENT_PARAMETERS, "n_threads": TOO_MANY})
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            refuse_conflicts(EagleOptions(), {**PARENT_PARAMETERS, "n_threads": "auto"})


@pytest.mark.parametrize("value", ["auto", 0, None, "0"])
def test_contexts_take_the_automatic_choice(value: object) -> None:
    assert ContextOptions(n_threads=value).n_threads == threads.AUTO  # type: ignore[arg-type]


def served(value: object) -> ServerOptions:
    base = ServerOptions(Path(), DraftingOptions(), ContextOptions())
    return from_config(Path("serve.yaml"), {"model": "m.gguf", "n_threads": value}, base)


@pytest.mark.parametrize(("value", "n"), [("auto", 0), (0, 0), (1, 1), ("1", 1)])
def test_the_servers_file(value: object, n: int) -> None:
    assert served(value).context.n_threads == n


@pytest.mark.parametrize("value", [-1, "two", 1.5, True, [2], 1000])
def test_the_servers_file_is_named(value: object) -> None:
    with pytest.raises(UsageError, match=r"^serve\.yaml: .*n_threads "):
        served(value)
