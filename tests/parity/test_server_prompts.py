"""The prompts of llama-server's chat API are those of transformers: contents, arguments and reasoning of answers."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from fixtures.answers import ANSWERS, FAILING, TOOL, by_transformers, chats, templates
from fixtures.templates import serve_template

pytestmark = [pytest.mark.native, pytest.mark.extended]

PATHS = [path for path in templates() if not any(part in path.name for part in FAILING)]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_prompts_are_those_of_transformers(path: Path, tmp_path: Path) -> None:
    template = path.read_text()
    today = datetime.datetime.now(datetime.timezone.utc).strftime("%d %b %Y")
    with serve_template(tmp_path, path.stem) as server:
        for name in ANSWERS:
            if "Ministral-3" in path.name and "reasoning" in name:
                continue  # reasoning is a part of the content there
            for messages, forms in chats(name, path):
                found = (
                    by_transformers(template, form, date_string=today, eos_token="<|im_end|>", enable_thinking=True)
                    for form in forms
                )
                texts = [text for text in found if text is not None]
                expected = next((text for text in texts if "12345" in text), *texts[:1])
                status, answer = server.post("/apply-template", {"messages": messages, "tools": [TOOL]})
                assert status == 200, (name, answer)
                assert answer["prompt"].lstrip("\v") == expected, name  # this vocabulary's BOS
