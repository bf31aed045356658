"""A checkpoint's tokenizer and chat template, as the engine will use them.

tokenizer.json is read by the package `tokenizers`, because transformers rebuilds some tokenizers from their class and
then drops steps that the file has: it reads SmolLM2's "2025" as one token instead of four. Chats are rendered by the
code of the sessions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llama_eagle import console
from llama_eagle.convert.pre_tokenizers import load_encoder
from llama_eagle.convert.source import Checkpoint
from llama_eagle.convert.tokenizer import read_chat_templates, special_texts
from llama_eagle.errors import ConfigError
from llama_eagle.sessions.chats.messages import render_chat
from tokenizers import AddedToken


class CheckpointTokenizer:
    """The tokenizer of a folder.

    chat_template: None without one. control_ids: special tokens. Raises `ConfigError` if it cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        checkpoint = Checkpoint(folder, source=str(folder))
        self._settings = checkpoint.json_file("tokenizer_config.json") or {}
        self._tokenizer = _load(folder, self._settings)
        warnings: list[str] = []
        self.chat_template = read_chat_templates(checkpoint, self._settings, warnings).get("default")
        for warning in warnings:
            console.warn(f"{warning}.")
        configs = (checkpoint.config, checkpoint.config.get("text_config") or {})
        self._variables = {f"{name}_token": self._text(name, configs) for name in ("bos", "eos")}
        added = self._tokenizer.get_added_tokens_decoder()
        self.control_ids = sorted(token for token, entry in added.items() if entry.special)

    def encode(self, text: str, *, add_special: bool) -> list[int]:
        """Return the ids of a text. add_special: with the tokens that the tokenizer puts around a whole text."""
        return list(self._tokenizer.encode(text, add_special_tokens=add_special).ids)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode([int(token) for token in ids], skip_special_tokens=False))

    def render(self, messages: Sequence[Mapping[str, Any]], *, is_prompt: bool, **variables: Any) -> str:
        """Return the text of messages. is_prompt: up to the start of an answer. variables: of the template.

        Raises the errors of `render_chat`.
        """
        given = {"messages": list(messages), "add_generation_prompt": is_prompt, **variables}
        return render_chat(str(self.chat_template), {**self._variables, **given}, self.folder)

    def _text(self, name: str, configs: Sequence[Mapping[str, Any]]) -> str:
        """Return the text of a named token, by its text in tokenizer_config.json or its id in config.json."""
        if text := _content(self._settings.get(f"{name}_token")):
            return text
        ids = (config.get(f"{name}_token_id") for config in configs)
        firsts = (token[0] if isinstance(token, list) and token else token for token in ids)
        first = next((token for token in firsts if type(token) is int and token >= 0), None)  # -1 means none
        return (self._tokenizer.id_to_token(first) or "") if first is not None else ""


def _content(token: Any) -> str | None:
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _load(folder: Path, settings: dict[str, Any]) -> Any:
    """Read tokenizer.json, and add tokens that only tokenizer_config.json has or makes special."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ConfigError(
            f"{folder}: no tokenizer.json. Write one with transformers: "
            "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )
    try:
        tokenizer = load_encoder(path)
        more = settings.get("added_tokens_decoder") or {}
        added = {token["id"]: token for token in json.loads(path.read_text("utf-8")).get("added_tokens") or ()}
        for number, token in sorted({**added, **{int(number): more[number] for number in more}}.items()):
            if tokenizer.token_to_id(token["content"]) is None:
                flags = {name: value for name, value in token.items() if isinstance(value, bool)}
                tokenizer.add_tokens([AddedToken(token["content"], **flags)])
            if (found := tokenizer.token_to_id(token["content"])) != number:
                raise ConfigError(f"its token {token['content']!r} has id {number}, but would be read as {found}")
        named = [text for text in special_texts(settings) if tokenizer.token_to_id(text) is not None]
        tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in named])
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # invalid files raise many types, and a panic of the package is no Exception
        told = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"{path}: cannot be read: {told}. Download it again.") from None
    return tokenizer
