"""Vectors of texts, for `EagleLlama.embed`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import llama_cpp
import numpy as np
from llama_cpp import Llama

from llama_eagle.errors import InputError, UsageError

Vector = list[float] | list[list[float]]  # with pooling "none" a list for each token


def read_texts(llm: Llama, given: Any, *, truncate: bool) -> list[list[int]]:
    """Return the tokens of a text, or of each of a list.

    truncate: cut texts that are longer than a batch. Raises `UsageError` for other values, `InputError` for a text
    without tokens, which the engine cannot evaluate, and `ValueError` for a long one, as the parent does.
    """
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise UsageError(f"input={given!r:.60} must be a text or a list of texts. Correct it.")
    rows = []
    for text in texts:
        tokens = llm.tokenize(text.encode("utf-8"))
        if not tokens:
            raise InputError("a text to embed is empty. Leave it out.")
        if len(tokens) > llm.n_batch and not truncate:
            raise ValueError(f"Requested tokens ({len(tokens)}) exceed batch size of {llm.n_batch}")
        rows.append(tokens[: llm.n_batch])
    return rows


def embed(llm: Llama, rows: Sequence[list[int]], *, normalize: bool) -> list[Vector]:
    """Return the vectors of texts, or the scores of a reranking model."""
    found: list[Vector] = []
    for group in _batches(llm, rows):
        llm._ctx.kv_cache_clear()
        llm._batch.reset()
        for i, tokens in enumerate(group):
            llm._batch.add_sequence(tokens, i, True)
        llm._ctx.decode(llm._batch)
        found += (_normalized(each).tolist() if normalize else each.tolist() for each in _vectors(llm, group))
    llm._batch.reset()
    llm._ctx.kv_cache_clear()
    return found


def _batches(llm: Llama, rows: Sequence[list[int]]) -> Iterator[list[list[int]]]:
    """Yield groups of texts that fit one batch."""
    group: list[list[int]] = []
    for tokens in rows:
        is_full = len(group) == llm.context_params.n_seq_max
        if group and (is_full or sum(map(len, group)) + len(tokens) > llm.n_batch):
            yield group
            group = []
        group.append(tokens)
    if group:
        yield group


def _vectors(llm: Llama, group: Sequence[list[int]]) -> Iterator[np.ndarray]:
    """Yield what the engine computed: [tokens, width] without pooling, [width] or [scores] with it."""
    context, model, pooling = llm._ctx.ctx, llm._model.model, llm.pooling_type()
    width = int(llama_cpp.llama_model_n_embd_out(model))
    if pooling == llama_cpp.LLAMA_POOLING_TYPE_NONE:
        shape = (sum(map(len, group)), width)
        rows = np.ctypeslib.as_array(llama_cpp.llama_get_embeddings(context), shape)
        yield from np.split(rows, np.cumsum([len(tokens) for tokens in group])[:-1])
        return
    size = int(llama_cpp.llama_model_n_cls_out(model)) if pooling == llama_cpp.LLAMA_POOLING_TYPE_RANK else width
    for i in range(len(group)):
        yield np.ctypeslib.as_array(llama_cpp.llama_get_embeddings_seq(context, i), (size,))


def _normalized(values: np.ndarray) -> Any:
    """Return vectors of length 1; zeros stay as they are."""
    length = np.linalg.norm(values.astype(np.float64), axis=-1, keepdims=True)
    return values / np.where(length > 0, length, 1.0)
