"""Adapters of peft: conversion to GGUF, and merging into a base model."""

from __future__ import annotations

from llama_eagle.convert.adapters.merge import Merge
from llama_eagle.convert.adapters.reader import Adapter, adapter_folder, read_adapter
from llama_eagle.convert.adapters.write import AdapterReport, convert_adapter

__all__ = ["Adapter", "AdapterReport", "Merge", "adapter_folder", "convert_adapter", "read_adapter"]
