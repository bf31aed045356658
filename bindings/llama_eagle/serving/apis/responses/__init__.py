"""OpenAI's Responses API."""

from llama_eagle.serving.apis.responses.endpoints import routes

__all__ = ["routes"]
