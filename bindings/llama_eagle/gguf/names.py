"""Names of GGUF files, parsed as in llama.cpp (common/download.cpp): model, quantization, split and role.

And the names of the architectures that only draft.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from llama_eagle.errors import UsageError
from llama_eagle.gguf.header import Header

MODEL, MTP, EAGLE3 = "model", "mtp", "eagle3"
DRAFTS = (MTP, EAGLE3, "dflash", "dspark")  # roles of files that draft
ASSISTANT = "gemma4-assistant"
DRAFT_KINDS = {  # by architecture: models that only draft
    "eagle3": "an EAGLE-3 draft",
    "dflash": "a DFlash draft",
    ASSISTANT: "an assistant of Gemma 4",
}
PARALLEL = "eagle3.block_size"  # key of a P-EAGLE draft: the number of tokens that it proposes in one pass
HELD_OUT = "llama_eagle.held_out_acceptance"  # key of a draft: acceptance rates by position, from the trainer
TRAINED_LENGTH = "llama_eagle.trained_length"  # key of a draft: tokens of its longest training text, from the trainer
FEATURE_DRAFTS = frozenset(DRAFT_KINDS) - {ASSISTANT}  # read the target's states, and its head if they have none
_ROLES = {
    "mmproj": "mmproj",
    "imatrix": "imatrix",
    "mtp-": MTP,
    "eagle3-": EAGLE3,
    "dflash-": "dflash",
    "dspark-": "dspark",
}
_SPLIT = re.compile(r"-(\d{5})-of-(\d{5})$")
_TYPE = r"(?:UD-)?(?:I?Q[1-8](?:_[A-Z0-9]+)*|TQ[12]_\d|BF16|F16|F32|FP16|FP32|MXFP\d(?:_[A-Z]+)?|NVFP4)"
_QUANT = re.compile(rf"(?i)(?:^|[-._])({_TYPE})(?=$|[-.])")
_FOLDER = re.compile(rf"(?i){_TYPE}")


def is_parallel(draft: Header) -> bool:
    """Return True for an EAGLE-3 draft that proposes all tokens of a round in one pass (P-EAGLE)."""
    return PARALLEL in draft.keys


def draft_kind(file: Header) -> str | None:
    """Return the kind of a model that only drafts, with its article; None for other models."""
    return "a P-EAGLE draft" if is_parallel(file) else DRAFT_KINDS.get(file.architecture)


@dataclass(frozen=True)
class FileName:
    """A parsed file name.

    path: within a folder or repository. model: the name without role, quantization and split. quant: upper case, empty
    if the name has none. part: from 1.
    """

    path: str
    role: str
    model: str
    quant: str
    part: int = 1
    n_parts: int = 1

    @property
    def bits(self) -> int:
        """Bits of the quantization; 16 if the name has none."""
        found = re.search(r"\d+", self.quant)
        return int(found[0]) if found else 16

    def is_type(self, wanted: str) -> bool:
        return wanted.upper() in (self.quant, self.quant.removeprefix("UD-"))

    def fits(self, wanted: str) -> bool:
        """Return True for a model of the type `wanted`, or the file of that name."""
        return self.is_type(wanted) or f"/{self.path}".endswith(f"/{wanted}")

    def names(self, model: str) -> bool:
        """Return True if the file's model name contains the words of `model`."""
        return f"-{_words(model)}-" in f"-{_words(self.model)}-"


def read_name(path: str) -> FileName:
    """Parse the path of a GGUF."""
    pure = PurePosixPath(path)
    stem, part, n_parts = pure.stem, 1, 1
    if split := _SPLIT.search(stem):
        stem, part, n_parts = stem[: split.start()], int(split[1]), int(split[2])
    role = next((role for mark, role in _ROLES.items() if mark in stem), MODEL)
    found = list(_QUANT.finditer(stem))
    if found:
        quant, stem = found[-1][1].upper(), stem[: found[-1].start()] + stem[found[-1].end() :]
    else:
        quant = pure.parent.name.upper() if _FOLDER.fullmatch(pure.parent.name) else ""
    mark = next((mark for mark, value in _ROLES.items() if value == role), "")
    return FileName(path, role, stem.replace(mark, "", 1).strip("-._"), quant, part, n_parts)


def names_of(model: Header) -> Iterator[str]:
    """Yield names of a model, including hub ids.

    They are those of its repository, its file, itself, and the model it was made from.
    """
    path = model.path.absolute()
    yield from (part.removeprefix("models--").replace("--", "/") for part in path.parts if part.startswith("models--"))
    yield f"{path.parent.parent.name}/{path.parent.name}"
    yield read_name(path.name).model
    keys = [str(model.keys.get(key, "")) for key in ("general.name", "general.base_model.0.repo_url")]
    yield from ("/".join(key.rstrip("/").split("/")[-2:]) for key in keys if key)
    owner, name = (str(model.keys.get(f"general.base_model.0.{key}", "")) for key in ("organization", "name"))
    if name:
        yield f"{owner}/{name}" if owner else name


def is_type_folder(name: str) -> bool:
    """Return True for a folder named after a quantization, as in repositories with large models."""
    return _FOLDER.fullmatch(name) is not None


def first_files(paths: Iterable[str], role: str = MODEL) -> list[FileName]:
    """Return the first or only file of each model with this role."""
    names = [read_name(path) for path in sorted(paths) if path.lower().endswith(".gguf")]
    return [name for name in names if name.role == role and name.part == 1]


def all_parts(first: FileName) -> list[str]:
    """Return the names of all files of a model, in order."""
    if first.n_parts == 1:
        return [first.path]
    mark = f"-{1:05d}-of-{first.n_parts:05d}"
    return [first.path.replace(mark, f"-{i + 1:05d}-of-{first.n_parts:05d}") for i in range(first.n_parts)]


def parts(first: FileName, paths: Iterable[str]) -> list[str]:
    """Return all files of a split model, in order. Raises `UsageError` if one is missing."""
    wanted = all_parts(first)
    missing = set(wanted) - set(paths)
    if missing:
        raise UsageError(f"{min(missing)} is missing: {first.path} has {first.n_parts} parts. Choose another model.")
    return wanted


def choose(where: str, sizes: Mapping[str, int], wanted: str | None, memory: int | None) -> FileName:
    """Choose the model to load from a repository.

    The order is: the type that is wanted; Q4_K_M or the next larger one that fits into `memory` bytes; the largest that
    fits. Raises `UsageError` with the available models.
    """
    models = first_files(sizes)
    if not models:
        raise UsageError(f"{where}: contains no GGUF model. Choose another repository or folder.")
    if wanted is not None:
        found = [name for name in models if name.fits(wanted)]
        exact = [name for name in found if name.quant == wanted.upper()]
        return _only(where, exact or found, models, f"{wanted}" if "." in wanted else f"of type {wanted.upper()}")
    _only(where, [next(name for name in models if name.model == model) for model in {n.model for n in models}], models)
    n_bytes = {name: sum(sizes[path] for path in parts(name, sizes)) for name in models}
    fitting = [name for name in models if memory is None or n_bytes[name] <= memory]
    if not fitting:
        smallest = min(models, key=lambda name: n_bytes[name])
        raise UsageError(
            f"{where}: its smallest model, {smallest.path}, takes {n_bytes[smallest] / 2**30:.1f} GiB, "
            f"{(memory or 0) / 2**30:.1f} GiB of memory are free. Choose a smaller model, or this one with its type: "
            f"{where}:{smallest.quant or 'TYPE'}"
        )
    return min(fitting, key=lambda name: _rank(name, n_bytes[name]))


def _rank(name: FileName, n_bytes: int) -> tuple[bool, bool, int]:
    """Return the sort key: four bits first, then more, then fewer."""
    return name.bits < 4, name.quant != "Q4_K_M", n_bytes if name.bits >= 4 else -n_bytes


def _only(where: str, found: list[FileName], models: list[FileName], what: str = "") -> FileName:
    if len(found) == 1:
        return found[0]
    listed = ", ".join(name.path for name in (found or models)[:8])
    count = f"{len(found)} models" if found else "no model"
    example = f"{where}:{(found or models)[0].path}"
    raise UsageError(f"{where}: {count} {what}".rstrip() + f". Available: {listed}. Choose one, such as {example}")


def closest(names: Iterable[FileName], model: FileName) -> FileName | None:
    """Return the sidecar whose quantization is closest to the model's."""
    return min(
        names, key=lambda name: (name.quant != model.quant, abs(name.bits - model.bits), name.path), default=None
    )


def _words(text: str) -> str:
    return "-".join(re.findall(r"[a-z0-9]+", text.lower()))
