"""ollama's API over chats and the child's raw API: programs that only know ollama work with `serve` unchanged.

Rules are those that ollama's own clients and the libraries on them were seen to need, not those of its documents:
ollama 0.6.3 (Python), 0.6.4 (npm), langchain-ollama 1.1.0, llama-index-llms-ollama 0.11.0 with embeddings 0.10.0,
litellm 1.110.2, llm-ollama 0.19.1, ollama-haystack 7.0.2, autogen-ext 0.7.5, @langchain/ollama 1.3.0,
ollama-ai-provider-v2 3.6.0 and genkitx-ollama 1.42.0.
"""

from llama_eagle.serving.ollama.routes import ROUTES

__all__ = ["ROUTES"]
