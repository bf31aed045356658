"""Bodies of requests: JSON, and what a chat asks for."""
