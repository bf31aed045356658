"""The prompts of llama-server's chat API are those of transformers: contents, arguments and reasoning of answers."""

from __future__ import annotations

import datetime
import itertools
from pathlib import Path
from typing import Any

import pytest
from fixtures.answers import ANSWERS, FAILING, TOOL, by_transformers, chats, templates
from fixtures.templates import serve_template

pytestmark = [pytest.mark.native, pytest.mark.extended]

# Gemma 4: llama.cpp changes the results of calls for its templates. Functionary 3.1: jinja2 escapes what follows a text
# that is marked as safe.
OTHERS = (*FAILING, "gemma-4", "functionary-medium-v3.1")
# One of each kind of template: the others are slow tests.
FEW = (
    "Qwen3.5-4B", "Qwen3-Coder", "Qwen-Qwen3-0.6B", "gpt-oss", "LFM2.5-8B", "R1-Distill-Llama", "Llama-3.1-8B",
    "Apriel-1.5", "Mistral-Nemo", "Ministral-3", "Devstral", "GLM-4.6", "Kimi-K2.jinja", "functionary-medium-v3.2",
    "Solar-Open", "DeepSeek-V3.2", "Laguna-S-2.1",
)  # fmt: skip
PATHS = [
    pytest.param(path, id=path.stem, marks=() if any(part in path.name for part in FEW) else pytest.mark.slow)
    for path in templates()
    if not any(part in path.name for part in OTHERS)
]
AS_SENT = ("--chat-template-kwargs", '{"preserve_reasoning": false}')


def reference(template: str, forms: list[list[Any]], *, thinks: bool) -> str | None:
    """Return transformers' prompt of the first form that shows a call's arguments, or of the first that is rendered."""
    today = datetime.datetime.now(datetime.timezone.utc).strftime("%d %b %Y")
    variables = {"date_string": today, "eos_token": "<|im_end|>", "enable_thinking": thinks}
    found = (by_transformers(template, form, **variables) for form in forms)
    texts = [text for text in found if text is not None]
    return next((text for text in texts if "12345" in text), next(iter(texts), None))


@pytest.mark.parametrize("path", PATHS)
def test_prompts_are_those_of_transformers(path: Path, tmp_path: Path) -> None:
    """Requests without thinking come first: what the server keeps of a template does not depend on them."""
    template = path.read_text()
    with serve_template(tmp_path, path.stem, (), *AS_SENT) as server:
        for thinks, name in itertools.product((False, True), ANSWERS):
            if "Ministral-3" in path.name and "reasoning" in name:
                continue  # reasoning is a part of the content there
            # The server does not tell an empty text from none.
            others = "calls alone" if name == "calls and an empty text" else name
            for (messages, own), (_, more) in zip(chats(name, path), chats(others, path), strict=True):
                body = {"messages": messages, "tools": [TOOL], "chat_template_kwargs": {"enable_thinking": thinks}}
                status, answer = server.post("/apply-template", body)
                assert status == 200, (name, answer)
                found = answer["prompt"].lstrip("\v")  # this vocabulary's BOS
                assert found in [reference(template, forms, thinks=thinks) for forms in (own, more)], (name, thinks)
