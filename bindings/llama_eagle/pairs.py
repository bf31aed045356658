"""Published drafts and their targets, as ids on the Hugging Face hub.

docs/pairs.md has the same list; a test compares them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from llama_eagle.files import cache_dir

DRAFT_TYPE = "q4_k_m"  # of converted drafts, unless the user chooses another: docs/quantization.md
EAGLE3, PEAGLE, DFLASH, DFLASH2, DSPARK = "EAGLE-3", "P-EAGLE", "DFlash", "DFlash2", "DSpark"
TOKENS_PER_ROUND = 3  # a chain is read once for each of them, a block once for all
CHAIN_SIZE = 0.5  # of a draft with one layer and a small vocabulary
BLOCK_SIZE = 2.0  # of the other kinds, which have about five layers


@dataclass(frozen=True)
class KnownPair:
    """A published draft and its target.

    draft: hub id, followed by the subfolder in its repository if there is one. maker: project whose format the draft
    has; tests convert a fixture of that format and compare it with torch. "unknown": its page was not checked. size:
    billions of parameters that its page shows, None if unknown. licence: of the target. The draft's licence is on its
    page.
    """

    target: str
    draft: str
    maker: str
    size: float | None = None
    kind: str = EAGLE3
    licence: str = "Apache-2.0"

    @property
    def cost(self) -> float:
        """Billions of parameters that a round of TOKENS_PER_ROUND drafted tokens reads."""
        if self.kind == EAGLE3:
            return (self.size or CHAIN_SIZE) * TOKENS_PER_ROUND
        return self.size or BLOCK_SIZE


LLAMA_31, LLAMA_33 = (f"Llama {version} Community License" for version in ("3.1", "3.3"))
QWEN_30B, QWEN_30B_2507 = "Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-30B-A3B-Instruct-2507"
QWEN_CODER = "Qwen/Qwen3-Coder-30B-A3B-Instruct"
QWEN_NEXT, CODER_NEXT = "Qwen/Qwen3-Next-80B-A3B-Instruct", "Qwen/Qwen3-Coder-Next"
LLAMA_8B, LLAMA_70B = "meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.3-70B-Instruct"
R1_LLAMA = "deepseek-ai/DeepSeek-R1-Distill-Llama-8B"
GPT_20B, GPT_120B = "openai/gpt-oss-20b", "openai/gpt-oss-120b"
GEMMA_12B = "google/gemma-4-12B-it"
QWEN_36_MOE, NEMOTRON = "Qwen/Qwen3.6-35B-A3B", "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-BF16"
PAGE = "see its page"
GEMMA_26B, GEMMA_31B = "google/gemma-4-26B-A4B-it", "google/gemma-4-31B-it"

PAIRS = (
    KnownPair("Qwen/Qwen3-1.7B", "AngelSlim/Qwen3-1.7B_eagle3", "AngelSlim"),
    KnownPair("Qwen/Qwen3-4B", "AngelSlim/Qwen3-4B_eagle3", "AngelSlim"),
    KnownPair("Qwen/Qwen3-4B", "deepseek-ai/eagle3_qwen3_4b_ttt7", "DeepSpec"),
    KnownPair("Qwen/Qwen3-4B", "z-lab/Qwen3-4B-DFlash-b16", "z-lab", 0.5, DFLASH),
    KnownPair("Qwen/Qwen3-4B", "deepseek-ai/dspark_qwen3_4b_block7", "DeepSpec", kind=DSPARK),
    KnownPair("Qwen/Qwen3-8B", "AngelSlim/Qwen3-8B_eagle3", "AngelSlim"),
    KnownPair("Qwen/Qwen3-8B", "RedHatAI/Qwen3-8B-speculator.eagle3", "speculators"),
    KnownPair("Qwen/Qwen3-8B", "RedHatAI/Qwen3-8B-speculator.peagle", "speculators", kind=PEAGLE),
    KnownPair("Qwen/Qwen3-8B", "Tengyunw/qwen3_8b_eagle3", "SafeAILab"),
    KnownPair("Qwen/Qwen3-8B", "deepseek-ai/eagle3_qwen3_8b_ttt7", "DeepSpec"),
    KnownPair("Qwen/Qwen3-8B", "z-lab/Qwen3-8B-DFlash-b16", "z-lab", 1.0, DFLASH),
    KnownPair("Qwen/Qwen3-8B", "RedHatAI/Qwen3-8B-speculator.dflash", "speculators", kind=DFLASH),
    KnownPair("Qwen/Qwen3-8B", "RedHatAI/Qwen3-8B-speculator.dflash2", "speculators", kind=DFLASH2),
    KnownPair("Qwen/Qwen3-8B", "deepseek-ai/dspark_qwen3_8b_block7", "DeepSpec", kind=DSPARK),
    KnownPair("Qwen/Qwen3-8B", "mgoin/Qwen3-8B-speculator.dspark", "speculators", kind=DSPARK),
    KnownPair("Qwen/Qwen3-14B", "AngelSlim/Qwen3-14B_eagle3", "AngelSlim"),
    KnownPair("Qwen/Qwen3-14B", "RedHatAI/Qwen3-14B-speculator.eagle3", "speculators"),
    KnownPair("Qwen/Qwen3-14B", "deepseek-ai/eagle3_qwen3_14b_ttt7", "DeepSpec", 2.0),
    KnownPair("Qwen/Qwen3-14B", "deepseek-ai/dspark_qwen3_14b_block7", "DeepSpec", kind=DSPARK),
    KnownPair("Qwen/Qwen3-32B", "AngelSlim/Qwen3-32B_eagle3", "AngelSlim"),
    KnownPair("Qwen/Qwen3-32B", "RedHatAI/Qwen3-32B-speculator.eagle3", "speculators"),
    KnownPair(QWEN_30B, "AngelSlim/Qwen3-a3B_eagle3", "AngelSlim"),
    KnownPair(QWEN_30B, "Tengyunw/qwen3_30b_moe_eagle3", "SafeAILab"),
    KnownPair(QWEN_30B_2507, "RedHatAI/Qwen3-30B-A3B-Instruct-2507-speculator.eagle3", "speculators", 0.5),
    KnownPair(QWEN_30B_2507, "lmsys/SGLang-EAGLE3-Qwen3-30B-A3B-Instruct-2507-SpecForge-Nex", "SpecForge", 0.2),
    KnownPair(QWEN_CODER, "lmsys/SGLang-EAGLE3-Qwen3-Coder-30B-A3B-Instruct-SpecForge", "SpecForge"),
    KnownPair(QWEN_CODER, "z-lab/Qwen3-Coder-30B-A3B-DFlash", "z-lab", 0.5, DFLASH),
    KnownPair(LLAMA_8B, "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "SafeAILab", licence=LLAMA_31),
    KnownPair(LLAMA_8B, "RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3", "speculators", licence=LLAMA_31),
    KnownPair(LLAMA_8B, "lmsys/SGLang-EAGLE3-Llama-3.1-8B-Instruct-SpecForge", "SpecForge", 0.4, licence=LLAMA_31),
    KnownPair(LLAMA_8B, "z-lab/LLaMA3.1-8B-Instruct-DFlash-UltraChat", "z-lab", 1.0, DFLASH, licence=LLAMA_31),
    KnownPair(LLAMA_70B, "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B", "SafeAILab", licence=LLAMA_33),
    KnownPair(LLAMA_70B, "RedHatAI/Llama-3.3-70B-Instruct-speculator.eagle3", "speculators", licence=LLAMA_33),
    KnownPair(LLAMA_70B, "lmsys/SGLang-EAGLE3-Llama-3.3-70B-Instruct-SpecForge", "SpecForge", 1.0, licence=LLAMA_33),
    KnownPair(R1_LLAMA, "yuhuili/EAGLE3-DeepSeek-R1-Distill-LLaMA-8B", "SafeAILab", licence="MIT"),
    KnownPair(GPT_20B, "RedHatAI/gpt-oss-20b-speculator.eagle3", "speculators"),
    KnownPair(GPT_20B, "zhuyksir/EAGLE3-gpt-oss-20b-bf16", "SpecForge"),
    KnownPair(GPT_20B, "Dogacel/specdrift-gpt-oss-20b-eagle3", "SpecForge"),
    KnownPair(GPT_20B, "nebius/EAGLE3-gpt-oss-20b", "unknown", 0.4),
    KnownPair(GPT_20B, "z-lab/gpt-oss-20b-DFlash", "z-lab", 0.8, DFLASH),
    KnownPair(GPT_120B, "RedHatAI/gpt-oss-120b-speculator.eagle3", "speculators"),
    KnownPair(GPT_120B, "z-lab/gpt-oss-120b-DFlash", "z-lab", 0.8, DFLASH),
    KnownPair(GEMMA_12B, "deepseek-ai/eagle3_gemma4_12b_ttt7", "DeepSpec", licence=PAGE),
    KnownPair(GEMMA_12B, "deepseek-ai/dspark_gemma4_12b_block7", "DeepSpec", 3.4, DSPARK, licence=PAGE),
    KnownPair(GEMMA_12B, "BCCard/MoAI-gemma-4-12B-it-speculator.eagle3", "speculators", licence=PAGE),
    KnownPair(GEMMA_26B, "RedHatAI/gemma-4-26B-A4B-it-speculator.eagle3", "speculators", licence=PAGE),
    KnownPair(GEMMA_31B, "RedHatAI/gemma-4-31B-it-speculator.eagle3", "speculators", 2.0, licence=PAGE),
    KnownPair(GEMMA_31B, "z-lab/gemma-4-31B-it-DFlash", "z-lab", 2.0, DFLASH, licence=PAGE),
    KnownPair("Qwen/Qwen3.5-0.8B", "Moonlight556/Qwen3.5-0.8B-DFlash", "SpecForge", kind=DFLASH),
    KnownPair("Qwen/Qwen3.5-4B", "z-lab/Qwen3.5-4B-DFlash", "z-lab", 0.5, DFLASH),
    KnownPair("Qwen/Qwen3.5-9B", "BLR2/Qwen3.5-9B-Eagle3-ShareGPT", "unknown"),
    KnownPair("Qwen/Qwen3.5-9B", "z-lab/Qwen3.5-9B-DFlash", "z-lab", 1.0, DFLASH),
    KnownPair("Qwen/Qwen3.5-27B", "VirVen/Qwen3.5-27B-EAGLE3-v2/compressed", "unknown"),
    KnownPair("Qwen/Qwen3.5-27B", "z-lab/Qwen3.5-27B-DFlash", "z-lab", 2.0, DFLASH),
    KnownPair("Qwen/Qwen3.5-35B-A3B", "z-lab/Qwen3.5-35B-A3B-DFlash", "z-lab", 0.5, DFLASH),
    KnownPair("Qwen/Qwen3.5-397B-A17B", "AQ-MedAI/Qwen3.5-397B-A17B-eagle3", "unknown"),
    KnownPair("Qwen/Qwen3.5-397B-A17B", "z-lab/Qwen3.5-397B-A17B-DFlash", "z-lab", kind=DFLASH),
    KnownPair("Qwen/Qwen3.6-27B", "Ex0bit/Qwen3.6-27B-PRISM-EAGLE3/compressed", "unknown", 0.6, licence=PAGE),
    KnownPair("Qwen/Qwen3.6-27B", "Ex0bit/Qwen3.6-27B-PRISM-EAGLE3/full", "unknown", 1.6, licence=PAGE),
    KnownPair("Qwen/Qwen3.6-27B", "z-lab/Qwen3.6-27B-DFlash", "z-lab", 2.0, DFLASH, licence=PAGE),
    KnownPair(QWEN_36_MOE, "z-lab/Qwen3.6-35B-A3B-DFlash", "z-lab", 0.4, DFLASH, licence=PAGE),
    KnownPair(QWEN_36_MOE, "RedHatAI/Qwen3.6-35B-A3B-speculator.dspark", "speculators", kind=DSPARK, licence=PAGE),
    KnownPair("Qwen/Qwen3.8-27B", "z-lab/Qwen3.8-27B-DFlash2", "z-lab", 2.0, DFLASH2, licence=PAGE),
    KnownPair("Qwen/Qwen3.8-27B", "RedHatAI/Qwen3.8-27B-speculator.dspark", "speculators", 2.2, DSPARK, PAGE),
    KnownPair("Qwen/Qwen3.8-27B", "RadixArk/Qwen3.8-27B-DSpark", "SpecForge", None, DSPARK, PAGE),
    KnownPair(QWEN_NEXT, "lmsys/SGLang-EAGLE3-Qwen3-Next-80B-A3B-Instruct-FP8-perfect-blend-regenerated", "SpecForge"),
    KnownPair(CODER_NEXT, "thoughtworks/Qwen3-Coder-Next-Eagle3", "unknown"),
    KnownPair(CODER_NEXT, "z-lab/Qwen3-Coder-Next-DFlash", "z-lab", 0.5, DFLASH),
    KnownPair("meta-models/Muse-Glimmer-30B", "meta-models/Muse-Glimmer-30B-assistant", "Meta", 2.6, DFLASH, PAGE),
    KnownPair("meta-models/Muse-Glimmer-30B", "z-lab/Muse-Glimmer-30B-DFlash2", "z-lab", 2.8, DFLASH2, PAGE),
    KnownPair("meta-models/Muse-Glimmer-30B", "DaoCloud/Muse-Glimmer-30B-DSpark", "unknown", None, DSPARK, PAGE),
    KnownPair("LiquidAI/LFM2.5-1.2B-Instruct", "LiquidAI/LFM2.5-1.2B-Instruct-DSpark", "LiquidAI", 0.3, DSPARK, PAGE),
    KnownPair("LiquidAI/LFM2.5-2.6B", "LiquidAI/LFM2.5-2.6B-DSpark", "LiquidAI", 0.3, DSPARK, PAGE),
    KnownPair("LiquidAI/LFM2.5-8B-A1B", "LiquidAI/LFM2.5-8B-A1B-DSpark", "LiquidAI", 0.3, DSPARK, PAGE),
    KnownPair("LiquidAI/LFM2.5-VL-3B", "LiquidAI/LFM2.5-VL-3B-DSpark", "LiquidAI", 0.3, DSPARK, PAGE),
    KnownPair("Nanbeige/Nanbeige4.2-3B", "Nanbeige/Nanbeige4.2-3B-DSpark", "SpecForge", 0.8, DSPARK, PAGE),
    KnownPair(NEMOTRON, f"{NEMOTRON.removesuffix('-BF16')}-DSpark-NVFP4", "unknown", None, DSPARK, PAGE),
)


def find_pairs(names: Iterable[str]) -> list[KnownPair]:
    """Return the pairs whose target has one of these names: hub ids, or names of models or folders.

    They are in the order of their costs: what `check` compares for converted files.
    """
    for name in names:
        wanted = _bare(name)
        found = [pair for pair in PAIRS if wanted in _names(pair)]
        if found:
            return sorted(found, key=lambda pair: pair.cost)
    return []


def _names(pair: KnownPair) -> tuple[str, ...]:
    owner, _, model = pair.target.lower().partition("/")
    return f"{owner}/{model}", model, f"{owner}_{model}", f"meta-{model}"


def _bare(name: str) -> str:
    """Return a name without the suffixes of GGUF makers, and without an owner other than the target's own."""
    name = re.sub(r"(?i)[-_.]?(i1-)?gguf$", "", name.strip()).lower().replace(" ", "-")
    owner, _, model = name.rpartition("/")
    return model if owner and not any(pair.target.lower() == name for pair in PAIRS) else name


def kept_draft(pair: KnownPair) -> Path:
    """Return the file of the pair's converted draft, also one in Q8_0, which earlier versions wrote."""
    types = (DRAFT_TYPE, "q8_0")
    name = f"{pair.draft.replace('/', '_')}.gguf"
    files = [model_folder(f"{pair.draft} for {pair.target}", kind) / name for kind in types]
    return next((file for file in files if file.is_file()), files[0])


def models_dir() -> Path:
    """Return the folder of converted models, which has a subfolder for each."""
    return cache_dir() / "models"


def model_folder(source: str, outtype: str) -> Path:
    """Return the folder of the model converted from `source`."""
    return models_dir() / hashlib.sha256(f"{source} {outtype}".encode()).hexdigest()[:16]
