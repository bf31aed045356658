"""A head of few rows whose vocabulary follows the text: its logits are the whole head's, whatever type and layout."""

from __future__ import annotations

import random
import re
from pathlib import Path

import numpy as np
import pytest
from fixtures.native import NativeTarget
from fixtures.targets import make_target
from fixtures.tiny_gguf import END, write_draft, write_target
from llama_eagle.convert.targets import TargetOptions, convert_target
from llama_eagle.errors import IncompatibleModels, NativeError
from llama_eagle.native.calls import library
from llama_eagle.quantize.quantize import QuantizeOptions, quantize
from llama_eagle.sessions.models import Model
from parity.mtp_reference import MTPReference
from parity.native_mtp import N_TOKENS, LoadedHead, MtpTarget, NativeMtp, Rounds

pytestmark = pytest.mark.native

N_ROWS, N_RESERVED = 128, 16
HEAD_TYPES = ("f32", "f16", "q8_0", "q4_k", "q5_k", "q6_k", "q4_0", "q5_0", "iq4_nl")


class TrimmedRounds(Rounds):
    """The reference's head has the rows that the engine's has now."""

    def check_round(self, n_kept: int) -> None:
        self.reference = MTPReference(self.target.folder, self.draft.session.draft_ids.tolist())
        self.round(n_kept)


@pytest.mark.parametrize(("family", "prompts"), [("qwen35", (1, 33)), ("qwen35moe", (1, 33)), ("qwen3next", (33, 300))])
def test_chains_of_a_trimmed_head(family: str, prompts: tuple[int, ...], tmp_path: Path) -> None:
    """After prompts of one batch, and of two."""
    target = MtpTarget(family, tmp_path)
    for n_prompt in prompts:
        with target.open(n_ubatch=256) as context:
            draft = NativeMtp(context, n_vocab_draft=N_ROWS)
            rounds = TrimmedRounds(target, draft, MTPReference(target.folder))
            rounds.eval(n_prompt)
            for n_kept in (5, 0, 3, 6, 1):
                rounds.check_round(n_kept)
            draft.close()


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target whose widths suit every type of weights."""
    folder = tmp_path_factory.mktemp("wide")
    checkpoint = make_target("qwen35-text", folder / "hf", seed=2, mtp=True, hidden_size=256)
    convert_target(checkpoint, folder / "f16.gguf", TargetOptions(outtype="f16"))
    return folder


def with_head(wide: Path, head_type: str) -> Path:
    path = wide / f"{head_type}.gguf"
    if not path.exists():
        quantize(wide / "f16.gguf", path, "q8_0", QuantizeOptions(output_type=head_type))
    return path


def first_steps(
    context: NativeTarget, n_vocab_draft: int, texts: list[list[int]]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """After each further piece of the text: the draft's ids, and the logits of its first step."""
    draft = NativeMtp(context, n_vocab_draft=n_vocab_draft)
    found = []
    for text in texts:
        draft.eval(text)
        draft.draft(3)
        found.append((draft.session.draft_ids, draft.session.draft_logits(0)))
    draft.close()
    return found


def assert_rows_of_the_whole_head(path: Path, switch: int = 1) -> None:
    rng = random.Random(1)
    texts = [rng.choices(range(N_TOKENS), k=k) for k in (1, 5, 40, 100)]
    results = []
    for n in (0, N_ROWS):
        assert library().eagle_exact_set(switch) == 0
        try:
            with NativeTarget(path, n_ctx=512, n_rs_seq=5, load_mtp=True) as context:
                results.append(first_steps(context, n, texts))
        finally:
            library().eagle_exact_set(1)
    for (all_ids, logits), (ids, rows) in zip(*results, strict=True):
        assert len(all_ids) == len(logits) and len(ids) == N_ROWS
        assert len(set(ids.tolist())) == N_ROWS
        assert np.allclose(logits[ids], rows, rtol=0, atol=2e-3 * abs(logits).max())  # layouts round differently


@pytest.mark.parametrize("head_type", HEAD_TYPES)
def test_rows_of_every_type(head_type: str, wide: Path) -> None:
    assert_rows_of_the_whole_head(with_head(wide, head_type))


@pytest.mark.parametrize("head_type", ["q8_0", "q4_0", "q4_k"])
def test_rows_of_layouts_that_only_the_file_gives_back(head_type: str, wide: Path) -> None:
    assert_rows_of_the_whole_head(with_head(wide, head_type), switch=0)


def test_a_rearranged_head_needs_the_file(wide: Path) -> None:
    with NativeTarget(with_head(wide, "q4_0"), n_rs_seq=5, load_mtp=True) as context:
        context.model_path = wide / "other.gguf"
        try:
            NativeMtp(context, n_vocab_draft=N_ROWS).close()
        except IncompatibleModels as error:
            assert re.search("repacked in the memory of .*other.gguf cannot be read", str(error))
            return
    pytest.skip("this CPU keeps such weights in our own layout, which is read back without the file")


@pytest.fixture(scope="module")
def path(wide: Path) -> Path:
    return with_head(wide, "q8_0")


class TestVocabulary:
    """Tests of the tokens that have rows."""

    def draft(self, context: NativeTarget, **options: object) -> NativeMtp:
        return NativeMtp(context, n_vocab_draft=N_ROWS, **options)

    def test_control_tokens_then_the_list_then_the_lowest_ids(self, path: Path) -> None:
        base = [300, 200, 300, 100]
        with NativeTarget(path, n_rs_seq=5, load_mtp=True) as context:
            draft = self.draft(context, base_ids=base)
            api, vocab = context.api, context.api.llama_model_get_vocab(context.model)
            ids = draft.session.draft_ids.tolist()
            special = [i for i in range(context.n_vocab) if api.llama_vocab_is_control(vocab, i)]
            draft.close()
        assert set(ids[: len(special)]) == set(special)
        assert ids[len(special) : len(special) + 3] == [300, 200, 100]
        rest = ids[len(special) + 3 :]
        assert rest == [i for i in range(context.n_vocab) if i not in {*special, *base}][: len(rest)]

    def test_tokens_of_the_text_replace_the_least_recently_used(self, path: Path) -> None:
        with NativeTarget(path, n_rs_seq=5, load_mtp=True) as context:
            draft = self.draft(context)
            fixed = draft.session.draft_ids.tolist()[: N_ROWS - N_RESERVED]
            new = [i for i in range(context.n_vocab) if i not in set(draft.session.draft_ids.tolist())]
            draft.eval(new[:N_RESERVED])
            assert set(draft.session.draft_ids.tolist()) == {*fixed, *new[:N_RESERVED]}
            draft.verify([new[0]], 1)  # used again
            draft.verify([new[N_RESERVED], new[N_RESERVED + 1]], 1)  # the second row is not kept
            expected = {*fixed, new[0], *new[2 : N_RESERVED + 1]}
            assert set(draft.session.draft_ids.tolist()) == expected
            draft.session.reset()
            assert set(draft.session.draft_ids.tolist()) == expected
            draft.close()

    def test_a_prompt_of_more_new_tokens_than_rows(self, path: Path) -> None:
        with NativeTarget(path, n_rs_seq=5, load_mtp=True) as context:
            draft = self.draft(context)
            new = [i for i in range(context.n_vocab) if i not in set(draft.session.draft_ids.tolist())][:100]
            draft.eval(new)
            ids = draft.session.draft_ids.tolist()
            draft.close()
        assert set(ids[-N_RESERVED:]) == set(new[-N_RESERVED:])

    def test_tokens_can_be_announced(self, path: Path) -> None:
        with NativeTarget(path, n_rs_seq=5, load_mtp=True) as context:
            draft = self.draft(context)
            new = max(set(range(context.n_vocab)) - set(draft.session.draft_ids.tolist()))
            draft.session.note_tokens([new])
            assert new in draft.session.draft_ids
            with pytest.raises(NativeError, match=f"token {context.n_vocab} is outside the vocabulary"):
                draft.session.note_tokens([context.n_vocab])
            draft.close()

    def test_sizes(self, path: Path) -> None:
        with NativeTarget(path, n_rs_seq=5, load_mtp=True) as context:
            for asked, found in (
                (1, 16),
                (100, 112),
                (N_ROWS, N_ROWS),
                (context.n_vocab, context.n_vocab),
                (1 << 30, 512),
            ):
                draft = NativeMtp(context, n_vocab_draft=asked)
                assert len(draft.session.draft_ids) == found
                draft.eval([1, 2, 3])
                assert set(draft.draft(4)[0]) <= set(draft.session.draft_ids.tolist())
                draft.session.reset()
                draft.close()
            for options in ({"n_vocab_draft": -1}, {"n_vocab_draft": N_ROWS, "base_ids": [context.n_vocab]}):
                with pytest.raises(NativeError):
                    NativeMtp(context, **options)


def test_an_eagle3_draft_keeps_tokens_of_its_own_vocabulary(tmp_path: Path) -> None:
    target, path = write_target(tmp_path / "t.gguf"), write_draft(tmp_path / "d.gguf")
    text = [*b"a.xyz.uvw"]  # "." is not in the draft's vocabulary, and the last letters have no rows at first
    found = []
    with NativeTarget(target, n_ctx=512, n_rs_seq=5) as context, Model(path) as model:
        for n_rows in (0, 48):
            draft = NativeMtp(context, head=LoadedHead(model.handle, path), n_vocab_draft=n_rows)
            before = draft.session.draft_ids.tolist()
            draft.eval(text)
            drafted = draft.draft(3)[0]
            found.append((before, draft.session.draft_ids, draft.session.draft_logits(0), drafted))
            draft.session.reset()
            draft.close()
    (_, all_ids, logits, drafted), (before, ids, rows, again) = found
    assert len(all_ids) == 54 and len(set(ids.tolist())) == 48 and set(ids.tolist()) < set(all_ids.tolist())
    assert not set(before) & set(b"xyzuvw") and set(ids.tolist()) >= {*b"xyzuvw", END}
    place = {token: i for i, token in enumerate(all_ids.tolist())}
    assert np.allclose(logits[[place[token] for token in ids.tolist()]], rows, rtol=0, atol=2e-3 * abs(logits).max())
    assert drafted == again
