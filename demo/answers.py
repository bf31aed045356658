"""What the demo's draft learns from: the target's own text.

    python -m llama_eagle.demo.answers django-5.2.8.tar.gz --target target-q8_0.gguf -o answers.jsonl

The target has learned its training documents by heart, so it is asked about phrases rather than sections, and given
headings to paragraphs that belong elsewhere. Three answers in five are greedy, the others sampled.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from llama_eagle.demo.corpus import PROMPT_CHARACTERS, QUESTIONS, Document, Sample, read_documents
from llama_eagle.generation.options import SamplingParams
from llama_eagle.generation.run import GREEDY, Run, decode
from llama_eagle.sessions.models import ModelPair
from llama_eagle.sessions.options import PairOptions
from llama_eagle.sessions.text import Tokenizer, chat_text

N_PROMPTS = 14_000
N_TOKENS = 128  # most, of an answer
LONGEST_PHRASE = 4  # words
SHORTEST_PARAGRAPH = 60  # characters


@dataclass(frozen=True)
class Opening:
    """What the target goes on from, a question or the beginning of a text, and how."""

    text: str
    is_question: bool
    sampling: SamplingParams


def openings(documents: list[Document], n: int, seed: int = 0) -> Iterator[Opening]:
    """The same ones for the same arguments."""
    chosen = random.Random(seed)
    sections = [section for document in documents for section in document.sections]
    titles = [section.title for section in sections]
    paragraphs = [p for section in sections for p in section.paragraphs if len(p) > SHORTEST_PARAGRAPH]
    for _ in range(n):
        source = titles if chosen.random() < 0.5 else paragraphs
        phrase = _phrase(chosen, chosen.choice(source))
        is_greedy = chosen.random() < 0.6
        sampling = GREEDY if is_greedy else SamplingParams(temperature=0.8, seed=chosen.randrange(1 << 31))
        if chosen.random() < 0.5:
            yield Opening(chosen.choice(QUESTIONS).format(phrase), True, sampling)
        else:
            text = f"# {phrase}\n\n{chosen.choice(paragraphs)}"
            yield Opening(text[:PROMPT_CHARACTERS].rpartition(" ")[0], False, sampling)


def _phrase(chosen: random.Random, text: str) -> str:
    words = re.findall(r"[\w.`'-]+", text)
    n = chosen.randint(1, LONGEST_PHRASE)
    start = chosen.randrange(max(1, len(words) - n + 1))
    return " ".join(words[start : start + n])


def answer(pair: ModelPair, opening: Opening) -> Sample:
    """The opening and what the target says next, as `llama-eagle train` reads it."""
    if not opening.is_question:
        return {"text": opening.text + _continue(pair, opening.text, opening.sampling)}
    question = {"role": "user", "content": opening.text}
    text = _continue(pair, chat_text(pair.target, [question]), opening.sampling)
    return {"messages": [question, {"role": "assistant", "content": text}]}


def _continue(pair: ModelPair, text: str, sampling: SamplingParams) -> str:
    run = Run(N_TOKENS, threads=1, sampling=sampling, ignore_eos=False)
    return decode(pair, Tokenizer(pair.target).encode(text), run).text


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes what the target says, as training data for its draft.")
    parser.add_argument("source", type=Path, help="django-5.2.8.tar.gz")
    parser.add_argument("--target", type=Path, required=True, help="GGUF")
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSONL file")
    parser.add_argument("-n", type=int, default=N_PROMPTS, help="answers (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    documents = [document for document in read_documents(arguments.source) if not document.held_out]
    with ModelPair(PairOptions(arguments.target, None)) as pair, arguments.output.open("w", encoding="utf-8") as file:
        for opening in openings(documents, arguments.n, arguments.seed):
            file.write(json.dumps(answer(pair, opening), ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
