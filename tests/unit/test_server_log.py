"""Lines of llama-server's log: warnings lose what precedes the message, and lines about one request are dropped."""

from __future__ import annotations

import pytest
from llama_eagle.serving.process import complaint


@pytest.mark.parametrize(
    "text, message",
    [
        ("srv    load_model: failed to load the model", "failed to load the model"),
        ("spc         accept: none of 300 drafted tokens was accepted", "none of 300 drafted tokens was accepted"),
        ("slot update_slots: id  0 | task 12 | erased checkpoints", "erased checkpoints"),
        ("slot      release: id  3 | task -1 | no task", "no task"),
        ("llama_context: n_ctx_seq (512) < n_ctx_train (2048)", "n_ctx_seq (512) < n_ctx_train (2048)"),
        ("no origin at all", "no origin at all"),
        ('srv    operator(): got exception: {"error":{"code":400}}', ""),
        ("srv          stop: cancel task, id_task = 3", ""),
        ("srv    send_error: task id = 7, error: Prompt contains invalid tokens", ""),
        ("common_chat_peg_parse: unparsed peg-native output: {", ""),
        ("slot update_slots: id  0 | task 5 | n_past was set to 32", ""),
        ("slot update_slots: id  0 | task 5 | need to evaluate at least 1 token for each active slot (n_past = 3)", ""),
    ],
)
def test_messages(text: str, message: str) -> None:
    assert complaint("W", text) == complaint("E", text) == message
    assert complaint("I", text) == ""
