"""The checkpoints that `run.py folders` starts from: drafts of several producers, targets with a vision part or a
prediction block and without, in one file and in shards."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

from fixtures.eagle3_checkpoints import CASES, make_draft, make_target_gguf, write_weights
from fuzz import folder
from safetensors.torch import load_file

DRAFTS = (
    "specforge", "safeailab", "sglang-export", "angelslim", "modelopt", "speculators", "speculators-qwen3", "nvidia-v3",
    "qwen3-style", "everything", "loose-map", "specforge-windows",
)  # fmt: skip
VISION = ("qwen35", "qwen35moe", "qwen3vl")
SHARDED = ("qwen3", "qwen35moe")


@dataclass(frozen=True)
class FolderSeed:
    """A checkpoint in memory. target: of a draft. words: for the worker."""

    name: str
    files: folder.Files = field(repr=False)
    target: Path | None
    words: tuple[str, ...]


def make_seeds(at: Path, families: tuple[str, ...], drafts: tuple[str, ...] = DRAFTS) -> list[FolderSeed]:
    from fixtures.targets import HYBRID, make_target

    target = make_target_gguf(at / "target.gguf")
    seeds = [FolderSeed(name, folder.read(make_draft(at / name, CASES[name])), target, ("convert",)) for name in drafts]
    for family in families:
        source = make_target(family, at / family, num_hidden_layers=4, mtp=family in HYBRID)
        if family in SHARDED:
            tensors = load_file(source / "model.safetensors")
            (source / "model.safetensors").unlink()
            write_weights(source, tensors, "sharded")
        words = ("convert", "vision") if family in VISION else ("convert",)
        seeds.append(FolderSeed(family, folder.read(source), None, words))
    return seeds


def place(seed: FolderSeed, number: int | None, at: Path) -> str:
    """Writes the case into `at`, and says it as the worker reads it. number: None changes nothing."""
    files = seed.files if number is None else folder.mutated(seed.files, random.Random(number))
    source = folder.write(files, at / "checkpoint")
    words = (*seed.words, *(["use"] if number is None or number // 10 % 5 == 0 else []))
    return "\t".join((str(source), str(seed.target or "-"), *words))
