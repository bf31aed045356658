"""Checks of a target's keys and tensors by its family's table."""

from __future__ import annotations

from collections.abc import Iterator

from llama_eagle.gguf.header import ArrayRef, Header, TensorInfo
from llama_eagle.gguf.rotation import QWEN3VL_SECTIONS, unassigned_pairs
from llama_eagle.gguf.validate.families import FAMILIES, MODEL, NEXTN, REQUIRED, SCORES, Family
from llama_eagle.gguf.validate.keys import check_keys
from llama_eagle.gguf.validate.table import Block, Heads, check_heads, check_tensors, unknown_names


class _Keys:
    """A target's numbers, after their types were checked."""

    def __init__(self, header: Header) -> None:
        self.header = header
        self.n_all = int(header.arch_key("block_count"))
        self.n_nextn = int(header.arch_key("nextn_predict_layers", 0))
        self.recurrent = self._recurrent()

    def number(self, name: str, default: int = 0) -> int:
        """Return a scalar, or an array's entry for the first block: llama.cpp's tables have one width for all."""
        return self.header.number(name, default)

    def _recurrent(self) -> list[bool]:
        """Return one value per block. Those of prediction blocks have no meaning."""
        found = self.header.arch_key("attention.recurrent_layers")
        if isinstance(found, list):
            return [bool(value) for value in found]
        if self.header.arch_key("ssm.state_size") is None:
            return [False] * self.n_all
        interval = int(self.header.arch_key("full_attention_interval", 4))
        return [(i + 1) % interval != 0 for i in range(self.n_all)]


def check_target(header: Header, tensors: dict[str, TensorInfo]) -> Iterator[str]:
    """Yield every reason why llama.cpp cannot run the model. tensors: of all its files."""
    family = FAMILIES[header.architecture]
    prefix = f"{header.architecture}."
    faults = [*check_keys(header, REQUIRED + family.keys, prefix=prefix), *_check_layers(header, family)]
    yield from faults
    if faults:
        return  # tensors cannot be checked against wrong sizes
    keys = _Keys(header)
    faults = [*_check_attention(keys, family), *_check_linear(keys, family)]
    yield from faults
    if not faults:
        sizes = _sizes(keys)
        if "d2t" in tensors and not _has_trunk(keys, tensors):  # a head alone, with a vocabulary of its own
            sizes["out"] = tensors["d2t"].n_elements
        yield from check_tensors(_blocks(keys, family, tensors), sizes, tensors)


def target_sizes(header: Header) -> dict[str, int]:
    """Return the sizes in the keys of a sound target, by the names of its family's table."""
    return _sizes(_Keys(header))


def recurrent_blocks(header: Header) -> list[bool]:
    """Return one value per block of a sound target: True for one with a recurrent state."""
    return _Keys(header).recurrent


def unknown_tensors(header: Header, tensors: dict[str, TensorInfo]) -> list[str]:
    """Return the names that the family's table lacks."""
    return unknown_names(_blocks(_Keys(header), FAMILIES[header.architecture], tensors), tensors)


def _check_layers(header: Header, family: Family) -> Iterator[str]:
    n_all = header.keys.get(f"{header.architecture}.block_count")
    n_nextn = header.keys.get(f"{header.architecture}.nextn_predict_layers", 0)
    if isinstance(n_all, int) and isinstance(n_nextn, int) and n_nextn >= n_all:
        yield f"{n_nextn} prediction blocks of {n_all} blocks (nextn_predict_layers)"
    for name, kinds, count in (
        ("attention.recurrent_layers", (4, 5, 7), n_all),
        ("rope.dimension_sections", (4, 5), 4),
    ):
        value = header.keys.get(f"{header.architecture}.{name}")
        if isinstance(value, ArrayRef) and value.count != count:
            yield f"the key {header.architecture}.{name} has wrong array length; expected {count}, got {value.count}"
        elif isinstance(value, ArrayRef) and value.type_id not in kinds:
            yield f"the key {header.architecture}.{name} has another type than u32"
        elif value is not None and not isinstance(value, ArrayRef):
            yield f"the key {header.architecture}.{name} is not an array"
    if family.sections and f"{header.architecture}.rope.dimension_sections" not in header.keys:
        yield f"the key {header.architecture}.rope.dimension_sections is missing"


def _check_attention(keys: _Keys, family: Family) -> Iterator[str]:
    n_head = keys.number("attention.head_count")
    n_head_kv = keys.number("attention.head_count_kv", n_head)
    default = keys.number("embedding_length") // max(n_head, 1)
    head, value = (keys.number(f"attention.{name}_length", default) for name in ("key", "value"))
    n_rot = keys.number("rope.dimension_count", head)
    yield from check_heads(Heads(n_head, n_head_kv, head, value, n_rot))
    if family.whole_rope and n_rot != head:
        yield f"{n_rot} rotary dimensions of heads of {head}; this family rotates whole heads (rope.dimension_count)"
    sections = keys.header.arch_key("rope.dimension_sections", [])
    if family.sections and not (min(sections) >= 0 and 0 < sum(sections[:3]) <= sum(sections) <= head):
        yield f"rotary sections of {sections} in heads of {head} (rope.dimension_sections)"
    elif family.sections and sections[:3] != QWEN3VL_SECTIONS and (left := unassigned_pairs(sections, n_rot // 2)):
        yield f"rotary sections of {sections} do not rotate pair {left[0]} of {n_rot // 2} (rope.dimension_sections)"
    if not 0 <= keys.number("n_deepstack_layers") <= keys.n_all:
        yield f"{keys.number('n_deepstack_layers')} blocks take vision features, of {keys.n_all} (n_deepstack_layers)"


def _check_linear(keys: _Keys, family: Family) -> Iterator[str]:
    if not family.linear:
        return
    rank, groups, state = (keys.number(f"ssm.{name}") for name in ("time_step_rank", "group_count", "state_size"))
    if rank % groups:
        yield f"{rank} value heads do not divide into {groups} key heads (ssm.time_step_rank, ssm.group_count)"
    if keys.number("ssm.inner_size") != rank * state:
        yield f"ssm.inner_size is {keys.number('ssm.inner_size')}, {rank} heads of {state} values have {rank * state}"


def _sizes(keys: _Keys) -> dict[str, int]:
    embd, n_head, ff = (keys.number(n) for n in ("embedding_length", "attention.head_count", "feed_forward_length"))
    head = keys.number("attention.key_length", embd // n_head)
    state, rank = keys.number("ssm.state_size"), keys.number("ssm.time_step_rank")
    used = max(1, keys.number("expert_used_count"))
    n_vocab = keys.header.n_vocab or keys.number("vocab_size")
    labels = keys.header.arch_key("classifier.output_labels")  # of a reranking model
    return {
        "embd": embd,
        "vocab": n_vocab,
        "out": n_vocab,
        "labels": len(labels) if isinstance(labels, list) else 1,
        "ff": ff,
        "eff": keys.number("expert_feed_forward_length") or ff // used,
        "sff": keys.number("expert_shared_feed_forward_length") or ff,
        "experts": keys.number("expert_count"),
        "q": n_head * head,
        "k": keys.number("attention.head_count_kv", n_head) * head,
        "head": head,
        "rot": keys.number("rope.dimension_count", head) // 2,
        "lk": keys.number("ssm.group_count") * state,
        "lv": rank * state,
        "rank": rank,
        "state": state,
        "conv": keys.number("ssm.conv_kernel"),
    }


def _has_trunk(keys: _Keys, tensors: dict[str, TensorInfo]) -> bool:
    """Return True if the file is a complete model, not only prediction blocks."""
    return not keys.n_nextn or "blk.0.attn_norm.weight" in tensors


def _blocks(keys: _Keys, family: Family, tensors: dict[str, TensorInfo]) -> list[Block]:
    n_trunk = keys.n_all - keys.n_nextn
    has_trunk = _has_trunk(keys, tensors)
    full = family.mixed if family.mixed and keys.number("expert_count") else family.full
    blocks = [Block((*MODEL, SCORES) if family.scores else MODEL)]
    for i in range(n_trunk):
        rows = family.linear if keys.recurrent[i] and family.linear else full
        blocks.append(Block(rows, f"blk.{i}.", has_trunk))
    blocks += [Block((*full, *NEXTN), f"blk.{i}.") for i in range(n_trunk, keys.n_all)]
    return blocks
