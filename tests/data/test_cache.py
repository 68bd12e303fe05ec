import os
import tempfile

import pytest

from pptoolkit.data import cache
from pptoolkit.data.cache import cache_directory, load_or_build
from pptoolkit.errors import DataError


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return tmp_path / "tmp"


def test_an_explicit_folder_wins_over_the_environment(tmp_path):
    assert cache_directory(tmp_path / "mine", environment={"XDG_CACHE_HOME": str(tmp_path / "xdg")}) == tmp_path / "mine"


def test_xdg_cache_home_comes_before_home(tmp_path):
    environment = {"XDG_CACHE_HOME": str(tmp_path / "xdg"), "HOME": str(tmp_path / "home")}
    assert cache_directory(environment=environment) == tmp_path / "xdg" / "pptoolkit"


@pytest.mark.parametrize("xdg", [{}, {"XDG_CACHE_HOME": ""}, {"XDG_CACHE_HOME": "relative"}])
def test_home_is_used_where_xdg_cache_home_says_nothing(tmp_path, xdg):
    assert cache_directory(environment={**xdg, "HOME": str(tmp_path)}) == tmp_path / ".cache" / "pptoolkit"


def test_the_temporary_folder_is_used_where_home_cannot_be_written(tmp_path, own_temporary_folder):
    (tmp_path / "file").touch()  # a home below a file can be made by nobody, not even root
    found = cache_directory(environment={"HOME": str(tmp_path / "file" / "home")})
    assert found == own_temporary_folder / f"pptoolkit-{os.getuid()}"
    assert found.stat().st_mode & 0o777 == 0o700


def test_there_is_no_cache_where_nothing_can_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file" / "tmp"))
    assert cache_directory(environment={}) is None


def test_a_strangers_folder_in_the_temporary_folder_is_not_trusted(own_temporary_folder, monkeypatch):
    (own_temporary_folder / "pptoolkit-4242").mkdir()
    monkeypatch.setattr(cache.os, "getuid", lambda: 4242)
    assert cache_directory(environment={}) is None


def test_an_explicit_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="cannot be written; choose another"):
        cache_directory(tmp_path / "file" / "cache")


def test_without_a_cache_the_value_is_built():
    assert load_or_build(None, "entry", load=lambda _: None, build=lambda: 7, save=lambda _value, _folder: None) == 7


def test_a_build_that_fails_leaves_no_entry_and_a_free_lock(tmp_path):
    def fail():
        raise RuntimeError("no")

    def load(folder):
        return (folder / "value").read_text() if folder.exists() else None

    def save(value, folder):
        (folder / "value").write_text(value)

    with pytest.raises(RuntimeError, match="no"):
        load_or_build(tmp_path, "entry", load=load, build=fail, save=save)
    assert load_or_build(tmp_path, "entry", load=load, build=lambda: "built", save=save, lock_timeout_s=0) == "built"
    assert load_or_build(tmp_path, "entry", load=load, build=fail, save=save) == "built"
