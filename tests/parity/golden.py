"""What torch says of a target and its draft: greedy continuations, and how many drafted tokens each round accepts.

    cd tests && python -m parity.golden        # writes golden/demo.json from the demo pair's checkpoints anew

All in float32. The loop here is the definition of EAGLE-3 decoding and shares no code with ours: verification of a
greedy draft accepts what the target says by itself, so the target runs once over each finished text.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from parity.eagle3_reference import Eagle3Reference

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests/golden/demo.json"
N_PROMPTS, N_PROMPT, N_TOKENS, N_DRAFT = 64, 24, 128, 4


@dataclass(frozen=True)
class Round:
    """margin: the smallest lead of a drafted token that decided the count, relative to its step's largest logit."""

    n_accepted: int
    margin: float


@dataclass(frozen=True)
class Golden:
    """One prompt. margins: of each generated token, as in Round."""

    prompt: list[int]
    tokens: list[int]
    margins: list[float]
    rounds: list[Round]


class TorchPair:
    """A target and its draft, both Hugging Face folders; boundaries: what the draft reads."""

    def __init__(self, target: Path, draft: Path, boundaries: list[int]) -> None:
        self.model = transformers.AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
        embedding, head = self.model.get_input_embeddings().weight, self.model.get_output_embeddings().weight
        self.draft = Eagle3Reference(draft, embedding=embedding.detach(), head=head.detach())
        self.boundaries = boundaries
        self.entering: dict[int, torch.Tensor] = {}
        for i in boundaries:
            self.model.get_decoder().layers[i].register_forward_pre_hook(self._keep(i), with_kwargs=True)

    def _keep(self, boundary: int) -> Any:
        def hook(module: Any, args: Any, kwargs: Any) -> None:
            self.entering[boundary] = (args[0] if args else kwargs["hidden_states"]).detach()

        return hook

    @torch.no_grad()
    def run(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """tokens [texts, n] -> logits [texts, n, V], features [texts, n, A * T]."""
        logits = self.model(tokens, use_cache=False).logits
        return logits, torch.cat([self.entering[i] for i in self.boundaries], -1)

    @torch.no_grad()
    def continue_greedily(self, prompts: torch.Tensor, n: int) -> torch.Tensor:
        """prompts [texts, n_prompt] -> [texts, n]; ends of generation are passed over."""
        out = self.model(prompts, use_cache=True)
        found = [out.logits[:, -1].argmax(-1)]
        while len(found) < n:
            out = self.model(found[-1][:, None], past_key_values=out.past_key_values, use_cache=True)
            found.append(out.logits[:, -1].argmax(-1))
        return torch.stack(found, 1)

    @torch.no_grad()
    def rounds(self, text: list[int], n_prompt: int, features: torch.Tensor, n_draft: int) -> list[Round]:
        """The rounds that make text[n_prompt + 1:], given what the target computes for the whole text."""
        draft, found, n = self.draft, [], n_prompt
        draft.reset()
        draft.prefill(text[:n], features)
        while n < len(text) - 1:
            length = min(n_draft, len(text) - n - 2)
            steps = draft.chain(text[n], features[n - 1], n - 1, length) if length else []
            agrees = [step.token == text[n + 1 + i] for i, step in enumerate(steps)]
            n_accepted = (*agrees, False).index(False)
            margin = min((_margin(step.logits) for step in steps[: n_accepted + 1]), default=1.0)
            found.append(Round(n_accepted, margin))
            draft.trim(n - 1)
            draft.prefill(text[n - 1 : n + n_accepted + 1], features[n - 1 :], first=n - 1)
            n += n_accepted + 1
        return found

    def golden(self, prompts: torch.Tensor, n_tokens: int, n_draft: int) -> list[Golden]:
        """One record for each of prompts [texts, n_prompt]."""
        n_prompt = prompts.shape[1]
        texts = torch.cat([prompts, self.continue_greedily(prompts, n_tokens)], 1)
        logits, features = self.run(texts)
        found = []
        for i, text in enumerate(texts.tolist()):
            margins = [_margin(row) for row in logits[i, n_prompt - 1 : -1]]
            rounds = self.rounds(text, n_prompt, features[i], n_draft)
            found.append(Golden(text[:n_prompt], text[n_prompt:], margins, rounds))
        return found


def _margin(logits: torch.Tensor) -> float:
    first, second = logits.topk(2).values.tolist()
    return (first - second) / float(logits.abs().max())


def boundaries_of(draft: Path) -> list[int]:
    """From a SpecForge config: ids of layers whose output is read, one below the boundary."""
    config = json.loads((draft / "config.json").read_text())
    return [i + 1 for i in config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]]


def checksums(*folders: Path) -> dict[str, str]:
    files = [path for folder in folders for path in sorted(folder.glob("*.safetensors"))]
    return {str(path.relative_to(ROOT)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def held_out_prompts(tokenizer: Any) -> torch.Tensor:
    """[N_PROMPTS, N_PROMPT] ids: stretches of held-out text, evenly spread."""
    lines = (ROOT / "demo/held-out.jsonl").read_text("utf-8").splitlines()
    texts = [record["prompt"] for record in map(json.loads, lines) if "prompt" in record]
    ids = torch.tensor(tokenizer("\n\n".join(texts))["input_ids"])
    starts = torch.linspace(0, len(ids) - N_PROMPT, N_PROMPTS).long()
    return ids[starts[:, None] + torch.arange(N_PROMPT)]


def main() -> None:
    target, draft = ROOT / "demo/target", ROOT / "demo/draft"
    torch.set_num_threads(1)
    prompts = held_out_prompts(transformers.AutoTokenizer.from_pretrained(target))
    found = TorchPair(target, draft, boundaries_of(draft)).golden(prompts, N_TOKENS, N_DRAFT)
    manifest = {
        "checkpoints": checksums(target, draft),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "n_draft": N_DRAFT,
    }
    records = ",\n".join(json.dumps(_rounded(asdict(golden))) for golden in found)
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(f'{{"manifest": {json.dumps(manifest, indent=1)},\n"texts": [\n{records}\n]}}\n')


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.2g}")
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value


if __name__ == "__main__":
    main()
