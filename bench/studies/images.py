"""What image rows bring a draft: a pair that reads numbers in pictures, trained here, with the rows and without.

    python bench/studies/images.py -o build/images

The target, a tiny Qwen3-VL, sees a strip of eight noisy digits and says them. A draft can know a digit
before the target has said it only from the picture. Three ways are compared:

    sees        the draft has learned from the rows of images, and drafts from them
    blind       the same draft begins anew behind the image: llama-cpp-python's own multimodal handler
    learned so  a draft that learned behind images alone, and begins anew there too
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from llama_eagle.convert.drafts import DraftOptions, convert_draft
from llama_eagle.convert.targets import TargetOptions, convert_target, convert_vision
from llama_eagle.synthetic.tokenizer import SPLIT, byte_letters
from llama_eagle.train.export import DraftOf, export_draft
from llama_eagle.train.initial import make_draft
from llama_eagle.train.loss import TrainingPass
from llama_eagle.train.target import Target, read_target
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from torch import Tensor

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>")
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CELL, N_CELLS = 32, 8  # pixels of a digit's side, which is one row; digits of a picture
N_KINDS = 200  # drawings of each digit
LAYERS = (4, 5, 6)
QUESTION = "read"
WORDS = ("user", "assistant", QUESTION)
N_DRAFT = 4
RATE = 3e-3


@dataclass(frozen=True)
class Digits:
    """Drawings of digits. cells: RGB [10, N_KINDS, CELL, CELL, 3]; patches: as the tower takes them, [10, N_KINDS, 4,
    1536]."""

    cells: np.ndarray
    patches: Tensor

    def numbers(self, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Digits [n, N_CELLS], and which drawing of each."""
        return rng.integers(0, 10, (n, N_CELLS)), rng.integers(0, N_KINDS, (n, N_CELLS))

    def png(self, digits: np.ndarray, kinds: np.ndarray) -> bytes:
        data = io.BytesIO()
        Image.fromarray(np.concatenate(list(self.cells[digits, kinds]), axis=1)).save(data, "PNG")
        return data.getvalue()


def draw_digits(seed: int) -> Digits:
    rng = np.random.default_rng(seed)
    cells = np.empty((10, N_KINDS, CELL, CELL, 3), np.uint8)
    for digit in range(10):
        for kind in range(N_KINDS):
            dark, light = rng.integers(0, 110, 3), rng.integers(150, 256, 3)
            image = Image.new("RGB", (CELL, CELL), tuple(light.tolist()))
            font = ImageFont.load_default(int(rng.integers(20, 28)))
            place = (int(rng.integers(5, 12)), int(rng.integers(-2, 5)))
            ImageDraw.Draw(image).text(place, str(digit), fill=tuple(dark.tolist()), font=font)
            image = image.rotate(float(rng.uniform(-15, 15)), fillcolor=tuple(light.tolist()))
            noise = rng.normal(0, 8, (CELL, CELL, 3))
            blurred = np.asarray(image.filter(ImageFilter.GaussianBlur(0.5)), np.float32)
            cells[digit, kind] = np.clip(blurred + noise, 0, 255)
    return Digits(cells, _patches(cells))


def _patches(cells: np.ndarray) -> Tensor:
    """Four patches of 16 x 16 pixels of each cell, channel by channel, twice for the two frames of a still picture."""
    values = torch.from_numpy(cells).float() / 127.5 - 1
    grid = values.view(10, N_KINDS, 2, 16, 2, 16, 3).permute(0, 1, 2, 4, 6, 3, 5)  # line, column, channel, y, x
    return grid.unsqueeze(5).expand(-1, -1, -1, -1, -1, 2, -1, -1).reshape(10, N_KINDS, 4, -1).contiguous()


# --- the target -----------------------------------------------------------------------------------------------------


def make_tokenizer(folder: Path) -> Tokenizer:
    """Bytes, the words of the template, and control tokens."""
    vocab, merges = {letter: i for i, letter in enumerate(byte_letters())}, []
    for word in WORDS:
        for end in range(2, len(word) + 1):
            vocab.setdefault(word[:end], len(vocab))
            merges.append((word[: end - 1], word[end - 1]))
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(SPLIT), "isolated"), level])
    tokenizer.decoder, tokenizer.post_processor = decoders.ByteLevel(), processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    statistics = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(statistics))
    return tokenizer


def new_target(tokenizer: Tokenizer, seed: int) -> Any:
    torch.manual_seed(seed)
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_interleaved": True, "mrope_section": [6, 5, 5]}
    text: dict[str, Any] = {
        "vocab_size": 288, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 8, "head_dim": 32,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024, "rms_norm_eps": 1e-6,
        "rope_parameters": rope,
    }  # fmt: skip
    vision: dict[str, Any] = {
        "depth": 2, "hidden_size": 64, "intermediate_size": 128, "num_heads": 2, "patch_size": 16,
        "spatial_merge_size": 2, "temporal_patch_size": 2, "num_position_embeddings": 64, "out_hidden_size": 128,
        "deepstack_visual_indexes": [],
    }  # fmt: skip
    ids: dict[str, Any] = {f"{name}_token_id": tokenizer.token_to_id(f"<|{token}|>") for name, token in (
        ("image", "image_pad"), ("vision_start", "vision_start"), ("vision_end", "vision_end")
    )}  # fmt: skip
    config = transformers.Qwen3VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=False, **ids)
    return transformers.Qwen3VLForConditionalGeneration(config)


class Texts:
    """Conversations about pictures as tensors, all of one length."""

    def __init__(self, tokenizer: Tokenizer, digits: Digits, image_token: int) -> None:
        encode = tokenizer.encode
        opening = encode("<|im_start|>user\n<|vision_start|>").ids
        question = encode(f"<|vision_end|>{QUESTION}<|im_end|>\n<|im_start|>assistant\n").ids
        self.prompt = [*opening, *[image_token] * N_CELLS, *question]
        self.behind = len(opening) + N_CELLS  # the first row behind the image
        self.end = encode("<|im_end|>").ids[0]
        self.zero = encode("0").ids[0]
        self.digits, self.image_token = digits, image_token

    def batch(self, n: int, rng: np.random.Generator) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        """tokens [n, S], the tower's arguments, digits [n, N_CELLS]."""
        numbers, kinds = self.digits.numbers(n, rng)
        answers = torch.from_numpy(numbers)
        prompt = torch.tensor(self.prompt).expand(n, -1)
        tokens = torch.cat([prompt, answers + self.zero, torch.full((n, 1), self.end)], 1)
        pixels = self.digits.patches[answers, torch.from_numpy(kinds)].reshape(-1, 1536)
        grid = torch.tensor([[1, 2, 2 * N_CELLS]]).expand(n, -1)
        vision: dict[str, Any] = {
            "pixel_values": pixels,
            "image_grid_thw": grid,
            "mm_token_type_ids": (tokens == self.image_token).int(),
        }
        return tokens, vision, answers


def train_target(model: Any, texts: Texts, steps: int, seed: int) -> None:
    """To say the digits; a linear layer that is thrown away teaches the tower what a digit is."""
    rng, probe = np.random.default_rng(seed), torch.nn.Linear(128, 10)
    parameters = [*model.parameters(), *probe.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=RATE, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps, pct_start=0.05)
    start, n_answer = time.perf_counter(), N_CELLS + 1
    for step in range(steps):
        tokens, vision, digits = texts.batch(24, rng)
        seen: list[Tensor] = []
        handle = model.model.visual.register_forward_hook(lambda _, __, out, seen=seen: seen.append(out.pooler_output))
        logits = model(input_ids=tokens, use_cache=False, **vision).logits
        handle.remove()
        said = logits[:, -n_answer - 1 : -1].flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(said, tokens[:, -n_answer:].flatten())
        named = torch.nn.functional.cross_entropy(probe(seen[0]), digits.flatten())
        (loss + named).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 100 == 99:
            right = float((said.argmax(-1) == tokens[:, -n_answer:].flatten()).float().mean())
            print(
                f"target {step + 1}: loss {loss:.3f}, {right:.1%} right, {time.perf_counter() - start:.0f} s",
                flush=True,
            )


# --- drafts ---------------------------------------------------------------------------------------------------------


def train_draft(target: Target, texts: Texts, steps: int, seed: int, *, sees: bool) -> Any:
    """sees: rows of images are part of what it learns from; otherwise its view begins behind the image."""
    info, frozen = target.info, target.frozen()
    ids = torch.arange(info.n_vocab)
    draft = make_draft(info.geometry(len(ids), None), frozen, ids, seed, None)
    model = TrainingPass(draft, frozen.embedding, frozen.head, ids, n_steps=N_DRAFT, checkpointing=False)
    optimizer = torch.optim.AdamW(draft.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps, pct_start=0.05)
    rng, first, start = np.random.default_rng(seed + 1), 0 if sees else texts.behind, time.perf_counter()
    for step in range(steps):
        tokens, vision, _ = texts.batch(24, rng)
        features, final, embedded = target.run(tokens, **vision)
        mask = torch.arange(tokens.shape[1]).expand_as(tokens) >= len(texts.prompt)
        outcome = model(*(part[:, first:] for part in (tokens, mask, features, final, embedded)))
        outcome.loss.backward()
        torch.nn.utils.clip_grad_norm_(draft.parameters(), 0.5)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 100 == 99:
            loss, took = float(outcome.loss.detach()), time.perf_counter() - start
            print(f"draft{' that sees' if sees else ''} {step + 1}: loss {loss:.3f}, {took:.0f} s", flush=True)
    return draft


def write_draft(draft: Any, target: Target, folder: Path, gguf: Path) -> Path:
    info = target.info
    ids = torch.arange(info.n_vocab)
    of = DraftOf(str(info.folder), info.architecture, info.aux_layers)
    export_draft(draft, folder, layout="specforge", draft_ids=ids, embedding=target.frozen().embedding, target=of)
    path = folder.with_suffix(".gguf")
    convert_draft(folder, gguf, path, DraftOptions())
    return path


# --- measuring ------------------------------------------------------------------------------------------------------


def measure(files: dict[str, Path], pictures: list[tuple[bytes, str]], draft: str, *, sees: bool) -> dict[str, Any]:
    from llama_eagle import EagleLlama

    options: dict[str, Any] = {"n_ctx": 512, "n_threads": 1, "n_draft": N_DRAFT, "verbose": False}
    if sees:
        options["mmproj_path"] = files["mmproj"]
    else:
        from llama_cpp.llama_chat_format import MTMDChatHandler

        options["chat_handler"] = MTMDChatHandler(clip_model_path=str(files["mmproj"]), verbose=False)
    answers = []
    with EagleLlama(files["target"], draft_path=files[draft], **options) as llm:
        for data, _ in pictures:
            url = f"data:image/png;base64,{base64.b64encode(data).decode()}"
            content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": QUESTION}]
            request: Any = [{"role": "user", "content": content}]
            answer = llm.create_chat_completion(request, max_tokens=N_CELLS + 2, temperature=0, repeat_penalty=1.0)
            answers.append(answer["choices"][0]["message"]["content"])
        total = llm.speculative_totals
    return {
        "right": sum(said == number for said, (_, number) in zip(answers, pictures, strict=True)) / len(pictures),
        "answers": answers,
        "mean_emitted": total.mean_emitted,
        "accept_rate": total.accept_rate,
        "accepted_per_position": total.accepted_per_position,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--target-steps", type=int, default=800)
    parser.add_argument("--draft-steps", type=int, default=400)
    parser.add_argument("--pictures", type=int, default=50)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    folder = given.output / "target"
    tokenizer, digits = make_tokenizer(folder), draw_digits(seed=1)
    model = new_target(tokenizer, seed=0)
    texts = Texts(tokenizer, digits, model.config.image_token_id)
    if not (folder / "model.safetensors").exists():
        train_target(model, texts, given.target_steps, seed=2)
        model.save_pretrained(folder)
    files = {"target": given.output / "target.gguf", "mmproj": given.output / "mmproj.gguf"}
    convert_target(folder, files["target"], TargetOptions(outtype="f16"))
    convert_vision(folder, files["mmproj"], TargetOptions(outtype="f16"))
    target = Target(read_target(folder, LAYERS), torch.float32, torch.device("cpu"))
    for name, sees in (("sees", True), ("learned so", False)):
        draft = train_draft(target, texts, given.draft_steps, seed=3, sees=sees)
        files[name] = write_draft(draft, target, given.output / name.replace(" ", "-"), files["target"])
    rng = np.random.default_rng(9)
    numbers, kinds = digits.numbers(given.pictures, rng)
    pictures = [(digits.png(d, k), "".join(map(str, d))) for d, k in zip(numbers, kinds, strict=True)]
    report = {
        "sees": measure(files, pictures, "sees", sees=True),
        "blind": measure(files, pictures, "sees", sees=False),
        "learned so": measure(files, pictures, "learned so", sees=False),
    }
    same = len({tuple(entry.pop("answers")) for entry in report.values()}) == 1
    print(json.dumps({**report, "same_texts": same}, indent=2))


if __name__ == "__main__":
    main()
