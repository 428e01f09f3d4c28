"""Each check finds what it is there for, and names the remedy."""

from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from casestudy import course, doctor, loaders
from casestudy.doctor import Check, examine


def test_this_machine_passes_every_check_but_for_its_shell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(loaders.MEMORY_LIMIT_VARIABLE, raising=False)
    checks = list(examine())
    assert [check for check in checks if not check.ok] == []
    assert len(checks) == len(doctor.CHECKS)
    assert not any(check.remedy for check in checks)


def test_a_memory_limit_in_the_shell_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(loaders.MEMORY_LIMIT_VARIABLE, "-1")
    assert doctor.memory_limit() == Check(
        "memory limit",
        False,
        "RUNAI_STREAMER_MEMORY_LIMIT is -1",
        "unset RUNAI_STREAMER_MEMORY_LIMIT",
    )


def test_changed_missing_and_unlisted_data_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "data"
    shutil.copytree(course.DATA, copy)
    monkeypatch.setattr(course, "DATA", copy)
    assert doctor.data().ok
    (copy / "tale.txt").write_text("another tale")
    assert doctor.data().found == "tale.txt is missing or changed"
    (copy / "tale.txt").unlink()
    assert doctor.data() == Check(
        "data", False, "tale.txt is missing or changed", "git checkout -- data"
    )
    (copy / doctor.CHECKSUMS).unlink()
    assert doctor.data().remedy == "work in a clone of the repository"


def test_every_file_of_data_has_its_checksum() -> None:
    listed = {line.split()[1] for line in (course.DATA / doctor.CHECKSUMS).read_text().splitlines()}
    there = {
        str(path.relative_to(course.DATA)) for path in course.DATA.rglob("*") if path.is_file()
    }
    assert there - {doctor.CHECKSUMS} == listed


@pytest.mark.parametrize("release", ["0.14.0", "0.18.0", "1.0"])
def test_an_unsupported_release_is_found(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaders, "streamer_version", lambda: release)
    assert doctor.streamer().remedy == "pip install -r requirements.lock brings 0.15.8"


@pytest.mark.parametrize("release", ["0.15.8", "0.16.1", "0.17.1"])
def test_a_supported_release_is_well(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaders, "streamer_version", lambda: release)
    assert doctor.streamer() == Check("streamer", True, f"{release}, lends by default")


def test_a_full_disk_and_a_small_shared_memory_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(1 << 20))
    assert doctor.free_disk().found.startswith("1 MiB")
    assert doctor.free_disk().remedy == "free 1 GiB there"
    assert doctor.shared_memory().remedy == "give the container more: docker run --shm-size=1g"


def test_a_check_that_breaks_is_a_failed_check(monkeypatch: pytest.MonkeyPatch) -> None:
    def streamer() -> Check:
        raise ImportError("no module named runai_model_streamer")

    monkeypatch.setattr(doctor, "CHECKS", (streamer,))
    (check,) = examine()
    assert check == Check(
        "streamer",
        False,
        "ImportError: no module named runai_model_streamer",
        "reinstall: make run",
    )


def test_another_system_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.system", lambda: "Plan 9")
    assert not doctor.operating_system().ok


def test_an_unwritable_temporary_folder_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    assert doctor.writable_folder().remedy == "set TMPDIR to a writable folder"
