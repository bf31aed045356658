"""Chats with images in an `EagleLlama`: the text of plain decoding, libmtmd's bits, nothing read twice."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from fixtures.eagle3_checkpoints import DraftSpec, make_draft
from fixtures.vision_files import VisionFiles, data_url, encoded, make_vision_files, png, png_head, user
from llama_eagle.convert.drafts import convert_draft
from llama_eagle.errors import EagleError, IncompatibleModels, InputError, UsageError
from PIL import Image

pytestmark = pytest.mark.native

KINDS = {"qwen3vl": False, "qwen3vlmoe": False, "qwen35": False, "qwen35-mtp": True, "qwen35moe-mtp": True}


@pytest.fixture(scope="module", params=KINDS)
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> VisionFiles:
    family, mtp = request.param.removesuffix("-mtp"), KINDS[request.param]
    return make_vision_files(family, tmp_path_factory.mktemp(request.param), mtp=mtp)


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> VisionFiles:
    return make_vision_files("qwen35", tmp_path_factory.mktemp("hybrid"))


def load(files: VisionFiles, *, draft: bool = True, **options: Any) -> Any:
    from llama_eagle import EagleLlama

    settings: dict[str, Any] = {"n_ctx": 512, "n_threads": 1, "verbose": False, "n_draft": 3, **options}
    return EagleLlama(files.target, draft_path=files.draft if draft else "none", mmproj_path=files.mmproj, **settings)


@pytest.fixture(scope="module")
def pair(files: VisionFiles) -> Iterator[tuple[Any, Any]]:
    """Without the draft, and with it."""
    llms = load(files, draft=False), load(files)
    yield llms
    for llm in llms:
        llm.close()


def answer(llm: Any, messages: list[dict[str, Any]], **options: Any) -> str:
    given = {"max_tokens": 12, "temperature": 0, **options}
    return str(llm.create_chat_completion(messages, **given)["choices"][0]["message"]["content"])


def n_encoded(llm: Any) -> int:
    return int(llm._memory.pictures.n_encoded)


def cached(llm: Any, messages: list[dict[str, Any]]) -> int:
    return int(llm.create_chat_completion(messages, max_tokens=4, temperature=0)["timings"]["cache_n"])


def test_texts_are_those_of_plain_decoding(pair: tuple[Any, Any]) -> None:
    """Random conversations: several images in a message and in several turns, repeated, edited and aborted."""
    for seed in range(2):
        converse(pair, random.Random(seed))


def test_rows_of_images_have_no_text(pair: tuple[Any, Any]) -> None:
    ids = pair[0].tokenize(b"ab", add_bos=False)
    assert pair[0].detokenize([-1, *ids, -2]) == b"ab"


@pytest.mark.slow
def test_many_texts_are_those_of_plain_decoding(pair: tuple[Any, Any]) -> None:
    for seed in range(40):  # for each of five pairs
        converse(pair, random.Random(seed))


def converse(pair: tuple[Any, Any], rng: random.Random, n_turns: int = 3) -> None:
    plain, drafting = pair
    messages: list[dict[str, Any]] = []
    for _ in range(n_turns):
        parts: list[str | bytes] = [rng.choice(["what is ", "tell me ", "count "])]
        for _ in range(rng.choice([0, 1, 1, 2])):
            size = {"width": 32 * rng.randint(1, 4), "height": 32 * rng.randint(1, 4)}
            parts.insert(rng.randrange(len(parts) + 1), png(rng.randrange(5), **size))
        messages.append(user(*parts) if rng.random() < 0.9 else {"role": "user", "content": "and now"})
        options: dict[str, Any] = {"temperature": 0} if rng.random() < 0.5 else {"temperature": 1.0, "seed": 3}
        said = answer(plain, messages, **options)
        assert answer(drafting, messages, **options) == said
        event = rng.random()
        if event < 0.2:  # aborted
            stream = drafting.create_chat_completion(messages, max_tokens=8, stream=True)
            for _ in range(rng.randint(1, 4)):
                next(stream)
            del stream
        elif event < 0.4:  # repeated
            assert answer(drafting, messages, **options) == said
        elif event < 0.6 and len(messages) > 2:  # an earlier turn is edited
            messages[0] = user("once more ", png(rng.randrange(5)))
            assert answer(drafting, messages) == answer(plain, messages)
        messages.append({"role": "assistant", "content": said})


def test_it_drafts_behind_images_and_sees_them(pair: tuple[Any, Any]) -> None:
    _, drafting = pair
    texts = set()
    for seed in range(4):
        texts.add(answer(drafting, [user("what is ", png(seed))]))
        assert drafting.speculative_stats.n_drafted > 0
    assert len(texts) > 1


def test_a_second_turn_reads_nothing_again(pair: tuple[Any, Any]) -> None:
    for llm in pair:
        llm.reset()
        first = [user("look ", png(11), " and ", png(12), " here")]
        before = n_encoded(llm)
        said = answer(llm, first)
        n_rows = llm.n_tokens
        assert n_encoded(llm) == before + 2
        messages = [*first, {"role": "assistant", "content": said}, user("again ", png(11))]
        assert cached(llm, messages) > n_rows - 16 - 12  # the answer may be tokenized otherwise
        assert n_encoded(llm) == before + 3  # the same picture in another place is another's rows
        assert cached(llm, messages) >= llm.n_tokens - 24  # from the last checkpoint on, where there is one
        assert n_encoded(llm) == before + 3


def test_an_edited_question_does_not_read_the_image_again(pair: tuple[Any, Any]) -> None:
    for llm in pair:
        llm.reset()
        answer(llm, [user(png(21, 160, 160), " what is this then")])
        before = n_encoded(llm)
        edited = [user(png(21, 160, 160), " tell me something else")]
        assert cached(llm, edited) >= 25
        assert n_encoded(llm) == before
        assert cached(llm, [user(png(22, 160, 160), " tell me something else")]) < 25
        assert n_encoded(llm) == before + 1


def test_saved_states_hold_images(files: VisionFiles) -> None:
    with load(files) as llm, load(files) as other:
        answer(other, [user(png(1)), user(png(5))])  # its ids are others
        messages = [user("see ", png(5), " now")]
        said = answer(llm, messages)
        state = llm.save_state()
        messages += [{"role": "assistant", "content": said}, user("and ", png(6))]
        expected = answer(llm, messages)
        other.load_state(state)
        before = n_encoded(other)
        assert answer(other, messages) == expected
        if not other._is_hybrid:  # that would need a checkpoint at the end of what the answer and its text share
            assert n_encoded(other) == before + 1
    with load(files, draft=False) as plain:
        with pytest.raises(IncompatibleModels):  # where the images stand is the draft's state's to say
            plain.load_state(state)
        assert answer(plain, messages) == expected


def test_logits_are_those_of_libmtmd(files: VisionFiles) -> None:
    """Bit for bit, with the draft and without: llama.cpp's own evaluation of the same chunks."""
    data = png(3, 160, 96)
    with load(files) as llm, load(files, draft=False) as plain:
        ids = llm.tokenize_images("before <__media__> behind", [data])
        expected, n_rows = libmtmd_logits(plain, "before <__media__> behind", data)
        assert len(ids) == n_rows
        for one in (llm, plain):
            one.reset()
            one._memory.set_tokens(one.tokenize_images("before <__media__> behind", [data]))
            assert np.array_equal(one._memory.logits(), expected)


def libmtmd_logits(llm: Any, prompt: str, data: bytes) -> tuple[np.ndarray, int]:
    """Logits after a prompt with one picture, by mtmd_helper_eval_chunks in the instance's own context."""
    import llama_cpp
    import llama_cpp.mtmd_cpp as mtmd

    encoder = llm._memory.pictures.encoder._ctx
    buffer = (ctypes.c_uint8 * len(data)).from_buffer_copy(data)
    bitmap = mtmd.mtmd_helper_bitmap_init_from_buf(encoder, buffer, len(data), False)
    chunks = mtmd.mtmd_input_chunks_init()
    text = mtmd.mtmd_input_text(prompt.encode(), len(prompt), True, True)
    assert mtmd.mtmd_tokenize(encoder, chunks, ctypes.byref(text), (mtmd.mtmd_bitmap_p_ctypes * 1)(bitmap), 1) == 0
    n_rows = sum(
        mtmd.mtmd_input_chunk_get_n_tokens(mtmd.mtmd_input_chunks_get(chunks, i))
        for i in range(mtmd.mtmd_input_chunks_size(chunks))
    )
    n_past, ctx = llama_cpp.llama_pos(), llm._ctx.ctx
    llm.reset()
    status = mtmd.mtmd_helper_eval_chunks(encoder, ctx, chunks, 0, 0, llm.n_batch, True, ctypes.byref(n_past))
    assert status == 0
    logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(ctx, -1), (llm._n_vocab,)).copy()
    mtmd.mtmd_input_chunks_free(chunks)
    mtmd.mtmd_bitmap_free(bitmap)
    llm.reset()
    return logits, n_rows


def test_parts_of_pictures_are_refused(pair: tuple[Any, Any]) -> None:
    """A text cut within a picture, as by ids[:100], has no meaning: nothing is evaluated."""
    for llm in pair:
        ids = llm.tokenize_images("before <__media__> behind", [png(3)])
        expected = llm.create_completion(ids, max_tokens=6, temperature=0)["choices"]
        n_tokens, first = llm.n_tokens, ids.index(min(ids))
        for text in (ids[: first + 2], ids[first + 2 :], [*ids[: first + 1], 5, *ids[first + 1 :]]):
            with pytest.raises(InputError, match="rows of a picture that has"):
                llm.create_completion(text, max_tokens=6)
            with pytest.raises(InputError, match="rows of a picture that has"):
                llm.eval(text)
            assert llm.n_tokens == n_tokens
        with pytest.raises(UsageError, match="is within a picture"):
            llm.n_tokens = first + 2
        assert llm.create_completion(ids, max_tokens=6, temperature=0)["choices"] == expected


def test_prompts_may_be_tokenized_before_the_first_is_completed(pair: tuple[Any, Any]) -> None:
    texts = []
    for llm in pair:
        prompts = [llm.tokenize_images("what is ", [png(seed)]) for seed in (61, 62, 63)]
        texts.append([llm.create_completion(ids, max_tokens=6, temperature=0)["choices"] for ids in prompts])
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("prompt", "images"),
    [("a", png(1)), ("a", "a.png"), ("a", None), ("a", [5]), (b"a", [png(1)]), ("\ud800", [png(1)])],
)
def test_wrong_types_of_images(pair: tuple[Any, Any], prompt: Any, images: Any) -> None:
    with pytest.raises(UsageError):
        pair[0].tokenize_images(prompt, images)


SOUND = png(1)
BAD = {
    "no picture": (b"this is no picture", "unknown format"),
    "nothing": (b"", "unknown format"),
    "a truncated PNG": (SOUND[: len(SOUND) // 2], "cannot be read as a picture"),
    "a damaged PNG": (SOUND[:200] + bytes(50) + SOUND[250:], "cannot be read as a picture"),
    "12,000 x 10,000 pixels": (png_head(12000, 10000), "more than 100 million pixels"),
    "30,000 x 30,000 pixels": (png_head(30000, 30000), "more than 100 million pixels"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_pictures_are_refused(name: str, pair: tuple[Any, Any]) -> None:
    """And the instance is as it was."""
    data, message = BAD[name]
    for llm in pair:
        expected = answer(llm, [user("what is ", SOUND)])
        n_tokens = llm.n_tokens
        with pytest.raises(InputError, match=message):
            answer(llm, [user("what is ", SOUND, " and ", data)])
        assert llm.n_tokens == n_tokens
        assert answer(llm, [user("what is ", SOUND)]) == expected


def test_what_does_not_fit_is_refused_before_anything_is_computed(pair: tuple[Any, Any]) -> None:
    for llm in pair:
        expected = answer(llm, [user("what is ", SOUND)])
        before, n_tokens = n_encoded(llm), llm.n_tokens
        with pytest.raises(ValueError, match="of them for pictures, and the context has room for 512"):
            answer(llm, [user(SOUND, png(2, 1024, 1024))])
        assert (n_encoded(llm), llm.n_tokens) == (before, n_tokens)
        assert answer(llm, [user("what is ", SOUND)]) == expected


def test_markers_and_images_have_to_match(pair: tuple[Any, Any]) -> None:
    _, llm = pair
    for prompt, n_images in (("<__media__> and <__media__>", 1), ("<__media__>", 2), ("<__media__>", 0)):
        with pytest.raises(UsageError, match=f"markers <__media__> for {n_images} pictures"):
            llm.tokenize_images(prompt, [SOUND] * n_images)
    said = answer(llm, [user("the text <__media__> is no image ", SOUND)])
    assert said == answer(llm, [user("the text <__media__> is no image ", SOUND)])
    first = llm.tokenize_images("what is this", [SOUND])
    assert first == llm.tokenize_images("<__media__>what is this", [SOUND])


def test_images_come_only_from_where_they_may(hybrid: VisionFiles, tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    (folder / "a.png").write_bytes(SOUND)
    (tmp_path / "secret.png").write_bytes(SOUND)

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(SOUND)

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Answer)
    Thread(target=server.serve_forever, daemon=True).start()
    remote = f"http://127.0.0.1:{server.server_port}/a.png"

    def ask(llm: Any, url: Any) -> str:
        part = {"type": "image_url", "image_url": url}
        return answer(llm, [{"role": "user", "content": [{"type": "text", "text": "what "}, part]}])

    with load(hybrid) as strict, load(hybrid, image_folder=folder, image_urls=True) as open_:
        expected = ask(strict, {"url": data_url(SOUND)})
        for url in (remote, str(folder / "a.png"), f"file://{folder}/a.png", "ftp://somewhere/a.png", {}, 5, None):
            with pytest.raises(UsageError, match="image 1"):
                ask(strict, url)
        for url in (remote, str(folder / "a.png"), f"file://{folder}/a.png", "a.png"):
            assert ask(open_, url) == expected
        for url in (str(tmp_path / "secret.png"), "../secret.png", "file:///etc/passwd"):
            with pytest.raises(UsageError, match="not below image_folder"):
                ask(open_, url)
        for url in ("data:image/png,abc", "data:image/png;base64,%%%", "missing.png", remote.replace("127", "http://")):
            with pytest.raises(EagleError):
                ask(open_, url)
        assert ask(strict, {"url": data_url(SOUND)}) == expected
    server.shutdown()


def test_other_messages_and_formats(pair: tuple[Any, Any]) -> None:
    plain, drafting = pair
    jpeg = encoded(Image.effect_noise((96, 64), 80).convert("RGB"), "JPEG", quality=95)
    for parts in (("text alone",), (jpeg,), ("two ", jpeg, jpeg)):
        assert answer(plain, [user(*parts)]) == answer(drafting, [user(*parts)])
    audio = {"role": "user", "content": [{"type": "input_audio"}, *user(SOUND)["content"]]}
    with pytest.raises(UsageError, match="input_audio"):
        answer(drafting, [audio])
    turned = Image.open(__import__("io").BytesIO(SOUND)).rotate(90, expand=True)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 270 degrees
    assert answer(drafting, [user(encoded(turned, exif=exif))]) == answer(drafting, [user(SOUND)])


def test_streams_tools_and_grammars_see_images(pair: tuple[Any, Any]) -> None:
    plain, drafting = pair
    messages = [user("what is ", SOUND)]
    for options in ({"response_format": {"type": "json_object"}}, {"stop": ["e"]}, {"logit_bias": {5: 5.0}}):
        assert answer(plain, messages, **options) == answer(drafting, messages, **options)
    ask = partial(drafting.create_chat_completion, messages, max_tokens=12, temperature=0)
    plainly = partial(plain.create_chat_completion, messages, max_tokens=12, temperature=0)
    streams = [[part["choices"][0]["delta"].get("content") for part in one(stream=True)] for one in (ask, plainly)]
    assert streams[0] == streams[1]
    assert any(streams[0])


def test_encoders_of_others_are_refused(hybrid: VisionFiles, tmp_path: Path) -> None:
    from dataclasses import replace

    other = make_vision_files("qwen3vl", tmp_path / "other")
    with pytest.raises(IncompatibleModels, match="belongs to another model"):
        load(replace(hybrid, mmproj=other.mmproj))
    with pytest.raises(InputError, match="is not a vision encoder"):
        load(replace(hybrid, mmproj=other.draft))
    with pytest.raises(InputError, match="no such file"):
        load(replace(hybrid, mmproj=tmp_path / "missing.gguf"))
    wide = DraftSpec(hidden=96, embedding=True)
    convert_draft(make_draft(tmp_path / "wide", wide), hybrid.target, tmp_path / "wide.gguf")
    with pytest.raises(IncompatibleModels, match="hidden size 96"):
        load(replace(hybrid, draft=tmp_path / "wide.gguf"))
    with pytest.raises(UsageError, match="exclude each other"):
        load(hybrid, chat_handler=lambda **_: None)
