"""Published EAGLE-3 drafts and the targets that they were trained for: ids on the Hugging Face hub.

The list is docs/pairs.md's; a test compares them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KnownPair:
    """maker: whose format the draft has; a fixture of that format is converted and compared with torch in the tests.

    licence: of the target. The draft's stands on its page.
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
)


def draft_of(target: str) -> str | None:
    """The first draft in the list for a target's hub id."""
    return next((pair.draft for pair in PAIRS if pair.target.lower() == target.lower()), None)
