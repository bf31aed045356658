"""The demo: convert and quantize the trained pair; answer with the draft, with the target's head, and without."""

from __future__ import annotations

import dataclasses
import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_eagle import console
from llama_eagle.convert.source import Checkpoint, open_checkpoint
from llama_eagle.drafting.options import DraftingOptions
from llama_eagle.errors import EnvironmentFailure
from llama_eagle.native.processor.threads import default_threads
from llama_eagle.sessions.options import MTP
from llama_eagle.synthetic.ggufs import Log, convert_pair
from llama_eagle.synthetic.weights import Tensor, write_checkpoint

if TYPE_CHECKING:
    from llama_eagle.bench.evaluate import Score
    from llama_eagle.generation.generate import OnText


class Disk(NamedTuple):
    """Disk space in MB: of the files that remain, and of all while they are made."""

    kept: int
    peak: int


HERE = Path(__file__).parent
TARGET, DRAFT, HEAD, HELD_OUT = HERE / "target", HERE / "draft", HERE / "head", HERE / "held-out.jsonl"
QUESTION = "How does Django handle signals?"
TYPES = ("q8_0", "q4_k_m")
STEPS, PADDED_STEPS = 3 * len(TYPES), 3  # reported steps: a conversion and two comparisons per type
N_TOKENS = 256  # per answer
N_DRAFT = 4
N_PROMPTS = 4  # per category of HELD_OUT
PADDED_MB, PAIR_MB = Disk(880, 2540), Disk(18, 30)
PADDED_TOKENS, PADDED_PROMPTS = 96, 3  # for the padded pair, which is a hundred times as slow


def same_text(equal: bool, exact: bool) -> str:
    """Return the table entry for equal texts, which exact kernels promise."""
    return "yes" if equal else "NO" if exact else "nearly"


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Comparison of decoding with and without drafts, for the files of one type, on prompts from held-out documents.

    drafter: "EAGLE-3", or "MTP" for the target's own head. draft: its file.
    """

    outtype: str
    drafter: str
    target: str
    draft: str
    equal: bool  # every answer has the same tokens with and without drafts
    exact: bool  # equality is guaranteed: kernels give a row the same bits alone and in a batch
    n_answers: int
    accept_rate: float
    mean_emitted: float
    accepted_per_position: list[float]
    plain_tps: float
    speculative_tps: float


@dataclasses.dataclass(frozen=True)
class DemoResult:
    """The comparisons; `text` is the answer of the first one to `prompt`."""

    prompt: str
    text: str
    comparisons: tuple[Comparison, ...]

    @property
    def equal(self) -> bool:
        return all(c.equal for c in self.comparisons)

    @property
    def is_as_expected(self) -> bool:
        """True if the texts are equal. Without exact kernels, a near tie may be decided differently in a batch."""
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
        headings = ("type", "drafter", "same\ntext", "tokens\n/ round", *positions)
        table = console.compact_table(headings, title=f"draft length {N_DRAFT} tokens")
        for c in self.comparisons:
            shares = [f"{share:.0%}" for share in c.accepted_per_position]
            table.add_row(
                c.outtype,
                c.drafter,
                same_text(c.equal, c.exact),
                f"{c.mean_emitted:.2f}",
                *shares,
                *[""] * (N_DRAFT - len(shares)),
            )
        return table


Files = dict[str, tuple[Path, Path]]  # type -> target and draft


def convert_demo(work: Path, log: Log = lambda text: None) -> Files:
    """Convert the pair to each of TYPES, in `work`. Raises EnvironmentFailure if the files cannot be written."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            whole = join_head(TARGET, HEAD, Path(folder) / "target")
            return {outtype: convert_pair(whole, DRAFT, work / outtype, outtype, log) for outtype in TYPES}
    except OSError as error:
        raise EnvironmentFailure(f"{work}: cannot be written ({error.strerror}). Choose another folder.") from None


def run_demo(files: Files, threads: int = 1, log: Log = lambda text: None, on_text: OnText | None = None) -> DemoResult:
    """Answer QUESTION, streamed to `on_text`, then run the comparisons."""
    target, draft = files[TYPES[0]]
    text = answer(target, DraftingOptions(draft, N_DRAFT), QUESTION, threads, N_TOKENS, on_text)
    if on_text:
        on_text("\n\n", False)
    comparisons = []
    for outtype, (target, draft) in files.items():
        for drafts in (draft, MTP):
            log(f"answering with {target.name} and {'its own head' if drafts == MTP else draft.name}")
            comparisons.append(_compare(outtype, target, drafts, _score(target, drafts, threads)))
    return DemoResult(QUESTION, text, tuple(comparisons))


def join_head(target: Path, head: Path, folder: Path) -> Path:
    """Write a checkpoint of the target with its MTP head to `folder`, in the published form of such checkpoints."""
    source, headed = open_checkpoint(target), open_checkpoint(head)
    shutil.copytree(target, folder, ignore=shutil.ignore_patterns("*.safetensors", "config.json"), dirs_exist_ok=True)
    config = source.config | {"mtp_num_hidden_layers": 1}
    (folder / "config.json").write_text(json.dumps(config, indent=2), "utf-8")
    heads = [_unchanged(headed, name) for name in headed.names() if name.startswith("mtp.")]
    write_checkpoint(folder, [*(_unchanged(source, name) for name in source.names()), *heads])
    return folder


def _unchanged(source: Checkpoint, name: str) -> Tensor:
    values = source.read_f32(name)
    return Tensor(name, values.shape, lambda low, high: values[low:high])


def compare_padded(work: Path, log: Log = lambda text: None) -> tuple[Comparison, Comparison]:
    """Compare the padded pair, at the cost of a 0.8B model (demo/widen.py), with its draft and its head.

    All cores are used. Its GGUFs are made once. Raises the errors of convert_demo.
    """
    try:
        target, draft = _padded_files(work / "padded", log)
    except OSError as error:
        raise EnvironmentFailure(f"{work}: cannot be written ({error.strerror}). Choose another folder.") from None
    return _compare_padded(target, draft, log), _compare_padded(target, MTP, log)


def _compare_padded(target: Path, draft: Path | str, log: Log) -> Comparison:
    log(f"answering with the padded pair and {'its MTP head' if draft == MTP else 'its draft'}: half a minute")
    score = _score(target, draft, default_threads(), PADDED_PROMPTS, PADDED_TOKENS)
    return _compare("q8_0", target, draft, score)


def _padded_files(folder: Path, log: Log) -> tuple[Path, Path]:
    """Return the target, which has its head, and the draft, made now if necessary."""
    from llama_eagle.demo.widen import widen_pair
    from llama_eagle.gguf import mtp
    from llama_eagle.gguf.header import read_model

    target, draft = folder / "target-q8_0.gguf", folder / "draft-q8_0.gguf"
    if draft.is_file() and target.is_file() and mtp.has_head(read_model(target)[1]):
        log("using the padded pair made before")
        return target, draft
    folder.mkdir(parents=True, exist_ok=True)
    _require_disk(folder)
    log("padding the pair to the size of a 0.8B: 1.7 GB of disk for a minute, 0.9 GB permanently")
    with tempfile.TemporaryDirectory(dir=folder) as checkpoints:
        whole = join_head(TARGET, HEAD, Path(checkpoints) / "whole")
        return convert_pair(*widen_pair(whole, DRAFT, Path(checkpoints)), folder, "q8_0")


def _require_disk(folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if free < PADDED_MB.peak * 1e6:
        text = f"{folder}: the padded pair needs {PADDED_MB.peak / 1e3:.1f} GB of disk, {free / 1e9:.1f} GB are free"
        raise EnvironmentFailure(f"{text}. Free some space, or leave out --padded.")


def summary(padded: Sequence[Comparison]) -> str:
    """Describe the results of the padded pair, for people."""
    return "\n".join(
        [
            "The demo model, padded to the size of a 0.8B in Q8_0 (most entries are zero, all are multiplied):",
            *map(_gain, padded),
            "The EAGLE-3 draft is smaller than for a real 0.8B model; the MTP head has the size of a real one.",
        ]
    )


def _gain(shown: Comparison) -> str:
    same = "the same text" if shown.equal else "another text" if shown.exact else "nearly the same text"
    return (
        f"{shown.drafter}: plain {shown.plain_tps:.1f} tokens/s, drafting {shown.speculative_tps:.1f} tokens/s, "
        f"{shown.speculative_tps / shown.plain_tps:.2f} x as fast; {shown.mean_emitted:.2f} tokens per round, {same}."
    )


def _score(
    target: Path, draft: Path | str, threads: int, n_prompts: int = N_PROMPTS, n_tokens: int = N_TOKENS
) -> Score:
    from llama_eagle.bench.evaluate import Evaluation, evaluate, total
    from llama_eagle.bench.prompts import read_prompts, take

    prompts = take(read_prompts([str(HELD_OUT)]), n_prompts)
    drafting = DraftingOptions(draft, N_DRAFT)
    return total(evaluate(Evaluation(target, prompts, n_tokens, drafting, threads=threads)).values())


def _compare(outtype: str, target: Path, draft: Path | str, score: Score) -> Comparison:
    from llama_eagle.sessions.exact import report
    from llama_eagle.sessions.models import Model

    with Model.target(target) as model:
        exact = report(model)["exact"]
    return Comparison(
        outtype=outtype,
        drafter="MTP" if draft == MTP else "EAGLE-3",
        target=str(target),
        draft=str(target if draft == MTP else draft),
        equal=score.n_same == score.n_turns,
        exact=exact,
        n_answers=score.n_turns,
        accept_rate=score.statistics.accept_rate,
        mean_emitted=score.statistics.mean_emitted,
        accepted_per_position=score.statistics.accepted_per_position,
        plain_tps=score.plain_tps,
        speculative_tps=score.tps,
    )


def answer(
    target: Path, drafting: DraftingOptions, question: str, threads: int, n_tokens: int, on_text: OnText | None
) -> str:
    """Return the greedy answer to a question, which `on_text` receives as it is generated."""
    from llama_eagle.generation.generate import Watch
    from llama_eagle.generation.run import Run, decode
    from llama_eagle.sessions.models import ModelPair
    from llama_eagle.sessions.options import PairOptions
    from llama_eagle.sessions.text import Tokenizer, chat_text

    with ModelPair(PairOptions(target, drafting.model)) as pair:
        prompt = Tokenizer(pair.target).encode(chat_text(pair.target, [{"role": "user", "content": question}]))
        return decode(pair, prompt, Run(n_tokens, threads, ignore_eos=False), drafting, watch=Watch(on_text)).text
