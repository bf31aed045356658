"""Comparison of the converter with transformers, once for each kind of configuration."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from llama_eagle.convert.source import Checkpoint
from llama_eagle.convert.upstream.hparams import text_part
from llama_eagle.convert.upstream.process import run_child
from llama_eagle.convert.upstream.smaller import smaller
from llama_eagle.errors import ConversionError, EnvironmentFailure, InputError
from llama_eagle.files import kept_json, write_json
from llama_eagle.native.build import build_info
from llama_eagle.native.decode import decode_logits

CHILD = "llama_eagle.convert.upstream.compared"
TYPICAL, LARGEST = 0.01, 0.05  # largest difference of a text's logits, relative to the largest logit: in half of the
MOST = 0.8  # rows, and in this share of them: experts of nearly equal weight may be chosen differently in the others
SPARSE = 0.05  # instead of TYPICAL, where activations near a threshold are cut: llama.cpp reads GELU from a table


def check_logits(checkpoint: Checkpoint) -> list[str]:
    """Compare logits of a random model of a small configuration with those of transformers; return warnings.

    Raises `ConversionError` for a difference. The result is kept.
    """
    config = smaller(checkpoint.config)
    with contextlib.suppress(EnvironmentFailure, OSError, ValueError, KeyError):
        return _judged(json.loads(_kept(config).read_bytes())["found"], checkpoint)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _copy_tokenizer(checkpoint.path, folder)
        (folder / "config.json").write_text(json.dumps(config), "utf-8")
        found = _compared(folder, checkpoint)
    with contextlib.suppress(EnvironmentFailure, OSError):  # a cache that cannot be written costs another comparison
        write_json(_kept(config), {"found": found})
    return _judged(found, checkpoint)


def _copy_tokenizer(source: Path, folder: Path) -> None:
    """Copy the tokenizer, which some classes of the converter read in any case."""
    for pattern in ("tok*", "tek*", "special_tokens*", "chat_template*", "vocab*", "merges*"):
        for file in source.glob(pattern):
            shutil.copy(file, folder)


def _kept(config: dict[str, Any]) -> Path:
    from importlib import metadata

    versions = [build_info().patch_hash, metadata.version("transformers"), metadata.version("llama-eagle")]
    return kept_json("compared", [], json.dumps(config, sort_keys=True), *versions)


def _compared(folder: Path, checkpoint: Checkpoint) -> dict[str, Any]:
    """Return {"problem": difference}, {"left_out": reason}, or {}."""
    output = folder / "small.gguf"
    request = {"folder": str(folder.absolute()), "output": str(output), "outtype": "f32", "name": "small", "pre": None}
    found = run_child(
        CHILD, {**request, "decoded": False, "mmproj": False, "no_mtp": False, "mtp_only": False}, checkpoint.source
    )
    if "left_out" in found:
        return {"left_out": found["left_out"]}
    expected, text = np.load(folder / "logits.npy"), text_part(checkpoint.config) or checkpoint.config
    try:
        logits = decode_logits(output, found["tokens"])
    except InputError as error:
        return {"problem": str(error)}
    typical = SPARSE if any(text.get("activation_sparsity_pattern") or ()) else TYPICAL
    return {"problem": problem} if (problem := difference(logits, expected, typical)) else {}


def difference(logits: np.ndarray, expected: np.ndarray, typical: float = TYPICAL) -> str:
    """Return how far logits are from those expected, [n_tokens, n_vocab]; "" if they are equal but for rounding."""
    if logits.shape[0] != expected.shape[0]:
        return "it has no logits"
    size = min(logits.shape[1], expected.shape[1])
    rows = np.abs(logits[:, :size] - expected[:, :size]).max(1) / np.abs(expected).max()
    if np.median(rows) <= typical and (rows <= LARGEST).mean() >= MOST:
        return ""
    return f"its logits differ from those of transformers by {np.median(rows):.1%} of the largest"


def _judged(found: dict[str, Any], checkpoint: Checkpoint) -> list[str]:
    if problem := found.get("problem"):
        raise ConversionError(
            f"{checkpoint.source}: llama.cpp's converter does not read this configuration as transformers does: of a "
            f"random model of it, {problem}. Nothing was written"
        )
    reason = found.get("left_out")
    return [f"{checkpoint.source}: its logits were not compared with transformers': {reason}"] if reason else []
