import os
from pathlib import Path

import pytest

from pptoolkit.data.corpus import DEFAULT_BYTES, PIECE_BYTES, find_corpus
from pptoolkit.errors import DataError


def text_of(corpus):
    return ["".join(document) for document in corpus.documents()]


def test_the_default_is_the_standard_library_up_to_the_cap_and_without_its_tests():
    corpus = find_corpus()
    assert corpus.bytes == DEFAULT_BYTES
    assert corpus.cut
    folders = {part for file in corpus.files for part in file.path.parts}
    assert not folders & {"site-packages", "test", "idlelib", "__pycache__"}
    assert sum(len(text.encode()) for text in text_of(corpus)) == pytest.approx(corpus.bytes, abs=1000)


def test_files_come_in_the_order_of_their_paths_whatever_order_they_were_made_in(tmp_path):
    for name in ("b/z.txt", "b.txt", "a.txt", "b/a.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert text_of(find_corpus(tmp_path)) == ["a.txt", "b.txt", "b/a.md", "b/z.txt"]


def test_equal_text_has_an_equal_digest_in_another_folder_and_other_text_has_not(tmp_path):
    for name, text in (("one", "alpha"), ("two", "alpha"), ("three", "alphb")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text(text)
    one, two, three = (find_corpus(tmp_path / name).digest for name in ("one", "two", "three"))
    assert one == two != three


def test_moving_text_from_one_file_to_the_next_changes_the_digest(tmp_path):
    for name, first, second in (("one", "ab", "c"), ("two", "a", "bc")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text(first)
        (tmp_path / name / "b.txt").write_text(second)
    assert find_corpus(tmp_path / "one").digest != find_corpus(tmp_path / "two").digest


def test_binary_and_latin_1_files_are_skipped_and_counted(tmp_path):
    (tmp_path / "good.txt").write_text("façade\n", encoding="utf-8")
    (tmp_path / "junk.bin").write_bytes(bytes(range(256)) * 10)
    (tmp_path / "late.bin").write_bytes(b"text " * PIECE_BYTES + b"\0")
    (tmp_path / "old.txt").write_bytes("façade\n".encode("latin-1"))
    (tmp_path / "torn.txt").write_bytes("ends within ç".encode()[:-1])
    corpus = find_corpus(tmp_path)
    assert text_of(corpus) == ["façade\n"]
    assert corpus.skipped == {"binary": 2, "not UTF-8": 2}


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_an_unreadable_file_is_skipped_and_counted(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "b.txt").write_text("b")
    (tmp_path / "b.txt").chmod(0)
    assert find_corpus(tmp_path).skipped == {"unreadable": 1}


def test_pipes_hidden_files_empty_files_and_broken_links_are_passed_over(tmp_path):
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / ".hidden.txt").write_text("hidden")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config.txt").write_text("hidden")
    (tmp_path / "empty.txt").touch()
    (tmp_path / "link.txt").symlink_to("nowhere")
    (tmp_path / "a.txt").write_text("seen")
    assert text_of(find_corpus(tmp_path)) == ["seen"]


def test_the_cap_cuts_the_last_file_but_no_character(tmp_path):
    (tmp_path / "a.txt").write_text("abcd", encoding="utf-8")
    (tmp_path / "b.txt").write_text("éé", encoding="utf-8")
    (tmp_path / "c.txt").write_text("never reached")
    corpus = find_corpus(tmp_path, max_bytes=7)
    assert text_of(corpus) == ["abcd", "é"]
    assert corpus.cut


@pytest.mark.parametrize(("max_bytes", "cut"), [(4, True), (8, False), (9, False), (None, False)])
def test_a_corpus_knows_whether_the_cap_left_text_out(tmp_path, max_bytes, cut):
    (tmp_path / "a.txt").write_text("abcd")
    (tmp_path / "b.txt").write_text("efgh")
    assert find_corpus(tmp_path, max_bytes=max_bytes).cut is cut


def test_a_large_file_comes_in_pieces_that_end_at_line_ends_and_join_to_the_whole(tmp_path):
    text = "".join(f"line {i} ü\n" for i in range(250_000))
    (tmp_path / "large.txt").write_text(text, encoding="utf-8")
    (pieces,) = [list(document) for document in find_corpus(tmp_path).documents()]
    assert len(pieces) > 2
    assert all(piece.endswith("\n") for piece in pieces)
    assert "".join(pieces) == text


def test_a_byte_order_mark_is_not_text(tmp_path):
    (tmp_path / "a.txt").write_text("plain", encoding="utf-8-sig")
    assert text_of(find_corpus(tmp_path)) == ["plain"]


def test_a_single_file_is_a_corpus(tmp_path):
    (tmp_path / "a.txt").write_text("alone")
    (tmp_path / "b.txt").write_text("not this")
    assert text_of(find_corpus(tmp_path / "a.txt")) == ["alone"]


def test_a_missing_path_is_named_with_the_remedy(tmp_path):
    with pytest.raises(DataError, match=r"data\.path=.*nowhere does not exist; name a folder"):
        find_corpus(tmp_path / "nowhere")


def test_a_path_that_is_no_folder_and_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="neither a file nor a folder"):
        find_corpus(tmp_path / "pipe")


def test_an_empty_folder_says_what_was_found_needed_and_to_do(tmp_path):
    with pytest.raises(DataError, match=r"0 files of UTF-8 text found, at least 1 needed .*set data\.path") as caught:
        find_corpus(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_a_folder_of_nothing_but_junk_says_why_each_file_was_left_out(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"\0\1")
    (tmp_path / "b.txt").write_bytes(b"\xff\xfe\xfd")
    with pytest.raises(DataError, match="looked at 2 files, 1 binary, 1 not UTF-8"):
        find_corpus(tmp_path)


def test_a_cap_below_one_byte_is_refused():
    with pytest.raises(DataError, match="max_bytes=0 leaves no text"):
        find_corpus(max_bytes=0)


def test_a_home_relative_path_is_understood(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("home")
    assert text_of(find_corpus(Path("~/texts"))) == ["home"]
