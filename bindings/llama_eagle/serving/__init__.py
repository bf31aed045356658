"""llama.cpp's server on our engine: what it is told, and its process."""
