"""`EagleLlama.from_pretrained` with a hub on loopback and the real huggingface_hub client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fixtures.command import llama_eagle
from fixtures.hub import serve_hub
from fixtures.tiny_gguf import write_draft, write_target

pytestmark = pytest.mark.native

ALPHABET = "abcdefghijklmnopqrstuvwxyz"
# In a process of its own: huggingface_hub reads its endpoint when it is imported.
PROGRAM = """
import json, sys
from llama_eagle import EagleLlama
try:
    llm = EagleLlama.from_pretrained(n_ctx=256, n_threads=1, verbose=False, n_draft=2, **json.loads(sys.argv[1]))
except (ValueError, RuntimeError) as error:
    print(json.dumps({"error": str(error)}))
else:
    text = llm.create_completion("abc", max_tokens=23, temperature=0)["choices"][0]["text"]
    files = [llm.model_path, str(llm._options.draft_path)]
    print(json.dumps({"text": text, "accepted": llm.speculative_stats.n_accepted, "files": files}))
"""


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("hub")
    for name, files in {"me/target": ("tiny-f32.gguf", "README.md"), "me/draft": ("draft.gguf",)}.items():
        (folder / name).mkdir(parents=True)
        for file in files:
            (folder / name / file).write_text("text")
    write_target(folder / "me/target/tiny-f32.gguf")
    write_draft(folder / "me/draft/draft.gguf")
    with serve_hub(folder) as address:
        yield address


def load(endpoint: str, cache: Path, offline: bool = False, **arguments: Any) -> dict[str, Any]:
    environment = {"HF_ENDPOINT": endpoint, "HF_HOME": str(cache), "HF_HUB_DISABLE_TELEMETRY": "1"}
    environment |= {"HF_HUB_OFFLINE": "1"} if offline else {}
    done = llama_eagle("-c", PROGRAM, json.dumps(arguments), **environment)
    assert done.code == 0, done.stderr
    answer = json.loads(done.stdout)
    assert isinstance(answer, dict)
    return answer


def test_both_files_come_from_the_hub(endpoint: str, tmp_path: Path) -> None:
    target = {"repo_id": "me/target", "filename": "*f32.gguf"}
    answer = load(endpoint, tmp_path / "cache", **target, draft_repo_id="me/draft")
    assert answer["text"] == ALPHABET[3:]
    assert answer["accepted"] > 0
    assert all(file.startswith(str(tmp_path / "cache")) for file in answer["files"])
    local = load(endpoint, tmp_path, **target, local_dir=str(tmp_path), additional_files=["READ*"])
    assert local["files"] == [str(tmp_path / "tiny-f32.gguf"), "None"]
    assert (tmp_path / "README.md").read_text() == "text"


def test_a_pattern_must_match_one_file(endpoint: str, tmp_path: Path) -> None:
    for pattern, found in (("*", r"it matches 2 (README.md, tiny-f32.gguf)"), ("*q8*", "it matches 0 (none)")):
        assert found in load(endpoint, tmp_path, repo_id="me/target", filename=pattern)["error"]


def test_arguments_are_checked_before_the_download(endpoint: str, tmp_path: Path) -> None:
    target = {"repo_id": "me/target", "filename": "*f32.gguf"}
    assert "p_min=5 is not in" in load(endpoint, tmp_path, **target, p_min=5)["error"]
    assert "none.gguf" in load(endpoint, tmp_path, **target, mmproj_path="none.gguf")["error"]
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


@pytest.mark.parametrize("offline", [False, True])
def test_without_the_hub(offline: bool, endpoint: str, tmp_path: Path) -> None:
    """Cached files are used; for others there is an immediate error with a remedy."""
    target = {"repo_id": "me/target", "filename": "*f32.gguf"}
    load(endpoint, tmp_path, **target)
    nowhere = "http://127.0.0.1:9"
    assert load(nowhere, tmp_path, offline, **target)["text"] == ALPHABET[3:]
    error = load(nowhere, tmp_path, offline, **target, draft_repo_id="me/draft")["error"]
    assert "me/draft: not in the local cache" in error
    assert "hf download me/draft FILE`" in error


def test_no_such_repository(endpoint: str, tmp_path: Path) -> None:
    assert "nor a repository on the hub" in load(endpoint, tmp_path, repo_id="me/none", filename="*")["error"]
    assert "name of a repository (OWNER/NAME)" in load(endpoint, tmp_path, repo_id="./none", filename="*")["error"]
