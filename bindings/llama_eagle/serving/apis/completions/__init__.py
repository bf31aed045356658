"""Completions and gaps: OpenAI's API and llama.cpp's own."""

from llama_eagle.serving.apis.completions.endpoints import routes

__all__ = ["routes"]
