"""A model by name in every command and in `EagleLlama`; `pull`, `list` and `remove`; the real client of the hub."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fixtures.command import Outcome, assert_one_line_error, llama_eagle, start
from fixtures.eagle3_checkpoints import SAFETENSORS, make_draft
from fixtures.hub import Fault, serve_hub
from fixtures.serving import serve
from fixtures.targets import make_target
from fixtures.tiny_gguf import write_target
from llama_eagle import cli

pytestmark = pytest.mark.native

TARGET, DRAFT = "Qwen/Qwen3-1.7B", "AngelSlim/Qwen3-1.7B_eagle3"
MISSING = "me/plain"  # never fetched in the shared cache
# Commands that fetch what is missing: "MODEL" is the name, "OUT" an output file.
COMMANDS = {
    "generate": ("-m", "MODEL", "-p", "abc", "-n", "4", "-t", "1", "--json"),
    "chat": ("-m", "MODEL", "-c", "256", "-t", "1", "-n", "4"),
    "run": ("MODEL", "-c", "256", "-t", "1", "-p", "abc", "-n", "4"),
    "answer": ("PROMPTS", "-m", "MODEL", "-o", "OUT", "-c", "256", "-n", "4", "-t", "1", "--json"),
    "evaluate": ("-m", "MODEL", "--data", "lookup", "--limit", "1", "-n", "4", "-t", "1", "--json"),
    "bench": ("-m", "MODEL", "-n", "8", "--n-draft", "2", "--repetitions", "1", "-t", "1", "--json"),
    "check": ("MODEL", "--json"),
    "imatrix": ("-m", "MODEL", "-f", "TEXT", "-o", "OUT", "-c", "32", "-t", "1"),
}
KEPT_ONLY = {  # commands that take what is there, and fetch nothing
    "inspect": ("MODEL", "--json"),
    "quantize": ("MODEL", "OUT", "q8_0"),
    "doctor": ("-m", "MODEL", "--json"),
}
PYTHON = """
import json, sys
from llama_eagle import EagleLlama
make, name, options = json.loads(sys.argv[1])
try:
    llm = (EagleLlama if make == "constructor" else EagleLlama.from_pretrained)(name, n_ctx=256, n_threads=1, **options)
    print(json.dumps({"path": llm.model_path, "why": llm.drafter}))
except (ValueError, RuntimeError) as error:
    print(json.dumps({"error": str(error)}))
"""


class Requests(dict[str, Fault]):
    """Faults of a hub, by file; `asked` counts its answers. `opened`: weights are held back until it is set."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.reached, self.opened = 0, threading.Event(), threading.Event()
        self.opened.set()

    def get(self, key: str, default: Any = None) -> Any:
        self.asked += 1
        if key.endswith((".safetensors", ".gguf")):
            self.reached.set()
            self.opened.wait(timeout=100)
        return super().get(key, default)


@dataclass
class User:
    """A hub, and the folders of one of its users."""

    hub: Path
    requests: Requests
    endpoint: str
    folder: Path

    def environment(self, **more: str) -> dict[str, str]:
        return {
            "HF_ENDPOINT": self.endpoint, "HF_HOME": str(self.folder / "hf"), "HOME": str(self.folder / "home"),
            "LLAMA_EAGLE_CACHE": str(self.folder), "HF_HUB_DISABLE_TELEMETRY": "1", **more,
        }  # fmt: skip

    def __call__(self, *arguments: object, stdin: str | None = None, **more: str) -> Outcome:
        return llama_eagle(*arguments, stdin=stdin, **self.environment(**more))

    def filled(self, words: tuple[str, ...], model: str) -> list[str]:
        (self.folder / "prompts.txt").write_text("abc\n")
        (self.folder / "text.txt").write_text("abc " * 40)
        places = {"MODEL": model, "OUT": str(self.folder / "out.gguf"), "PROMPTS": str(self.folder / "prompts.txt"),
                  "TEXT": str(self.folder / "text.txt")}  # fmt: skip
        return [places.get(word, word) for word in words]

    def python(self, make: str, name: str, **options: object) -> dict[str, Any]:
        done = self("-c", PYTHON, json.dumps([make, name, options]))
        assert done.code == 0, done
        found = json.loads(done.stdout)
        assert isinstance(found, dict)
        return found

    def files(self) -> list[Path]:
        folders = (self.folder / "llama-eagle/models", self.folder / "hf")
        return [file for folder in folders for file in folder.rglob("*") if file.is_file()]


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Requests, str]]:
    folder, requests = tmp_path_factory.mktemp("hub"), Requests()
    make_target("qwen3", folder / TARGET, 1, dtype="float32")
    make_draft(folder / DRAFT, SAFETENSORS)
    shutil.copytree(folder / TARGET, folder / MISSING)
    (folder / "me/m-GGUF").mkdir(parents=True)
    write_target(folder / "me/m-GGUF/m-Q8_0.gguf")
    with serve_hub(folder, requests) as endpoint:
        yield folder, requests, endpoint


@pytest.fixture
def user(hub: tuple[Path, Requests, str], tmp_path: Path) -> User:
    return User(*hub, tmp_path)


@pytest.fixture(scope="module")
def owner(hub: tuple[Path, Requests, str], tmp_path_factory: pytest.TempPathFactory) -> User:
    """A user who has pulled the target, with its draft, and a GGUF."""
    found = User(*hub, tmp_path_factory.mktemp("owner"))
    for name in (f"{TARGET}:f32", "me/m-GGUF:Q8_0"):
        assert (outcome := found("pull", name)).code == 0, outcome
    return found


@pytest.mark.parametrize("command", [*COMMANDS, *KEPT_ONLY])
def test_a_name_works_in_every_command(owner: User, command: str) -> None:
    """The hub is not needed: TARGET has one type in the cache."""
    words = owner.filled((COMMANDS | KEPT_ONLY)[command], TARGET)
    outcome = owner(command, *words, *(["--overwrite"] if "OUT" in (COMMANDS | KEPT_ONLY)[command] else []),
                    stdin="abc\n", HF_ENDPOINT="http://127.0.0.1:9")  # fmt: skip
    assert outcome.code == 0, outcome
    if "--json" in words:
        assert outcome.json


def test_a_name_works_in_serve_and_its_configuration(owner: User) -> None:
    config = owner.folder / "serve.json"
    config.write_text(json.dumps({"model": "me/m-GGUF:Q8_0", "n_ctx": 256, "parallel": 1}))
    with serve("--config", config, **owner.environment()) as server:
        assert server.get("/v1/models")[1]["data"][0]["id"] == "m-Q8_0"
    outcome = owner("serve", "-m", MISSING, "--port", 0)
    assert_one_line_error(outcome, 3, f"llama-eagle pull {MISSING} (or repeat this command with --yes)")


@pytest.mark.parametrize("command", [*(name for name in COMMANDS if name != "run"), *KEPT_ONLY])
def test_nothing_is_fetched_without_a_terminal(user: User, command: str) -> None:
    """The error names the command, as one JSON object with --json, and the hub gets no request."""
    before = user.requests.asked
    outcome = user(command, *user.filled((COMMANDS | KEPT_ONLY)[command], MISSING))
    assert (outcome.code, user.requests.asked, user.files()) == (3, before, [])
    assert f"llama-eagle pull {MISSING}" in outcome.stderr
    assert ("--yes" in outcome.stderr) == (command in COMMANDS)
    if outcome.stdout:
        assert outcome.json["error"]["exit_code"] == 3


def test_a_file_and_a_missing_path_ask_no_hub(user: User) -> None:
    file = write_target(user.folder / "target.gguf")
    before = user.requests.asked
    words = ("-p", "abc", "-n", 2, "-t", 1, "--yes")
    assert user("generate", "-m", file, *words).code == 0
    for path in ("model.gguf", "./x", "./me/m-GGUF", "dir/model.gguf", "a/b/c.gguf", "me/m-GGUF/", "/no/such", "x\\y"):
        assert_one_line_error(user("generate", "-m", path, *words), 3, "no such file. Give the path of a .gguf file.")
        assert "Model path does not exist" in user.python("constructor", path)["error"]
    assert_one_line_error(user("generate", "-m", "nothing", *words), 2, "neither a file, a folder nor a hub id")
    assert_one_line_error(user("generate", "-m", "", *words), 2, "the model's name is empty")
    assert user.requests.asked == before


def test_yes_converts_with_the_draft_that_run_takes(user: User) -> None:
    outcome = user("generate", "-m", f"{TARGET}:f32", "-p", "abc", "-n", 4, "-t", 1, "--yes", "--json")
    assert outcome.code == 0, outcome
    assert outcome.json["speculative"] is not None
    made = {file.name for file in user.files() if file.suffix == ".gguf"}
    assert made == {"Qwen3-1.7B-f32.gguf", f"{DRAFT.replace('/', '_')}.gguf"}


def test_a_folder_with_a_type(user: User) -> None:
    checkpoint = user.hub / MISSING
    command = f"Convert it first: llama-eagle pull {checkpoint}"
    assert_one_line_error(user("check", checkpoint), 3, "has not been converted yet", command)
    assert user("check", f"{checkpoint}:f32", "--yes").code == 0
    assert user("check", checkpoint).code == 0, "the type that is there"
    os.utime(checkpoint / "config.json")
    outcome = user("check", checkpoint)
    assert (outcome.code, "has changed since it was converted" in outcome.stderr) == (0, True)


def test_eagle_llama_by_name(user: User) -> None:
    refused = user.python("constructor", MISSING)["error"]
    assert f"llama-eagle pull {MISSING} (or EagleLlama.from_pretrained('{MISSING}'))" in refused
    made = user.python("from_pretrained", f"{TARGET}:f32")
    assert DRAFT.split("/")[1] in made["why"]
    again = user.python("constructor", TARGET)
    assert again == made
    assert user.python("from_pretrained", "me/m-GGUF", draft="none")["path"].endswith("m-Q8_0.gguf")


def test_training_takes_a_name(
    owner: User, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint is trained for as it is if data are named; otherwise the target is its GGUF, which writes them."""
    for name, value in owner.environment().items():
        monkeypatch.setenv(name, value)
    assert cli.run(["train", "--target", MISSING, "-o", str(owner.folder / "draft"), "--max-length", "16"]) == 3
    assert f"llama-eagle pull {MISSING} (or repeat this command with --yes)" in capsys.readouterr().err


# --- pull, list, remove ------------------------------------------------------------------------------------------


def test_pull_continues_a_download(user: User) -> None:
    """Cut in the middle of a file: the second command gets the rest alone, so that a changed beginning stays."""
    data = (user.hub / "me/m-GGUF/m-Q8_0.gguf").read_bytes()
    first = len(data) // 2
    folder = user.folder / "hf/hub/models--me--m-GGUF/blobs"
    user.requests["me/m-GGUF/m-Q8_0.gguf"] = Fault(cut=first)
    program = (
        "from huggingface_hub import file_download\n"
        "from llama_eagle import hub\n"
        "hub.PIECE = 1000\n"
        "real = file_download.http_get\n"
        "def get(*given, **named):\n    return real(*given, **named, _nb_retries=0)\n"
        "file_download.http_get = get\n"
        "from llama_eagle.cli import main\nmain(['pull', 'me/m-GGUF', '--json'])\n"
    )
    outcome = user("-c", program)
    assert outcome.code == 4 and outcome.json["error"]["exit_code"] == 4, outcome
    (part,) = folder.glob("*.incomplete")
    n_done = part.stat().st_size
    assert part.read_bytes() == data[:n_done] and first - 1000 <= n_done <= first
    with part.open("r+b") as file:
        file.seek(n_done - 100)
        file.write(b"x" * 100)
    outcome = user("pull", "me/m-GGUF", "--json")
    assert outcome.json["n_bytes"] == len(data)
    found = Path(outcome.json["path"]).read_bytes()
    assert found == data[: n_done - 100] + b"x" * 100 + data[n_done:]
    assert [file.name for file in folder.iterdir()] == [part.stem]


def test_ctrl_c_leaves_no_half_made_model(user: User) -> None:
    user.requests.reached.clear()
    user.requests.opened.clear()
    with (user.folder / "output").open("wb") as output:
        process = start(("pull", MISSING), (0, output.fileno(), output.fileno()), **user.environment())
        try:
            assert user.requests.reached.wait(timeout=100)
            process.send_signal(signal.SIGINT)
        finally:
            user.requests.opened.set()
        assert process.wait(100) == 130
    assert "interrupted" in (user.folder / "output").read_text()
    assert list((user.folder / "llama-eagle/models").glob("*")) == []
    assert user("pull", MISSING, "--no-draft", "--type", "f32").code == 0


@pytest.mark.parametrize(
    ("name", "file", "share", "what"),
    [
        ("me/m-GGUF", "m-Q8_0.gguf", 0.9, "the download of me/m-GGUF"),
        (MISSING, "model.safetensors", 1.2, f"the conversion of {MISSING}"),  # enough for the download alone
    ],
)
def test_the_disk_is_checked_before_a_download(user: User, name: str, file: str, share: float, what: str) -> None:
    free = round(share * (user.hub / name / file).stat().st_size)
    program = "\n".join((
        "import shutil", "from types import SimpleNamespace",
        f"shutil.disk_usage = lambda _: SimpleNamespace(free={free})",
        "from llama_eagle.cli import main", f"main(['pull', {name!r}])",
    ))  # fmt: skip
    assert_one_line_error(user("-c", program), 4, f"{what} needs", "are free in")
    assert not [each for each in user.files() if each.suffix in (".safetensors", ".gguf", ".incomplete")]


def test_a_cache_that_cannot_be_written(user: User) -> None:
    """One line with the variable to set; a model that is there works, and the list is shown."""
    assert user("pull", f"{TARGET}:f32").code == 0
    (user.folder / "file").write_text("")
    for variable in ("LLAMA_EAGLE_CACHE", "HF_HOME"):
        outcome = user("pull", MISSING, **{variable: str(user.folder / "file/cache")})
        assert_one_line_error(outcome, 4, "cannot write", f"Set {variable} to a writable folder")
    locks = user.folder / "llama-eagle/locks"
    shutil.rmtree(locks)
    locks.write_text("")
    assert user("check", TARGET, "--yes").code == 0
    assert user("list").stdout.count("drafter: ") == 1
    assert_one_line_error(user("pull", MISSING), 4, "cannot write", "Set LLAMA_EAGLE_CACHE")


def test_list_shows_names_that_commands_take(owner: User) -> None:
    found = {model["name"]: model for model in owner("list", "--json").json["models"]}
    assert found.keys() == {f"{TARGET}:f32", f"{DRAFT}:q4_k_m", "me/m-GGUF:Q8_0"}
    assert found[f"{TARGET}:f32"]["drafter"] == Path(found[f"{DRAFT}:q4_k_m"]["path"]).name
    assert found[f"{DRAFT}:q4_k_m"]["drafts_for"] == TARGET
    assert found["me/m-GGUF:Q8_0"]["source"] == "download"
    text = owner("list").stdout
    for model in found.values():
        assert f"{model['name']}  " in text and model["path"] in text
        assert Path(model["path"]).is_file()
        if model["drafts_for"] is None:
            assert owner("inspect", model["name"], HF_ENDPOINT="http://127.0.0.1:9").code == 0


def test_remove(user: User) -> None:
    for name in (f"{MISSING}:f32", f"{MISSING}:f16", "me/m-GGUF"):
        assert user("pull", name, "--no-draft").code == 0
    several = user("check", MISSING)
    assert_one_line_error(user("remove", "nothing"), 3, "no such model", "llama-eagle list")
    assert_one_line_error(user("remove", MISSING), 2, "no terminal", "--yes")
    assert_one_line_error(several, 2, "converted to 2 types", f"Choose one: {MISSING}:f")
    removed = user("remove", f"{MISSING}:f16", "me/m-GGUF", "--yes", "--json").json["removed"]
    assert [each["name"] for each in removed] == [f"{MISSING}:f16", "me/m-GGUF:Q8_0"]
    assert not list((user.folder / "hf/hub/models--me--m-GGUF/blobs").iterdir())
    assert [model["name"] for model in user("list", "--json").json["models"]] == [f"{MISSING}:f32"]
    code, screen = _on_terminal(user, "n", "remove", MISSING)
    assert code == 0 and "nothing was removed" in screen and user("inspect", MISSING).code == 0
    code, screen = _on_terminal(user, "y", "remove", MISSING)
    assert code == 0 and "Remove it? [y/N]" in screen
    assert user("list").stdout == "no models. llama-eagle pull OWNER/NAME fetches one\n"


def _on_terminal(user: User, answer: str, *arguments: str) -> tuple[int, str]:
    """Return the exit code and the screen of a command on a terminal that asks one question."""
    master, slave = pty.openpty()
    process = start(arguments, (slave, slave, slave), **user.environment())
    os.write(master, f"{answer}\n".encode())
    code = process.wait(100)
    os.close(slave)
    screen = os.read(master, 65536).decode()
    os.close(master)
    return code, screen


def test_pull_converts_a_changed_repository_again(user: User) -> None:
    repo = user.hub / "me/changing"
    shutil.copytree(user.hub / MISSING, repo)
    path = Path(user("pull", "me/changing", "--type", "f32", "--json").json["path"])
    (repo / "README.md").write_text("changed")
    user.requests["me/changing/model.safetensors"] = Fault(500)
    warned = user("check", "me/changing", "--yes")
    assert "llama-eagle pull me/changing:f32" in warned.stderr and warned.code == 0
    (repo / "config.json").write_text("{}")
    assert user("pull", "me/changing").code == 3
    assert path.is_file(), "the old one is kept"
    shutil.copyfile(user.hub / MISSING / "config.json", repo / "config.json")
    before = path.stat().st_mtime_ns
    del user.requests["me/changing/model.safetensors"]
    assert user("pull", "me/changing").code == 0
    assert path.stat().st_mtime_ns > before
    assert user("check", "me/changing").stderr == ""


# --- errors ------------------------------------------------------------------------------------------------------


def test_the_hubs_reason_and_one_file(user: User) -> None:
    """The hub's words are in the line; LLAMA_EAGLE_DEBUG=1 shows all causes; advised downloads get one file."""
    user.requests["me/m-GGUF"] = Fault(500)
    outcome = user("pull", "me/m-GGUF")
    assert_one_line_error(outcome, 4, "Try again later (HTTP status 500: a test).")
    debug = user("pull", "me/m-GGUF", LLAMA_EAGLE_DEBUG="1").stderr
    del user.requests["me/m-GGUF"]
    assert "HfHubHTTPError" in debug and debug.splitlines()[-1] == outcome.stderr.strip()
    nowhere = {"HF_ENDPOINT": "http://127.0.0.1:9"}
    assert_one_line_error(user("pull", "me/m-GGUF", **nowhere), 4, "Connection refused", "`llama-eagle pull me/m-GGUF`")
    checkpoint = user("convert", MISSING, "-o", user.folder / "x.gguf", **nowhere)
    assert "hf download me/plain --include '*.json' --include '*.safetensors'" in checkpoint.stderr
