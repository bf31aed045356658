"""Imports of a command: nothing that it does not need."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest
from fixtures.command import PYTHON
from fixtures.tiny_gguf import write_draft, write_target

UNNEEDED = (
    "torch", "transformers", "safetensors", "huggingface_hub", "gguf", "yaml", "urllib.request", "http.client", "PIL",
    "rich", "prompt_toolkit", "matplotlib", "numpy.testing", "numpy.random", "numpy.f2py", "asyncio", "unittest",
    "pydantic", "jinja2", "diskcache", "sqlite3", "importlib.metadata", "llama_cpp.llama",
    "llama_eagle.drop_in", "llama_eagle.serving", "llama_eagle.bench", "llama_eagle.train", "llama_eagle.convert",
)  # fmt: skip

PROGRAM = """
import sys
from llama_eagle.cli import run
code = run(sys.argv[2:])
print(code, *(name for name in sys.argv[1].split(",") if name in sys.modules))
"""


def imported(*arguments: object) -> tuple[str, list[str]]:
    """Exit code, and the modules of UNNEEDED that a command imports."""
    command = [PYTHON, "-c", PROGRAM, ",".join(UNNEEDED), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    code, *names = done.stdout.splitlines()[-1].split()
    return code, names


@pytest.mark.native
def test_generate(tmp_path: Path) -> None:
    target = write_target(tmp_path / "target.gguf")
    assert imported("generate", "-m", target, "--raw", "-p", "abc", "-n", 2, "-t", 1, "--temp", 0.5) == ("0", [])


WHOLE_PACKAGE = """
import sys
from llama_eagle.native import llama_cpp as functions
assert "llama_cpp" not in sys.modules
{first}
import llama_cpp
assert functions is llama_cpp.llama_cpp is sys.modules["llama_cpp.llama_cpp"]
assert llama_cpp.Llama is sys.modules["llama_cpp.llama"].Llama and llama_cpp.__version__
assert llama_cpp.llama_model_params is functions.llama_model_params
"""


@pytest.mark.native
@pytest.mark.parametrize(
    "first", ["", "import llama_cpp.llama", "import llama_cpp.llama_cpp", "from llama_cpp import *"]
)
def test_llama_cpp_can_be_imported_after_its_functions(first: str) -> None:
    subprocess.run([PYTHON, "-c", WHOLE_PACKAGE.format(first=first)], check=True, timeout=120)


SERVER = """
import os, sys
from llama_eagle.cli import run

def hook(event, args):
    if event == "subprocess.Popen" and "llama-server" in str(args[0]):
        print(*{*sys.argv[2:]} & {*sys.modules}, flush=True)
        os._exit(0)

sys.addaudithook(hook)
run(["serve", "-m", sys.argv[1], "--port", "0"])
"""


@pytest.mark.native
def test_a_model_loads_while_serve_imports_its_web_framework(tmp_path: Path) -> None:
    late = "uvicorn", "numpy", "asyncio", "urllib.request", "llama_cpp.llama_cpp"
    command = [PYTHON, "-c", SERVER, write_target(tmp_path / "target.gguf"), *late]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "\n", done.stderr


ENDED = """
import os, signal, sys
from llama_eagle.cli import run

def hook(event, args):
    if event == "import" and args[0] == "uvicorn":
        os.kill(os.getpid(), int(sys.argv[2]))

sys.addaudithook(hook)
sys.exit(run(["serve", "-m", sys.argv[1], "--port", "0"]))
"""


@pytest.mark.native
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_serve_ends_cleanly_while_it_imports_its_web_framework(
    number: int, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    command = [PYTHON, "-c", ENDED, write_target(tmp_path / "target.gguf"), int(number)]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120, check=False)
    # The child may have loaded the model before; its log is read after the imports.
    assert (done.returncode, done.stdout, [*folder.iterdir()]) == (code, "", []), done.stderr
    assert "Traceback" not in done.stderr


def test_a_usage_error_loads_no_library() -> None:
    code, names = imported("generate", "--threads", "x")
    assert code == "2" and {*names} <= {"pydantic", "importlib.metadata"}, "typer reports the error with pydantic"


HEADERS = """
import sys
parsed = []
sys.addaudithook(lambda event, _: parsed.append(event) if event == "mmap.__new__" else None)
{act}
print(len(parsed))
"""


@pytest.mark.native
@pytest.mark.parametrize("draft", [False, True])
@pytest.mark.parametrize(
    "act",
    [
        "from llama_eagle.cli import run; run(['generate', '--raw', '-p', 'abc', '-n', '2', '-m', *sys.argv[1:]])",
        "from llama_eagle import EagleLlama; EagleLlama(sys.argv[1], draft=(sys.argv[3:] or [None])[0])",
    ],
    ids=["generate", "EagleLlama"],
)
def test_each_header_is_parsed_once(tmp_path: Path, act: str, draft: bool) -> None:
    arguments = [str(write_target(tmp_path / "target.gguf"))]
    if draft:
        arguments += ["-d", str(write_draft(tmp_path / "draft.gguf"))]
    command = [PYTHON, "-c", HEADERS.format(act=act), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert int(done.stdout.split()[-1]) == 1 + draft


INTERRUPTED = """
import signal, sys
place, *sys.argv = sys.argv[1:]
sys.addaudithook(lambda event, seen: event == "import" and seen[0] == place and signal.raise_signal(signal.SIGINT))
import llama_eagle.cli
llama_eagle.cli.main()
"""


@pytest.mark.parametrize("place", ["llama_eagle.native.build", "llama_eagle.console", "typer"])
def test_ctrl_c_during_imports_prints_no_traceback(place: str) -> None:
    """The import of `place` interrupts the program. Other programs keep their handler."""
    done = subprocess.run([PYTHON, "-c", INTERRUPTED, place, "bin/llama-eagle"], capture_output=True, text=True)
    assert done.returncode in (-signal.SIGINT, 130) and done.stdout == "" and "Traceback" not in done.stderr
    other = "import signal, llama_eagle; assert signal.getsignal(signal.SIGINT) is signal.default_int_handler"
    assert subprocess.run([PYTHON, "-c", other], check=False).returncode == 0
