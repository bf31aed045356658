"""`EagleLlama`, a drop-in replacement of llama_cpp.Llama."""
