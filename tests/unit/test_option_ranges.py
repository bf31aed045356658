"""Numeric options of the command line: a wrong value is refused before a model is loaded, by the name of the option."""

from __future__ import annotations

from pathlib import Path

import pytest
from fixtures.tiny_gguf import write_target
from llama_eagle import cli
from llama_eagle.cli.app import command

pytestmark = pytest.mark.native

HUGE = "1000000000000"  # llama.cpp would read 32 bits of it
COUNT = ("-1", "-3", HUGE, "1.5", "nan")
LAYERS = ("-2", HUGE, "nan")
SHARE = ("-0.1", "1", "1.5", "nan", "inf")
# option -> wrong values
WRONG: dict[str, tuple[str, ...]] = {
    "--n-predict": ("0", "-2", "1.5", "nan"),
    "--ctx-size": COUNT,
    "--n-draft": COUNT,
    "--n-draft-max": ("0", *COUNT),
    "--p-min": SHARE,
    "--draft-vocab": ("-1", "0", "15", "nan"),
    "--draft-gpu-layers": LAYERS,
    "--draft-ctx-size": COUNT,
    "--temp": ("-1", "-0.001", "1000", "nan", "inf"),
    "--top-k": COUNT,
    "--top-p": ("0", "-0.5", "1.5", "nan", "inf"),
    "--min-p": SHARE,
    "--repeat-penalty": ("0", "-1", "1e39", "nan", "inf"),
    "--seed": ("-1", "4294967295", HUGE, "nan"),
    "--n-gpu-layers": LAYERS,
    "--tensor-split": ("-1", "0", "0,0", "1,-1", "nan", "1e39", "a"),
    "--threads": ("-1", "513", HUGE, "nan"),
    "--batch-size": ("1", *COUNT),
    "--ubatch-size": ("1", *COUNT),
    "--parallel": ("0", "-1", "17", HUGE, "nan"),
    "--port": ("-1", "65536", HUGE, "nan"),
}
NUMBERS = ("N", "X", "K|auto", "N|auto", "N|all", "N,...")  # metavars
COMMANDS = ("generate", "chat", "serve", "answer")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranges")
    write_target(folder / "target.gguf")
    (folder / "prompts.jsonl").write_text('"abc"\n')
    return folder


def numeric(name: str) -> list[str]:
    """Return the options of a command that take numbers."""
    parameters = command().commands[name].params
    flags = {flag: each.metavar for each in parameters for flag in each.opts if flag.startswith("--")}
    return [flag for flag, metavar in flags.items() if metavar in NUMBERS]


@pytest.mark.parametrize("name", COMMANDS)
def test_wrong_numbers_are_refused_by_name(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [name, "-m", str(folder / "target.gguf")]
    words += {
        "generate": ["-p", "a"],
        "answer": [str(folder / "prompts.jsonl"), "-o", str(folder / "answers.jsonl")],
    }.get(name, [])
    options = numeric(name)
    assert set(options) <= WRONG.keys()
    for option in options:
        for value in WRONG[option]:
            code = cli.run([*words, f"{option}={value}"])
            shown = capsys.readouterr()
            assert (code, shown.out) == (2, ""), (option, value, shown.err)
            (line,) = shown.err.splitlines()
            assert line.startswith("error: ") and option in line
    assert sorted(path.name for path in folder.iterdir()) == ["prompts.jsonl", "target.gguf"]
