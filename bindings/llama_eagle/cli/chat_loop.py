"""A chat: its messages, its commands and the display of its answers."""

from __future__ import annotations

import base64
import contextlib
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from llama_eagle import console
from llama_eagle.cli.answer import View
from llama_eagle.cli.commands.generate import MIN_COMPARED, comparison
from llama_eagle.cli.conversation import Conversation, text_of
from llama_eagle.cli.options import read_n_draft
from llama_eagle.errors import ContextFull, EagleError, InputError, NativeError, UsageError
from llama_eagle.files import expand_home
from llama_eagle.progress import Bar

HELP = """\
/retry              answer the last question again
/undo               remove the last question and its answer
/clear              remove the whole conversation
/system TEXT        replace the system message; without TEXT, remove it
/save FILE          save the conversation
/load FILE          continue a saved conversation
/think on|off|hide  think before answering, do not, or think without showing it
/context            show how full the context is
/compact [N]        keep only the last N questions and answers (default: 1)
/stats              show speed, rounds and acceptance rate of the last answer
/draft K|auto|off   set the draft length in tokens
/image FILE         attach an image to the next message; may be repeated
/help, /exit        show this list, leave the chat
Ctrl-C stops an answer or clears the line. Twice on an empty line, it leaves.
Pasted text is one message. Alt-Enter begins a new line. After \"\"\", Enter
begins a new line too, until the closing \"\"\"."""
FULL = "/undo removes the last question, /clear removes all."
T = TypeVar("T")
RESERVE = 4  # 1 / RESERVE of the context is reserved for the answer


def interruptible(work: Callable[[], T]) -> tuple[T | None, bool]:
    """Return the result of `work` and False, or None and True if Ctrl-C ends it.

    Later Ctrl-Cs have no effect until the next call, because one outside of the work would end the program.
    """
    try:
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            return work(), False
        finally:
            signal.signal(signal.SIGINT, _ignore)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, _ignore)
        return None, True


def _ignore(*_: Any) -> None:
    """Ignore a signal. With SIG_IGN, new processes would ignore it, too."""


@dataclass
class Chat:
    """A conversation with its settings and its display."""

    conversation: Conversation
    sampling: dict[str, Any]
    thinks: bool = True
    shows_thinking: bool = True
    plain: bool = False
    prompt_bar: Bar = field(default_factory=lambda: Bar("reading the prompt"))
    _timings: dict[str, Any] = field(default_factory=dict)
    _has_warned: bool = False
    _view: View | None = None  # of the last answer
    _exit_code: int = 0  # of the last line that failed

    def run(self, llm: Any) -> int:
        """Chat until the end of the input, and return the exit code.

        On a terminal, Ctrl-C ends an answer or a command, and the code is 0. Otherwise it raises KeyboardInterrupt, and
        the code is that of the last line that failed.
        """
        from llama_eagle.cli.lines import make_reader

        self._llm = llm
        read = make_reader(list(COMMANDS))
        console.note("/help lists the commands")
        if sys.stdin.isatty():
            self._run_on_terminal(read)
            return 0
        while (text := read()) is not None and not _is_exit(text):
            self._handle(text)
        return self._exit_code

    def _run_on_terminal(self, read: Callable[[], str | None]) -> None:
        is_leaving = False
        try:
            while True:
                text, was_interrupted = interruptible(read)
                if was_interrupted and is_leaving:
                    return
                is_leaving = was_interrupted
                if was_interrupted:
                    console.note("press Ctrl-C again or type /exit to leave")
                elif text is None or _is_exit(text):
                    return
                elif interruptible(partial(self._handle, text))[1]:
                    self._keep_answer()
                    self._note_end("interrupted")
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def once(self, llm: Any, question: str) -> None:
        """Answer one question. Raises `EagleError` if that fails, and `KeyboardInterrupt` at Ctrl-C."""
        self._llm = llm
        self.conversation.ask(question)
        try:
            reason = self._stream_answer()
        except ValueError as error:
            raise InputError(f"{error}. {llm.longer_text}") from None
        self._note_end(reason)

    def _handle(self, text: str) -> None:
        """Run a command or answer a question."""
        if text.startswith("/"):
            self._command(text)
        elif text.strip():
            self._ask(text)

    def _command(self, text: str) -> None:
        name, _, argument = text.partition(" ")
        try:
            command = COMMANDS.get(name)
            if command is None:
                raise UsageError(f"{name} is not a command. Type /help for the commands.")
            command(self, argument.strip())
        except (EagleError, ValueError) as error:
            self._show_error(error)

    def _ask(self, question: str) -> None:
        """Ask a question and show its answer. An error removes the question. Raises `KeyboardInterrupt` at Ctrl-C."""
        self._view = None
        self.conversation.ask(question)
        try:
            reason = self._stream_answer()
        except NativeError as error:
            self.conversation.undo()
            self._recover(error)
        except (EagleError, ValueError) as error:
            self.conversation.undo()
            self._show_error(error, f": {FULL} {self._llm.longer_text}" if isinstance(error, ContextFull) else "")
        else:
            self._note_end(reason)

    def _keep_answer(self) -> None:
        """Store the answer so far if Ctrl-C ended it, so that questions and answers alternate."""
        if self.conversation.is_unanswered:
            self.conversation.answer(self._view.content if self._view else "")

    def _stream_answer(self) -> str:
        """Stream the answer to the last question, and return the reason of its end.

        Drops the oldest questions and answers if the context is full.
        """
        n_dropped = 0
        while not self._has_room() and self.conversation.drop_oldest():
            n_dropped += 1
        while True:
            try:
                return self._stream_once(n_dropped)
            except ContextFull:
                if not self.conversation.drop_oldest():
                    raise
                n_dropped += 1

    def _stream_once(self, n_dropped: int) -> str:
        """Stream one answer, store it and return the reason of its end.

        Ctrl-C waits while the display changes, which would stay half written.
        """
        from llama_eagle.native.callbacks import held

        view = self._view = View(self.shows_thinking, self.plain)
        with contextlib.closing(view):
            try:
                reason = self._show_parts(view, n_dropped)
            except KeyboardInterrupt:
                with held():
                    view.end()
                raise
            with held():
                view.end()
        self.conversation.answer(view.content)
        return reason

    def _show_parts(self, view: View, n_dropped: int) -> str:
        from llama_eagle.native.callbacks import held

        self.prompt_bar.start(after_s=1.0)
        try:
            for part in self._stream():
                with held():
                    self.prompt_bar.stop()
                    self._note_dropped(n_dropped)
                    n_dropped = 0
                    view.show(part["choices"][0]["delta"], drafted=self._llm.last_token_was_drafted)
                    self._timings = part.get("timings", self._timings)
        finally:
            with held():
                self.prompt_bar.stop()
        return str(part["choices"][0]["finish_reason"])

    def _has_room(self) -> bool:
        """Return True if the conversation and an answer probably fit into the context."""
        n_ctx, n_max = self._llm.n_ctx(), self.sampling["max_tokens"]
        reserve = n_ctx // RESERVE if n_max is None else min(n_max, n_ctx // RESERVE)
        return self._n_tokens() + reserve <= n_ctx

    def _n_tokens(self) -> int:
        """Estimate the tokens of the conversation: its texts, plus a few template tokens per message."""
        texts = [text_of(message["content"]) for message in self.conversation.messages]
        return sum(len(self._llm.tokenize(text.encode(), add_bos=False)) + 6 for text in texts)

    def _note_dropped(self, n: int) -> None:
        if n:
            console.log(f"(the context is full: dropped the oldest {_exchanges(n)})")

    def _recover(self, error: EagleError) -> None:
        """Report a failed computation, and empty the memory for the next message."""
        self._show_error(error)
        self._llm.reset()

    def _show_error(self, error: Exception, hint: str = "") -> None:
        self._exit_code = error.exit_code if isinstance(error, EagleError) else InputError.exit_code
        console.error(" ".join(f"{error}{hint}".split()))

    def _stream(self) -> Any:
        options = {} if self.thinks else {"chat_template_kwargs": {"enable_thinking": False}}
        return self._llm.create_chat_completion(self.conversation.messages, stream=True, **self.sampling, **options)

    def _note_end(self, reason: str) -> None:
        from llama_eagle.generation.stats import unaccepted

        problem = unaccepted(self._llm.speculative_totals)
        if problem and not self._has_warned:
            console.warn(f"{problem}. /draft off disables drafting.")
            self._has_warned = True
        if reason == "interrupted":
            console.note("(interrupted)")
        elif reason == "length" and self._llm.n_tokens >= self._llm.n_ctx() - 1:
            console.note(f"(the context is full: {FULL} {self._llm.longer_text})")
        elif reason == "length":
            console.note("(cut at the limit of -n)")

    def _retry(self, _: str) -> None:
        self._ask(self.conversation.undo())

    def _undo(self, _: str) -> None:
        console.note(f"removed: {self.conversation.undo()}")

    def _context(self, _: str) -> None:
        n_tokens, n_ctx = self._n_tokens(), self._llm.n_ctx()
        console.data(
            f"{len(self.conversation.messages)} messages, about {n_tokens} of {n_ctx} tokens "
            f"({n_tokens / n_ctx:.0%}); the oldest are dropped when it is full, /compact drops them now"
        )

    def _compact(self, kept: str) -> None:
        if kept and not (kept.isdecimal() and int(kept) > 0):
            raise UsageError(f"/compact {kept}: give the number of questions to keep, 1 or more.")
        n_dropped = 0
        while self.conversation.n_questions > int(kept or 1) and self.conversation.drop_oldest():
            n_dropped += 1
        console.data(f"dropped the oldest {_exchanges(n_dropped)}" if n_dropped else "nothing to drop")

    def _system(self, text: str) -> None:
        self.conversation.system = text or None
        console.note("the system message is replaced" if text else "there is no system message now")

    def _clear(self, _: str) -> None:
        self.conversation.clear()
        console.note("the conversation is empty")

    def _save(self, name: str) -> None:
        path = _path(name)
        self.conversation.save(path)
        console.note(f"saved in {path}: {len(self.conversation.messages)} messages")

    def _load(self, name: str) -> None:
        self.conversation.load(_path(name))
        console.note(f"{len(self.conversation.turns)} messages")

    def _think(self, how: str) -> None:
        if how not in ("on", "off", "hide"):
            raise UsageError(f"/think {how}: choose on, off or hide.")
        self.thinks, self.shows_thinking = how != "off", how == "on"
        thinking = {"on": "on", "off": "off, if the chat template supports it", "hide": "on, without showing it"}
        console.note(f"thinking is {thinking[how]}")

    def _draft(self, length: str) -> None:
        n_draft = 0 if length == "off" else read_n_draft(length)
        self._llm.set_n_draft(n_draft)
        how = "chosen from measured rates and times" if n_draft == "auto" else f"{n_draft} tokens"
        console.note(f"draft length: {how}" if n_draft else "drafts are off")

    def _image(self, name: str) -> None:
        from llama_eagle.vision.pictures import read_file

        data = read_file(_path(name))
        n_tokens = len(self._llm.tokenize_images("", [data]))
        console.note(f"{name}: {n_tokens} tokens, sent with the next message")
        url = f"data:image/*;base64,{base64.b64encode(data).decode()}"
        self.conversation.images.append({"type": "image_url", "image_url": {"url": url}})

    def _stats(self, _: str) -> None:
        console.prose(str(self._llm.speculative_stats))
        if not self._timings:
            return
        prompt, answer = (self._timings[f"{name}_per_second"] for name in ("prompt", "predicted"))
        console.prose(f"prompt: {prompt:.0f} tokens/s; answer: {answer:.1f} tokens/s")
        enough = self._timings["predicted_n"] >= MIN_COMPARED and self._llm.speculative_stats.n_drafted
        if enough and (plain := self._llm.measure_plain()) is not None:
            console.prose(comparison(answer, plain, "/draft off"))


COMMANDS: dict[str, Callable[[Chat, str], None]] = {
    "/retry": Chat._retry,
    "/undo": Chat._undo,
    "/clear": Chat._clear,
    "/system": Chat._system,
    "/save": Chat._save,
    "/load": Chat._load,
    "/think": Chat._think,
    "/context": Chat._context,
    "/compact": Chat._compact,
    "/stats": Chat._stats,
    "/draft": Chat._draft,
    "/image": Chat._image,
    "/help": lambda chat, _: print(HELP),
}


def _exchanges(n: int) -> str:
    return "question and its answer" if n == 1 else f"{n} questions and their answers"


def _is_exit(text: str) -> bool:
    return text.split(maxsplit=1)[:1] in (["/exit"], ["/quit"])


def _path(name: str) -> Path:
    if not name:
        raise UsageError("the file is missing. Name one.")
    return expand_home(name)
