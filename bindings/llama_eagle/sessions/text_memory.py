"""The tokens in a context's memory, and the cheapest change to another text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from llama_eagle.errors import InputError, UsageError
from llama_eagle.native.limits import MAX_EXACT_ROWS
from llama_eagle.sessions.checkpoints import CheckpointStore, capture, restore
from llama_eagle.sessions.session import EagleSession
from llama_eagle.sessions.text import require_ids
from llama_eagle.vision.in_text import FIRST_ID, PicturesInText, cut_before

NO_TOKEN = -1  # a row of an image that another program put into the context
CLOSE = 8  # tokens between checkpoints, at least
TAIL = 8  # tokens at the end of a prompt that the next turn often changes (its generation prompt)
EVEN = 4096  # tokens: attention to so long a text takes about as long as the rest of a token's work


class TextMemory:
    """Tokens in memory, the logits after the last one, and checkpoints of the recurrent state.

    A picture is one token id, `FIRST_ID` or below, repeated for each of its rows; `pictures` maps ids to pictures.

    `tokens[:n_tokens]` are in the session's memory. While `is_live`, `row` is the context's output row with the logits
    after the last token. A loaded or truncated state has no logits until something is evaluated.
    """

    def __init__(
        self,
        session: EagleSession,
        n_vocab: int,
        store: CheckpointStore,
        every: int = 1024,
        pictures: PicturesInText | None = None,
    ) -> None:
        self.session = session
        self.pictures = pictures
        self.n_tokens = session.n_past  # the ids of tokens already in the session are unknown
        self.tokens: NDArray[np.intc] = np.full(session.n_ctx, NO_TOKEN, dtype=np.intc)
        self.row = -1
        self.is_live = False
        self.store = store
        self.rows: NDArray[np.single] | None = None  # logits after every token, if they are kept
        self.on_progress: Callable[[float], None] | None = None  # fraction that is evaluated, 0..1
        self._every = every
        self.n_vocab = n_vocab

    @property
    def known(self) -> NDArray[np.intc]:
        return self.tokens[: self.n_tokens]

    def logits(self, row: int | None = None) -> NDArray[np.single]:
        """Return a view of one output row of the last decode, [n_vocab], valid until the next decode."""
        from llama_eagle.native import llama_cpp

        pointer = llama_cpp.llama_get_logits_ith(self.session.ctx, self.row if row is None else row)
        return np.ctypeslib.as_array(pointer, shape=(self.n_vocab,))

    def set_tokens(self, tokens: Sequence[int]) -> int:
        """Make memory hold exactly `tokens`, with live logits; return the number of evaluated tokens.

        Reuses the common prefix as far as memory can be truncated or restored from a checkpoint. Raises `UsageError`
        for no tokens.
        """
        if not len(tokens):
            raise UsageError("the prompt is empty. Give at least one token.")
        wanted = self._ids(tokens)
        self.require_room(wanted)
        shared = self._shared(wanted)
        self._require_ids(wanted[shared:])
        if shared == len(wanted) == self.n_tokens and self.is_live:
            return 0
        self.truncate(cut_before(wanted, min(shared, len(wanted) - 1), self.pictures))
        fresh = wanted[self.n_tokens :]
        # The next text may differ from this one at the same place as this one from the last, or at the prompt's end.
        self._extend(fresh, checkpoints_at={shared, len(wanted) - TAIL})
        return len(fresh)

    def needs_eval(self, more: Sequence[int]) -> bool:
        """Return True if `more` is empty and there are no logits: after a truncation, or without text."""
        return not len(more) and not self.is_live and not (self.known == NO_TOKEN).any()

    def extend(self, tokens: Sequence[int]) -> None:
        """Evaluate tokens after those in memory.

        Raises `InputError`, without evaluating any, if they do not fit or one is outside of the vocabulary.
        """
        more = self._ids(tokens)
        self._require_ids(more)
        self.require_room(np.concatenate([self.known, more]))
        self.restore()
        self._extend(more)

    def restore(self) -> None:
        """Make memory hold exactly the text again: after a truncation, a recurrent state may have to be recomputed.

        Raises `UsageError` if that requires the rows of an image.
        """
        text = self.known.copy()
        self.truncate(len(text))
        if (text[self.n_tokens :] == NO_TOKEN).any():
            raise UsageError("the text was truncated at a place where an image must be evaluated again. Start over.")
        self._extend(text[self.n_tokens :])

    def record(self, token: int, row: int) -> None:
        """Add a verified row of a round to the text. Its logits are in output row `row`."""
        if self.rows is not None:
            self.rows[self.n_tokens] = self.logits(row)
        self.tokens[self.n_tokens] = token
        self.n_tokens += 1
        self.row, self.is_live = row, True

    def truncate(self, n_tokens: int) -> None:
        """Keep at most the first `n_tokens`; fewer if memory can only go back to a checkpoint or to its start."""
        n_tokens = cut_before(self.tokens, n_tokens, self.pictures)
        sound = self.session.settle()
        kept = self.session.n_past
        if not sound or n_tokens < kept:
            kept = self._truncate_session(n_tokens)
        if kept < self.n_tokens:
            self.is_live = False
        self.n_tokens = kept
        self.store.forget_after(kept)

    def adopt(self, n_tokens: int) -> None:
        """Accept rows up to position `n_tokens` that another program put into the context: those of an image.

        They have no token ids, and the draft has no state for them or for the text before: it pauses over them. With
        M-RoPE the position after an image is not known from the context's memory, therefore the caller's value is used.
        Raises `UsageError` if it exceeds the context.
        """
        if n_tokens > len(self.tokens):
            raise UsageError(f"n_tokens={n_tokens}: the context has {len(self.tokens)} positions. Correct it.")
        self.session.load_state(None, n_tokens)
        self.tokens[self.n_tokens : n_tokens] = NO_TOKEN
        self.n_tokens = n_tokens
        self.is_live = False
        self.store.forget_after(0)

    def reset(self) -> None:
        """Clear memory and checkpoints."""
        self.session.reset()
        self.store.forget_after(0)
        self.n_tokens = 0
        self.is_live = False

    def _ids(self, tokens: Sequence[int] | NDArray[np.intc]) -> NDArray[np.intc]:
        try:
            return np.asarray(tokens, dtype=np.intc)
        except OverflowError:
            require_ids(tokens, self.n_vocab)
            raise

    def _require_ids(self, tokens: NDArray[np.intc]) -> None:
        """Raise `InputError` for an id outside of the vocabulary, and for an unknown or incomplete picture."""
        require_ids(tokens if self.pictures is None else tokens[tokens > FIRST_ID], self.n_vocab)
        if self.pictures is not None:
            self.pictures.require_whole(tokens)

    def _shared(self, wanted: NDArray[np.intc]) -> int:
        n = min(self.n_tokens, len(wanted))
        different = np.flatnonzero(self.tokens[:n] != wanted[:n])
        shared = int(different[0]) if len(different) else n
        return min(cut_before(text, shared, self.pictures) for text in (self.known, wanted))

    def require_room(self, wanted: Sequence[int] | NDArray[np.intc]) -> None:
        """Raise `InputError` for a text that does not fit into the context, before any of it is evaluated."""
        n_rows = int(np.count_nonzero(np.asarray(wanted) <= FIRST_ID))
        if len(wanted) > self.session.n_ctx:
            pictures = f", {n_rows} of them for pictures," if n_rows else ""
            raise InputError(
                f"the text takes {len(wanted)} tokens{pictures} and the context has room for {self.session.n_ctx}. "
                f"{'Use smaller pictures. ' if n_rows else ''}{self.session.longer_text}"
            )

    def _truncate_session(self, n_tokens: int) -> int:
        session = self.session
        if session.trim(n_tokens):
            return n_tokens
        checkpoint = self.store.best(n_tokens)
        if checkpoint is not None and restore(session.ctx, checkpoint) and self._resume_at(checkpoint.n_past):
            return checkpoint.n_past
        session.reset()
        return 0

    def _resume_at(self, n_past: int) -> bool:
        return self.session.trim(n_past) or self._restart_draft(n_past)

    def _restart_draft(self, n_past: int) -> bool:
        """Continue at a restored checkpoint after a decode that was interrupted: the draft starts over."""
        from llama_eagle.native import llama_cpp

        known = self.tokens[:n_past].tolist()
        memory = llama_cpp.llama_get_memory(self.session.ctx)
        if min(known, default=-1) < 0 or not llama_cpp.llama_memory_seq_rm(memory, 0, n_past, -1):
            return False
        self.session.load_state(None, n_past)
        self.session.note_tokens(known)
        return True

    def _extend(self, tokens: NDArray[np.intc], checkpoints_at: Iterable[int] = ()) -> None:
        """Evaluate in pieces that end at the positions of checkpoints, after a checkpoint at the start."""
        if len(tokens) and self.n_tokens:
            self._checkpoint()
        start, end = self.n_tokens, self.n_tokens + len(tokens)
        stops = {end}
        if self.store.budget:
            stops.update(range(self.n_tokens + self._every, end, self._every))
            stops.update(stop for stop in checkpoints_at if self.n_tokens + CLOSE <= stop < end)
            stops = {start + cut_before(tokens, stop - start, self.pictures) for stop in stops} - {start}
            stops.update(start + behind for behind in _ends_of_images(tokens))
        for stop in sorted(stops):
            self._evaluate(tokens[self.n_tokens - start : stop - start], start, end)
            if stop < end:
                self._checkpoint()

    def _evaluate(self, tokens: NDArray[np.intc], begin: int, end: int) -> None:
        """Evaluate the next `tokens`. `begin` and `end`: range of positions for the progress."""
        longest = self.session.n_piece  # interruptible between pieces
        if self.rows is not None:
            # Evaluate as rounds that keep every row, to get the logits of each token. With at most MAX_EXACT_ROWS rows
            # at a time, each row has the same bits as alone.
            longest = min(self.session.n_draft_max + 1 if self.session.n_draft_max else longest, MAX_EXACT_ROWS)
        for piece in self._pieces(tokens, longest):
            self._listen(begin, self.n_tokens, len(piece), end)
            if self.rows is None or piece[0] <= FIRST_ID:
                self._append(piece)
            else:
                self._append_rows(piece.tolist())
            if self.on_progress is not None:
                self.on_progress(_work(begin, self.n_tokens) / _work(begin, end))

    def _listen(self, begin: int, at: int, n: int, end: int) -> None:
        """Have the session report the progress of the next n tokens, at position `at` between `begin` and `end`."""

        def report(share: float) -> None:
            if self.on_progress is not None:
                self.on_progress(_work(begin, at + share * n) / _work(begin, end))

        self.session.listener.on_share = report

    def _append_rows(self, piece: list[int]) -> None:
        self.session.verify(piece)
        for row, token in enumerate(piece):
            self.record(token, row)
        self.session.commit(len(piece))

    def _append(self, piece: NDArray[np.intc]) -> None:
        self.is_live = False
        if self.pictures is not None and piece[0] <= FIRST_ID:
            self.session.eval_rows(self.pictures.rows(int(piece[0])))
        else:
            self.session.eval(piece.tolist())
        end = self.n_tokens + len(piece)
        if self.rows is not None:
            self.rows[self.n_tokens : end] = 0  # rows of a picture have no logits
        self.tokens[self.n_tokens : end] = piece
        self.n_tokens = end
        self.row, self.is_live = -1, True

    def _pieces(self, tokens: NDArray[np.intc], longest: int) -> Iterator[NDArray[np.intc]]:
        """Yield the rows of a picture as one piece, and tokens between pictures in pieces of at most `longest`."""
        start = 0
        while start < len(tokens):
            if tokens[start] <= FIRST_ID and self.pictures is not None:
                end = start + self.pictures.n_rows(int(tokens[start]))
            else:
                following = np.flatnonzero(tokens[start:] <= FIRST_ID)
                end = min(start + longest, start + int(following[0]) if len(following) else len(tokens))
            yield tokens[start:end]
            start = max(end, start + 1)

    def _checkpoint(self) -> None:
        """Save the recurrent state, unless a nearby checkpoint suffices."""
        if not self.store.budget:
            return
        near = self.store.best(self.n_tokens)
        if near is not None and self.n_tokens - near.n_past < CLOSE:
            return
        checkpoint = capture(self.session.ctx, self.n_tokens)
        if checkpoint is not None:
            self.store.add(checkpoint)


def _work(begin: float, end: float) -> float:
    """Return the work of evaluating the tokens from `begin` to `end`, in tokens at the start of a text."""
    return (end - begin) * (1 + (begin + end) / 2 / EVEN)


def _ends_of_images(tokens: NDArray[np.intc]) -> list[int]:
    """Return the positions after images: the question about an image often changes there."""
    is_image = tokens <= FIRST_ID
    return [int(i) + 1 for i in np.flatnonzero(is_image[:-1] & ~is_image[1:])]
