"""EagleLlama with a draft against the same class without: the same text whatever the sampler."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixtures.llama_pairs import ALPHABET, complete, load, write_pairs
from llama_eagle.drop_in.answers.prompt import prompt_tokens
from llama_eagle.errors import UsageError

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
    for stop in ("", ["", "h"]):  # an empty one ends nothing
        assert complete(llm, max_tokens=4, temperature=0, stop=stop)["text"] == "defg"


def test_logprobs(plain: Any, drafting: Any) -> None:
    for options in ({}, {"echo": True}, {"stream": True}):
        found = []
        for llm in (plain, drafting):
            answer = llm.create_completion("abcd", max_tokens=20, seed=5, logprobs=3, **options)
            parts = list(answer) if options.get("stream") else [answer]
            found.append([part["choices"][0]["logprobs"] for part in parts])
        assert found[0] == found[1]
        assert any(part and part["token_logprobs"] for part in found[0])


def test_log_probabilities_of_a_chat(drafting: Any) -> None:
    """In OpenAI's form: without a number of alternatives there are none."""

    def logprobs(**options: Any) -> list[Any]:
        given = {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 4, "temperature": 0, "logprobs": True}
        whole = drafting.create_chat_completion(**given, **options)["choices"][0]["logprobs"]["content"]
        stream = [part["choices"][0] for part in drafting.create_chat_completion(**given, **options, stream=True)]
        assert [entry for choice in stream if choice["logprobs"] for entry in choice["logprobs"]["content"]] == whole
        return whole

    two, none = logprobs(top_logprobs=2), logprobs()
    assert [len(entry["top_logprobs"]) for entry in two] == [2] * 4
    assert none == logprobs(top_logprobs=0) == [{**entry, "top_logprobs": []} for entry in two]


def test_chat_with_the_models_template(plain: Any, drafting: Any) -> None:
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello there"}]
    answers = [llm.create_chat_completion(messages, seed=4, max_tokens=30) for llm in (plain, drafting)]
    assert answers[0]["choices"] == answers[1]["choices"]
    streams = [
        list(llm.create_chat_completion(messages, seed=4, max_tokens=30, stream=True)) for llm in (plain, drafting)
    ]
    assert [p["choices"] for p in streams[0]] == [p["choices"] for p in streams[1]]
    assert streams[1][-1]["timings"]["draft_n"] > 0


@pytest.mark.parametrize("stream", [False, True])
def test_tools(files: dict[str, Path], stream: bool) -> None:
    """A call of the tool that is asked for, its arguments by the tool's schema."""
    colors = {"type": "object", "properties": {"color": {"enum": ["red", "blue"]}}, "required": ["color"]}
    tool = {"type": "function", "function": {"name": "paint", "description": "paints", "parameters": colors}}
    calls = []
    for draft in (None, "draft"):
        with load(files, draft=draft, n_draft=4, chat_format="chatml-function-calling") as llm:
            answer = llm.create_chat_completion(
                [{"role": "user", "content": "x"}], tools=[tool], seed=3, temperature=1.5, stream=stream,
                tool_choice={"type": "function", "function": {"name": "paint"}},
            )  # fmt: skip
            if stream:
                deltas = [part["choices"][0]["delta"].get("tool_calls") for part in answer]
                calls.append([delta[0]["function"] for delta in deltas if delta])
            else:
                calls.append([answer["choices"][0]["message"]["tool_calls"][0]["function"]])
            assert draft is None or llm.speculative_stats.n_drafted > 0
    assert calls[0] == calls[1]
    assert [call["name"] for call in calls[1] if "name" in call] == ["paint"]
    assert json.loads("".join(call["arguments"] for call in calls[1]))["color"] in ("red", "blue")


def test_echo_and_token_prompts(plain: Any, drafting: Any) -> None:
    assert complete(plain, echo=True)["text"] == complete(drafting, echo=True)["text"]
    ids = drafting.tokenize(b"abc", add_bos=False)
    assert complete(plain, ids)["text"] == complete(drafting, ids)["text"]


def test_a_suffix_has_the_infill_tokens_of_the_vocabulary(files: dict[str, Path], drafting: Any) -> None:
    ids = {"pre": 1, "suf": 2, "mid": 3}
    overrides: Any = {f"tokenizer.ggml.fim_{name}_token_id": token for name, token in ids.items()}
    with load(files, n_draft=3, kv_overrides=overrides) as llm:
        for given in ("abc", llm.tokenize(b"abc", add_bos=False)):
            answer = llm.create_completion(given, suffix="xyz", max_tokens=20, temperature=0)
            assert answer["usage"]["prompt_tokens"] == 9
            assert prompt_tokens(llm, given, "xyz") == [1, *b"abc", 2, *b"xyz", 3]
            expected = llm.create_completion([1, *b"abc", 2, *b"xyz", 3], max_tokens=20, temperature=0)
            assert answer["choices"][0]["text"] == expected["choices"][0]["text"]
    with pytest.raises(UsageError, match="no infill tokens"):
        complete(drafting, suffix="xyz")


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
    assert llm.eval_tokens == type(llm.eval_tokens)(prompt.encode())
    longer = complete(llm, prompt + "ijk")
    assert longer["text"] == complete(plain, prompt + "ijk")["text"]
    assert longer["timings"]["prompt_n"] == 3  # what was loaded is not read again
    llm.load_state(state)
    assert complete(llm, prompt)["text"] == complete(plain, prompt)["text"]
    assert llm.speculative_stats.n_accepted > 0
    other = load(files, draft=None)
    other.load_state(state)
    assert complete(other, prompt)["text"] == complete(plain, prompt)["text"]
    llm.load_state(other.save_state())  # without the draft's memory: it starts blind, and nothing else changes
    assert complete(llm, prompt)["text"] == complete(plain, prompt)["text"]


def test_a_loaded_state_has_its_scores(files: dict[str, Path]) -> None:
    with load(files, n_draft=3, logits_all=True) as llm:
        llm.eval(llm.tokenize(b"abcdef"))
        state, scores = llm.save_state(), llm.scores[:6].copy()
        assert scores.any()
        complete(llm, "zzz zzz zzz")
        llm.load_state(state)
        np.testing.assert_array_equal(llm.scores[:6], scores)


def test_a_stopping_criterion_may_be_a_function(plain: Any, drafting: Any) -> None:
    for llm in (plain, drafting):
        assert len(complete(llm, stopping_criteria=lambda tokens, _logits: len(tokens) > 7)["text"]) == 5


def test_streams_of_chats_can_be_closed(files: dict[str, Path], plain: Any) -> None:
    with load(files, n_draft=3) as llm:
        for parse_replies in (True, False):
            llm._options = replace(llm._options, parse_replies=parse_replies)
            stream = llm.create_chat_completion([{"role": "user", "content": "abc"}], stream=True, max_tokens=40)
            next(stream), next(stream)
            stream.close()
            assert llm._generation is None
            assert complete(llm)["text"] == complete(plain)["text"]


def test_statistics_are_of_the_newest_generation(files: dict[str, Path]) -> None:
    """Whenever an older stream ends; and both count in the totals, once."""
    with load(files, n_draft=3) as llm:
        older = llm.create_completion("abc", max_tokens=50, stream=True)
        for _ in range(20):
            next(older)
        complete(llm, temperature=0, max_tokens=40)
        newest = llm.speculative_stats
        of_both = llm.speculative_totals.rounds
        older.close()
        assert llm.speculative_stats is newest
        assert newest.rounds < of_both == llm.speculative_totals.rounds
        assert min(newest.ms.values()) >= 0
        with load(files, n_draft=3) as fresh:
            complete(fresh, temperature=0, max_tokens=40)
            assert fresh.speculative_stats.rounds == newest.rounds


def test_the_parents_cache(files: dict[str, Path], plain: Any) -> None:
    from llama_cpp import LlamaRAMCache

    llm = load(files, n_draft=3)
    llm.set_cache(LlamaRAMCache(50_000_000))
    for prompt in ("abcdefgh", "hello there", "abcdefgh", "abcdefgh again", "hello there"):
        assert complete(llm, prompt)["text"] == complete(plain, prompt)["text"]


def test_a_cache_on_disk_of_another_draft_memory(files: dict[str, Path], plain: Any, tmp_path: Path) -> None:
    """The draft's part of the states does not fit: the draft starts over, the target continues."""
    from llama_cpp import LlamaDiskCache

    for draft_n_ctx in (512, 64, 512):
        with load(files, n_draft=3, draft_n_ctx=draft_n_ctx) as llm:
            llm.set_cache(LlamaDiskCache(str(tmp_path)))
            for prompt in ("abcdefgh", "hello there", "abcdefgh again"):
                assert complete(llm, prompt)["text"] == complete(plain, prompt)["text"]
                assert llm.speculative_stats.rounds


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
        reused += len(text) - llm._memory.set_tokens(text)
        if rng.random() < 0.5:
            stream = llm.generate(text, temp=0.0)
            text = text + [next(stream) for _ in range(int(rng.integers(1, 12)))]
            stream.close()
            reused += len(text) - llm._memory.set_tokens(text)
        fresh.reset()
        fresh.eval(text)
        np.testing.assert_allclose(llm.scores[-1], fresh.scores[-1], atol=1e-3)
    assert reused > 500
