"""Hugging Face checkpoints to GGUF: targets and EAGLE-3 drafts.

Pure Python, but for types that llama.cpp's quantizer makes: those load the native library.
"""
