"""Named sets of tensor types, measured in docs/quantization.md."""

from __future__ import annotations

from llama_eagle.errors import UsageError

# recipe -> pattern -> type
RECIPES: dict[str, dict[str, str]] = {
    # For q4_k_m: half of its loss is in these matrices, and Q6_K costs a verify batch little more than Q4_K does.
    "speculation": {r"^blk\.\d+\.(attn|ssm)_": "q6_k"},
}


def recipe_types(name: str) -> dict[str, str]:
    """Return pattern -> type of a recipe. Raises UsageError with the known names."""
    if name not in RECIPES:
        raise UsageError(f"unknown recipe {name!r}. Choose one of {', '.join(RECIPES)}.")
    return RECIPES[name]
