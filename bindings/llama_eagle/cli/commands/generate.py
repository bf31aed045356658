"""`llama-eagle generate`"""

from __future__ import annotations

import contextlib
import json as json_format
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llama_eagle import console
from llama_eagle.cli.answer import make_answer
from llama_eagle.cli.groups import grouped
from llama_eagle.cli.options import (
    ADVANCED,
    Computing,
    Drafting,
    Json,
    NPredict,
    ParseSpecial,
    Plain,
    Sampling,
    Target,
    Verbose,
    Vision,
)
from llama_eagle.cli.piped import read_piped, with_piped
from llama_eagle.errors import InputError, UsageError
from llama_eagle.files import BYTE_ORDER_MARK, read_text
from llama_eagle.generation.options import GenerationOptions
from llama_eagle.progress import progress

if TYPE_CHECKING:
    from llama_eagle.drafting.options import DraftingOptions
    from llama_eagle.drafting.resolve import Choice
    from llama_eagle.generation.generate import GenerationResult, OnText
    from llama_eagle.gguf.header import Source
    from llama_eagle.sessions.models import Model, ModelPair
    from llama_eagle.sessions.options import ContextOptions
    from llama_eagle.vision.in_text import PicturesInText
    from llama_eagle.vision.pictures import Picture

DEFAULT_CONTEXT = 4096  # tokens, if -n gives no limit
PROGRESS_AFTER_S = 1.0
MIN_COMPARED = 16  # tokens, for a comparison of speeds
STOP_REASONS = {
    "end": "complete", "length": "cut at the limit of -n", "context": "the context is full", "stop": "at a stop text",
}  # fmt: skip


@dataclass(frozen=True)
class Prompt:
    """The prompt to answer or to continue."""

    prompt: Annotated[
        str | None,
        typer.Option(
            "--prompt", "-p", help="Prompt to answer. Text from a pipe is appended to it, or is the prompt without -p."
        ),
    ] = None
    prompt_file: Annotated[
        Path | None, typer.Option("--prompt-file", "-f", help="Read the prompt from this text file (-: from stdin).")
    ] = None
    tokens: Annotated[
        str | None,
        typer.Option(metavar="1,2,3", help="Token ids to continue, instead of a text.", rich_help_panel=ADVANCED),
    ] = None
    system: Annotated[str | None, typer.Option(help="System message before the prompt (default: none).")] = None
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the prompt as plain text, without the chat template.")
    ] = False
    no_think: Annotated[
        bool, typer.Option("--no-think", help="Answer without thinking, if the chat template supports it.")
    ] = False
    parse_special: ParseSpecial = True
    image: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Image file to read; requires --mmproj. It is inserted at <__media__> in the prompt, or before the "
            "prompt. May be repeated.",
        ),
    ] = None


@dataclass(frozen=True)
class Constraints:
    """Constraints on the answer."""

    stop: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="End the answer before this text. May be repeated.")
    ] = None
    grammar: Annotated[
        str | None,
        typer.Option(metavar="FILE|GBNF", help="Constrain the answer to a grammar in llama.cpp's GBNF format."),
    ] = None
    json_schema: Annotated[
        str | None,
        typer.Option(metavar="FILE|JSON", help="Constrain the answer to JSON that is valid for this schema."),
    ] = None

    def gbnf(self) -> str | None:
        """Return the grammar, or None. Raises `UsageError` for two constraints, and for an unsupported schema."""
        if self.grammar is not None and self.json_schema is not None:
            raise UsageError("give --grammar or --json-schema, not both.")
        if self.json_schema is None:
            return None if self.grammar is None else _grammar(self.grammar)
        from llama_eagle.drop_in.chat import grammar_of_schema

        return str(grammar_of_schema(_schema(self.json_schema))._grammar)


@dataclass(frozen=True)
class Length:
    """Length of the answer and of the context."""

    n_predict: NPredict = 256
    ignore_eos: Annotated[
        bool,
        typer.Option(
            "--ignore-eos",
            help="Continue after end-of-generation tokens, for measurements of a fixed length.",
            rich_help_panel=ADVANCED,
        ),
    ] = False
    ctx_size: Annotated[
        int, typer.Option("--ctx-size", "-c", min=0, help="Context size in tokens (0: as needed for prompt and -n).")
    ] = 0

    def n_ctx(self, n_prompt: int, n_ctx_train: int) -> int:
        needed = n_prompt + self.n_predict if self.n_predict > 0 else DEFAULT_CONTEXT + n_prompt
        return self.ctx_size or min(needed, max(n_ctx_train, 1))


@grouped
def generate(
    target: Target,
    prompt: Prompt,
    length: Length,
    constraints: Constraints,
    vision: Vision,
    drafting: Drafting,
    sampling: Sampling,
    computing: Computing,
    plain: Plain = False,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Answer one prompt and exit."""
    from llama_eagle.drafting.resolve import resolve, without_effect, without_lookup
    from llama_eagle.native import log
    from llama_eagle.native.processor import competition
    from llama_eagle.sessions import exact

    given = _read_prompt(prompt)
    if prompt.image and (vision.mmproj is None or isinstance(given, list)):
        raise UsageError("--image needs --mmproj and a prompt that is text.")
    log.set_verbose(verbose)
    competition.report_to(console.warn_after_answer)
    if drafting.exact:
        exact.set_mode("strict")
    params = replace(sampling.params(), grammar=constraints.gbnf())
    limit = None if length.n_predict == -1 else length.n_predict
    options = GenerationOptions(limit, params, length.ignore_eos, tuple(constraints.stop or ()))
    drafts = drafting.options()
    choice = resolve(target.file(drafts), drafts)
    if problem := computing.too_small_for(choice.options.longest):
        choice = without_lookup(choice, drafts, problem)
    console.note(choice.why)
    if problem := without_effect(choice.options):
        console.warn(f"{problem}: --draft, --lookup.")
    if params.grammar is not None:
        _check_grammar(choice.target, params.grammar)
    if not prompt.raw and not isinstance(given, list):
        _start_template(choice)
    with _load(choice, computing) as pair, _open_pictures(vision, computing, pair) as pictures:
        if drafting.exact and (unverified := exact.require(pair.target)):
            console.warn(unverified)
        think = params.grammar is None and not prompt.no_think
        ids = _tokenize(given, prompt, pair.target, pictures, think=think)
        context = computing.context(length.n_ctx(len(ids), pair.target.n_ctx_train), choice.options.longest)
        is_text = plain or prompt.raw or isinstance(given, list) or params.grammar is not None
        with contextlib.closing(make_answer(plain=is_text)) as answer:
            result = _generate(pair, choice.options, context, ids, options, pictures, None if json else answer.write)
            if not json:
                answer.end()
        facts = {**exact.report(pair.target), "placement": pair.placement, "drafter": choice.why}
        _report(result, facts if json else None)


def _check_grammar(target: Source, grammar: str) -> None:
    """Raise `UsageError` for a grammar that cannot be used. Loads the vocabulary, which is fast, and no weights."""
    from llama_eagle.gguf.header import read_model
    from llama_eagle.gguf.pairing import require_target
    from llama_eagle.gguf.validate import require_vocabulary
    from llama_eagle.native.calls import check_grammar
    from llama_eagle.sessions.models import Model
    from llama_eagle.sessions.options import LoadOptions

    first, files = read_model(target)
    require_target(first)
    require_vocabulary(files)
    with contextlib.closing(Model(first, LoadOptions(vocab_only=True))) as vocabulary:
        check_grammar(vocabulary.vocab, grammar)


def _start_template(choice: Choice[DraftingOptions]) -> None:
    """Start the process that renders the chat template, if there is one, while the model is loading."""
    from llama_eagle.sessions.chats.template import start_worker

    if isinstance(choice.target, list) and choice.target[0].keys.get("tokenizer.chat_template"):
        start_worker()


def _load(choice: Choice[DraftingOptions], computing: Computing) -> ModelPair:
    from llama_eagle.sessions.models import ModelPair
    from llama_eagle.sessions.options import PairOptions

    # Native code loads without Python's lock. NumPy takes a tenth of a second meanwhile.
    threading.Thread(target=import_module, args=("llama_eagle.generation.generate",), daemon=True).start()
    with progress("loading", after_s=PROGRESS_AFTER_S) as on_progress:
        load = replace(computing.load(), on_progress=on_progress)
        return ModelPair(PairOptions(choice.target, choice.draft, load, choice.options.draft_gpu_layers))


@contextlib.contextmanager
def _open_pictures(vision: Vision, computing: Computing, pair: ModelPair) -> Iterator[PicturesInText | None]:
    """Open the target's vision encoder; yield None without one."""
    from llama_eagle.native.processor.threads import n_threads

    if vision.mmproj is None:
        yield None
        return
    from llama_eagle.vision.encoder import VisionEncoder, require_encoder
    from llama_eagle.vision.in_text import PicturesInText

    require_encoder(vision.mmproj, pair.target.header, pair.draft.header if pair.draft else None)
    threads, use_gpu = n_threads(computing.threads), computing.load().n_gpu_layers != 0
    with VisionEncoder(vision.mmproj, pair.target.handle, n_threads=threads, use_gpu=use_gpu) as encoder:
        yield PicturesInText(encoder, on_encode=_note_picture)


def _note_picture(picture: Picture, n_rows: int) -> None:
    console.note(f"reading {picture.name}: {picture.width} x {picture.height} pixels, {n_rows} tokens")


def _generate(
    pair: ModelPair,
    drafts: DraftingOptions,
    context_options: ContextOptions,
    ids: list[int],
    options: GenerationOptions,
    pictures: PicturesInText | None,
    on_text: OnText | None,
) -> GenerationResult:
    from llama_eagle.drafting.resolve import session_options
    from llama_eagle.generation.generate import Watch, generate
    from llama_eagle.generation.stats import learn_acceptance
    from llama_eagle.gguf.size import DraftContext
    from llama_eagle.sessions.models import Context
    from llama_eagle.sessions.session import EagleSession
    from llama_eagle.sessions.text import Tokenizer

    header = pair.draft.header if pair.draft else None
    memory = DraftContext(header, drafts.draft_n_ctx) if header else None
    with (
        Context(pair.target, context_options, memory) as context,
        EagleSession(context, pair.draft, session_options(header, drafts)) as session,
        progress("reading the prompt", after_s=PROGRESS_AFTER_S) as on_prompt,
    ):
        if session.draft_notice:
            console.warn(session.draft_notice)
        watch = Watch(on_text, on_prompt, compare=console.on_terminal() and on_text is not None)
        tokenizer = Tokenizer(pair.target)
        result = generate(session, tokenizer, ids, options, drafting=drafts, pictures=pictures, watch=watch)
        if pair.target.lora is None:  # another text is accepted differently
            learn_acceptance(result.speculative, session.draft_kind, pair.target.path, drafts.draft_file)
        return replace(result, draft_device=session.draft_device)


def _report(result: GenerationResult, weights: dict[str, Any] | None) -> None:
    """Print one JSON object that includes facts about the weights, or one line for people."""
    from llama_eagle.generation.stats import unaccepted

    if weights is not None:
        held = {key: weights[key] for key in ("exact", "inexact", "unverified", "placement", "drafter")}
        console.result(result.as_dict() | held)
    else:
        console.note(summary(result))
    if problem := unaccepted(result.speculative):
        console.warn(f"{problem}. Measure it with `llama-eagle check TARGET DRAFT --measure`.")


def summary(result: GenerationResult) -> str:
    """Return a summary of a generation for people."""
    prompt = result.n_prompt / result.prompt_ms * 1e3 if result.prompt_ms else 0.0
    text = (
        f"prompt: {result.n_prompt} tokens, {prompt:.0f} tokens/s; "
        f"answer: {len(result.tokens)} tokens, {result.tokens_per_second:.1f} tokens/s"
    )
    if result.speculative is not None:
        text += f", {result.speculative.mean_emitted:.2f} tokens per round ({_by_drafter(result.speculative)})"
    text += f" ({STOP_REASONS[result.stop_reason]})"
    if result.plain_ms is None or len(result.tokens) < MIN_COMPARED:
        return text
    return f"{text}\n{comparison(result.tokens_per_second, result.plain_ms, '--draft none disables it')}"


def comparison(tokens_per_second: float, plain_ms: float, remedy: str) -> str:
    """Compare drafting with plain decoding, which takes `plain_ms` per token. `remedy`: advice if it is slower."""
    plain = 1e3 / plain_ms
    gain = tokens_per_second / plain
    text = f"plain decoding: about {plain:.1f} tokens/s; with drafting {gain:.2f} x as fast"
    return text if gain > 1 else f"{text}: drafting is slower here ({remedy})"


def _by_drafter(statistics: Any) -> str:
    return ", ".join(f"{name} {n_rounds}" for name, n_rounds in sorted(statistics.rounds_of.items()))


def _read_prompt(given: Prompt) -> str | list[int]:
    prompt, file, tokens = given.prompt, given.prompt_file, given.tokens
    n_given = sum(each is not None for each in (prompt, file, tokens))
    piped = "" if n_given else read_piped()
    if n_given > 1 or not (n_given or piped):
        raise UsageError("give one prompt: by -p, --prompt-file, --tokens or a pipe.")
    if tokens is not None:
        return _read_tokens(tokens)
    text = _read_text(prompt, file) or piped
    if not text:
        raise UsageError("the prompt is empty: there is nothing to continue. Give some text.")
    return text


def _read_text(prompt: str | None, file: Path | None) -> str:
    if prompt is not None:
        return with_piped(prompt) if prompt else ""
    return "" if file is None else _read_file(file)


def _read_tokens(text: str) -> list[int]:
    try:
        ids = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise UsageError(f"--tokens {text[:40]!r}: give token ids separated by commas, such as 1,2,3.") from None
    if not ids:
        raise UsageError("--tokens is empty: there is nothing to continue. Give at least one id.")
    return ids


def _read_file(file: Path | None) -> str:
    return read_piped() if str(file) == "-" else read_text(Path(str(file)))


def _grammar(given: str) -> str:
    given = given.removeprefix(BYTE_ORDER_MARK)
    return _file_or_value("--grammar", "grammar", given, "::=" in given)


def _schema(given: str) -> Any:
    given = given.removeprefix(BYTE_ORDER_MARK)
    text = _file_or_value("--json-schema", "JSON schema", given, given.lstrip().startswith(("{", "true", "false")))
    try:
        return json_format.loads(text)
    except RecursionError:
        raise UsageError("the JSON schema is nested too deeply. Leave out some of its levels.") from None
    except ValueError as error:
        raise UsageError(f"the JSON schema cannot be turned into a grammar ({error}). Correct it.") from None


def _file_or_value(option: str, kind: str, given: str, is_value: bool) -> str:
    """Return the value of an option: given as such, or as the content of a file. Raises `InputError` for neither."""
    text = _file_or_text(given)
    if text == given and not is_value:
        raise InputError(f"{option} {given:.200}: no such file, and not a {kind}. Correct the path.")
    return text


def _file_or_text(given: str) -> str:
    """Return the content of the file with this name if it exists, else the text itself."""
    try:
        is_file = Path(given).is_file()
    except OSError:  # too long for a name
        is_file = False
    return str(_read_file(Path(given))) if is_file else given


def _tokenize(
    given: str | list[int], prompt: Prompt, target: Model, pictures: PicturesInText | None, *, think: bool
) -> list[int]:
    """Return token ids unchanged; tokenize text, through the chat template unless there is none or `raw` is set."""
    from llama_eagle.sessions.chats.literal_texts import LiteralTexts, control_tokens
    from llama_eagle.sessions.text import Tokenizer, chat_text, has_chat_template
    from llama_eagle.vision.in_text import with_markers

    if isinstance(given, list):
        return given
    if prompt.raw and prompt.system is not None:
        raise UsageError("--raw uses no chat template, so it takes no --system message. Leave one out.")
    images = prompt.image or []
    text = with_markers(given, len(images)) if pictures else given
    is_chat = not prompt.raw and (prompt.system is not None or has_chat_template(target))
    tokenizer: Any = Tokenizer(target)
    special = is_chat or prompt.parse_special
    if is_chat:
        system = [] if prompt.system is None else [{"role": "system", "content": prompt.system}]
        options = {} if think else {"enable_thinking": False}
        messages = [*system, {"role": "user", "content": text}]
        if not prompt.parse_special:
            tokenizer = LiteralTexts(tokenizer, control_tokens(target.vocab))
            messages = tokenizer.hidden(messages)
        text = chat_text(target, messages, **options)

    def encode(part: str, is_first: bool = True) -> list[int]:
        return list(tokenizer.encode(part, add_bos=is_first and not is_chat, special=special))

    if pictures is None:
        return encode(text)
    return pictures.insert(text, [pictures.open(image, str(image)) for image in images], encode)
