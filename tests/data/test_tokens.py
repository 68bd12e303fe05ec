import logging
import multiprocessing
import shutil
import time

import numpy as np
import pytest

from pptoolkit.data import tokens as tokens_module
from pptoolkit.data.tokens import SMALLEST_VOCABULARY, load_tokens
from pptoolkit.errors import DataError

VOCABULARY = 300


@pytest.fixture
def texts(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    for i in range(4):
        (folder / f"{i}.txt").write_text(f"the cat {i} sat on the mat — and the other cat sat too\n" * 50, encoding="utf-8")
    return folder


@pytest.fixture
def count_training(monkeypatch):
    """How often a vocabulary was trained in this process."""
    calls = []
    train = tokens_module._train

    def counted(*args):
        calls.append(args)
        return train(*args)

    monkeypatch.setattr(tokens_module, "_train", counted)
    return calls


def test_decoding_gives_the_text_back_with_a_mark_after_each_file(texts, tmp_path):
    corpus = load_tokens(texts, vocabulary=VOCABULARY, cache=tmp_path / "cache")
    expected = "".join((texts / f"{i}.txt").read_text(encoding="utf-8") + "<|endoftext|>" for i in range(4))
    assert corpus.tokenizer().decode(corpus.tokens.tolist(), skip_special_tokens=False) == expected
    assert np.count_nonzero(corpus.tokens == 0) == 4
    assert len(corpus.tokens) < corpus.text_bytes / 1.5  # pairs were learnt


def test_a_text_that_spells_the_mark_does_not_end_there(tmp_path):
    (tmp_path / "a.txt").write_text("one <|endoftext|> two")
    corpus = load_tokens(tmp_path / "a.txt", vocabulary=VOCABULARY, cache=tmp_path / "cache")
    assert np.flatnonzero(corpus.tokens == 0).tolist() == [len(corpus.tokens) - 1]


def test_the_second_call_reads_the_cache_and_trains_nothing(texts, tmp_path, count_training):
    first = load_tokens(texts, vocabulary=VOCABULARY, cache=tmp_path / "cache")
    second = load_tokens(texts, vocabulary=VOCABULARY, cache=tmp_path / "cache")
    assert (first.from_cache, second.from_cache) == (False, True)
    assert len(count_training) == 1
    assert np.array_equal(first.tokens, second.tokens)
    assert (first.key, first.tokenizer_json, first.skipped) == (second.key, second.tokenizer_json, second.skipped)


def test_building_twice_gives_the_same_tokens(texts, tmp_path):
    one = load_tokens(texts, vocabulary=VOCABULARY, cache=tmp_path / "one")
    two = load_tokens(texts, vocabulary=VOCABULARY, cache=tmp_path / "two")
    assert not two.from_cache
    assert np.array_equal(one.tokens, two.tokens)
    assert one.tokenizer_json == two.tokenizer_json


def test_changed_text_and_another_vocabulary_are_other_entries(texts, tmp_path):
    before = load_tokens(texts, vocabulary=VOCABULARY, cache=tmp_path / "cache")
    larger = load_tokens(texts, vocabulary=VOCABULARY + 1, cache=tmp_path / "cache")
    (texts / "0.txt").write_text("something else entirely\n")
    after = load_tokens(texts, vocabulary=VOCABULARY, cache=tmp_path / "cache")
    assert not larger.from_cache
    assert not after.from_cache
    assert len({before.key, larger.key, after.key}) == 3


def test_a_small_vocabulary_is_kept_in_two_bytes_a_token_and_a_large_one_in_four(texts, tmp_path):
    assert load_tokens(texts, vocabulary=65_536, cache=tmp_path / "cache").tokens.dtype == np.uint16
    assert load_tokens(texts, vocabulary=65_537, cache=tmp_path / "cache").tokens.dtype == np.int32


def test_tokens_stay_below_the_vocabulary_that_was_asked_for(texts, tmp_path):
    assert load_tokens(texts, vocabulary=SMALLEST_VOCABULARY, cache=tmp_path / "cache").tokens.max() < SMALLEST_VOCABULARY


def test_a_vocabulary_without_room_for_all_bytes_is_refused():
    with pytest.raises(DataError, match="vocabulary=256 is out of range; a byte-level vocabulary needs 257"):
        load_tokens(vocabulary=256)


def test_documents_beyond_one_encoding_batch_keep_their_order(tmp_path):
    folder = tmp_path / "many"
    folder.mkdir()
    for i in range(150):
        (folder / f"{i:03d}.txt").write_text(f"file {i:03d};")
    corpus = load_tokens(folder, vocabulary=VOCABULARY, cache=tmp_path / "cache")
    decoded = corpus.tokenizer().decode(corpus.tokens.tolist(), skip_special_tokens=False)
    assert decoded == "".join(f"file {i:03d};<|endoftext|>" for i in range(150))


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("tokens.npy", lambda path: path.write_bytes(path.read_bytes()[:-10])),
        ("tokens.npy", lambda path: path.write_bytes(b"")),
        ("tokens.npy", lambda path: np.save(path, np.array([70_000], dtype=np.int32))),
        ("tokens.npy", lambda path: np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)),
        ("tokenizer.json", lambda path: path.write_text("{")),
        ("facts.json", lambda path: path.write_text("[]")),
        ("facts.json", lambda path: path.unlink()),
    ],
)
def test_a_damaged_entry_is_built_anew_and_mended(texts, tmp_path, name, damage):
    cache = tmp_path / "cache"
    first = load_tokens(texts, vocabulary=VOCABULARY, cache=cache)
    expected = first.tokens.copy()
    damage(cache / f"tokens-{first.key}" / name)
    again = load_tokens(texts, vocabulary=VOCABULARY, cache=cache)
    assert not again.from_cache
    assert np.array_equal(again.tokens, expected)
    assert load_tokens(texts, vocabulary=VOCABULARY, cache=cache).from_cache
    assert sorted(path.name for path in cache.iterdir()) == [f"tokens-{first.key}", f"tokens-{first.key}.lock"]


def test_a_full_disk_costs_the_cache_and_nothing_else(texts, tmp_path, monkeypatch, caplog):
    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tokens_module.np, "save", full)
    with caplog.at_level(logging.WARNING):
        corpus = load_tokens(texts, vocabulary=VOCABULARY, cache=tmp_path / "cache")
    assert len(corpus.tokens) > 100
    assert "No space left on device" in caplog.text
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"]


def _load_and_tell(path, cache, barrier, results):
    barrier.wait(timeout=60)
    corpus = load_tokens(path, vocabulary=VOCABULARY, cache=cache)
    results.put((corpus.from_cache, corpus.key, int(corpus.tokens.astype(np.int64).sum()), len(corpus.tokens)))


def test_of_four_processes_that_race_one_trains_and_all_get_the_same(texts, tmp_path):
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(4), context.Queue()
    arguments = (texts, tmp_path / "cache", barrier, results)
    processes = [context.Process(target=_load_and_tell, args=arguments, daemon=True) for _ in range(4)]
    for process in processes:
        process.start()
    told = [results.get(timeout=90) for _ in processes]
    for process in processes:
        process.join(timeout=30)
        assert process.exitcode == 0
    assert sorted(from_cache for from_cache, *_ in told) == [False, True, True, True]
    assert len({tuple(rest) for _, *rest in told}) == 1


def _hold_the_lock(path, cache, holding):
    def never_ends(*_args):
        holding.set()
        time.sleep(600)

    tokens_module._train = never_ends
    load_tokens(path, vocabulary=VOCABULARY, cache=cache)


@pytest.fixture
def holder(texts, tmp_path):
    """A process that holds the lock of the entry and never finishes it."""
    context = multiprocessing.get_context("spawn")
    holding = context.Event()
    process = context.Process(target=_hold_the_lock, args=(texts, tmp_path / "cache", holding), daemon=True)
    process.start()
    assert holding.wait(timeout=60)
    yield process
    process.kill()
    process.join(timeout=30)


def test_a_process_killed_while_it_builds_does_not_hold_up_the_next(holder, texts, tmp_path, caplog):
    holder.kill()
    holder.join(timeout=30)
    with caplog.at_level(logging.WARNING):
        corpus = load_tokens(texts, vocabulary=VOCABULARY, cache=tmp_path / "cache", lock_timeout_s=60)
    assert not corpus.from_cache
    assert caplog.text == ""  # the lock was free: no wait ran out


def test_a_process_that_holds_the_lock_for_too_long_is_not_waited_for(holder, texts, tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        corpus = load_tokens(texts, vocabulary=VOCABULARY, cache=tmp_path / "cache", lock_timeout_s=0.2)
    assert holder.is_alive()
    assert not corpus.from_cache
    assert "for too long; going on without it" in caplog.text
    assert load_tokens(texts, vocabulary=VOCABULARY, cache=tmp_path / "cache").from_cache


def test_what_a_killed_writer_left_is_cleared_away(texts, tmp_path):
    cache = tmp_path / "cache"
    key = load_tokens(texts, vocabulary=VOCABULARY, cache=cache).key
    shutil.rmtree(cache / f"tokens-{key}")
    (cache / f".tokens-{key}.1234-abcd").mkdir()
    (cache / f".tokens-{key}.1234-abcd" / "tokens.npy").write_bytes(b"half")
    load_tokens(texts, vocabulary=VOCABULARY, cache=cache)
    assert sorted(path.name for path in cache.iterdir()) == [f"tokens-{key}", f"tokens-{key}.lock"]
