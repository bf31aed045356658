"""The demo job: convert and quantize the trained pair, answer questions with its draft and without, compare."""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_eagle import console
from llama_eagle.errors import EnvironmentFailure
from llama_eagle.synthetic.ggufs import Say, convert_pair

if TYPE_CHECKING:
    from llama_eagle.bench.evaluate import Score
    from llama_eagle.generation.generate import OnText

HERE = Path(__file__).parent
TARGET, DRAFT, HELD_OUT = HERE / "target", HERE / "draft", HERE / "held-out.jsonl"
QUESTION = "How does Django handle signals?"
TYPES = ("q8_0", "q4_k_m")
N_TOKENS = 256  # of each answer
N_DRAFT = 4
N_PROMPTS = 10  # of each category of HELD_OUT
PADDED_BYTES = 2_400_000_000  # of disk, while it is made
PADDED_TOKENS, PADDED_PROMPTS = 128, 3  # likewise, of the padded pair, which is a hundred times as slow


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


Files = dict[str, tuple[Path, Path]]  # the target's and the draft's by type


def convert_demo(work: Path, say: Say = lambda text: None) -> Files:
    """The pair in each of TYPES, in `work`, where it stays. Raises EnvironmentFailure when that cannot be written."""
    try:
        return {outtype: convert_pair(TARGET, DRAFT, work / outtype, outtype, say) for outtype in TYPES}
    except OSError as error:
        raise EnvironmentFailure(f"{work}: cannot be written ({error.strerror}). Choose another folder.") from None


def run_demo(files: Files, threads: int = 1, say: Say = lambda text: None, on_text: OnText | None = None) -> DemoResult:
    """The answer to QUESTION, which `on_text` gets as it comes, then the comparisons."""
    answer = _answer(*files[TYPES[0]], threads, on_text)
    comparisons = []
    for outtype, (target, draft) in files.items():
        say(f"answering with {target.name} and {draft.name}")
        comparisons.append(_compare(outtype, target, draft, _score(target, draft, threads)))
    return DemoResult(QUESTION, answer, tuple(comparisons))


def compare_padded(work: Path, say: Say = lambda text: None) -> Comparison:
    """The pair at the cost of a 0.8B (demo/widen.py), on all cores; its GGUFs are made once. Raises as convert_demo."""
    from llama_eagle.demo.widen import widen_pair

    folder = work / "padded"
    files = folder / "target-q8_0.gguf", folder / "draft-q8_0.gguf"
    try:
        if not all(file.is_file() for file in files):
            folder.mkdir(parents=True, exist_ok=True)
            _require_disk(folder)
            with tempfile.TemporaryDirectory(dir=folder) as checkpoints:
                say("padding the pair to the size of a 0.8B: 1.6 GB for a minute, 0.8 GB that stay")
                files = convert_pair(*widen_pair(TARGET, DRAFT, Path(checkpoints)), folder, "q8_0", say)
    except OSError as error:
        raise EnvironmentFailure(f"{work}: cannot be written ({error.strerror}). Choose another folder.") from None
    say("answering with the padded pair")
    return _compare("q8_0", *files, _score(*files, os.cpu_count() or 1, PADDED_PROMPTS, PADDED_TOKENS))


def _require_disk(folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if free < PADDED_BYTES:
        text = f"{folder}: the padded pair takes {PADDED_BYTES / 1e9} GB while it is made, {free / 1e9:.1f} GB are free"
        raise EnvironmentFailure(f"{text}. Free some, or leave it out with --no-padded.")


def told(padded: Comparison) -> str:
    """What the padded pair shows, for people."""
    same = "the same text" if padded.equal else "another text" if padded.exact else "nearly the same text"
    gain = padded.speculative_tps / padded.plain_tps
    return (
        "The demo model, padded to the size of a 0.8B in Q8_0 (most entries are zero, all are read and multiplied):\n"
        f"plain {padded.plain_tps:.1f} tokens/s, drafting {padded.speculative_tps:.1f} tokens/s, "
        f"{gain:.2f} x as fast; {padded.mean_emitted:.2f} tokens a round, {same}.\n"
        "Its draft is smaller than that of a real 0.8B would be."
    )


def _score(target: Path, draft: Path, threads: int, n_prompts: int = N_PROMPTS, n_tokens: int = N_TOKENS) -> Score:
    from llama_eagle.bench.evaluate import Evaluation, evaluate, total
    from llama_eagle.bench.prompts import read_prompts, take
    from llama_eagle.drafting.options import DraftingOptions

    prompts = take(read_prompts([str(HELD_OUT)]), n_prompts)
    drafting = DraftingOptions(draft, N_DRAFT)
    return total(evaluate(Evaluation(target, prompts, n_tokens, drafting, threads=threads)).values())


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


def _answer(target: Path, draft: Path, threads: int, on_text: OnText | None) -> str:
    from llama_eagle.drafting.options import DraftingOptions
    from llama_eagle.generation.generate import Watch
    from llama_eagle.generation.run import Run, decode
    from llama_eagle.sessions.models import ModelPair
    from llama_eagle.sessions.options import PairOptions
    from llama_eagle.sessions.text import Tokenizer, chat_text

    with ModelPair(PairOptions(target, draft)) as pair:
        prompt = Tokenizer(pair.target).encode(chat_text(pair.target, [{"role": "user", "content": QUESTION}]))
        drafting = DraftingOptions(draft, N_DRAFT)
        return decode(pair, prompt, Run(N_TOKENS, threads, ignore_eos=False), drafting, watch=Watch(on_text)).text
