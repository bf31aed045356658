"""Quantizer of GGUF files: llama.cpp's own, with importance matrices and recipes."""
