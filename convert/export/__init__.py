"""Export of EAGLE-3 drafts as folders for vLLM, SGLang and the speculators package."""

from llama_eagle.convert.export.engines import ENGINES
from llama_eagle.convert.export.write import ExportReport, export_draft

__all__ = ["ENGINES", "ExportReport", "export_draft"]
