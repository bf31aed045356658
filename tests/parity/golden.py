"""Torch results of a target and its draft: greedy continuations, and accepted tokens per round.

    cd tests && python -m parity.golden        # writes golden/demo.json from the demo pair's checkpoints again

All in float32. The loop here is the definition of EAGLE-3 decoding and shares no code with ours: verification of a
greedy draft accepts the tokens that the target would generate alone, so the target runs once over each finished text.
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
TARGET, DRAFT = ROOT / "demo/target", ROOT / "demo/draft"
GOLDEN = ROOT / "tests/golden/demo.json"
NEAR_TIE = 1e-3  # a smaller lead may fall either way
N_PROMPTS, N_PROMPT, N_TOKENS, N_DRAFT = 64, 24, 128, 4


@dataclass(frozen=True)
class Golden:
    """One prompt, what follows it, and how many tokens each round accepts.

    Near ties, [index, lead relative to the largest logit]: of generated tokens, and of the drafted tokens that decide a
    round's count.
    """

    prompt: list[int]
    tokens: list[int]
    accepted: list[int]
    token_ties: list[list[float]]
    round_ties: list[list[float]]


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
    def rounds(
        self, text: list[int], n_prompt: int, features: torch.Tensor, n_draft: int
    ) -> tuple[list[int], list[float]]:
        """Accepted counts and leads of the rounds that make text[n_prompt + 1:].

        features: what the target computes for the whole text, [n, A * T].
        """
        draft, accepted, leads, n = self.draft, [], [], n_prompt
        draft.reset()
        draft.prefill(text[:n], features)
        while n < len(text) - 1:
            length = min(n_draft, len(text) - n - 2)
            steps = draft.chain(text[n], features[n - 1], n - 1, length) if length else []
            agrees = [step.token == text[n + 1 + i] for i, step in enumerate(steps)]
            n_accepted = (*agrees, False).index(False)
            accepted.append(n_accepted)
            leads.append(min((_lead(step.logits) for step in steps[: n_accepted + 1]), default=1.0))
            draft.trim(n - 1)
            draft.prefill(text[n - 1 : n + n_accepted + 1], features[n - 1 :], first=n - 1)
            n += n_accepted + 1
        return accepted, leads

    def golden(self, prompts: torch.Tensor, n_tokens: int, n_draft: int) -> list[Golden]:
        """One record for each of prompts [texts, n_prompt]."""
        n_prompt = prompts.shape[1]
        texts = torch.cat([prompts, self.continue_greedily(prompts, n_tokens)], 1)
        logits, features = self.run(texts)
        found = []
        for i, text in enumerate(texts.tolist()):
            leads = [_lead(row) for row in logits[i, n_prompt - 1 : -1]]
            accepted, round_leads = self.rounds(text, n_prompt, features[i], n_draft)
            found.append(Golden(text[:n_prompt], text[n_prompt:], accepted, _ties(leads), _ties(round_leads)))
        return found


def _lead(logits: torch.Tensor) -> float:
    """Return the margin of the largest logit over the second, relative to the largest absolute one."""
    first, second = logits.topk(2).values.tolist()
    return (first - second) / float(logits.abs().max())


def _ties(leads: list[float]) -> list[list[float]]:
    return [[i, float(f"{lead:.2g}")] for i, lead in enumerate(leads) if lead < NEAR_TIE]


def boundaries_of(draft: Path) -> list[int]:
    """From a SpecForge config: ids of layers whose output is read, one below the boundary."""
    config = json.loads((draft / "config.json").read_text())
    return [i + 1 for i in config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]]


def checksums(*folders: Path) -> dict[str, str]:
    files = [path for folder in folders for path in sorted(folder.glob("*.safetensors"))]
    return {str(path.relative_to(ROOT)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def held_out_prompts(tokenizer: Any) -> torch.Tensor:
    """[N_PROMPTS, N_PROMPT] ids: stretches of held-out text, evenly spread."""
    lines = (ROOT / "demo/held-out.jsonl").read_text("utf-8").strip().split("\n")
    texts = [record["prompt"] for record in map(json.loads, lines) if "prompt" in record]
    ids = torch.tensor(tokenizer("\n\n".join(texts))["input_ids"])
    starts = torch.linspace(0, len(ids) - N_PROMPT, N_PROMPTS).long()
    return ids[starts[:, None] + torch.arange(N_PROMPT)]


def compute() -> list[Golden]:
    """The demo pair's records."""
    prompts = held_out_prompts(transformers.AutoTokenizer.from_pretrained(TARGET))
    return TorchPair(TARGET, DRAFT, boundaries_of(DRAFT)).golden(prompts, N_TOKENS, N_DRAFT)


def read_golden() -> tuple[dict[str, Any], list[Golden]]:
    """The stored manifest and records."""
    stored = json.loads(GOLDEN.read_text())
    return stored["manifest"], [Golden(**record) for record in stored["texts"]]


def main() -> None:
    torch.set_num_threads(1)
    found = compute()
    manifest = {
        "checkpoints": checksums(TARGET, DRAFT),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "n_draft": N_DRAFT,
    }
    records = ",\n".join(json.dumps(asdict(golden), separators=(",", ":")) for golden in found)
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(f'{{"manifest": {json.dumps(manifest, indent=1)},\n"texts": [\n{records}\n]}}\n')


if __name__ == "__main__":
    main()
