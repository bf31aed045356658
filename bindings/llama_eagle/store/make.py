"""Conversions into the cache: checkpoints of targets, and the published drafts that belong to them."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from llama_eagle import console
from llama_eagle.errors import ConfigError, EagleError, EnvironmentFailure
from llama_eagle.files import expand_home, is_same_disk, require_room
from llama_eagle.gguf import names
from llama_eagle.hub import WEIGHTS, hub_cache, weights
from llama_eagle.pairs import DRAFT_TYPE, KnownPair, find_pairs, kept_draft
from llama_eagle.progress import conversion, progress_later
from llama_eagle.store.kept import Describe, locked, new_entry, read_entry, target_file

if TYPE_CHECKING:
    from llama_eagle.convert.source import Checkpoint


def converted(source: str, outtype: str, *, not_revision: str | None = None) -> Path:
    """Return the GGUF of a checkpoint from the cache; convert it unless it is there and its folder has not changed.

    not_revision: the revision of a hub id that is out of date.
    """
    from llama_eagle.convert.quantized import require_type

    path = expand_home(source)
    is_folder = path.is_dir()
    source, outtype = str(path.resolve()) if is_folder else source, outtype.lower()
    target = target_file(source, outtype)

    def is_current() -> bool:
        if not target.is_file():
            return False
        if is_folder:
            return not is_newer(path, target)
        return not_revision is None or read_entry(target.parent).revision != not_revision

    if not is_current():
        require_type(outtype)
        with locked(target.parent, source):
            if not is_current():
                with new_entry(target.parent, source, outtype) as describe:
                    _convert(source, target, outtype, describe)
    return target


def _convert(source: str, target: Path, outtype: str, describe: Describe) -> None:
    from llama_eagle.convert.quantized import is_direct
    from llama_eagle.convert.source import open_checkpoint
    from llama_eagle.convert.targets import TargetOptions, convert_target
    from llama_eagle.quantize.quantize import QuantizeOptions
    from llama_eagle.sessions.same_tokens import compare_pieces, compare_tokens

    small = open_checkpoint(source, weights=False)
    _refuse_others(small)
    if not expand_home(source).is_dir():
        _require_room(source, outtype, target)
    checkpoint = open_checkpoint(source)
    describe(checkpoint.revision)
    with conversion(f"converting to {outtype}") as meter, progress_later("quantizing", "finishing") as on_quantize:
        quantize = None if is_direct(outtype) else QuantizeOptions(progress=on_quantize)
        options = TargetOptions(
            outtype=outtype,
            progress=meter,
            check_tokenizer=compare_tokens,
            check_pieces=compare_pieces,
            quantize=quantize,
        )
        convert_target(checkpoint, target, options)


def _refuse_others(checkpoint: Checkpoint) -> None:
    """Raise the errors of checkpoints that cannot be converted to a target, before their weights are downloaded."""
    from llama_eagle.convert.drafts import is_draft_config
    from llama_eagle.convert.foreign import refuse_foreign
    from llama_eagle.convert.targets import check_target

    refuse_foreign(checkpoint)
    if is_draft_config(checkpoint.config):
        raise ConfigError(
            f"{checkpoint.source} is a draft, not a target. Name its target; llama-eagle pairs lists both."
        )
    check_target(checkpoint)


def _require_room(source: str, outtype: str, target: Path) -> None:
    """Check, before a download, that the disk has room for the conversion next to it. Raises `EnvironmentFailure`."""
    from llama_eagle.convert.quantized import is_direct, largest_share

    owner, name, *folders = source.split("/")
    prefix = "".join(f"{folder}/" for folder in folders)
    found = weights(f"{owner}/{name}", lambda file: file.startswith(prefix) and not file.endswith(".gguf"))
    n_bytes = {kind: sum(n for file, n in found.sizes.items() if file.endswith(kind)) for kind in WEIGHTS}
    size = n_bytes[".safetensors"] or n_bytes[".bin"]
    need = round(size * (largest_share(outtype) + (0 if is_direct(outtype) else 1)))  # and a file before quantization
    if is_same_disk(hub_cache(), target.parent):
        need += sum(found.missing.values())
    require_room(target.parent, need, f"the conversion of {source}", "LLAMA_EAGLE_CACHE")


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
            console.trace(error)
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
        with conversion("converting the draft") as meter:
            convert_draft(checkpoint, target, draft, DraftOptions(outtype=DRAFT_TYPE), meter)
