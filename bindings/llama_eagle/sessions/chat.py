"""JSON schemas, tool calls and answers, by the code of llama-server (native/include/eagle_chats.h)."""

from __future__ import annotations

import contextlib
import ctypes
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from ctypes import POINTER, c_bool, c_char_p, c_int32, c_size_t, c_void_p
from functools import cache
from typing import Any

from llama_eagle.errors import EnvironmentFailure, NativeError, UsageError
from llama_eagle.native.build import REBUILD, library_folder
from llama_eagle.native.calls import ERR_ARGUMENT, OK, library
from llama_eagle.native.closing import free_with
from llama_eagle.sessions.chats.anchors import function_with_places, tools_with_places, with_places

LIBRARY_NAMES = ("libllama-common.so", "libllama-common.dylib", "libllama-common.dll", "llama-common.dll")
NO_CALLS = "requires a call"
_HAS_REMEDY = re.compile(r": (?:use|write|leave|correct) ")
_UNCLEAR = re.compile(r"\[json\.exception\.[^\]]*\] |JSON schema conversion failed: JSON schema error at ")
FUNCTIONS: dict[str, tuple[list[Any], Any]] = {
    "eagle_schema_grammar": ([c_char_p, POINTER(c_char_p)], c_int32),
    "eagle_calls_grammar": ([c_char_p, POINTER(c_char_p)], c_int32),
    "eagle_reply_new": ([c_char_p, POINTER(c_void_p), POINTER(c_char_p)], c_int32),
    "eagle_reply_follow": ([c_void_p, c_char_p, POINTER(c_char_p)], c_int32),
    "eagle_reply_add": ([c_void_p, c_char_p, c_size_t, c_bool, POINTER(c_char_p)], c_int32),
    "eagle_reply_free": ([c_void_p], None),
}


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
        given = {
            "tools": tools_with_places(request.get("tools")),
            "json_schema": with_places(request.get("json_schema")),
        }
        data = _json({**request, **given})
        found = json.loads(_call("eagle_reply_new", data, ctypes.byref(self._handle)))
        free_with(self, self._handle, _library().eagle_reply_free)
        self.stops: list[str] = found["stops"]
        self.settings: dict[str, Any] = found["settings"]
        self.preserved_tokens: list[str] = self.settings["preserved_tokens"]
        self.generation_prompt: str = self.settings["generation_prompt"]
        self.unenforced: list[str] = found.get("unenforced", [])

    def follow(self, prompt_end: str) -> None:
        _call("eagle_reply_follow", self._handle, prompt_end.encode("utf-8", "replace"))

    def add(self, text: str, *, is_last: bool = False) -> dict[str, Any]:
        """Return what is new: texts `reasoning_content` and `content`, if any, a list `tool_calls`, and `is_loose`.

        text: complete characters. A call, {"name", "arguments"}, is new when the next one has begun or the answer ends.
        Arguments that are no JSON have been cut. is_loose: arguments do not have the types of their schemas, and may be
        texts. With `streams_calls` a list of pieces, {"index", "arguments"}, and `is_loose` is False; the first piece
        of a call has its "name", and its "id" if the model wrote one. Call it once with `is_last`, also without text.
        """
        data = text.encode("utf-8", "replace")
        return dict(json.loads(_call("eagle_reply_add", self._handle, data, len(data), is_last)))


def schema_grammar(schema: str) -> tuple[str, list[str]]:
    """Return the grammar of a JSON schema, and the keys that it does not enforce.

    Raises `UsageError` for a schema that cannot be converted.
    """
    if '"$anchor"' in schema:
        with contextlib.suppress(ValueError):  # the library names what is wrong
            schema = json.dumps(with_places(json.loads(schema)))
    return _grammar("eagle_schema_grammar", schema)


def calls_grammar(functions: Sequence[Mapping[str, Any]]) -> tuple[str, list[str]]:
    """Return the grammar of {"name": ..., "arguments": ...} for a call of one of `functions`, as `schema_grammar`.

    What a grammar cannot express of a schema is left open. Raises `UsageError` for such a schema of a strict function.
    """
    return _grammar("eagle_calls_grammar", json.dumps([function_with_places(each) for each in functions]))


def arguments_grammar(function: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Return the grammar of the arguments of a call of `function`, as `calls_grammar`."""
    return _grammar("eagle_calls_grammar", json.dumps(function_with_places(function)))


def _grammar(name: str, given: str) -> tuple[str, list[str]]:
    found = json.loads(_call(name, given.encode("utf-8", "replace")))
    return str(found["grammar"]), list(found["unenforced"])


def _json(value: Any) -> bytes:
    try:
        return json.dumps(value, default=_plain, ensure_ascii=False).encode("utf-8", "replace")
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(
            f"JSON cannot represent these messages ({error}). Send texts, numbers, lists and dicts."
        ) from None


def _plain(value: Any) -> Any:
    if hasattr(value, "model_dump"):  # of OpenAI's client
        return value.model_dump(exclude_none=True)
    return dict(value) if isinstance(value, Mapping) else list(value) if isinstance(value, Iterable) else str(value)


def _call(name: str, *arguments: Any) -> str:
    """Call a function and return its result. Raises the error of its status."""
    result = c_char_p()
    status = getattr(_library(), name)(*arguments, ctypes.byref(result))
    text = (result.value or b"").decode("utf-8", "replace")
    if status == OK:
        return text
    reason = "".join(filter(str.isprintable, " ".join(text.split())))[:500]
    if status == ERR_ARGUMENT:
        raise UsageError(_with_remedy(reason))
    raise NativeError(f"{name}: {reason}", code=status, call=name)


def _with_remedy(reason: str) -> str:
    """Return the library's reason in plain words, with a remedy unless it has one."""
    reason = _UNCLEAR.sub("", reason)
    if NO_CALLS in reason:
        return f"{reason}. Leave tool_choice out, or use a model whose template has calls."
    remedy = "the schema" if "schema" in reason else "the messages, the tools or the chat template"
    return reason if _HAS_REMEDY.search(reason) else f"{reason}. Change {remedy}."


@cache
def _library() -> ctypes.CDLL:
    library()  # libllama, on which it depends
    folder = library_folder()
    found = [folder / name for name in LIBRARY_NAMES if (folder / name).is_file()]
    if not found:
        raise EnvironmentFailure(f"{folder} has no {LIBRARY_NAMES[0]}. {REBUILD}")
    lib = ctypes.CDLL(str(found[0]))
    for name, (argtypes, restype) in FUNCTIONS.items():
        function = getattr(lib, name)
        function.argtypes, function.restype = argtypes, restype
    return lib
