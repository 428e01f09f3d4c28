"""One place states each fact: what the project's files say of each other is true."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from refresh_pictures import DRAWERS

from casestudy import checkpoint, course, doctor

ROOT = course.ROOT
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCK = (ROOT / "requirements.lock").read_text().splitlines()
PINS = dict(line.split("==") for line in LOCK)
README = (ROOT / "README.md").read_text()


def test_the_lock_holds_pins_and_nothing_else() -> None:
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line) for line in LOCK)
    assert (PINS["torch"], PINS["runai-model-streamer"]) == ("2.13.0", "0.15.8")


def test_every_requirement_is_locked_at_a_version_it_allows() -> None:
    for line in PROJECT["dependencies"] + PROJECT["optional-dependencies"]["dev"]:
        requirement = Requirement(line)
        pins = {name.lower(): pin for name, pin in PINS.items()}
        assert requirement.specifier.contains(pins[requirement.name.lower()]), line


def test_what_is_installed_is_what_is_locked() -> None:
    assert {name: version(name).split("+")[0] for name in PINS} == PINS


def test_the_conda_environment_points_at_the_same_lock() -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    *conda, pip = environment["dependencies"]
    python = next(each for each in conda if each.startswith("python="))
    assert SpecifierSet(PROJECT["requires-python"]).contains(python.removeprefix("python="))
    assert pip == {"pip": ["-r requirements.lock", "-e ."]}


def test_the_makefile_asks_for_the_python_of_pyproject() -> None:
    asked = re.search(r"version_info < \((\d+), (\d+)\)", (ROOT / "Makefile").read_text())
    assert asked
    assert PROJECT["requires-python"] == f">={asked[1]}.{asked[2]}"
    assert f"Python ≥ {asked[1]}.{asked[2]}" in README


def test_the_doctor_supports_the_releases_of_pyproject() -> None:
    line = next(each for each in PROJECT["dependencies"] if each.startswith("runai"))
    first, end = (".".join(map(str, number)) for number in doctor.SUPPORTED)
    assert Requirement(line).specifier == SpecifierSet(f">={first},<{end}")


def test_the_readme_names_the_commands_that_exist() -> None:
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"(?:^|`)make (\w+)", README, re.M)) <= set(targets)
    assert "make test" in (ROOT / ".ci" / "run").read_text()


def test_the_readme_links_to_what_is_there() -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


@pytest.mark.parametrize("path", course.PICTURES[1:], ids=lambda path: path.stem)
def test_the_readmes_pictures_are_of_today(path: Path) -> None:
    """Byte by byte, but for the first: its garbled text may differ between processors."""
    assert path.read_text() == DRAWERS[path.stem]().svg()


def test_no_file_names_a_place_of_one_machine() -> None:
    private = re.compile(r"/(work|root|home/\w+)/|pypi\.org|files\.pythonhosted")
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    texts = [name for name in listed if not name.endswith((".safetensors", "test_project.py"))]
    assert [name for name in texts if private.search((ROOT / name).read_text())] == []


def test_the_course_checkpoint_needs_little_room() -> None:
    size = sum(path.stat().st_size for path in course.CHECKPOINT.iterdir())
    assert size <= 8 << 20
    assert (course.CHECKPOINT / checkpoint.INDEX_NAME).exists()


def test_importing_the_package_brings_neither_transformers_nor_pictures() -> None:
    code = (
        "import sys, torch; before = set(sys.modules); import casestudy;"
        "print(*{name.split('.')[0] for name in set(sys.modules) - before})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"transformers", "matplotlib", "runai_model_streamer", "rich", "nbclient", "IPython"}
    assert heavy.isdisjoint(done.stdout.split())


def test_every_module_says_what_it_is_for() -> None:
    for path in [*Path(course.ROOT / "casestudy").glob("*.py"), *(ROOT / "tools").glob("*.py")]:
        assert path.read_text().startswith('"""'), path


def test_a_folder_of_the_same_name_does_not_hide_the_package(tmp_path: Path) -> None:
    """As when someone works in the folder that holds their clone."""
    (tmp_path / "casestudy").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", "from casestudy import borrowed"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
