"""Ten thousand tokens, greedy and with a seed: the same with drafts as without, to the last token.

The reference is plain decoding by the same class. What the constructed pair says is known besides. Random weights
have near ties, which the constructed pair has not; there, a drafter that knows the text and errs now and then sees to
it that drafts of every length are accepted up to every place.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from fixtures.eagle3_checkpoints import DraftSpec, make_draft
from fixtures.targets import make_target
from llama_eagle.convert.drafts import convert_draft
from llama_eagle.convert.targets import TargetOptions, convert_target
from llama_eagle.demo.run import DRAFT, TARGET
from llama_eagle.native import limits
from llama_eagle.quantize.quantize import quantize
from llama_eagle.synthetic.ggufs import MTPFile, PairFiles, PairFolder, convert_pair

pytestmark = [pytest.mark.native, pytest.mark.slow]

N_TOKENS = 10_000
LONGEST = limits.LONGEST
TYPES = ("f16", "q8_0", "q4_k_m")
WIDE = {"hidden_size": 256, "intermediate_size": 512}  # K-quants need rows of 256
SAMPLED: dict[str, Any] = {"temp": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.0}
HOT: dict[str, Any] = {"temp": 3.6, "top_k": 40, "top_p": 1.0, "min_p": 0.0}  # one token in 20 leaves the cycle
GREEDY: dict[str, Any] = {"temp": 0.0}


class Told:
    """Proposes the tokens of `text` that come next, more or fewer of them, with an error now and then."""

    def __init__(self, text: Sequence[int], n_vocab: int) -> None:
        self._text = text
        self._n_vocab = n_vocab
        self._random = random.Random(1)
        self._n_past = 0

    def begin(self, tokens: Sequence[int]) -> None:
        self._n_past = len(tokens)

    def draft(self, id_last: int, n_max: int) -> list[int]:
        n = self._random.randint(0, n_max)
        proposed = self._text[self._n_past + 1 : self._n_past + 1 + n]
        return [t if self._random.random() < 0.9 else self._random.randrange(self._n_vocab) for t in proposed]

    def accept(self, tokens: Sequence[int]) -> None:
        self._n_past += len(tokens)


def load(target: Path, draft: Path | None = None, **options: Any) -> Any:
    from llama_eagle import EagleLlama

    settings = {"n_ctx": N_TOKENS + 64, "n_threads": 1, "verbose": False, "n_draft_max": LONGEST, **options}
    return EagleLlama(target, draft_path=draft, **settings)


def generate(llm: Any, prompt: Sequence[int], arguments: dict[str, Any]) -> list[int]:
    """N_TOKENS tokens, past any end-of-generation token."""
    llm.set_seed(7)
    stream = llm.generate(prompt, **arguments)
    tokens = list(islice(stream, N_TOKENS))
    stream.close()
    return tokens


@pytest.fixture(scope="module", params=TYPES)
def random_pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A hybrid target and a draft with random weights."""
    folder = tmp_path_factory.mktemp("random")
    source, target, draft = (folder / f"{name}.gguf" for name in ("f16", request.param, "draft"))
    convert_target(make_target("qwen35", folder / "target", **WIDE), source, TargetOptions(outtype="f16"))
    if target != source:
        quantize(source, target, request.param)
    make_draft(folder / "draft", DraftSpec(hidden=256, target_hidden=256), seed=0)
    convert_draft(folder / "draft", target, draft)
    return target, draft


@pytest.mark.parametrize("arguments", [GREEDY, SAMPLED], ids=["greedy", "seeded"])
def test_random_weights(random_pair: tuple[Path, Path], arguments: dict[str, Any]) -> None:
    target, draft = random_pair
    plain = load(target)
    prompt = list(range(40, 60))
    expected = generate(plain, prompt, arguments)
    drafter = Told([*prompt, *expected], plain.n_vocab())
    plain.close()
    drafting = load(target, draft, n_draft=LONGEST, drafter=drafter)
    assert generate(drafting, prompt, arguments) == expected
    accepted = drafting.speculative_stats.positions.accepted
    assert len(accepted) == LONGEST and min(accepted) > 0  # up to every place
    drafting.close()


@pytest.fixture(scope="module", params=TYPES)
def trained_pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return convert_pair(TARGET, DRAFT, tmp_path_factory.mktemp("trained"), request.param)


@pytest.mark.parametrize("arguments", [GREEDY, SAMPLED], ids=["greedy", "seeded"])
def test_trained_pair(trained_pair: tuple[Path, Path], arguments: dict[str, Any]) -> None:
    """The demo pair, far past the end of its answer; its greedy text becomes a loop, its sampled text does not."""
    texts = []
    for draft in (None, trained_pair[1]):
        llm = load(trained_pair[0], draft, n_draft=4)
        texts.append(generate(llm, llm.tokenize(b"# Signals\n\nDjango sends a signal when"), arguments))
        n_accepted = llm.speculative_stats.n_accepted if draft is not None else 0
        llm.close()
    assert texts[0] == texts[1]
    assert n_accepted > N_TOKENS // 10


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> PairFolder:
    return PairFolder(tmp_path_factory.mktemp("constructed") / "pair", "tiny")


def known_tokens(files: PairFiles | MTPFile, prompt: Sequence[int]) -> list[int]:
    return files.cycle.expected_tokens(prompt[-1], N_TOKENS)


def assert_same_with_a_seed(files: PairFiles | MTPFile, plain: dict[str, Any], drafting: dict[str, Any]) -> None:
    """Loaded with these options, the sampled text is one and the same, and not the known one."""
    texts = []
    for options in (plain, drafting):
        llm = load(files.target, n_draft=4, **options)
        texts.append(generate(llm, llm.tokenize(b" A B C"), HOT))
        if options is drafting:
            assert llm.speculative_stats.n_accepted > N_TOKENS // 10
            assert texts[0] != known_tokens(files, llm.tokenize(b" A B C"))
        llm.close()
    assert texts[0] == texts[1]


def assert_drafts_change_nothing(files: PairFiles | MTPFile, llm: Any, n_draft: int) -> int:
    """The greedy text after the prompt is the known one; returns the prompt's last token."""
    prompt = llm.tokenize(b" A B C")
    llm.reset()
    llm.set_n_draft(n_draft)
    assert generate(llm, prompt, GREEDY) == known_tokens(files, prompt)
    return int(prompt[-1])


@pytest.mark.parametrize("outtype", TYPES)
def test_constructed_pair_with_a_seed(folder: PairFolder, outtype: str) -> None:
    """Hot enough to leave the cycle now and then."""
    files = folder.files(0.9, outtype)
    assert_same_with_a_seed(files, {}, {"draft": files.draft})


@pytest.fixture(scope="module")
def constructed(folder: PairFolder) -> Iterator[tuple[PairFiles, Any]]:
    files = folder.files(0.9, "q8_0")
    llm = load(files.target, files.draft, lookup=False)  # the draft alone: what it proposes is known
    yield files, llm
    llm.close()


@pytest.mark.parametrize("n_draft", range(1, LONGEST + 1))
def test_every_draft_length_is_plain_decoding(constructed: tuple[PairFiles, Any], n_draft: int) -> None:
    files, llm = constructed
    last = assert_drafts_change_nothing(files, llm, n_draft)
    expected = files.cycle.simulate(last, N_TOKENS, n_draft).accept_rate
    assert llm.speculative_stats.accept_rate == pytest.approx(expected, abs=0.01)


def test_plain_decoding_says_what_is_known(constructed: tuple[PairFiles, Any]) -> None:
    files, llm = constructed
    prompt = llm.tokenize(b" A B C")
    llm.set_n_draft(0)
    assert generate(llm, prompt, GREEDY) == known_tokens(files, prompt)


@pytest.fixture(scope="module", params=["all", 1024])
def own_head(folder: PairFolder, request: pytest.FixtureRequest) -> Iterator[tuple[MTPFile, Any]]:
    """A target that drafts with its own head: whole, or with rows for a third of the text's words at first."""
    files = folder.mtp(0.9, "q8_0")
    llm = load(files.target, draft="mtp", draft_vocab=request.param, lookup=False)
    yield files, llm
    llm.close()


@pytest.mark.parametrize("n_draft", range(1, LONGEST + 1))
def test_every_draft_length_of_the_own_head_is_plain_decoding(own_head: tuple[MTPFile, Any], n_draft: int) -> None:
    files, llm = own_head
    assert_drafts_change_nothing(files, llm, n_draft)
    assert llm.speculative_stats.n_accepted > N_TOKENS // 10


@pytest.mark.parametrize("draft_vocab", ["all", 1024])
def test_the_own_head_with_a_seed(folder: PairFolder, draft_vocab: int | str) -> None:
    assert_same_with_a_seed(folder.mtp(0.9, "q8_0"), {"draft": "none"}, {"draft": "mtp", "draft_vocab": draft_vocab})
