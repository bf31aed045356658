"""Limits of EagleLlama: full contexts, interrupts, threads, bad arguments."""

from __future__ import annotations

import contextlib
import functools
import gc
import multiprocessing
import pickle
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from fixtures.llama_pairs import ALPHABET, complete, load, write_lora, write_pairs
from fixtures.tiny_gguf import END, N_VOCAB, write_sliding_window_target
from llama_eagle.errors import InputError, UsageError

pytestmark = pytest.mark.native


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_pairs(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def plain(files: dict[str, Path]) -> Iterator[Any]:
    llm = load(files, draft=None, logits_all=True)
    yield llm
    llm.close()


@pytest.fixture(scope="module")
def drafting(files: dict[str, Path]) -> Iterator[Any]:
    llm = load(files, n_draft=3, logits_all=True)
    yield llm
    llm.close()


@pytest.mark.parametrize("n_draft", [1, 4, 16, "auto"])
def test_ends_with_the_context_where_plain_decoding_does(files: dict[str, Path], n_draft: Any) -> None:
    texts = []
    for draft in (None, "sharp_draft"):
        llm = load(files, "sharp", draft, n_ctx=256, n_draft=n_draft)
        texts.append(complete(llm, temperature=0, max_tokens=None)["text"])
        tokens = list(llm.generate(llm.tokenize(b"abc"), temp=0.0))
        assert len(tokens) == 256 - 3 + 1
        llm.close()
    assert texts[0] == texts[1]
    assert len(texts[0]) == 256 - 3


def test_a_stream_dropped_in_the_middle_leaves_it_usable(files: dict[str, Path]) -> None:
    llm = load(files, n_draft=4)
    fresh = load(files, draft=None)
    for n_read in range(1, 9):
        stream = llm.create_completion("abc", max_tokens=60, seed=n_read, stream=True)
        for _ in range(n_read):
            next(stream)
        del stream
        gc.collect()
        assert complete(llm, "abcdef", seed=n_read)["text"] == complete(fresh, "abcdef", seed=n_read)["text"]


@pytest.mark.parametrize(
    ("draft", "where"),
    [
        (draft, where)
        for draft in (None, "draft", "lookup")
        for where in ("eval", "draft", "verify", "commit")
        if draft == "draft" or where != "draft"
    ],
)
def test_an_interrupt_leaves_it_usable(
    files: dict[str, Path], plain: Any, monkeypatch: pytest.MonkeyPatch, draft: str | None, where: str
) -> None:
    """Ctrl-C is raised when a native call returns, with its work done."""
    llm = load(files, draft=draft, n_draft=3, n_ctx=512)
    session = llm._session
    original = getattr(session, where)
    calls = 0

    def interrupted(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        result = original(*arguments, **named)
        calls += 1
        if calls == (1 if where == "eval" else 5):
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(session, where, interrupted)
    with contextlib.suppress(KeyboardInterrupt):
        complete(llm, temperature=0)
    monkeypatch.undo()
    assert complete(llm, temperature=0)["text"] == complete(plain, temperature=0)["text"]
    assert complete(llm, "xyz", seed=5)["text"] == complete(plain, "xyz", seed=5)["text"]


def test_a_generation_that_was_overtaken_says_so(drafting: Any) -> None:
    stream = drafting.create_completion("abc", max_tokens=60, stream=True)
    next(stream)
    complete(drafting)
    with pytest.raises(RuntimeError, match="another call has used this EagleLlama"):
        list(stream)


def test_pickling_loads_it_again(files: dict[str, Path], plain: Any) -> None:
    llm = pickle.loads(pickle.dumps(load(files, n_draft=3)))
    assert complete(llm)["text"] == complete(plain)["text"]
    assert llm.speculative_stats.n_drafted > 0


def test_another_thread_gets_an_error(drafting: Any) -> None:
    from llama_cpp import LogitsProcessorList

    errors: list[BaseException] = []

    def intrude(tokens: Any, logits: Any) -> Any:
        def call() -> None:
            try:
                drafting.eval([1])
            except RuntimeError as error:
                errors.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        return logits

    complete(drafting, max_tokens=3, logits_processor=LogitsProcessorList([intrude]))
    assert errors
    assert all("in use by another thread" in str(error) for error in errors)


def test_auto_stays_within_what_is_verified_exactly(files: dict[str, Path]) -> None:
    from llama_eagle.native.limits import MAX_EXACT_DRAFT

    with contextlib.closing(load(files, "sharp", "sharp_draft", n_draft="auto", n_draft_max=80, lookup=False)) as llm:
        assert llm._length.choose(80) == MAX_EXACT_DRAFT
        llm.set_n_draft(80)  # an explicit length may be longer
        assert complete(llm, temperature=0)["text"] == (ALPHABET * 3)[3:63]


def test_two_instances_in_one_process(files: dict[str, Path], plain: Any) -> None:
    first, second = load(files, n_draft=2), load(files, n_draft=5)
    streams = [llm.create_completion("abc", max_tokens=30, seed=7, stream=True) for llm in (first, second)]
    texts = ["", ""]
    for parts in zip(*streams, strict=True):
        for i, part in enumerate(parts):
            texts[i] += part["choices"][0]["text"]
    assert texts == [complete(plain, max_tokens=30, seed=7)["text"]] * 2


def test_two_threads_with_an_instance_each(files: dict[str, Path], plain: Any) -> None:
    with load(files, n_draft=2) as first, load(files, n_draft=5) as second, ThreadPoolExecutor(2) as pool:
        found = pool.map(lambda llm: [complete(llm, seed=seed)["text"] for seed in range(10)], (first, second))
        expected = [complete(plain, seed=seed)["text"] for seed in range(10)]
        assert list(found) == [expected, expected]


def test_a_worker_process_loads_its_own(files: dict[str, Path], plain: Any) -> None:
    """A spawned worker; what it is given of an instance are its arguments."""
    with load(files, n_draft=3) as llm, ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(complete, llm).result()["text"] == complete(plain)["text"]
        assert complete(llm)["text"] == complete(plain)["text"]


def test_close(files: dict[str, Path]) -> None:
    with contextlib.closing(load(files)) as llm:
        complete(llm, max_tokens=2)
        stream = llm.create_completion("abc", stream=True)
        next(stream)
    llm.close()  # twice is fine
    with pytest.raises(RuntimeError, match="another call"):
        next(stream)
    with pytest.raises(ValueError, match="is closed"):
        llm.eval([1])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"n_drafts": 3}, TypeError, "unexpected keyword argument 'n_drafts'"),
        ({"n_draft": "many"}, ValueError, "neither 'auto' nor a number"),
        ({"n_draft": -1}, ValueError, "neither 'auto' nor a number"),
        ({"n_draft_max": 0}, ValueError, "n_draft_max=0"),
        ({"n_draft": 72, "exact": True}, ValueError, "exact verification supports drafts of at most 71"),
        ({"draft_sampling": "typical"}, ValueError, "neither 'match' nor 'rejection'"),
        ({"draft_sampling": "rejection", "draft": None}, ValueError, "it requires draft and no other"),
        ({"draft_sampling": "rejection", "exact": True}, ValueError, "only its distribution"),
        ({"p_min": 1.5}, ValueError, r"p_min=1\.5"),
        ({"embedding": True}, ValueError, "embedding=True does not work with a draft"),
        ({"vocab_only": True}, ValueError, "vocab_only=True does not work with a draft"),
        ({"n_batch": 17}, ValueError, "n_batch=17 is below 18"),
        ({"n_ubatch": 8}, ValueError, "n_ubatch=8 is below 18"),
        ({"draft_model": print}, ValueError, "draft and draft_model exclude each other"),
        ({"draft": "narrow"}, ValueError, "hidden size of 32"),
        ({"draft": "target"}, ValueError, "it is the target itself"),
        ({"target": "draft"}, ValueError, "is an EAGLE-3 draft, not a target"),
        ({"n_ctx": 2_000_000_000}, RuntimeError, "Use a smaller n_ctx"),
        ({"n_ctx": 2}, ValueError, "n_ctx=2 is too small for a draft"),
        ({"n_ctx": -5, "draft": None}, ValueError, "Failed to create llama_context: .*n_ctx_seq == 0"),
        ({"n_batch": -3, "draft": None}, ValueError, "n_batch=-3 is not in 0"),
        ({"n_threads": 100_000}, ValueError, "n_threads 100000: give a number of threads from 1 to 512"),
        ({"n_threads_batch": 2**31}, ValueError, "n_threads_batch 2147483648: give a number of threads from 1 to 512"),
        ({"type_k": 27}, ValueError, r"type_k=27 is not one of 0 \(f32\)"),  # integers, which no kernel attends to
        ({"type_v": 99}, ValueError, "type_v=99 is not one of"),
        ({"type_v": 8, "flash_attn": False}, ValueError, "quantized V cache requires flash_attn"),
    ],
)
def test_refusals(files: dict[str, Path], options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        load(files, **options)


LOAD_IN_LITTLE_MEMORY = """
import resource, sys
from pathlib import Path
from llama_eagle import EagleLlama
from llama_eagle.errors import EnvironmentFailure
target, draft = sys.argv[1:]
common = {"n_threads": 1, "verbose": False}
small = EagleLlama(target, n_ctx=256, **common)
address_space = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (address_space + (100 << 20),) * 2)
for draft_path in (None, draft):
    try:
        EagleLlama(target, draft_path=draft_path, n_ctx=4_000_000, **common)
    except EnvironmentFailure as error:
        print(error)
print(small.create_completion("abc", max_tokens=3, temperature=0)["choices"][0]["text"])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space")
def test_out_of_memory_at_load_is_an_error(files: dict[str, Path]) -> None:
    """512 MB of keys and values where 100 MB are left; what is loaded already goes on working."""
    command = [sys.executable, "-c", LOAD_IN_LITTLE_MEMORY, files["sharp"], files["sharp_draft"]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    *refusals, text = done.stdout.splitlines()
    assert text == "def", done.stderr
    assert len(refusals) == 2
    assert all("the limit of address space leaves 0.1 GiB" in refusal for refusal in refusals)


def test_the_vocabulary_alone_has_no_memory(files: dict[str, Path]) -> None:
    with load(files, draft=None, vocab_only=True) as llm:
        assert llm.detokenize(llm.tokenize(b"abc")) == b"abc"
        for call in (complete, lambda llm: llm.eval([1])):
            with pytest.raises(ValueError, match="loaded with vocab_only"):
                call(llm)


@pytest.mark.parametrize("options", [{}, {"draft": None, "vocab_only": True}], ids=["model", "vocabulary"])
def test_ids_outside_of_the_vocabulary_are_refused(files: dict[str, Path], options: dict[str, Any]) -> None:
    """At which llama.cpp ends the process."""
    with load(files, **options) as llm:
        model = llm._model
        lists = (llm.detokenize, llm.tokenizer_.detokenize, llm.tokenizer().decode)
        tokens = (model.token_get_text, model.token_get_score, model.token_get_attr, model.token_to_piece)
        calls = [functools.partial(call, [ord("a"), n]) for call in lists for n in (llm.n_vocab(), -1)]
        for call in calls + [functools.partial(call, n) for call in tokens for n in (llm.n_vocab(), -1)]:
            with pytest.raises(InputError, match="is not in the vocabulary of 272 tokens"):
                call()
        assert llm.tokenizer().decode([ord("a")]) == model.token_get_text(ord("a")) == "a"


def test_a_draft_needs_no_more_context_than_its_target(files: dict[str, Path], plain: Any) -> None:
    """Nor memory for it; 2**31 - 1 is the largest number of positions."""
    with load(files, n_draft=3, draft_n_ctx=2**31 - 1) as llm:
        assert complete(llm)["text"] == complete(plain)["text"]
        assert llm.speculative_stats.n_drafted > 0


def test_empty_prompts(files: dict[str, Path], plain: Any) -> None:
    for draft in (None, "draft"):
        with load(files, draft=draft) as llm:
            for call in (lambda llm=llm: complete(llm, ""), lambda llm=llm: next(llm.generate([]))):
                with pytest.raises(ValueError, match="the prompt is empty"):
                    call()
            assert complete(llm)["text"] == complete(plain)["text"]


class Proposes:
    def __init__(self, proposed: list[int]) -> None:
        self.proposed = proposed

    def begin(self, tokens: Any) -> None: ...

    def accept(self, tokens: Any) -> None: ...

    def draft(self, id_last: int, n_max: int) -> list[int]:
        return self.proposed


@pytest.mark.parametrize("draft", [None, "sharp_draft"])
@pytest.mark.parametrize("proposed", [[ord("z")] * 40, [-1], [ord("d"), N_VOCAB]])
def test_a_bad_proposal_costs_time_not_correctness(
    files: dict[str, Path], draft: str | None, proposed: list[int]
) -> None:
    """More tokens than were asked for, or what is no token: a look-up may propose the rows of an image."""
    with load(files, "sharp", draft, drafter=Proposes(proposed), n_draft=3) as llm:
        assert complete(llm, temperature=0)["text"] == (ALPHABET * 3)[3:63]


def test_missing_file_is_the_parents_error(files: dict[str, Path]) -> None:
    from llama_eagle import EagleLlama

    with pytest.raises(ValueError, match=r"Model path does not exist: nowhere\.gguf"):
        EagleLlama("nowhere.gguf", verbose=False)


def test_small_batches(files: dict[str, Path], plain: Any) -> None:
    llm = load(files, n_draft=3, n_draft_max=3, n_batch=5, n_ubatch=5)
    prompt = "abcdefgh" * 5
    assert complete(llm, prompt)["text"] == complete(plain, prompt)["text"]


def test_end_token_is_not_delivered(files: dict[str, Path]) -> None:
    llm = load(files, "sharp", "sharp_draft", n_draft=4)
    assert complete(llm, "ABC", temperature=0)["text"] == ALPHABET.upper()[3:]
    assert complete(llm, "ABC", temperature=0)["reason"] == "stop"
    tokens = []
    for token in llm.generate(llm.tokenize(b"XY"), temp=0.0):
        tokens.append(token)
        if token == END:
            break
    assert tokens == [ord("Z"), END]
    assert llm.n_vocab() == N_VOCAB


def test_defaults_beyond_the_parents(files: dict[str, Path]) -> None:
    """Equal threads for one row and for many, llama.cpp's choice of attention, no logits that nobody asked for."""
    import llama_cpp

    for given, attention in ((None, llama_cpp.LLAMA_FLASH_ATTN_TYPE_AUTO), (False, 0), (True, 1)):
        options = {} if given is None else {"flash_attn": given}
        with load(files, **options) as llm:
            assert llm.context_params.flash_attn_type == attention
    with load(files, n_threads=None) as llm:
        threads = (llama_cpp.llama_n_threads(llm.ctx), llama_cpp.llama_n_threads_batch(llm.ctx))
        assert threads[0] == threads[1]
        complete(llm, max_tokens=5)
        assert llm.scores.shape == (1, N_VOCAB)
        assert llm.save_state().scores.size == 0


@pytest.mark.parametrize("trained", [False, True])
def test_past_the_drafts_context_its_memory_slides(trained: bool, files: dict[str, Path], tmp_path: Path) -> None:
    """The one that is asked for, or the one that the draft was trained with."""
    short = Path(shutil.copy(files["sharp_draft"], tmp_path / "short.gguf"))
    if trained:
        gguf.GGUFReader(short, "r+").fields["eagle3.context_length"].parts[-1][0] = 128
    with load({**files, "short": short}, "sharp", "short", n_draft=2, draft_n_ctx=0 if trained else 128) as llm:
        with pytest.warns(UserWarning, match="drafts from the last 128 tokens") as warned:
            assert complete(llm, temperature=0, max_tokens=400)["text"] == (ALPHABET * 16)[3:403]
        assert len(warned) == 1
        assert llm.speculative_stats.rounds <= 200  # of 400 tokens
        assert complete(llm, temperature=0, max_tokens=10)["text"] == ALPHABET[3:13]
        assert llm.speculative_stats.n_accepted > 3


def test_a_state_that_does_not_fit(files: dict[str, Path], plain: Any) -> None:
    with load(files, n_ctx=1024) as large, load(files, n_ctx=256) as small:
        large.eval(large.tokenize(b"abc" * 200))
        with pytest.raises(RuntimeError, match="the saved state has 600 tokens, this context has room for 256"):
            small.load_state(large.save_state())
        assert complete(small)["text"] == complete(plain)["text"]


def test_states_under_other_settings_are_refused(files: dict[str, Path], tmp_path: Path) -> None:
    """Their rows are others, though they have the same size."""
    with contextlib.closing(load(files, draft=None)) as llm:
        llm.eval([97, 98, 99])
        state = llm.save_state()
    for name, options in (
        ("rope_freq_base", {"rope_freq_base": 5000.0}),
        ("kv_overrides", {"kv_overrides": {"qwen35.rope.freq_base": 5000.0}}),
        ("lora", {"lora_path": str(write_lora(tmp_path / "lora.gguf"))}),
    ):
        refused = pytest.raises(RuntimeError, match=f"does not fit .* {name}")
        with contextlib.closing(load(files, draft=None, **options)) as other, refused:
            other.load_state(state)
    adapter = tmp_path / "lora.gguf"
    with contextlib.closing(load(files, draft=None, lora_path=str(adapter))) as llm:
        state = llm.save_state()
    write_lora(adapter, seed=4)  # trained again: the same name and size
    refused = pytest.raises(RuntimeError, match=r"does not fit .* lora")
    with contextlib.closing(load(files, draft=None, lora_path=str(adapter))) as llm, refused:
        llm.load_state(state)


def test_a_lora_adapter(files: dict[str, Path], tmp_path: Path) -> None:
    """Its effect is in the target's features too: the draft goes on, the text is plain decoding's."""
    adapter = write_lora(tmp_path / "lora.gguf")
    texts = {}
    for lora in (None, str(adapter)):
        for draft in (None, "draft"):
            with contextlib.closing(load(files, draft=draft, n_draft=3, lora_path=lora)) as llm:
                texts[lora, draft] = complete(llm, max_tokens=100)["text"]
                assert draft is None or llm.speculative_stats.n_drafted > 0
    assert texts[None, "draft"] == texts[None, None]
    assert texts[str(adapter), "draft"] == texts[str(adapter), None] != texts[None, None]


@pytest.mark.parametrize("draft", [None, "draft"])
def test_a_text_that_was_cut_is_computed_again(files: dict[str, Path], draft: str | None) -> None:
    """A recurrent state cannot go back to the cut: what lies between a checkpoint and it is not forgotten."""
    text = list(b"abcdefghijklmnopqrstuvwxyz" * 4)
    with load(files, draft=draft, checkpoint_mib=0) as llm, load(files, draft=draft) as other:
        llm.eval(text)
        llm.n_tokens = 99
        llm.eval([ord("x")])
        assert llm.n_tokens == 100
        other.eval(text[:99])
        other.eval([ord("x")])
        assert (llm.scores[-1] == other.scores[-1]).all()


def test_a_closed_instance_says_so(files: dict[str, Path]) -> None:
    llm = load(files)
    tokenizer = llm.tokenizer()
    llm.close()
    llm.close()
    of_the_tokenizer = (lambda: tokenizer.encode("a"), lambda: llm.tokenizer_.detokenize([1]))
    of_the_model = (llm.n_vocab, llm.n_embd, llm.token_eos, llm.token_bos, llm.tokenizer, lambda: llm.model)
    of_the_context = (llm.n_ctx, llm.pooling_type, lambda: llm.ctx, lambda: llm.embed("a"), llm.save_state)
    texts = (lambda: complete(llm), lambda: llm.tokenize(b"a"), lambda: llm.eval([1]), lambda: next(llm.generate([1])))
    for call in (*of_the_tokenizer, *of_the_model, *of_the_context, *texts):
        with pytest.raises((RuntimeError, ValueError), match="closed"):
            call()


def test_it_says_nothing_of_its_own(files: dict[str, Path], capfd: pytest.CaptureFixture[str]) -> None:
    """A notebook shows what llama.cpp writes to the descriptors too."""
    with load(files) as llm:
        complete(llm)
        list(llm.create_completion("abc", max_tokens=4, stream=True))
        assert "tokens" in str(llm.speculative_stats)
    assert capfd.readouterr() == ("", "")


def test_another_thread_does_not_close_it(files: dict[str, Path]) -> None:
    """Nor does it leave its seed: a completion is one step from its seed to its first token."""
    errors: list[BaseException] = []
    with load(files) as llm:
        from llama_cpp import LogitsProcessorList

        def intrude(tokens: Any, logits: Any) -> Any:
            def call() -> None:
                for step in (llm.close, lambda: complete(llm, seed=1)):
                    try:
                        step()
                    except RuntimeError as error:
                        errors.append(error)

            thread = threading.Thread(target=call)
            thread.start()
            thread.join()
            return logits

        complete(llm, max_tokens=2, logits_processor=LogitsProcessorList([intrude]))
    assert len(errors) >= 2
    assert all("in use by another thread" in str(error) for error in errors)


def test_a_text_edited_beyond_the_sliding_window_is_read_again(tmp_path: Path) -> None:
    """llama.cpp frees the cells behind the window: what is left is no context for an earlier place of the text."""
    target = write_sliding_window_target(tmp_path / "gemma3.gguf", window=16)
    options = {"draft": None, "n_ctx": 1024, "n_batch": 32, "n_ubatch": 32, "swa_full": False}
    edited, fresh = (load({"target": target}, **options) for _ in range(2))
    text = ALPHABET * 24
    complete(edited, text, temperature=0)
    cut = text[:300] + "z" + text[301:340]
    assert complete(edited, cut, temperature=0)["text"] == complete(fresh, cut, temperature=0)["text"]
    logits = []
    for llm, n_kept in ((edited, 200), (fresh, 0)):
        llm.n_tokens = n_kept
        llm.eval(llm.tokenize(cut[n_kept:207].encode()))
        logits.append(np.array(llm.eval_logits[-1]))
        llm.close()
    np.testing.assert_allclose(*logits, atol=0.01)  # other pieces of a prompt round otherwise


@pytest.mark.parametrize("draft", [None, "draft", "lookup"])
def test_a_text_cut_during_a_generation(files: dict[str, Path], draft: str | None) -> None:
    """The generation ends; what is left in memory is the text before the cut."""
    llm, fresh = load(files, draft=draft), load(files, draft=None)
    generation = llm.generate(llm.tokenize(b"abcabcabcab"), temp=0.0)
    for _ in range(4):
        next(generation)
    llm.n_tokens = 5
    with pytest.raises(RuntimeError, match="Start it again"):
        next(generation)
    assert bytes(llm.eval_tokens) == b"abcab"
    for prompt in ("abcab", "abcabq"):
        assert complete(llm, prompt, temperature=0)["text"] == complete(fresh, prompt, temperature=0)["text"]
    llm.close()
    fresh.close()


def test_a_token_is_sampled_after_the_text_in_memory(files: dict[str, Path]) -> None:
    with load(files) as llm:
        llm.eval(llm.tokenize(b"abcdef"))
        expected, state = llm.sample(temp=0.0), llm.save_state()
        complete(llm, "zzz")
        llm.load_state(state)
        assert llm.sample(temp=0.0) == expected
        llm.eval(llm.tokenize(b"xyz"))
        llm.n_tokens = 6
        assert llm.sample(temp=0.0) == expected
        llm.reset()
        with pytest.raises(UsageError, match="no text"):
            llm.sample(temp=0.0)


def test_a_text_without_tokens_is_not_embedded(files: dict[str, Path]) -> None:
    """The parent writes outside of its batch."""
    with load(files, draft=None, embedding=True) as llm:
        for texts in ("", ["a", "", "b"]):
            with pytest.raises(InputError, match="empty"):
                llm.create_embedding(texts)
        assert len(llm.create_embedding(["a", "b"])["data"]) == 2


@pytest.mark.parametrize(("stop", "expected"), [([], "ab.c.d"), ([".d"], "ab.c")])
def test_an_answer_of_another_tokenizer(files: dict[str, Path], stop: list[str], expected: str) -> None:
    """Tokenizers of transformers remove spaces before marks: the text changes with later tokens."""
    from llama_cpp import LogitsProcessorList
    from llama_cpp.llama_tokenizer import BaseLlamaTokenizer

    class Cleaning(BaseLlamaTokenizer):
        def tokenize(self, text: bytes, add_bos: bool = True, special: bool = True) -> list[int]:
            return list(text)

        def detokenize(self, tokens: list[int], prev_tokens: list[int] | None = None, special: bool = False) -> bytes:
            before = bytes(prev_tokens or ())
            return (before + bytes(tokens)).replace(b" .", b".")[len(before.replace(b" .", b".")) :]

    llm = load(files, draft=None, tokenizer=Cleaning())
    forced = iter(b"ab .c .d")

    def force(ids: Any, logits: Any) -> Any:
        token = next(forced)
        logits[:] = -np.inf
        logits[token] = 0
        return logits

    assert complete(llm, max_tokens=8, logits_processor=LogitsProcessorList([force]), stop=stop)["text"] == expected
    llm.close()


def chunk(**choice: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, **choice}]}


HANDLED: dict[str, Any] = {
    "a stream without optional keys": [chunk(delta={"content": "Hi"}), chunk(delta={}, finish_reason="stop")],
    "a stream with usage": [chunk(delta={"content": "Hi"}, finish_reason="stop"), {"choices": [], "usage": {"n": 1}}],
    "a stream of a completion": [chunk(text="Hi", finish_reason="stop")],
    "no finish reason": chunk(message={"role": "assistant", "content": "Hi"}),
    "a completion": chunk(text="Hi", finish_reason="stop"),
    "nothing": None,
}


@pytest.mark.parametrize("name", HANDLED)
def test_answers_of_a_chat_handler(files: dict[str, Path], name: str) -> None:
    given = HANDLED[name]
    with load(files, draft=None, chat_handler=lambda **_: iter(given) if isinstance(given, list) else given) as llm:
        answer = llm.create_chat_completion([{"role": "user", "content": "x"}])
        if isinstance(given, list):
            parts = list(answer)
            texts = [part["choices"][0].get("delta", part["choices"][0]) for part in parts if part["choices"]]
            assert "".join(text.get("content", text.get("text", "")) for text in texts) == "Hi"
            assert sum(map(bool, [part.get("usage") for part in parts])) == ("usage" in name)
        elif given is None:
            assert answer is None
        else:
            choice = answer["choices"][0]
            assert choice.get("message", choice).get("content", choice.get("text")) == "Hi"
