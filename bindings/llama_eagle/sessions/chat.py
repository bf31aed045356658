"""JSON schemas, tool calls and answers, by the code of llama-server (native/include/eagle_chats.h)."""

from __future__ import annotations

import contextlib
import ctypes
import json
from collections.abc import Iterable, Mapping
from ctypes import c_void_p
from typing import Any

from llama_eagle.errors import UsageError
from llama_eagle.native.closing import free_with
from llama_eagle.native.common import call, common_library
from llama_eagle.sessions.chats.fallbacks import plain_tool
from llama_eagle.sessions.schemas.document import Opening
from llama_eagle.sessions.schemas.grammars import opened_until_fit, plain, schema_of_format, tool_with_schema


class Reply:
    """Parser of an answer in a template's format, and the rules by which the answer is sampled.

    request: `template`, `bos`, `eos`, `messages` (an OpenAI list), `tools` and `chat_template_kwargs`. Optional keys:

    - `tool_choice`: "auto" (default), "none" or "required". `parallel_tool_calls`: default: if the template has them.
    - `json_schema`: of the answer's content (a value, not its text).
    - `reasoning_format`: as in llama-server's API (default "deepseek"). `enable_thinking`: default True.
    - `continue_final_message`: True, "content" or "reasoning_content": the answer goes on with the last message, an
      assistant's without calls. Its prompt is the template's for the messages before it, without a generation prompt,
      followed by `generation_prompt`. `echo`: what the message contains is also a part of the answer.
    - `force_pure_content`: the whole answer is content.
    - `prompt_end`: the last characters of the prompt, which choose between an answer with and without thoughts. The
      alternative is to call `follow` before the first `add`; then `settings` are those without `prompt_end`.
    - `streams_calls`: True: `add` returns calls piece by piece, and the answer is the one of llama-server.

    stops: texts that end the answer. preserved_tokens: texts of tokens that the answer must contain. generation_prompt:
    the end of the prompt, which belongs to the answer. unenforced: keys of schemas that its grammar leaves open.
    settings: keys for llama-server's `/completion`: `preserved_tokens`, `generation_prompt`, `message_delimiters`, if
    there is a grammar `grammar`, `grammar_type`, `grammar_lazy` and `grammar_triggers`, and if the format has thoughts
    `reasoning_budget_start_tag` and `reasoning_budget_end_tags`; `stops` are not among them. Raises `UsageError` for an
    invalid template, schema or message, and if the template cannot force the call that is required.
    """

    def __init__(self, **request: Any) -> None:
        self._handle = c_void_p()
        unenforced: set[str] = set()
        if request.get("json_schema") is not None:
            opening = Opening.NONE if request.get("streams_calls") else Opening.FAULTS
            request["json_schema"], notes = schema_of_format(request["json_schema"], opening)
            unenforced |= notes
        found = self._opened(request, unenforced) if request.get("tools") else self._made(request)
        free_with(self, self._handle, common_library().eagle_reply_free)
        self.stops: list[str] = found["stops"]
        self.settings: dict[str, Any] = found["settings"]
        self.preserved_tokens: list[str] = self.settings["preserved_tokens"]
        self.generation_prompt: str = self.settings["generation_prompt"]
        self.unenforced = sorted(unenforced) if "grammar" in self.settings else []

    def _opened(self, request: dict[str, Any], unenforced: set[str]) -> dict[str, Any]:
        """Make the parser with what a grammar can express of the tools' schemas."""
        tools = list(request["tools"])
        loose = [] if request.get("streams_calls") else _with_schemas(tools, Opening.VALUES, set())

        def made(opening: Opening) -> dict[str, Any]:
            given = {**request, "tools": _with_schemas(tools, opening, unenforced), "loose_tools": loose}
            try:
                return self._made(given)
            except UsageError:  # templates fail for some schemas
                plain_tools = [plain_tool(tool, has_all_keys=False) for tool in tools]
                with contextlib.suppress(UsageError):
                    return self._made({**given, "tools": _with_schemas(plain_tools, opening, set())})
                raise

        return opened_until_fit(made, lambda found: str(found["settings"].get("grammar", "")), unenforced)

    def _made(self, request: Mapping[str, Any]) -> dict[str, Any]:
        common_library().eagle_reply_free(self._handle)
        self._handle.value = None
        return dict(json.loads(call("eagle_reply_new", _json(request), ctypes.byref(self._handle))))

    def follow(self, prompt_end: str) -> None:
        call("eagle_reply_follow", self._handle, prompt_end.encode("utf-8", "replace"))

    def add(self, text: str, *, is_last: bool = False) -> dict[str, Any]:
        """Return what is new: texts `reasoning_content` and `content`, if any, a list `tool_calls`, and `is_loose`.

        text: complete characters. A call, {"name", "arguments"}, is new when the next one has begun or the answer ends.
        Arguments that are no JSON have been cut. is_loose: arguments do not have the types of their schemas, and may be
        texts. With `streams_calls` a list of pieces, {"index", "arguments"}, and `is_loose` is False; the first piece
        of a call has its "name", and its "id" if the model wrote one. If text follows calls, it is new in a dictionary
        of the same form, `rest`. Call it once with `is_last`, also without text.
        """
        data = text.encode("utf-8", "replace")
        return dict(json.loads(call("eagle_reply_add", self._handle, data, len(data), is_last)))


def _with_schemas(tools: Iterable[Any], opening: Opening, unenforced: set[str]) -> list[Any]:
    """Return tools with the schemas that parsers read. Adds what their grammars do not enforce to `unenforced`."""
    found = []
    for i, tool in enumerate(tools):
        read, notes = tool_with_schema(tool, opening, f"t{i}d")
        found.append(read)
        unenforced |= notes
    return found


def _json(value: Any) -> bytes:
    try:
        return json.dumps(value, default=plain, ensure_ascii=False).encode("utf-8", "replace")
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(
            f"JSON cannot represent these messages ({error}). Send texts, numbers, lists and dicts."
        ) from None
