"""OpenAI's completions and infill without a model: checks of bodies, shapes of answers, and prompts around a gap."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest
from llama_eagle.serving.api_errors import Refusal
from llama_eagle.serving.apis.completions import infill
from llama_eagle.serving.apis.completions.bodies import check_own, read_completion
from llama_eagle.serving.apis.completions.choices import Choices, Echo
from llama_eagle.serving.llama_server.chat_settings import ChatSettings
from llama_eagle.serving.llama_server.served import Served
from llama_eagle.serving.llama_server.slots import Step
from llama_eagle.sessions.infill import Gap, InfillTokens, infill_prompt
from openai.types import Completion

Body = dict[str, Any]
N_VOCAB = 300
MODEL = Served(
    "model", (), "", "", "", "", True, (0,), N_VOCAB, {}, 512, 4, False, False, False, "", "build", {}, ChatSettings()
)
MARKS = InfillTokens(prefix=1, suffix=2, middle=3, repository=4, file=5)


def entry(text: str | bytes, logprob: float | None = -0.5, *others: str, key: str = "logprob") -> Body:
    """Build an entry of the child's list of probabilities, whose alternatives begin with the token itself."""
    data = text.encode() if isinstance(text, str) else text
    found = {"id": 7, "token": data.decode("utf-8", "ignore"), "bytes": list(data), key: logprob}
    tops = [{name: found[name] for name in ("id", "token", "bytes", key)}, *(entry(other, -2.0) for other in others)]
    return {**found, "top_probs" if key == "prob" else "top_logprobs": tops if logprob is not None else []}


def step(
    text: str = "", *entries: Body, choice: int = 0, stop: str = "", n_tokens: int = 1, prompt: list[Body] | None = None
) -> Step:
    event = {} if prompt is None else {"prompt_probabilities": prompt}
    timings = {"cache_n": 2, "prompt_n": 3} if stop else None
    return Step(
        choice, text, [], list(entries) or None, 5, 2 if stop else None, n_tokens, None, timings, stop, "", event
    )


def choices(*echoes: Echo, **body: Any) -> Choices:
    asked = read_completion({"prompt": "abc", **body}, MODEL)
    return Choices(asked, "model", "build", echoes)


REFUSED: list[tuple[Body, str]] = [
    ({"prompt": None}, "'prompt' is required"),
    ({"prompt": [1, N_VOCAB]}, "the ids 0 to 299"),
    ({"prompt": ["a", [-1]]}, "-1 is no token id"),
    ({"prompt": {"prompt_string": ["a", 300]}}, "300 is no token id"),
    ({"best_of": 3, "n": 2}, "'best_of'"),
    ({"suffix": 5}, "'suffix'"),
    ({"n": 1.5}, "'n'"),
    ({"n_cmpl": "2"}, "'n_cmpl'"),
    ({"n": 5}, "'n' is 5"),
    ({"prompt": [], "n": 2}, "leave out 'n'"),
    ({"echo": 1.5}, "'echo'"),
    ({"stream_options": []}, "'stream_options'"),
    ({"stream_options": {"include_usage": "yes"}}, "include_usage"),
    ({"logprobs": -1}, "'logprobs'"),
    ({"logprobs": 101, "echo": True}, "at most 100"),
    ({"logprobs": 1, "echo": True, "post_sampling_probs": True}, "post_sampling_probs"),
    ({"logprobs": 1, "echo": True, "prompt": {"prompt_string": "a", "multimodal_data": ["x"]}}, "media"),
    ({"chat_parser": "x"}, "'chat_parser'"),
    ({"grammar_triggers": [{"type": 2, "value": "e+"}]}, "'grammar_triggers'"),
    ({"logprobs": 1, "echo": True, "suffix": "x"}, "'suffix'"),
    ({"grammar_triggers": [{"type": 0, "token": N_VOCAB}]}, "300 is no token id"),
    ({"grammar": "root ::= x", "json_schema": {}}, "exclude each other"),
    ({"stop": ["a", 5]}, "'stop'"),
    ({"response_format": {"type": "json_object"}}, "'response_format' is for chats"),
]


@pytest.mark.parametrize(("more", "part"), REFUSED, ids=str)
def test_refused_by_name(more: Body, part: str) -> None:
    with pytest.raises(Refusal, match=part) as caught:
        read_completion({"prompt": "abc", **more}, MODEL)
    assert caught.value.status == 400


def test_a_prompt_without_tokens_has_one_answer() -> None:
    """llama-server never sends the others, and waits."""
    for prompt in ("", ["abc", ""], {"prompt_string": ""}):
        read_completion({"prompt": prompt, "n": 2}, MODEL)
        read_completion({"prompt": prompt, "n": 1}, replace(MODEL, adds_bos=False))
        with pytest.raises(Refusal, match="'n'"):
            read_completion({"prompt": prompt, "n": 2}, replace(MODEL, adds_bos=False))


@pytest.mark.parametrize(("key", "value"), [("echo", True), ("suffix", "x"), ("best_of", 2)])
def test_own_api_has_no(key: str, value: Any) -> None:
    with pytest.raises(Refusal, match=key):
        check_own({"prompt": "abc", key: value}, MODEL)
    check_own({"prompt": "abc", key: None}, MODEL)


def test_the_raw_request() -> None:
    """It has the settings, without what only OpenAI's API has."""
    given = {"prompt": [[1, 2], "b"], "n": 2, "max_tokens": 3, "top_k": 1, "stop": "x", "logprobs": 0, "best_of": 2}
    asked = read_completion({**given, "response_fields": ["id"], "suffix": ""}, MODEL)
    assert asked.raw == {"prompt": [[1, 2], "b"], "n": 2, "max_tokens": 3, "top_k": 1, "stop": ["x"], "n_probs": 1}
    assert asked.prompts == ([1, 2], "b") and asked.n == 2 and asked.n_top == 0
    echoed = read_completion({**given, "echo": True, "logprobs": 4}, MODEL)
    assert echoed.raw["n_prompt_probs"] == echoed.raw["n_probs"] == 4
    for prompt in ([1, 2], ["a", 2], "a"):
        assert read_completion({"prompt": prompt}, MODEL).prompts == (prompt,)


def test_a_whole_answer() -> None:
    found = choices(prompt=["a", "b"], n=2).whole(
        [step("x", choice=i, stop=("limit", "eos", "word", "limit")[i], n_tokens=i) for i in range(4)]
    )
    Completion.model_validate(found)
    assert [choice["finish_reason"] for choice in found["choices"]] == ["length", "stop", "stop", "length"]
    usage = {key: found["usage"][key] for key in ("prompt_tokens", "completion_tokens", "total_tokens")}
    assert usage == {"prompt_tokens": 10, "completion_tokens": 6, "total_tokens": 16}
    assert found["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}
    assert found["timings"] == {"cache_n": 2, "prompt_n": 3} and found["id"].startswith("cmpl-")


@pytest.mark.parametrize("has_usage", [False, True])
def test_a_stream(has_usage: bool) -> None:
    """The usage is in each choice's last chunk, or in a chunk of its own."""
    answer = choices(stream=True, stream_options={"include_usage": has_usage})
    chunks = [answer.chunk(step("x")), answer.chunk(step("", stop="limit", n_tokens=2))]
    last = answer.last_chunk()
    for chunk in (*chunks, *([last] if last else [])):
        Completion.model_validate({**chunk, "choices": [{**c, "finish_reason": "stop"} for c in chunk["choices"]]})
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, "length"]
    assert ["usage" in chunk for chunk in chunks] == [False, not has_usage]
    usage = last["usage"] if last else chunks[-1]["usage"]
    assert usage["total_tokens"] == 7 and (last is None or last["choices"] == [])


def test_log_probabilities() -> None:
    """Each entry is its token: also a part of a character, and next to alternatives of one name."""
    entries = [entry("aé", -0.5, "b", "b"), entry(b"\xe2\x82", -1.0), entry(b"\xac", -3.0), entry("", -0.1)]
    whole = choices(logprobs=3).whole([step("aé€", *entries, stop="eos")])["choices"][0]["logprobs"]
    parts = choices(logprobs=3, stream=True)
    streamed = [parts.chunk(step("", each))["choices"][0]["logprobs"] for each in entries]
    assert whole["tokens"] == ["aé", r"bytes:\xe2\x82", r"bytes:\xac", ""]
    assert whole["text_offset"] == [0, 2, 3, 3] and whole["token_logprobs"] == [-0.5, -1.0, -3.0, -0.1]
    assert whole["top_logprobs"][0] == {"aé": -0.5, "b": -2.0}
    assert whole == {key: [each for part in streamed for each in part[key]] for key in whole}


def test_the_number_of_alternatives() -> None:
    for n in (0, 1, 2):
        given = step("a", entry("a", -0.5, "b", "c"))
        found = choices(logprobs=n).chunk(given)["choices"][0]["logprobs"]
        assert len(found["content"][0]["top_logprobs"]) == n
        assert len(found["top_logprobs"][0]) == max(1, n)
    after = choices(n_probs=1, post_sampling_probs=True).chunk(step("a", entry("a", 0.25, key="prob")))
    assert after["choices"][0]["logprobs"]["token_logprobs"] == [pytest.approx(math.log(0.25))]


def test_an_echo_begins_each_choice_once() -> None:
    answer = choices(Echo("aé"), Echo("b"), prompt=["aé", "b"], n=2, echo=True, logprobs=1, stream=True)
    texts = ["", "", "", ""]
    offsets: list[list[int]] = [[], [], [], []]
    for i in (0, 1, 2, 3, 0, 1, 2, 3):
        (choice,) = answer.chunk(step("x", entry("x"), choice=i))["choices"]
        texts[i] += choice["text"]
        offsets[i] += choice["logprobs"]["text_offset"]
    assert texts == ["aéxx", "aéxx", "bxx", "bxx"]
    assert offsets == [[2, 3], [2, 3], [1, 2], [1, 2]]


@pytest.mark.parametrize("n_hidden", [0, 1])
def test_probabilities_of_a_prompt(n_hidden: int) -> None:
    """The first token that is shown has none, and BOS is not shown."""
    prompt = [entry("<s>", None), entry("é", -1.0, "b"), entry("c", -2.0)]
    answer = choices(Echo("éc", n_hidden), echo=True, logprobs=2)
    found = answer.whole([step("x", entry("x"), stop="limit", prompt=prompt)])["choices"][0]
    assert found["text"] == "écx"
    assert found["logprobs"]["tokens"] == ["<s>", "é", "c", "x"][n_hidden:]
    assert found["logprobs"]["token_logprobs"] == [None, -1.0, -2.0, -0.5] if not n_hidden else [None, -2.0, -0.5]
    assert found["logprobs"]["text_offset"] == ([0, 1, 2] if n_hidden else [0, 3, 4, 5])
    alone = choices(Echo("éc", n_hidden), echo=True, logprobs=2, max_tokens=0)
    found = alone.whole([step("", stop="limit", n_tokens=0, prompt=prompt)])["choices"][0]
    assert found["text"] == "éc" and len(found["logprobs"]["tokens"]) == 3 - n_hidden


def test_a_gap() -> None:
    gap = Gap([10, 11], [20], [30], [[40, 41]], [4, 9], [5, 8])
    expected = [99, 4, 9, 40, 41, 5, 8, 1, 10, 11, 2, 20, 3, 30]
    assert infill_prompt(MARKS, gap, bos=[99]) == expected
    reverse = infill_prompt(MARKS, Gap([10, 11], [20], [30]), suffix_first=True)
    assert reverse == [2, 20, 1, 10, 11, 3, 30]
    assert InfillTokens.of({"pre": 1, "suf": 2, "mid": -1}) is None
    assert InfillTokens.of({"pre": 1, "suf": 2, "mid": 3}) == InfillTokens(1, 2, 3)


def test_a_gap_that_does_not_fit() -> None:
    """Files go as a whole, then the ends far from the gap; what begins the answer stays."""
    gap = Gap([10, 11, 12, 13], [20, 21], [30], [[40] * 9, [41] * 2, [42] * 6], [4], [5])
    whole = infill_prompt(MARKS, gap)
    for n_max in range(4, len(whole) + 1):
        found = infill_prompt(MARKS, gap, n_max=n_max)
        assert len(found) <= n_max and found[-2:] == [3, 30]
        assert (found.count(40), found.count(41), found.count(42)) in (
            (0, 0, 0),
            (0, 2, 0),
            (0, 2, 6),
            (9, 2, 6),
            (0, 0, 6),
        )
        assert n_max >= len(whole) - 19 or 20 not in found or 40 not in found
    assert infill_prompt(MARKS, gap, n_max=len(whole)) == whole
    assert infill_prompt(MARKS, gap, n_max=len(whole) - 1).count(40) == 0
    assert infill_prompt(MARKS, gap, n_max=8) == [1, 11, 12, 13, 2, 20, 3, 30]
    assert infill_prompt(MARKS, Gap([10], [*range(20, 40)]), n_max=8) == [1, 10, 2, 20, 21, 22, 23, 3]


def test_the_kept_parts_of_a_gap_are_next_to_it() -> None:
    rng = random.Random(1)
    for _ in range(300):
        before, behind = ([*range(start, start + rng.randrange(30))] for start in (100, 200))
        n_max = rng.randrange(3, 50)
        found = infill_prompt(MARKS, Gap(before, behind), n_max=n_max)
        middle = found.index(2)
        first, second = found[1:middle], found[middle + 1 : -1]
        assert first == before[len(before) - len(first) :] and second == behind[: len(second)]
        assert len(found) == min(n_max, 3 + len(before) + len(behind))


def test_room_for_the_answer() -> None:
    assert infill.n_max_of({"n_predict": 100}, 1000) == 900
    assert infill.n_max_of({"max_tokens": 0}, 1000) == 999
    assert infill.n_max_of({}, 1000) == infill.n_max_of({"n_predict": -1}, 1000) == 750
    assert infill.n_max_of({"n_predict": 10_000}, 1000) == 500


@pytest.mark.parametrize(
    ("more", "part"),
    [
        ({"input_prefix": None}, "input_prefix"), ({"input_suffix": 5}, "input_suffix"), ({"prompt": ["a"]}, "prompt"),
        ({"input_extra": "a"}, "input_extra"), ({"input_extra": [{"text": 5}]}, "input_extra"),
        ({"input_extra": [{"text": "", "filename": 5}]}, "input_extra"),
    ],
)  # fmt: skip
def test_infill_refuses_by_name(more: Body, part: str) -> None:
    with pytest.raises(Refusal, match=f"'{part}'"):
        infill.read_infill({"input_prefix": "a", "input_suffix": "b", **more})


def test_infill_without_values() -> None:
    given = {"input_prefix": "a", "input_suffix": "b", "prompt": None, "input_extra": None}
    assert infill.read_infill(given) == {"input_prefix": "a", "input_suffix": "b"}
