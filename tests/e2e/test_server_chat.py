"""Chats on `llama-eagle serve` with Qwen3.5's template and a draft: reasoning, schemas, log probabilities."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fixtures.serving import Served, serve
from fixtures.upstream import source_folder
from llama_eagle.demo.run import DRAFT, TARGET
from llama_eagle.synthetic.ggufs import convert_pair

pytestmark = pytest.mark.native

QUESTION = [{"role": "user", "content": "What is the weather?"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    target, draft = convert_pair(TARGET, DRAFT, tmp_path_factory.mktemp("demo"), "q8_0")
    template = source_folder() / "models/templates/Qwen3.5-4B.jinja"
    options = ["-c", 2048, "-t", 1, "--n-draft", 3, "--parallel", 2, "--", "--chat-template-file", template]
    with serve("-m", target, "-d", draft, *options) as running:
        yield running


@pytest.fixture(scope="module")
def api(server: Served) -> Any:
    import openai

    return openai.OpenAI(base_url=f"{server.address}/v1", api_key="none")


def ask(api: Any, **options: Any) -> Any:
    defaults: dict[str, Any] = {"model": "demo", "messages": QUESTION, "max_tokens": 200, "temperature": 0}
    return api.chat.completions.create(**{**defaults, **options})


def without_thinking() -> dict[str, Any]:
    return {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}


def test_thoughts_come_apart(api: Any) -> None:
    """The template opens a thought; this model never closes it."""
    thought = ask(api, max_tokens=12, extra_body={"ignore_eos": True}).choices[0].message
    assert not thought.content
    assert thought.reasoning_content
    assert ask(api, max_tokens=12, **without_thinking()).choices[0].message.content


def test_schema_logprobs_and_several_answers(api: Any) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    form = {"type": "json_schema", "json_schema": {"name": "ok", "schema": schema}}
    answer = ask(api, response_format=form, n=2, **without_thinking())
    texts = [choice.message.content for choice in answer.choices]
    assert len(texts) == 2
    assert all(set(json.loads(text)) == {"ok"} for text in texts)
    scored = ask(api, max_tokens=3, logprobs=True, top_logprobs=2, **without_thinking()).choices[0]
    assert [len(entry.top_logprobs) for entry in scored.logprobs.content] == [2, 2, 2]
    alone = ask(api, max_tokens=3, logprobs=True, top_logprobs=0, **without_thinking()).choices[0]
    # The sum of all probabilities is rounded in another order.
    expected = [entry.logprob for entry in scored.logprobs.content]
    assert [entry.top_logprobs for entry in alone.logprobs.content] == [[], [], []]
    assert [entry.logprob for entry in alone.logprobs.content] == pytest.approx(expected, abs=1e-5)
