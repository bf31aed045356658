"""What rounds should take by the weights that they read: before any was measured."""

from __future__ import annotations

from dataclasses import dataclass

ROW = 0.08  # of a plain decode: what computing a further row takes
FIRST_TOKEN = 0.25  # of a drafted token: what beginning to draft takes


@dataclass(frozen=True)
class Expected:
    """Times in plain decodes.

    decodes: what 1, 2, ... rows read of the weights, of what one row reads: with experts, more the more rows there are.
    token: the same of a drafted token.
    """

    decodes: tuple[float, ...] = (1.0,)
    token: float = 0.07

    def verify(self, n_rows: int) -> float:
        return self.decodes[min(n_rows, len(self.decodes)) - 1] + ROW * (n_rows - 1)

    def draft(self, n_tokens: int) -> float:
        return self.token * (n_tokens + FIRST_TOKEN)


UNKNOWN = Expected()
