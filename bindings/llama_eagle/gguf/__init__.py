"""GGUF files before any native code sees them: header, description, sizes, whether two files fit."""
