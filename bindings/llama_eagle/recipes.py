"""Named sets of tensor types, measured in docs/quantization.md."""

from __future__ import annotations

from llama_eagle.errors import UsageError

# recipe -> pattern -> type
RECIPES: dict[str, dict[str, str]] = {
    # Q5_K and Q6_K, which the K-quant mixes give to the head and to some matrices, cost more in a batch of rows.
    "speculation": {
        r"^(output|token_embd)\.weight$": "q8_0",
        r"\.(attn_v|attn_qkv|ffn_down)\.weight$": "q4_k",
    },
}


def recipe_types(name: str) -> dict[str, str]:
    """Pattern -> type of a recipe. Raises UsageError with the names there are."""
    if name not in RECIPES:
        raise UsageError(f"there is no recipe {name!r}; recipes: {', '.join(RECIPES)}")
    return RECIPES[name]
