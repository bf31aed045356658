"""Choose the drafter if none is named, and build its session options."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from llama_eagle.drafting.options import DRAFT_VOCAB, LOOKUP, NONE, DraftingOptions
from llama_eagle.drafting.price import Price, price
from llama_eagle.errors import IncompatibleModels, InputError, UsageError
from llama_eagle.gguf import mtp
from llama_eagle.gguf.architectures import copies_state, rollback_problem
from llama_eagle.gguf.header import Header, Source, read_model
from llama_eagle.gguf.names import draft_kind, names_of
from llama_eagle.gguf.pairing import require_target
from llama_eagle.gguf.sidecars import Sidecar, find_sidecars, fitting
from llama_eagle.gguf.validate.small import is_small
from llama_eagle.pairs import find_pairs, kept_draft
from llama_eagle.sessions.options import MTP, SessionOptions

REMEDY = "(draft=none turns it off)"
NOT_FOUND = "the target has no MTP head, and there is no draft next to it"
BY_LOOKUP = "drafts: prompt look-up"
COPIES = "prompt look-up would need copies of the recurrent state (draft=lookup turns it on)"

NAMED = {
    NONE: "no drafter, as requested",
    LOOKUP: "prompt look-up is the drafter, as requested",
    MTP: "the target's MTP head is the drafter, as requested",
}

Options = TypeVar("Options", bound=DraftingOptions)


@dataclass(frozen=True)
class Choice(Generic[Options]):
    """Options with `draft` set, and the reason in a sentence that begins with the drafter.

    target: as given, or its headers if they had to be read. sidecar: headers of a draft in its own file.
    """

    options: Options
    why: str
    target: Source
    sidecar: list[Header] | None = None

    @property
    def draft(self) -> Source | None:
        """The draft to load with the target, as `PairOptions` takes it."""
        return self.sidecar or self.options.model


def resolve(target: Source, options: Options) -> Choice[Options]:
    """Choose the drafter of a target. This is the only place that does, for every command and for `EagleLlama`.

    The first that applies: what the options name; a draft; prompt look-up, unless that takes copies of a recurrent
    state. Drafts are the target's own MTP head, those next to it that have its name or are the only one
    (gguf/sidecars.py), and published drafts (pairs.py) that `pull` or `run` has converted: of those that fit, but for
    those that were seen to be slower than plain decoding, the one with the best price (drafting/price.py), the first
    of equal ones.
    Raises `InputError` for files that cannot be read, and for a target without the head that the options name,
    `IncompatibleModels` for a look-up or drafter of the user's on a target whose state cannot be rolled back.
    """
    choice = _found(target, options) if options.draft is None else _asked_for(target, options)
    if choice.options.model is not None and choice.options.looks_up:
        return replace(choice, why=f"{choice.why}; prompt look-up goes first where it is faster")
    return choice


def without_effect(options: DraftingOptions) -> str | None:
    """Return a warning about a draft length that has no effect without a drafter, or None."""
    if options.drafts or not isinstance(options.n_draft, int) or not options.n_draft:
        return None
    return f"there is no drafter, so a draft length of {options.n_draft} has no effect. Name a drafter, or set lookup"


def _asked_for(target: Source, options: Options) -> Choice[Options]:
    if options.draft == MTP:
        target = _require_head(target)
    what = LOOKUP if options.draft == NONE and options.lookup else str(options.draft)
    if what == LOOKUP:
        target = _require_rollback(read_model(target)[1])
    draft = None
    if options.draft_file is not None and options.draft_file.is_file():
        target, draft = read_model(target)[1], read_model(options.draft_file)[1]
        if mtp.has_head(draft) and not mtp.is_head_alone(draft) and not is_small(target[0], draft):
            what = f"the MTP head of {what}, and no more of that model,"
    return Choice(options, NAMED.get(what, f"{what} is the drafter, as requested"), target, draft)


def _require_rollback(target: list[Header]) -> list[Header]:
    """Return a target's headers. Raises `IncompatibleModels` if it cannot undo rejected tokens."""
    if problem := rollback_problem(target[0].architecture):
        raise IncompatibleModels(f"{target[0].path}: {problem}. Generate without a drafter (draft=none).")
    return target


def _require_head(target: Source) -> list[Header]:
    """Return the headers of a target with an MTP head. Raises `InputError` for one without."""
    files = read_model(target)[1]
    if mtp.has_head(files):
        return files
    require_target(files[0])
    first, sidecar = files[0], next((each for each in find_sidecars(files) if each.files), None)
    if first.architecture in mtp.ARCHITECTURES:
        reason = "the file was written without it. Convert its checkpoint again, if that has the head"
    else:
        reason = f"{first.architecture} models have none that this program runs"
    path = sidecar.files[0].path if sidecar is not None and sidecar.files is not None else "FILE"
    raise InputError(
        f"{first.path} has no MTP head: {reason}; draft={path} names a draft, draft=lookup drafts from the text."
    )


def session_options(draft: Header | None, options: DraftingOptions) -> SessionOptions:
    """Build the options of the session that verifies the drafts of resolved `options`.

    draft: header of the draft model's file, or the target's for its own head; None without a draft model. Raises
    `UsageError` for a `draft_vocab` without a head to trim.
    """
    if draft is None or "markov_w1.weight" in draft.tensors:
        if options.draft_vocab is not None:
            raise UsageError(
                "draft_vocab trims the head of a draft model; there is none, or one with a Markov head. Leave it out."
            )
        return SessionOptions(options.longest, options.draft_n_ctx)
    d2t = draft.tensors.get("d2t")
    default = None if d2t or draft.architecture == "eagle3" else DRAFT_VOCAB  # its maker has trimmed that vocabulary
    wanted = default if options.draft_vocab is None else options.draft_vocab
    n_rows = wanted if isinstance(wanted, int) and wanted < (d2t.n_elements if d2t else draft.n_vocab) else 0
    base = mtp.base_ids(draft) if n_rows else []
    return SessionOptions(options.longest, options.draft_n_ctx, n_vocab_draft=n_rows, base_ids=base)


def _found(target: Source, options: Options) -> Choice[Options]:
    files = read_model(target)[1]
    found = [*find_sidecars(files), *_kept(files)]
    own: list[Sidecar | None] = [None] if mtp.has_head(files) else []
    drafts = [*own, *(each for each in found if each.files is not None)]
    priced = [(each, price(files, each.files if each else None)) for each in drafts]
    if paying := [(each, cost) for each, cost in priced if cost is None or cost.pays]:
        return _cheapest(files, paying, options)
    if options.drafter is not None:
        return Choice(options, "the given drafter is used", _require_rollback(files))
    if options.lookup:
        return Choice(replace(options, draft=LOOKUP), NAMED[LOOKUP], _require_rollback(files))
    problems = [f"drafts would be slower than none: {', '.join(_priced(*each) for each in priced)}"] if priced else []
    return _without_model(files, options, next(iter([*problems, *(each.problem for each in found)]), NOT_FOUND))


def _cheapest(
    target: list[Header], priced: list[tuple[Sidecar | None, Price | None]], options: Options
) -> Choice[Options]:
    """Choose the draft with the best price; None is the target's own head."""
    best, own = max(priced, key=lambda pair: pair[1].speed if pair[1] else 0.0)  # the first of equal ones
    if len(priced) == 1:
        return _choice(target, best, options, REMEDY)
    others = ", ".join(_priced(each, cost) for each, cost in priced if each is not best)
    remark = f"its price is the best of {len(priced)}: {own or 'unknown'} ({others})"
    return _choice(target, best, options, f"{REMEDY}; {remark}")


def _priced(draft: Sidecar | None, cost: Price | None) -> str:
    """Name a draft that is not used, with its price and the way to use it."""
    path = MTP if draft is None or draft.files is None else draft.files[0].path
    return f"draft={path}: {cost or 'unknown'}"


def _choice(target: list[Header], draft: Sidecar | None, options: Options, remark: str) -> Choice[Options]:
    if draft is None or draft.files is None:
        return Choice(replace(options, draft=MTP), f"the target's own MTP head drafts {remark}", target)
    path = draft.files[0].path
    kind = draft_kind(draft.files[0])
    what = f"the {kind.partition(' ')[2]}" if kind else "the MTP head in"
    why = f"{what} {path.name} drafts: {draft.rule} {remark}"
    return Choice(replace(options, draft=path), why, target, draft.files)


def _without_model(files: list[Header], options: Options, problem: str) -> Choice[Options]:
    """Choose prompt look-up or no draft, where there is no draft model for the reason `problem`.

    A state that is replayed takes 0.7 to 3.5 MiB for each token of the longest draft, and plain rounds record nothing.
    Other recurrent targets would copy their state for each token: too much for a drafter that nobody asked for.
    """
    if options.lookup is False:
        return Choice(replace(options, draft=NONE), f"no drafter: {problem} (draft=FILE names one)", files)
    if impossible := rollback_problem(files[0].architecture):
        return Choice(replace(options, draft=NONE), f"no drafter: {impossible}", files)
    if copies_state(files[0]):
        return Choice(replace(options, draft=NONE), f"no drafter: {problem}; {COPIES}", files)
    why = BY_LOOKUP if problem == NOT_FOUND else f"{BY_LOOKUP}; {problem}"
    return Choice(replace(options, draft=LOOKUP), why, files)


def without_lookup(choice: Choice[Options], given: DraftingOptions, reason: str) -> Choice[Options]:
    """Return the choice without prompt look-up if it was the default: what nobody asked for gives way to `reason`."""
    is_default = choice.options.draft == LOOKUP and given.draft is None and not given.lookup
    if not is_default:
        return choice
    return replace(choice, options=replace(choice.options, draft=NONE), why=f"no drafter: {reason}")


def _kept(target: list[Header]) -> list[Sidecar]:
    """Return published drafts for this model or its base model that `llama-eagle pull` or `run` has converted.

    The last one has no files: it names a published draft that can be fetched.
    """
    pairs = find_pairs(names_of(target[0]))
    found = []
    for pair in pairs:
        if (path := kept_draft(pair)).is_file():
            files, reason = fitting(target, path)
            problem = f"{pair.draft}, published for {pair.target}, does not fit: {reason}"
            found.append(Sidecar(files, f"it is published for {pair.target}", problem))
    if not pairs or found:
        return found
    pair = pairs[0]
    none = f"{pair.draft} is published for {pair.target}: llama-eagle pull {target[0].path} fetches it"
    return [Sidecar(None, problem=none)]
