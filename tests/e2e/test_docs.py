"""Every shell and Python block of README and docs/, run as written: those of a page in order, in one folder.

A hub on loopback has tiny checkpoints under the names that the pages use. Options that a page leaves out come from a
configuration file, which keeps answers and training short. `make walk` reads README in a fresh clone, from `make demo`
on; `make try-wheel` with the packages alone.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fixtures.command import PYTHON, TIMEOUT_S, llama_eagle
from fixtures.eagle3_checkpoints import DraftSpec, make_draft
from fixtures.hub import serve_hub
from fixtures.rpc import HOST, free_port, wait_until_listening
from fixtures.serving import serve
from fixtures.training import chat, make_training_target, write_jsonl
from fixtures.vision_files import png
from llama_eagle.convert.drafts import DraftOptions, convert_draft
from llama_eagle.convert.targets import TargetOptions, convert_target, convert_vision
from safetensors.torch import load_file, save_file

pytestmark = pytest.mark.native

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]
QUICK = ("README.md", "docs/eagle-llama.md")  # part of `make test`
# `make try-wheel` has no program of the system in its path.
PATH = os.pathsep.join((str(Path(PYTHON).parent), os.environ["PATH"], os.defpath))

# Steps that cannot run here: their page and beginning, with the reason.
NOT_RUN = {
    "README.md: make demo": "`make walk` runs it, in a clone",
    "docs/building.md: ": "builds llama.cpp",
    "docs/cluster.md: vllm": "another program",
    "docs/cluster.md: python -m sglang": "another program",
    "docs/drafters.md: ": "tests/e2e/test_assistant.py makes such pairs",
    "docs/eagle-llama.md: from langchain": "another program: in the slow tests",
    "docs/exactness.md: llama-eagle check model.gguf --exact -ngl -1": "needs a GPU",
    "docs/gpu.md: ": "needs a GPU and builds llama.cpp",
    "docs/install.md: ": "wheels, containers and services: `make try-wheel`",
    "docs/server.md: pip install open-webui": "another program",
    "docs/server.md: claude": "another program",
    "docs/server.md: export ": "another program",
    "docs/server.md: open-webui": "another program",
    "docs/small-models.md: ": "tests/e2e/test_small_model.py makes such pairs",
    "docs/training.md: accelerate launch --multi_gpu": "needs GPUs",
    "docs/training.md: torchrun": "test_train_processes.py trains with it",
}

# Parts of steps that are replaced, because they take long.
SHORTER = {
    "docs/performance.md": {
        "--synthetic 0.8b": "--synthetic tiny",
        "--peers upstream": "",  # builds llama.cpp: test_bench_reports.py
        "--depths 64,8192 --prompts 512": "--depths 8,64 --prompts 16",
    },
    "docs/quantization.md": {"q8_0 q6_k q5_k_m q4_k_m:speculation q4_k_m iq4_xs q3_k_m": "q4_k_m:speculation"},
    "docs/reproduce.md": {"-n 1024": "-n 8", "-n 512": "-n 8"},
    "docs/training.md": {
        "--kind dspark": "--kind dspark --steps 2",
        "--hours 8": "--data my-texts.jsonl",
        "--init mtp-base.gguf": "--init mtp-base.gguf --data my-texts.jsonl",
    },
}

# Files and folders that a page presumes: their names on the page, and on the shelf or in this tree.
GIVEN = {
    "docs/cluster.md": {"target.gguf": "qwen3.gguf", "draft.gguf": "eagle3-qwen3.gguf"},
    "docs/commands.md": {"model.gguf": "qwen35.gguf", ".git": "tree/.git", "changed.txt": "text.txt"},
    "docs/eagle-llama.md": {"qwen3-8b.gguf": "qwen3.gguf", "draft.gguf": "eagle3-qwen3.gguf"},
    "docs/exactness.md": {"model.gguf": "qwen35.gguf"},
    "docs/images.md": {"photo.jpg": "a.png", "b.png": "b.png"},
    "docs/performance.md": {"model.gguf": "endless-qwen3.gguf", "draft.gguf": "eagle3-qwen3.gguf"},
    "docs/quantization.md": {
        "text.txt": "text.txt", "code.txt": "text.txt", "demo": ROOT / "demo", "bench": ROOT / "bench",
    },
    "docs/reproduce.md": {"draft": "eagle3-qwen35", "question.jsonl": "spec-bench.jsonl"},
    "docs/server.md": {
        "qwen3.5-4b.gguf": "qwen35.gguf", "qwen3-8b.gguf": "qwen3.gguf", "draft.gguf": "eagle3-qwen3.gguf",
        "model.gguf": "qwen35.gguf", "mmproj.gguf": "mmproj.gguf",
    },
    "docs/targets.md": {"text.txt": "text.txt", "draft": "eagle3-qwen35"},
    "docs/training.md": {
        "model-q4_k_m.gguf": "qwen35.gguf", "my-model.gguf": "qwen35.gguf", "mtp-base.gguf": "qwen35.gguf",
        "my-model": "qwen35-text", "my-texts.jsonl": "chats.jsonl", "questions.jsonl": "questions.jsonl",
    },
}  # fmt: skip

# Of the reader: options that keep answers and training short. Random weights may end a text as it begins, so a seed.
DEFAULTS = """
threads = 1
seed = 1
n-predict = 8
[bench]
repetitions = 1
[evaluate]
limit = 1
[train]
epochs = 1
steps = 1
max-length = 32
"""
REPOSITORIES = {
    "Qwen/Qwen3.5-4B": "qwen35", "Qwen/Qwen3.5-9B": "qwen35", "Qwen/Qwen3-8B": "qwen3",
    "AngelSlim/Qwen3-8B_eagle3": "eagle3-qwen3",
}  # fmt: skip
MACHINES = ("192.168.1.20", "192.168.1.21")  # of the pages; ports on loopback here
OF_SHELLS = frozenset("|<>&;$`*?[{(~")  # characters of commands that need a shell
KINDS = {"sh", "python", "json", "yaml", "toml"}
COMMAND = re.compile(r"^(?:[A-Z_]+=\S+ )*(?:llama-eagle|python3?|pip|git|make|curl|docker|cmake) ", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page. kind: the word behind the fence."""

    kind: str
    text: str

    def steps(self) -> list[str]:
        """Return what a reader runs: a program, or the commands of a shell block."""
        if self.kind == "python":
            return [self.text]
        return list(_commands(self.text)) if self.kind == "sh" else []


def _commands(text: str) -> Iterator[str]:
    """Yield each line, together with the lines that a backslash or an open quote adds to it."""
    command = ""
    for line in text.splitlines():
        command += f"{line}\n"
        if not line.endswith("\\") and not _is_open(command):
            yield command.strip()
            command = ""


def _is_open(command: str) -> bool:
    try:
        shlex.split(command, comments=True)
    except ValueError:
        return True
    return False


def blocks(page: str) -> list[Block]:
    found = re.findall(r"^ *```(\w*)\n(.*?)^ *```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    return [Block(kind, text) for kind, text in found]


def steps(page: str, skipped: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the kind and text of each step of a page, but for those in `skipped`."""
    found = [(block.kind, step) for block in blocks(page) for step in block.steps()]
    return [(kind, step) for kind, step in found if not any(f"{page}: {step}".startswith(key) for key in skipped)]


@dataclass
class Reader:
    """Runs steps in the current folder, as a reader with several terminals does.

    places: the addresses of servers, as written on the page and as they are.
    """

    environment: Mapping[str, str]
    servers: ExitStack
    places: dict[str, str] = field(default_factory=dict)

    def run(self, kind: str, step: str) -> None:
        for written, place in self.places.items():
            step = step.replace(written, place)
        if kind == "python":
            assert self._finish(PYTHON, "-c", step).strip(), step
        elif step.startswith("llama-eagle serve"):
            self._serve(step)
        elif step.startswith("llama-eagle rpc-server"):
            self._lend(step)
        elif step.startswith("curl"):
            step = step.replace("curl", "curl --silent --show-error --fail-with-body", 1)
            assert self._finish("bash", "-c", step).strip(), step
        elif step.startswith("llama-eagle") and not OF_SHELLS.intersection(step):
            self._fork(step)
        else:
            self._finish("bash", "-o", "pipefail", "-c", step)

    def _fork(self, command: str) -> None:
        """Run a command that needs no shell, without importing all again (fixtures.forks)."""
        arguments = shlex.split(command.replace("\\\n", " "), comments=True)[1:]
        changed = {name: value for name, value in self.environment.items() if os.environ.get(name) != value}
        done = llama_eagle(*arguments, stdin="Hello.\n", **changed)
        assert done.code == 0, f"{command}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"

    def _finish(self, *command: str) -> str:
        """Run a command to its end, with a line for a chat, and return what it wrote to stdout."""
        done = subprocess.run(
            command, input="Hello.\n", capture_output=True, text=True, timeout=TIMEOUT_S, env=self.environment
        )
        assert done.returncode == 0, f"{command[-1]}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done.stdout

    def _serve(self, command: str) -> None:
        """Start a server on a free port, in place of the one before."""
        self.servers.close()
        arguments = shlex.split(command, comments=True)[2:]
        served = self.servers.enter_context(serve(*arguments, **self.environment))
        self.places["http://127.0.0.1:8000"] = served.address

    def _lend(self, command: str) -> None:
        """Run the command of the page for each of its machines."""
        for machine in MACHINES:
            port = free_port()
            arguments = shlex.split(command.replace(MACHINES[0], HOST).replace("50052", str(port)), comments=True)
            process = subprocess.Popen(
                [PYTHON, "-m", "llama_eagle", *arguments[1:]], stdout=subprocess.DEVNULL, env=self.environment
            )
            self.servers.callback(process.wait)
            self.servers.callback(process.terminate)
            wait_until_listening(process, port)
            self.places[f"{machine}:50052"] = f"{HOST}:{port}"


def _end_soon(checkpoint: Path) -> None:
    """Make the end of an answer likely: random weights would write to the end of the context."""
    added = json.loads((checkpoint / "tokenizer.json").read_text())["added_tokens"]
    end = next(token["id"] for token in added if token["content"] == "<|im_end|>")
    state = load_file(checkpoint / "model.safetensors")
    state["lm_head.weight"][end] *= 4
    save_file(state, checkpoint / "model.safetensors", metadata={"format": "pt"})


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints, models, drafts, texts and pictures that pages presume."""
    folder = tmp_path_factory.mktemp("shelf")
    for family, mtp in (("qwen35", True), ("qwen3", False)):
        checkpoint, draft = make_training_target(family, folder / family, mtp=mtp), folder / f"eagle3-{family}"
        convert_target(checkpoint, folder / f"endless-{family}.gguf", TargetOptions(outtype="q8_0"))
        _end_soon(checkpoint)
        target = folder / f"{family}.gguf"
        convert_target(checkpoint, target, TargetOptions(outtype="q8_0"))
        make_draft(draft, DraftSpec())
        convert_draft(draft, target, Path(f"{draft}.gguf"), DraftOptions(outtype="bf16"))
    convert_vision(folder / "qwen35", folder / "mmproj.gguf")
    make_training_target("qwen35-text", folder / "qwen35-text", mtp=True)
    for name, seed in (("a.png", 1), ("b.png", 2)):
        (folder / name).write_bytes(png(seed))
    (folder / "text.txt").write_text("The quick brown fox jumps over the lazy dog. " * 100)
    write_jsonl(folder / "chats.jsonl", *[chat("Why is the sky blue?", "It's the quick brown fox.")] * 8)
    write_jsonl(folder / "questions.jsonl", *[chat("Why is the sky blue?")] * 2)
    write_jsonl(folder / "spec-bench.jsonl", {"question_id": 1, "category": "math", "turns": ["1 + 1?", "And 2 + 2?"]})
    (folder / "tree").mkdir()
    (folder / "tree/changed.txt").write_text("before\n")
    for arguments in (("init", "--quiet"), ("add", "changed.txt")):
        subprocess.run(["git", *arguments], cwd=folder / "tree", env={**os.environ, "PATH": PATH}, check=True)
    return folder


@pytest.fixture(scope="module")
def hub(shelf: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("hub")
    for name, source in REPOSITORIES.items():
        shutil.copytree(shelf / source, folder / name)
    with serve_hub(folder) as endpoint:
        yield endpoint


@pytest.fixture
def reader(hub: str, shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    """A reader in an empty folder."""
    home, page = tmp_path / "home", tmp_path / "page"
    home.mkdir()
    page.mkdir()
    (home / "config.toml").write_text(DEFAULTS)
    monkeypatch.chdir(page)
    monkeypatch.setenv("HF_ENDPOINT", hub)
    monkeypatch.setenv("HF_HOME", str(shelf / "hf"))  # of all pages: the process that forks reads it when it starts
    environment = {
        **os.environ, "LLAMA_EAGLE_CACHE": str(home / "cache"),
        "LLAMA_EAGLE_CONFIG": str(home / "config.toml"), "PATH": PATH,
    }  # fmt: skip
    with ExitStack() as servers:
        yield Reader(environment, servers)


def read(page: str, reader: Reader, shelf: Path, skipped: Mapping[str, str]) -> None:
    for name, source in GIVEN.get(page, {}).items():
        path = shelf / source
        (shutil.copytree if path.is_dir() else shutil.copyfile)(path, name)
    for kind, step in steps(page, skipped):
        for long, short in SHORTER.get(page, {}).items():
            step = step.replace(long, short)
        reader.run(kind, step)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page, marks=[] if page in QUICK else [pytest.mark.extended])
        for page in PAGES
        if steps(page, NOT_RUN)
    ],
)
def test_page(page: str, reader: Reader, shelf: Path) -> None:
    read(page, reader, shelf, NOT_RUN)


@pytest.mark.slow
def test_page_with_langchain(reader: Reader, shelf: Path) -> None:
    read("docs/eagle-llama.md", reader, shelf, {})


def test_exceptions_name_what_the_pages_have() -> None:
    written = [f"{page}: {step}" for page in PAGES for _, step in steps(page, {})]
    assert not [key for key in NOT_RUN if not any(step.startswith(key) for step in written)]
    shorter = [(page, long) for page, parts in SHORTER.items() for long in parts]
    assert not [part for page, part in shorter if not any(part in step for _, step in steps(page, NOT_RUN))]


@pytest.mark.parametrize("page", PAGES)
def test_no_command_is_in_a_block_of_another_kind(page: str) -> None:
    assert {block.kind for block in blocks(page)} <= KINDS | {""}
    assert not [block.text for block in blocks(page) if block.kind != "sh" and COMMAND.search(block.text)]
