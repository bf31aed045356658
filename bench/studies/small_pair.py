"""A synthetic target and a small model that drafts for it with a chosen acceptance rate, both of the Qwen3.5 family.

Both are constructed targets (llama_eagle.synthetic). The small model's text is that of the target, but another word
follows where it is to err. The words of the text have the lowest ids, as frequent words do, so a trimmed head has them.
"""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path

import numpy as np
from llama_eagle.convert.targets import TargetOptions, convert_target
from llama_eagle.synthetic.constructed import write_target
from llama_eagle.synthetic.cycle import Cycle
from llama_eagle.synthetic.ggufs import MTP_WORDS
from llama_eagle.synthetic.shapes import SHAPES


def small_pair(folder: Path, shape: str, small: str, accept: float, outtype: str, draft_type: str) -> tuple[Path, Path]:
    """Return the GGUFs of the target and the small model, made now if necessary."""
    cycle = Cycle(SHAPES[shape].n_vocab, MTP_WORDS, accept, 0, mtp=True)
    cycle.mtp = False  # only the order of the ids is that of an MTP head's text
    erring, wrong = copy.copy(cycle), cycle.ids[cycle.wrong]
    erring.next_ids = cycle.next_ids.copy()
    erring.next_ids[wrong] = cycle.next_ids[np.roll(wrong, 1)]
    target = _make(folder / f"{shape}-{outtype}.gguf", shape, cycle)
    return target, _make(folder / f"{small}-{accept:g}-{draft_type}.gguf", small, erring)


def _make(out: Path, shape: str, cycle: Cycle) -> Path:
    if not out.is_file():
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent) as checkpoint:
            write_target(Path(checkpoint), SHAPES[shape], cycle, 0)
            convert_target(checkpoint, out, TargetOptions(outtype=out.stem.rpartition("-")[2]))
    return out
