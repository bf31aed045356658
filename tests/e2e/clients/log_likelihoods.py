"""Print lm-evaluation-harness' log-likelihoods by a server: of continuations, and of whole texts.

Arguments: the server's address, and a folder with the model's tokenizer. Input: a JSON list of pairs of texts.
"""

import json
import sys

from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI

address, folder = sys.argv[1:]
pairs = json.load(sys.stdin)
model = LocalCompletionsAPI(
    base_url=f"{address}/v1/completions", model=folder, tokenizer_backend="huggingface", batch_size=2, max_length=512
)
requests = [Instance("loglikelihood", {}, tuple(pair), i) for i, pair in enumerate(pairs)]
rolling = [Instance("loglikelihood_rolling", {}, ("".join(pair),), i) for i, pair in enumerate(pairs)]
until = Instance("generate_until", {}, (pairs[0][0], {"until": ["."], "max_gen_toks": 8, "temperature": 0}), 0)
answers = {
    "continuations": model.loglikelihood(requests),
    "texts": model.loglikelihood_rolling(rolling),
    "generated": model.generate_until([until]),
}
print(json.dumps(answers))
