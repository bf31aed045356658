"""Conversion of Hugging Face checkpoints to GGUF: targets and EAGLE-3 drafts.

It is pure Python, except for types of llama.cpp's quantizer, which load the native library.
"""
