"""Drafts next to a target: MTP heads, EAGLE-3 and DFlash drafts in separate files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from llama_eagle.errors import EagleError, InputError
from llama_eagle.files import refuse_special
from llama_eagle.gguf.header import Header, read_model
from llama_eagle.gguf.names import DRAFT_KINDS, DRAFTS, MODEL, MTP, FileName, is_type_folder, read_name
from llama_eagle.gguf.pairing import draft_problem

_KEY = b"general.architecture\x08\x00\x00\x00"


@dataclass(frozen=True)
class Sidecar:
    """A draft's headers and the rule that selected it, or the reason why it is not used."""

    files: list[Header] | None
    rule: str = ""
    problem: str = ""


def find_sidecars(target: list[Header]) -> list[Sidecar]:
    """Return the drafts next to a target that have its name, or the only one next to the only model.

    Those that do not fit are included. A matching shape is not sufficient: the draft of another model may fit, but is
    useless.
    """
    found = []
    for path, rule in _candidates(target[0].path, {file.path.name for file in target}):
        files, reason = fitting(target, path)
        found.append(Sidecar(files, rule, reason and f"{path.name}, next to the target, does not fit: {reason}"))
    return found


def fitting(target: list[Header], path: Path) -> tuple[list[Header] | None, str]:
    """Return the headers of a draft that can draft for a target, or the reason why it cannot."""
    try:
        files = read_model(path)[1]
    except EagleError as error:
        return None, str(error)
    reason = draft_problem(target, files)
    return (None, reason) if reason else (files, "")


def _candidates(target: Path, own: set[str]) -> Iterator[tuple[Path, str]]:
    """Yield drafts in the order of their trial, each with the rule that finds it."""
    folders = [target.parent, *([target.parent.parent] if is_type_folder(target.parent.name) else [])]
    paths = [path for folder in folders for path in folder.glob("*.gguf") if path.name not in own]
    names = {path: read_name(path.name) for path in paths}
    drafts = {path: name for path, name in names.items() if name.part == 1 and _is_draft(path, name)}
    if not drafts:
        return
    wanted = read_name(target.name)
    models = {name.model for path, name in names.items() if path not in drafts and name.role == MODEL} | {wanted.model}
    order = sorted(drafts, key=lambda path: (drafts[path].role != MTP, drafts[path].quant != wanted.quant, path.name))
    for path in order:
        owner = max((model for model in models if drafts[path].names(model)), key=len, default=None)
        if owner == wanted.model:
            yield path, "it has the target's name"
        elif owner is None and len(models) == 1 and len({name.model for name in drafts.values()}) == 1:
            yield path, "it is the only draft next to the target"


def _is_draft(path: Path, name: FileName) -> bool:
    if name.role in DRAFTS:
        return True
    return name.role == MODEL and peek_architecture(path) in DRAFT_KINDS


def peek_architecture(path: Path) -> str:
    """Return the architecture of a GGUF that has it among its first keys, as all writers do; otherwise ""."""
    try:
        refuse_special(path)
        with path.open("rb") as file:
            start = file.read(4096)
    except (OSError, InputError):
        return ""
    at = start.find(_KEY) + len(_KEY)
    if not start.startswith(b"GGUF") or at < len(_KEY):
        return ""
    length = int.from_bytes(start[at : at + 8], "little")
    return start[at + 8 : at + 8 + length].decode("utf-8", "replace")
