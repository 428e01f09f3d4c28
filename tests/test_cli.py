"""The command as a person runs it: real processes, exit status, one sentence for a mistake."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from casestudy import cli, course, loaders, notebooks, releases
from tests.test_consumers import FUSED_NAMES

COMMAND = Path(sys.executable).with_name("casestudy")
SHELL = {k: v for k, v in os.environ.items() if k != loaders.MEMORY_LIMIT_VARIABLE}
PICTURE = "from casestudy import plots, trace; plots.stream_map(trace.Trace(), 'Nothing')"
OUTCOME_KEYS = {"text", "loss", "wrong"}


def casestudy(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COMMAND, *arguments], env={**SHELL, **environment}, capture_output=True, text=True
    )


def test_reproduce_as_json_has_the_promised_keys() -> None:
    done = casestudy("reproduce", "--json")
    assert (done.returncode, done.stderr.strip()) == (0, "")
    _check_reproduction(json.loads(done.stdout), loaders.streamer_version())


def test_reproduce_shows_three_texts_and_the_wrong_parameters() -> None:
    done = casestudy("reproduce", COLUMNS="200")
    assert done.returncode == 0
    assert "streamer 0.15.8, memory limit 0, on cpu" in done.stdout
    for words in ("reference", "borrowed", "cloned", "loss, nats a character", *FUSED_NAMES):
        assert words in done.stdout


def test_reproduce_with_a_large_buffer_fails_and_says_why() -> None:
    done = casestudy("reproduce", "--memory-limit", "-1", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["borrowed"]["wrong"] == []
    assert "use --memory-limit 0" in " ".join(done.stderr.split())


def test_reproduce_ignores_the_shells_memory_limit() -> None:
    done = casestudy("reproduce", "--json", **{loaders.MEMORY_LIMIT_VARIABLE: "-1"})
    assert done.returncode == 0


@pytest.mark.parametrize("release", releases.RELEASES[1:])
def test_reproduce_reproduces_on_later_releases(release: str) -> None:
    done = releases.run_under(release, "-m", "casestudy.cli", "reproduce", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["streamer"] == release
    assert len(result["borrowed"]["wrong"]) >= 2
    assert result["borrowed"]["loss"] >= 20 * result["reference"]["loss"]
    assert result["cloned"] == result["reference"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--device", "tpu"], "the device tpu is unknown; use cpu or cuda."),
        (["--checkpoint", "nowhere"], "nowhere is not a folder; give a checkpoint folder."),
        (["--memory-limit", "5"], "a memory limit of 5 bytes is smaller than the largest tensor"),
    ],
)
def test_a_mistake_is_a_sentence_and_exit_2(arguments: list[str], sentence: str) -> None:
    done = casestudy("reproduce", *arguments)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_cuda_without_a_gpu_is_a_sentence_and_exit_2() -> None:
    done = casestudy("reproduce", "--device", "cuda", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 2
    assert done.stderr.strip() == "torch sees no GPU here; use the device cpu."


def test_a_terminal_that_knows_only_ascii_gets_its_answer() -> None:
    limited = {loaders.MEMORY_LIMIT_VARIABLE: "0", "PYTHONIOENCODING": "ascii"}
    done = casestudy("doctor", **limited)
    assert done.returncode == 1
    assert "unset RUNAI_STREAMER_MEMORY_LIMIT" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [["reproduce", "--memory-limit", "-2"], ["bogus"], []])
def test_misuse_is_exit_2(arguments: list[str]) -> None:
    assert casestudy(*arguments).returncode == 2


@pytest.mark.parametrize("command", [[], ["run"], ["reproduce"], ["doctor"], ["lab"], ["show"]])
def test_every_command_has_help(command: list[str]) -> None:
    done = casestudy(*command, "--help")
    assert done.returncode == 0
    assert "Usage: casestudy" in done.stdout


def test_show_prints_a_table() -> None:
    done = casestudy("show", "map", COLUMNS="120")
    assert (done.returncode, done.stderr.strip()) == (0, "")
    for word in ("stale from", "overwritten by", "embed", "A+0x0", "scale (step 1)"):
        assert word in done.stdout


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_show_writes_a_picture_file(tmp_path: Path, ending: str) -> None:
    out = tmp_path / f"map.{ending}"
    done = casestudy("show", "map", "--memory-limit", "1843", "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert f"Wrote {out}: borrowed, a buffer of 1,843 bytes" in done.stdout
    start = {"svg": b"<svg", "png": b"\x89PNG"}[ending]
    assert out.read_bytes().startswith(start)


def test_show_does_not_write_over_a_file_unless_it_is_told_to(tmp_path: Path) -> None:
    out = tmp_path / "map.svg"
    out.write_text("mine")
    done = casestudy("show", "map", "--out", str(out))
    assert done.returncode == 2
    assert "map.svg exists; name another file, or add --force." in " ".join(done.stderr.split())
    assert out.read_text() == "mine"
    assert casestudy("show", "map", "--out", str(out), "--force").returncode == 0
    assert out.read_text() != "mine"


@pytest.mark.parametrize(("answer", "written"), [("n", False), ("y", True)])
def test_show_asks_whoever_sits_at_a_terminal(tmp_path: Path, answer: str, written: bool) -> None:
    out = tmp_path / "map.svg"
    out.write_text("mine")
    terminal, inside = os.openpty()
    os.write(terminal, f"{answer}\n".encode())
    done = subprocess.run(
        [COMMAND, "show", "map", "--out", out], env=SHELL, stdin=inside, capture_output=True
    )
    assert b"Write over it?" in done.stdout
    assert (done.returncode == 0) is written
    assert (out.read_text() != "mine") is written


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["map", "--out", "map.gif"], "map.gif ends in neither .svg nor .png"),
        (["map", "--out", "no/such/map.svg"], "no/such/map.svg cannot be written (No such file"),
        (["map", "nowhere.safetensors"], "nowhere.safetensors does not exist; check the path."),
        (["map", "--memory-limit", "5"], "a memory limit of 5 bytes is smaller than the largest"),
        (["bytes", "--tensor", "skale"], "there is no tensor skale; did you mean scale?"),
        (["text", "."], ". holds no .safetensors file"),
    ],
)
def test_what_cannot_be_shown_is_a_sentence_and_exit_2(
    arguments: list[str], sentence: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [COMMAND, "show", *arguments], env=SHELL, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert sentence in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_doctor_is_well_here() -> None:
    done = casestudy("doctor", "--json")
    assert done.returncode == 0, done.stdout
    assert all(set(check) == {"name", "ok", "found", "remedy"} for check in json.loads(done.stdout))


def test_doctor_says_what_to_do() -> None:
    done = casestudy("doctor", **{loaders.MEMORY_LIMIT_VARIABLE: "0"})
    assert done.returncode == 1
    line = next(line for line in done.stdout.splitlines() if "memory limit" in line)
    assert line.startswith("FAIL")
    assert line.endswith("→ unset RUNAI_STREAMER_MEMORY_LIMIT")


def test_lab_starts_jupyterlab_and_hands_on_options() -> None:
    done = casestudy("lab", "--version")
    assert (done.returncode, done.stdout.strip()) == (0, version("jupyterlab"))


@pytest.fixture
def small_course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One notebook that prints what is stored in it and draws a picture."""
    folder = tmp_path / "notebooks"
    folder.mkdir()
    output = new_output("stream", name="stdout", text="2\n")
    cells = [new_code_cell("print(1 + 1)", outputs=[output]), new_code_cell(PICTURE)]
    cells[1].metadata["tags"] = ["varies"]
    nbformat.write(new_notebook(cells=cells), folder / "00-one.ipynb")
    monkeypatch.setattr(course, "NOTEBOOKS", folder)
    monkeypatch.chdir(tmp_path)
    return folder


def test_run_writes_pages_and_says_how_it_went(
    small_course: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run([]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "00-one" in told
    assert "as stored" in told
    assert "All 1 notebooks ran and printed what they should." in told
    page = Path("build/00-one.html").read_text()
    assert "print" in page
    picture = re.search(r'<img alt="([^"]*)"[^>]* src="data:image/svg', page)
    assert picture
    assert picture[1] == "Nothing. 0 tensors in 0 steps, 0 of them stale while held."
    index = Path("build/index.html").read_text()
    assert '<a href="00-one.html">' in index
    assert index.count('<img alt="') == len(course.PICTURES)


def test_run_twice_takes_its_own_folder_again(small_course: Path) -> None:
    assert _run([]) == _run([]) == 0


def test_run_finds_a_notebook_that_prints_something_else(
    small_course: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = small_course / "00-one.ipynb"
    path.write_text(path.read_text().replace("1 + 1", "1 + 2"))
    assert _run([]) == 1
    assert "Not as it should be: 00-one." in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("content", ["", "[]", "{}", "<<<<<<< ours"])
def test_run_names_a_notebook_that_cannot_be_read(
    small_course: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    (small_course / "00-one.ipynb").write_text(content)
    assert _run([]) == 2
    told = capsys.readouterr().err
    assert "00-one.ipynb is not a notebook that can be read" in told
    assert "Traceback" not in told


def test_run_leaves_a_strangers_folder_alone(
    small_course: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "00-one.html").write_text("mine")
    assert _run(["--out", "theirs"]) == 2
    expected = "theirs holds files that casestudy did not write; name another --out.\n"
    assert capsys.readouterr().err == expected
    assert (theirs / "00-one.html").read_text() == "mine"
    assert [path.name for path in theirs.iterdir()] == ["00-one.html"]


def test_run_into_a_place_that_cannot_be_written_is_a_sentence(
    small_course: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert _run(["--out", "file/pages"]) == 2
    expected = "file/pages cannot be written (Not a directory); name another --out.\n"
    assert capsys.readouterr().err == expected


def test_without_notebooks_run_says_where_they_come_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(course, "NOTEBOOKS", tmp_path)
    assert _run([]) == 2
    assert "install from a clone (pip install -e .)" in capsys.readouterr().err


def test_an_interrupted_run_ends_without_a_traceback(
    small_course: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(notebooks, "execute", interrupted)
    assert _run([]) == 130
    assert "Traceback" not in capsys.readouterr().err


def _run(arguments: list[str]) -> int:
    """`casestudy run` in this process, with the course that the fixture made."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(sys, "argv", ["casestudy", "run", *arguments])
        cli.main()
    return int(ended.value.code or 0)


def _check_reproduction(result: dict[str, Any], release: str) -> None:
    assert list(result) == [
        "streamer", "memory_limit", "device", "prompt", "reference", "borrowed", "cloned",
    ]  # fmt: skip
    assert (result["streamer"], result["memory_limit"], result["device"]) == (release, 0, "cpu")
    assert result["prompt"] == course.long_prompt()
    assert all(result[name].keys() == OUTCOME_KEYS for name in ("reference", "borrowed", "cloned"))
    assert result["borrowed"]["wrong"] == FUSED_NAMES
    assert result["cloned"] == result["reference"]


# check


def test_check_iterator_of_a_lender_fails_and_shows_what_overwrote_what() -> None:
    done = casestudy("check", "iterator", "casestudy.loaders:borrowed", str(course.CHECKPOINT))
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0] == "lends"
    assert "It looks owned only because its buffer is larger than what is in it." in lines
    assert "overwritten by" in done.stdout


@pytest.mark.parametrize(
    "factory",
    [
        "casestudy.loaders:cloned",
        "casestudy.loaders:plain",
        "casestudy.loaders:runai_safetensors_weights_iterator",
    ],
)
def test_check_iterator_of_an_owner_succeeds(factory: str) -> None:
    shards = [str(path) for path in sorted(course.CHECKPOINT.glob("*.safetensors"))]
    done = casestudy("check", "iterator", factory, *shards)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "owned")


def test_check_iterator_takes_a_memory_limit_for_its_first_run() -> None:
    command = ("check", "iterator", "casestudy.loaders:borrowed", str(course.CHECKPOINT))
    evidence = json.loads(casestudy(*command, "--memory-limit", "0", "--json").stdout)["evidence"]
    assert re.match(r"As it is: [1-9]\d+ of", evidence[0])
    shell = {loaders.MEMORY_LIMIT_VARIABLE: "0"}
    assert json.loads(casestudy(*command, "--json", **shell).stdout)["evidence"] == evidence


def test_check_consumer_names_who_keeps_in_the_promised_json() -> None:
    done = casestudy(
        "check", "consumer", "casestudy.consumers:keeps_the_pair", str(course.CHECKPOINT), "--json"
    )
    assert (done.returncode, done.stderr.strip()) == (1, "")
    found = json.loads(done.stdout)
    assert (found["verdict"], found["streamer"]) == ("keeps", loaders.streamer_version())
    assert len(found["stale"]) == len(FUSED_NAMES)
    for stale in found["stale"]:
        assert stale.keys() == {"victim", "overwriter", "bytes", "steps", "held_by"}
        assert stale["held_by"].startswith(f"waiting[{stale['victim']!r}] in load_weights (")


def test_check_consumer_that_keeps_nothing_succeeds() -> None:
    done = casestudy(
        "check", "consumer", "casestudy.consumers:copies_at_once", str(course.CHECKPOINT)
    )
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "keeps nothing")


LOADERS_OF_A_VISITOR = """
import torch
from safetensors.torch import load_file

def items(files):
    for file in files:
        yield from load_file(file).items()

def needs_more(files, device):
    return items(files)

def breaks(files):
    raise RuntimeError("no such device")

def yields_tensors(files):
    yield torch.ones(2)

def lists(weights):
    return list(weights)

NOT_A_FUNCTION = 3
"""


@pytest.mark.parametrize(
    ("kind", "name", "told"),
    [
        ("iterator", "visitor", "is not PACKAGE.MODULE:NAME"),
        ("iterator", "no_such_module:load", "no_such_module cannot be imported"),
        ("iterator", "visitor:nope", "there is no nope in visitor"),
        ("iterator", "visitor:NOT_A_FUNCTION", "is a int, not a function"),
        ("iterator", "visitor:needs_more", "also needs device; write a function"),
        ("iterator", "visitor:breaks", "visitor:breaks raised RuntimeError: no such device"),
        ("iterator", "visitor:yields_tensors", "guard takes (name, tensor) pairs"),
        ("consumer", "visitor:breaks", "visitor:breaks raised RuntimeError"),
    ],
)
def test_check_tells_a_mistake_in_a_sentence(
    tmp_path: Path, kind: str, name: str, told: str
) -> None:
    done = check_as_a_visitor(tmp_path, kind, name)
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("kind", "name", "status"), [("iterator", "items", 0), ("consumer", "lists", 1)]
)
def test_check_finds_a_module_in_the_current_folder(
    tmp_path: Path, kind: str, name: str, status: int
) -> None:
    assert check_as_a_visitor(tmp_path, kind, f"visitor:{name}").returncode == status


def test_check_tells_a_missing_file(tmp_path: Path) -> None:
    done = check_as_a_visitor(tmp_path, "consumer", "visitor:lists", "missing.safetensors")
    assert (done.returncode, done.stdout) == (2, "")
    assert "missing.safetensors does not exist" in done.stderr


def check_as_a_visitor(
    folder: Path, kind: str, name: str, file: str | None = None
) -> subprocess.CompletedProcess[str]:
    (folder / "visitor.py").write_text(LOADERS_OF_A_VISITOR)
    file = file or str(course.write_lesson_file(folder))
    command = [str(COMMAND), "check", kind, name, file]
    return subprocess.run(command, env=SHELL, cwd=folder, capture_output=True, text=True)
