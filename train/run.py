"""A training run from its settings to a draft folder."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from llama_eagle import console
from llama_eagle.errors import ConfigError, EnvironmentFailure, UsageError
from llama_eagle.native.processor.memory import return_freed_memory
from llama_eagle.progress import progress
from llama_eagle.train import metrics, state, store
from llama_eagle.train.checks import check_output, check_start
from llama_eagle.train.data.batches import Split, split_held_out
from llama_eagle.train.data.documents import read_documents
from llama_eagle.train.data.samples import Sample, SampleMaker, digest
from llama_eagle.train.data.self_written import FILE
from llama_eagle.train.data.vocabulary import count_tokens, require_embeddings
from llama_eagle.train.dspark.draft import BlockDraft, make_block_draft, mask_token
from llama_eagle.train.export import DraftOf, check_layer_ids, export_block_draft, export_draft, export_head
from llama_eagle.train.features import FeatureSource, OnlineFeatures
from llama_eagle.train.initial import Earlier, choose_geometry, choose_ids, make_draft, read_earlier
from llama_eagle.train.loop import Lesson, Loop
from llama_eagle.train.loss import LOSS, TrainingPass
from llama_eagle.train.machine.accelerator import make_accelerator
from llama_eagle.train.model import Eagle3Draft
from llama_eagle.train.mtp.head import MTPHead, make_head, require_head_target
from llama_eagle.train.settings import AUTO, DSPARK, EAGLE3, MTP, NONE, SELF, Settings
from llama_eagle.train.store import FEATURES, FeatureStore
from llama_eagle.train.targets.checkpoint import (
    Frozen,
    Images,
    Target,
    TargetInfo,
    control_tokens,
    load_images,
    load_tokenizer,
    read_target,
)
from llama_eagle.train.targets.engine import (
    EngineFeatures,
    EngineTarget,
    EngineTargetInfo,
    EngineTokenizer,
    gpu_layers,
    is_gguf,
    read_engine_target,
)
from llama_eagle.train.writing import write_own_data

SPARE = 2  # see _feature_folder
ENOUGH_SAMPLES = 500  # half of what the target writes by default
EPOCHS = 3  # planned for data that the target writes: later ones teach the draft the data itself
BATCH_SIZE = (2, 8)  # on a CPU, on a GPU
IN_F32 = ("norm_gain", "cap")  # of a target's frozen weights
PROBE, TYPICAL_VOCAB = 128, 8192  # tokens of a text and of the draft vocabulary, by which speed is measured


@dataclass(frozen=True)
class Report:
    """The end of a run.

    ended: the reason in words. vocab_coverage: share of the tokens to learn that the draft can propose. mean_emitted,
    accuracy: held out, of the draft in the folder; None without held-out data.
    """

    output: str
    steps: int
    stopped_early: bool
    ended: str
    n_samples: int
    n_vocab_draft: int
    vocab_coverage: float
    mean_emitted: float | None
    accuracy: list[float] | None
    plot: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def train(settings: Settings) -> Report | None:
    """Train and return the report; with several processes, all but the first return None.

    Raises EagleError for anything wrong with target, data, settings or machine, before training if possible.
    """
    try:
        return _train(settings)
    except torch.OutOfMemoryError:
        raise EnvironmentFailure(
            "out of device memory. Use --checkpointing, or a smaller --batch-size or --max-length."
        ) from None
    except OSError as error:  # an unreadable file, a full disk
        raise EnvironmentFailure(f"{error}.") from None
    finally:
        return_freed_memory()


def _train(settings: Settings) -> Report | None:
    accelerator, dtype = make_accelerator(settings)
    if not settings.batch_size:
        settings = replace(settings, batch_size=BATCH_SIZE[accelerator.device.type == "cuda"])
    check_output(settings)
    if settings.seconds is not None and accelerator.num_processes > 1:
        raise UsageError("--hours is for one process. Give --epochs instead.")
    earlier = None
    if settings.init is not None and settings.kind == EAGLE3:
        earlier = read_earlier(Path(settings.init), settings.target, settings.aux_layers)
    info = _target(settings, earlier)
    if settings.kind == MTP:
        require_head_target(info)
    elif settings.kind == EAGLE3:
        check_layer_ids(settings.format, info.aux_layers, info.text.num_hidden_layers)
    tokenizer = EngineTokenizer(info) if isinstance(info, EngineTargetInfo) else load_tokenizer(info.folder)
    check_start(settings, info, earlier)
    if isinstance(info, EngineTargetInfo) and not settings.resume:
        _engine(info, settings.max_length, accelerator.device).require_equal_logits()
    images = load_images(info)
    if SELF in settings.data:
        with accelerator.main_process_first():
            settings = write_own_data(settings, partial(_seconds_per_token, settings, info, accelerator, dtype))
    samples = SampleMaker(tokenizer, settings.max_length, images).make(read_documents(settings.data))
    if settings.kind != EAGLE3 and any(sample.images for sample in samples):
        raise ConfigError(f"--kind {settings.kind} learns from text alone. Leave samples with images out of the data.")
    require_embeddings(samples, info.n_vocab)
    split = split_held_out(len(samples), settings.eval_share, settings.seed)
    counts = count_tokens((samples[n] for n in split.train), info.n_vocab)
    ids = choose_ids(settings, counts, control_tokens(info, tokenizer, counts), earlier)
    coverage = float(counts[ids].sum() / counts.sum())
    if accelerator.is_main_process:
        n_learned = sum(sample.n_learned for sample in samples)
        console.note(f"{len(samples)} samples, {n_learned} tokens to learn, {coverage:.2%} in the draft vocabulary")
    given = {"data": digest(samples), "architecture": info.architecture, "processes": accelerator.num_processes}
    same = state.identity(settings, loss=LOSS, **given)
    has_state = settings.resume and (settings.output / state.FILE).exists()
    found = state.load_state(settings.output, same) if has_state else None
    if found is not None and found.progress.done:
        reached = found.progress
    else:
        job = _Job(settings, info, images, samples, split, torch.from_numpy(ids), earlier, accelerator, dtype)
        reached = _teach(job, found, same)
    is_first = accelerator.is_main_process
    if is_first and settings.features == AUTO:
        shutil.rmtree(settings.output / FEATURES, ignore_errors=True)
    accelerator.end_training()
    return _report(settings, reached, len(samples), len(ids), coverage) if is_first else None


@dataclass(frozen=True)
class _Job:
    """Everything that a run has before its first step. ids: the draft vocabulary; earlier: the draft to start from."""

    settings: Settings
    info: TargetInfo
    images: Images | None
    samples: list[Sample]
    split: Split
    ids: torch.Tensor
    earlier: Earlier | None
    accelerator: Any
    dtype: torch.dtype


def _teach(job: _Job, found: state.State | None, same: dict[str, Any]) -> state.Progress:
    """Train from the state `found`, or from the start, and return the progress at the end."""
    with job.accelerator.main_process_first():  # the first writes the features on disk, the others find them
        source, frozen, seconds = _features(job)
    settings = job.settings.after(seconds)
    model, export = _draft(settings, job.info, frozen, job.ids, job.earlier)
    loop = Loop(model, Lesson(job.samples, job.split, source), settings, job.accelerator, export)
    if found is not None:
        loop.restore(found)
    journal = None
    if job.accelerator.is_main_process:
        journal = metrics.Journal(settings.output, loop.progress.step, loop.share_done)
    try:
        loop.run(journal, same)
    finally:
        if journal is not None:
            journal.close()
    return loop.progress


def _features(job: _Job) -> tuple[FeatureSource, Frozen, float]:
    """Return the source of batches, the target's frozen weights, and the seconds that the run spent on features."""
    settings, info, samples = job.settings, job.info, job.samples
    place = (job.dtype, job.accelerator.device)
    online = partial(_online, info, samples, job.images, settings.max_length, place)
    folder = _feature_folder(settings, info, store.n_bytes(info, samples, job.dtype))
    if folder is None:
        return *online(), 0.0
    name = str(settings.output.resolve()) if settings.features != AUTO else ""  # the output folder may move
    on_disk = FeatureStore(folder, info, samples, *place, run=name)
    if not settings.resume:
        on_disk.start_run()
    if not on_disk.is_complete:
        with progress("running the target", done=on_disk.n_done / len(samples)) as on_progress:
            on_disk.write(*online(), settings.batch_size, on_progress)
    return on_disk, on_disk.frozen(), on_disk.seconds


def _seconds_per_token(settings: Settings, info: TargetInfo, accelerator: Any, dtype: torch.dtype) -> float:
    """Measure the time that a token of data needs once it is written: the target's pass, and EPOCHS of training."""
    n = min(PROBE, settings.max_length)
    tokens = np.arange(n, dtype=np.int32) % info.n_vocab
    samples = [Sample("", tokens, np.ones(n, np.bool_))] * settings.batch_size
    source, frozen = _online(info, samples, None, settings.max_length, (dtype, accelerator.device))
    ids = torch.arange(min(settings.n_vocab_draft or TYPICAL_VOCAB, info.n_vocab))
    model = _draft(settings, info, frozen, ids, None)[0].to(accelerator.device)
    optimizer = torch.optim.AdamW(model.draft.parameters(), fused=True)

    batch = source.batch(range(settings.batch_size))

    def train_step() -> None:
        with accelerator.autocast():
            loss = model(*batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()  # waits for a GPU

    target_pass = partial(source.batch, range(settings.batch_size))
    return (_second_time(target_pass) + EPOCHS * _second_time(train_step)) / (n * settings.batch_size)


def _second_time(work: Callable[[], Any]) -> float:
    """Return the seconds of the second call; the first includes what happens once."""
    work()
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _target(settings: Settings, earlier: Earlier | None) -> TargetInfo:
    named = settings.aux_layers or (earlier.aux_layers if earlier is not None else None)
    aux_layers = () if settings.kind == MTP else named
    if not is_gguf(settings.target):
        return read_target(settings.target, aux_layers)
    return read_engine_target(settings.target, aux_layers)


def _feature_folder(settings: Settings, info: TargetInfo, n_bytes: int) -> Path | None:
    """Return the folder for stored features; None: the target runs in the loop.

    Automatic: the features of a GGUF are stored in the output folder during the run if several epochs use them and the
    disk has room for SPARE times as much.
    """
    if settings.features not in (AUTO, NONE):
        return Path(settings.features)
    folder = settings.output / FEATURES
    if settings.features == NONE or not isinstance(info, EngineTargetInfo) or settings.epochs == 1:
        return None
    settings.output.mkdir(parents=True, exist_ok=True)
    if folder.exists():
        return folder
    size = console.size(n_bytes)
    if shutil.disk_usage(settings.output).free < SPARE * n_bytes:
        console.note(f"the disk has too little room for the target's states ({size}): they are computed in each epoch")
        return None
    console.note(f"the target's states are stored in {folder} until the run ends: {size}")
    return folder


def _online(
    info: TargetInfo,
    samples: list[Sample],
    images: Images | None,
    max_length: int,
    place: tuple[torch.dtype, torch.device],
) -> tuple[FeatureSource, Frozen]:
    """Return a source of batches that runs the target in the loop."""
    if isinstance(info, EngineTargetInfo):
        engine = _engine(info, max_length, place[1])
        frozen = {
            name: tensor.to(place[1], tensor.dtype if name in IN_F32 else place[0])
            for name, tensor in engine.frozen().tensors().items()
        }
        return EngineFeatures(engine, samples, *place), Frozen(**frozen)
    target = Target(info, *place)
    return OnlineFeatures(target, images, samples), target.frozen()


def _engine(info: EngineTargetInfo, max_length: int, device: torch.device) -> EngineTarget:
    return EngineTarget(info, max_length, n_gpu_layers=gpu_layers(device.type == "cuda"))


def _draft(
    settings: Settings, info: TargetInfo, frozen: Frozen, ids: torch.Tensor, earlier: Earlier | None
) -> tuple[TrainingPass, Callable[[Sequence[float]], None]]:
    """Build a draft before its first step, wrapped in its training pass, and its export function."""
    if settings.kind == MTP:
        head = make_head(info, frozen, ids, settings.seed, Path(settings.init) if settings.init else None)
        return _pass(settings, head, frozen, ids), partial(
            export_head, head, info, settings.output, trained_length=settings.max_length
        )
    if settings.kind == DSPARK:
        mask = mask_token(info)
        block = make_block_draft(info.geometry(len(ids), settings.ffn_size), frozen, ids, mask, settings.seed)
        given = {"draft_ids": ids, "mask_token": mask, "n_steps": settings.n_steps, "aux_layers": info.aux_layers}
        return _pass(settings, block, frozen, ids), partial(
            export_block_draft, block, settings.output, **given, trained_length=settings.max_length
        )
    geometry = choose_geometry(settings, info, len(ids), earlier)
    draft = make_draft(geometry, frozen, ids, settings.seed, earlier)
    name = Path(settings.target)

    def export(acceptance: Sequence[float]) -> None:
        export_draft(
            draft,
            settings.output,
            layout=settings.format,
            draft_ids=ids,
            embedding=frozen.embedding,
            acceptance=acceptance,
            trained_length=min(settings.max_length, geometry.window or settings.max_length),
            target=DraftOf(str(name.resolve() if name.exists() else name), info.architecture, info.aux_layers),
        )

    return _pass(settings, draft, frozen, ids), export


def _pass(
    settings: Settings, draft: Eagle3Draft | BlockDraft | MTPHead, frozen: Frozen, ids: torch.Tensor
) -> TrainingPass:
    return TrainingPass(draft, frozen, ids, n_steps=settings.n_steps, checkpointing=settings.checkpointing)


def _report(
    settings: Settings, progress: state.Progress, n_samples: int, n_vocab_draft: int, coverage: float
) -> Report:
    output = settings.output
    judged = [record for record in metrics.read_metrics(output / metrics.METRICS) if record["held_out"]]
    best: dict[str, Any] = max(judged, key=lambda record: record["mean_emitted"], default={})
    ended = progress.ended
    if progress.stopped_early and n_samples < ENOUGH_SAMPLES:
        kind = "conversations" if settings.data == (str(output / FILE),) else "samples"
        ended += f": {n_samples} {kind} are too few"
    return Report(
        output=str(output),
        steps=progress.step,
        stopped_early=progress.stopped_early,
        ended=ended,
        n_samples=n_samples,
        n_vocab_draft=n_vocab_draft,
        vocab_coverage=coverage,
        mean_emitted=best.get("mean_emitted"),
        accuracy=best.get("accuracy"),
        plot=str(metrics.plot(output)),
    )
