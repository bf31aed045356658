"""The models that names find: conversions in our cache, and GGUF files in the hub's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from llama_eagle.errors import EnvironmentFailure, InputError
from llama_eagle.gguf import names
from llama_eagle.hub import cached_sizes, hub_cache
from llama_eagle.store.find import is_model
from llama_eagle.store.kept import Entry, delete, entries

_REPO = "models--"


@dataclass(frozen=True)
class Model:
    """A model on the disk. name: as commands take it. files: its GGUF files, none if it is unfinished.

    changed: seconds since 1970. entry: its conversion; None for a download. drafts_for: target of a published draft.
    """

    name: str
    files: tuple[Path, ...]
    n_bytes: int
    changed: float
    entry: Entry | None = None
    drafts_for: str | None = None

    def answers_to(self, name: str) -> bool:
        if self.entry is not None:
            return self.entry.answers_to(name)
        return name in (self.name, self.name.partition(":")[0])


def models() -> Iterator[Model]:
    """Yield all models on the disk, conversions first."""
    for entry in entries():
        files = () if entry.file is None else (entry.file,)
        yield Model(entry.name, files, entry.n_bytes, entry.changed, entry, entry.drafts_for)
    for folder in sorted(hub_cache().glob(f"{_REPO}*--*")):
        yield from _downloads(folder.name.removeprefix(_REPO).replace("--", "/", 1))


def _downloads(repo: str) -> Iterator[Model]:
    """Yield the GGUF models of a repository in the hub's cache whose parts are complete."""
    folder, sizes = cached_sizes(repo)
    for role in (names.MODEL, *names.DRAFTS):
        for first in names.first_files(sizes, role):
            files = names.all_parts(first)
            if set(files) <= sizes.keys():
                drafts = role != names.MODEL or not is_model(folder / first.path)
                name = f"{repo}:{first.path if drafts or not first.quant else first.quant}"
                paths = tuple(folder / name for name in files)
                n_bytes = sum(sizes[name] for name in files)
                yield Model(name, paths, n_bytes, paths[0].stat().st_mtime, drafts_for=repo if drafts else None)


def find_models(name: str) -> list[Model]:
    """Return the models with this name: all types of OWNER/NAME, or one. Raises `InputError` if there is none."""
    found = [model for model in models() if model.answers_to(name)]
    if not found:
        raise InputError(f"{name}: no such model on the disk. `llama-eagle list` shows the names.")
    return found


def remove(model: Model) -> None:
    """Delete a model's files. Raises `EnvironmentFailure` if that fails, or another command is converting it."""
    if model.entry is not None:
        delete(model.entry)
        return
    for link in model.files:
        blob = link.resolve()
        others = (file for file in link.parents[1].rglob("*") if file != link)
        try:
            link.unlink()
            if blob != link and not any(file.resolve() == blob for file in others):
                blob.unlink(missing_ok=True)
        except OSError as error:
            raise EnvironmentFailure(
                f"cannot delete {error.filename or link} ({error.strerror or error}). Check its permissions."
            ) from None
