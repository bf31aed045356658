"""Child process: a random checkpoint of a small configuration, its file, and its logits by transformers.

python -m llama_eagle.convert.upstream.compared    # stdin: a request as JSON; stdout: the result
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from llama_eagle.convert.upstream import driver
from llama_eagle.convert.upstream.hparams import PUBLISHED_NAMES
from llama_eagle.convert.upstream.smaller import VOCABULARY

N_TOKENS = 48


def compare(request: dict[str, Any]) -> dict[str, Any]:
    """Write the random model as GGUF and its logits, [n_tokens, n_vocab]; return the tokens, or why there are none."""
    import torch
    import transformers

    driver.forbid_code()
    folder = Path(request["folder"])
    stored = (folder / "config.json").read_text("utf-8")
    name = json.loads(stored)["architectures"][0]
    renamed = {published: name for name, published in PUBLISHED_NAMES.items()}
    kind = getattr(transformers, renamed.get(name, name), None)
    if kind is None:
        return {"left_out": f"transformers {transformers.__version__} has no such class"}
    try:
        torch.manual_seed(0)
        config = transformers.AutoConfig.from_pretrained(folder)
        model = kind._from_config(config, attn_implementation="eager").float().eval()
        size = model.get_input_embeddings().weight.shape[0]
        randomize(model)
        tokens = torch.randint(3, min(size, VOCABULARY) - 8, (N_TOKENS,), generator=torch.Generator().manual_seed(1))
        with torch.inference_mode(), sample_deviation():
            logits = model(input_ids=tokens[None], use_cache=False).logits[0].float().numpy()
        model.save_pretrained(folder)
    except Exception as error:
        return {
            "left_out": f"transformers cannot compute it ({type(error).__name__}: {' '.join(str(error).split())[:120]})"
        }
    del model
    (folder / "config.json").write_text(stored, "utf-8")
    np.save(folder / "logits.npy", logits)
    driver.convert({**request, "vocab_size": size})
    return {"tokens": tokens.tolist()}


@contextlib.contextmanager
def sample_deviation() -> Iterator[None]:
    """Make torch.std divide by n - 1, as llama.cpp does in Gemma 3n: the difference matters for few neurons alone."""
    import torch

    plain = torch.std
    torch.std = lambda *args, **kwargs: plain(*args, **{**kwargs, "unbiased": True})
    try:
        yield
    finally:
        torch.std = plain


def randomize(model: Any) -> None:
    """Give every parameter a value that matters: matrices of unit gain, norms around their start, biases around 0."""
    import torch

    with torch.no_grad():
        for key, p in model.named_parameters():
            if p.ndim >= 2 and "norm" not in key:
                p.copy_(torch.randn_like(p) * (0.5 if "embed" in key else 1 / math.sqrt(p.shape[-1])))
            elif not key.endswith(("A_log", "dt_bias", ".D")):
                p.add_(torch.randn_like(p) * (0.2 if "norm" in key and key.endswith("weight") else 0.1))
        for key, buffer in model.named_buffers():
            if "e_score_correction_bias" in key:
                buffer.add_(torch.randn_like(buffer) * 0.1)
        model.tie_weights()


if __name__ == "__main__":
    driver.serve(compare)
