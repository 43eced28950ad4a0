"""The register, in the user's state folder, of the records that each ledger or label file is for.

It keeps anybody from getting a second budget unnoticed. A file in it has a line of JSON, which says
where the ledger is and what it states, and then a keyed digest of each record's key, ascending; a
second file has the digests of all that the label holder has in each record's row, and a third
(`Likes`) what a file that was exported anew still has in common with it. The digests' own key,
``secret.key``, lies beside them. Whoever reads the whole folder can test whether a record that they
know is in a ledger; the files without ``secret.key`` tell how many records there are, and nothing
else. ``digests`` lists the SHA-256 of each: one that is damaged would grant a second budget.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from vertizo.core import digests, system
from vertizo.core.errors import RunError
from vertizo.privacy.accounting.events import LedgerBudget
from vertizo.privacy.epsilon_text import bound_text
from vertizo.privacy.ledger.witness import Witness, reported, state_folder, write_whole

Digests = np.ndarray[Any, np.dtype[np.uint64]]

NONE: Digests = np.zeros(0, np.uint64)

SHARE, FEWEST = 0.2, 5
"""Share of rows, and least number of them, that must nearly equal another file's for both to be of
the same people; only rows that no other one nearly equals count."""
WIDE, MOST = 4, 2**22
"""Tables of so many columns and at most so many values are compared without any one column too."""
KEY_BYTES = 32
DIGEST_BYTES = 8
"""Bytes of a record's digest. Of 33 million records and as many others, two are taken for one with
probability 10⁻⁴, which refuses a ledger that could have been made."""
FURTHER = "which adds to it: `vertizo privacy ledger create FILE CONFIG --further`"
Holds = Literal["replies", "labels"]
"""What a file counts: replies as they leave, or private labels, once."""


class Names(NamedTuple):
    """What tells a run's records apart, in the order of their IDs."""

    keys: Sequence[str]
    contents: Sequence[str] = ()
    """Each record's whole row at the label holder, as text; empty where it is not known."""
    likeness: Sequence[Sequence[str]] = ()
    """The same by column, without identifiers, labels and weights, so coarse that rounding changes
    nothing; empty where it is not known."""


class Likes(NamedTuple):
    """Digests of rows that differ from all others, whatever the columns' names and order are."""

    whole: Digests
    """Digests of whole rows, ascending."""
    nearly: Digests
    """Digests of rows without any one of their columns, ascending."""

    def shared(self, other: Likes) -> int:
        """How many of these rows the other has as well, exactly or but for one column."""
        return sum(
            len(np.intersect1d(ours, theirs))
            for ours, theirs in (
                (self.whole, other.whole),
                (self.whole, other.nearly),
                (self.nearly, other.whole),
            )
        )

    def are_of(self, other: Likes) -> bool:
        """Whether these rows are taken for those of the other's people."""
        return self.shared(other) >= max(FEWEST, SHARE * len(self.whole))

    def content(self) -> bytes:
        """The digests as bytes, as a file keeps them."""
        return np.uint64(len(self.whole)).tobytes() + self.whole.tobytes() + self.nearly.tobytes()

    @classmethod
    def of_bytes(cls, content: bytes) -> Likes:
        """Read what `content` wrote; ValueError for other bytes."""
        if not content:
            return NOTHING
        numbers = np.frombuffer(content, "<u8")
        count, every = int(numbers[0]), numbers[1:]
        if count > len(every):
            raise ValueError("fewer digests than it says")
        return cls(every[:count], every[count:])

    def joined(self, other: Likes) -> Likes:
        """The digests of both."""
        return Likes(*(np.union1d(a, b) for a, b in zip(self, other, strict=True)))


NOTHING = Likes(NONE, NONE)


@dataclass(frozen=True)
class Registered:
    """A ledger or label file that the register knows.

    ``ledger`` is where its file was when it was used last, ``name`` that of its records, ``order``
    the digest of the records in the order of their IDs, hex. ``keys`` and ``rows`` are digests of
    keys and of rows' contents, ascending; no rows where they are not known.
    """

    identity: str
    ledger: str
    name: str
    epsilon: float
    delta: float
    order: str
    keys: Digests = field(compare=False, repr=False)
    rows: Digests = field(compare=False, repr=False)
    likes: Likes = field(compare=False, repr=False)
    holds: Holds = "replies"
    is_empty: bool = False
    """Whether it was set apart for labels that are not made yet."""

    @property
    def states(self) -> str:
        """Its budget in words."""
        return f"ε = {bound_text(self.epsilon, 6)} at δ = {self.delta:g}"

    def overlaps(self, other: Registered) -> bool:
        """Whether both share a record, by its key or whole row, or many by nearly equal rows."""
        pairs = (self.keys, other.keys), (self.rows, other.rows)
        if any(len(np.intersect1d(ours, theirs)) for ours, theirs in pairs):
            return True
        return self.likes.are_of(other.likes) or other.likes.are_of(self.likes)


class Register:
    """The ledgers that were made or used in one state folder.

    Records are told apart by their keys and, where ``contents`` are given, by the whole rows: the
    same people under another column of identifiers are then still found. RunError of every method:
    the folder (``witness_folder`` as of `Witness`) or a file in it cannot be used, or is damaged.
    """

    def __init__(self, witness_folder: Path | None = None) -> None:
        self._witnesses = witness_folder
        self._folder = (state_folder() if witness_folder is None else witness_folder) / "records"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the register: nobody else looks a record up or registers one inside."""
        system.require_locks("a ledger")
        with self._reported("used"):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(
                self._folder / ".lock", os.O_CREAT | os.O_RDWR | system.CLOSED_ON_EXEC, 0o600
            )
        try:
            with self._reported("used"):
                system.lock(handle, wait=True)
                digests.adopt(self._folder)  # of an older version
            yield
        finally:
            os.close(handle)

    def check_free(self, who: Names, holds: Holds = "replies") -> None:
        """Raise RunError if some file is for any of these records, and say what to do."""
        ours = np.unique(self._digests(who.keys))
        rows, times = np.unique(self._digests(who.contents), return_counts=True)
        ours_alike = self._likes(who.likeness)
        for known in self._all():
            same = "set privacy.ledger to that file"
            use = f"{same}, or", f"If they are, take data.id from there and {same}; if not,"
            if known.holds != holds:
                use = (f"that file is for {known.holds}, not for {holds};",) * 2
            shared = len(np.intersect1d(known.keys, ours))
            if shared:
                raise RunError(
                    f"{shared} of {len(ours)} records are charged to the ledger {known.ledger} "
                    f"already ({known.states}); {use[0]} state an ε beside it, {FURTHER}"
                )
            equal = times[np.isin(rows, known.rows)]
            if len(equal):
                raise RunError(
                    f"{equal.sum()} of {times.sum()} rows have, in every column, the values of "
                    f"records that are charged to the ledger {known.ledger} already "
                    f"({known.states}), under other identifiers; {(equal == 1).sum()} of them are "
                    "here only once. Probably they are the same people, though different people "
                    f"can have equal rows. {use[1]} or to grant them more, state an ε beside it, "
                    f"{FURTHER}"
                )
            if ours_alike.are_of(known.likes):
                raise RunError(
                    f"{min(ours_alike.shared(known.likes), len(ours)):,} of {len(ours)} rows have "
                    "nearly the values of records that are charged to the ledger "
                    f"{known.ledger} already ({known.states}): the same but for identifiers, "
                    "labels, names and order of columns, rounding, or one column. Probably they "
                    f"are the same people. {use[1]} or to grant them more, state an ε beside it, "
                    f"{FURTHER}"
                )

    def add(
        self,
        identity: str,
        path: Path,
        budget: LedgerBudget,
        who: Names,
        holds: Holds = "replies",
        *,
        is_empty: bool = False,
        before: Registered | None = None,
    ) -> None:
        """Register a file for these records; RunError if it cannot be written.

        ``before`` is the file's earlier entry, whose rows it keeps: it was charged for those too.
        """
        keys = self._digests(who.keys)
        rows, likes = self._digests(who.contents), self._likes(who.likeness)
        if before is not None:
            rows, likes = np.union1d(rows, before.rows), likes.joined(before.likes)
        about: dict[str, Any] = {"ledger": str(path.absolute()), "name": budget.name}
        about |= {"epsilon": budget.epsilon, "delta": budget.delta, "order": _order(keys)}
        about |= {"holds": holds, "is_empty": is_empty}
        head = json.dumps(about, ensure_ascii=False).encode() + b"\n"
        with self._reported("written"):
            if len(rows):
                self._write(f"{identity}.rows", rows.tobytes())
            if len(likes.whole):
                self._write(f"{identity}.likes", likes.content())
            self._write(identity, head + np.unique(keys).tobytes())

    def _write(self, name: str, content: bytes) -> None:
        path = self._folder / name
        with digests.replacing(path, sha256(content).hexdigest()):
            write_whole(path, content)

    def claim(
        self,
        identity: str,
        path: Path,
        budget: LedgerBudget,
        who: Names,
        holds: Holds = "replies",
    ) -> tuple[Registered, ...]:
        """Check that a file is for these records, and register it if it is new here.

        Returns the other files that are for some of them. RunError: it is for other records, or it
        is new here and others are for some of them.
        """
        known = self.known(identity)
        if known is None:
            self.check_free(who, holds)
            self.add(identity, path, budget, who, holds)
            return self.beside(identity)
        if known.order != _order(self._digests(who.keys)):
            raise RunError(
                f"the ledger {path} is for {len(known.keys)} records of other keys, or in "
                f"another order, than this run's {len(who.keys)}; its records are those of "
                f"{known.name}; use the file and the data.id that it was made with"
            )
        is_moved = known.ledger != str(path.absolute())
        lacks = len(who.likeness) and not len(known.likes.whole)  # of a version before `Likes`
        if is_moved or lacks or not np.isin(self._digests(who.contents), known.rows).all():
            self.add(identity, path, budget, who, holds, is_empty=known.is_empty, before=known)
        return self.beside(identity)

    def beside(self, identity: str) -> tuple[Registered, ...]:
        """The other ledgers that are for some records of this one; none if it is not known."""
        one = self.known(identity)
        if one is None:
            return ()
        return tuple(o for o in self._all() if o.identity != identity and o.overlaps(one))

    def forget_unused(self) -> None:
        """Forget ledgers whose file is gone and that were charged nothing."""
        for known in self._all():
            if Path(known.ledger).exists():
                continue
            with closing(Witness(known.identity, self._witnesses)) as witness:
                head = witness.open()
            if known.is_empty or (head is not None and head.sequence <= 1):  # it names a run
                self.forget(known.identity)

    def forget(self, identity: str) -> None:
        """Remove a file that was never charged from the register."""
        with self._reported("written"):
            (self._folder / identity).unlink()
            for more in ("rows", "likes"):
                (self._folder / f"{identity}.{more}").unlink(missing_ok=True)

    def _all(self) -> list[Registered]:
        with self._reported("read"):
            found = sorted(self._folder.iterdir()) if self._folder.is_dir() else []
        known = (self.known(path.name) for path in found if len(path.name) == 32)
        return [one for one in known if one is not None]

    def known(self, identity: str) -> Registered | None:
        """The entry of one identity; None if there is none."""
        path = self._folder / identity
        with self._reported("read"):
            try:
                content = digests.content(path)
            except FileNotFoundError:
                return None
            more = [self._folder / f"{identity}.{kind}" for kind in ("rows", "likes")]
            contents, likes = (digests.content(part) if part.exists() else b"" for part in more)
        head, _, rest = content.partition(b"\n")
        try:
            keys, known_rows = (np.frombuffer(part, "<u8") for part in (rest, contents))
            alike = Likes.of_bytes(likes)
            return Registered(identity, **json.loads(head), keys=keys, rows=known_rows, likes=alike)
        except (ValueError, TypeError):
            raise RunError(f"{path} is damaged: it does not say what a ledger is for") from None

    def _likes(self, columns: Sequence[Sequence[str]]) -> Likes:
        """Digests of rows; each sums those of its values, so that names and order do not matter."""
        if not columns:
            return NOTHING
        values = np.stack([self._of_column(column) for column in columns], 1)
        whole = values.sum(1, dtype=np.uint64)
        if values.shape[1] < WIDE or values.size > MOST:
            return Likes(_alone(whole), NONE)
        nearly = np.sort(whole[:, None] - values, 1)
        first = np.ones(nearly.shape, bool)  # of columns of one value
        first[:, 1:] = nearly[:, 1:] != nearly[:, :-1]
        return Likes(_alone(whole), _alone(nearly[first]))

    def _of_column(self, texts: Sequence[str]) -> Digests:
        different = list(dict.fromkeys(texts))
        known = dict(zip(different, self._digests(different).tolist(), strict=True))
        return np.fromiter((known[text] for text in texts), np.uint64, len(texts))

    def _digests(self, texts: Iterable[str]) -> Digests:
        path = self._folder / "secret.key"
        with self._reported("used"):
            if not path.exists():
                self._write(path.name, os.urandom(KEY_BYTES))
            key = digests.content(path)
        if len(key) != KEY_BYTES:
            raise RunError(f"{path} has {len(key)} bytes; it must have the {KEY_BYTES} written")
        parts = (blake2b(t.encode(), key=key, digest_size=DIGEST_BYTES).digest() for t in texts)
        return np.frombuffer(b"".join(parts), "<u8")

    def _reported(self, done: str) -> Any:
        return reported("the register of ledgers", self._folder, done)


def _alone(digests: Digests) -> Digests:
    """The digests that occur once, ascending."""
    found, times = np.unique(digests, return_counts=True)
    alone: Digests = found[times == 1]
    return alone


def together(budget: LedgerBudget, beside: Sequence[Registered]) -> str:
    """A file's ε in words, and its sum with the files for some of the same records."""
    words = f"ε = {bound_text(budget.epsilon)} at δ = {budget.delta:g}"
    if not beside:
        return words
    epsilon, delta = (
        sum(getattr(one, name) for one in (budget, *beside)) for name in ("epsilon", "delta")
    )
    names = ", ".join(repr(Path(other.ledger).name) for other in beside)
    return (
        f"{words}, and with those on the ledgers of some of the same records ({names}) "
        f"ε = {bound_text(epsilon)} at δ = {delta:g}"
    )


def _order(digests: Digests) -> str:
    return blake2b(digests.tobytes(), digest_size=32).hexdigest()
