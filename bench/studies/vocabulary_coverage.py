"""How many tokens of a text a trimmed draft head has rows for: a fixed list against one that follows the text.

    python bench/studies/vocabulary_coverage.py TOKENIZER FILE [FILE...] [--rows 8192 32768] [--context 4096]

TOKENIZER is a tokenizer.json or a GGUF, which may hold a vocabulary alone. A draft can only propose what it has rows
for, so the share of known tokens bounds its acceptance. The fixed list is the lowest ids, the order in which BPE merged
them. The list that follows gives an eighth of its rows to the tokens of the text so far that the rest lacks, the least
recently used replaced. A text is cut into contexts, each of which starts anew. The first table counts what follows the
prompt, a quarter of each context; the second counts by position, from the first token on, as the mean over the texts.
"""

from __future__ import annotations

import argparse
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import mean

Kind = Callable[[Sequence[int], int], list[bool]]


def fixed(ids: Sequence[int], n_rows: int) -> list[bool]:
    """Which tokens the n_rows lowest ids cover."""
    return [token < n_rows for token in ids]


def following(ids: Sequence[int], n_rows: int) -> list[bool]:
    """The same with an eighth of the rows for what was said, which a token has from its first time on."""
    n_moving = n_rows // 8
    base = n_rows - n_moving
    known: list[bool] = []
    recent: OrderedDict[int, None] = OrderedDict()
    for token in ids:
        known.append(token < base or token in recent)
        if token >= base:
            recent[token] = None
            recent.move_to_end(token)
            if len(recent) > n_moving:
                recent.popitem(last=False)
    return known


KINDS: dict[str, Kind] = {"fixed": fixed, "follows": following}


def reader(path: Path) -> Callable[[str], list[int]]:
    """What makes ids of a text."""
    if path.suffix == ".json":
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(path))
        return lambda text: list(tokenizer.encode(text).ids)
    from llama_eagle.native.calls import library

    library()  # before llama_cpp is imported: it must load our build
    import llama_cpp

    vocabulary = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    return lambda text: list(vocabulary.tokenize(text.encode(), add_bos=False))


def print_table(headings: Sequence[str], rows: Sequence[tuple[str, Sequence[float]]]) -> None:
    print("|", " | ".join(headings), "|")
    print("|---" * len(headings), "|", sep="")
    for name, shares in rows:
        print(f"| {name} |", " | ".join(f"{100 * share:.1f} %" for share in shares), "|")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("texts", type=Path, nargs="+")
    parser.add_argument("--rows", type=int, nargs="+", default=[8192, 16384, 32768, 65536])
    parser.add_argument("--context", type=int, default=4096, help="tokens")
    parser.add_argument(
        "--positions", type=int, nargs="+", default=[0, 256, 1024, 4096], help="where parts begin and end"
    )
    args = parser.parse_args()
    encode = reader(args.tokenizer)
    # known[row count, kind]: a list of contexts for each text
    known: dict[tuple[int, str], list[list[list[bool]]]] = {(n, kind): [] for n in args.rows for kind in KINDS}
    names = []
    for path in args.texts:
        ids = encode(path.read_text("utf-8", errors="replace"))
        contexts = [ids[i : i + args.context] for i in range(0, len(ids) - args.context + 1, args.context)]
        if not contexts:
            parser.error(f"{path}: {len(ids)} tokens are less than a context")
        names.append(f"{path.stem} | {len(contexts) * args.context}")
        for (n, kind), texts in known.items():
            texts.append([KINDS[kind](context, n) for context in contexts])

    def share(contexts: list[list[bool]], low: int, high: int | None) -> float:
        return mean(mean(context[low:high]) for context in contexts)

    headings = [f"{n}, {kind}" for n, kind in known]
    rows = [
        (name, [share(texts[i], args.context // 4, None) for texts in known.values()]) for i, name in enumerate(names)
    ]
    print_table(["text", "tokens", *headings], rows)
    print()
    parts = list(pairwise(args.positions))
    rows = [
        (f"{low}-{high - 1}", [mean(share(text, low, high) for text in texts) for texts in known.values()])
        for low, high in parts
    ]
    print_table(["tokens of the text", *headings], rows)


if __name__ == "__main__":
    main()
