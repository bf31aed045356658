"""EagleLlama with a draft against the same class without: the same text whatever the sampler."""

from __future__ import annotations

import contextlib
import gc
import json
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixtures.tiny_gguf import END, N_VOCAB, Variant, write_draft, write_target

pytestmark = pytest.mark.native

SOFT = Variant(sharpness=8.0, mix=0.4)  # the right letter is likely, and everything before has a say
ALPHABET = "abcdefghijklmnopqrstuvwxyz"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {
        "target": write_target(folder / "target.gguf", SOFT),
        "draft": write_draft(folder / "draft.gguf", SOFT),
        "sharp": write_target(folder / "sharp.gguf"),
        "sharp_draft": write_draft(folder / "sharp-draft.gguf"),
        "narrow": write_draft(folder / "narrow.gguf", Variant(hidden=32)),
    }


def load(files: dict[str, Path], target: str = "target", draft: str | None = "draft", **options: Any) -> Any:
    from llama_eagle import EagleLlama

    settings = {"n_ctx": 512, "n_threads": 1, "verbose": False, **options}
    return EagleLlama(files[target], draft_path=None if draft is None else files[draft], **settings)


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


JSON_GRAMMAR = 'root ::= "[" [a-z]+ ("," [a-z]+)* "]"'
SAMPLERS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "defaults": {},
    "hot": {"temperature": 1.6, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    "top-k": {"top_k": 5, "temperature": 1.2},
    "top-p": {"top_p": 0.5, "top_k": 0},
    "typical": {"typical_p": 0.6, "temperature": 1.2},
    "repeat penalty": {"repeat_penalty": 1.4, "temperature": 0.0},
    "all penalties": {"repeat_penalty": 1.1, "frequency_penalty": 0.3, "presence_penalty": 0.3, "temperature": 1.0},
    "mirostat 1": {"mirostat_mode": 1, "mirostat_tau": 3.0},
    "mirostat 2": {"mirostat_mode": 2, "mirostat_tau": 3.0},
    "distribution": {"temperature": -1.0},
    "logit bias": {"logit_bias": {ord("q"): 3.0, ord("e"): -100.0}, "temperature": 1.0},
}


def complete(llm: Any, prompt: Any = "abc", **options: Any) -> dict[str, Any]:
    answer = llm.create_completion(prompt, **{"max_tokens": 60, "seed": 11, **options})
    return {"text": answer["choices"][0]["text"], "reason": answer["choices"][0]["finish_reason"], **answer}


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_gives_the_same_text(plain: Any, drafting: Any, name: str) -> None:
    for seed in range(3):
        expected = complete(plain, seed=seed, **SAMPLERS[name])
        found = complete(drafting, seed=seed, **SAMPLERS[name])
        assert found["text"] == expected["text"]
        assert found["usage"] == expected["usage"]
    assert drafting.speculative_stats.n_drafted > 0


def test_grammar(plain: Any, drafting: Any) -> None:
    from llama_cpp import LlamaGrammar

    texts = []
    for llm in (plain, drafting):
        grammar = LlamaGrammar.from_string(JSON_GRAMMAR, verbose=False)
        texts.append([complete(llm, seed=s, temperature=1.5, top_k=0, grammar=grammar)["text"] for s in range(3)])
    assert texts[0] == texts[1]
    assert all(text.startswith("[") for text in texts[0])


def test_response_format_stays_valid_json(drafting: Any) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"enum": [1, 23]}, "s": {"enum": ["ab", "c"]}},
        "required": ["n", "s"],
    }
    for seed in range(5):
        answer = drafting.create_chat_completion(
            [{"role": "user", "content": "x"}],
            response_format={"type": "json_object", "schema": schema}, temperature=2.0, top_k=0, top_p=1.0, min_p=0.0,
            seed=seed, max_tokens=200,
        )  # fmt: skip
        value = json.loads(answer["choices"][0]["message"]["content"])
        assert value["n"] in (1, 23)
        assert value["s"] in ("ab", "c")


def test_processors_and_criteria_see_exactly_the_tokens_so_far(plain: Any, drafting: Any) -> None:
    from llama_cpp import LogitsProcessorList, StoppingCriteriaList

    records = []
    for llm in (plain, drafting):
        seen: list[tuple[Any, ...]] = []

        def process(tokens: Any, logits: Any, seen: Any = seen) -> Any:
            seen.append(("process", tuple(tokens), int(np.argmax(logits))))
            logits[ord("m")] -= 2
            return logits

        def stop(tokens: Any, logits: Any, seen: Any = seen) -> bool:
            seen.append(("stop", tuple(tokens), int(np.argmax(logits))))
            return len(tokens) >= 40

        text = complete(
            llm, temperature=1.0, logits_processor=LogitsProcessorList([process]),
            stopping_criteria=StoppingCriteriaList([stop]),
        )["text"]  # fmt: skip
        records.append((text, seen))
    assert records[0] == records[1]
    assert len(records[0][1]) > 40


def test_streaming_is_the_same_text_in_the_same_parts(plain: Any, drafting: Any) -> None:
    parts = []
    for llm in (plain, drafting):
        stream = llm.create_completion("abc", max_tokens=50, seed=3, stream=True)
        parts.append([(part["choices"][0]["text"], part["choices"][0]["finish_reason"]) for part in stream])
    assert parts[0] == parts[1]
    assert "".join(text for text, _ in parts[1]) == complete(plain, max_tokens=50, seed=3)["text"]


def test_stop_strings_in_the_middle_of_a_round(files: dict[str, Path]) -> None:
    llm = load(files, "sharp", "sharp_draft", n_draft=5)
    for stop in ("h", "ij", "xyzab", ["q", "k"]):
        for stream in (False, True):
            answer = llm.create_completion("abc", max_tokens=60, temperature=0, stop=stop, stream=stream)
            text = "".join(p["choices"][0]["text"] for p in answer) if stream else answer["choices"][0]["text"]
            end = min((ALPHABET * 3).index(s, 3) for s in ([stop] if isinstance(stop, str) else stop))
            assert text == (ALPHABET * 3)[3:end]


def test_logprobs(plain: Any, drafting: Any) -> None:
    for options in ({}, {"echo": True}, {"stream": True}):
        found = []
        for llm in (plain, drafting):
            answer = llm.create_completion("abcd", max_tokens=20, seed=5, logprobs=3, **options)
            parts = list(answer) if options.get("stream") else [answer]
            found.append([part["choices"][0]["logprobs"] for part in parts])
        assert found[0] == found[1]
        assert any(part and part["token_logprobs"] for part in found[0])


def test_chat_with_tools_functions_and_templates(plain: Any, drafting: Any) -> None:
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello there"}]
    answers = [llm.create_chat_completion(messages, seed=4, max_tokens=30) for llm in (plain, drafting)]
    assert answers[0]["choices"] == answers[1]["choices"]
    assert set(answers[1]["timings"]) >= {"prompt_n", "predicted_n", "predicted_ms", "draft_n", "draft_n_accepted"}
    streams = [
        list(llm.create_chat_completion(messages, seed=4, max_tokens=30, stream=True)) for llm in (plain, drafting)
    ]
    assert [p["choices"] for p in streams[0]] == [p["choices"] for p in streams[1]]
    assert "timings" in streams[1][-1]


def test_echo_suffix_and_token_prompts(plain: Any, drafting: Any) -> None:
    for options in ({"echo": True}, {"suffix": "xyz"}):
        assert complete(plain, **options)["text"] == complete(drafting, **options)["text"]
    ids = drafting.tokenize(b"abc", add_bos=False)
    assert complete(plain, ids)["text"] == complete(drafting, ids)["text"]


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


@pytest.mark.parametrize("draft", [None, "draft"])
@pytest.mark.parametrize("where", ["draft", "verify", "accept", "commit"])
def test_an_interrupt_leaves_it_usable(
    files: dict[str, Path], plain: Any, monkeypatch: pytest.MonkeyPatch, draft: str | None, where: str
) -> None:
    """Ctrl-C is raised when a native call returns, with its work done."""
    llm = load(files, draft=draft, n_draft=3, n_ctx=512)
    session = llm._session
    original = getattr(session, where)
    calls = 0

    def interrupted(*arguments: Any) -> Any:
        nonlocal calls
        result = original(*arguments)
        calls += 1
        if calls == 5:
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


def test_inserted_tokens(plain: Any, drafting: Any) -> None:
    """The parent's generate() takes tokens by send(): they are evaluated after the one just yielded."""
    texts = []
    for llm in (plain, drafting):
        llm.set_seed(9)
        stream = llm.generate(llm.tokenize(b"abc"), temp=1.0)
        tokens = [next(stream)]
        tokens += [stream.send([ord("A") + i, ord("k")]) if i % 7 == 3 else next(stream) for i in range(25)]
        stream.close()
        texts.append(tokens)
    assert texts[0] == texts[1]


def test_save_and_load_state(files: dict[str, Path], plain: Any) -> None:
    llm = load(files, n_draft=3)
    prompt = "abcdefgh"
    llm.eval(llm.tokenize(prompt.encode()))
    state = pickle.loads(pickle.dumps(llm.save_state()))
    assert len(state.llama_state) + len(state.draft_state) < 3_000_000
    complete(llm, "zzz zzz zzz zzz")
    llm.load_state(state)
    assert llm.n_tokens == len(prompt)
    assert complete(llm, prompt)["text"] == complete(plain, prompt)["text"]
    assert llm.speculative_stats.n_accepted > 0
    other = load(files, draft=None)
    other.load_state(state)
    assert complete(other, prompt)["text"] == complete(plain, prompt)["text"]
    llm.load_state(other.save_state())  # without the draft's memory: it starts blind, and nothing else changes
    assert complete(llm, prompt)["text"] == complete(plain, prompt)["text"]


def test_the_parents_cache(files: dict[str, Path], plain: Any) -> None:
    from llama_cpp import LlamaRAMCache

    llm = load(files, n_draft=3)
    llm.set_cache(LlamaRAMCache(50_000_000))
    for prompt in ("abcdefgh", "hello there", "abcdefgh", "abcdefgh again", "hello there"):
        assert complete(llm, prompt)["text"] == complete(plain, prompt)["text"]


def test_a_second_turn_evaluates_only_what_is_new(files: dict[str, Path]) -> None:
    """On a hybrid model, whose recurrent state cannot simply be cut."""
    llm = load(files, n_ctx=2048, n_draft=3)
    reference = load(files, n_ctx=2048, draft=None, checkpoint_mib=0)
    messages: list[dict[str, str]] = []
    for turn in range(8):
        messages.append({"role": "user", "content": f"turn {turn} " + "word " * 20})
        before = llm.n_tokens
        answer = llm.create_chat_completion(messages, seed=turn, max_tokens=40)
        expected = reference.create_chat_completion(messages, seed=turn, max_tokens=40)
        assert answer["choices"] == expected["choices"]
        evaluated, n_prompt = answer["timings"]["prompt_n"], answer["usage"]["prompt_tokens"]
        assert evaluated <= 1.2 * (n_prompt - before) + 2
        messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
    edited = [*messages[:6], {"role": "user", "content": "something else"}]
    answer = llm.create_chat_completion(edited, seed=1, max_tokens=40)
    assert answer["choices"] == reference.create_chat_completion(edited, seed=1, max_tokens=40)["choices"]
    assert answer["timings"]["prompt_n"] < answer["usage"]["prompt_tokens"] / 3
    again = llm.create_chat_completion(edited, seed=1, max_tokens=40)  # a retry
    assert again["choices"] == answer["choices"]
    assert again["timings"]["prompt_n"] <= 16


def test_cutting_the_text(files: dict[str, Path], plain: Any) -> None:
    llm = load(files, n_draft=3)
    llm.eval(llm.tokenize(b"abcdefghijkl"))
    llm.n_tokens = 10
    llm.eval(llm.tokenize(b"xyz"))
    assert llm.eval_tokens == type(llm.eval_tokens)(b"abcdefghijxyz")
    assert complete(llm, "abcdefghijxyz")["text"] == complete(plain, "abcdefghijxyz")["text"]
    with pytest.raises(ValueError, match="n_tokens=4000"):
        llm.n_tokens = 4000


def test_prompt_lookup_and_the_parents_draft_models(files: dict[str, Path], plain: Any) -> None:
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding
    from llama_eagle import PromptLookup

    prompt = "abcdefghijklmnopqrstuvwxyz abcdefghijklmnopqrstuvwxyz abc"
    sources: list[dict[str, Any]] = [
        {"draft": None, "drafter": PromptLookup()},
        {"draft": None, "draft_model": LlamaPromptLookupDecoding(num_pred_tokens=6)},
        {"draft": "draft", "drafter": PromptLookup()},
    ]
    for options in sources:
        llm = load(files, n_draft=6, **options)
        for seed in range(3):
            found = complete(llm, prompt, seed=seed)["text"]
            assert found == complete(plain, prompt, seed=seed)["text"]
        assert llm.speculative_stats.n_accepted > 5
        llm.close()


def test_statistics(files: dict[str, Path]) -> None:
    llm = load(files, "sharp", "sharp_draft", n_draft=2)
    complete(llm, temperature=0, max_tokens=41)
    first = llm.speculative_stats
    assert first.accepted_per_position == [1.0, 0.0]
    assert first.mean_emitted == pytest.approx(2, abs=0.1)
    assert set(first.ms) == {"draft", "verify", "sample", "commit", "python"}
    complete(llm, temperature=0, max_tokens=41)
    assert llm.speculative_totals.n_drafted == first.n_drafted + llm.speculative_stats.n_drafted


def test_pickling_loads_it_again(files: dict[str, Path], plain: Any) -> None:
    llm = pickle.loads(pickle.dumps(load(files, n_draft=3)))
    assert complete(llm)["text"] == complete(plain)["text"]
    assert llm.speculative_stats.n_drafted > 0


def test_rejection_sampling_keeps_more_when_it_is_hot(files: dict[str, Path]) -> None:
    """Greedy text stays what it is; mirostat is refused by name."""
    accepted = {}
    for draft_sampling in ("match", "rejection"):
        with contextlib.closing(load(files, n_draft=3, draft_sampling=draft_sampling)) as llm:
            for seed in range(20):
                complete(llm, seed=seed, temperature=1.5, top_k=20, top_p=1.0, min_p=0.0)
            accepted[draft_sampling] = llm.speculative_totals.mean_emitted
            with contextlib.closing(load(files, draft=None)) as plain:
                assert complete(llm, temperature=0)["text"] == complete(plain, temperature=0)["text"]
            again = [complete(llm, seed=5)["text"] for _ in range(2)]
            assert again[0] == again[1]
    assert accepted["rejection"] > 1.1 * accepted["match"]
    with contextlib.closing(load(files, draft_sampling="rejection")) as llm:
        with pytest.raises(ValueError, match="mirostat counts its own samples"):
            complete(llm, mirostat_mode=2)
        complete(llm)  # it is usable all the same


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
    from llama_eagle.exact import MAX_ROWS

    with contextlib.closing(load(files, "sharp", "sharp_draft", n_draft="auto", n_draft_max=40)) as llm:
        assert llm._length.n_max == MAX_ROWS - 1
        llm.set_n_draft(40)  # whoever asks for it gets it
        assert complete(llm, temperature=0)["text"] == (ALPHABET * 3)[3:63]


def test_two_instances_in_one_process(files: dict[str, Path], plain: Any) -> None:
    first, second = load(files, n_draft=2), load(files, n_draft=5)
    streams = [llm.create_completion("abc", max_tokens=30, seed=7, stream=True) for llm in (first, second)]
    texts = ["", ""]
    for parts in zip(*streams, strict=True):
        for i, part in enumerate(parts):
            texts[i] += part["choices"][0]["text"]
    assert texts == [complete(plain, max_tokens=30, seed=7)["text"]] * 2


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
        ({"n_draft": 40, "exact": True}, ValueError, "exact verification goes up to drafts of 1"),
        ({"draft_sampling": "typical"}, ValueError, "neither 'match' nor 'rejection'"),
        ({"draft_sampling": "rejection", "draft": None}, ValueError, "it needs draft_path"),
        ({"draft_sampling": "rejection", "exact": True}, ValueError, "only its distribution"),
        ({"p_min": 1.5}, ValueError, r"p_min=1\.5"),
        ({"embedding": True}, ValueError, "embedding=True does not work with a draft"),
        ({"vocab_only": True}, ValueError, "vocab_only=True does not work with a draft"),
        ({"n_batch": 17}, ValueError, "n_batch=17 is below 18"),
        ({"n_ubatch": 8}, ValueError, "n_ubatch=8 is below 18"),
        ({"draft_model": print}, ValueError, "draft_path and draft_model exclude each other"),
        ({"draft": "narrow"}, ValueError, "hidden size of 32"),
        ({"draft": "target"}, ValueError, "not an EAGLE-3 draft"),
        ({"target": "draft"}, ValueError, "is an EAGLE-3 draft, not a target"),
        ({"n_ctx": 2_000_000_000}, RuntimeError, "Use a smaller --ctx-size"),
    ],
)
def test_refusals(files: dict[str, Path], options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        load(files, **options)


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


@pytest.mark.parametrize("seed", range(4))
def test_random_edits_leave_the_memory_as_if_read_anew(files: dict[str, Path], seed: int) -> None:
    """Texts that share beginnings, are cut, continued and come back: checkpoints of other texts are never used."""
    rng = np.random.default_rng(seed)
    llm = load(files, n_ctx=1024, n_draft=3, checkpoint_every=16)
    fresh = load(files, n_ctx=1024, draft=None, checkpoint_mib=0)
    text = rng.integers(97, 123, 60).tolist()
    reused = 0
    for _ in range(25):
        keep = int(rng.integers(0, len(text)))
        text = text[:keep] + rng.integers(97, 123, int(rng.integers(1, 60))).tolist()
        text = text[:400]
        reused += len(text) - llm._memory.become(text)
        if rng.random() < 0.5:
            stream = llm.generate(text, temp=0.0)
            text = text + [next(stream) for _ in range(int(rng.integers(1, 12)))]
            stream.close()
            reused += len(text) - llm._memory.become(text)
        fresh.reset()
        fresh.eval(text)
        np.testing.assert_allclose(llm.scores[-1], fresh.scores[-1], atol=1e-3)
    assert reused > 500
