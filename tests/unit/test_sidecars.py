"""The draft that is taken if none is named: by the names of files and models, never by shape alone."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import gguf
import pytest
from fixtures.dflash import DFlashSpec, make_dflash
from fixtures.eagle3_checkpoints import DraftSpec, make_draft, make_target_gguf
from fixtures.tiny_gguf import Variant, finish, write_draft, write_target
from fixtures.upstream import source_folder
from llama_eagle.convert.drafts import convert_draft
from llama_eagle.drafting import price as price_module
from llama_eagle.drafting.options import AUTO, LOOKUP, NONE, DraftingOptions
from llama_eagle.drafting.price import Costs, keep, learn, price
from llama_eagle.drafting.resolve import BY_LOOKUP, resolve, without_lookup
from llama_eagle.errors import EnvironmentFailure, IncompatibleModels, InputError, UsageError
from llama_eagle.gguf import architectures, mtp, names
from llama_eagle.gguf.header import read_model
from llama_eagle.gguf.names import FileName, read_name
from llama_eagle.pairs import DFLASH, DFLASH2, DSPARK, EAGLE3, PAIRS, PEAGLE, find_pairs, kept_draft
from llama_eagle.sessions.options import MTP


@pytest.fixture
def chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """The draft's name, or the reason for none, in a folder with these files: those with "draft" or "eagle" are one."""
    monkeypatch.setenv("LLAMA_EAGLE_CACHE", str(tmp_path / "cache"))

    def choose(target: str, *others: str) -> str:
        for name in (target, *others):
            is_draft = "draft" in name or "eagle" in name
            (write_draft if is_draft else write_target)(tmp_path / name)
        choice = resolve(tmp_path / target, DraftingOptions())
        for name in (target, *others):
            (tmp_path / name).unlink()
        return choice.options.draft_file.name if choice.options.draft_file else choice.why

    return choose


@pytest.mark.parametrize(
    ("target", "others", "draft"),
    [
        ("m.gguf", ["my-draft.gguf"], "my-draft.gguf"),  # the only one
        ("m.gguf", ["my-draft-Q8_0.gguf", "my-draft-F16.gguf"], "my-draft-F16.gguf"),
        ("m.gguf", ["a-draft.gguf", "b-draft.gguf"], None),
        ("m.gguf", ["other.gguf", "my-draft.gguf"], None),  # neither name says more
        ("m-Q4_K_M.gguf", ["other.gguf", "eagle3-m-Q8_0.gguf"], "eagle3-m-Q8_0.gguf"),
        ("m-Q8_0.gguf", ["eagle3-m-F16.gguf", "eagle3-m-Q8_0.gguf"], "eagle3-m-Q8_0.gguf"),
        ("m-4b.Q4_0.gguf", ["m-4b-instruct.gguf", "m-4b-instruct-eagle3.gguf"], None),
        ("m-4b.Q4_0.gguf", ["m-4b_eagle3.gguf", "m-40b_eagle3.gguf"], "m-4b_eagle3.gguf"),
    ],
)
def test_by_name_or_the_only_one(target: str, others: list[str], draft: str | None, chosen: Callable[..., str]) -> None:
    found = chosen(target, *others)
    assert found == draft if draft else found == BY_LOOKUP


def test_one_that_does_not_fit_is_named(chosen: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "mtp-m.gguf").write_text("damaged")
    assert f"{BY_LOOKUP}; mtp-m.gguf, next to the target, does not fit: " in chosen("m.gguf")


def test_the_best_price_of_several_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The target's own head, its copy in a file, a chain and a block draft: by bytes, then by what was measured."""
    monkeypatch.setenv("LLAMA_EAGLE_CACHE", str(tmp_path / "cache"))
    target = make_target_gguf(tmp_path / "m.gguf")
    head = "the target's own MTP head drafts (draft=none turns it off)"
    assert resolve(target, DraftingOptions()).why.startswith(f"{head}; prompt look-up")
    files = {name: tmp_path / f"{name}-m.gguf" for name in ("mtp", "eagle3", "dflash")}
    shutil.copy(target, files["mtp"])  # only the head of this whole model counts
    convert_draft(make_draft(tmp_path / "chain", DraftSpec()), target, files["eagle3"])
    convert_draft(make_dflash(tmp_path / "block", DFlashSpec()), target, files["dflash"])
    models = {name: read_model(path)[1] for name, path in {"m": target, **files}.items()}

    def chosen() -> tuple[str, str]:
        choice = resolve(target, DraftingOptions(draft=AUTO))
        return str(choice.options.draft), choice.why

    prices = {name: price(models["m"], None if name == "m" else models[name]) for name in models}
    assert prices["m"] == prices["mtp"] and prices["dflash"].speed > prices["m"].speed, "it is read once for a block"
    draft, why = chosen()
    assert draft == str(files["dflash"])
    assert f"its price is the best of 4: {prices['dflash']} (draft=mtp: {prices['m']}, " in why
    assert "computed from bytes" in why and "measured" not in why
    for name in ("mtp", "eagle3"):
        keep(models["m"], models[name], Costs([0.9], row=0.0, token=0.01 * (name == "mtp")))
        draft, why = chosen()
        assert draft == str(files[name]) and f"{price(models['m'], models[name])} (" in why and "measured" in why
    with monkeypatch.context() as patch:
        patch.setattr(price_module, "kept_json", Mock(side_effect=EnvironmentFailure("no home folder")))
        assert chosen()[0] == str(files["dflash"]), "without a cache, prices are computed"
    files["eagle3"].touch()
    assert chosen()[0] == str(files["mtp"]), "measured with another file"
    files["mtp"].unlink()
    files["dflash"].write_text("damaged")
    assert chosen()[0] == MTP and "dflash" not in chosen()[1]


def test_a_draft_that_does_not_pay_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By measured costs, and by the acceptance of earlier use; a draft that is named is used all the same."""
    monkeypatch.setenv("LLAMA_EAGLE_CACHE", str(tmp_path / "cache"))
    target, draft = make_target_gguf(tmp_path / "m.gguf"), tmp_path / "eagle3-m.gguf"
    convert_draft(make_draft(tmp_path / "chain", DraftSpec()), target, draft)
    models = read_model(target)[1], read_model(draft)[1]
    only = DraftingOptions(draft=draft)
    keep(models[0], None, Costs([0.1], row=0.1, token=0.1))  # its own head
    keep(*models, Costs([0.9], row=0.05, token=0.05))
    learn(target, draft, [50], [0])
    assert price(*models).acceptance == "earlier use" and price(*models).pays
    learn(target, draft, [5000, 40], [200, 10])
    cost = price(*models)
    assert cost.speed < 1
    choice = resolve(target, DraftingOptions())
    slow = f"drafts would be slower than none: draft=mtp: {price(models[0])}, draft={draft}: {cost}"
    assert (choice.options.draft, choice.why) == (LOOKUP, f"{BY_LOOKUP}; {slow}")
    assert resolve(target, only).options.draft == draft
    learn(target, draft, [4000] * 2, [3900] * 2)  # later use counts more than earlier
    assert resolve(target, DraftingOptions()).options.draft == draft
    draft.touch()  # another file: what was seen with the old one is not used
    assert price(*models).acceptance == "typical"


def test_acceptance_of_training_is_in_the_file(tmp_path: Path) -> None:
    """A draft that hardly learned anything has a price below plain decoding."""
    target = make_target_gguf(tmp_path / "m.gguf")
    for name, rates, length in (("good", [0.8, 0.7], 512), ("poor", [0.05, 0.01], None)):
        folder = make_draft(tmp_path / name, DraftSpec())
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(
            json.dumps({**config, "held_out_acceptance": rates, "trained_length": length})
        )
        convert_draft(folder, target, tmp_path / f"{name}.gguf")
        header = read_model(tmp_path / f"{name}.gguf")[1]
        assert header[0].keys.get("llama_eagle.trained_length") == length
        cost = price(read_model(target)[1], header)
        assert (cost.acceptance, cost.pays) == ("held out", name == "good")
        assert str(cost).endswith("computed from bytes and held-out acceptance")


def test_price_by_lengths() -> None:
    """Compare with sums by hand; positions that were not measured have the mean rate."""
    costs = Costs([0.5, 0.25], row=0.1, token=0.2)
    assert costs.speed(1) == pytest.approx(1.5 / 1.3)
    assert costs.speed(3) == pytest.approx((1 + 0.5 + 0.125 + 0.125 * 0.375) / 1.9)
    assert Costs([0.5], row=0.1, token=0.0, block=0.4).speed(2) == pytest.approx(1.75 / 1.6)


def test_look_up_drafts_unless_it_is_turned_off(tmp_path: Path) -> None:
    target = write_target(tmp_path / "m.gguf")
    choice = resolve(target, DraftingOptions())
    assert choice.options.draft == LOOKUP
    assert choice.why == BY_LOOKUP
    for off in (DraftingOptions(draft=NONE), DraftingOptions(lookup=False)):
        choice = resolve(target, off)
        assert (choice.options.draft, choice.options.longest) == (NONE, 0)
        assert choice.why.startswith("no drafter")


def test_a_head_that_the_target_lacks_is_named(tmp_path: Path) -> None:
    """No advice to convert a draft: another file next to it, or another drafter."""
    asked = DraftingOptions(draft=MTP)
    target = write_target(tmp_path / "m.gguf")  # Qwen3.5, whose checkpoints have heads
    with pytest.raises(
        InputError, match=r"m\.gguf has no MTP head: the file was written without it.*draft=FILE names a draft"
    ):
        resolve(target, asked)
    write_draft(draft := tmp_path / "eagle3-m.gguf")
    with pytest.raises(InputError, match=rf"draft={draft} names a draft, draft=lookup drafts from the text"):
        resolve(target, asked)
    writer = gguf.GGUFWriter(other := tmp_path / "other.gguf", "llama")
    writer.add_token_list(["a"])
    finish(writer, other)
    with pytest.raises(InputError, match=r"other\.gguf has no MTP head: llama models have none"):
        resolve(other, asked)


def test_look_up_gives_way_only_where_nobody_asked_for_it(tmp_path: Path) -> None:
    target = write_target(tmp_path / "m.gguf")
    default = DraftingOptions()
    assert without_lookup(resolve(target, default), default, "a reason").why == "no drafter: a reason"
    for asked in (DraftingOptions(draft=LOOKUP), DraftingOptions(lookup=True)):
        assert without_lookup(resolve(target, asked), asked, "a reason").options.draft == LOOKUP


def test_a_target_that_copies_its_state_is_looked_up_on_request(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(target := tmp_path / "m.gguf", "bailingmoe3")
    finish(writer, target)
    choice = resolve(target, DraftingOptions())
    assert (choice.options.draft, choice.options.longest) == (NONE, 0)
    assert choice.why.endswith("(draft=lookup turns it on)")
    assert resolve(target, DraftingOptions(lookup=True)).options.looks_up


def test_a_target_whose_state_cannot_go_back_gets_no_drafter(tmp_path: Path) -> None:
    """Neither by default, which says why, nor by name."""
    writer = gguf.GGUFWriter(target := tmp_path / "m.gguf", "minimax-01")
    finish(writer, target)
    choice = resolve(target, DraftingOptions())
    assert (choice.options.draft, choice.why) == (
        NONE,
        "no drafter: the recurrent state of minimax-01 models cannot be rolled back in this build",
    )
    for asked in (
        DraftingOptions(draft=LOOKUP),
        DraftingOptions(lookup=True),
        DraftingOptions(draft=NONE, lookup=True),
    ):
        with pytest.raises(IncompatibleModels, match=r"m\.gguf: .* cannot be rolled back .*draft=none"):
            resolve(target, asked)


def test_the_lists_of_recurrent_architectures_are_those_of_the_build() -> None:
    source = (source_folder() / "src/llama-arch.cpp").read_text()
    names = dict(re.findall(r"\{ (LLM_ARCH_\w+),\s+\"([^\"]+)\"", source))

    def listed(function: str) -> set[str]:
        body = re.search(rf"bool llm_arch_{function}\(.*?\n}}", source, re.S)
        assert body is not None
        return {names[arch] for arch in re.findall(r"case (\w+):", body[0])}

    assert listed("is_recurrent") | listed("is_hybrid") == architectures.RECURRENT
    assert listed("supports_rs_rollback") == architectures.REPLAYED | architectures.COPIED
    assert architectures.REPLAYED >= mtp.ARCHITECTURES


def test_published_drafts_that_run_has_kept(chosen: Callable[..., str]) -> None:
    pair, other = find_pairs(["Qwen/Qwen3-8B"])[:2]
    assert f"{pair.draft} is published for Qwen/Qwen3-8B: llama-eagle pull " in chosen("Qwen3-8B-Q4_K_M.gguf")
    kept_draft(pair).parent.mkdir(parents=True)
    write_draft(kept_draft(pair))
    assert chosen("Qwen3-8B-Q4_K_M.gguf") == kept_draft(pair).name
    assert (
        chosen("Qwen3-8B-Q4_K_M.gguf", "a-draft.gguf", "b-draft.gguf") == kept_draft(pair).name
    )  # neither name says more
    assert chosen("Qwen3-8B-Q4_K_M.gguf", "a-draft.gguf") == "a-draft.gguf"
    assert chosen("Qwen3-8B-abliterated-Q4_K_M.gguf") == BY_LOOKUP
    kept_draft(other).parent.mkdir(parents=True)
    write_draft(kept_draft(other))
    assert chosen("Qwen3-8B-Q4_K_M.gguf") == kept_draft(pair).name  # its rounds read less
    write_draft(kept_draft(pair), Variant(hidden=32))
    assert chosen("Qwen3-8B-Q4_K_M.gguf") == kept_draft(other).name
    kept_draft(other).unlink()
    assert f"{pair.draft}, published for Qwen/Qwen3-8B, does not fit" in chosen("Qwen3-8B-Q4_K_M.gguf")


@pytest.mark.parametrize("name", ["qwen/qwen3-8b", "unsloth/Qwen3-8B-GGUF", "x/Qwen_Qwen3-8B-i1-GGUF", "Qwen3 8B"])
def test_names_of_a_published_target(name: str) -> None:
    assert {pair.target for pair in find_pairs(["something/else", name])} == {"Qwen/Qwen3-8B"}


def test_published_pairs_have_the_form_of_hub_ids() -> None:
    assert len({pair.draft for pair in PAIRS}) == len(PAIRS)
    for pair in PAIRS:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+", pair.target), pair
        assert re.fullmatch(r"[\w.-]+/[\w.-]+(/[\w.-]+)?", pair.draft), pair
        assert pair.kind in (EAGLE3, PEAGLE, DFLASH, DFLASH2, DSPARK) and pair.maker and pair.licence, pair
        assert pair.size is None or 0.05 <= pair.size <= 4, pair
        is_block = any(kind in pair.draft.lower() for kind in ("dflash", "dspark", "peagle", "assistant"))
        assert is_block == (pair.kind != EAGLE3), pair


def test_of_several_published_drafts_the_one_that_reads_least() -> None:
    costs = [pair.cost for pair in find_pairs(["Qwen/Qwen3-8B"])]
    assert len(costs) > 2 and costs == sorted(costs)
    chains = [pair for pair in find_pairs(["Qwen/Qwen3-14B"]) if pair.kind == EAGLE3]
    assert chains[-1].draft.startswith("deepseek-ai/")  # whole vocabulary


def test_names_of_files() -> None:
    assert read_name("Q4_K_M/m-Q4_K_M-00002-of-00003.gguf") == FileName(
        "Q4_K_M/m-Q4_K_M-00002-of-00003.gguf", "model", "m", "Q4_K_M", 2, 3
    )
    assert read_name("UD-IQ2_XXS/m.gguf").quant == "UD-IQ2_XXS"
    assert read_name("Llama-3.1-8B.f16.gguf").model == "Llama-3.1-8B"
    assert read_name("mtp-m-Q8_0.gguf").role == "mtp"
    assert read_name("m.mmproj-f16.gguf").role == "mmproj"


def test_the_type_that_fits_into_memory() -> None:
    sizes = {
        f"m-{kind}.gguf": n for kind, n in {"BF16": 160, "Q8_0": 80, "Q4_K_M": 45, "Q3_K_S": 33, "Q2_K": 28}.items()
    }
    for memory, expected in {None: "Q4_K_M", 50: "Q4_K_M", 40: "Q3_K_S", 30: "Q2_K"}.items():
        assert names.choose("me/m", sizes, None, memory).quant == expected
    with pytest.raises(UsageError, match=r"its smallest model, m-Q2_K\.gguf, takes"):
        names.choose("me/m", sizes, None, 20)
    del sizes["m-Q4_K_M.gguf"]
    assert names.choose("me/m", sizes, None, None).quant == "Q8_0"
    assert names.choose("me/m", {**sizes, "m-Q4_1.gguf": 48, "m-Q4_0.gguf": 43}, None, None).quant == "Q4_0"
    with pytest.raises(UsageError, match="2 models"):
        names.choose("me/m", {**sizes, "other-Q8_0.gguf": 3}, None, None)
    split = {f"m-Q4_0-0000{i}-of-00002.gguf": 1 for i in (1, 2)}
    assert len(names.parts(names.choose("me/m", split, "q4_0", None), split)) == 2


NAMES = {
    "Qwen/Qwen3-8B": "Qwen/Qwen3-8B", "Qwen3-8B": "Qwen/Qwen3-8B", "unsloth/Qwen3-8B-GGUF": "Qwen/Qwen3-8B",
    "Qwen_Qwen3-8B": "Qwen/Qwen3-8B", "Qwen3 8B": "Qwen/Qwen3-8B", "mradermacher/qwen3-8b-i1-gguf": "Qwen/Qwen3-8B",
    "Meta-Llama-3.1-8B-Instruct": "meta-llama/Llama-3.1-8B-Instruct",
    "Llama-3.1-8B-Instruct": "meta-llama/Llama-3.1-8B-Instruct",
    "Qwen3-8B-abliterated": None, "Qwen3-80B": None, "Qwen": None, "": None,
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_names_of_targets_with_a_published_draft(name: str) -> None:
    assert {pair.target for pair in find_pairs(["unknown", name])} == ({NAMES[name]} if NAMES[name] else set())
