"""The prompts of the server's chat API are those of transformers: contents, arguments and reasoning of answers."""

from __future__ import annotations

import datetime
import itertools
from pathlib import Path
from typing import Any

import pytest
from fixtures.answers import ANSWERS, TOOL, by_transformers, chats, templates
from fixtures.templates import serve_template

pytestmark = [pytest.mark.native, pytest.mark.extended]

# tests/unit/test_messages.py compares every template: here, requests and settings reach the same code.
PATHS = [
    pytest.param(path, id=path.stem)
    for path in templates()
    if any(part in path.name for part in ("Qwen3.5-4B", "gpt-oss", "Mistral-Nemo"))
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
            # The server does not tell an empty text from none.
            others = "calls alone" if name == "calls and an empty text" else name
            for (messages, own), (_, more) in zip(chats(name, path), chats(others, path), strict=True):
                body = {"messages": messages, "tools": [TOOL], "chat_template_kwargs": {"enable_thinking": thinks}}
                status, answer = server.post("/apply-template", body)
                assert status == 200, (name, answer)
                found = answer["prompt"].lstrip("\v")  # this vocabulary's BOS
                assert found in [reference(template, forms, thinks=thinks) for forms in (own, more)], (name, thinks)
