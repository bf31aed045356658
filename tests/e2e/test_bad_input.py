"""Bad input: one line, the right exit code, the remedy; never a traceback, an abort or a partial file."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import gguf
import pytest
from fixtures.command import assert_one_line_error, in_shell, llama_eagle
from fixtures.llama_pairs import write_lora
from fixtures.tiny_gguf import Variant, finish, write_draft, write_sliding_window_target, write_target
from llama_eagle import EagleLlama, cli
from llama_eagle.errors import EagleError

pytestmark = pytest.mark.native

USAGE, INPUT, ENVIRONMENT, CHECK = 2, 3, 4, 5


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    target = write_target(folder / "target.gguf")
    write_draft(folder / "draft.gguf")
    write_draft(folder / "narrow.gguf", Variant(hidden=32))
    write_draft(folder / "vocabulary.gguf", Variant(n_vocab=300))
    write_draft(folder / "layers.gguf", Variant(target_layers=(1, 2, 9)))
    (folder / "truncated.gguf").write_bytes(target.read_bytes()[:-1000])
    (folder / "header.gguf").write_bytes(target.read_bytes()[:300])
    (folder / "text.gguf").write_text("this is not a model, only some text that is long enough")
    (folder / "empty.gguf").touch()
    write_target(folder / "family.gguf", Variant(hidden=32, first_token="other"))
    write_sliding_window_target(folder / "encoder.gguf", window=16, arch="gemma-embedding")
    write_lora(folder / "lora.gguf")
    _write_keys(folder / "mmproj.gguf", "clip")
    _write_keys(folder / "part-00001-of-00002.gguf", "qwen35", no=0, count=2)
    _write_keys(folder / "other-00002-of-00002.gguf", "qwen35", no=1, count=2)
    for i in range(2):
        _write_keys(folder / f"shard-0000{i + 1}-of-00002.gguf", "eagle3", no=i, count=2)
    (folder / "prompts.txt").write_text("a")
    (folder / "latin.txt").write_bytes(b"caf\xe9")
    (folder / "empty.txt").touch()
    return folder


def _write_keys(path: Path, arch: str, **split: int) -> None:
    writer = gguf.GGUFWriter(path, arch)
    for name, value in split.items():
        writer.add_uint16(f"split.{name}", value)
    writer.add_tensor(f"v{split.get('no', 0)}", gguf.np.ones(4, gguf.np.float32))
    finish(writer, path)


# arguments ("@x" is a file of `models`), exit code, parts of the message
GENERATE = [
    (["-m", "@none.gguf", "-p", "a"], INPUT, ["no such file"]),
    (["-m", "@.", "-p", "a"], USAGE, ["models (", "Choose one: /"]),
    (["-m", "@text.gguf", "-p", "a"], INPUT, ["not a GGUF"]),
    (["-m", "@empty.gguf", "-p", "a"], INPUT, ["not a GGUF"]),
    (["-m", "@truncated.gguf", "-p", "a"], INPUT, ["truncated", "Download or convert it again"]),
    (["-m", "@header.gguf", "-p", "a"], INPUT, ["damaged or truncated"]),
    (["-m", "@draft.gguf", "-p", "a"], INPUT, ["is an EAGLE-3 draft, not a target"]),
    (["-m", "@target.gguf", "-d", "@none.gguf", "-p", "a"], INPUT, ["no such file"]),
    (["-m", "@target.gguf", "-d", "@narrow.gguf", "-p", "a"], INPUT, ["hidden size of 32", "Use the draft of"]),
    (["-m", "@target.gguf", "-d", "@vocabulary.gguf", "-p", "a"], INPUT, ["300 tokens, the target's 272"]),
    (["-m", "@target.gguf", "-d", "@layers.gguf", "-p", "a"], INPUT, ["reads layer 9"]),
    (["--raw", "-m", "@target.gguf", "-p", "a" * 100, "--ctx-size", "50"], INPUT, ["100 tokens, 50 fit", "--ctx-size"]),
    (
        ["--raw", "-m", "@target.gguf", "-d", "@draft.gguf", "-p", "a" * 100, "--ctx-size", "50"],
        INPUT,
        ["100 tokens, 50 fit"],
    ),
    (["--raw", "-m", "@target.gguf", "-p", "a" * 3000], INPUT, ["3000 tokens, 2048 fit"]),
    (["-m", "@target.gguf", "--tokens", "1,99999"], INPUT, ["99999 is not in the vocabulary of 272"]),
    (["-m", "@target.gguf", "-f", "@latin.txt"], INPUT, ["not UTF-8"]),
    (["-m", "@target.gguf", "-f", "@none.txt"], INPUT, ["cannot be read"]),
    (["-m", "@target.gguf", "-p", ""], USAGE, ["the prompt is empty"]),
    (["-m", "@target.gguf", "-f", "@empty.txt"], USAGE, ["the prompt is empty"]),
    (["-m", "@target.gguf", "--tokens", ","], USAGE, ["--tokens is empty"]),
    (["-m", "@target.gguf", "--tokens", "1,x"], USAGE, ["separated by commas"]),
    (["-m", "@target.gguf"], USAGE, ["by -p, --prompt-file, --tokens or a pipe"]),
    (["-m", "@target.gguf", "-p", "a", "--tokens", "1"], USAGE, ["give one prompt"]),
    (["-m", "@target.gguf", "-p", "a", "-n", "0"], USAGE, ["--n-predict=0"]),
    (["-m", "@target.gguf", "-p", "a", "-n", "x"], USAGE, ["-n"]),
    (["-p", "a"], USAGE, ["--model"]),
    (["hello", "-m", "@target.gguf"], USAGE, ["(hello). This command takes options only, such as -m and -p"]),
    (["-p", "a", "-m", "owner/name"], INPUT, ["If it is on the hub: llama-eagle pull owner/name (or", "--yes"]),
    (["-m", "@target.gguf", "-d", "", "-p", "a"], USAGE, ["draft is empty. Give a file, mtp, lookup, none or auto"]),
    (["-m", "@target.gguf", "-p", "a", "--frobnicate"], USAGE, ["--frobnicate"]),
    (["-m", "@target.gguf", "-p", "a", "--n-draft", "many"], USAGE, ["0 or more, or auto"]),
    (["-m", "@target.gguf", "-p", "a", "--n-draft", "-2"], USAGE, ["0 or more, or auto"]),
    (["-m", "@target.gguf", "-p", "a", "--top-p", "1.5"], USAGE, ["--top-p"]),
    (["-m", "@target.gguf", "-p", "a", "--temp", "nan"], USAGE, ["--temp"]),
    (["-m", "@target.gguf", "-p", "a", "--flash-attn", "maybe"], USAGE, ["--flash-attn='maybe'"]),
    (["-m", "@target.gguf", "-p", "a", "--cache-type-k", "q3"], USAGE, ["cache type"]),
    (["-m", "@target.gguf", "-p", "a", "--cache-type-v", "q8_0", "--flash-attn", "off"], USAGE, ["flash attention"]),
    (["-m", "@target.gguf", "-p", "a", "--threads", "100000"], USAGE, ["--threads"]),
    (["-m", "@target.gguf", "-d", "@draft.gguf", "-p", "a", "--ubatch-size", "8"], USAGE, ["ubatch size 8", "18"]),
    (["-m", "@target.gguf", "-p", "a", "--ctx-size", "100000000000"], USAGE, ["--ctx-size"]),
]


def fill(arguments: list[str], models: Path) -> list[str]:
    return [str(models / argument[1:]) if argument.startswith("@") else argument for argument in arguments]


@pytest.mark.parametrize(("arguments", "code", "parts"), GENERATE)
def test_generate(models: Path, arguments: list[str], code: int, parts: list[str]) -> None:
    assert_one_line_error(llama_eagle("generate", "-t", 1, *fill(arguments, models)), code, *parts)


BAD_DRAFTS = {
    "target.gguf": "it is the target itself",
    "family.gguf": "token 33 is '!' in the target and 'other' in the draft. Use a draft of the target's family",
    "encoder.gguf": "it is an encoder (gemma-embedding), which generates no text",
    "lora.gguf": "is a LoRA adapter, not a language model",
    "mmproj.gguf": "is a vision or audio projector (mmproj), not a language model",
    "part-00001-of-00002.gguf": "missing split part-00002-of-00002.gguf",
    "other-00002-of-00002.gguf": "this is not the first split",
    "shard-00001-of-00002.gguf": "it is an EAGLE-3 draft in 2 files, which have to be one",
    "empty.gguf": "not a GGUF",
    "truncated.gguf": "truncated",
    "none.gguf": "no such file. Give the path of a .gguf file, or",
    "owner/name": "llama-eagle convert owner/name -o draft.gguf --target TARGET.gguf",  # not in the folder
    ".": "is a folder, not a GGUF file. Convert a checkpoint first",
}
COMMANDS = {  # the target is the argument before -d
    "generate": ["-p", "a", "-m"],
    "chat": ["-m"],
    "run": [],
    "serve": ["-m"],
    "answer": ["@prompts.txt", "-o", "@answers.jsonl", "-m"],
    "evaluate": ["-m"],
    "bench": ["-m"],
}


def draft_in(models: Path, name: str) -> str:
    return name if "/" in name else str(models / name)


@pytest.mark.parametrize("command", COMMANDS)
def test_drafts_that_cannot_draft(command: str, models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every command refuses them in one line, before it loads or writes anything. Two drafters are a usage error."""
    arguments = [command, *fill([*COMMANDS[command], "@target.gguf"], models)]
    for draft, part in {**BAD_DRAFTS, "lookup -d mtp": "--draft names two drafters"}.items():
        drafters = draft.split() if " " in draft else [draft_in(models, draft)]
        assert cli.run([*arguments, "-d", *drafters]) == (USAGE if " " in draft else INPUT), draft
        shown = capsys.readouterr()
        assert shown.out == "" and len(shown.err.splitlines()) == 1 and part in shown.err
    assert not (models / "answers.jsonl.part").exists()


def test_eagle_llama_refuses_drafts(models: Path) -> None:
    for draft, part in BAD_DRAFTS.items():
        with pytest.raises(EagleError, match=re.escape(part)):
            EagleLlama(models / "target.gguf", draft=draft_in(models, draft), verbose=False)


@pytest.mark.parametrize(("arguments", "code", "parts"), GENERATE[::5])
def test_json_failures_are_one_object(models: Path, arguments: list[str], code: int, parts: list[str]) -> None:
    outcome = llama_eagle("generate", *fill(arguments, models), "--json")
    assert outcome.code == code
    error = outcome.json["error"]
    assert error["exit_code"] == code
    assert all(part in error["message"] for part in parts)
    assert outcome.stderr.splitlines() == [f"error: {error['message']}"]


def test_memory_that_is_not_there(models: Path) -> None:
    """A context of terabytes."""
    outcome = llama_eagle(
        "generate", "-m", models / "target.gguf", "-p", "a", "--ctx-size", 2_000_000_000, "--cache-type-k", "f32"
    )
    assert_one_line_error(outcome, ENVIRONMENT, "no context of 2000000000 tokens", "Use a smaller --ctx-size")


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="needs /dev/full")
@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_output_that_takes_nothing(models: Path, as_json: list[str]) -> None:
    outcome = in_shell("> /dev/full", "inspect", models / "target.gguf", *as_json)
    assert_one_line_error(outcome, ENVIRONMENT, "No space left on device")


@pytest.mark.parametrize("redirection", [">&-", "<&- >&- 2>&-"])
def test_closed_streams(models: Path, redirection: str) -> None:
    """Nothing to read from or to write to is no failure, and no file of ours takes a closed stream's number."""
    outcome = in_shell(redirection, "generate", "-m", models / "target.gguf", "-p", "a", "-n", 3, "-t", 1)
    assert (outcome.code, outcome.stderr) == (0, "")
    outcome = in_shell(redirection, "chat", "-m", models / "target.gguf", "-n", 3, "-t", 1)
    assert (outcome.code, outcome.stderr) == (0, "")
    copy = models / "copy.gguf"
    copy.unlink(missing_ok=True)  # what is there is not replaced
    assert in_shell(redirection, "quantize", models / "target.gguf", copy, "f16", "-t", 1).code == 0
    assert copy.read_bytes()[:4] == b"GGUF"


def test_a_reader_that_is_gone_is_no_failure(models: Path) -> None:
    outcome = in_shell("| head -c 3; exit ${PIPESTATUS[0]}", "generate", "-m", models / "target.gguf", "-p", "a")
    assert (outcome.code, len(outcome.stdout), outcome.stderr) == (0, 3, "")


def test_a_locale_without_the_characters(models: Path) -> None:
    """Unprintable characters are escaped, and paths need not be UTF-8."""
    odd = os.fsencode(models) + b"/caf\xe9 \xc3\xa9.gguf"
    shutil.copy(models / "target.gguf", odd)
    for encoding in ("ascii", "utf-8"):
        environment = {"PYTHONIOENCODING": encoding}
        outcome = llama_eagle("inspect", os.fsdecode(odd), **environment)
        assert (outcome.code, outcome.stderr) == (0, "")
        assert "caf\\udce9" in outcome.stdout
        report = llama_eagle("inspect", os.fsdecode(odd), "--json", **environment).json
        assert report["path"] == os.fsdecode(odd)
    ascii = {"PYTHONIOENCODING": "ascii"}
    assert llama_eagle("generate", "-m", os.fsdecode(odd), "-p", "é", "-n", 3, **ascii).code == 0
    assert llama_eagle("chat", "-m", models / "target.gguf", "-n", 2, stdin="é\n", **ascii).code == 0


def test_library_override_without_a_library(models: Path, tmp_path: Path) -> None:
    outcome = llama_eagle("generate", "-m", models / "target.gguf", "-p", "a", LLAMA_EAGLE_LIB_PATH=str(tmp_path))
    assert_one_line_error(outcome, ENVIRONMENT, "LLAMA_EAGLE_LIB_PATH", "contains no libllama")


def test_check(models: Path) -> None:
    assert llama_eagle("check", models / "target.gguf", models / "draft.gguf").code == 0
    outcome = llama_eagle("check", models / "target.gguf", models / "narrow.gguf", "--json")
    assert outcome.code == CHECK
    assert outcome.json["compatible"] is False
    assert len(outcome.json["problems"]) == 1
    assert_one_line_error(llama_eagle("check", models / "truncated.gguf"), INPUT, "truncated")


DRAFTERS_TO_CHECK = {
    "mtp": (INPUT, "has no MTP head"),
    "lookup": (USAGE, "lookup has no file to check. Give the file of a draft, mtp, or the target alone"),
    "auto": (USAGE, "auto has no file to check"),
    "none.gguf": (INPUT, "none.gguf: no such file. Give the path of a .gguf file.\n"),
    "owner/name": (INPUT, "llama-eagle convert owner/name -o draft.gguf --target TARGET.gguf"),
}


def test_check_of_drafters_by_name(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, (code, part) in DRAFTERS_TO_CHECK.items():
        assert cli.run(["check", str(models / "target.gguf"), name]) == code
        assert part in capsys.readouterr().err
    assert cli.run(["check", str(models / "draft.gguf"), "mtp"]) == INPUT
    assert "is an EAGLE-3 draft, not a target" in capsys.readouterr().err


def test_convert(tmp_path: Path) -> None:
    outcome = llama_eagle("convert", tmp_path, "-o", tmp_path / "model.gguf", "--revision", "main")
    assert_one_line_error(outcome, USAGE, "--revision does not apply to a folder")


def test_inspect(models: Path) -> None:
    report = llama_eagle("inspect", models / "draft.gguf", "--json").json
    assert report["architecture"] == "eagle3"
    assert report["keys"]["eagle3.target_layers"] == [1, 2, 3]
    assert report["keys"]["tokenizer.ggml.tokens"] == {"array": "string", "length": 272}
    assert {"name": "d2t", "shape": [54], "type": "I64", "n_bytes": 432} in report["tensors"]
    assert "d2t" in llama_eagle("inspect", models / "draft.gguf").stdout
    assert_one_line_error(llama_eagle("inspect", models / "text.gguf"), INPUT, "not a GGUF")


def test_names_do_not_steer_the_terminal(tmp_path: Path) -> None:
    """Control characters, C1 ones among them, and characters that turn the direction of writing."""
    path, name = tmp_path / "evil.gguf", "a\x1b]0;title\x07\x9b2J\u202e\nb"
    writer = gguf.GGUFWriter(path, "x\x1b[31m")
    writer.add_string("general.name", name)
    writer.add_string(f"key{name}", "value")
    writer.add_tensor(name, gguf.np.ones(4, gguf.np.float32))
    finish(writer, path)
    for arguments in (["inspect", path], ["inspect", path, "--json"], ["check", path], ["generate", "-m", path]):
        outcome = llama_eagle(*arguments)
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", outcome.stdout + outcome.stderr)
    assert llama_eagle("inspect", path, "--json").json["keys"]["general.name"] == name
    lines = llama_eagle("inspect", path).stdout.splitlines()
    assert sum("\\x1b]0;title" in line for line in lines) == 3  # each on a line of its own


def test_doctor() -> None:
    report = llama_eagle("doctor", "--json").json
    assert report["problems"] == []
    assert report["upstream_commit"] == "0c1e57098"
    assert len(report["patch_hash"]) == 64
    assert Path(report["library_path"], "libllama.so").exists()
    assert report["versions"]["llama-cpp-python"] == "0.3.36"
    assert report["cpu_library"].startswith("ggml-cpu")
    assert report["cpu_features"]


def test_help_imports_nothing_heavy() -> None:
    """`--help` is quick because it loads neither numpy nor rich nor any native library."""
    outcome = llama_eagle("--help", PYTHONPROFILEIMPORTTIME="1")
    assert outcome.code == 0
    assert "generate" in outcome.stdout
    loaded = {line.rpartition("|")[2].strip() for line in outcome.stderr.splitlines()}
    assert "llama_eagle.cli.app" in loaded
    assert not loaded & {"numpy", "rich", "rich.console", "torch", "llama_cpp", "gguf"}
    assert llama_eagle().stdout == outcome.stdout


@pytest.mark.parametrize("mib", [400, 700, 1000])
def test_too_few_addresses_are_an_error(mib: int, models: Path) -> None:
    """And not the end of the process, as ggml has it."""
    limit = f"ulimit -v {mib << 10}; "
    outcome = in_shell("", "generate", "-m", models / "target.gguf", "--raw", "-p", "abc", before=limit)
    assert_one_line_error(outcome, ENVIRONMENT, "limit of address space", "ulimit -v")
