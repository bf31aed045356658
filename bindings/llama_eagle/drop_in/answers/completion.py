"""The token loop of a completion. A stream and a complete answer consist of the same pieces.

It replaces `llama_cpp.Llama._create_completion`, whose streams lose characters that consist of several tokens, and
whose answers end at the first stop text of the list instead of the first one in the text.
"""

from __future__ import annotations

import time
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any

import llama_cpp
import numpy as np
from llama_cpp import LlamaState
from llama_cpp.llama_tokenizer import LlamaTokenizer

from llama_eagle.drop_in.answers.logprobs import LogProbs, TokenLogProbs, joined
from llama_eagle.drop_in.answers.prompt import ForHandler, prompt_tokens
from llama_eagle.drop_in.answers.speculative import Speculative
from llama_eagle.drop_in.text import AnswerText
from llama_eagle.errors import ContextFull, EagleError, UsageError
from llama_eagle.sessions.text import StopText

# Arguments of `generate` that have the same name in a completion.
SAMPLING = (
    "top_k", "top_p", "min_p", "typical_p", "tfs_z", "mirostat_mode", "mirostat_tau", "mirostat_eta",
    "frequency_penalty", "presence_penalty", "repeat_penalty", "grammar",
)  # fmt: skip
Part = dict[str, Any]


class Completion:
    """One completion of `llm`, an `EagleLlama`. given: the arguments of `Llama._create_completion`.

    shown: control tokens that are a part of the text. Raises ValueError, as the parent does, for a prompt that fills
    the context and for `logprobs` without logits.
    """

    def __init__(self, llm: Any, given: Mapping[str, Any], limits: Speculative, shown: frozenset[int]) -> None:
        self._llm = llm
        self._shown = shown
        self._limits = limits
        self._given = given
        self._prompt = prompt_tokens(llm, given["prompt"], given["suffix"])
        # After an empty prompt the parent starts with BOS, so that no space precedes the answer.
        self._tokens = [] if len(given["prompt"]) else [llm.token_bos()]
        self._n_artificial = len(self._tokens)
        self._head = {
            "id": f"cmpl-{uuid.uuid4()}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": given["model"] or llm.model_path,
        }
        self.finish_reason = "length"
        self._check()
        self._processors = _processors(given["logits_processor"], given["logit_bias"], llm._n_vocab)
        self._n_max = self._limit(given["max_tokens"])
        self._is_exact = type(llm.tokenizer_) is LlamaTokenizer
        self._text = AnswerText(stop_texts(given["stop"]), has_replacements=not self._is_exact)
        self._echoed = self._prompt_text() if given["echo"] else ""
        n_before = 0 if given["echo"] else len(given["prompt"])
        n_top = given["logprobs"]
        self._logprobs = None if n_top is None else TokenLogProbs(llm, n_top, n_before + len(self._echoed))

    def parts(self) -> Iterator[Part]:
        """Yield the parts of a stream. The last one has the finish reason."""
        if self._given["echo"]:
            entries = None if self._logprobs is None else joined(self._echoed_logprobs())
            yield self._part(self._echoed, entries)
        for piece, entries in self._pieces():
            if piece or entries is not None:
                yield self._part(piece, entries)
        yield self._part("", None, self.finish_reason)

    def whole(self) -> Part:
        """Return the answer in one part, with its usage.

        Another tokenizer's text may change with later tokens, so it is read again at the end.
        """
        choices = [part["choices"][0] for part in self.parts()]
        text = "".join(choice["text"] for choice in choices) if self._is_exact else self._echoed + self._final_text()
        entries = [choice["logprobs"] for choice in choices if choice["logprobs"] is not None]
        n_prompt, n_answer = len(self._prompt), len(self._tokens)
        usage = {"prompt_tokens": n_prompt, "completion_tokens": n_answer, "total_tokens": n_prompt + n_answer}
        logprobs = None if self._logprobs is None else joined(entries)
        return {**self._part(text, logprobs, self.finish_reason), "usage": usage}

    def _final_text(self) -> str:
        data = self._bytes()
        stop = StopText(stop_texts(self._given["stop"]))
        return stop.push(data.decode("utf-8", "ignore")) + stop.finish()

    def _pieces(self) -> Iterator[tuple[str, LogProbs | None]]:
        """Yield the text of each token, and its log-probabilities if requested."""
        llm = self._llm
        self._recall()
        llm._begin_random(self._given["seed"])
        if llm.verbose:
            llm._ctx.reset_timings()
        with closing(self._generate()) as generated:
            self.finish_reason = "stop"
            for token in generated:
                if llama_cpp.llama_vocab_is_eog(llm._model.vocab, token):
                    break
                entries = self._logprobs_of(token)
                self._tokens.append(token)
                yield self._text.push(self._bytes()), entries
                if self._text.is_met:
                    break
                if len(self._tokens) >= self._n_max:
                    self.finish_reason = "length"
                    break
            else:  # a stopping criterion, or the end of the context
                self.finish_reason = "length" if llm._context_is_full else "stop"
        if llm.verbose:
            llm._ctx.print_timings()
        if llm.cache:
            llm.cache[[*self._prompt, *self._tokens]] = llm.save_state()
        yield self._text.finish(), None

    def _bytes(self) -> bytes:
        if self._shown and self._is_exact:
            return bytes(self._llm._growing.detokenize(self._tokens, special=False, shown=self._shown))
        return bytes(self._llm.detokenize(self._tokens, prev_tokens=self._prompt))

    def _generate(self) -> Any:
        given = self._given
        options = {name: given[name] for name in SAMPLING}
        options["logits_processor"] = self._processors
        self._llm._speculative = self._limits  # limits of the generation that starts now
        options["stopping_criteria"] = _criteria(given["stopping_criteria"])
        return self._llm.generate(self._prompt, temp=given["temperature"], **options)

    def _check(self) -> None:
        llm, prompt = self._llm, self._prompt
        if prompt[:2] == [llm.token_bos()] * 2:
            bos = llm._model.token_get_text(llm.token_bos())
            text = f'Detected duplicate leading "{bos}" in prompt, this will likely reduce response quality, '
            warnings.warn(f"{text}consider removing it...", RuntimeWarning, stacklevel=2)
        if len(prompt) >= llm._n_ctx:
            raise ContextFull(f"Requested tokens ({len(prompt)}) exceed context window of {llm._n_ctx}")
        if self._given["logprobs"] is not None and not llm._logits_all:
            raise ValueError("logprobs is not supported for models created with logits_all=False")

    def _limit(self, max_tokens: int | None) -> int:
        """Return the maximum number of tokens.

        As in the parent, None, 0 and negative values mean: up to the context's end.
        """
        room = int(self._llm._n_ctx) - len(self._prompt)
        return room if max_tokens is None or max_tokens <= 0 else min(max_tokens, room)

    def _recall(self) -> None:
        """Load the cached state if it shares more of the prompt than memory does.

        A state of another model is ignored.
        """
        llm = self._llm
        if not llm.cache:
            return
        try:
            state = llm.cache[self._prompt]
        except KeyError:
            return
        if not isinstance(state, LlamaState):
            return
        shared = llm.longest_token_prefix
        if shared(state.input_ids.tolist(), self._prompt) > shared(llm._input_ids.tolist(), self._prompt):
            with suppress(RuntimeError, EagleError):  # a state of another model or context
                llm.load_state(state)

    def _prompt_text(self) -> str:
        prompt = self._given["prompt"]
        return prompt if isinstance(prompt, str) else self._llm.detokenize(list(prompt)).decode("utf-8", "ignore")

    def _echoed_logprobs(self) -> Iterator[LogProbs]:
        """Return the log-probabilities of the prompt, which is evaluated first to get its logits."""
        tokens = self._prompt
        is_known = self._llm._input_ids.tolist()[: len(tokens)] == tokens
        if not is_known or np.isnan(self._llm.scores[: len(tokens), 0]).any():  # a loaded state may have no logits
            self._llm.reset()
            self._llm.eval(tokens)
        return TokenLogProbs(self._llm, self._given["logprobs"], 0).of_prompt(tokens)

    def _logprobs_of(self, token: int) -> LogProbs | None:
        if self._logprobs is None:
            return None
        before = self._tokens[self._n_artificial :]
        return self._logprobs.of(token, len(self._prompt) + len(before), before)

    def _part(self, text: str, logprobs: LogProbs | None, finish_reason: str | None = None) -> Part:
        choice = {"text": text, "index": 0, "logprobs": logprobs, "finish_reason": finish_reason}
        return {**self._head, "choices": [choice]}


class Ends(ForHandler):
    """Notes the finish reasons of the completions of one answer."""

    def __init__(self, llama: Any) -> None:
        super().__init__(llama)
        self.reasons: set[str | None] = set()

    def create_completion(self, *args: Any, **kwargs: Any) -> Any:
        answer = self._llama.create_completion(*args, **kwargs)
        return self._noted(answer) if isinstance(answer, dict) else map(self._noted, answer)

    def _noted(self, part: Part) -> Part:
        self.reasons |= {choice["finish_reason"] for choice in part["choices"]}
        return part


def stop_texts(stop: Any) -> list[str]:
    """Return the texts that end an answer. Empty ones end none, as in llama.cpp's server."""
    return [text for text in ([stop] if isinstance(stop, str) else stop or ()) if text]


def _criteria(given: Any) -> Any:
    """Return a list of criteria as one object."""
    return llama_cpp.StoppingCriteriaList(given) if isinstance(given, Sequence) else given


def _processors(given: Any, bias: Mapping[Any, float] | None, n_vocab: int) -> Any:
    """Return the caller's processors, followed by one for the biases of tokens."""
    if bias is None:
        return given
    biases = {int(token): float(value) for token, value in bias.items()}
    for token in biases:
        if not 0 <= token < n_vocab:
            raise UsageError(f"logit_bias: token {token} is not in the vocabulary of {n_vocab} tokens. Correct it.")

    def add_biases(_: Any, logits: Any) -> Any:
        changed = np.copy(logits)
        for token, value in biases.items():
            changed[token] += value
        return changed

    return llama_cpp.LogitsProcessorList([*(given or ()), add_biases])
