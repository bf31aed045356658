"""The tokens that are learned from conversations, for every chat template that llama.cpp has.

Judges: the words of marked messages, transformers' mask for templates with {% generation %}, and the prompts that a
session renders.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest
from fixtures.training import make_training_target
from fixtures.upstream import source_folder
from llama_eagle.errors import InputError
from llama_eagle.train.data.documents import Document, Message
from llama_eagle.train.data.samples import Sample, SampleMaker
from llama_eagle.train.targets.checkpoint import load_tokenizer
from llama_eagle.train.targets.tokenizer import CheckpointTokenizer
from transformers.utils.chat_template_utils import render_jinja_template

TEMPLATES = source_folder() / "models/templates"
TAGS = re.compile(r"<[^<>]+>|\[[^\[\]]+\]")
TOOLS: list[Message] = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "description": "TOOLS1X",
            "parameters": {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]},
        },
    }
]
SYSTEM: Message = {"role": "system", "content": "SYSTEM1X"}


def user(n: int) -> Message:
    return {"role": "user", "content": f"USER{n}X"}


def calls(*numbers: int) -> list[Message]:
    functions = {f"call0000{n}": {"name": "look", "arguments": {"q": f"CALL{n}X"}} for n in numbers}
    return [{"id": name, "type": "function", "function": function} for name, function in functions.items()]


def answer(n: int, *, reasons: bool = False, has_call: bool = False) -> Message:
    message: Message = {"role": "assistant", "content": None if has_call else f"ANSWER{n}X"}
    message |= {"reasoning_content": f"REASON{n}X"} if reasons else {}
    return message | ({"tool_calls": calls(n)} if has_call else {})


def result(n: int) -> Message:
    return {"role": "tool", "content": f"RESULT{n}X", "tool_call_id": f"call0000{n}", "name": "look"}


CHATS: dict[str, list[Message]] = {
    "plain": [user(1), answer(1), user(2), answer(2)],
    "system": [SYSTEM, user(1), answer(1), user(2), answer(2)],
    "reasoning": [SYSTEM, user(1), answer(1, reasons=True), user(2), answer(2, reasons=True)],
    "tools": [user(1), answer(1, has_call=True), result(1), answer(2), user(3), answer(3)],
    "all": [
        SYSTEM, user(1), answer(1, reasons=True, has_call=True), result(1), answer(2, reasons=True), user(3),
        answer(3, reasons=True),
    ],
    "inline": [user(1), {**answer(1), "content": "<think>\nREASON1X\n</think>\n\nANSWER1X"}, user(2), answer(2)],
    "twice": [user(1), {**answer(1, has_call=True), "tool_calls": calls(1, 2)}, result(1), result(2), answer(3)],
}  # fmt: skip
# Templates that cannot render some conversations, in this project or anywhere.
FAIL = {
    "fireworks-ai-llama-3-firefunction-v2": tuple(CHATS),
    **{f"meta-llama-Llama-{name}-Instruct": ("twice",) for name in ("3.1-8B", "3.2-3B", "3.3-70B")},
}
# Templates with prompts that do not show where an answer begins.
UNCLEAR = {
    "Apriel-1.6-15b-Thinker-fixed", "google-gemma-4-31B-it", "google-gemma-4-31B-it-interleaved",
    "llama-cpp-rwkv-world",
}  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> CheckpointTokenizer:
    return load_tokenizer(make_training_target("qwen3", tmp_path_factory.mktemp("target")))


def make(tokenizer: CheckpointTokenizer, messages: list[Message], has_tools: bool) -> list[Sample]:
    document = Document("chat", Path(), messages=tuple(messages), tools=tuple(TOOLS) if has_tools else ())
    return SampleMaker(tokenizer, 1 << 20).make([document])


def words(text: str, kinds: str) -> list[str]:
    return re.findall(rf"(?:{kinds})\dX", text)


def assert_marks(samples: list[tuple[str, list[tuple[int, int]]]], messages: list[Message]) -> None:
    """Each answer is learned once, whole, and nothing of the other messages is; what is before it is not lost."""
    learned = "".join(text[start:end] for text, spans in samples for start, end in spans)
    assert not words(learned, "SYSTEM|USER|RESULT|TOOLS")
    answers = [message for message in messages if message["role"] == "assistant"]
    expected = [word for message in answers for word in words(str(message), "ANSWER|CALL|REASON")]
    assert sorted(words(learned, "ANSWER|CALL|REASON")) == sorted(expected)
    for text, spans in samples:
        last = words(text[slice(*spans[-1])], "ANSWER|CALL")[-1]
        place = next(i for i, message in enumerate(messages) if last in str(message))
        asked = words(str([m for m in messages[:place] if m["role"] != "assistant"]), "SYSTEM|USER|RESULT")
        assert words(text[: spans[-1][0]], "SYSTEM|USER|RESULT") == asked or set(asked) <= set(words(text, r"[A-Z]+"))


def spans_of(tokenizer: CheckpointTokenizer, sample: Sample) -> tuple[str, list[tuple[int, int]]]:
    """Return a sample's text, and the learned parts of it."""
    text, spans = "", list[tuple[int, int]]()
    edges = [0, *(i for i in range(1, len(sample.mask)) if sample.mask[i] != sample.mask[i - 1]), len(sample.mask)]
    for start, end in itertools.pairwise(edges):
        part = tokenizer.decode(sample.tokens[start:end].tolist())
        if sample.mask[start]:
            spans.append((len(text), len(text) + len(part)))
        text += part
    return text, spans


@pytest.mark.parametrize("name", sorted(path.stem for path in TEMPLATES.glob("*.jinja")))
def test_answers_alone_are_learned_or_the_line_is_refused(name: str, tokenizer: CheckpointTokenizer) -> None:
    tokenizer.chat_template = (TEMPLATES / f"{name}.jinja").read_text()
    for kind, messages in CHATS.items():
        has_tools = kind in ("tools", "all", "twice")
        try:
            samples = make(tokenizer, messages, has_tools)
        except InputError as error:
            told = re.search("refuses it|does not show the (beginning|calls|reasoning) of message", str(error))
            assert told is not None, error
            assert ("refuses it" in told[0]) == (kind in FAIL.get(name, ())), (kind, error)
            assert told[1] != "beginning" or name in UNCLEAR, (kind, error)
            assert told[1] not in ("calls", "reasoning") or kind not in ("plain", "system"), (kind, error)
            continue
        assert_marks([spans_of(tokenizer, sample) for sample in samples], messages)
        for sample in samples:  # the last answer follows the prompt of a session, but for an opening of reasoning
            text, spans = spans_of(tokenizer, sample)
            place = next(
                i for i, m in enumerate(messages) if words(text[slice(*spans[-1])], "ANSWER|CALL")[-1] in str(m)
            )
            thinks = {"enable_thinking": True} if "REASON" in str(messages) else {}
            tools = TOOLS if has_tools else None
            prompt = tokenizer.render(messages[:place], tools=tools, is_prompt=True, **thinks)
            rest = prompt.removeprefix(text[: spans[-1][0]])
            assert prompt.startswith(text[: spans[-1][0]]) and not TAGS.sub("", rest).strip(), kind


GENERATION = [path.stem for path in sorted(TEMPLATES.glob("*.jinja")) if "{% generation %}" in path.read_text()
              or "{%- generation" in path.read_text()]  # fmt: skip


@pytest.mark.parametrize("name", GENERATION)
@pytest.mark.parametrize("kind", ["plain", "system"])
def test_the_mask_is_transformers(name: str, kind: str, tokenizer: CheckpointTokenizer) -> None:
    """But for white space: templates differ in whether they mark the line break after an answer."""
    tokenizer.chat_template = (TEMPLATES / f"{name}.jinja").read_text()
    variables: dict[str, Any] = {"bos_token": "", "eos_token": ""}
    (sample,) = make(tokenizer, CHATS[kind], has_tools=False)
    (theirs,), (expected,) = render_jinja_template(
        [CHATS[kind]], chat_template=tokenizer.chat_template, return_assistant_tokens_mask=True, **variables
    )
    text, spans = spans_of(tokenizer, sample)
    assert text == theirs
    for (start, end), (first, last) in zip(spans, expected, strict=True):
        assert text[start:end].strip() == text[max(start, first) : last].strip()
        assert not TAGS.sub("", text[first:start]).strip()  # theirs may begin with the tag of the role


def test_reasoning_that_the_history_drops(tokenizer: CheckpointTokenizer) -> None:
    """It is learned where the target writes it, as after a prompt that opens it."""
    for name, begin, end in (
        ("NVIDIA-Nemotron-Nano-v2", "<SPECIAL_11>Assistant\n<think>\n", "\n<SPECIAL_12>\n"),
        ("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "<｜Assistant｜><think>\n", "<｜end▁of▁sentence｜>"),
        ("Qwen-QwQ-32B", "<|im_start|>assistant\n<think>\n", "<|im_end|>\n"),
    ):
        tokenizer.chat_template = (TEMPLATES / f"{name}.jinja").read_text()
        first, second = make(tokenizer, CHATS["reasoning"], has_tools=False)
        text, spans = spans_of(tokenizer, second)
        opening = "" if "<think>" in begin else "<think>\n"
        assert text[slice(*spans[0])] == f"{opening}REASON2X\n</think>\n\nANSWER2X{end}"
        assert text[: spans[0][0]].endswith(begin) and "REASON1X" not in text
        assert "REASON1X" in spans_of(tokenizer, first)[0]
    tokenizer.chat_template = (TEMPLATES / "Qwen-Qwen2.5-7B-Instruct.jinja").read_text()  # of a model without reasoning
    with pytest.raises(InputError, match="does not show the reasoning of message 3"):
        make(tokenizer, CHATS["reasoning"], has_tools=False)


def test_a_template_that_always_begins_an_answer(tokenizer: CheckpointTokenizer) -> None:
    """Its text ends with the header of an answer that no one gives; the end of the turn is learned."""
    messages = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    tokenizer.chat_template = messages + "{{ '<|im_start|>assistant\\n' }}"
    found = [spans_of(tokenizer, sample) for sample in make(tokenizer, CHATS["plain"], has_tools=False)]
    learned = [text[slice(*span)] for text, spans in found for span in spans]
    assert learned == ["ANSWER1X<|im_end|>", "ANSWER2X<|im_end|>"]
    tokenizer.chat_template = messages  # without any header: the target writes it, and the end of its turn
    found = [spans_of(tokenizer, sample) for sample in make(tokenizer, CHATS["plain"], has_tools=False)]
    learned = [text[slice(*span)] for text, spans in found for span in spans]
    assert learned == [f"<|im_start|>assistant\nANSWER{n}X<|im_end|>\n" for n in (1, 2)]
