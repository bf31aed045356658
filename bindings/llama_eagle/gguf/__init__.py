"""Checks of GGUF files before native code reads them: header, description, sizes, and compatibility of two files."""
