"""One pass of test-time training: the draft unrolled over its steps, judged by the target's own distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from llama_eagle.train.dspark.draft import BlockDraft
from llama_eagle.train.model import Eagle3Draft
from llama_eagle.train.mtp.head import MTPHead
from llama_eagle.train.targets.checkpoint import Frozen
from llama_eagle.train.targets.output import capped
from torch import Tensor, nn
from torch.nn.functional import linear

LOSS = "reached in rounds"  # name in the identity of a run; change it with the loss
CHUNK_ELEMENTS = 1 << 25  # logits held at a time; each chunk adds once to the gradient of the whole head


class Outcome(NamedTuple):
    """loss: the sum over steps, as `HeadLoss` weights them. losses: [K], each step's mean. counts: [K, 2], slots whose
    earlier drafts were all right, and those of them that are right again."""

    loss: Tensor
    losses: Tensor
    counts: Tensor


@dataclass(frozen=True)
class Teacher:
    """The target's predictions at the positions to learn, ordered by position: rows of step k are a suffix.

    batch, position: [R]. best: [R], the target's choice over its whole vocabulary. probabilities: [R, D], its
    distribution over the draft vocabulary. weight: [R], 0 if the draft vocabulary lacks that choice.
    """

    batch: Tensor
    position: Tensor
    best: Tensor
    probabilities: Tensor
    weight: Tensor


@dataclass(frozen=True)
class Piece:
    """Step k's share of the rows: those of the teacher from `first` on. slot: [N], indices into the flat batch [B * S]
    of the slots that drafted them; weight: [N], the teacher's."""

    first: int
    slot: Tensor
    weight: Tensor


class TrainingPass(nn.Module):
    """The draft together with what is frozen: the target's embeddings and output, and the draft ids [D]."""

    embedding: Tensor
    head: Tensor
    bias: Tensor | None
    cap: Tensor | None
    draft_head: Tensor  # the head's rows of the draft vocabulary, [D, H]
    draft_bias: Tensor | None
    draft_ids: Tensor
    is_drafted: Tensor

    def __init__(
        self,
        draft: Eagle3Draft | BlockDraft | MTPHead,
        target: Frozen,
        draft_ids: Tensor,
        *,
        n_steps: int,
        checkpointing: bool,
    ) -> None:
        super().__init__()
        self.draft = draft
        self.n_steps = n_steps
        self.checkpointing = checkpointing
        head, bias = target.head, target.bias
        is_drafted = torch.zeros(len(head), dtype=torch.bool).index_fill(0, draft_ids, True)
        is_whole = len(draft_ids) == len(head)
        frozen = {
            "embedding": target.embedding, "head": head, "bias": bias, "cap": target.cap, "draft_ids": draft_ids,
            "draft_head": head if is_whole else head[draft_ids], "is_drafted": is_drafted,
            "draft_bias": bias if bias is None or is_whole else bias[draft_ids],
        }  # fmt: skip
        for name, tensor in frozen.items():
            self.register_buffer(name, tensor, persistent=False)

    def forward(
        self,
        tokens: Tensor,
        mask: Tensor,
        features: Tensor,
        final: Tensor,
        embedded: Tensor | None = None,
        positions: Tensor | None = None,
        best: Tensor | None = None,
    ) -> Outcome:
        """Compute the losses of a batch; arguments are the fields of `Batch`.

        mask: true for tokens to be predicted. final: after the target's last norm.
        """
        teacher = self._teach(mask, final, best)
        given = self.embedding[tokens] if embedded is None else embedded, features, final
        steps = self.draft.unroll(*given, self.n_steps, positions=positions, checkpointing=self.checkpointing)
        # Step k's slot i is judged by the teacher's row at position i + 1 + k.
        first = [int((teacher.position <= k).sum()) for k in range(len(steps))]
        rows = [
            x[teacher.batch[f:], teacher.position[f:] - 1 - k]
            for k, (x, f) in enumerate(zip(steps, first, strict=True))
        ]
        slot = teacher.batch * tokens.shape[1] + teacher.position - 1
        pieces = [Piece(f, slot[f:] - k, teacher.weight[f:]) for k, f in enumerate(first)]
        normed, weight = self.draft.norm(torch.cat(rows)), self.draft.lm_head.weight
        if isinstance(self.draft, BlockDraft):
            before = tokens[teacher.batch, teacher.position]
            normed, weight = self.draft.with_markov(normed, torch.cat([before[f:] for f in first]))
        reached = torch.ones(tokens.numel(), device=tokens.device)
        given = teacher.probabilities, pieces, reached, torch.is_grad_enabled()
        loss, losses, choice = HeadLoss.apply(normed, weight, *given)
        return Outcome(loss, losses, self._count(choice, pieces, teacher, tokens.numel()))

    @torch.no_grad()
    def _teach(self, mask: Tensor, final: Tensor, stored: Tensor | None) -> Teacher:
        position, batch = mask[:, 1:].T.nonzero(as_tuple=True)  # the row at p predicts token p + 1
        position, batch = position[position > 0], batch[position > 0]  # no slot is judged by the row at 0
        rows = final[batch, position]
        probabilities = torch.empty(len(rows), len(self.draft_ids), device=rows.device)
        for start, stop in _chunks(len(rows), len(self.draft_ids)):
            logits = linear(rows[start:stop], self.draft_head, self.draft_bias).float()
            probabilities[start:stop] = capped(logits, self.cap).softmax(-1)
        if stored is not None:
            best = stored[batch, position]
        elif len(self.draft_ids) == len(self.head):
            best = probabilities.argmax(-1)
        else:
            best = choices(rows, self.head, self.bias)
        return Teacher(batch, position, best, probabilities, self.is_drafted[best].float())

    @torch.no_grad()
    def _count(self, choice: Tensor, pieces: list[Piece], teacher: Teacher, n_slots: int) -> Tensor:
        """Return the counts [K, 2] of Outcome. Steps beyond the sequence length are zero."""
        counts = torch.zeros(self.n_steps, 2, dtype=torch.long, device=choice.device)
        alive = torch.ones(n_slots, dtype=torch.bool, device=choice.device)
        parts = self.draft_ids[choice].split([len(piece.slot) for piece in pieces])
        for k, (piece, drafted) in enumerate(zip(pieces, parts, strict=True)):
            before = alive[piece.slot]
            after = before & (drafted == teacher.best[piece.first :])
            counts[k, 0], counts[k, 1] = before.sum(), after.sum()
            alive = torch.zeros_like(alive).index_copy_(0, piece.slot, after)
        return counts


class HeadLoss(torch.autograd.Function):
    """The head and its soft cross-entropy at once, a piece at a time: no more than one chunk of logits ever exists.

    A row weighs the probability that all earlier drafts of its slot are accepted, the product of their sums of
    min(teacher, draft): what follows a rejection is never used. That is 0 behind a token that is not to be learned,
    where no round drafts, and behind one that the draft vocabulary lacks. The gradient with respect to the logits is
    (softmax - teacher) * scale, known as soon as the logits are; it is carried on to the inputs at once and only scaled
    in the backward pass.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, teacher: Tensor, pieces: list[Piece], reached: Tensor, with_grad: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the loss, each piece's unweighted mean loss [K] and the best row of the head [M].

        x: [M, H], the pieces' rows one after the other; weight: [D, H]; teacher: [R, D]; reached: [B * S], the
        first step's weights, 1.
        """
        weight = weight.to(x.dtype)
        choice = torch.empty(len(x), dtype=torch.long, device=x.device)
        x_grad, weight_grad = torch.empty_like(x), torch.zeros_like(weight, dtype=torch.float32)
        n_slots = pieces[0].weight.sum().clamp(min=1)
        loss, losses, start = torch.zeros((), device=x.device), [], 0
        for piece in pieces:
            total = torch.zeros((), device=x.device)
            before, reached = reached, torch.zeros_like(reached)
            for low, high in _chunks(len(piece.slot), len(weight)):
                here = slice(start + low, start + high)
                logits = linear(x[here], weight).float()
                expected = teacher[piece.first + low : piece.first + high]
                slot, learned = piece.slot[low:high], piece.weight[low:high]
                chance = learned * before[slot]
                scale = chance / n_slots
                best, choice[here] = logits.max(-1)
                probabilities = logits.softmax(-1)
                # log sum exp, by way of the largest logit and its probability
                log_sum = best - probabilities.gather(-1, choice[here, None])[:, 0].log()
                each = log_sum - torch.linalg.vecdot(expected, logits)
                loss += (scale * each).sum()
                total += (learned * each).sum()
                reached[slot] = chance * torch.minimum(expected, probabilities, out=logits).sum(-1)
                if with_grad:
                    gradient = probabilities.sub_(expected).mul_(scale[:, None]).to(x.dtype)
                    x_grad[here] = gradient @ weight
                    weight_grad += gradient.T @ x[here]
            start += len(piece.slot)
            losses.append(total / piece.weight.sum().clamp(min=1))
        ctx.save_for_backward(x_grad, weight_grad)
        ctx.mark_non_differentiable(choice)
        return loss, torch.stack(losses), choice

    @staticmethod
    def backward(ctx: Any, loss_grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        x_grad, weight_grad = ctx.saved_tensors
        return x_grad * loss_grad, weight_grad * loss_grad, None, None, None, None


def choices(final: Tensor, head: Tensor, bias: Tensor | None) -> Tensor:
    """Return the token that the target's head [V, T] prefers after each row of `final` [N, T], as [N]."""
    best = torch.empty(len(final), dtype=torch.long, device=final.device)
    for start, stop in _chunks(len(final), len(head)):
        best[start:stop] = linear(final[start:stop], head, bias).argmax(-1)
    return best


def _chunks(n_rows: int, row_size: int) -> list[tuple[int, int]]:
    step = max(16, CHUNK_ELEMENTS // row_size)
    return [(start, min(start + step, n_rows)) for start in range(0, n_rows, step)]
