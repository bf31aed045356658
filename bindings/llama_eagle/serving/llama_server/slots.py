"""Raw requests to the slots of the child, `/completion`, and what it sends about them, step by step."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from llama_eagle.serving.api_errors import Refusal, as_sent, child_refusal
from llama_eagle.serving.llama_server.child import Child
from llama_eagle.serving.llama_server.grammars import with_grammar
from llama_eagle.serving.llama_server.indentation import Indentation
from llama_eagle.serving.llama_server.raw_settings import for_child
from llama_eagle.serving.llama_server.streams import Answer

PATH = "/completion"
JSON_BODY = [(b"content-type", b"application/json")]
FIELDS = [  # of the last event of a choice that are read here; the others repeat the prompt and the settings
    "index", "content", "tokens", "stop", "tokens_predicted", "tokens_evaluated", "stop_type", "stopping_word",
    "truncated", "timings", "completion_probabilities", "id_slot",
]  # fmt: skip


class Prefixed(Protocol):
    @property
    def prefix(self) -> str: ...


class Front(Protocol):
    """The part of the front's application that requests to the child need."""

    @property
    def child(self) -> Child: ...
    @property
    def saved(self) -> Any: ...
    @property
    def settings(self) -> Prefixed: ...


class Step(NamedTuple):
    """The new part of a choice: a token or several, the progress of its prompt, or its end.

    choice: its number; with several prompts, the choices of the first come first. text: may be empty, because a stop
    text or a character may begin in it. tokens: ids, if the request has `return_tokens`. probabilities: one entry for
    each token, perhaps in a later step. n_prompt: tokens of the prompt, n_cached of them from earlier requests; None if
    the step does not report it. n_tokens: of the choice so far. progress: {"total", "cache", "processed", "time_ms"}.
    stop: "" before the end, then "eos", "word" or "limit". event: the child's object.
    """

    choice: int
    text: str
    tokens: list[int]
    probabilities: list[dict[str, Any]] | None
    n_prompt: int
    n_cached: int | None
    n_tokens: int
    progress: dict[str, Any] | None
    timings: dict[str, Any] | None
    stop: str
    stop_text: str
    event: dict[str, Any]

    @property
    def is_last(self) -> bool:
        """Return True for the last step of a choice."""
        return bool(self.stop)


class Events:
    """The child's objects about a request. The caller closes them; the child then stops if it has not finished."""

    def __init__(self, answer: Answer, body: Mapping[str, Any]) -> None:
        self._answer = answer
        self._is_stream = bool(body.get("stream"))
        self._indentation = Indentation.of(body)
        self._rest = b""
        self._has_ended = False

    async def read(self) -> list[dict[str, Any]] | None:
        """Return the objects that have arrived; None at the end. A list without objects is a sign of life.

        Raises `ConnectionError` if the child ends.
        """
        if self._has_ended:
            return None
        if not self._is_stream:
            self._has_ended = True
            found = json.loads(await self._answer.read())
            return self._cut(found if isinstance(found, list) else [found])
        events: list[bytes] = []
        while not events:
            part = await self._answer.part()
            if not part:
                self._has_ended = True
                return None
            *events, self._rest = (self._rest + part).split(b"\n\n")
        return self._cut(json.loads(event[6:]) for event in events if event.startswith(b"data: {"))

    def _cut(self, events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        cut = self._indentation.cut if self._indentation else None
        kept = (event if cut is None or "error" in event else cut(event) for event in events)
        return [event for event in kept if event is not None]

    def close(self) -> None:
        self._answer.close()

    async def aclose(self) -> None:
        self.close()


class Steps:
    """The steps of a request. The caller closes it; the child then stops if it has not finished."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._refusal: Refusal | None = None  # raised when the steps before it have been read

    async def read(self) -> list[Step] | None:
        """Return the steps that have arrived; None at the end. A list without steps is a sign of life.

        Raises `Refusal` for an error of the child, and `ConnectionError` if it ends.
        """
        if self._refusal:
            raise self._refusal
        events = await self._events.read()
        return None if events is None else self._steps(events)

    def _steps(self, events: Iterable[dict[str, Any]]) -> list[Step]:
        """Return the steps of events, up to an error. Raises `Refusal` for an error before the first step."""
        found: list[Step] = []
        try:
            for event in events:
                found.append(_step(event))
        except Refusal as refusal:
            self._refusal = refusal
            if not found:
                raise
        return found

    def close(self) -> None:
        self._events.close()

    async def aclose(self) -> None:
        self.close()


def _step(event: dict[str, Any]) -> Step:
    if "error" in event:
        raise as_sent(event["error"]["code"], event["error"])
    get = event.get
    timings, progress = get("timings"), get("prompt_progress")
    is_last = event["stop"]
    return Step(
        event["index"],
        event["content"],
        event["tokens"] if progress is None else [],
        get("completion_probabilities"),
        event["tokens_evaluated"],
        progress["cache"] if progress else timings["cache_n"] if timings else None,
        event["tokens_predicted"],
        progress,
        timings,
        event["stop_type"] if is_last else "",
        event["stopping_word"] if is_last else "",
        event,
    )


async def start(front: Front, body: Mapping[str, Any], path: str = PATH) -> Steps:
    """Begin a request of the child's raw API; with "stream", return when its prompt is being read.

    "prompt": a text, token ids, a list of both, {"prompt_string", "multimodal_data"}, or a list of several prompts.
    "n_cmpl": choices per prompt. Raises `Refusal` for an error before the first step.
    """
    return Steps(Events(await begin(front, {"response_fields": FIELDS, **body}, path), body))


async def begin(front: Front, body: Mapping[str, Any], path: str = PATH) -> Answer:
    """Return the child's answer to a request as it arrives; the beginning of its prompt may come from the disk."""
    if front.saved is not None:
        await front.saved.prepare(front, body)
    return await ask(front, "POST", path, json.dumps(for_child(await with_grammar(body))).encode())


async def ask(front: Front, method: str, path: str, data: bytes = b"") -> Answer:
    """Return the child's answer with the status 200, which the caller closes.

    Raises `Refusal`, `NotReady`, and `ConnectionError` if the child ends.
    """
    target = f"{front.settings.prefix}{path}".encode()
    answer = await front.child.request(method, target, JSON_BODY if data else (), data)
    if answer.status == 200:
        return answer
    try:
        raise child_refusal(answer.status, await answer.read())
    finally:
        answer.close()


async def ask_json(front: Front, method: str, path: str, body: Any = None) -> Any:
    """Return the child's answer, parsed. Raises `Refusal`."""
    answer = await ask(front, method, path, b"" if body is None else json.dumps(body).encode())
    try:
        return json.loads(await answer.read())
    finally:
        answer.close()
