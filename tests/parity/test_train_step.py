"""A pass of test-time training against the torch reference, slot by slot and step by step: loss, gradients, counts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from llama_eagle.train.export import DraftOf, export_draft
from llama_eagle.train.loss import Outcome, TrainingPass
from llama_eagle.train.model import Eagle3Draft, Geometry
from llama_eagle.train.targets.checkpoint import Frozen
from parity.eagle3_reference import Eagle3Reference

V, H, A = 48, 32, 3
N_STEPS, LENGTH = 4, 11


class Case:
    """Two sequences, the second shorter; not every token is to be learned."""

    def __init__(self, folder: Path, n_draft: int, window: int | None = None) -> None:
        random = torch.Generator().manual_seed(1)
        self.ids = torch.randperm(V, generator=random)[:n_draft].sort().values
        geometry = Geometry(
            hidden_size=H,
            n_head=4,
            n_head_kv=2,
            head_dim=10,
            ffn_size=40,
            n_vocab=V,
            n_vocab_draft=n_draft,
            n_aux=A,
            n_ctx=64,
            rms_eps=1e-5,
            rope_base=100.0,
            qk_norm=True,
            fc_norm=True,
            window=window,
        )
        self.draft = Eagle3Draft(geometry)
        for parameter in self.draft.parameters():
            mean = float(parameter.ndim == 1)
            value = mean + torch.randn(parameter.shape, generator=random) * (
                0.3 if mean else parameter.shape[-1] ** -0.5
            )
            parameter.data = value.bfloat16().float()  # as it will be stored
        self.embedding = torch.randn(V, H, generator=random)
        self.head = torch.randn(V, H, generator=random) / 2
        self.bias, self.cap = torch.randn(V, generator=random), torch.tensor(4.0)
        self.tokens = torch.randint(0, V, (2, LENGTH), generator=random)
        self.mask = torch.rand(2, LENGTH, generator=random) < 0.7
        self.mask[1, 8:] = False
        self.features = torch.randn(2, LENGTH, A * H, generator=random)
        self.final = torch.randn(2, LENGTH, H, generator=random)
        self.folder = folder
        export_draft(
            self.draft,
            folder,
            layout="specforge",
            draft_ids=self.ids,
            embedding=self.embedding,
            target=DraftOf("none", "", (2, 4, 5)),
        )

    def outcome(self, *, checkpointing: bool = False) -> Outcome:
        target = Frozen(self.embedding, self.head, torch.ones(H), bias=self.bias, cap=self.cap)
        model = TrainingPass(self.draft, target, self.ids, n_steps=N_STEPS, checkpointing=checkpointing)
        return model(self.tokens, self.mask, self.features, self.final)

    def reference(self) -> Eagle3Reference:
        reference = Eagle3Reference(self.folder, embedding=self.embedding)
        for tensor in reference.w.values():
            if tensor.is_floating_point():
                tensor.requires_grad_(True)
        return reference


def naive(case: Case, reference: Eagle3Reference) -> tuple[torch.Tensor, list[torch.Tensor], list[list[int]]]:
    """Loss, mean loss of each step and counts, slot by slot as the draft runs."""
    losses: list[list[torch.Tensor]] = [[] for _ in range(N_STEPS)]
    weighted: list[torch.Tensor] = []
    counts = [[0, 0] for _ in range(N_STEPS)]
    for row in range(2):
        tokens = case.tokens[row].tolist()
        for slot in range(LENGTH - 2):
            alive, reached = True, 1.0
            reference.reset()
            for i in range(slot):
                reference.slot(tokens[i + 1], reference.fuse(case.features[row, i]), i)
            hidden = reference.fuse(case.features[row, slot])
            for k in range(min(N_STEPS, LENGTH - 2 - slot)):
                step = reference.slot(tokens[slot + 1 + k], hidden, slot + k)
                hidden = step.hidden
                if not case.mask[row, slot + 2 + k]:
                    alive, reached = False, 0.0  # no round drafts there
                    continue
                teacher = case.head @ case.final[row, slot + 1 + k] + case.bias
                teacher = case.cap * (teacher / case.cap).tanh()
                best = int(teacher.argmax())
                counts[k][0] += alive
                alive = alive and step.token == best
                counts[k][1] += alive
                expected, logits = teacher[case.ids].softmax(-1), step.logits
                if best in case.ids:
                    losses[k].append(-(expected * logits.log_softmax(-1)).sum())
                    weighted.append(reached * losses[k][-1])
                accepted = torch.minimum(expected, logits.softmax(-1)).sum().item()
                reached *= accepted if best in case.ids else 0.0
    means = [torch.stack(values).mean() for values in losses]
    return torch.stack(weighted).sum() / len(losses[0]), means, counts


@pytest.mark.parametrize(
    ("n_draft", "checkpointing", "window"), [(20, False, None), (V, False, 3), (20, True, 4), (V, True, 10)]
)
def test_loss_gradients_and_counts(n_draft: int, checkpointing: bool, window: int | None, tmp_path: Path) -> None:
    case = Case(tmp_path, n_draft, window)
    reference = case.reference()
    loss, means, counts = naive(case, reference)
    found = case.outcome(checkpointing=checkpointing)
    torch.testing.assert_close(found.loss, loss)
    torch.testing.assert_close(found.losses, torch.stack(means))
    assert found.counts.tolist() == counts
    loss.backward()
    found.loss.backward()
    for name, parameter in case.draft.named_parameters():
        expected = reference.w[name.replace("midlayer.", "layers.0.")].grad
        assert expected.abs().max() > 0, name
        torch.testing.assert_close(
            parameter.grad, expected, rtol=1e-4, atol=1e-6, msg=lambda text, n=name: f"{n}: {text}"
        )


def test_chunks_of_the_head_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(tmp_path, 20)
    whole = case.outcome()
    whole.loss.backward()
    gradients = [parameter.grad.clone() for parameter in case.draft.parameters()]
    case.draft.zero_grad()
    monkeypatch.setattr("llama_eagle.train.loss.CHUNK_ELEMENTS", 1)
    chunked = case.outcome()
    chunked.loss.backward()
    torch.testing.assert_close(chunked, whole)
    torch.testing.assert_close([parameter.grad for parameter in case.draft.parameters()], gradients)


def test_nothing_to_learn_is_no_loss_and_no_gradient(tmp_path: Path) -> None:
    case = Case(tmp_path, 20)
    case.mask[:] = False
    found = case.outcome()
    found.loss.backward()
    assert found.loss == 0
    assert found.counts.sum() == 0
    assert all(parameter.grad is None or not parameter.grad.any() for parameter in case.draft.parameters())


def test_a_sequence_shorter_than_the_steps(tmp_path: Path) -> None:
    case = Case(tmp_path, 20)
    case.tokens, case.mask, case.features, case.final = (
        part[:, :4] for part in (case.tokens, case.mask | True, case.features, case.final)
    )
    found = case.outcome()
    assert len(found.losses) == 2
    assert found.counts[:, 0].tolist()[2:] == [0, 0]
