"""llama.cpp's server on our engine: its arguments and its process."""
