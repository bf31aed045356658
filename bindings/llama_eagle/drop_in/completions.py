"""Completions and chats of `EagleLlama`, generated part by part on one thread, with timings and parsed replies."""

from __future__ import annotations

import contextlib
import functools
import inspect
import operator
import random
import warnings
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any

from llama_eagle.native.calls import library

library()  # before llama_cpp is imported: it must load our build

from llama_cpp import Llama  # noqa: E402
from llama_cpp.llama_chat_format import get_chat_completion_handler  # noqa: E402

from llama_eagle.arguments import require_text  # noqa: E402
from llama_eagle.drafting.drafter import OwnDrafter  # noqa: E402
from llama_eagle.drop_in import chat  # noqa: E402
from llama_eagle.drop_in.answers import types  # noqa: E402
from llama_eagle.drop_in.answers.completion import Completion, Ends, stop_texts  # noqa: E402
from llama_eagle.drop_in.answers.prompt import WithoutEnd  # noqa: E402
from llama_eagle.drop_in.answers.speculative import Speculative, read_speculative  # noqa: E402
from llama_eagle.drop_in.attributes import Attributes  # noqa: E402
from llama_eagle.drop_in.images import ImageReader  # noqa: E402
from llama_eagle.drop_in.measures import Measures  # noqa: E402
from llama_eagle.drop_in.replies import FormattedReply, NamedCall, RequiredCall  # noqa: E402
from llama_eagle.drop_in.templates import template_of  # noqa: E402
from llama_eagle.errors import UsageError  # noqa: E402
from llama_eagle.generation.rounds import Rounds  # noqa: E402
from llama_eagle.native.closing import OneThread  # noqa: E402
from llama_eagle.sessions.chats.literal_texts import LiteralTexts, control_tokens  # noqa: E402
from llama_eagle.sessions.chats.messages import as_texts, with_objects  # noqa: E402
from llama_eagle.sessions.text import read_ids  # noqa: E402

COMPLETION = inspect.signature(Llama._create_completion)
CALL = inspect.signature(Llama.__call__)
CHAT = inspect.signature(Llama.create_chat_completion)


class Completions(Attributes):
    """The layer between `Attributes` and `EagleLlama`, whose `generate` it calls through the parent."""

    _one_thread: OneThread
    _measures: Measures
    _generation: Rounds | None = None
    _images: ImageReader | None = None
    _context_is_full = False
    _prompt: Sequence[int] = ()  # prompt of the last completion
    _given_speculative = Speculative()  # limits of the next call
    _given_shown: frozenset[int] = frozenset()  # control tokens that are text in the next completion
    _speculative = Speculative()  # limits of the next generation

    def create_completion(self, *args: Any, speculative: Any = None, **kwargs: Any) -> Any:
        """Complete a prompt, as the parent does.

        speculative: limits on the drafts of this call, "none" or a dict of n_max, n_min and p_min. Raises `ConfigError`
        for limits out of range.
        """
        if speculative is not None:
            self._given_speculative = self._read_speculative(speculative)
        try:
            return super().create_completion(*args, **kwargs)
        finally:
            self._given_speculative = Speculative()  # also if the call was refused

    def __call__(self, *args: Any, speculative: Any = None, **kwargs: Any) -> Any:
        """Complete a prompt, as `create_completion` does."""
        call = CALL.bind(self, *args, **kwargs)
        call.apply_defaults()
        given = {name: value for name, value in call.arguments.items() if name != "self"}
        return self.create_completion(speculative=speculative, **given)

    def _read_speculative(self, given: Any) -> Speculative:
        self._require_memory()
        return read_speculative(given, self._n_draft_max or self._options.n_draft_max)

    def _take_limits(self, drafters: Iterable[OwnDrafter]) -> tuple[Speculative, float]:
        """Return the limits of the next generation, and the p_min that its drafters use."""
        limits, self._speculative = self._speculative, Speculative()
        p_min = self._options.p_min if limits.p_min is None else limits.p_min
        for drafter in drafters:
            drafter.p_min = p_min
        return limits, p_min

    def _create_completion(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        limits, self._given_speculative = self._given_speculative, Speculative()
        shown, self._given_shown = self._given_shown, frozenset()
        call = COMPLETION.bind(self, *args, **kwargs)
        call.apply_defaults()
        types.COMPLETION.check(call.arguments)  # at once, also for a stream
        given = {**call.arguments, "prompt": _read_prompt(call.arguments["prompt"])}
        return self._complete(given, limits, shown)

    def _complete(self, given: Mapping[str, Any], limits: Speculative, shown: frozenset[int]) -> Iterator[Any]:
        """Yield the parts of a completion, with `timings` in the last.

        Time spent by the reader of a stream is excluded.
        """
        if given["logprobs"] is not None and self.draft_model is not None:
            self._keep_logits()  # as in the parent, but only when they are requested
        self._prompt = [] if isinstance(given["prompt"], str) else given["prompt"]
        completion = Completion(self, given, limits, shown)
        parts = completion.parts() if given["stream"] else (completion.whole() for _ in range(1))
        with self._measures.completion():
            while True:
                with self._exclusive():  # no other call between the seed and the token
                    part = next(parts, None)
                if part is None:
                    return
                part = self._with_timings(part)
                with self._measures.reader():
                    yield part

    def _begin_random(self, seed: int | None) -> None:
        """Set the seed of a completion: the caller's, or the next one of this instance, as in the parent."""
        own = random.Random(operator.index(self._seed))  # numpy's numbers are no seeds for it
        self.set_seed(own.randint(0, 2**32) if seed is None else seed)

    def set_seed(self, seed: int) -> None:
        """Set the seed of the following completions. Raises `UsageError` unless it is a whole number."""
        try:
            super().set_seed(operator.index(seed))
        except TypeError:
            raise UsageError(f"seed={seed!r:.60} must be a whole number. Correct it.") from None

    def create_chat_completion(
        self,
        *args: Any,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        speculative: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Answer a chat, as the parent does, with `timings` in the answer or in its last part.

        Response schemas are supported. Reasoning and tool calls are separated from content (`parse_replies`).
        chat_template_kwargs: variables of the template, such as {"enable_thinking": False}. speculative: as in
        `create_completion`.
        """
        call = CHAT.bind(self, *args, **kwargs)
        call.apply_defaults()
        types.CHAT.check(call.arguments)
        name = str(self.chat_format)
        is_own = self.chat_handler is None and name in chat.CALL_FORMATS
        given = chat.with_choice(call.arguments)
        called = chat.named_function(given)
        request = chat.prepared(given, called, is_own=is_own)
        ends = Ends(self)
        llama = self._for_handler(ends, request, name)
        if self.chat_handler is None and name not in (*self._chat_handlers, *chat.CALL_FORMATS):
            chat.warn_dropped(request, name)
        elif self.chat_handler is None:
            chat.warn_unseen(request, template_of(self, self.metadata, name).text)
        handler = self.chat_handler or self._chat_handlers.get(name) or get_chat_completion_handler(name)
        options = chat.template_options(request) if self.chat_handler is None else {}
        options |= chat_template_kwargs or {}
        reply = None if chat.is_constrained(request) else self._reply_to(request, options)
        self._given_speculative = self._read_speculative(speculative)  # the handler calls `create_completion`
        if reply is not None:
            self._given_shown = self._ids_of(reply.preserved_tokens)
            request["stop"] = [*stop_texts(request["stop"]), *reply.stops]
        try:
            answer: Any = handler(llama=llama, **request, **options)
        finally:
            self._given_speculative, self._given_shown = Speculative(), frozenset()
        if answer is None:  # of a `chat_handler`
            return None
        if chat.is_required(given):
            answer = chat.split(answer, RequiredCall)
        elif called is not None and not is_own:
            answer = chat.split(answer, lambda: NamedCall(called["name"]))
        elif is_own:
            own = chat.own_calls if isinstance(answer, dict) else chat.named_once
            answer = own(answer, lambda: "length" if "length" in ends.reasons else "stop")
        elif reply is not None:
            tools = {each["name"]: each.get("parameters") for each in chat.free_functions(request)}
            answer = chat.split(answer, lambda: FormattedReply(reply, tools, self._prompt_end()))
        form = chat.without_alternatives if chat.has_no_alternatives(call.arguments) else dict
        return self._with_timings(form(answer)) if isinstance(answer, dict) else self._stream(map(form, answer))

    def _for_handler(self, ends: Ends, request: chat.Request, name: str) -> Any:
        """Return the instance that the handler gets, and give the request the messages that it reads."""
        llama: Any = self if self.chat_handler is not None else ends
        if self.chat_handler is None and self._model.add_eos_token():
            llama = WithoutEnd(llama)
        literal = None if self._options.parse_special else LiteralTexts(llama, self._control_tokens)
        if literal is not None:
            if self.chat_handler is not None:
                raise UsageError("a chat_handler recognizes control tokens by itself. Leave out parse_special=False.")
            llama = literal
        if self._images is not None:
            template = template_of(self, self.metadata, name).text
            llama, request["messages"] = self._images.read(llama, request["messages"], template)
        request["messages"] = self._readable(request["messages"])
        if literal is not None:
            request["messages"] = literal.hidden(request["messages"])
        return llama

    def _reply_to(self, request: chat.Request, options: Mapping[str, Any]) -> chat.Reply | None:
        """Return the parser of the reply to a request; None if the content is the whole reply."""
        template = template_of(self, self.metadata, str(self.chat_format))
        if not template.text or not self._options.parse_replies:
            return None
        try:
            return chat.reply_to(template, request, options)
        except UsageError as error:  # the handler names what is wrong with the messages or the template
            warnings.warn(f"replies are not parsed: {error}", stacklevel=3)
            return None

    def _ids_of(self, texts: Iterable[str]) -> frozenset[int]:
        """Return the tokens with these texts, of those that are one token."""
        found = [self.tokenize(text.encode(), add_bos=False, special=True) for text in texts]
        return frozenset(tokens[0] for tokens in found if len(tokens) == 1)

    @functools.cached_property
    def _control_tokens(self) -> tuple[str, ...]:
        return control_tokens(self._model.vocab)

    def _readable(self, messages: Iterable[Any]) -> Iterable[Any]:
        """Return the messages for the handler. For a model's own template, `render_chat` normalizes them later."""
        if self.chat_handler is not None:  # the parent's multimodal handlers read parts themselves
            return with_objects(messages)
        if str(self.chat_format) in self._chat_handlers:
            return messages
        found = as_texts(messages)
        for message in found:
            require_text("messages", message["content"])
        return found

    def _stream(self, parts: Iterator[Any]) -> Generator[Any, None, None]:
        """Yield the parts as a generator, which has a `close()`."""
        for part in parts:
            yield self._with_timings(part)

    def _prompt_end(self) -> str:
        tokens = list(self._prompt[-16:])
        return self.detokenize(tokens, special=True).decode("utf-8", "replace") if len(tokens) else ""

    def _with_timings(self, part: Any) -> Any:
        """Add timings to an answer, or to the last part of one."""
        ended = any(choice.get("finish_reason") is not None for choice in part.get("choices", []))
        return {**part, "timings": self._measures.timings()} if ended else part

    @contextlib.contextmanager
    def _exclusive(self, rounds: Rounds | None = None) -> Iterator[None]:
        """Allow one thread at a time, and refuse to continue a generation after another one has begun."""
        with self._one_thread.entered():
            if rounds is not None and rounds is not self._generation:
                raise RuntimeError("another call has used this EagleLlama since this generation began. Start it again.")
            yield


def _read_prompt(prompt: Any) -> str | list[int]:
    """Return a prompt as text or ids. Raises `UsageError` for other types."""
    return require_text("prompt", prompt) if isinstance(prompt, str) else read_ids(prompt, "prompt")
