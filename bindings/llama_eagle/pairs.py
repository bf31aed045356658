"""Published EAGLE-3 drafts and their targets, as ids on the Hugging Face hub.

docs/pairs.md has the same list; a test compares them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from llama_eagle.files import cache_dir


@dataclass(frozen=True)
class KnownPair:
    """A published draft and its target.

    draft: hub id, followed by the subfolder in its repository if there is one. maker: project whose format the draft
    has; tests convert a fixture of that format and compare it with torch. "unknown": its page was not checked. licence:
    of the target. The draft's licence is on its page.
    """

    target: str
    draft: str
    maker: str
    licence: str = "Apache-2.0"


LLAMA_31, LLAMA_33 = (f"Llama {version} Community License" for version in ("3.1", "3.3"))

PAIRS = (
    KnownPair("Qwen/Qwen3-1.7B", "AngelSlim/Qwen3-1.7B_eagle3", "AngelSlim"),
    KnownPair("Qwen/Qwen3-4B", "AngelSlim/Qwen3-4B_eagle3", "AngelSlim"),
    KnownPair("Qwen/Qwen3-8B", "AngelSlim/Qwen3-8B_eagle3", "AngelSlim"),
    KnownPair("Qwen/Qwen3-8B", "RedHatAI/Qwen3-8B-speculator.eagle3", "speculators"),
    KnownPair("Qwen/Qwen3-8B", "Tengyunw/qwen3_8b_eagle3", "SafeAILab"),
    KnownPair("Qwen/Qwen3-14B", "AngelSlim/Qwen3-14B_eagle3", "AngelSlim"),
    KnownPair("Qwen/Qwen3-32B", "AngelSlim/Qwen3-32B_eagle3", "AngelSlim"),
    KnownPair("Qwen/Qwen3-32B", "RedHatAI/Qwen3-32B-speculator.eagle3", "speculators"),
    KnownPair("Qwen/Qwen3-30B-A3B", "AngelSlim/Qwen3-a3B_eagle3", "AngelSlim"),
    KnownPair("Qwen/Qwen3-30B-A3B", "Tengyunw/qwen3_30b_moe_eagle3", "SafeAILab"),
    KnownPair("meta-llama/Llama-3.1-8B-Instruct", "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "SafeAILab", LLAMA_31),
    KnownPair("meta-llama/Llama-3.3-70B-Instruct", "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B", "SafeAILab", LLAMA_33),
    KnownPair("Qwen/Qwen3.5-9B", "BLR2/Qwen3.5-9B-Eagle3-ShareGPT", "unknown"),
    KnownPair("Qwen/Qwen3.5-27B", "VirVen/Qwen3.5-27B-EAGLE3-v2/compressed", "unknown"),
    KnownPair("Qwen/Qwen3.6-27B", "Ex0bit/Qwen3.6-27B-PRISM-EAGLE3/full", "unknown", "see its page"),
    KnownPair("Qwen/Qwen3.5-397B-A17B", "AQ-MedAI/Qwen3.5-397B-A17B-eagle3", "unknown"),
    KnownPair("Qwen/Qwen3-Coder-Next", "thoughtworks/Qwen3-Coder-Next-Eagle3", "unknown"),
)


def find_pair(names: Iterable[str]) -> KnownPair | None:
    """Return the first pair whose target has one of these names: hub ids, or names of models or folders."""
    for name in names:
        wanted = _bare(name)
        for pair in PAIRS:
            owner, _, model = pair.target.lower().partition("/")
            if wanted in (f"{owner}/{model}", model, f"{owner}_{model}", f"meta-{model}"):
                return pair
    return None


def _bare(name: str) -> str:
    """Return a name without the suffixes of GGUF makers, and without an owner other than the target's own."""
    name = re.sub(r"(?i)[-_.]?(i1-)?gguf$", "", name.strip()).lower().replace(" ", "-")
    owner, _, model = name.rpartition("/")
    return model if owner and not any(pair.target.lower() == name for pair in PAIRS) else name


def kept_draft(pair: KnownPair) -> Path:
    """Return the file that holds the pair's converted draft."""
    return model_folder(f"{pair.draft} for {pair.target}", "q8_0") / f"{pair.draft.replace('/', '_')}.gguf"


def models_dir() -> Path:
    """Return the folder of converted models, which has a subfolder for each."""
    return cache_dir() / "models"


def model_folder(source: str, outtype: str) -> Path:
    """Return the folder of the model converted from `source`."""
    return models_dir() / hashlib.sha256(f"{source} {outtype}".encode()).hexdigest()[:16]
