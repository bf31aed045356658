"""`EagleLlama`, the drop-in llama_cpp.Llama, and the server on it."""
