"""Types of the arguments of completions, chats and `generate`: the parent's, and others that its code accepts."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from llama_cpp import Llama

from llama_eagle.arguments import FINITE, Types, allowed, is_text


def _are_texts(value: Any) -> bool:
    return is_text(value) if isinstance(value, str) else isinstance(value, Collection) and all(map(is_text, value))


def _are_callable(value: Any) -> bool:
    return isinstance(value, Collection) and all(map(callable, value))


def _is_bias(value: Any) -> bool:
    return not any(math.isnan(float(bias)) or int(token) != float(token) for token, bias in value.items())


def _is_named(function: Any) -> bool:
    parameters = function.get("parameters")
    return isinstance(function["name"], str) and (parameters is None or isinstance(parameters, Mapping))


def _is_tool(tool: Any) -> bool:
    if not isinstance(tool, Mapping) or tool.get("type", "function") != "function":
        return isinstance(tool, Mapping)  # tools of other types have their own form
    return isinstance(tool.get("function"), Mapping) and _has(tool["function"], "name") and _is_named(tool["function"])


def _has(value: Any, key: str) -> bool:
    return isinstance(value, Mapping) and key in value


def _is_list_of(check: Any) -> Any:
    return lambda value: isinstance(value, list | tuple) and all(map(check, value))


def _names_function(value: Any) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("name") or value["function"]["name"], str)


TOOLS = allowed(
    "a list of {'type': 'function', 'function': {'name': ..., 'parameters': a JSON schema}}", _is_list_of(_is_tool)
)
FUNCTIONS = allowed(
    "a list of {'name': ..., 'parameters': a JSON schema}",
    _is_list_of(lambda function: _has(function, "name") and _is_named(function)),
)
FUNCTION_CALL = allowed(
    "none, auto, or a dict that names a function", lambda value: value in ("none", "auto") or _names_function(value)
)
FORMAT = allowed("a dict with a type", lambda value: isinstance(value, Mapping))
ANY_CALLS = {
    "logits_processor": allowed("a list of functions", _are_callable) | None,
    "grammar": allowed("a LlamaGrammar: see LlamaGrammar.from_string", lambda value: hasattr(value, "_grammar")) | None,
    "tfs_z": Any,  # no effect, as penalize_nl
    "penalize_nl": Any,
}
ANSWERS: dict[str, Any] = {
    **ANY_CALLS,
    "max_tokens": FINITE | None,
    "logit_bias": allowed("a dict of token ids and numbers (no nan)", _is_bias) | None,
    "stop": allowed("a text or a list of texts, without lone surrogates", _are_texts) | None,
    "stopping_criteria": allowed("a function or a list of them", lambda value: callable(value) or _are_callable(value))
    | None,
}
GENERATION = Types(Llama.generate, **ANY_CALLS, tokens=Any, stopping_criteria=ANSWERS["stopping_criteria"])
COMPLETION = Types(Llama._create_completion, **ANSWERS, prompt=Any)
CHAT = Types(
    Llama.create_chat_completion,
    **ANSWERS,
    messages=Any,
    tools=TOOLS | None,
    functions=FUNCTIONS | None,
    tool_choice=Any,  # read by `read_choice`
    function_call=FUNCTION_CALL | None,
    response_format=FORMAT | None,
)
