"""Arguments of a wrong type or value: each is refused by its name, with and without a draft."""

from __future__ import annotations

import copy
import json
import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixtures.llama_pairs import complete, load, write_pairs
from llama_eagle.errors import EagleError

pytestmark = pytest.mark.native

ASKED = [{"role": "user", "content": "abc"}]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_pairs(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module", params=[None, "draft"])
def llm(request: pytest.FixtureRequest, files: dict[str, Path]) -> Iterator[Any]:
    with load(files, draft=request.param, n_draft=3, n_ctx=256) as instance:
        yield instance


CHATS: list[dict[str, Any]] = [
    {"tools": 7}, {"tools": [None]}, {"tools": [{"type": "function"}]}, {"tools": [{"function": {"name": 1}}]},
    {"tools": [{"function": {"name": "a", "parameters": []}}]}, {"functions": ["a"]}, {"functions": [{"name": 5}]},
    {"functions": [{"parameters": {}}]}, {"functions": [{"name": "a", "parameters": []}]}, {"response_format": "json"},
    {"response_format": ["json_object"]}, {"tool_choice": "sometimes"}, {"tool_choice": True},
    {"tool_choice": {"type": "always"}}, {"tool_choice": {"type": "function", "function": {"name": "g"}}},
    {"function_call": {"function": 5}}, {"function_call": 3},
    {"messages": [{"role": "user", "content": "x\udfff"}]}, {"top_logprobs": "x"},
]  # fmt: skip
COMPLETIONS: list[dict[str, Any]] = [
    {"prompt": "x\ud834y"}, {"prompt": [97, 98.0]}, {"prompt": {97: 1}}, {"prompt": [272]}, {"prompt": [97, -3]},
    {"prompt": [2**70]}, {"prompt": 1.5}, {"suffix": "\udc00"}, {"stop": ["a", "\udc00"]}, {"stop": [b"a"]},
    {"max_tokens": "5"}, {"max_tokens": math.nan}, {"seed": "1"}, {"top_k": 2.5}, {"mirostat_mode": "1"},
    {"grammar": "root ::= [a]"}, {"logits_processor": [5]}, {"stopping_criteria": "x"}, {"stream": "yes"},
    {"logit_bias": {272: 1}}, {"logit_bias": {"-2": 1}}, {"logit_bias": {97: math.nan}}, {"logit_bias": {97.5: 1}},
    {"logit_bias": {"a": 1}}, {"logit_bias": {97: "b"}}, {"logit_bias": [97]},
    *({name: value} for name in ("temperature", "top_p", "min_p", "typical_p", "repeat_penalty", "frequency_penalty",
      "presence_penalty", "mirostat_tau", "mirostat_eta") for value in (math.nan, -math.inf, "1", None)),
]  # fmt: skip


def assert_names(call: Callable[[], Any], *parts: str) -> None:
    """An error of ours, in one line, with these parts."""
    with pytest.raises(EagleError) as caught:
        call()
    assert "\n" not in str(caught.value)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize("given", CHATS, ids=repr)
def test_chats(llm: Any, given: dict[str, Any]) -> None:
    for stream in (False, True):
        arguments = {"messages": ASKED, "max_tokens": 3, "stream": stream, **given}
        assert_names(lambda: list(llm.create_chat_completion(**arguments)), next(iter(given)))  # noqa: B023
    assert complete(llm)["text"]


@pytest.mark.parametrize("given", COMPLETIONS, ids=repr)
def test_completions(llm: Any, given: dict[str, Any]) -> None:
    ((name, value),) = given.items()
    is_id = name == "prompt" and isinstance(value, list) and all(isinstance(token, int) for token in value)
    arguments = {"prompt": "abc", "max_tokens": 3, **given}
    assert_names(lambda: llm.create_completion(**arguments), "vocabulary" if is_id else name)
    if name in ("top_k", "top_p", "min_p", "typical_p", "grammar", "mirostat_mode"):
        assert_names(lambda: next(llm.generate([97], **given)), name)
        assert_names(lambda: llm.sample(**given), name) if llm._sampler is None else None
    assert complete(llm)["text"]


@pytest.mark.parametrize("tokens", [[272], [97, -1], [-9], [2**40], ["a"], "abc", None, 5, [[97]], [97.0], {97: 1}])
def test_token_ids(llm: Any, tokens: Any) -> None:
    llm.reset()
    llm.eval([97, 98])
    for call in (llm.eval, llm.detokenize, lambda ids: next(llm.generate(ids))):
        assert_names(lambda: call(tokens), "token")  # noqa: B023
    assert_names(lambda: next(llm.generate(tokens, reset=False)), "token")
    assert llm.n_tokens == 2


@pytest.mark.parametrize("given", [5, None, b"a", [5], ["a", None], [["a"]], {"a": 1}], ids=repr)
def test_texts_to_embed(llm: Any, given: Any) -> None:
    for call in (llm.embed, llm.create_embedding):
        assert_names(lambda: call(given), "input")  # noqa: B023


def test_the_row_to_sample_from(llm: Any) -> None:
    llm.reset()
    llm.eval([97, 98])
    assert llm.sample(temp=0.0, idx=1) == llm.sample(temp=0.0)
    for idx in (0, 2, 3, -1):
        assert_names(lambda: llm.sample(idx=idx), f"idx={idx}: only the last token's row, 1,")  # noqa: B023


def test_what_the_parent_takes_is_taken(llm: Any) -> None:
    expected = complete(llm, temperature=0, max_tokens=40)["text"]
    odd: dict[str, Any] = {
        "temperature": np.float64(0), "top_k": np.int64(40), "stop": None, "logit_bias": {"97": -math.inf}, "seed": -1,
        "max_tokens": 40.0, "logits_processor": [lambda ids, scores: scores], "tfs_z": None,
    }  # fmt: skip
    for name, value in odd.items():
        given = {"temperature": 0, "max_tokens": 40, name: value}
        assert llm.create_completion("abc", **given)["choices"][0]["text"] == expected or name == "logit_bias"
    assert "a" not in llm.create_completion("abc", max_tokens=40, logit_bias={"97": -math.inf})["choices"][0]["text"]
    assert llm.detokenize(np.array([97, 98])) == b"ab"
    llm.eval(np.array([97], dtype=np.int32))
    assert llm.create_completion((97, 98), max_tokens=2)["choices"][0]["text"]


OPTIONS: list[dict[str, Any]] = [
    {"n_batch": "8"}, {"n_ctx": 64.5}, {"n_ctx": None}, {"n_ubatch": [8]}, {"lora_path": 5}, {"use_mmap": "no"},
    {"rope_freq_base": "1"}, {"tensor_split": "1"}, {"tensor_split": ["a"]}, {"n_gpu_layers": None}, {"numa": 1.5},
    {"kv_overrides": 5}, {"chat_format": 5}, {"chat_handler": "x"}, {"tokenizer": 3}, {"pooling_type": "1"},
    {"n_draft_max": "4"}, {"p_min": "0"}, {"p_min": math.nan}, {"exact": "yes"}, {"draft_n_ctx": 1.5}, {"drafter": 5},
    {"draft": 5}, {"mmproj_path": 5}, {"checkpoint_mib": "1"}, {"on_progress": 5}, {"rpc_servers": 5},
    {"lookup": "x"}, {"n_threads": [1]}, {"n_draft": 2.5}, {"draft_vocab": "x"}, {"lookup_cache": ""},
    *({name: value} for name in ("model_path", "draft", "mmproj_path", "lora_path", "lookup_cache")
      for value in ("a\0b", "\ud800", b"a")),
]  # fmt: skip


@pytest.mark.parametrize("given", OPTIONS, ids=repr)
def test_options(files: dict[str, Path], given: dict[str, Any]) -> None:
    from llama_eagle import EagleLlama

    assert_names(lambda: EagleLlama(**{"model_path": files["target"], **given}), next(iter(given)))


def changed(state: Any, **fields: Any) -> Any:
    other = copy.copy(state)
    vars(other).update(fields)
    return other


def test_saved_states(llm: Any, files: dict[str, Path]) -> None:
    from llama_cpp import LlamaState

    llm.reset()
    llm.eval([97, 98, 99])
    own = llm.save_state()
    of_parent = LlamaState(**{name: getattr(own, name) for name in (
        "input_ids", "scores", "n_tokens", "llama_state", "llama_state_size", "seed")})  # fmt: skip
    wrong = [None, b"", "x", {}, 5]
    for state in (own, of_parent):
        wrong += [changed(state, n_tokens=n) for n in ("x", -1, 5000, None)]
        wrong += [changed(state, input_ids=ids) for ids in (None, np.full(3, 999, np.intc), own.input_ids[:1], [97])]
        wrong += [changed(state, llama_state=data) for data in (None, b"x", os.urandom(len(own.llama_state)))]
        wrong += [changed(state, llama_state_size=size) for size in (-1, 10**9, None)]
    wrong += [changed(own, draft_state=5), changed(own, pictures=5), changed(own, draft_state=b"x")]
    for state in wrong:
        assert_names(lambda: llm.load_state(state))  # noqa: B023
    with load(files, draft=None, n_ctx=128, type_k=8, type_v=8, flash_attn=True) as other:
        assert_names(lambda: other.load_state(own), "does not fit this model")
    llm.load_state(of_parent)
    assert llm.n_tokens == 3


class Proposing:
    """A drafter that answers with one thing."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def begin(self, tokens: Sequence[int]) -> None:
        pass

    def draft(self, id_last: int, n_max: int) -> Any:
        return self.answer

    def accept(self, tokens: Sequence[int]) -> None:
        pass


@pytest.mark.parametrize("draft", [None, "draft"])
@pytest.mark.parametrize("n_draft", [3, "auto"])
def test_drafters_of_users(files: dict[str, Path], draft: str | None, n_draft: Any) -> None:
    with load(files, draft=None) as plain:
        expected = complete(plain)["text"]
    for answer in (None, 5, "ab", [[97]], ["a"], [1.5]):
        with load(files, draft=draft, n_draft=n_draft, drafter=Proposing(answer)) as llm:
            assert_names(lambda: complete(llm), "Proposing.draft()", "a list of token ids")
    for answer in ([], [97] * 100, [9999, 97], [-1], (98, 99), np.array([98, 99]), [2**40]):
        with load(files, draft=draft, n_draft=n_draft, drafter=Proposing(answer)) as llm:
            assert complete(llm)["text"] == expected


TOOLS = [
    {
        "type": "function",
        "function": {"name": "f", "parameters": {"properties": {"a": {"const": 1}}, "required": ["a"]}},
    }
]
WITHOUT_SPACES = {"9": -100.0, "10": -100.0, "32": -100.0}  # ids of bytes
TOOL_MESSAGES = [
    {"role": "user", "content": "abc"},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "1", "content": "5"},
]


def test_any_is_required(llm: Any) -> None:
    answers = [
        llm.create_chat_completion(
            ASKED, tools=TOOLS, tool_choice=choice, max_tokens=150, temperature=0, logit_bias=WITHOUT_SPACES
        )["choices"][0]
        for choice in ("required", "any")
    ]
    call = answers[0]["message"]["tool_calls"][0]["function"]
    assert (call["name"], json.loads(call["arguments"])) == ("f", {"a": 1})
    assert answers[1]["finish_reason"] == answers[0]["finish_reason"] == "tool_calls"
    assert_names(lambda: llm.create_chat_completion(ASKED, tool_choice="any"), "no tools")


@pytest.mark.parametrize("chat_format", ["chatml", "llama-2", "zephyr"])
def test_formats_without_tools_say_so(files: dict[str, Path], chat_format: str) -> None:
    with load(files, draft=None, chat_format=chat_format) as llm:
        with pytest.warns(UserWarning, match=f"{chat_format}.*does not support tools and tool calls and tool results"):
            llm.create_chat_completion(TOOL_MESSAGES, tools=TOOLS, max_tokens=2)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            llm.create_chat_completion(ASKED, max_tokens=2)


@pytest.mark.parametrize("chat_format", [None, "chatml", "chatml-function-calling"])
def test_a_named_function_with_a_schema_that_a_grammar_cannot_hold(
    files: dict[str, Path], chat_format: str | None
) -> None:
    """No schema of a tool refuses a request: what a grammar cannot express is left open, with a warning."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "string", "pattern": "(?=a)"}}}
    choice = {"type": "function", "function": {"name": "f"}}
    with load(files, draft=None, chat_format=chat_format) as llm:
        ask = lambda **given: llm.create_chat_completion(ASKED, tools=[tool], max_tokens=2, **given)  # noqa: E731
        with pytest.warns(UserWarning, match="the grammar does not enforce pattern"):
            (reply,) = ask(tool_choice=choice)["choices"]
        assert reply["message"]["tool_calls"][0]["function"]["name"] == "f"
        assert_names(lambda: ask(tool_choice={"type": "function", "function": {"name": "g"}}), "'g', which is not in")
