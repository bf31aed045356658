"""Kinds and settings of peft's adapters (0.21.2): what a GGUF adapter lacks, and the remedy for each.

ADAPTER, BASE, FOLDER and OUT in a remedy are names for the user's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

MERGE = "Merge it: llama-eagle convert ADAPTER --merge --base FOLDER -o OUT.gguf"
PEFT_MERGE = (
    "Merge it into its base model with peft (PeftModel.from_pretrained(BASE, 'ADAPTER').merge_and_unload()"
    ".save_pretrained('OUT'))"
)
BY_PEFT = f"{PEFT_MERGE}, copy the base's tokenizer files to OUT, and convert OUT"
NEVER = "Nothing of it can be merged into weights, and llama.cpp does not have it: convert the base model alone"
BIASES = "Leave the biases out of the training, or convert the base model alone"
CONVERTED = (
    "Save it as a plain LoRA where it was trained (save_pretrained('OUT', "
    "path_initial_model_for_weight_conversion='INITIAL'), INITIAL: the adapter before the training)"
)

# Types that add inputs or layers, or choose weights by the input.
_NEVER_MERGED = (
    "PROMPT_TUNING", "MULTITASK_PROMPT_TUNING", "P_TUNING", "PREFIX_TUNING", "ADAPTION_PROMPT", "CPT", "CARTRIDGE",
    "POLY", "XLORA", "LILY", "SHADOW",
)  # fmt: skip
_INITIAL = {  # ways to initialize pairs that change the base model, with a remedy
    "pissa": ("PiSSA", BY_PEFT),
    "olora": ("OLoRA", BY_PEFT),
    "loftq": ("LoftQ", BY_PEFT),
    "corda": ("CorDA", CONVERTED),
    "lora_ga": ("LoRA-GA", CONVERTED),
}
_SETTINGS = {  # key of adapter_config.json -> name, remedy
    "alora_invocation_tokens": ("an activated LoRA (aLoRA), which acts from its invocation tokens on", NEVER),
    "arrow_config": ("a router of adapters (Arrow)", NEVER),
    "layer_replication": ("pairs of repeated layers (layer_replication)", NEVER),
    "use_qalora": ("a QA-LoRA, whose inputs are pooled", NEVER),
    "use_bdlora": ("a block-diagonal LoRA (BD-LoRA)", BY_PEFT),
    "kasa_config": ("a KaSA adapter, which changes the base model", BY_PEFT),
    "monteclora_config": ("a MonteCLoRA adapter, which samples its weights", BY_PEFT),
}


class Fault(NamedTuple):
    """A property that a GGUF adapter cannot hold. merges: `convert --merge` reads it."""

    what: str
    remedy: str = MERGE
    merges: bool = True


_TENSORS = (  # pattern of names -> fault
    (r"\.lora_magnitude_vector\b", Fault("a DoRA adapter, which scales the rows of weights")),
    (r"\.lora_B(\.\w+)?\.bias$", Fault("a LoRA with biases of B (lora_bias)")),
    (r"trainable_tokens|token_adapter", Fault("trained tokens (trainable_token_indices)", BY_PEFT, merges=False)),
)
_PARTS = re.compile(r"\.(lora_(embedding_)?[AB]|lora_magnitude_vector|lora_velora_embed)\b")
_COPIES = re.compile(r"\.base_layer\.weight$")  # of embeddings that peft stores with their pairs


def kind_fault(config: Mapping[str, Any]) -> Fault | None:
    """Return the reason why an adapter of this type is neither converted nor merged by us."""
    kind = str(config.get("peft_type") or "LORA")
    if kind in _NEVER_MERGED:
        return Fault(f"a PEFT adapter ({kind})", NEVER, merges=False)
    if kind != "LORA":
        return Fault(f"a PEFT adapter ({kind})", NEVER if kind == "BEFT" else BY_PEFT, merges=False)
    return None


def adapter_faults(config: Mapping[str, Any], names: Iterable[str]) -> Iterator[Fault]:
    """Yield what a GGUF adapter cannot hold, by adapter_config.json and the names of stored tensors."""
    if fault := kind_fault(config):
        yield fault
        return
    start = config.get("init_lora_weights")
    for prefix, (name, remedy) in _INITIAL.items():
        if isinstance(start, str) and start.lower().startswith(prefix):
            yield Fault(f"pairs that belong to a changed base model ({name})", remedy, merges=False)
    for key, (name, remedy) in _SETTINGS.items():
        if config.get(key) not in (None, False):
            yield Fault(name, remedy, merges=False)
    stored = list(names)
    for pattern, fault in _TENSORS:
        if any(re.search(pattern, name) for name in stored):
            yield fault
    if other := next((name for name in stored if is_whole(name)), None):
        yield Fault(f"a whole tensor that was trained ({other}: modules_to_save, a bias or a norm)")


def is_whole(name: str) -> bool:
    """Return True for a tensor that replaces one of the base model."""
    return not _PARTS.search(name) and not _COPIES.search(name) and not re.search(_TENSORS[2][0], name)
