"""Folders that are written all or not at all, beside files of the user."""

import json
import os
from pathlib import Path

import pytest

from synflow.errors import SynflowError
from synflow.support import folders

OURS = dict.fromkeys(("a.txt", "b.txt", "c.txt"), lambda path: path.read_text().isdigit())
INNER = {"x.txt": lambda path: path.read_text().startswith("from")}


def write(folder, **texts):
    writers = {f"{name}.txt": lambda path, text=text: path.write_text(text) for name, text in texts.items()}
    folders.write(folder, writers, OURS, stale={"inner": INNER})


def read(folder):
    return {path.name: path.read_text() for path in sorted(folder.iterdir()) if path.name != folders.MANIFEST}


def test_other_files_stay_and_files_that_are_no_longer_written_go(tmp_path):
    folder = tmp_path / "out"
    write(folder, a="1", b="1")
    (folder / "notes.txt").write_text("mine")
    (folder / "inner").mkdir()
    (folder / "inner" / "x.txt").write_text("from the old files")
    (folder / "inner" / "y.txt").write_text("mine")
    write(folder, a="2", c="2")
    folders.check(folder, ("a.txt", "c.txt"), OURS)
    (folder / "inner" / "y.txt").unlink()
    (folder / "inner").rmdir()
    assert read(folder) == {"a.txt": "2", "c.txt": "2", "notes.txt": "mine"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_file_of_the_user_under_our_name_is_not_replaced(tmp_path):
    write(tmp_path, a="1")
    (tmp_path / "b.txt").write_text("mine")
    with pytest.raises(SynflowError, match=r"b\.txt was not written by synflow"):
        write(tmp_path, a="2", b="2")
    assert read(tmp_path) == {"a.txt": "1", "b.txt": "mine"}
    write(tmp_path, a="2")
    (tmp_path / "a.txt").write_text("changed by hand")
    write(tmp_path, c="3")
    assert read(tmp_path) == {"a.txt": "changed by hand", "b.txt": "mine", "c.txt": "3"}


def test_a_folder_without_manifest_is_taken_over_if_its_files_are_ours_by_their_contents(tmp_path):
    (tmp_path / "a.txt").write_text("0")
    (tmp_path / "b.txt").write_text("0")
    folders.check(tmp_path, ("a.txt",), OURS)
    write(tmp_path, a="1")
    assert read(tmp_path) == {"a.txt": "1"}


def test_files_of_the_user_without_manifest_are_named_and_stay(tmp_path):
    for name, text in (("a", "0"), ("b", "mine"), ("c", "mine too")):
        (tmp_path / f"{name}.txt").write_text(text)
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "x.txt").write_text("mine")
    before = {path: path.read_text() for path in tmp_path.rglob("*.txt")}
    with pytest.raises(SynflowError, match=r"b\.txt, c\.txt were not written by synflow; move them away, or choose"):
        write(tmp_path, a="1", b="1", c="1")
    for name in ("b", "c"):
        with pytest.raises(SynflowError, match=rf"{name}\.txt was not written by synflow; move it away"):
            folders.update(tmp_path / f"{name}.txt", b"1", OURS)
    assert {path: path.read_text() for path in tmp_path.rglob("*") if path.is_file()} == before
    write(tmp_path, a="1")
    assert {path: path.read_text() for path in tmp_path.rglob("*.txt")} == {**before, tmp_path / "a.txt": "1"}


def test_what_the_user_changed_in_a_folder_of_old_results_stays(tmp_path):
    write(tmp_path, a="1")
    folders.write(tmp_path / "inner", {"x.txt": lambda path: path.write_text("from a")}, INNER)
    (tmp_path / "inner" / "x.txt").write_text("trained since")
    write(tmp_path, a="2")
    assert [path.name for path in (tmp_path / "inner").iterdir()] == ["x.txt"]


def test_a_link_stays_a_link_and_the_current_folder_can_be_written(tmp_path, monkeypatch):
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    write(tmp_path / "link", a="1")
    assert (tmp_path / "link").is_symlink()
    assert read(tmp_path / "disk") == {"a.txt": "1"}
    monkeypatch.chdir(tmp_path / "disk")
    for place in (Path("../disk"), Path()):
        write(place, a="2")
        assert read(tmp_path / "disk") == {"a.txt": "2"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["disk", "link"]


def test_an_updated_file_keeps_the_others_checked(tmp_path):
    write(tmp_path, a="1", b="1")
    folders.update(tmp_path / "b.txt", b"2", OURS)
    folders.update(tmp_path / "c.txt", b"2", OURS)
    folders.check(tmp_path, OURS, OURS)
    folders.update(tmp_path / "notes.txt", b"mine", OURS)
    write(tmp_path, a="3")
    assert read(tmp_path) == {"a.txt": "3", "notes.txt": "mine"}


def test_damage_is_named(tmp_path):
    write(tmp_path, a="1")
    (tmp_path / "a.txt").write_text("2")
    with pytest.raises(SynflowError, match=r"a\.txt is damaged or belongs to another write"):
        folders.check(tmp_path, ("a.txt",), OURS)
    (tmp_path / "a.txt").unlink()
    with pytest.raises(SynflowError, match=r"a\.txt is missing"):
        folders.check(tmp_path, ("a.txt",), OURS)
    manifest = tmp_path / folders.MANIFEST
    for text, said in (
        ("[" * 100_000, "nested too deeply"),
        ("[]", "no JSON object"),
        ('{"format": 7}', "format 7"),
        ('{"format": 1, "files": [], "pending": {}}', "lists no files"),
        ('{"format": 1, "files": {"../x": ""}, "pending": {}}', "lists a file"),
        ('{"format": 1, "files": {}, "pending": {"a.txt": "../../x"}}', "lists a temporary file"),
    ):
        manifest.write_text(text)
        with pytest.raises(SynflowError, match=said):
            folders.check(tmp_path, ("a.txt",), OURS)


def test_a_failure_leaves_the_old_files_and_a_new_folder_goes(tmp_path):
    def full(path):
        path.write_text("half")
        raise OSError(28, "No space left on device")

    write(tmp_path / "old", a="1")
    for name in ("old", "new"):
        with pytest.raises(SynflowError, match="No space left"):
            folders.write(tmp_path / name, {"a.txt": full}, OURS)
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert read(tmp_path / "old") == {"a.txt": "1"}


@pytest.mark.parametrize("fresh", [False, True])
def test_a_crash_at_any_point_leaves_the_old_files_or_the_new_ones(tmp_path, fresh):
    """A child process dies, without any clean-up, before its n-th call to the system."""
    states = []
    for moment in range(100):
        folder = tmp_path / str(moment)
        if not fresh:
            write(folder, a="old", b="old")
        child = os.fork()
        if not child:
            calls = [0]

            def dying(function, calls=calls, moment=moment):
                def called(*args, **kwargs):
                    calls[0] += 1
                    if calls[0] > moment:
                        os._exit(9)
                    return function(*args, **kwargs)

                return called

            for name in ("replace", "fsync", "unlink"):
                setattr(os, name, dying(getattr(os, name)))
            write(folder, a="new", c="new")
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        folders.settle(folder, OURS)
        found = {name: text for name, text in read(folder).items() if not name.startswith(".")}
        states.append(found.get("a.txt"))
        if found.get("a.txt") == "new":
            assert found["c.txt"] == "new"
            folders.check(folder, ("a.txt", "c.txt"), OURS)
            assert "b.txt" not in json.loads((folder / folders.MANIFEST).read_text())["files"]
        elif fresh:
            assert found == {}
            assert folders.is_free(folder)
        else:
            assert found == {"a.txt": "old", "b.txt": "old"}
        write(folder, a="newer")
        assert {name: text for name, text in read(folder).items() if name != "b.txt"} == {"a.txt": "newer"}
        if code == 0:
            break
    assert moment > 5
    assert states == sorted(states, key=lambda state: state == "new")


def test_a_place_that_cannot_be_written_is_told_before_the_work(tmp_path, monkeypatch):
    folders.check_writable(tmp_path / "new" / "deep")
    assert list(tmp_path.iterdir()) == []

    def read_only(*_, **__):
        raise OSError(30, "Read-only file system")

    write(tmp_path / "out", a="1")
    monkeypatch.setattr(Path, "touch", read_only)
    with pytest.raises(SynflowError, match=r"out cannot be written: Read-only file system; what was there"):
        folders.check_writable(tmp_path / "out")
    monkeypatch.setattr(Path, "write_bytes", read_only)
    with pytest.raises(SynflowError, match=r"out/b\.txt cannot be written: Read-only"):  # not a temporary name
        folders.update(tmp_path / "out" / "b.txt", b"2", OURS)
