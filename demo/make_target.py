"""Training of the demo target: a tiny Qwen3.5 (Gated DeltaNet and full attention) on Django's documentation.

    pip download --no-deps --no-binary :all: django==5.2.8
    python -m llama_eagle.demo.make_target django-5.2.8.tar.gz -o demo/target --work work

It uses one thread, fixed seeds and a schedule in steps, so that the same machine and versions give the same bytes.
WORK/state.pt contains everything to resume the training.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from llama_eagle.demo.corpus import Sample, read_documents, samples
from llama_eagle.synthetic.tokenizer import CHAT_TEMPLATE, SPLIT
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
N_VOCAB = 4096
# One key head and two value heads of 128, as llama.cpp's kernels require; every row length is a multiple of 256.
CONFIG: dict[str, Any] = {
    "vocab_size": N_VOCAB,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "tie_word_embeddings": True,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10_000,
        "partial_rotary_factor": 0.25,
        "mrope_interleaved": True,
        "mrope_section": [3, 3, 2],
    },
}
PROMPTS = ("What is a model form?", "Tell me about caching.", "How does Django handle migrations?")


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Steps of `rows` sequences of `length` tokens.

    The rates warm up, stay constant, and fall to 0 in the last part.
    """

    steps: int
    rows: int = 16
    length: int = 256
    warmup: int = 60
    decay: float = 0.4  # share of the steps
    matrices: float = 0.02  # rate of Muon
    others: float = 0.003  # rate of AdamW
    seed: int = 0

    def scale(self, step: int) -> float:
        remaining = (self.steps - step) / (self.decay * self.steps)
        return min(1.0, (step + 1) / self.warmup, remaining)


# -- text ---------------------------------------------------------------------------------------------------------


def train_tokenizer(texts: list[str]) -> Tokenizer:
    """Train a byte-level BPE in the format of Qwen3.5's: N_VOCAB tokens, the control tokens last."""
    tokenizer = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(SPLIT), "isolated"), byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=N_VOCAB - len(CONTROL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in CONTROL_TOKENS])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    assert tokenizer.get_vocab_size() == N_VOCAB
    return tokenizer


def write_tokenizer(folder: Path, tokenizer: Tokenizer) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja."""
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONFIG["max_position_embeddings"],
    }
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)


def sample_text(sample: Sample) -> str:
    """Return a document, or a chat in CHAT_TEMPLATE, followed by <|endoftext|>."""
    if "messages" not in sample:
        return f"{sample['text']}<|endoftext|>"
    messages: Any = sample["messages"]
    turns = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
    return f"{turns}<|endoftext|>"


def batches(encoded: list[list[int]], schedule: Schedule, start: int) -> Iterator[torch.Tensor]:
    """Yield the batches of steps start, start + 1, ...: [rows, length + 1]. Each epoch shuffles samples and rows."""
    epoch, step = 0, 0
    while True:
        generator = torch.Generator().manual_seed(schedule.seed + epoch)
        order = torch.randperm(len(encoded), generator=generator).tolist()
        stream = torch.tensor([token for i in order for token in encoded[i]])
        n_rows = (len(stream) - 1) // schedule.length
        rows = torch.randperm(n_rows, generator=generator)
        for chosen in rows.split(schedule.rows)[: n_rows // schedule.rows]:
            if step >= start:
                positions = chosen[:, None] * schedule.length + torch.arange(schedule.length + 1)
                yield stream[positions]
            step += 1
        epoch += 1


# -- training -----------------------------------------------------------------------------------------------------


def new_model(tokenizer: Tokenizer, seed: int) -> Any:
    config = transformers.Qwen3_5TextConfig(
        **CONFIG,
        bos_token_id=None,
        eos_token_id=tokenizer.token_to_id("<|im_end|>"),
        pad_token_id=tokenizer.token_to_id("<|endoftext|>"),
    )
    torch.manual_seed(seed)
    return transformers.Qwen3_5ForCausalLM(config)


class Training:
    """Model, optimizers and the number of finished steps, saved and restored together."""

    def __init__(self, model: Any, schedule: Schedule) -> None:
        self.model, self.schedule, self.step = model, schedule, 0
        matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
        others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
        muon = torch.optim.Muon(matrices, lr=schedule.matrices, weight_decay=0.01, momentum=0.95)
        adamw = torch.optim.AdamW(others, lr=schedule.others, weight_decay=0.0, betas=(0.9, 0.95))
        self.optimizers = [(muon, schedule.matrices), (adamw, schedule.others)]

    def save(self, path: Path) -> None:
        state = {"step": self.step, "schedule": dataclasses.asdict(self.schedule), "model": self.model.state_dict()}
        state["optimizers"] = [optimizer.state_dict() for optimizer, _ in self.optimizers]
        torch.save(state, path.with_suffix(".new"))
        path.with_suffix(".new").replace(path)

    def restore(self, path: Path) -> None:
        state = torch.load(path)
        if state["schedule"] != dataclasses.asdict(self.schedule):
            raise SystemExit(f"{path}: started with another schedule. Remove it to start again.")
        self.step = state["step"]
        self.model.load_state_dict(state["model"])
        for (optimizer, _), saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)

    def update(self, batch: torch.Tensor) -> float:
        """Run one step on [rows, length + 1] token ids; return the loss in nats per token."""
        loss = loss_of(self.model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer, rate in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * self.schedule.scale(self.step)
            optimizer.step()
            optimizer.zero_grad()
        self.step += 1
        return loss.item()


def loss_of(model: Any, batch: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(batch[:, :-1], use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())


@torch.no_grad()
def held_out_loss(model: Any, stream: torch.Tensor, schedule: Schedule) -> float:
    n_rows = (len(stream) - 1) // schedule.length
    positions = torch.arange(n_rows)[:, None] * schedule.length + torch.arange(schedule.length + 1)
    losses = [loss_of(model, rows) * len(rows) for rows in stream[positions].split(schedule.rows)]
    return float(sum(losses)) / n_rows


@torch.no_grad()
def answer(model: Any, tokenizer: Tokenizer, question: str, n_tokens: int = 80) -> str:
    prompt = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    ids = torch.tensor([tokenizer.encode(prompt).ids])
    out = model.generate(ids, max_new_tokens=n_tokens, do_sample=False, attention_mask=torch.ones_like(ids))
    return tokenizer.decode(out[0, ids.shape[1] :].tolist(), skip_special_tokens=False)


def save_checkpoint(model: Any, tokenizer: Tokenizer, folder: Path) -> None:
    """Write a Hugging Face folder in bfloat16, without changing `model`."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {name: tensor.to(torch.bfloat16) for name, tensor in model.state_dict().items()}
    copy: Any = transformers.Qwen3_5ForCausalLM(model.config)
    copy.to(torch.bfloat16).load_state_dict(state)
    copy.save_pretrained(folder)
    write_tokenizer(folder, tokenizer)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the demo target on Django's documentation.")
    parser.add_argument("source", type=Path, help="Source distribution django-5.2.8.tar.gz.")
    parser.add_argument("-o", "--output", type=Path, required=True, help="Checkpoint folder to write.")
    parser.add_argument("--work", type=Path, required=True, help="Folder for the state and the log.")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--save-every", type=int, default=100)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    documents = read_documents(arguments.source)
    texts = [sample_text(sample) for sample in samples([d for d in documents if not d.held_out])]
    tokenizer = train_tokenizer(texts)
    encoded = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
    held_out = tokenizer.encode_batch([sample_text(s) for s in samples([d for d in documents if d.held_out])])
    held_out_stream = torch.tensor([token for encoding in held_out for token in encoding.ids])
    print(f"{sum(map(len, encoded))} training tokens, {len(held_out_stream)} held out", flush=True)

    schedule = Schedule(arguments.steps)
    training = Training(new_model(tokenizer, schedule.seed), schedule)
    state = arguments.work / "state.pt"
    if state.exists():
        training.restore(state)
    _train(training, batches(encoded, schedule, training.step), held_out_stream, tokenizer, arguments)
    save_checkpoint(training.model, tokenizer, arguments.output)


def _train(
    training: Training, data: Iterator[torch.Tensor], held_out: torch.Tensor, tokenizer: Tokenizer, arguments: Any
) -> None:
    schedule, began, first, mean = training.schedule, time.monotonic(), training.step, math.nan
    while training.step < schedule.steps:
        loss = training.update(next(data))
        mean = loss if math.isnan(mean) else 0.95 * mean + 0.05 * loss
        step = training.step
        if step % 20 == 0:
            rate = (step - first) * schedule.rows * schedule.length / (time.monotonic() - began)
            print(f"step {step} loss {mean:.4f} tokens/s {rate:.0f}", flush=True)
        if step % arguments.save_every == 0 or step == schedule.steps:
            training.save(arguments.work / "state.pt")
        if step % (3 * arguments.save_every) == 0 or step == schedule.steps:
            training.model.eval()
            print(f"step {step} held-out loss {held_out_loss(training.model, held_out, schedule):.4f}")
            for question in PROMPTS:
                print(f"  {question} -> {answer(training.model, tokenizer, question)!r}", flush=True)
            training.model.train()


if __name__ == "__main__":
    main()
