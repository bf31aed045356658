"""`llama-eagle chat`"""

from __future__ import annotations

import base64
import contextlib
import secrets
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from llama_eagle import console
from llama_eagle.cli.commands.generate import ENOUGH, compared
from llama_eagle.cli.conversation import Conversation
from llama_eagle.cli.groups import grouped
from llama_eagle.cli.options import (
    CHAT_CONTEXT,
    Computing,
    Drafting,
    Sampling,
    TargetFile,
    Verbose,
    Vision,
    in_flags,
    read_n_draft,
)
from llama_eagle.errors import EagleError, NativeError, UsageError
from llama_eagle.generation.options import RANDOM_SEED
from llama_eagle.progress import Bar

HELP = """\
/retry              answer the last question again
/undo               take the last question and its answer back
/clear              forget the conversation
/system TEXT        another system message; without TEXT, none
/save FILE          keep the conversation; /load FILE goes on with it
/think on|off|hide  think before the answer, or do not, or do not show it
/stats              speed, rounds and acceptance of the last answer
/draft K|auto|off   tokens drafted in a round
/image FILE         show an image with the next message; may be repeated
/help, /exit
Ctrl-C stops an answer or clears the line; on an empty line, twice, it leaves.
A pasted text is one message. Alt-Enter begins a new line, and so does Enter
after \"\"\", until \"\"\"."""
FULL = "/undo takes the last question back, /clear begins anew, a larger --ctx-size holds more"


@grouped
def chat(
    model: TargetFile,
    vision: Vision,
    drafting: Drafting,
    sampling: Sampling,
    computing: Computing,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    no_think: Annotated[bool, typer.Option("--no-think", help="Answer without thinking, if the template can.")] = False,
    n_predict: Annotated[int, typer.Option("-n", "--n-predict", help="Tokens of an answer, -1: no limit.")] = -1,
    ctx_size: Annotated[int, typer.Option("--ctx-size", "-c", min=0, help="Tokens, 0: the model's.")] = CHAT_CONTEXT,
    verbose: Verbose = False,
) -> None:
    """Talk with a model. /help lists the commands; input that is no terminal is read line by line."""
    from llama_eagle.drop_in.llama import EagleLlama
    from llama_eagle.drop_in.options import from_options

    options = from_options(drafting.options(), computing.context(max(ctx_size, 1), 0), computing.load())
    options |= {"n_ctx": ctx_size, "verbose": verbose, "mmproj_path": vision.mmproj}
    talk(model, options, Chat(Conversation(system), settings_of(sampling, n_predict), not no_think), EagleLlama)


def settings_of(sampling: Sampling, n_predict: int) -> dict[str, Any]:
    """For `create_chat_completion`. Raises `UsageError` for values out of range."""
    params = sampling.params()
    return {
        "temperature": params.temperature,
        "top_k": params.top_k,
        "top_p": params.top_p,
        "min_p": params.min_p,
        "repeat_penalty": params.repeat_penalty,
        "seed": params.seed,
        "max_tokens": None if n_predict < 0 else n_predict,
    }


def talk(model: Path, options: dict[str, Any], chat: Chat, make: Callable[..., Any]) -> None:
    """Load `model` with the arguments `options` of `EagleLlama`, and chat to the end of the input."""
    from llama_eagle.native.processor.competition import report_to

    report_to(console.warn)
    options = {"seed": 1 + secrets.randbelow(RANDOM_SEED - 1), **options}  # without one, each load begins alike
    bars = {"loading": Bar("loading"), "prompt": chat.prompt_bar}
    bars["loading"].start(after_s=1.0)
    try:
        llm = make(model, **options, on_progress=lambda what, done: bars[what].show(done))
    finally:
        bars["loading"].stop()
    with contextlib.closing(llm):
        console.note(llm.drafter)
        chat.run(llm)


@dataclass
class Chat:
    """What is said, and how it is shown."""

    conversation: Conversation
    sampling: dict[str, Any]
    thinks: bool = True
    shows_thinking: bool = True
    prompt_bar: Bar = field(default_factory=lambda: Bar("reading the prompt"))
    _timings: dict[str, Any] = field(default_factory=dict)
    _has_warned: bool = False

    def run(self, llm: Any) -> None:
        from platformdirs import user_state_path

        from llama_eagle.cli.lines import make_reader

        self._llm = llm
        read = make_reader(list(COMMANDS), user_state_path("llama-eagle") / "chat-history")
        console.note("/help lists the commands")
        is_leaving = False
        while True:
            try:
                text = read()
            except KeyboardInterrupt:
                if is_leaving or not sys.stdin.isatty():
                    return
                is_leaving = True
                console.note("Ctrl-C again, or /exit, leaves")
                continue
            is_leaving = False
            if text is None or text.strip() in ("/exit", "/quit"):
                return
            if text.startswith("/"):
                self._command(text)
            elif text.strip():
                self.conversation.ask(text)
                self._answer()

    def _command(self, text: str) -> None:
        name, _, argument = text.partition(" ")
        try:
            command = COMMANDS.get(name)
            if command is None:
                raise UsageError(f"{name} is no command. /help lists them.")
            command(self, argument.strip())
        except (EagleError, ValueError) as error:
            _complain(str(error))

    def _answer(self) -> None:
        """One turn. Ctrl-C ends the answer, what was said of it stays; a failed turn leaves no trace."""
        view = View(self.shows_thinking)
        try:
            self.prompt_bar.start(after_s=1.0)
            for part in self._stream():
                self.prompt_bar.stop()
                view.show(part["choices"][0]["delta"], drafted=self._llm.last_token_was_drafted)
                self._timings = part.get("timings", self._timings)
            reason = part["choices"][0]["finish_reason"]
        except KeyboardInterrupt:
            reason = "interrupted"
        except NativeError as error:
            self.conversation.undo()
            self._recover(error)
            return
        except (EagleError, ValueError) as error:
            self.conversation.undo()
            _complain(f"{error}: {FULL}.")
            return
        finally:
            self.prompt_bar.stop()
        view.end()
        self.conversation.answer(view.content)
        self._remark(reason)

    def _recover(self, error: EagleError) -> None:
        """After a failed computation: the next message begins on an empty memory, of a server that is back."""
        _complain(str(error))
        self._llm.reset()

    def _stream(self) -> Any:
        options = {} if self.thinks else {"chat_template_kwargs": {"enable_thinking": False}}
        return self._llm.create_chat_completion(self.conversation.messages, stream=True, **self.sampling, **options)

    def _remark(self, reason: str) -> None:
        from llama_eagle.generation.stats import unaccepted

        problem = unaccepted(self._llm.speculative_totals)
        if problem and not self._has_warned:
            console.warn(f"{problem}. /draft off leaves it out.")
            self._has_warned = True
        if reason == "interrupted":
            console.note("(interrupted)")
        elif reason == "length" and self._llm.n_tokens >= self._llm.n_ctx() - 1:
            console.note(f"(the context is full: {FULL})")
        elif reason == "length":
            console.note("(cut at -n)")

    def _retry(self, _: str) -> None:
        self.conversation.ask(self.conversation.undo())
        self._answer()

    def _undo(self, _: str) -> None:
        console.note(f"taken back: {self.conversation.undo()}")

    def _system(self, text: str) -> None:
        self.conversation.system = text or None

    def _save(self, name: str) -> None:
        self.conversation.save(_path(name))

    def _load(self, name: str) -> None:
        self.conversation.load(_path(name))
        console.note(f"{len(self.conversation.turns)} messages")

    def _think(self, how: str) -> None:
        if how not in ("on", "off", "hide"):
            raise UsageError(f"/think {how}: say on, off or hide.")
        self.thinks, self.shows_thinking = how != "off", how == "on"

    def _draft(self, length: str) -> None:
        self._llm.set_n_draft(0 if length == "off" else read_n_draft(length))

    def _image(self, name: str) -> None:
        from llama_eagle.vision.pictures import read_file

        data = read_file(_path(name))
        n_tokens = len(self._llm.tokenize_images("", [data]))
        console.note(f"{name}: {n_tokens} tokens, with the next message")
        url = f"data:image/*;base64,{base64.b64encode(data).decode()}"
        self.conversation.images.append({"type": "image_url", "image_url": {"url": url}})

    def _stats(self, _: str) -> None:
        console.prose(str(self._llm.speculative_stats))
        if not self._timings:
            return
        prompt, answer = (self._timings[f"{name}_per_second"] for name in ("prompt", "predicted"))
        console.prose(f"prompt: {prompt:.0f} tokens/s; answer: {answer:.1f} tokens/s")
        enough = self._timings["predicted_n"] >= ENOUGH and self._llm.speculative_stats.n_drafted
        if enough and (plain := self._llm.measure_plain()) is not None:
            console.prose(compared(answer, plain, "/draft off"))


COMMANDS: dict[str, Callable[[Chat, str], None]] = {
    "/retry": Chat._retry,
    "/undo": Chat._undo,
    "/clear": lambda chat, _: chat.conversation.clear(),
    "/system": Chat._system,
    "/save": Chat._save,
    "/load": Chat._load,
    "/think": Chat._think,
    "/stats": Chat._stats,
    "/draft": Chat._draft,
    "/image": Chat._image,
    "/help": lambda chat, _: print(HELP),
}


def _path(name: str) -> Path:
    if not name:
        raise UsageError("name a file.")
    return Path(name).expanduser()


class View:
    """An answer as it comes: thinking dimmed, drafted tokens in colour, both on a terminal only."""

    def __init__(self, shows_thinking: bool) -> None:
        self.content = ""
        self._shows_thinking = shows_thinking
        self._is_thinking = False

    def show(self, delta: dict[str, Any], *, drafted: bool) -> None:
        if thought := delta.get("reasoning_content"):
            self._think(thought)
        if piece := delta.get("content"):
            self._end_thinking()
            self.content += piece
            console.stream(piece, drafted)

    def end(self) -> None:
        self._end_thinking()
        print(flush=True)

    def _think(self, text: str) -> None:
        if self._shows_thinking:
            console.write(text, console.DIM)
        elif not self._is_thinking:
            console.note("(thinking)")
        self._is_thinking = True

    def _end_thinking(self) -> None:
        if self._is_thinking and self._shows_thinking:
            console.stream("\n\n")
        self._is_thinking = False


def _complain(text: str) -> None:
    console.error(in_flags(" ".join(text.split())))
