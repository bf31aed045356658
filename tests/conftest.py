"""Puts this folder on the import path (`fixtures.`, `parity.`) and keeps torch from crowding shared cores."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
