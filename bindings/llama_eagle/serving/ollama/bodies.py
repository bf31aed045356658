"""Requests of ollama's API as requests of OpenAI's chats and of llama-server's raw API."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any

from llama_eagle.serving.api_errors import Refusal
from llama_eagle.serving.requests.json_body import read_json_body, without_nulls

Body = dict[str, Any]

# ollama's option -> llama-server's field. Options that set up a model (num_ctx, num_gpu, ...) belong to `serve` itself.
OPTIONS = {
    "frequency_penalty": "frequency_penalty", "min_p": "min_p", "mirostat": "mirostat", "mirostat_eta": "mirostat_eta",
    "mirostat_tau": "mirostat_tau", "presence_penalty": "presence_penalty", "repeat_last_n": "repeat_last_n",
    "repeat_penalty": "repeat_penalty", "seed": "seed", "stop": "stop", "temperature": "temperature", "top_k": "top_k",
    "top_p": "top_p", "typical_p": "typical_p",
}  # fmt: skip
AT_THE_TOP = ("temperature", "top_p", "stop", "logprobs", "top_logprobs", "tool_choice")  # as clients send them
FORMAT, SCHEMA = "response_format", "json_schema"
IMAGES = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpeg", b"GIF8": "gif", b"RIFF": "webp", b"BM": "bmp"}  # by first bytes
ROLES = ("system", "user", "assistant", "tool")


def read_body(data: bytes) -> Body:
    """Parse a body, whatever its content type. Fields of null are absent. Raises `Refusal`."""
    return without_nulls(read_json_body(data or b"{}"))


def model_name(body: Mapping[str, Any]) -> str:
    """Return the model's name; some clients call it `name`. Raises `Refusal`."""
    name = body.get("model") or body.get("name")
    if not isinstance(name, str):
        raise Refusal(400, "model is required: the name of a model, as GET /api/tags lists it")
    return name


def chat(body: Body) -> Body:
    """Return the request of a chat in OpenAI's form. Raises `Refusal`."""
    messages = _list_of_objects(body, "messages")
    calls: list[str] = []  # ids of the calls that have no result yet
    request = {"messages": [_message(message, calls) for message in messages], **settings(body)}
    if tools := _list_of_objects(body, "tools"):
        request["tools"] = tools
    return request


def generated_chat(body: Body) -> Body:
    """Return the request of a chat with one question, for /api/generate."""
    question = {"role": "user", "content": _text(body, "prompt"), "images": body.get("images", [])}
    system = [{"role": "system", "content": _text(body, "system")}] if body.get("system") else []
    return chat({**body, "messages": [*system, question], "tools": []})


def completion(body: Body) -> Body:
    """Return the raw request of /api/generate with `raw` or `suffix`, which have no chat. Raises `Refusal`."""
    found = settings({key: value for key, value in body.items() if key not in ("think", "format")})
    found["n_predict"] = found.pop("max_tokens", -1)
    n_alternatives = found.pop("top_logprobs", 0) or 1
    if found.pop("logprobs", False):
        found["n_probs"] = n_alternatives
    if body.get("format"):
        found["json_schema"] = {} if body["format"] == "json" else _format(body["format"])[FORMAT][SCHEMA]["schema"]
    prompt, suffix = _text(body, "prompt"), _text(body, "suffix")
    return {**found, "input_prefix": prompt, "input_suffix": suffix} if suffix else {**found, "prompt": prompt}


def settings(body: Body) -> Body:
    """Return the settings of an answer: options, format, thoughts and log-probabilities."""
    options = body.get("options", {})
    if not isinstance(options, dict):
        raise Refusal(400, "options is no object")
    found = {name: options[key] for key, name in OPTIONS.items() if options.get(key) is not None}
    found |= {key: body[key] for key in AT_THE_TOP if key in body}
    limit = options.get("num_predict", body.get("max_output_tokens"))
    if isinstance(limit, int | float) and limit >= 0:  # -1: until the model ends, -2: until the context is full
        found["max_tokens"] = int(limit)
    return found | _format(body.get("format", "")) | _thoughts(body.get("think"))


def _format(given: Any) -> Body:
    if given in ("", {}):
        return {}
    if given == "json":
        return {FORMAT: {"type": "json_object"}}
    if not isinstance(given, dict):
        raise Refusal(400, 'format is neither "json" nor a JSON schema')
    return {FORMAT: {"type": SCHEMA, SCHEMA: {"name": "format", "schema": given}}}


def _thoughts(think: Any) -> Body:
    """Return how much a model thinks. think: a truth value or an effort; None: as its template does by default."""
    if think is None:
        return {}
    effort = {"reasoning_effort": think} if isinstance(think, str) else {}
    return {"chat_template_kwargs": {"enable_thinking": bool(think)}, **effort}


def _message(message: Body, calls: list[str]) -> Body:
    """Return a message in OpenAI's form. calls: ids of earlier calls without a result, in order; changed in place."""
    role = message.get("role")
    if role not in ROLES:
        raise Refusal(400, f"role {role!r} of a message is none of {', '.join(ROLES)}")
    found: Body = {"role": role, "content": _content(message)}
    if message.get("thinking"):
        found["reasoning_content"] = message["thinking"]
    if given := _list_of_objects(message, "tool_calls"):
        found["tool_calls"] = [_call(call, calls) for call in given]
    if role == "tool":
        found |= _answered(message, calls)
    return found


def _content(message: Body) -> Any:
    text, images = _text(message, "content"), message.get("images") or []
    if not images:
        return text
    if not isinstance(images, list):
        raise Refusal(400, "images is no list")
    parts = [{"type": "image_url", "image_url": {"url": _data_url(image)}} for image in images]
    return [*parts, {"type": "text", "text": text}] if text else parts


def _data_url(image: Any) -> str:
    """Return the URL of an image in base64. Some clients put `data:...;base64,` in front."""
    if isinstance(image, str) and image.startswith("data:"):
        return image
    try:
        head = base64.b64decode(image[:16], validate=True)
    except (TypeError, binascii.Error):
        raise Refusal(400, "an image is not base64") from None
    kind = next((kind for start, kind in IMAGES.items() if head.startswith(start)), None)
    if kind is None:
        raise Refusal(400, f"an image is none of {', '.join(IMAGES.values())}")
    return f"data:image/{kind};base64,{image}"


def _call(call: Body, calls: list[str]) -> Body:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise Refusal(400, "a tool call has no function with a name")
    identity = str(call.get("id") or f"call_{len(calls)}_{function['name']}")
    calls.append(identity)
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    return {"id": identity, "type": "function", "function": {"name": function["name"], "arguments": text}}


def _answered(message: Body, calls: list[str]) -> Body:
    """Return the call that a result belongs to: the one with its id, else the first one without a result."""
    given = message.get("tool_call_id")
    identity = given if given in calls else calls[0] if calls else given or "call_0"
    if identity in calls:
        calls.remove(identity)
    name = message.get("tool_name") or message.get("name")
    return {"tool_call_id": identity} | ({"name": name} if name else {})


def _text(body: Body, key: str) -> str:
    text = body.get(key) or ""
    if not isinstance(text, str):
        raise Refusal(400, f"{key} is no text")
    return text


def _list_of_objects(body: Body, key: str) -> list[Body]:
    found = body.get(key) or []
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise Refusal(400, f"{key} is no list of objects")
    return found


def inputs(body: Body) -> list[str]:
    """Return the texts of an embedding. Raises `Refusal`."""
    given = body.get("input", body.get("prompt", []))
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise Refusal(400, "input is neither a text nor a list of texts")
    return texts
