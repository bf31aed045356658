"""`llama-eagle chat`"""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from llama_eagle import console
from llama_eagle.cli.groups import grouped
from llama_eagle.cli.options import (
    CHAT_CONTEXT,
    Computing,
    Drafting,
    Sampling,
    TargetFile,
    Verbose,
    in_flags,
    read_n_draft,
)
from llama_eagle.errors import EagleError, UsageError

HELP = """\
/stats            rounds and acceptance of the last answer
/draft K|auto|off tokens drafted in a round
/clear            forget the conversation
/help, /exit
A message that begins with \"\"\" goes on over lines until \"\"\"."""
BLOCK = '"""'
TINT, PLAIN = "\033[36m", "\033[0m"  # tokens that had been drafted


@grouped
def chat(
    model: TargetFile,
    drafting: Drafting,
    sampling: Sampling,
    computing: Computing,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    n_predict: Annotated[int, typer.Option("-n", "--n-predict", help="Tokens of an answer, -1: no limit.")] = -1,
    ctx_size: Annotated[int, typer.Option("--ctx-size", "-c", min=0, help="Tokens, 0: the model's.")] = CHAT_CONTEXT,
    verbose: Verbose = False,
) -> None:
    """Talk with a model. /help lists the commands; input that is no terminal is read line by line."""
    from llama_eagle.drop_in.llama import EagleLlama
    from llama_eagle.drop_in.options import from_options

    params = sampling.params()
    settings: dict[str, Any] = {
        "temperature": params.temperature,
        "top_k": params.top_k,
        "top_p": params.top_p,
        "min_p": params.min_p,
        "repeat_penalty": params.repeat_penalty,
        "seed": params.seed,
        "max_tokens": None if n_predict < 0 else n_predict,
    }
    options = from_options(drafting.options(), computing.context(max(ctx_size, 1), 0), computing.n_gpu_layers)
    with contextlib.closing(EagleLlama(model, **{**options, "n_ctx": ctx_size, "verbose": verbose})) as llm:
        _Chat(llm, system, settings).run()


@dataclass
class _Chat:
    llm: Any
    system: str | None
    sampling: dict[str, Any]
    messages: list[dict[str, str]] = field(default_factory=list)

    def run(self) -> None:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  (line editing and history for input())
        self._clear()
        console.note("/help lists the commands")
        while (text := _read_message()) is not None:
            if text.startswith("/"):
                if text in ("/exit", "/quit"):
                    return
                self._command(text)
            elif text.strip():
                self._answer(text)

    def _answer(self, text: str) -> None:
        """One turn. Ctrl-C ends the answer, what was said of it stays; a failed turn leaves no trace."""
        self.messages.append({"role": "user", "content": text})
        said: list[str] = []
        try:
            for part in self.llm.create_chat_completion(self.messages, stream=True, **self.sampling):
                piece = part["choices"][0]["delta"].get("content") or ""
                said.append(piece)
                _show(piece, drafted=self.llm.last_token_was_drafted)
        except KeyboardInterrupt:
            console.note("\n(interrupted)")
        except (EagleError, ValueError) as error:
            self.messages.pop()
            print(f"error: {in_flags(' '.join(str(error).split()))}: /clear begins anew.", file=sys.stderr)
            return
        print(flush=True)
        self.messages.append({"role": "assistant", "content": "".join(said)})

    def _command(self, text: str) -> None:
        name, _, argument = text.partition(" ")
        if name == "/stats":
            print(self.llm.speculative_stats)
        elif name == "/draft":
            try:
                self.llm.set_n_draft(0 if argument == "off" else read_n_draft(argument))
            except UsageError as error:
                print(f"error: {error}", file=sys.stderr)
        elif name == "/clear":
            self._clear()
        else:
            print(HELP)

    def _clear(self) -> None:
        self.messages = [] if self.system is None else [{"role": "system", "content": self.system}]


def _read_message() -> str | None:
    """One line, or the lines of a block; None at the end of the input."""
    prompt = "> " if sys.stdin.isatty() else ""
    try:
        line = input(prompt)
        if not line.startswith(BLOCK):
            return line
        lines = [line[len(BLOCK) :]]
        while not lines[-1].endswith(BLOCK):
            lines.append(input("… " if prompt else ""))
        return "\n".join(lines)[: -len(BLOCK)]
    except EOFError:
        return None


def _show(piece: str, *, drafted: bool) -> None:
    tinted = drafted and sys.stdout.isatty() and console.use_color()
    sys.stdout.write(f"{TINT}{piece}{PLAIN}" if tinted and piece else piece)
    sys.stdout.flush()
