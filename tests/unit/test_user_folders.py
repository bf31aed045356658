"""The tests use folders of their own instead of the user's: in this process, and in those that it starts."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDERS = """
from pathlib import Path
from huggingface_hub.constants import HF_HOME
from llama_eagle.cli.config import config_file
from llama_eagle.files import cache_dir
from platformdirs import user_state_path
print(Path.home(), cache_dir(), config_file(), user_state_path("llama-eagle"), HF_HOME, sep="\\n")
"""
ROOT = Path(__file__).parents[2]


def folders(*arguments: str, **environment: str) -> list[Path]:
    command = [sys.executable, "-c", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True, env={**os.environ, **environment}
    )
    return [Path(line) for line in done.stdout.splitlines()]


def test_the_folders_belong_to_this_run() -> None:
    home = Path.home()
    assert home.name.startswith("llama-eagle-tests-")
    assert home.parent == Path(tempfile.gettempdir())
    found = folders(FOLDERS)
    assert found[0] == home
    assert [path for path in found if not path.is_relative_to(home)] == []


def test_the_users_variables_do_not_lead_elsewhere(tmp_path: Path) -> None:
    """As if the user had set them before the run."""
    user, home = tmp_path / "user", tmp_path / "home"
    (user / ".config/pip").mkdir(parents=True)
    (user / ".config/pip/pip.conf").touch()
    names = (
        "LLAMA_EAGLE_CACHE", "LLAMA_EAGLE_CONFIG", "LLAMA_CACHE", "HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME",
        "XDG_CONFIG_HOME", "XDG_STATE_HOME", "LOCALAPPDATA",
    )  # fmt: skip
    given = {name: str(user / name) for name in names}
    program = (
        "import os, sys; from pathlib import Path\nsys.path.insert(0, 'tests')\nfrom fixtures.user import give_home\n"
        f"give_home(Path(sys.argv[1]))\n{FOLDERS}\nprint(os.environ['PIP_CONFIG_FILE'])\n"
        "print((cache_dir() / 'upstream').resolve())"
    )
    *found, pip, sources = folders(program, str(home), **given, HOME=str(user))
    assert [path for path in found if not path.is_relative_to(home)] == []
    assert pip == Path(os.environ.get("PIP_CONFIG_FILE", user / ".config/pip/pip.conf"))
    assert sources == user / "LLAMA_EAGLE_CACHE/llama-eagle/upstream"
