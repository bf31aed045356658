"""Puts this folder on the import path (`fixtures.`, `parity.`), keeps torch from crowding cores, heeds Ctrl-C."""

from __future__ import annotations

import signal

import torch

torch.set_num_threads(1)

# A shell's background job ignores Ctrl-C, and so would the programs that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
