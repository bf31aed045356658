"""Typed access to config.json: a value is present and plausible, or the conversion fails with its name."""

from __future__ import annotations

from typing import Any

from llama_eagle.errors import ConfigError

# Maximum plausible values, far above any model's. They bound the memory for a damaged file, and keep products within
# 64 bits.
MAX_DIMENSION = 1 << 24
_LIMITS = {"num_hidden_layers": 512, "depth": 512, "num_experts": 4096}


class Fields:
    """Typed access to a JSON object. A null counts as absent, as in transformers. `where` begins every message."""

    def __init__(self, data: dict[str, Any], where: str = "config.json") -> None:
        self.data = data
        self.where = where

    def get(self, key: str, default: Any = None) -> Any:
        value = self.data.get(key)
        return default if value is None else value

    def bad(self, key: str, expected: str) -> ConfigError:
        return ConfigError(f"{self.where}: {key} is {str(self.get(key))[:80]!r}, expected {expected}")

    def integer(self, key: str) -> int | None:
        """Return a positive integer, or None if absent."""
        value = self.get(key)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        limit = _LIMITS.get(key, MAX_DIMENSION)
        if value is not None and (type(value) is not int or not 0 < value <= limit):
            raise self.bad(key, f"an integer from 1 to {limit}")
        return value

    def need_integer(self, key: str, default: int | None = None) -> int:
        value = self.integer(key)
        value = default if value is None else value
        if value is None:
            raise ConfigError(f"{self.where}: {key} is missing; is this the config.json of the model?")
        return value

    def number(self, key: str) -> float | None:
        """Return a finite number, or None if absent."""
        value = self.get(key)
        if value is None:
            return None
        if not _is_number(value):
            raise self.bad(key, "a finite number")
        return float(value)

    def numbers(self, key: str, count: int) -> list[float] | None:
        """Return `count` finite numbers, or None if absent."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != count or not all(map(_is_number, value)):
            raise self.bad(key, f"{count} finite numbers")
        return [float(v) for v in value]

    def need_number(self, key: str) -> float:
        """Return a positive number."""
        value = self.number(key)
        if value is None or value <= 0:
            raise ConfigError(f"{self.where}: {key} is {self._stated(value)}, expected a positive number")
        return value

    @staticmethod
    def _stated(value: float | None) -> str:
        return "missing" if value is None else str(value)

    def need_epsilon(self, key: str) -> float:
        """Return the epsilon of a norm."""
        value = self.number(key)
        if value is None or not 0 < value < 1:
            raise ConfigError(
                f"{self.where}: {key} is {self._stated(value)}, expected a small positive number such as 1e-6"
            )
        return value

    def flag(self, key: str) -> bool | None:
        value = self.get(key)
        if value is not None and type(value) is not bool:
            raise self.bad(key, "true or false")
        return value

    def text(self, key: str) -> str | None:
        value = self.get(key)
        if value is not None and not isinstance(value, str):
            raise self.bad(key, "a text")
        return value

    def integers(self, key: str) -> list[int] | None:
        """Return a non-empty list of integers, or None if absent."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not 0 < len(value) <= 64 or any(type(v) is not int for v in value):
            raise self.bad(key, "a list of integers")
        return value

    def texts(self, key: str) -> list[str]:
        value = self.get(key, [])
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise self.bad(key, "a list of texts")
        return value

    def child(self, key: str) -> Fields | None:
        value = self.get(key)
        if value is not None and not isinstance(value, dict):
            raise self.bad(key, "an object")
        return None if value is None else Fields(value, f"{self.where}: {key}")

    def require(self, key: str, *allowed: Any) -> None:
        """Refuse a value that llama.cpp's graph does not implement for this architecture. It may be absent."""
        value = self.get(key)
        if value is not None and value not in allowed:
            raise ConfigError(f"{self.where}: {key} is {value!r}, supported: {', '.join(map(repr, allowed))}")


def _is_number(value: object) -> bool:
    """Return True for a number that is finite in 32 bits too."""
    return type(value) in (int, float) and abs(value) < 1e30  # type: ignore[arg-type]


def head_size(config: Fields, hidden: int, n_head: int) -> int:
    """Return head_dim, or else the width divided by the number of heads."""
    head = config.integer("head_dim")
    if head is None and hidden % n_head:
        raise ConfigError(f"{config.where}: hidden_size {hidden} is not a multiple of {n_head} heads; add head_dim")
    return hidden // n_head if head is None else head


def key_value_heads(config: Fields, n_head: int) -> int:
    count = config.need_integer("num_key_value_heads", n_head)
    if n_head % count:
        raise ConfigError(f"{config.where}: {n_head} attention heads do not divide into {count} key-value heads")
    return count
