"""`llama-eagle export`: a draft as a folder for another engine."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from llama_eagle.convert.drafts.dflash_config import is_dflash
from llama_eagle.convert.drafts.gemma4.assistant import is_assistant
from llama_eagle.convert.drafts.layers import resolve_layer_ids
from llama_eagle.convert.drafts.report import DraftOptions
from llama_eagle.convert.drafts.target import Target, open_target
from llama_eagle.convert.export.engines import ENGINES, config, require_expressible, sglang_ids, stored_name
from llama_eagle.convert.export.from_gguf import of_gguf
from llama_eagle.convert.export.network import Network, Tensor, of_checkpoint
from llama_eagle.convert.source import open_checkpoint
from llama_eagle.errors import ConfigError, ConversionError, UsageError
from llama_eagle.files import check_output, expand_home, temporary_next_to
from llama_eagle.gguf.header import Header
from llama_eagle.gguf.pairing import require_models
from llama_eagle.gguf.validate import read_sound

PIECE = 64 << 20  # bytes at a time


@dataclass(frozen=True)
class ExportReport:
    """Report of an export. n_bytes: of tensor data."""

    source: str
    target: str
    output: str
    engine: str
    dtype: str
    layer_ids: list[int]
    n_tensors: int
    n_bytes: int
    warnings: list[str]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def export_draft(
    source: str | Path, target: str | Path, output: Path, engine: str, options: DraftOptions | None = None
) -> ExportReport:
    """Write the draft `source` to the new folder `output`, for `engine`.

    source: a checkpoint's folder or hub id, or an EAGLE-3 GGUF. target: folder, hub id or GGUF. Raises UsageError for
    an existing output, ConfigError or ConversionError for a draft that cannot be read or is not supported.
    """
    if engine not in ENGINES:
        raise UsageError(f"--to {engine}: choose one of {', '.join(ENGINES)}.")
    if output.exists() or output.is_symlink():
        raise UsageError(f"{output} exists: choose a new folder.")
    check_output(output)
    goal = open_target(target)
    network = _network(source, target, goal, options or DraftOptions())
    require_expressible(engine, network, goal)
    tensors = {stored_name(engine, name): tensor for name, tensor in sorted(network.tensors.items())}
    tensors |= _vocabulary(network)
    settings = config(engine, network, goal, _verifier(target))
    with temporary_next_to(output) as (folder,):
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
        n_bytes = write_safetensors(folder / "model.safetensors", tensors)
        folder.rename(output)
    ids = settings.get("eagle_aux_hidden_state_layer_ids") or sglang_ids(network.boundaries, goal)
    warnings = list(_warnings(engine, network, goal))
    return ExportReport(
        str(source), goal.name, str(output), engine, network.dtype, list(ids), len(tensors), n_bytes, warnings
    )


def _verifier(target: str | Path) -> str | None:
    path = expand_home(target)
    if path.is_file():
        return None
    return str(path.resolve()) if path.is_dir() else str(target)


def _network(source: str | Path, target: str | Path, goal: Target, options: DraftOptions) -> Network:
    path = expand_home(source)
    if path.is_file():
        if options != DraftOptions():
            raise UsageError("options for checkpoints do not apply to a GGUF. Leave them out.")
        return of_gguf(_sound(path, expand_home(target)))
    checkpoint = open_checkpoint(source)
    if is_dflash(checkpoint.config):
        raise ConversionError(f"{checkpoint.source}: a DFlash draft; these engines read it in its published form.")
    if is_assistant(checkpoint.config):
        raise ConversionError(f"{checkpoint.source}: a Gemma 4 assistant; these engines read it in its published form.")
    try:
        return of_checkpoint(checkpoint, goal, options)
    except (ConfigError, ConversionError) as error:
        if str(checkpoint.path) in str(error) or checkpoint.source in str(error):
            raise
        raise type(error)(f"{checkpoint.source}: {error}") from error


def _sound(path: Path, target: Path) -> Header:
    """Return the header of a draft that fits its target, if the target is a GGUF."""
    header, _ = read_sound(path)
    if target.is_file() and header.architecture == "eagle3":
        require_models(target, path)
    return header


def _warnings(engine: str, network: Network, target: Target) -> Iterator[str]:
    if engine == "speculators":
        for name in ("embed_tokens.weight", "lm_head.weight"):
            if name not in network.tensors:
                yield f"no {name}: the speculators package uses the verifier's, so it must find that folder"
    if engine == "sglang":
        ids = sglang_ids(network.boundaries, target)
        try:
            read = resolve_layer_ids(n_aux=network.n_aux, n_layer=target.n_layer, nested=ids).boundaries
        except (ConfigError, ConversionError):
            read = ()
        if read != network.boundaries:
            yield (
                f"layer ids {ids} are SGLang's; llama-eagle convert would read them as boundaries {list(read)}: use "
                f"--aux-layers {','.join(map(str, network.boundaries))} there"
            )


def _vocabulary(network: Network) -> dict[str, Tensor]:
    if network.ids is None:
        return {}
    ids = np.asarray(network.ids, np.int64)
    is_known = np.zeros(network.n_vocab, np.bool_)
    is_known[ids] = True
    offsets = ids - np.arange(len(ids))
    return {
        "d2t": Tensor(offsets.shape, "I64", lambda: offsets),
        "t2d": Tensor(is_known.shape, "BOOL", lambda: is_known),
    }


_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "I64": 8, "BOOL": 1}


def write_safetensors(path: Path, tensors: dict[str, Tensor]) -> int:
    """Write the tensors, with one in memory at a time. Returns their size in bytes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + int(np.prod(tensor.shape, dtype=np.int64)) * _BYTES[tensor.dtype]
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            values = np.ascontiguousarray(tensor.load()).reshape(-1).view(np.uint8)
            for start in range(0, len(values), PIECE):
                file.write(values[start : start + PIECE].data)
    return end
