"""Completions and chats of `EagleLlama`: the parent's, part by part on one thread, with timings and parsed replies."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

from llama_eagle.native.calls import library

library()  # before llama_cpp is imported: it must load our build

import llama_cpp  # noqa: E402
from llama_cpp import Llama  # noqa: E402
from llama_cpp.llama_chat_format import get_chat_completion_handler  # noqa: E402

from llama_eagle.drop_in import chat  # noqa: E402
from llama_eagle.drop_in.attributes import Attributes  # noqa: E402
from llama_eagle.drop_in.images import ImageReader  # noqa: E402
from llama_eagle.drop_in.measures import Measures  # noqa: E402
from llama_eagle.drop_in.replies import RequiredCall  # noqa: E402
from llama_eagle.generation.rounds import Rounds  # noqa: E402
from llama_eagle.native.closing import OneThread  # noqa: E402

CHAT = inspect.signature(Llama.create_chat_completion)


class Completions(Attributes):
    """Between `Attributes` and `EagleLlama`, whose `generate` it calls by way of the parent."""

    _one_thread: OneThread
    _measures: Measures
    _generation: Rounds | None = None
    _images: ImageReader | None = None
    _context_is_full = False
    _reads_cache = False  # a completion looks for its prompt in the cache
    _prompt: Sequence[int] = ()  # of the last completion

    def _create_completion(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        """As the parent's, with `timings` on the last part; what its reader spends is not counted as ours.

        Where the context is full before `max_tokens`, the parent would lose the text, but for a stopping criterion.
        """
        given = kwargs.get("stopping_criteria")
        criteria = given if isinstance(given, Sequence) else [given] if given is not None else []
        kwargs["stopping_criteria"] = llama_cpp.StoppingCriteriaList([*criteria, lambda *_: self._context_is_full])
        if kwargs.get("logprobs") is not None and self.draft_model is not None:
            self._keep_logits()  # as in the parent, but only once they are asked for
        self._prompt = [] if isinstance(kwargs["prompt"], str) else kwargs["prompt"]
        parts = super()._create_completion(*args, **kwargs)
        self._reads_cache = True  # until the first part
        with self._measures.completion():
            while True:
                with self._exclusive():  # from the seed to the token: nobody else's in between
                    try:
                        part = next(parts, None)
                    finally:
                        self._reads_cache = False
                if part is None:
                    return
                part = self._with_timings(part)
                if self._context_is_full and "timings" in part:
                    part["choices"][0]["finish_reason"] = "length"
                with self._measures.reader():
                    yield part

    def create_chat_completion(
        self, *args: Any, chat_template_kwargs: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> Any:
        """As the parent's, with `timings` in the answer or in its last part.

        Schemas are honoured, and reasoning and calls of tools are told apart from content (`parse_replies`).
        chat_template_kwargs: for the template, such as {"enable_thinking": False}.
        """
        call = CHAT.bind(self, *args, **kwargs)
        call.apply_defaults()
        request = chat.prepared(call.arguments)
        llama: Any = self
        if self._images is not None:
            llama, request["messages"] = self._images.read(self, request["messages"])
        name = str(self.chat_format)
        handler = self.chat_handler or self._chat_handlers.get(name) or get_chat_completion_handler(name)
        options = chat.template_options(request) if self.chat_handler is None else {}
        answer = handler(llama=llama, **request, **{**options, **(chat_template_kwargs or {})})
        if chat.is_required(call.arguments):
            answer = chat.split(answer, RequiredCall)
        elif self._options.parse_replies and not chat.is_constrained(request):
            template = self.metadata.get("tokenizer.chat_template", "")
            answer = chat.split(answer, lambda: chat.reader(template, request, self._prompt_end()))
        return self._with_timings(answer) if isinstance(answer, dict) else self._stream(answer)

    def _stream(self, parts: Iterator[Any]) -> Generator[Any, None, None]:
        """A generator, and so with a `close()`."""
        for part in parts:
            yield self._with_timings(part)

    def _prompt_end(self) -> str:
        tokens = list(self._prompt[-8:])
        return self.detokenize(tokens, special=True).decode("utf-8", "replace") if len(tokens) else ""

    def _with_timings(self, part: Any) -> Any:
        """An answer, or the last part of one, with its timings."""
        ended = any(choice.get("finish_reason") is not None for choice in part.get("choices", []))
        return {**part, "timings": self._measures.timings()} if ended else part

    @contextlib.contextmanager
    def _exclusive(self, rounds: Rounds | None = None) -> Iterator[None]:
        """One thread at a time, and no generation goes on after another one has begun."""
        with self._one_thread.entered():
            if rounds is not None and rounds is not self._generation:
                raise RuntimeError("another call has used this EagleLlama since this generation began. Begin it again.")
            yield
