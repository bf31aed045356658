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
from llama_eagle.convert.upstream.smaller import SLIDING, UNLIMITED, smaller, with_windows
from llama_eagle.errors import ConversionError, EnvironmentFailure, InputError
from llama_eagle.files import kept_json, write_json
from llama_eagle.native.build import build_info
from llama_eagle.native.trials.decode import decode_logits

CHILD = "llama_eagle.convert.upstream.compared"
TYPICAL, LARGEST = 0.01, 0.05  # largest difference of a text's logits, relative to the largest logit: in half of the
MOST = 0.8  # rows, and in this share of them: experts of nearly equal weight may be chosen differently in the others
SPARSE = 0.05  # instead of TYPICAL, where activations near a threshold are cut: llama.cpp reads GELU from a table

KNOWN = {  # config.json's model_type -> what llama.cpp's graph computes otherwise
    "exaone4": "In EXAONE 4, it applies sliding windows to models of 64 blocks alone",
    "phimoe": "It computes RMS norms and routes by softmax, where this model has LayerNorm and SparseMixer",
}


def check_logits(checkpoint: Checkpoint) -> list[str]:
    """Compare logits of a random model of a small configuration with those of transformers; return warnings.

    Raises `ConversionError` for a difference. The result is kept.
    """
    config = smaller(checkpoint.config)
    with contextlib.suppress(EnvironmentFailure, OSError, ValueError, KeyError):
        return _judged(json.loads(_kept(config).read_bytes())["found"], checkpoint)
    found, logits = _compared(config, checkpoint)
    if "problem" in found and _windows(config):
        others, unlimited = _compared(with_windows(config, UNLIMITED), checkpoint)
        if not others and np.array_equal(logits, unlimited):
            found = {"ignores_windows": True}
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


def _windows(config: dict[str, Any]) -> list[int]:
    """Return the lengths of sliding windows, in tokens."""
    return [part[SLIDING] for part in (config, text_part(config)) if type(part.get(SLIDING)) is int]


def _compared(config: dict[str, Any], checkpoint: Checkpoint) -> tuple[dict[str, Any], np.ndarray]:
    """Return {"problem": difference}, {"left_out": reason}, or {}; and the engine's logits."""
    nothing = np.zeros((0, 0), np.float32)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _copy_tokenizer(checkpoint.path, folder)
        (folder / "config.json").write_text(json.dumps(config), "utf-8")
        output = folder / "small.gguf"
        request = {"folder": str(folder.absolute()), "output": str(output), "outtype": "f32", "name": "small"}
        flags = {"pre": None, "decoded": False, "mmproj": False, "no_mtp": False, "mtp_only": False}
        found = run_child(CHILD, {**request, **flags}, checkpoint.source)
        if "left_out" in found:
            return {"left_out": found["left_out"]}, nothing
        expected, text = np.load(folder / "logits.npy"), text_part(checkpoint.config) or checkpoint.config
        try:
            logits = decode_logits(output, found["tokens"])
        except InputError as error:
            return {"problem": str(error)}, nothing
    typical = SPARSE if any(text.get("activation_sparsity_pattern") or ()) else TYPICAL
    problem = difference(logits, expected, typical)
    return {"problem": problem} if problem else {}, logits


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
    where = checkpoint.source
    if problem := found.get("problem"):
        reason = KNOWN.get((text_part(checkpoint.config) or checkpoint.config).get("model_type"))
        raise ConversionError(
            f"{where}: llama.cpp does not compute this configuration as transformers does: of a random model of it, "
            f"{problem}{f'. {reason}' if reason else ''}. Nothing was written"
        )
    if found.get("ignores_windows"):
        n_tokens = min(_windows(checkpoint.config))
        return [
            f"{where}: llama.cpp ignores its sliding window, so texts of more than {n_tokens} tokens are read as "
            "without one, unlike in transformers"
        ]
    reason = found.get("left_out")
    return [f"{where}: its logits were not compared with transformers': {reason}"] if reason else []
