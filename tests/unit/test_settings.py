"""Files of settings: each mistake is one line with the file, the key, the value and what is allowed."""

from __future__ import annotations

import io
import json
import math
import os
import re
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from llama_eagle import console
from llama_eagle.bench import prompts as bench_prompts
from llama_eagle.cli import options, run
from llama_eagle.cli.app import command
from llama_eagle.cli.commands import bench, convert, generate
from llama_eagle.cli.commands.serve import require_free
from llama_eagle.cli.config import config_file, named_in_file, read_defaults
from llama_eagle.cli.conversation import Conversation
from llama_eagle.cli.lines import read_lines
from llama_eagle.cli.piped import read_piped
from llama_eagle.convert import calibration
from llama_eagle.convert.source import storage
from llama_eagle.drafting.options import DraftingOptions
from llama_eagle.errors import ConfigError, EagleError, EnvironmentFailure, InputError, UsageError
from llama_eagle.files import cache_dir, read_json_or_yaml, read_text
from llama_eagle.serving import prompts as serving_prompts
from llama_eagle.serving.llama_server.extra_args import refuse_unchecked
from llama_eagle.serving.llama_server.options import ServerOptions, from_config
from llama_eagle.sessions.options import ContextOptions
from llama_eagle.store import kept
from llama_eagle.train.data.documents import read_documents

BASE = ServerOptions(model=Path(), drafting=DraftingOptions(), context=ContextOptions())
MODEL: dict[str, Any] = {"model": "m.gguf"}


def test_a_sound_configuration() -> None:
    settings = {**MODEL, "n_ctx": 64, "p_min": 0, "draft": None, "tensor_split": None, "verbose": True}
    found = from_config(Path("c.json"), {"port": 9, "host": None, **settings}, BASE)
    assert (found.port, found.host, found.n_ctx, found.verbose) == (9, BASE.host, 64, True)


def test_a_file_of_llama_cpp_pythons_server(capsys: pytest.CaptureFixture[str]) -> None:
    """The keys of its model count; those that have no effect here are named."""
    settings = {"port": 9, "ssl_keyfile": "k", "models": [{**MODEL, "n_ctx": 64, "n_batch": 9}]}
    assert from_config(Path("c.json"), settings, BASE) == replace(BASE, model="m.gguf", port=9, n_ctx=64)
    assert "c.json: keys that have no effect here: n_batch, ssl_keyfile." in capsys.readouterr().err


def test_options_that_the_file_leaves_open() -> None:
    """They keep the values of the command line; the file's own values replace them, except for keys in `kept`."""
    drafting = DraftingOptions(draft="d.gguf", n_draft=3, exact=True)
    base = replace(BASE, drafting=drafting, mmproj=Path("p.gguf"), alias="a")
    found = from_config(Path("c.json"), MODEL, base)
    assert (found.drafting, found.mmproj, found.alias) == (drafting, Path("p.gguf"), "a")
    entry = {**MODEL, "n_draft": 5, "mmproj_path": "q.gguf", "model_alias": "b", "n_ctx": 64}
    found = from_config(Path("c.json"), entry, base, {"n_ctx"})
    assert (found.drafting, found.mmproj, found.alias) == (replace(drafting, n_draft=5), Path("q.gguf"), "b")
    assert found.n_ctx == BASE.n_ctx


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"port": "8000"}, "port is '8000', it must be a valid integer"),
        ({"port": 70000}, "port=70000 is not in 0..65535"),
        ({"port": True}, "port is True, it must be a valid integer"),
        ({"host": 5}, "host is 5, it must be a valid string"),
        ({"api_key": 5}, "api_key is 5, it must be a valid string"),
        ({"parallel": 1.5}, "parallel is 1.5, it must be a valid integer"),
        ({"hots": "x"}, "unknown key hots; known keys: model,"),
        ({"models": [5]}, "models.0 is 5, it must be a valid dictionary"),
        ({"models": {}}, "models is {}, it must be a valid list"),
        ({"models": []}, "the file names 0 models"),
        ({"models": [MODEL, MODEL]}, "the file names 2 models"),
    ],
)
def test_keys_of_the_server(change: dict[str, Any], message: str) -> None:
    with pytest.raises(EagleError, match=rf"^c\.json: {re.escape(message)}"):
        from_config(Path("c.json"), {**MODEL, **change}, BASE)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_ctx": "4096"}, "n_ctx is '4096', it must be a valid integer"),
        ({"n_ctx": -1}, "n_ctx=-1 is not in"),
        ({"exact": "no"}, "exact is 'no', it must be a valid boolean"),
        ({"verbose": 1}, "verbose is 1, it must be a valid boolean"),
        ({"draft": 7}, "draft is 7, it must be a valid string"),
        ({"n_draft": 1.5}, "n_draft is 1.5, it must be a valid integer or a valid string"),
        ({"n_draft": "x"}, "n_draft='x' is neither"),
        ({"p_min": "0.1"}, "p_min is '0.1', it must be a valid number"),
        ({"type_k": "x"}, "cache type x or f16 is not one of f32"),
        ({"tensor_split": "1,2"}, "tensor_split is '1,2', it must be a valid list"),
        ({"tensor_split": [1, "2"]}, "tensor_split.1 is '2', it must be a valid number"),
        ({"rpc_servers": 5}, "rpc_servers is 5, it must be a valid string or a valid list"),
        ({"n_gpu_layers": "all"}, "n_gpu_layers is 'all', it must be a valid integer"),
        ({"mmproj_path": []}, "mmproj_path is [], it must be a valid string"),
        ({"drft": "x"}, "unknown key drft; known keys: model,"),
    ],
)
def test_keys_of_a_model(change: dict[str, Any], message: str) -> None:
    with pytest.raises(EagleError, match=rf"^c\.json: {re.escape(message)}"):
        from_config(Path("c.json"), {**MODEL, **change}, BASE)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('top-k = "8"', "top-k is '8', it must be a whole number"),
        ("top-k = true", "top-k is True, it must be a whole number"),
        ("ctx-size = -1", "ctx-size is -1, it must be in 0.."),
        ('temp = "hot"', "temp is 'hot', it must be a number"),
        ("[generate]\nraw = 1", "generate.raw is 1, it must be true or false"),
        ('[generate]\nraw = "no"', "generate.raw is 'no', it must be true or false"),
        ("[generate]\nmodel = true", "generate.model is True, it must be a string"),
        ("[generate]\nmodel = [1]", "generate.model is [1], it must be a single value"),
        ('model = "a\\u0000b"', "model contains a null character"),
        ("[generate]\nstop = ['a', \"\\u0000\"]", "generate.stop.1 contains a null character"),
        ("stop = " + "[" * 5000 + "]" * 5000, "nested too deeply"),
        ('[generate]\nstop = "x"', "generate.stop is 'x', it must be a list"),
        ("[generate]\nstop = [true]", "generate.stop is [True], it must be a string"),
    ],
)
def test_own_defaults(text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.toml").write_text(text)
    monkeypatch.setenv("LLAMA_EAGLE_CONFIG", str(tmp_path / "config.toml"))
    with pytest.raises(ConfigError, match=rf"config\.toml: {re.escape(message)}"):
        command()


def test_own_defaults_that_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for missing in (tmp_path / "none.toml", tmp_path):
        monkeypatch.setenv("LLAMA_EAGLE_CONFIG", str(missing))
        with pytest.raises(ConfigError, match=f"{re.escape(str(missing))}: cannot be read.*Correct LLAMA_EAGLE_CONFIG"):
            command()
    for none in (os.devnull, ""):
        monkeypatch.setenv("LLAMA_EAGLE_CONFIG", none)
        command()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("c.json", '{"models": [{"model": "a\\u0000"}]}', "models.0.model contains a null character"),
        ("c.json", '{"api\\u0000": 1}', "it contains a null character"),
        ("c.json", '{"draft": "\\ud800.gguf"}', "draft contains a null character or a lone surrogate"),
        ("c.yaml", 'models: [{model: "a\\0b"}]', "models.0.model contains a null character"),
        ("c.yaml", "models: " + "[" * 5000 + "]" * 5000, "nested too deeply"),
        ("c.json", '{"models": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deeply"),
    ],
    ids=range(6),
)
def test_files_of_the_server(name: str, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=re.escape(f"{name}: {message}")):
        read_json_or_yaml(tmp_path / name)


@pytest.mark.parametrize("given", [{"draft": "d.gguf", "draft_sampling": "rejection"}, {"drafter": object()}])
def test_drafting_that_the_server_lacks(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="the server does not support"):
        replace(BASE, drafting=DraftingOptions(**given))


@pytest.mark.parametrize("key", ["a\nb", "a\r", "a\tb", "\x7f", "a\0"])
def test_a_key_that_no_header_can_carry(key: str) -> None:
    with pytest.raises(UsageError, match="api_key contains a line break or another character"):
        from_config(Path("c.json"), {"api_key": key, **MODEL}, BASE)


@pytest.mark.parametrize("key", ["", ",", " ", '""', ',"",'])
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_keys_that_the_server_would_drop(key: str, host: str, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("# a comment\n\n \n")
    for extra in (("--api-key", key), ("--api_key", key), ("--api-key-file", str(tmp_path / "keys")), ("--api-key",)):
        with pytest.raises(UsageError, match=r"Give a key|Write one"):
            replace(BASE, host=host, extra=extra)
    with pytest.raises(UsageError, match="the key is empty"):
        replace(BASE, host=host, api_key=key)


def test_only_a_key_opens_the_server_to_others(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("#\nsecret")
    for extra in (("--api-key", ",secret"), ("--api_key", "secret"), ("--api-key-file", str(tmp_path / "keys"))):
        replace(BASE, host="0.0.0.0", extra=extra)
    for extra in ((), ("--api-key=secret",)):  # llama-server has no such form
        with pytest.raises(UsageError, match=r"anyone who can reach 0\.0\.0\.0"):
            replace(BASE, host="0.0.0.0", extra=extra)
    os.mkfifo(tmp_path / "pipe")
    for name in ("missing", "pipe"):
        with pytest.raises(UsageError, match=rf"{name}: not a regular file"):
            replace(BASE, host="0.0.0.0", extra=("--api-key-file", str(tmp_path / name)))


@pytest.mark.parametrize("host", ["..", "a" * 64])
def test_a_host_that_is_no_name(host: str) -> None:
    with pytest.raises(EnvironmentFailure, match="cannot listen on"):
        require_free(host, 0)


def test_a_socket_file_is_used_again_unless_a_server_listens(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    require_free(str(path), 0)
    assert not path.exists()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        with pytest.raises(EnvironmentFailure, match=r"cannot listen on .*a\.sock \(Address already in use\)"):
            require_free(str(path), 0)
    assert path.is_socket()  # left behind
    require_free(str(path), 0)
    assert not path.exists()


def test_other_files_are_no_socket_files(tmp_path: Path) -> None:
    (tmp_path / "text.sock").write_text("kept")
    for name, message in (
        ("text.sock", "is no socket"),
        ("none/a.sock", "No such file"),
        ("a" * 200 + ".sock", "long"),
    ):
        with pytest.raises(EnvironmentFailure, match=message):
            require_free(str(tmp_path / name), 0)
    assert (tmp_path / "text.sock").read_text() == "kept"


@pytest.mark.parametrize("host", ["0.0.0.0,a.sock", "127.0.0.1,::1", '"0.0.0.0",a.sock'])
def test_a_server_has_one_address(host: str) -> None:
    """llama-server splits the argument at commas; a socket file would hide the address next to it from our check."""
    with pytest.raises(UsageError, match="names several addresses"):
        replace(BASE, host=host)


@pytest.mark.parametrize("text", ["²", "1²", "\u0663", "9" * 5000])
def test_texts_that_are_no_numbers(text: str) -> None:
    for read in (options.read_n_draft, options.read_vocab, bench._lengths):
        with pytest.raises(UsageError):
            read(text)
    with pytest.raises(UsageError):
        bench._numbers("--n-prompt", text)
    with pytest.raises(UsageError):
        convert._size(f"{text}G")


def test_a_user_without_a_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "HOME",
        "LLAMA_EAGLE_CACHE",
        "LLAMA_EAGLE_CONFIG",
        "XDG_CACHE_HOME",
        "XDG_CONFIG_HOME",
        "LOCALAPPDATA",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2**30 + 7)
    assert config_file() is None
    assert read_defaults({}) == {}
    assert named_in_file("serve", ["--host"]) == []
    with pytest.raises(EnvironmentFailure, match="Set HOME or LLAMA_EAGLE_CACHE"):
        cache_dir()


def test_own_defaults_that_are_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.toml").write_text(
        'threads = 2\ntemp = 1\n[generate]\nn-draft = 4\nraw = true\nstop = ["a", "b"]'
    )
    monkeypatch.setenv("LLAMA_EAGLE_CONFIG", str(tmp_path / "config.toml"))
    assert command().context_settings["default_map"]["generate"]["stop"] == ["a", "b"]


def test_files_with_a_byte_order_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows' editors write one. Every reader of a user's text is here."""
    (tmp_path / "config.toml").write_text("threads = 2", "utf-8-sig")
    (tmp_path / "c.json").write_text(json.dumps(MODEL), "utf-8-sig")
    monkeypatch.setenv("LLAMA_EAGLE_CONFIG", str(tmp_path / "config.toml"))
    assert command().context_settings["default_map"]["serve"]["threads"] == 2
    assert read_json_or_yaml(tmp_path / "c.json") == MODEL
    schema = '{"type": "null"}'
    texts = {
        "schema": (schema, json.loads(schema), generate._schema),
        "grammar": ('root ::= "a"', 'root ::= "a"', generate._grammar),
        "prompt": ("Hello", "Hello", lambda name: generate._read_file(Path(name))),
    }
    for name, (text, expected, read) in texts.items():
        (tmp_path / name).write_text(text, "utf-8-sig")
        assert read(str(tmp_path / name)) == expected
    assert generate._schema(f"\ufeff{schema}") == json.loads(schema)
    (tmp_path / "chat.json").write_text('{"messages": [{"role": "user", "content": "Hello"}]}', "utf-8-sig")
    Conversation().load(tmp_path / "chat.json")
    assert read_text(tmp_path / "prompt") == storage.read_text(tmp_path / "prompt") == "Hello"  # the latter: templates
    (tmp_path / "lines.jsonl").write_text('{"prompt": "Hello"}\n', "utf-8-sig")
    assert [prompt.text for prompt in bench_prompts.read_prompts([str(tmp_path / "lines.jsonl")])] == ["Hello"]
    assert [prompt.text for prompt in serving_prompts.read_prompts(tmp_path / "lines.jsonl")] == ["Hello"]
    assert next(calibration._parts(tmp_path / "lines.jsonl")).startswith("{")
    (tmp_path / "chats.jsonl").write_text('{"messages": [{"role": "assistant", "content": "Hello"}]}\n', "utf-8-sig")
    (tmp_path / "text.txt").write_text("Hello", "utf-8-sig")
    chats, text = read_documents([tmp_path / "chats.jsonl", tmp_path / "text.txt"])
    assert (chats.messages[0]["content"], text.text) == ("Hello", "Hello")
    for argument in ("--chat-template-file", "--grammar_file", "--api-key-file"):  # read by llama-server
        with pytest.raises(UsageError, match="byte order mark"):
            refuse_unchecked([argument, str(tmp_path / "grammar")])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\ufeffHello\n".encode()), "utf-8"))
    assert read_piped() == "Hello\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\ufeffHello\n".encode()), "utf-8"))
    assert read_lines() == "Hello"


def test_json_of_the_configuration_file_applies_to_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.toml").write_text("[check]\njson = true")
    monkeypatch.setenv("LLAMA_EAGLE_CONFIG", str(tmp_path / "config.toml"))
    assert run(["check", str(tmp_path / "none.gguf")]) == 3
    assert json.loads(capsys.readouterr().out)["error"]["exit_code"] == 3
    assert run(["inspect", str(tmp_path / "none.gguf")]) == 3
    assert capsys.readouterr().out == ""


def test_a_file_of_the_server_is_named_by_its_own_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not by those of the user's defaults, whose option is the same."""
    (tmp_path / "config.toml").write_text("[serve]\nctx-size = 64")
    (tmp_path / "c.json").write_text('{"model": "t.gguf", "n_ctx": -1}')
    monkeypatch.setenv("LLAMA_EAGLE_CONFIG", str(tmp_path / "config.toml"))
    assert run(["serve", "--config", str(tmp_path / "c.json")]) == 2
    assert capsys.readouterr().err.startswith(f"error: {tmp_path / 'c.json'}: n_ctx=-1")


def test_json_has_no_infinity(capsys: pytest.CaptureFixture[str]) -> None:
    console.result({"a": math.inf, "b": [1.5, math.nan, (-math.inf,)], "c": {"d": 2}})
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {
        "a": None,
        "b": [1.5, None, [None]],
        "c": {"d": 2},
    }


def test_options_that_would_be_ignored_or_wrap_around(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "t.gguf", "--text", "text.txt"]) == 2
    assert "--text is the text for --exact" in capsys.readouterr().err
    assert run(["serve", "-m", "t.gguf", "--draft-ctx-size", str(2**32 + 1)]) == 2
    assert f"--draft-ctx-size={2**32 + 1} is above {2**31 - 1}" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "[]", "{", '{"source": 5, "outtype": "q8_0"}', '{"source": "x"}', "\xff"])
def test_a_damaged_entry_of_the_store(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are listed, and it can be removed by the name of its folder."""
    monkeypatch.setattr(kept, "models_dir", lambda: tmp_path)
    for name, content in (("good", '{"source": "a/b", "outtype": "q8_0"}'), ("other", text)):
        (tmp_path / name).mkdir()
        (tmp_path / name / kept.MADE_OF).write_text(content, "latin-1")
    good, other = kept.entries()
    assert (good.made_of, good.problem, other.made_of) == ("a/b", "", "other")
    assert f"other/{kept.MADE_OF}" in other.problem
    assert [entry.made_of for entry in kept.clear("other")] == ["other"]
    assert [entry.made_of for entry in kept.entries()] == ["a/b"]


IMAGE = {"type": "image_url", "image_url": {"url": "data:x"}}


@pytest.mark.parametrize(
    ("saved", "message"),
    [
        ([], "it must be an object with the keys messages"),
        ({"messages": 5}, "messages is 5, it must be a valid list"),
        ({"messages": [5]}, "messages.0 is 5, it must be an object"),
        ({"messages": [{"role": "x", "content": "a"}]}, "messages.0.role is 'x', it must be 'system', 'user' or"),
        ({"messages": [{"role": "user"}]}, "messages.0.content is missing"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content is 5, it must be a valid string or"),
        ({"messages": [{"role": "user", "content": []}]}, "messages.0.content.0 is None, it must be an object"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages.0.content.0.type is 'image_url'"),
        (
            {"messages": [{"role": "user", "content": [{**IMAGE, "image_url": 5}, {"type": "text", "text": "a"}]}]},
            "messages.0.content.0.image_url is 5",
        ),
    ],
)
def test_saved_chats(saved: Any, message: str, tmp_path: Path) -> None:
    (tmp_path / "chat.json").write_text(json.dumps(saved))
    with pytest.raises(InputError, match=rf"chat\.json: {re.escape(message)}"):
        Conversation().load(tmp_path / "chat.json")
