"""From text to token numbers: a byte-pair vocabulary trained on the corpus itself, kept with the encoded text in the cache.

Byte-level pairs can spell any text, so no token is ever unknown. Torch-free: the result is a numpy array.
"""

import hashlib
import itertools
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from pptoolkit.data.cache import LOCK_TIMEOUT_S, cache_directory, load_or_build
from pptoolkit.data.corpus import Corpus, find_corpus
from pptoolkit.errors import DataError

END_OF_TEXT = "<|endoftext|>"  # token 0, after every file
SMALLEST_VOCABULARY = 257  # every byte, and the end of a text
VOCABULARY_SAMPLE_BYTES = 16 << 20  # the pairs of the first 16 MiB are as good as those of all, and training stays short
_FORMAT = 1  # of a cache entry; part of its key
_BATCH_PIECES = 64

Tokens = NDArray[np.uint16] | NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizedCorpus:
    """An encoded corpus.

    Args:
        tokens: Token numbers, (N,), all below ``vocabulary``; possibly a read-only view of the cached file.
        vocabulary: The size that was asked for. A small text may fill less of it.
        source: Where the text comes from, as messages name it.
        key: Changes with the text, the vocabulary and the tokenizer's version: equal keys have equal tokens.
        text_bytes: Bytes of text that were encoded.
        files: Files that were read.
        skipped: Files that were left out, by reason.
        tokenizer_json: The vocabulary, in the form that ``tokenizers`` reads and writes.
        from_cache: Whether it was read rather than built.
    """

    tokens: Tokens
    vocabulary: int
    source: str
    key: str
    text_bytes: int
    files: int
    skipped: Mapping[str, int]
    tokenizer_json: str
    from_cache: bool

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer, to encode a prompt or to decode samples."""
        return _restore(self.tokenizer_json)


def load_tokens(
    path: str | os.PathLike[str] | None = None,
    *,
    vocabulary: int = 4096,
    max_bytes: int | None = None,
    cache: str | os.PathLike[str] | None = None,
    lock_timeout_s: float = LOCK_TIMEOUT_S,
) -> TokenizedCorpus:
    """Return the corpus as tokens, from the cache where it was encoded before.

    Any number of processes may call this at the same time: one trains and encodes, the others wait for it.

    Args:
        path: A folder of text files or one file; None: the standard library's sources.
        vocabulary: Number of tokens, at least ``SMALLEST_VOCABULARY``.
        max_bytes: Read at most so much text; None: 4 MiB of the standard library, all of a ``path``.
        cache: The cache folder; None: see :func:`pptoolkit.data.cache.cache_directory`.
        lock_timeout_s: How long to wait for another process that builds the same entry.

    Raises:
        DataError: If there is no text, or the vocabulary's size cannot be.
    """
    if not SMALLEST_VOCABULARY <= vocabulary < 2**31:
        raise DataError(
            f"vocabulary={vocabulary} is out of range; "
            f"a byte-level vocabulary needs {SMALLEST_VOCABULARY} (256 bytes and the end of a text) or more"
        )
    directory = cache_directory(cache)
    corpus = find_corpus(path, max_bytes=max_bytes)
    key = hashlib.sha256(f"{_FORMAT} {tokenizers.__version__} {vocabulary} {corpus.digest}".encode()).hexdigest()[:24]
    return load_or_build(
        directory,
        f"tokens-{key}",
        load=partial(_load, corpus=corpus, vocabulary=vocabulary, key=key),
        build=partial(_build, corpus=corpus, vocabulary=vocabulary, key=key),
        save=_save,
        lock_timeout_s=lock_timeout_s,
    )


def _describe(corpus: Corpus, vocabulary: int, key: str) -> dict[str, Any]:
    facts = {"source": corpus.source, "text_bytes": corpus.bytes, "files": len(corpus.files), "skipped": corpus.skipped}
    return {"vocabulary": vocabulary, "key": key, **facts}


def _build(corpus: Corpus, vocabulary: int, key: str) -> TokenizedCorpus:
    tokenizer = _train(corpus, vocabulary)
    tokens = _encode(corpus, tokenizer, np.dtype(np.uint16 if vocabulary <= 1 << 16 else np.int32))
    return TokenizedCorpus(tokens=tokens, tokenizer_json=tokenizer.to_str(), from_cache=False, **_describe(corpus, vocabulary, key))


def _train(corpus: Corpus, vocabulary: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_sample(corpus), trainer)
    return _restore(tokenizer.to_str())


def _restore(tokenizer_json: str) -> Tokenizer:
    tokenizer = Tokenizer.from_str(tokenizer_json)
    # A text that happens to contain the mark must not end there: in text it is a word like any other. The JSON does not keep this.
    tokenizer.encode_special_tokens = True
    return tokenizer


def _sample(corpus: Corpus) -> Iterator[str]:
    seen = 0
    for piece in itertools.chain.from_iterable(corpus.documents()):
        yield piece
        seen += len(piece)
        if seen >= VOCABULARY_SAMPLE_BYTES:
            return


def _encode(corpus: Corpus, tokenizer: Tokenizer, dtype: np.dtype[Any]) -> Tokens:
    end = np.zeros(1, dtype)  # END_OF_TEXT is token 0
    parts: list[NDArray[Any]] = []
    # None marks the end of a file among the pieces.
    pieces = (piece for document in corpus.documents() for piece in (*document, None))
    while batch := list(itertools.islice(pieces, _BATCH_PIECES)):
        encoded = iter(tokenizer.encode_batch_fast([piece for piece in batch if piece is not None], add_special_tokens=False))
        parts.extend(end if piece is None else np.asarray(next(encoded).ids, dtype) for piece in batch)
    return np.concatenate(parts)


def _save(corpus: TokenizedCorpus, folder: Path) -> None:
    np.save(folder / "tokens.npy", corpus.tokens, allow_pickle=False)
    (folder / "tokenizer.json").write_text(corpus.tokenizer_json, encoding="utf-8")
    facts = {"format": _FORMAT, "tokens": len(corpus.tokens), "vocabulary": corpus.vocabulary, "source": corpus.source}
    (folder / "facts.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")


def _load(folder: Path, *, corpus: Corpus, vocabulary: int, key: str) -> TokenizedCorpus | None:
    """Return the entry, or None where it is missing, torn or not what its facts say."""
    try:
        facts = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
        tokens = np.load(folder / "tokens.npy", mmap_mode="r", allow_pickle=False)
        tokenizer_json = (folder / "tokenizer.json").read_text(encoding="utf-8")
        _restore(tokenizer_json)
        if (facts["tokens"], facts["vocabulary"]) != (len(tokens), vocabulary) or tokens.max() >= vocabulary:
            return None
    except FileNotFoundError:
        return None
    except Exception:  # the tokenizer raises a bare Exception for damaged JSON; anything unreadable is built anew
        return None
    return TokenizedCorpus(tokens=tokens, tokenizer_json=tokenizer_json, from_cache=True, **_describe(corpus, vocabulary, key))
