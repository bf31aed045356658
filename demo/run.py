"""The demo job: convert and quantize the trained pair, answer questions with its draft and without, compare."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_eagle import console
from llama_eagle.errors import EnvironmentFailure
from llama_eagle.synthetic.ggufs import Say, convert_pair

if TYPE_CHECKING:
    from llama_eagle.bench.evaluate import Score

HERE = Path(__file__).parent
TARGET, DRAFT, HELD_OUT = HERE / "target", HERE / "draft", HERE / "held-out.jsonl"
QUESTION = "How does Django handle signals?"
TYPES = ("q8_0", "q4_k_m")
N_TOKENS = 256  # of each answer
N_DRAFT = 4
N_PROMPTS = 10  # of each category of HELD_OUT


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Both ways of decoding with the files of one type, over prompts from documents that nothing was trained on."""

    outtype: str
    target: str
    draft: str
    equal: bool  # every answer has the same tokens with the draft and without
    exact: bool  # it must: this machine's kernels give a row the same bits alone and in a batch
    n_answers: int
    accept_rate: float
    mean_emitted: float
    accepted_per_position: list[float]
    plain_tps: float
    speculative_tps: float


@dataclasses.dataclass(frozen=True)
class DemoResult:
    """The comparisons, the first of which stands for the whole; `text` is its answer to `prompt`."""

    prompt: str
    text: str
    comparisons: tuple[Comparison, ...]

    @property
    def equal(self) -> bool:
        return all(c.equal for c in self.comparisons)

    @property
    def as_promised(self) -> bool:
        """Without exact kernels, a near tie may fall another way in a batch."""
        return all(c.equal or not c.exact for c in self.comparisons)

    def as_dict(self) -> dict[str, Any]:
        first = dataclasses.asdict(self.comparisons[0])
        names = ("accept_rate", "mean_emitted", "accepted_per_position", "plain_tps", "speculative_tps")
        return {
            "equal": self.equal,
            **{name: first[name] for name in (*names, "target", "draft")},
            "comparisons": [dataclasses.asdict(c) for c in self.comparisons],
            "prompt": self.prompt,
            "text": self.text,
        }

    def table(self) -> Any:
        positions = [f"accepted\nat {i + 1}" for i in range(N_DRAFT)]
        headings = ("type", "answers", "plain\ntok/s", "drafting\ntok/s", "tokens\na round", *positions, "same\ntext")
        table = console.compact_table(headings, title=f"{N_DRAFT} tokens drafted a round")
        for c in self.comparisons:
            shares = [f"{share:.0%}" for share in c.accepted_per_position]
            table.add_row(
                c.outtype,
                str(c.n_answers),
                f"{c.plain_tps:.0f}",
                f"{c.speculative_tps:.0f}",
                f"{c.mean_emitted:.2f}",
                *shares,
                *[""] * (N_DRAFT - len(shares)),
                "yes" if c.equal else "NO" if c.exact else "nearly",
            )
        return table


def run_demo(work: Path, threads: int = 1, say: Say = lambda text: None) -> DemoResult:
    """Runs the demo in `work`, where its GGUFs stay. Raises EnvironmentFailure when it cannot be written."""
    try:
        files = {outtype: convert_pair(TARGET, DRAFT, work / outtype, outtype, say) for outtype in TYPES}
    except OSError as error:
        raise EnvironmentFailure(f"{work}: cannot be written ({error.strerror}). Choose another folder.") from None
    comparisons = []
    for outtype, (target, draft) in files.items():
        say(f"answering with {target.name} and {draft.name}")
        comparisons.append(_compare(outtype, target, draft, _score(target, draft, threads)))
    return DemoResult(QUESTION, _answer(*files[TYPES[0]], threads), tuple(comparisons))


def _score(target: Path, draft: Path, threads: int) -> Score:
    from llama_eagle.bench.evaluate import Evaluation, evaluate, total
    from llama_eagle.bench.prompts import read_prompts, take
    from llama_eagle.drafting.options import DraftingOptions

    prompts = take(read_prompts([str(HELD_OUT)]), N_PROMPTS)
    drafting = DraftingOptions(draft, N_DRAFT)
    return total(evaluate(Evaluation(target, prompts, N_TOKENS, drafting, threads=threads)).values())


def _compare(outtype: str, target: Path, draft: Path, score: Score) -> Comparison:
    from llama_eagle.sessions.exact import report
    from llama_eagle.sessions.models import Model

    with Model.target(target) as model:
        exact = report(model)["exact"]
    return Comparison(
        outtype=outtype,
        target=str(target),
        draft=str(draft),
        equal=score.n_same == score.n_turns,
        exact=exact,
        n_answers=score.n_turns,
        accept_rate=score.statistics.accept_rate,
        mean_emitted=score.statistics.mean_emitted,
        accepted_per_position=score.statistics.accepted_per_position,
        plain_tps=score.plain_tps,
        speculative_tps=score.tps,
    )


def _answer(target: Path, draft: Path, threads: int) -> str:
    from llama_eagle.drafting.options import DraftingOptions
    from llama_eagle.generation.run import Run, decode
    from llama_eagle.sessions.models import ModelPair
    from llama_eagle.sessions.options import PairOptions
    from llama_eagle.sessions.text import Tokenizer, chat_text

    with ModelPair(PairOptions(target, draft)) as pair:
        prompt = Tokenizer(pair.target).encode(chat_text(pair.target, [{"role": "user", "content": QUESTION}]))
        drafting = DraftingOptions(draft, N_DRAFT)
        return decode(pair, prompt, Run(N_TOKENS, threads, ignore_eos=False), drafting).text
