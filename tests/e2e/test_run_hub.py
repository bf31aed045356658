"""Models by name, from a hub on loopback with the real huggingface_hub client: choices, faults, what is kept."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import pytest
from filelock import Timeout
from fixtures.command import assert_one_line_error, llama_eagle
from fixtures.eagle3_checkpoints import CASES, SAFETENSORS, make_draft
from fixtures.hub import Fault, serve_hub
from fixtures.targets import make_target
from fixtures.tiny_gguf import finish, write_draft, write_target
from llama_eagle.errors import EnvironmentFailure
from llama_eagle.hub import PIECE
from llama_eagle.pairs import model_folder
from llama_eagle.store import kept

pytestmark = pytest.mark.native

# In a process of its own: huggingface_hub reads its endpoint when it is imported.
PROGRAM = """
import json, sys
from llama_eagle.store import find
from llama_eagle.drafting.options import DraftingOptions
from llama_eagle.drafting.resolve import resolve
from llama_eagle.errors import EagleError
for model, outtype in json.loads(sys.argv[1]):
    try:
        path = find.prepare(model, outtype)
        print(json.dumps({"path": str(path), "why": resolve(path, DraftingOptions()).why}))
    except EagleError as error:
        print(json.dumps({"error": str(error), "code": error.exit_code}))
"""


@dataclass
class Hub:
    folder: Path
    cache: Path
    faults: dict[str, Fault] = field(default_factory=dict)
    endpoint: str = ""

    def add(self, name: str, *files: str) -> Path:
        for file in files:
            path = self.folder / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("text")
        return self.folder / name

    def environment(self, **more: str) -> dict[str, str]:
        return {
            "HF_ENDPOINT": self.endpoint, "HF_HOME": str(self.cache / "hf"), "LLAMA_EAGLE_CACHE": str(self.cache),
            "HF_HUB_DISABLE_TELEMETRY": "1", "HOME": str(self.cache / "home"), **more,
        }  # fmt: skip

    def prepare(self, *models: str | tuple[str, str], before: str = "", **environment: str) -> list[dict[str, Any]]:
        wanted = [(model, None) if isinstance(model, str) else model for model in models]
        done = llama_eagle("-c", before + PROGRAM, json.dumps(wanted), **self.environment(**environment))
        assert done.code == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def error(self, model: str, **more: str) -> str:
        (found,) = self.prepare(model, **more)
        return f"{found.get('code')} {found.get('error')}"

    def kept(self) -> list[Path]:
        return list((self.cache / "llama-eagle/models").glob("*"))


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    found = Hub(tmp_path / "hub", tmp_path / "cache")
    with serve_hub(found.folder, found.faults) as found.endpoint:
        yield found


def test_the_type_is_chosen_by_name_not_by_pattern(hub: Hub) -> None:
    names = [f"m-{kind}.gguf" for kind in ("BF16", "F16", "Q2_K", "Q2_K_L", "Q4_K_M")]
    folder = hub.add("me/m-GGUF", *names, "mmproj-F16.gguf", "imatrix_unsloth.gguf", "config.json")
    for name in names:
        write_target(folder / name)
    found = hub.prepare("me/m-GGUF", "me/m-GGUF:f16", "me/m-GGUF:Q2_K", ("me/m-GGUF", "bf16"), "me/m-GGUF:q8_0")
    assert [Path(each["path"]).name for each in found[:4]] == [
        f"m-{kind}.gguf" for kind in ("Q4_K_M", "F16", "Q2_K", "BF16")
    ]
    assert "no model of type Q8_0. Available: m-BF16.gguf" in found[4]["error"]
    assert hub.kept() == [], "what is downloaded stays in the hub's cache"


def test_a_sidecar_of_the_repository_drafts(hub: Hub) -> None:
    folder = hub.add("me/m-GGUF", "Q4_K_M/m-Q4_K_M.gguf", "eagle3-m-Q8_0.gguf", "eagle3-m-F16.gguf")
    write_target(folder / "Q4_K_M/m-Q4_K_M.gguf")
    for name in ("eagle3-m-Q8_0.gguf", "eagle3-m-F16.gguf"):
        write_draft(folder / name)
    (found,) = hub.prepare("me/m-GGUF")
    assert found["why"].startswith("the EAGLE-3 draft eagle3-m-Q8_0.gguf drafts: it has the target's name")


@pytest.mark.parametrize(
    ("family", "target", "draft", "case"),
    [
        ("qwen3", "Qwen/Qwen3-1.7B", "AngelSlim/Qwen3-1.7B_eagle3", "angelslim"),
        ("qwen35", "Qwen/Qwen3.6-27B", "Ex0bit/Qwen3.6-27B-PRISM-EAGLE3/compressed", "specforge"),
    ],
)
def test_a_published_draft_is_fetched_and_kept(hub: Hub, family: str, target: str, draft: str, case: str) -> None:
    """Download a draft for a target without a head under its published name, convert it for this target, and use it."""
    make_target(family, hub.folder / target, 1, dtype="float32")
    make_draft(hub.folder / draft, CASES[case])
    arguments = ("run", target, "--type", "f32", "--ctx-size", 256, "-t", 1, "-p", "abc", "-n", 8)
    outcome = llama_eagle(*arguments, **hub.environment())
    assert outcome.code == 0, outcome
    assert "warning" not in outcome.stderr
    assert (f"{draft} drafts: of 3 published drafts" in outcome.stderr) == (family == "qwen35")
    assert len(hub.kept()) == 2
    listed = llama_eagle("run", "--list", **hub.environment()).stdout
    assert f"{draft} q4_k_m: " in listed and f"{target} f32: " in listed
    hub.faults[draft.removesuffix("/compressed")] = Fault(500)
    (found,) = hub.prepare((target, "f32"))
    assert draft.split("/")[1] in found["why"], "it is converted once"


def test_a_published_draft_that_cannot_be_used(hub: Hub) -> None:
    """The target runs without it, and a warning names the draft and the reason."""
    make_target("qwen3", hub.folder / "Qwen/Qwen3-1.7B", 1, dtype="float32")
    hub.faults["AngelSlim/Qwen3-1.7B_eagle3"] = Fault(404, "RepoNotFound")
    arguments = ("run", "Qwen/Qwen3-1.7B", "--type", "f32", "--ctx-size", 256, "-t", 1, "-p", "abc", "-n", 8)
    outcome = llama_eagle(*arguments, **hub.environment())
    assert outcome.code == 0, outcome
    assert "AngelSlim/Qwen3-1.7B_eagle3, the draft of Qwen/Qwen3-1.7B, cannot be used" in outcome.stderr
    assert len(hub.kept()) == 1


@pytest.mark.parametrize("drafter", ["none", "lookup"])
def test_no_draft_is_fetched_where_a_drafter_is_named(hub: Hub, drafter: str) -> None:
    make_target("qwen3", hub.folder / "Qwen/Qwen3-1.7B", 1, dtype="float32")
    make_draft(hub.folder / "AngelSlim/Qwen3-1.7B_eagle3", SAFETENSORS)
    folder = hub.add("me/m-GGUF", "m-Q8_0.gguf", "eagle3-m-Q8_0.gguf")
    write_target(folder / "m-Q8_0.gguf")
    write_draft(folder / "eagle3-m-Q8_0.gguf")
    for model in (("Qwen/Qwen3-1.7B", "--type", "f32"), ("me/m-GGUF",)):
        arguments = (*model, "-d", drafter, "--ctx-size", 256, "-t", 1, "-p", "abc", "-n", 8)
        outcome = llama_eagle("run", *arguments, **hub.environment())
        assert outcome.code == 0, outcome
    assert len(hub.kept()) == 1, "the target alone"
    assert not any("eagle3" in path.name for path in hub.cache.rglob("*"))


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--n-draft", "fast"), 2, "--n-draft"), (("--temp", "nan"), 2, "--temp"),
        (("--type", "q4km"), 2, "'q4km'"),
        (("--mmproj", "none.gguf"), 3, "none.gguf"), (("-d", "none.gguf"), 3, "none.gguf"),
        (("-d", "lookup", "-b", 4), 2, "--batch-size"), (("--rpc", "host"), 2, "host"),
        (("--tensor-split", "a"), 2, "--tensor-split"), (("--cache-type-k", "q9"), 2, "q9"),
    ],
)  # fmt: skip
def test_options_are_checked_before_the_download(hub: Hub, options: tuple[str, ...], code: int, message: str) -> None:
    hub.add("me/m", "config.json", "model.safetensors")
    assert_one_line_error(llama_eagle("run", "me/m", "-p", "abc", *options, **hub.environment()), code, message)
    assert not any(path.is_file() for path in hub.cache.rglob("*")), "nothing is downloaded"


class Gate(dict[str, Fault]):
    """Faults of a hub that has none: it holds the weights of the repository `closed` back until `opened`."""

    def __init__(self, closed: str) -> None:
        super().__init__()
        self.closed, self.reached, self.opened = closed, threading.Event(), threading.Event()

    def get(self, key: str, default: Any = None) -> Any:
        if key.startswith(self.closed) and Path(key).suffix in (".safetensors", ".bin"):
            self.reached.set()
            self.opened.wait(timeout=100)
        return default


def start(hub: Hub, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "llama_eagle", "run", *arguments, "-c", "256", "-t", "1", "-p", "abc", "-n", "4"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, env={**os.environ, **hub.environment()}, text=True, **pipes)


@pytest.mark.parametrize(
    ("repo", "entry"),
    [
        ("Qwen/Qwen3-1.7B", ("Qwen/Qwen3-1.7B", "f32")),
        ("AngelSlim/Qwen3-1.7B_eagle3", ("AngelSlim/Qwen3-1.7B_eagle3 for Qwen/Qwen3-1.7B", "q4_k_m")),
    ],
)
def test_an_entry_is_locked_while_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repo: str, entry: tuple[str, str]
) -> None:
    """The target's, and that of its published draft."""
    hub = Hub(tmp_path / "hub", tmp_path / "cache")
    monkeypatch.setenv("LLAMA_EAGLE_CACHE", str(hub.cache))
    make_target("qwen3", hub.folder / "Qwen/Qwen3-1.7B", 1, dtype="float32")
    make_draft(hub.folder / "AngelSlim/Qwen3-1.7B_eagle3", SAFETENSORS)
    gate = Gate(repo)
    with serve_hub(hub.folder, gate) as hub.endpoint, start(hub, "Qwen/Qwen3-1.7B", "--type", "f32") as running:
        try:
            assert gate.reached.wait(timeout=100)
            with pytest.raises(Timeout):
                kept.entry_lock(model_folder(*entry)).acquire(timeout=0)
        finally:
            gate.opened.set()
        _, errors = running.communicate(timeout=100)
    assert running.returncode == 0, errors
    assert len(hub.kept()) == 2
    kept.entry_lock(model_folder(*entry)).acquire(timeout=0).lock.release()


def test_an_entry_that_is_being_made_is_not_cleared(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_EAGLE_CACHE", str(hub.cache))
    folder = model_folder("me/m", "f32")
    folder.mkdir(parents=True)
    with kept.entry_lock(folder), pytest.raises(EnvironmentFailure, match="another command is converting"):
        kept.clear("all")
    assert folder.is_dir()
    assert [entry.folder for entry in kept.clear("all")] == [folder] and not folder.exists()


def test_a_second_command_waits_and_uses_the_result(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_EAGLE_CACHE", str(hub.cache))
    hub.add("me/m", "config.json", "model.safetensors")  # no model: its download would fail
    folder = model_folder("me/m", "f32")
    with kept.entry_lock(folder):
        second = start(hub, "me/m", "--type", "f32", "-d", "none")
        assert second.stderr is not None
        first_line = second.stderr.readline()
        folder.mkdir(parents=True)
        write_target(folder / "m-f32.gguf")
    answer, errors = second.communicate(timeout=100)
    assert first_line == "waiting for another command that is converting me/m\n"
    assert (second.returncode, errors) == (0, "")
    assert answer and not any((hub.cache / "hf").rglob("model.safetensors"))


def test_a_download_that_was_cut_is_resumed(hub: Hub) -> None:
    write_target(hub.add("me/m", "m.gguf") / "m.gguf")
    hub.faults["me/m/m.gguf"] = Fault(cut=1000)
    (found,) = hub.prepare("me/m")
    assert Path(found["path"]).read_bytes() == (hub.folder / "me/m/m.gguf").read_bytes()
    assert not hub.faults


RECORDER = """
import atexit
import huggingface_hub.file_download as client
get, sizes = client.http_get, []
class Recorder:
    def __init__(self, file):
        self.file = file
    def write(self, data):
        sizes.append(len(data))
        return self.file.write(data)
    def __getattr__(self, name):
        return getattr(self.file, name)
client.http_get = lambda url, file, **more: get(url, Recorder(file), **more)
atexit.register(lambda: print(json.dumps(sizes)))
"""


def test_a_download_is_written_in_pieces_that_show_its_progress(hub: Hub) -> None:
    """The client's own are of 10 MiB, a minute of a slow connection, and lost by an interruption."""
    path = write_target(hub.add("me/m", "m.gguf") / "m.gguf")
    with path.open("ab") as file:
        file.write(bytes(1 << 20))
    _, sizes = hub.prepare("me/m", before=RECORDER)
    assert sum(map(int, sizes)) == path.stat().st_size and max(map(int, sizes)) <= PIECE
    transfer = "import huggingface_hub.constants as c; c.HF_HUB_ENABLE_HF_TRANSFER = True"  # of the client before 1.0
    path.write_bytes(path.read_bytes() + b"changed")
    _, sizes = hub.prepare("me/m", before=f"{RECORDER}\n{transfer}")
    assert max(map(int, sizes)) > PIECE, "each piece would be a request"


FAULTS = (
    ("", Fault(401), "4 {}: the hub does not accept the token"),
    ("", Fault(401, "RepoNotFound"), "3 {}: neither a local folder nor a repository"),  # a private one, without a token
    ("", Fault(403, "GatedRepo"), "4 {}: gated; accept its terms"),
    ("", Fault(403), "4 {}: the hub refuses access"),
    ("", Fault(404, "RepoNotFound"), "3 {}: neither a local folder nor a repository"),
    ("", Fault(429), "4 {}: too many requests to the hub"),
    ("", Fault(500), "4 {}: the hub reports an error. Try again later (HTTP status 500: a test)."),
    ("/m.gguf", Fault(403, "GatedRepo"), "4 {}: gated; accept its terms"),
    ("/m.gguf", Fault(404, "EntryNotFound"), "3 {}: no such file on the hub"),
    ("/m.gguf", Fault(n_more=5), "4 {}: a downloaded file has the wrong size"),
)


def test_faults_of_the_hub(hub: Hub) -> None:
    for number, (file, fault, _) in enumerate(FAULTS):
        write_target(hub.add(f"me/m{number}", "m.gguf") / "m.gguf")
        hub.faults[f"me/m{number}{file}"] = fault
    found = hub.prepare(*(f"me/m{number}" for number in range(len(FAULTS))))
    for number, (error, (_, fault, told)) in enumerate(zip(found, FAULTS, strict=True)):
        assert f"{error['code']} {error['error']}".startswith(told.format(f"me/m{number}"))
        assert not fault.status or f"(HTTP status {fault.status}: a test)" in error["error"]
    assert hub.kept() == []


def test_faults_of_the_disk(hub: Hub, tmp_path: Path) -> None:
    write_target(hub.add("me/m", "m.gguf") / "m.gguf")
    (tmp_path / "file").write_text("")
    assert "cannot write" in (told := hub.error("me/m", HF_HOME=str(tmp_path / "file/hf")))
    assert "Set HF_HOME" in told
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))\n"
    assert "4 me/m: no space left in" in hub.error("me/m", before=limit)


def test_a_repository_that_is_none(hub: Hub) -> None:
    hub.add("me/text", "README.md", "sub/config.json", "sub-2/model.safetensors")
    found = hub.prepare("me/none", "me/text", "nothing", "me/text/sub")
    assert [each["code"] for each in found] == [3, 3, 2, 3]
    for each in (found[1], found[3]):
        assert "neither a checkpoint (config.json) nor GGUF files" in each["error"]
    assert hub.kept() == [], "a mistyped id leaves nothing"


def test_a_checkpoint_in_a_subfolder(hub: Hub) -> None:
    make_target("qwen3", hub.folder / "me/m/full", 1, dtype="float32")
    hub.add("me/m", "README.md", "other/config.json", "other/model.safetensors")
    (found,) = hub.prepare(("me/m/full", "f32"))
    assert Path(found["path"]).name == "full-f32.gguf"
    outcome = llama_eagle("convert", "me/m", "-o", hub.cache / "x.gguf", **hub.environment())
    assert "its checkpoints are in folders (full, other). Choose one: me/m/full" in outcome.stderr


def test_what_is_kept(hub: Hub) -> None:
    """Conversions that were interrupted, damaged records, links into a cache that was cleared: listed and cleared."""
    make_target("qwen3", hub.folder / "me/m", 1, dtype="float32")
    (found,) = hub.prepare(("me/m", "f32"))
    target = Path(found["path"])
    shutil.rmtree(hub.cache / "hf")
    target.unlink()
    target.symlink_to(hub.cache / "gone")
    assert "me/m f32: " in (listed := llama_eagle("run", "--list", **hub.environment()).stdout)
    assert "unfinished" in listed
    assert hub.prepare(("me/m", "f32")) == [found]
    (hub.folder / "me/m/README.md").write_text("changed")
    warned = llama_eagle("run", "me/m", "--type", "f32", "--ctx-size", 256, stdin="", **hub.environment())
    assert "me/m has changed since it was converted" in warned.stderr
    for folder in ("interrupted", "damaged"):
        (target.parents[1] / folder).mkdir()
    (target.parents[1] / "damaged/made-of.json").write_bytes(b"\xff{")
    listed = llama_eagle("run", "--list", **hub.environment()).stdout
    assert [line.split()[0] for line in listed.splitlines()].count("me/m") == 1
    assert "interrupted ?" in listed
    for name in ("interrupted", "damaged", "me/m"):
        assert "deleted" in llama_eagle("run", "--clear", name, **hub.environment()).stdout
    assert hub.kept() == []


def test_folders_of_ggufs(hub: Hub, tmp_path: Path) -> None:
    """LM Studio's folders, the hub's cache, and any other: one model is taken, several are listed."""
    studio = hub.cache / "home/.lmstudio/models/me/studio-GGUF"
    studio.mkdir(parents=True)
    write_target(studio / "studio-Q8_0.gguf")
    write_target(hub.add("me/m", "m.gguf") / "m.gguf")
    (hub.folder / "none").mkdir(parents=True)
    (studio / "notes.gguf").write_text("not a GGUF")
    for kind, arch in (
        ("imatrix", "llama"),
        ("adapter", "llama"),
        ("model", "whisper"),
    ):
        writer = gguf.GGUFWriter(studio / f"{kind}-of-others.gguf", arch)
        writer.add_type(kind)
        finish(writer, studio)
    found = hub.prepare("me/studio-GGUF", str(studio), "me/m", str(hub.cache / "hf/hub/models--me--m"))
    assert [Path(each["path"]).name for each in found] == ["studio-Q8_0.gguf", "studio-Q8_0.gguf", "m.gguf", "m.gguf"]
    shutil.copyfile(studio / "studio-Q8_0.gguf", studio / "studio-F16.gguf")
    several, chosen, none = hub.prepare(str(studio), (str(studio), "f16"), str(hub.folder / "none"))
    assert f"2 models (studio-F16.gguf, studio-Q8_0.gguf). Choose one: {studio}/studio-F16" in several["error"]
    assert Path(chosen["path"]).name == "studio-F16.gguf"
    assert "neither a checkpoint (config.json) nor a GGUF model" in none["error"]
