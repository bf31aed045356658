"""Named sets of tensor types, measured in docs/quantization.md."""

from __future__ import annotations

from llama_eagle.errors import UsageError

# recipe -> pattern -> type
RECIPES: dict[str, dict[str, str]] = {
    # The head is read for every row of a verify batch; where a model has no output.weight, the embeddings are the head.
    "speculation": {r"^(output|token_embd)\.weight$": "q4_k"},
}


def recipe_types(name: str) -> dict[str, str]:
    """Pattern -> type of a recipe. Raises UsageError with the names there are."""
    if name not in RECIPES:
        raise UsageError(f"there is no recipe {name!r}; recipes: {', '.join(RECIPES)}")
    return RECIPES[name]
