"""How many tokens of a text a trimmed draft head has rows for: a fixed list against one that follows the text.

    python bench/studies/vocabulary_coverage.py tokenizer.json FILE [FILE...] [--rows 8192 32768] [--prompt 512]

A draft can only propose what it has rows for, so the share of known tokens bounds its acceptance. The fixed list is the
lowest ids, the order in which BPE merged them. The list that follows gives an eighth of its rows to the tokens of the
prompt and of the text so far that the rest lacks, the least recently used replaced. Counted after the prompt.
"""

from __future__ import annotations

import argparse
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer


def fixed(ids: Sequence[int], n_prompt: int, n_rows: int) -> float:
    """The share of ids[n_prompt:] that n_rows lowest ids cover."""
    text = ids[n_prompt:]
    return sum(token < n_rows for token in text) / len(text)


def following(ids: Sequence[int], n_prompt: int, n_rows: int, n_moving: int) -> float:
    """The same with `n_moving` of the rows for what was said, which a token has from its first time on."""
    base, known = n_rows - n_moving, 0
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
    parser.add_argument("--prompt", type=int, default=512, help="tokens")
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(args.tokenizer))
    print("| text | tokens |", " | ".join(f"fixed {n} | follows {n}" for n in args.rows), "|")
    print("|---|---|", "|".join("---|---" for _ in args.rows), "|", sep="")
    for path in args.texts:
        ids = tokenizer.encode(path.read_text("utf-8", errors="replace")).ids
        if len(ids) <= args.prompt:
            parser.error(f"{path}: {len(ids)} tokens are no more than the prompt")
        shares = [(fixed(ids, args.prompt, n), following(ids, args.prompt, n, n // 8)) for n in args.rows]
        cells = (f"{100 * share:.1f} %" for pair in shares for share in pair)
        print(f"| {path.name} | {len(ids) - args.prompt} |", " | ".join(cells), "|")


if __name__ == "__main__":
    main()
