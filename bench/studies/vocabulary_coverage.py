"""How many tokens of a text a trimmed draft head has rows for: a fixed list against one that follows the text.

    python bench/studies/vocabulary_coverage.py tokenizer.json FILE [FILE...] [--rows 8192 32768] [--context 4096]

A draft can only propose what it has rows for, so the share of known tokens bounds its acceptance. The fixed list is the
lowest ids, the order in which BPE merged them. The list that follows gives an eighth of its rows to the tokens of the
prompt and of the text so far that the rest lacks, the least recently used replaced. A text is cut into contexts, each
of which starts anew; what is counted is what follows the prompt, a quarter of each.
"""

from __future__ import annotations

import argparse
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from tokenizers import Tokenizer


def fixed(ids: Sequence[int], n_rows: int) -> float:
    """The share of the text after the prompt that the n_rows lowest ids cover."""
    text = ids[len(ids) // 4 :]
    return sum(token < n_rows for token in text) / len(text)


def following(ids: Sequence[int], n_rows: int) -> float:
    """The same with an eighth of the rows for what was said, which a token has from its first time on."""
    n_moving, n_prompt, known = n_rows // 8, len(ids) // 4, 0
    base = n_rows - n_moving
    recent: OrderedDict[int, None] = OrderedDict()
    for i, token in enumerate(ids):
        known += i >= n_prompt and (token < base or token in recent)
        if token >= base:
            recent[token] = None
            recent.move_to_end(token)
            if len(recent) > n_moving:
                recent.popitem(last=False)
    return known / (len(ids) - n_prompt)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("texts", type=Path, nargs="+")
    parser.add_argument("--rows", type=int, nargs="+", default=[8192, 16384, 32768])
    parser.add_argument("--context", type=int, default=4096, help="tokens")
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(args.tokenizer))
    print("| text | tokens |", " | ".join(f"fixed {n} | follows {n}" for n in args.rows), "|")
    print("|---|---|", "|".join("---|---" for _ in args.rows), "|", sep="")
    for path in args.texts:
        ids = tokenizer.encode(path.read_text("utf-8", errors="replace")).ids
        texts = [ids[i : i + args.context] for i in range(0, len(ids) - args.context + 1, args.context)]
        if not texts:
            parser.error(f"{path}: {len(ids)} tokens are less than a context")
        shares = [mean(count(text, n) for text in texts) for n in args.rows for count in (fixed, following)]
        print(f"| {path.stem} | {len(texts) * args.context} |", " | ".join(f"{100 * s:.1f} %" for s in shares), "|")


if __name__ == "__main__":
    main()
