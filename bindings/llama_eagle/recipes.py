"""Named sets of tensor types."""

from __future__ import annotations

from llama_eagle.errors import UsageError

RECIPES: dict[str, dict[str, str]] = {}


def recipe_types(name: str) -> dict[str, str]:
    """Pattern -> type of a recipe. Raises UsageError with the names there are."""
    if name not in RECIPES:
        raise UsageError(f"there is no recipe {name!r}; recipes: {', '.join(RECIPES)}")
    return RECIPES[name]
