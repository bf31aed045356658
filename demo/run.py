"""The demo job: make a pair, convert, quantize, generate with the draft and without, compare."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .ggufs import PairFiles, PairFolder, Say

if TYPE_CHECKING:
    from rich.table import Table

PROMPT = "Count like the columns of a spreadsheet: A B C"
TYPES = ("q8_0", "q4_k_m")
ACCEPT = 0.7
N_TOKENS = 1000
N_DRAFT = 4


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Both ways of decoding with the files of one type. Rates as in STYLE: accepted / drafted, emitted / rounds."""

    outtype: str
    target: str
    draft: str
    equal: bool  # plain and speculative decoding gave the same text
    as_constructed: bool  # and it is the text that the checkpoints were constructed to say
    accept_rate: float
    expected_accept_rate: float
    mean_emitted: float
    plain_tps: float
    speculative_tps: float


@dataclasses.dataclass(frozen=True)
class DemoResult:
    """The comparisons, the first of which stands for the whole; `text` is what plain decoding said."""

    prompt: str
    text: str
    comparisons: tuple[Comparison, ...]

    @property
    def equal(self) -> bool:
        return all(c.equal and c.as_constructed for c in self.comparisons)

    def as_dict(self) -> dict[str, Any]:
        first = dataclasses.asdict(self.comparisons[0])
        names = ("accept_rate", "mean_emitted", "plain_tps", "speculative_tps", "target", "draft")
        return {
            "equal": self.equal,
            **{name: first[name] for name in names},
            "comparisons": [dataclasses.asdict(c) for c in self.comparisons],
            "prompt": self.prompt,
            "text": self.text,
        }

    def table(self) -> Table:
        from rich.box import SIMPLE_HEAD
        from rich.table import Table

        headings = ("type", "plain\ntok/s", "drafting\ntok/s", "tokens\na round", "accepted", "as\nmade", "same\ntext")
        table = Table(*headings, box=SIMPLE_HEAD, title=f"{N_TOKENS} tokens, {N_DRAFT} drafted a round")
        for c in self.comparisons:
            table.add_row(
                c.outtype,
                f"{c.plain_tps:.0f}",
                f"{c.speculative_tps:.0f}",
                f"{c.mean_emitted:.2f}",
                f"{c.accept_rate:.3f}",
                f"{c.expected_accept_rate:.3f}",
                "yes" if c.equal and c.as_constructed else "NO",
            )
        return table


def run_demo(work: Path, threads: int = 1, say: Say = lambda text: None) -> DemoResult:
    """Runs the demo in `work`; files that an earlier run left there are used again."""
    folder = PairFolder(work / "constructed-tiny", "tiny", keep=True, say=say)
    texts, comparisons = [], []
    for outtype in TYPES:
        text, comparison = _compare(folder.files(ACCEPT, outtype), outtype, threads)
        texts.append(text)
        comparisons.append(comparison)
    return DemoResult(PROMPT, texts[0], tuple(comparisons))


def _compare(files: PairFiles, outtype: str, threads: int) -> tuple[str, Comparison]:
    from llama_eagle.draft_length import Fixed
    from llama_eagle.models import ModelPair, PairOptions
    from llama_eagle.text import Tokenizer

    from .decode import Run, decode

    with ModelPair(PairOptions(files.target, files.draft)) as pair:
        prompt = Tokenizer(pair.target).encode(PROMPT)
        run = Run(N_TOKENS, threads, n_draft_max=N_DRAFT)
        decode(pair, prompt, dataclasses.replace(run, n=50), Fixed(N_DRAFT))  # pages in the files
        plain = decode(pair, prompt, run, None)
        speculative = decode(pair, prompt, run, Fixed(N_DRAFT))
    statistics = speculative.speculative
    assert statistics is not None
    return plain.text, Comparison(
        outtype=outtype,
        target=str(files.target),
        draft=str(files.draft),
        equal=plain.text == speculative.text,
        as_constructed=plain.text == files.cycle.expected_text(prompt[-1], N_TOKENS),
        accept_rate=statistics.accept_rate,
        expected_accept_rate=files.cycle.simulate(prompt[-1], N_TOKENS, N_DRAFT).accept_rate,
        mean_emitted=statistics.mean_emitted,
        plain_tps=plain.tokens_per_second,
        speculative_tps=speculative.tokens_per_second,
    )
