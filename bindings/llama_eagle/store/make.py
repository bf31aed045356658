"""Conversions into the cache: checkpoints of targets, and the published drafts that belong to them."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from llama_eagle import console
from llama_eagle.errors import EagleError, EnvironmentFailure
from llama_eagle.files import expand_home
from llama_eagle.gguf import names
from llama_eagle.pairs import DRAFT_TYPE, KnownPair, find_pairs, kept_draft
from llama_eagle.progress import progress
from llama_eagle.store.kept import locked, new_entry, target_file


def converted(source: str, outtype: str) -> Path:
    """Return the GGUF of a checkpoint from the cache; convert it unless it is there and its folder has not changed."""
    from llama_eagle.convert.quantized import require_type

    path = expand_home(source)
    is_folder = path.is_dir()
    source, outtype = str(path.resolve()) if is_folder else source, outtype.lower()
    target = target_file(source, outtype)

    def is_current() -> bool:
        return target.is_file() and not (is_folder and is_newer(path, target))

    if not is_current():
        require_type(outtype)
        with locked(target.parent, source):
            if not is_current():
                with new_entry(target.parent, source, outtype) as describe:
                    _convert(source, target, outtype, describe)
    return target


def _convert(source: str, target: Path, outtype: str, describe: Any) -> None:
    from llama_eagle.convert.source import open_checkpoint
    from llama_eagle.convert.targets import TargetOptions, convert_target
    from llama_eagle.sessions.same_tokens import compare_tokens

    checkpoint = open_checkpoint(source)
    describe(checkpoint.revision)
    with progress(f"converting to {outtype}") as on_progress:
        meter = lambda done, total, _name: on_progress(done / max(total, 1))  # noqa: E731
        options = TargetOptions(outtype=outtype, progress=meter, check_tokenizer=compare_tokens)
        convert_target(checkpoint, target, options)


def is_newer(checkpoint: Path, target: Path) -> bool:
    """Return True if a file in the folder was written after `target` was made from it."""
    made = target.stat().st_mtime
    return any(file.stat().st_mtime > made for file in checkpoint.iterdir() if file.exists())


def fetch_draft(model: str, target: Path) -> None:
    """Convert the published draft of a target that has neither an MTP head nor a draft next to it."""
    from llama_eagle.gguf import mtp
    from llama_eagle.gguf.header import read_model
    from llama_eagle.gguf.sidecars import find_sidecars

    files = read_model(target)[1]
    pairs = find_pairs([model.partition(":")[0], *names.names_of(files[0])])
    if not pairs or mtp.has_head(files) or any(kept_draft(pair).is_file() for pair in pairs):
        return
    if any(sidecar.files is not None for sidecar in find_sidecars(files)):
        return
    for pair in pairs:
        try:
            _convert_draft(pair, target)
        except EagleError as error:
            console.warn(f"{pair.draft}, the draft of {pair.target}, cannot be used: {error}")
            if isinstance(error, EnvironmentFailure):
                return
            continue
        if len(pairs) > 1:
            console.log(f"{pair.draft} drafts: of {len(pairs)} published drafts, its rounds read least")
        return


def _convert_draft(pair: KnownPair, target: Path) -> None:
    from llama_eagle.convert.drafts import DraftOptions, convert_draft
    from llama_eagle.convert.source import open_checkpoint

    draft = kept_draft(pair)
    with locked(draft.parent, pair.draft), contextlib.ExitStack() as entry:
        if draft.is_file():
            return
        describe = entry.enter_context(new_entry(draft.parent, pair.draft, DRAFT_TYPE))
        checkpoint = open_checkpoint(pair.draft)
        describe(checkpoint.revision)
        with progress("converting the draft") as on_progress:
            meter = lambda done, total, _name: on_progress(done / max(total, 1))  # noqa: E731
            convert_draft(checkpoint, target, draft, DraftOptions(outtype=DRAFT_TYPE), meter)
