"""`llama-eagle chat`"""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from llama_eagle import console
from llama_eagle.cli.options import (
    DraftCtxSize,
    DraftFile,
    DraftGpuLayers,
    GpuLayers,
    NDraft,
    NDraftMax,
    PMin,
    TargetFile,
    Threads,
    Verbose,
    read_n_draft,
)
from llama_eagle.errors import EagleError, UsageError
from llama_eagle.native.limits import LONGEST

HELP = """\
/stats            rounds and acceptance of the last answer
/draft K|auto|off tokens drafted in a round
/clear            forget the conversation
/help, /exit
A message that begins with \"\"\" goes on over lines until \"\"\"."""
BLOCK = '"""'
TINT, PLAIN = "\033[36m", "\033[0m"  # tokens that had been drafted


def chat(
    model: TargetFile,
    draft: DraftFile = None,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    n_draft: NDraft = "auto",
    n_draft_max: NDraftMax = LONGEST,
    p_min: PMin = 0.0,
    temp: Annotated[float, typer.Option(help="Temperature, 0: greedy.")] = 0.8,
    top_k: Annotated[int, typer.Option(help="0: off.")] = 40,
    top_p: Annotated[float, typer.Option(help="1: off.")] = 0.95,
    min_p: Annotated[float, typer.Option(help="0: off.")] = 0.05,
    n_predict: Annotated[int, typer.Option("-n", "--n-predict", help="Tokens of an answer, -1: no limit.")] = -1,
    seed: Annotated[int | None, typer.Option(help="Random by default.")] = None,
    threads: Threads = 0,
    n_gpu_layers: GpuLayers = 0,
    draft_gpu_layers: DraftGpuLayers = None,
    draft_ctx_size: DraftCtxSize = 0,
    ctx_size: Annotated[int, typer.Option("--ctx-size", "-c", min=0, help="Tokens, 0: the model's.")] = 8192,
    verbose: Verbose = False,
) -> None:
    """Talk with a model. /help lists the commands; input that is no terminal is read line by line."""
    from llama_eagle.drop_in.llama import EagleLlama

    llm = EagleLlama(
        model, draft_path=draft, n_draft=read_n_draft(n_draft), n_draft_max=n_draft_max, p_min=p_min,
        draft_gpu_layers=draft_gpu_layers, draft_n_ctx=draft_ctx_size, n_ctx=ctx_size, n_threads=threads or None,
        n_gpu_layers=n_gpu_layers, verbose=verbose,
    )  # fmt: skip
    sampling = {"temperature": temp, "top_k": top_k, "top_p": top_p, "min_p": min_p, "seed": seed}
    sampling["max_tokens"] = None if n_predict < 0 else n_predict
    with contextlib.closing(llm):
        _Chat(llm, system, sampling).run()


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
            print(f"error: {' '.join(str(error).split())}: /clear begins anew.", file=sys.stderr)
            return
        print(flush=True)
        self.messages.append({"role": "assistant", "content": "".join(said)})

    def _command(self, text: str) -> None:
        name, _, argument = text.partition(" ")
        if name == "/stats":
            print(_stats(self.llm.speculative_stats))
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


def _stats(statistics: Any) -> str:
    shares = " ".join(f"{share:.0%}" for share in statistics.accepted_per_position) or "-"
    ms = ", ".join(f"{name} {value:.0f}" for name, value in statistics.ms.items())
    return (
        f"{statistics.rounds} rounds, {statistics.mean_emitted:.2f} tokens a round, "
        f"{statistics.accept_rate:.0%} of drafted tokens accepted (by position: {shares}); ms: {ms}"
    )
