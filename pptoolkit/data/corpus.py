"""The corpus: which text files are read, in which order, and what was left out. No tokens, no tensors, no network.

Without a path the corpus is the Python standard library's own source, which every machine that runs this has. The
order is that of the relative paths as bytes, so it depends on neither locale nor file system.
"""

import codecs
import hashlib
import os
import sysconfig
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path

from pptoolkit.errors import DataError

DEFAULT_BYTES = 4 << 20  # of the standard library: enough for some 1,000 steps, and tokenised within seconds
PIECE_BYTES = 1 << 20  # read, decoded and encoded at a time, so that one large file needs no large memory
# Not prose or code that a model could learn from (tables, generated text), or not part of every installation.
_NOT_READ_OF_STDLIB = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo", "pydoc_data", "encodings", "sitecustomize.py"}
)


@dataclass(frozen=True, slots=True)
class TextFile:
    """One file of a corpus and how many of its bytes belong to it."""

    path: Path
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Text files in a fixed order.

    Args:
        source: Where they come from, as messages name it.
        files: The files, in reading order.
        skipped: How many files were left out, by reason (``"binary"``, ``"not UTF-8"``, ``"unreadable"``).
        digest: Hexadecimal digest of everything that is read; equal text has an equal digest, wherever it lies.
        cut: Whether ``max_bytes`` left some text out.
    """

    source: str
    files: tuple[TextFile, ...]
    skipped: Mapping[str, int]
    digest: str
    cut: bool

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    def documents(self) -> Iterator[Iterator[str]]:
        """Yield each file as an iterator over its pieces of text, none much longer than ``PIECE_BYTES``."""
        for file in self.files:
            yield _whole_lines(_pieces(file.path, file.bytes))


class _NotTextError(Exception):
    """Why a file does not belong to the corpus, in a word or two."""


def find_corpus(path: str | os.PathLike[str] | None = None, *, max_bytes: int | None = None) -> Corpus:
    """Read through the files below ``path`` once and list those that are UTF-8 text.

    Hidden files and folders are passed over. Files that are binary (a NUL byte), not UTF-8 or unreadable are counted.

    Args:
        path: A folder, searched with everything below it, or one file; None: the standard library's sources.
        max_bytes: Stop after so many bytes of text. None: ``DEFAULT_BYTES`` of the standard library, all of a ``path``.

    Raises:
        DataError: If the path does not exist or holds no text.
    """
    if max_bytes is not None and max_bytes < 1:
        raise DataError(f"max_bytes={max_bytes} leaves no text to read; use a positive number of bytes, or leave it out")
    if path is None:
        root, source, names = _stdlib_files()
        max_bytes = DEFAULT_BYTES if max_bytes is None else max_bytes
    else:
        root, names = _folder_files(Path(path).expanduser())
        source = str(root)
    corpus = _read_through(root, source, names, max_bytes)
    if not corpus.files:
        skipped = "".join(f", {count} {reason}" for reason, count in sorted(corpus.skipped.items()))
        raise DataError(
            f"there is no text in {source}: 0 files of UTF-8 text found, at least 1 needed (looked at {len(names)} files{skipped}); "
            "set data.path to a folder that holds text, e.g. *.txt, *.md or *.py"
        )
    return corpus


def _stdlib_files() -> tuple[Path, str, list[Path]]:
    root = Path(sysconfig.get_path("stdlib"))
    names = [
        name
        for name in _walk(root, passed_over=_NOT_READ_OF_STDLIB)
        if name.suffix == ".py" and not name.parts[0].startswith(("config-", "_sysconfigdata"))
    ]
    return root, f"the standard library's sources in {root}", names


def _folder_files(root: Path) -> tuple[Path, list[Path]]:
    if root.is_file():
        return root.parent, [Path(root.name)]
    if not root.is_dir():
        what = "is neither a file nor a folder" if root.exists() else "does not exist"
        raise DataError(
            f"data.path={root} {what}; name a folder of text files, or leave data.path out to use the standard library's sources"
        )
    if not os.access(root, os.R_OK | os.X_OK):
        raise DataError(f"data.path={root} cannot be read; allow reading it (chmod u+rx), or name another folder")
    return root, _walk(root)


def _walk(root: Path, *, passed_over: Set[str] = frozenset()) -> list[Path]:
    """Return the regular files below ``root``, relative to it and in order. Pipes and sockets would block, so they are left out."""
    found: list[Path] = []
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in {"__pycache__", *passed_over}]
        paths = (Path(folder, name) for name in files if not name.startswith(".") and name not in passed_over)
        found.extend(path.relative_to(root) for path in paths if path.is_file())
    return sorted(found, key=os.fsencode)


def _read_through(root: Path, source: str, names: list[Path], max_bytes: int | None) -> Corpus:
    files: list[TextFile] = []
    skipped: Counter[str] = Counter()
    digest = hashlib.sha256()
    left = max_bytes
    for name in names:
        if left is not None and left <= 0:
            return Corpus(source=source, files=tuple(files), skipped=dict(skipped), digest=digest.hexdigest(), cut=True)
        path = root / name
        try:
            size, content = _text_digest(path, left)
        except _NotTextError as reason:
            skipped[str(reason)] += 1
            continue
        if size:
            files.append(TextFile(path, size))
            digest.update(content)
            left = None if left is None else left - size
    cut = left == 0 and bool(files) and files[-1].path.stat().st_size > files[-1].bytes
    return Corpus(source=source, files=tuple(files), skipped=dict(skipped), digest=digest.hexdigest(), cut=cut)


def _text_digest(path: Path, limit: int | None) -> tuple[int, bytes]:
    """Return how many bytes of ``path`` are read, at most ``limit``, and their digest."""
    content = hashlib.sha256()
    try:
        size = path.stat().st_size
        size = size if limit is None else min(size, limit)
        for text in _pieces(path, size):
            content.update(text.encode())
    except UnicodeDecodeError as error:
        raise _NotTextError("not UTF-8") from error
    except OSError as error:
        raise _NotTextError("unreadable") from error
    return size, content.digest()


def _pieces(path: Path, limit: int) -> Iterator[str]:
    """Yield the first ``limit`` bytes as text; a character that the limit cuts through is left out."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    with path.open("rb") as file:
        left = limit
        while left > 0 and (block := file.read(min(left, PIECE_BYTES))):
            left -= len(block)
            if b"\0" in block:
                raise _NotTextError("binary")
            yield decoder.decode(block)
        at_end = not file.read(1)
    if at_end:
        decoder.decode(b"", final=True)  # raises if the file itself ends within a character


def _whole_lines(pieces: Iterator[str]) -> Iterator[str]:
    """Move the borders between pieces to line ends, so that no word is cut in two where there are lines."""
    rest = ""
    for piece in pieces:
        text = rest + piece
        end = text.rfind("\n") + 1 or len(text)
        if text[:end]:
            yield text[:end]
        rest = text[end:]
    if rest:
        yield rest
