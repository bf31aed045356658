"""Features on disk: the target is run once over all samples, and training reads them through a memory map.

    index.json          what the features are of, how many samples are done, and the seconds of each run
    features.bin        rows of A * T features and T of the last hidden state, one for each token
    images.bin          rows of T, what the vision tower made of images, one for each of their tokens, if there are any
    frozen.safetensors  the target's embeddings, head and norm, so that training need not load it again

Writing continues after an interruption, if target, data and settings are the same.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from llama_eagle import console
from llama_eagle.errors import ConfigError, EnvironmentFailure, InputError
from llama_eagle.files import write_whole
from llama_eagle.train.data.samples import Sample, digest
from llama_eagle.train.features import Batch, FeatureSource, pad, positions
from llama_eagle.train.loss import choices
from llama_eagle.train.state import write_tensors
from llama_eagle.train.targets.checkpoint import Frozen, TargetInfo
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

INDEX, ROWS, BEST, IMAGES, FROZEN = "index.json", "features.bin", "choices.bin", "images.bin", "frozen.safetensors"
FEATURES = "features"  # the automatic folder, in the output folder
SAVE_EVERY = 64  # samples
NO_TOKEN = -1


class FeatureStore:
    """A FeatureSource, once `write` has filled it. device: where batches go. run: the name of the run, for the time
    that it spends, because several runs may use a folder. An image's rows are those of the target's image token."""

    def __init__(
        self,
        folder: Path,
        info: TargetInfo,
        samples: Sequence[Sample],
        dtype: torch.dtype,
        device: torch.device,
        *,
        run: str = "",
    ) -> None:
        self.image_token = int(info.config.image_token_id) if info.has_vision else NO_TOKEN
        self.folder, self.samples, self.device, self.run = folder, samples, device, run
        self.n_final = int(info.text.hidden_size)
        self.width = _width(info)
        self.ends = np.cumsum([len(sample.tokens) for sample in samples])
        self.image_ends = np.cumsum([self._is_image(sample).sum() for sample in samples])
        self.identity = {
            "target": [[file.name, *_stamp(file)] for file in info.files],
            "aux_layers": list(info.aux_layers),
            "dtype": str(dtype).removeprefix("torch."),
            "data": digest(samples),
            "width": self.width,
            "rows": int(self.ends[-1]),
        }
        self.n_done, self.spent = self._read_index()  # spent: seconds on those, by run
        self.rows = self._map(ROWS, int(self.ends[-1]), self.width, dtype)
        self.best = self._map(BEST, int(self.ends[-1]), 1, torch.int32)
        n_image_rows = int(self.image_ends[-1])
        self.image_rows = self._map(IMAGES, n_image_rows, self.n_final, dtype) if n_image_rows else None
        self.embedding: Tensor | None = None  # of the target, once it is needed

    @property
    def is_complete(self) -> bool:
        return self.n_done == len(self.samples) and (self.folder / FROZEN).exists()

    @property
    def seconds(self) -> float:
        """The seconds that this run has spent on features."""
        return self.spent.get(self.run, 0.0)

    def start_run(self) -> None:
        """Forget the seconds of an earlier run with the same name."""
        if self.spent.pop(self.run, None) is not None:
            self._write_index()

    def batch(self, numbers: Sequence[int]) -> Batch:
        samples = [self.samples[n] for n in numbers]
        tokens = pad([torch.from_numpy(sample.tokens) for sample in samples]).long()
        mask = pad([torch.from_numpy(sample.mask) for sample in samples])
        rows = pad([self._rows(n) for n in numbers]).to(self.device)
        features, final = rows[..., : -self.n_final], rows[..., -self.n_final :]
        given = tokens.to(self.device), mask.to(self.device), features, final
        best = pad([_part(self.best, self.ends, n)[:, 0] for n in numbers]).long().to(self.device)
        if not any(sample.images for sample in samples):
            return Batch(*given, best=best)
        places = positions(samples, self.image_token).to(self.device)
        return Batch(*given, self._embedded(numbers, tokens), places, best)

    def _embedded(self, numbers: Sequence[int], tokens: Tensor) -> Tensor:
        """Return embeddings [B, S, T], including the rows of images."""
        if self.embedding is None:
            self.embedding = load_file(self.folder / FROZEN)["embedding"]
        embedded = self.embedding[tokens]
        embedded[tokens == self.image_token] = torch.cat([self._images(n) for n in numbers]).to(embedded.dtype)
        return embedded.to(self.device)

    def write(
        self, source: FeatureSource, frozen: Frozen, batch_size: int, on_progress: Callable[[float], None]
    ) -> None:
        """Write the missing features, in the samples' order."""
        tensors = {name: tensor.detach().cpu().clone() for name, tensor in frozen.tensors().items()}
        write_tensors(self.folder / FROZEN, lambda path: save_file(tensors, path))
        start = time.monotonic() - self.seconds
        while self.n_done < len(self.samples):
            numbers = range(self.n_done, min(self.n_done + batch_size, len(self.samples)))
            batch = source.batch(numbers)
            for i, n in enumerate(numbers):
                rows = self._rows(n)
                rows.copy_(torch.cat([batch.features[i], batch.final[i]], dim=-1)[: len(rows)])
                if batch.best is None:
                    best = choices(batch.final[i, : len(rows)], frozen.head, frozen.bias)
                else:
                    best = batch.best[i, : len(rows)]
                _part(self.best, self.ends, n).copy_(best[:, None])
                if batch.embedded is not None:
                    is_image = torch.from_numpy(self._is_image(self.samples[n])).to(batch.embedded.device)
                    self._images(n).copy_(batch.embedded[i, : len(rows)][is_image])
            self.n_done, self.spent[self.run] = numbers[-1] + 1, time.monotonic() - start
            if numbers[0] // SAVE_EVERY != self.n_done // SAVE_EVERY or self.n_done == len(self.samples):
                self._write_index()
            on_progress(self.n_done / len(self.samples))

    def frozen(self) -> Frozen:
        tensors = load_file(self.folder / FROZEN)
        return Frozen(**{name: tensor.to(self.device) for name, tensor in tensors.items()})

    def _rows(self, n: int) -> Tensor:
        return _part(self.rows, self.ends, n)

    def _images(self, n: int) -> Tensor:
        assert self.image_rows is not None
        return _part(self.image_rows, self.image_ends, n)

    def _is_image(self, sample: Sample) -> NDArray[np.bool_]:
        return np.asarray(sample.tokens == self.image_token)

    def _read_index(self) -> tuple[int, dict[str, float]]:
        path = self.folder / INDEX
        if not path.exists():
            return 0, {}
        try:
            found = json.loads(path.read_text())
            n_done, spent, identity = int(found["n_done"]), dict(found.get("spent", {})), dict(found["identity"])
        except (ValueError, KeyError, TypeError):
            raise InputError(f"{path}: damaged; remove {self.folder} to start again.") from None
        if differing := [name for name in self.identity if identity.get(name) != self.identity[name]]:
            raise ConfigError(
                f"{self.folder}: its features differ in {', '.join(differing)}; name another --features, or remove it."
            )
        return n_done, spent

    def _write_index(self) -> None:
        text = json.dumps({"n_done": self.n_done, "spent": self.spent, "identity": self.identity})
        write_whole(self.folder / INDEX, lambda path: path.write_text(text))

    def _map(self, name: str, n_rows: int, width: int, dtype: torch.dtype) -> Tensor:
        """Map all rows of a file, [rows, width]. Disk space is reserved: writing to a full disk would be SIGBUS."""
        n_values = n_rows * width
        size = n_values * dtype.itemsize
        path = self.folder / name
        self.folder.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.stat().st_size != size:
            if self.n_done:
                raise InputError(f"{path}: {size} bytes expected; remove {self.folder} to start again.")
            if shutil.disk_usage(self.folder).free < size:
                raise EnvironmentFailure(f"{self.folder}: the features need {console.size(size)}; free some.")
            with path.open("wb") as file:
                file.truncate(size)
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, size)
        return torch.from_file(str(path), shared=True, size=n_values, dtype=dtype).view(-1, width)


def n_bytes(info: TargetInfo, samples: Sequence[Sample], dtype: torch.dtype) -> int:
    """Return the size on disk of the samples' features, without rows of images."""
    row = _width(info) * dtype.itemsize + torch.int32.itemsize
    return row * sum(len(sample.tokens) for sample in samples)


def _width(info: TargetInfo) -> int:
    """Return the values of a row: the features and the last hidden state."""
    return (len(info.aux_layers) + 1) * int(info.text.hidden_size)


def _part(rows: Tensor, ends: NDArray[np.int64], n: int) -> Tensor:
    """Return the rows of sample n."""
    return rows[int(ends[n - 1]) if n else 0 : int(ends[n])]


def _stamp(file: Path) -> tuple[int, int]:
    return file.stat().st_size, file.stat().st_mtime_ns
