"""The trainer's data: documents, samples, the draft vocabulary, batches."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fixtures.targets import make_target
from fixtures.training import chat, make_training_target, write_jsonl
from llama_eagle.errors import ConfigError, InputError, UsageError
from llama_eagle.train.data.batches import BatchPlan, Split, split_held_out
from llama_eagle.train.data.documents import read_documents
from llama_eagle.train.data.pictures import find_image
from llama_eagle.train.data.samples import Sample, SampleMaker
from llama_eagle.train.data.vocabulary import choose_vocabulary, count_tokens
from llama_eagle.train.targets.checkpoint import control_tokens, load_tokenizer, read_target
from llama_eagle.vision.pictures import decode_data_url
from safetensors.numpy import save_file


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load_tokenizer(make_training_target("qwen3", tmp_path_factory.mktemp("target")))


@pytest.mark.parametrize(
    ("name", "data", "parts"),
    [
        ("empty.txt", b" \n", ("empty.txt: empty",)),
        ("latin.txt", b"ok\nna\xefve\n", ("latin.txt:2: not UTF-8", "0xef")),
        ("empty.jsonl", b"\n\n", ("empty.jsonl: empty",)),
        ("latin.jsonl", b'{"text": "fine"}\n{"text": "na\xefve"}\n', ("latin.jsonl:2: not UTF-8",)),
        ("cut.jsonl", b'{"text": "fine"}\n{"text": ', ("cut.jsonl:2: not JSON",)),
        ("list.jsonl", b"[1]\n", ("list.jsonl:1: expected an object",)),
        ("shares.json", b'[{"text": "x"}]', ("shares.json: not JSON lines", "jq -c '.[]' shares.json")),
        ("other.jsonl", b'{"prompt": "x"}\n', ("other.jsonl:1: neither messages nor text",)),
        ("blank.jsonl", b'{"text": "a"}\n{"text": ""}\n', ("blank.jsonl:2: empty",)),
        (
            "user.jsonl",
            b'\n{"messages": [{"role": "user", "content": "x"}]}\n',
            ("user.jsonl:2: no assistant message",),
        ),
        ("role.jsonl", b'{"messages": [{"content": "x"}]}\n', ("role.jsonl:1: a message without a role",)),
        ("null.jsonl", b'{"messages": [{"role": "assistant", "content": null}]}\n', ("null.jsonl:1: content must be",)),
        (
            "video.jsonl",
            b'{"messages": [{"role": "user", "content": [{"type": "video"}]}]}',
            ("video.jsonl:1: content has a part of type 'video'. Only text and image parts",),
        ),
    ],
)
def test_bad_data_is_named_by_file_and_line(name: str, data: bytes, parts: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError) as caught:
        list(read_documents([tmp_path / name]))
    assert all(part in str(caught.value) for part in parts), caught.value


def test_all_faulty_lines_of_a_file_are_named_at_once(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    lines = [b'{"text": "fine"}', b'{"text": " "}', b'{"text": "fine"}', b"{", b"\xff"]
    for more, named in (
        (lines[:4], r"c\.jsonl:2: empty; leave it out\. Faulty, too: line 4\.$"),
        (lines, r"Faulty, too: lines 4, 5\.$"),
        (lines + [b"[]"] * 18, r"lines 4, 5, 6, .*, 23\.$"),
        (lines + [b"[]"] * 40, r"lines 4, 5, 6, .*, 23 and 22 more\.$"),
    ):
        path.write_bytes(b"\n".join(more))
        with pytest.raises(InputError, match=named):
            list(read_documents([path]))


SEE = {"role": "user", "content": "what is <image> and <image>?"}
SEEN = {"role": "assistant", "content": "a fox"}


def asked(part: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [part]}, SEEN]}


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"messages": [SEE, SEEN], "images": ["a.png"]}, "1 files in images, but 2 places"),
        ({"messages": [SEEN], "image": "a.png"}, "1 files in images, but 0 places"),
        ({"messages": [SEE, SEEN], "images": [{"bytes": "x"}]}, "images must be a list of file names"),
        ({"messages": [SEE, SEEN], "videos": ["a.mp4"]}, "videos is not supported in training data"),
        ({"text": "a fox", "images": ["a.png"]}, "images is not supported in training data"),
        ({"messages": [{**SEE, "images": ["a.png"]}, SEEN]}, "images is not supported in training data"),
        ({"messages": [SEE, SEEN], "image": "a.png", "images": ["b.png"]}, "both image and images"),
        ({"messages": [SEE, {**SEEN, "weight": 0}]}, "no assistant message"),
        ({"messages": [SEE, {**SEEN, "weight": 0.5}]}, "weight is 0.5, expected 0 or 1"),
        ({"conversations": [{"from": "function_call", "value": "f()"}]}, "a message from 'function_call', expected"),
        ({"messages": [SEE, SEEN], "tools": "[{"}, "tools must be a list of objects"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}, SEEN]}, "0 files in images, but 1 places"),
        ({"messages": [SEE, SEEN], "image": None}, "0 files in images, but 2 places"),
        ({"messages": [SEE, SEEN], "image_path": "a.png"}, "image_path is not supported"),
        ({"messages": [SEE, SEEN], "media": ["a.png"], "images": ["a.png", "b.png"]}, "media is not supported"),
        ({"text": "a fox", "image_url": "a.png"}, "image_url is not supported"),
        ({"messages": [{**SEE, "attachments": ["a.png"]}, SEEN]}, "attachments is not supported"),
        (asked({"type": "text", "text": "what?", "image": "a.png"}), "image is not supported"),
        (asked({"type": "image", "bytes": "aGk="}), "bytes is not supported"),
        (asked({"type": "image", "image": "a.png", "url": "b.png"}), "content has a part .* one file name"),
        (asked([{"type": "image", "image": "a.png"}]), "content has a part of type 'list'"),
    ],
)
def test_what_is_next_to_the_messages_is_used_or_refused(record: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "c.jsonl", {"text": "fine"}, record)
    with pytest.raises(InputError, match=rf"c\.jsonl:2: {message}"):
        list(read_documents([path]))


def test_images_tools_and_a_system_message_next_to_the_messages(tmp_path: Path) -> None:
    parts = [{"type": "image"}, {"type": "text", "text": "now <image>"}]
    record = {
        "messages": [SEE, SEEN, {"role": "user", "content": parts}, SEEN],
        "images": ["a.png", "b.png", "c.png", "d.png"],
        "tools": json.dumps([{"type": "function"}]),
        "system": "Be brief.",
    }
    (document,) = read_documents([write_jsonl(tmp_path / "c.jsonl", record)])
    assert document.tools == ({"type": "function"},)
    system, first, _, second, _ = document.messages
    assert system == {"role": "system", "content": "Be brief."}
    texts = [part.get("text", part.get("image")) for part in first["content"]]
    assert texts == ["what is ", "a.png", " and ", "b.png", "?"]
    assert [part.get("text", part.get("image")) for part in second["content"]] == ["c.png", "now ", "d.png"]
    openai = {"type": "image_url", "image_url": {"url": "e.png"}}
    for part in (openai, {"image_url": "e.png"}, {"path": "e.png", "max_pixels": 9}, {"url": "e.png", "text": None}):
        record = {**asked({"type": "image", **part}), "images": [], "image_id": 3}
        (document,) = read_documents([write_jsonl(tmp_path / "c.jsonl", record)])
        assert document.messages[0]["content"] == [{"type": "image", "image": "e.png"}]
    (document,) = read_documents([write_jsonl(tmp_path / "c.jsonl", asked({"type": "image", "base64": "aGk="}))])
    assert decode_data_url(document.messages[0]["content"][0]["image"], "") == b"hi"
    record = {"messages": [{"role": "user", "content": "<image>"}, SEEN], "images": [], "image": "f.png"}
    (document,) = read_documents([write_jsonl(tmp_path / "c.jsonl", record)])
    assert document.messages[0]["content"] == [{"type": "image", "image": "f.png"}]


def test_names_of_pictures(tmp_path: Path) -> None:
    picture = tmp_path / "a b.png"
    picture.write_bytes(b"")
    assert find_image("a b.png", tmp_path) == find_image(picture.as_uri(), tmp_path) == picture
    for name in ("c.png", "A" * 5000, "a\0.png", "file:///c.png"):  # the second is a picture in base64
        with pytest.raises(InputError, match=r"image .* is missing"):
            find_image(name, tmp_path)


def test_an_answer_may_be_reasoning_alone(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "reasoning_content": "hm"}]
    path = write_jsonl(tmp_path / "c.jsonl", {"messages": messages})
    assert next(read_documents([path])).messages[1] == {**messages[1], "content": ""}


def test_lines_of_answer_with_an_error_are_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`answer` writes such a line for a prompt that is longer than the context."""
    path = tmp_path / "answers.jsonl"
    asked = [{"role": "user", "content": "q"}]
    answered = [*asked, {"role": "assistant", "content": "a"}]
    failed = [{"prompt": "x"}, {"messages": asked}, {"messages": [*answered, *asked]}]
    write_jsonl(path, *({**each, "error": "too long"} for each in failed), {"messages": answered})
    (document,) = read_documents([path])
    assert document.source == f"{path}:4"
    assert " ".join(capsys.readouterr().err.split()).count("3 lines with an `error` instead of an answer") == 1
    write_jsonl(path, {"prompt": "x", "error": "too long"})
    with pytest.raises(InputError, match="each line has an `error`"):
        list(read_documents([path]))


@pytest.mark.parametrize("record", [{"prompt": "x", "error": ""}, {"messages": [], "error": None}, {"messages": 5}])
def test_lines_without_an_error_are_not_skipped(tmp_path: Path, record: dict[str, Any]) -> None:
    write_jsonl(tmp_path / "c.jsonl", record, {"text": "a"})
    with pytest.raises(InputError, match=r"c\.jsonl:1: neither messages nor text"):
        list(read_documents([tmp_path / "c.jsonl"]))


def test_a_folder_gives_its_text_and_chat_files(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "b.MD").write_text("second")
    (tmp_path / "a.txt").write_text("first")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    write_jsonl(
        tmp_path / "z.JSONL", {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}
    )
    *texts, conversation = read_documents([tmp_path])
    assert [document.text for document in texts] == ["first", "second"]
    assert [message["role"] for message in conversation.messages] == ["user", "assistant"]
    assert conversation.source.endswith("z.JSONL:1")
    (tmp_path / "bare").mkdir()
    for source in (tmp_path / "bare", tmp_path / "nowhere"):
        with pytest.raises(InputError, match=source.name):
            list(read_documents([source]))


def test_text_is_cut_into_windows_that_are_learned_whole(tokenizer: Any, tmp_path: Path) -> None:
    text = "The quick brown fox jumps over the lazy dog. " * 40
    (tmp_path / "a.txt").write_text(text)
    samples = SampleMaker(tokenizer, 50).make(read_documents([tmp_path / "a.txt"]))
    assert {len(sample.tokens) for sample in samples[:-1]} == {50}
    assert tokenizer.decode(np.concatenate([sample.tokens for sample in samples])) == text
    assert all(sample.mask.all() for sample in samples)


def learned(tokenizer: Any, sample: Sample) -> str:
    return tokenizer.decode(sample.tokens[sample.mask])


def test_only_the_assistant_is_learned(tokenizer: Any, tmp_path: Path) -> None:
    data = write_jsonl(tmp_path / "c.jsonl", chat("who", "me, a fox", "and", "the dog"))
    (sample,) = SampleMaker(tokenizer, 200).make(read_documents([data]))
    assert learned(tokenizer, sample) == "me, a fox<|im_end|>\nthe dog<|im_end|>\n"
    assert tokenizer.decode(sample.tokens).startswith("<|im_start|>user\nwho<|im_end|>\n<|im_start|>assistant\nme,")


@pytest.mark.parametrize(("shown", "is_whole"), [("call", True), ("m.tool_calls[0]", False)])
def test_an_answer_is_learned_with_all_its_calls(
    shown: str, is_whole: bool, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = f"<call>{{{{ {shown}.function.name }}}}{{{{ ({shown}.function.arguments or {{}}).arg }}}}"
    calls = f"{{% for call in m.tool_calls %}}{call}{{% endfor %}}<|im_end|>"
    monkeypatch.setattr(tokenizer, "chat_template", tokenizer.chat_template.replace("<|im_end|>", calls))
    record = chat("where", "")
    record["messages"][1]["tool_calls"] = [{"function": {"name": name}} for name in ("look", "move")]
    maker, documents = SampleMaker(tokenizer, 200), read_documents([write_jsonl(tmp_path / "c.jsonl", record)])
    if is_whole:
        assert learned(tokenizer, maker.make(documents)[0]) == "<call>look<call>move<|im_end|>\n"
    else:
        with pytest.raises(InputError, match=r"c\.jsonl:1: .* does not show the calls of message 2"):
            maker.make(documents)


def test_answers_of_weight_0_are_not_learned(tokenizer: Any, tmp_path: Path) -> None:
    record = chat("who", "me, a fox", "and", "the dog")
    record["messages"][1]["weight"] = 0
    (sample,) = SampleMaker(tokenizer, 200).make(read_documents([write_jsonl(tmp_path / "c.jsonl", record)]))
    assert learned(tokenizer, sample) == "the dog<|im_end|>\n"


def test_a_template_that_drops_reasoning_from_history(tmp_path: Path) -> None:
    folder = make_training_target("qwen3", tmp_path / "target")
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{% if m.role == 'assistant' and loop.last %}<think>\n\n</think>\n{% endif %}{{ m.content }}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
    )
    (folder / "chat_template.jinja").write_text(template)
    tokenizer = load_tokenizer(folder)
    data = write_jsonl(tmp_path / "c.jsonl", chat("a", "one", "b", "two"))
    first, second = SampleMaker(tokenizer, 200).make(read_documents([data]))
    assert learned(tokenizer, first) == "\n</think>\none<|im_end|>\n"
    assert learned(tokenizer, second) == "\n</think>\ntwo<|im_end|>\n"
    assert "<think>" not in tokenizer.decode(second.tokens).partition("one")[0]


LAST_ANSWER = (
    "{% set found = namespace(last=none) %}{% for m in messages if m.role == 'assistant' %}"
    "{% set found.last = m %}{% endfor %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m is sameas found.last %}(last) {% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LAST_MESSAGE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{{ '!\\n' if loop.last else '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
OPENING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<note>{% endif %}"
)


@pytest.mark.parametrize(
    ("template", "answers", "history"),
    [
        (LAST_ANSWER, ["(last) one<|im_end|>\n(last) two<|im_end|>\n"], "(last) one<|im_end|>\n"),
        (LAST_MESSAGE, ["one<|im_end|>!\n", "two<|im_end|>!\n"], "one<|im_end|>\n"),
        (OPENING, ["one<|im_end|>\ntwo<|im_end|>\n"], "one<|im_end|>\n"),
    ],
)
def test_an_answer_follows_the_prompt_of_a_template_that_changes_it(
    template: str, answers: list[str], history: str, tmp_path: Path
) -> None:
    folder = make_training_target("qwen3", tmp_path / "target")
    (folder / "chat_template.jinja").write_text(template)
    tokenizer = load_tokenizer(folder)
    samples = SampleMaker(tokenizer, 200).make(
        read_documents([write_jsonl(tmp_path / "c.jsonl", chat("a", "one", "b", "two"))])
    )
    assert [learned(tokenizer, sample) for sample in samples] == answers
    asked = [{"role": role, "content": text} for role, text in (("user", "a"), ("assistant", "one"), ("user", "b"))]
    prompt = tokenizer.render(asked, is_prompt=True).removesuffix("<note>")
    assert history in prompt and tokenizer.decode(samples[-1].tokens).startswith(prompt)


def test_what_no_sample_can_be_made_of(tokenizer: Any, tmp_path: Path) -> None:
    data = write_jsonl(tmp_path / "c.jsonl", chat("a long question " * 20, "yes"))
    with pytest.raises(InputError, match="--max-length"):
        SampleMaker(tokenizer, 20).make(read_documents([data]))
    image = [{"type": "image", "image": "gone.png"}, {"type": "text", "text": "?"}]
    data = write_jsonl(tmp_path / "i.jsonl", chat("x", "y"), chat(image, "yes"))
    with pytest.raises(InputError, match=r"i\.jsonl:2: image gone.png is missing"):
        SampleMaker(tokenizer, 200).make(read_documents([data]))
    (tmp_path / "gone.png").write_bytes(b"there")
    with pytest.raises(InputError, match=r"i\.jsonl:2: .*no vision"):
        SampleMaker(tokenizer, 200).make(read_documents([data]))
    tokenizer = load_tokenizer(make_target("qwen3", tmp_path / "target"))
    tokenizer.chat_template = None
    with pytest.raises(ConfigError, match="no chat template"):
        SampleMaker(tokenizer, 200).make(read_documents([data]))


def sample(*tokens: int, mask: list[bool] | None = None) -> Sample:
    return Sample("", np.array(tokens, np.int32), np.array(mask or [True] * len(tokens)))


def test_the_draft_vocabulary_is_the_most_frequent_and_the_control_tokens() -> None:
    samples = [sample(5, 5, 5, 3), sample(3, 8, 8, 1, 0, mask=[True] * 3 + [False] * 2)]
    counts = count_tokens(samples, 12)
    assert counts.tolist() == [0, 0, 0, 2, 0, 3, 0, 0, 2, 0, 0, 0]
    assert choose_vocabulary(counts, 4, [11, 2]).tolist() == [2, 3, 5, 11]  # 3 before 8: ties by id
    assert choose_vocabulary(counts, 12, []).tolist() == list(range(12))
    with pytest.raises(UsageError, match="2 control tokens"):
        choose_vocabulary(counts, 1, [11, 2])


def test_the_draft_vocabulary_covers_nearly_all_of_the_data() -> None:
    counts = np.zeros(50_000, np.int64)
    counts[:1500], counts[1500:1600] = 1000, 100  # 1,490 tokens are 99 %
    found = choose_vocabulary(counts, None, [40_000])
    assert len(found) == 2048 and {0, 1499, 40_000} <= set(found.tolist())
    counts[:] = 1
    assert len(choose_vocabulary(counts, None, [])) == 32_000
    assert len(choose_vocabulary(counts[:900], None, [])) == 900


def test_control_tokens_are_end_tokens_and_used_special_tokens(tmp_path: Path) -> None:
    folder = make_training_target("qwen3", tmp_path)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 481]}))
    tokenizer, info = load_tokenizer(folder), read_target(folder)
    special = tokenizer.encode("<|endoftext|><|im_start|><|im_end|><|image_pad|>", add_special=False)
    counts = np.ones(info.n_vocab, np.int64)
    assert set(control_tokens(info, tokenizer, counts)) == {7, 481, *special} and len(special) == 4
    counts[special[1:]] = 0
    assert set(control_tokens(info, tokenizer, counts)) == {7, 481, special[0]}
    small: Any = SimpleNamespace(n_vocab=482, end_tokens=(7, 481, 482))
    every = SimpleNamespace(control_ids=[3, 483])
    assert control_tokens(small, every, np.ones(482, np.int64)) == [3, 7, 481]  # without rows in the head


def test_batches_repeat_by_seed_and_cover_an_epoch() -> None:
    lengths = list(range(10, 33))
    plan, same, other = (BatchPlan(lengths, 4, 2, seed) for seed in (1, 1, 2))
    assert plan.steps_per_epoch == 3
    steps = [plan.batches(step) for step in range(6)]
    assert steps == [same.batches(step) for step in range(6)]
    assert steps != [other.batches(step) for step in range(6)]
    assert steps[4] == BatchPlan(lengths, 4, 2, 1).batches(4)  # independent of earlier calls
    for epoch in (steps[:3], steps[3:]):
        assert sorted(n for step in epoch for batch in step for n in batch) == list(range(23))
    assert steps[:3] != steps[3:]


def test_held_out_samples_are_not_trained_on() -> None:
    split = split_held_out(50, 0.1, seed=3)
    assert len(split.held_out) == 5
    assert sorted(split.train + split.held_out) == list(range(50))
    assert split_held_out(50, 0, seed=3).held_out == []
    assert len(split_held_out(100_000, 0.02, seed=3).held_out) == 256
    assert split_held_out(1, 0.5, seed=3) == Split([0], [])


def test_a_checkpoint_of_another_class_is_converted_first(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["GraniteForCausalLM"]}))
    save_file({"x": np.zeros(1, np.float32)}, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=r"no checkpoint of GraniteForCausalLM\. Convert it .* name the GGUF"):
        read_target(tmp_path)
