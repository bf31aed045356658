"""Conversion of EAGLE-3 drafts of every published format to GGUF. `is_draft` distinguishes them from targets."""

from __future__ import annotations

from llama_eagle.convert.drafts.convert import convert_draft, is_draft, is_draft_config
from llama_eagle.convert.drafts.report import DraftOptions, DraftReport, TensorRow

__all__ = ["DraftOptions", "DraftReport", "TensorRow", "convert_draft", "is_draft", "is_draft_config"]
