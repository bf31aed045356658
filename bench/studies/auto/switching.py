"""Whether `auto` follows a text that changes: half of it the MTP head drafts well, in the other half it always errs.

    python bench/studies/auto/switching.py FOLDER [--shape 0.8b] [--type q8_0] [-n 256] [--threads 2] [--json]

A constructed target is written to FOLDER, unless it is there. Three texts, each decoded in four ways:

- look-up takes over: the words of the second half are in the prompt
- nothing takes over: they are not
- nothing helps: the second half alone
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
from llama_eagle.convert.targets import TargetOptions, convert_target
from llama_eagle.drafting.options import LOOKUP, NONE, DraftingOptions
from llama_eagle.generation.run import Run, decode
from llama_eagle.sessions.models import ModelPair
from llama_eagle.sessions.options import MTP, PairOptions
from llama_eagle.synthetic.constructed import write_target
from llama_eagle.synthetic.cycle import Cycle
from llama_eagle.synthetic.shapes import SHAPES

ACCEPT, SEED = 0.8, 0
WAYS = {
    "plain": DraftingOptions(draft=NONE),
    "the head alone, 3": DraftingOptions(draft=MTP, n_draft=3, lookup=False),
    "look-up alone": DraftingOptions(draft=LOOKUP),
    "auto": DraftingOptions(draft=MTP),
}


class Halves(Cycle):
    """The head errs after the share 1 - ACCEPT of the first n words, and after all of the other n."""

    def __init__(self, n_vocab: int, n: int) -> None:
        super().__init__(n_vocab, 2 * n, ACCEPT, SEED, mtp=True)
        self.wrong = np.concatenate([self.wrong[self.wrong < n], np.arange(n, 2 * n)])
        self.draft_next_ids = self.next_ids.copy()
        self.draft_next_ids[self.ids[self.wrong]] = self.start


def make(folder: Path, shape: str, outtype: str, cycle: Cycle, n: int) -> Path:
    file = folder / f"halves-{shape}-{n}-{outtype}.gguf"
    if not file.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as checkpoint:
            write_target(Path(checkpoint), SHAPES[shape], cycle, SEED)
            convert_target(checkpoint, file, TargetOptions(outtype=outtype))
    return file


def measure(file: Path, cycle: Cycle, n: int, threads: int) -> dict[str, dict[str, float]]:
    """ms of each text, way by way."""
    words = cycle.ids.tolist()
    texts = {
        "look-up takes over": (words[n:], 2 * n),
        "nothing takes over": (words[-1:], 2 * n),
        "nothing helps": (words[n - 1 : n], n),
    }
    found: dict[str, dict[str, float]] = {text: {} for text in texts}
    with ModelPair(PairOptions(file, MTP)) as pair:
        decode(pair, words[-1:], Run(16, threads), WAYS["auto"])  # warms up
        for text, (prompt, length) in texts.items():
            for way, drafting in WAYS.items():
                result = decode(pair, prompt, Run(length, threads), drafting)
                assert result.tokens == cycle.expected_tokens(prompt[-1], length)
                found[text][way] = result.decode_ms
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shape", default="0.8b", choices=list(SHAPES))
    parser.add_argument("--type", default="q8_0")
    parser.add_argument("-n", type=int, default=256, help="tokens of each half")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    cycle = Halves(SHAPES[args.shape].n_vocab, args.n)
    found = measure(make(args.folder, args.shape, args.type, cycle, args.n), cycle, args.n, args.threads)
    if args.json:
        print(json.dumps(found, indent=2))
        return
    print("| text |", " | ".join(f"{way}, s" for way in WAYS), "| auto over the best other |")
    print("|---" * (len(WAYS) + 2), "|", sep="")
    for text, ms in found.items():
        best = min(ms[way] for way in WAYS if way != "auto")
        print(f"| {text} |", " | ".join(f"{ms[way] / 1e3:.2f}" for way in WAYS), f"| {ms['auto'] / best:.3f} |")


if __name__ == "__main__":
    main()
