"""Requests of completions: what their bodies may hold, and the raw request that answers them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llama_eagle.serving.api_errors import require
from llama_eagle.serving.llama_server.served import Served
from llama_eagle.serving.requests.json_body import without_nulls
from llama_eagle.serving.requests.lists import with_lists
from llama_eagle.serving.requests.parameters import (
    TOKEN,
    read_n,
    read_stops,
    require_constraints,
    require_tokens,
    require_types,
)

Body = dict[str, Any]

MAX_PROMPT_ALTERNATIVES = 100  # per token of a prompt, whose probabilities are kept together
# Keys of OpenAI's completions that the raw endpoint does not have, or that mean something else there.
NOT_RAW = ("best_of", "echo", "logprobs", "response_fields", "response_format", "stream_options", "suffix")


@dataclass(frozen=True)
class CompletionRequest:
    """A request of OpenAI's completions, checked.

    raw: the body of the raw request. prompts: as the request has them. n: answers to each. n_top: alternatives per
    token in `logprobs`; None for all that the answer has. suffix: text behind the answer, "" for none. has_usage: a
    stream ends with the usage of all answers. is_verbose: the raw answer is a part of the answer.
    """

    raw: Body
    prompts: tuple[Any, ...]
    n: int
    n_top: int | None
    has_echo: bool
    suffix: str
    has_stream: bool
    has_usage: bool
    is_verbose: bool = False


def read_completion(given: Body, model: Served) -> CompletionRequest:
    """Check a body of OpenAI's completions. Raises `Refusal`."""
    body = check_raw(given, model)
    n = read_n(body, model.n_slots)
    suffix = body.get("suffix", "")
    require(isinstance(suffix, str), "'suffix' is no text")
    has_objects = any(isinstance(each, dict) for each in prompts_of(body["prompt"]))
    require(not (suffix and has_objects), "with 'suffix', a prompt is a text or a list of token ids and texts")
    wanted = body.get("logprobs")
    is_number = isinstance(wanted, int) and wanted >= 0
    require(wanted is None or is_number, "'logprobs' is a number of alternatives, at least 0")
    has_echo = body.get("echo", False)
    has_logprobs = wanted is not None and wanted is not False
    n_top = None if wanted is None else 0 if isinstance(wanted, bool) else wanted
    raw = {key: value for key, value in body.items() if key not in NOT_RAW}
    if has_logprobs:
        raw["n_probs"] = max(1, n_top or 0)
    if has_echo and has_logprobs:
        _check_prompt_probs(body, n_top or 0)
        raw["n_prompt_probs"] = n_top or 0
    has_stream = body.get("stream", False)
    has_usage = has_stream and body.get("stream_options", {}).get("include_usage") is True
    prompts = tuple(prompts_of(body["prompt"]))
    is_verbose = bool(body.get("verbose"))
    return CompletionRequest(raw, prompts, n, n_top, has_echo, suffix, has_stream, has_usage, is_verbose)


def check_raw(given: Body, model: Served) -> Body:
    """Check what the child does not, and return the keys with a value. Raises `Refusal`."""
    body = with_lists(without_nulls(given), model.n_vocab, model.n_adapters)
    require("prompt" in body, "'prompt' is required")
    prompts = prompts_of(body["prompt"])
    require_tokens(prompts, model.n_vocab)
    has_media = any(isinstance(each, dict) and "multimodal_data" in each for each in prompts)
    reads_media = model.has_images or model.has_sound or model.has_video
    require(reads_media or not has_media, "this server reads no media: start it with --mmproj and an encoder that does")
    require_types(body)
    is_one = body.get("best_of", 1) in (1, body.get("n", 1))
    require(is_one, "this server does not choose the best of several answers: leave out 'best_of'")
    require_constraints(body)
    triggers = body.get("grammar_triggers")
    for trigger in triggers if isinstance(triggers, list) else ():
        require_tokens(trigger.get("token") if trigger["type"] == TOKEN else None, model.n_vocab)
    kind = body.get("response_format", {}).get("type")
    require(kind in (None, "text"), "'response_format' is for chats: use 'json_schema' or 'grammar'")
    has_one = body.get("n_cmpl", body.get("n", 1)) == 1
    is_answered = has_one or not any(_is_empty(each, model.adds_bos) for each in prompts)
    require(is_answered, "a prompt without tokens has one answer: leave out 'n', or send it several times")
    if not body.get("grammar"):
        body.pop("grammar", None)  # of an empty one and a schema, the child would read the first
    return body | {"stop": read_stops(body)} if "stop" in body else body


def check_own(given: Body, model: Served) -> Body:
    """Check a body of llama.cpp's own completions, and return what the child gets. Raises `Refusal`."""
    body = check_raw(given, model)
    require(body.get("suffix", "") == "", "this API does not complete before a 'suffix': use /infill")
    require(not body.get("echo"), "this API does not echo prompts: leave out 'echo', or use /v1/completions")
    return body


def prompts_of(prompt: Any) -> list[Any]:
    """Return the prompts of a request: each a text, token ids, a list of both, or an object with media."""
    is_one = not isinstance(prompt, list) or not prompt or any(isinstance(part, int | float) for part in prompt)
    return [prompt] if is_one else prompt


def _is_empty(prompt: Any, adds_bos: bool) -> bool:
    """Return True for a prompt without tokens, of whose answers llama-server sends only the first."""
    given = prompt.get("prompt_string") if isinstance(prompt, dict) else prompt
    parts = given if isinstance(given, list) else [given]
    return not parts or (not adds_bos and all(part == "" for part in parts))


def _check_prompt_probs(body: Body, n_top: int) -> None:
    limit = MAX_PROMPT_ALTERNATIVES
    require(n_top <= limit, f"with 'echo', 'logprobs' is at most {limit}")
    is_after = body.get("post_sampling_probs")
    require(not is_after, "'post_sampling_probs' is for answers: leave it out, or leave out 'echo'")
    has_media = any(isinstance(each, dict) and each.get("multimodal_data") for each in prompts_of(body["prompt"]))
    require(not has_media, "prompts with media have no 'logprobs': leave them out, or leave out 'echo'")
    require(not body.get("suffix"), "with 'suffix', 'echo' has no 'logprobs': leave one of them out")
