"""Sources of conversions: a Hugging Face folder or hub id, its configuration, and its tensors as numbers."""

from __future__ import annotations

from llama_eagle.convert.source.folder import Checkpoint, TensorInfo, open_checkpoint

__all__ = ["Checkpoint", "TensorInfo", "open_checkpoint"]
