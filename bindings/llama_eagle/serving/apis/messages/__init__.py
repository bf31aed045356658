"""Anthropic's Messages API."""

from llama_eagle.serving.apis.messages.endpoints import routes

__all__ = ["routes"]
