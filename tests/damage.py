"""Files in which a byte is changed, or whose end is missing, and what comes of using them."""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from vertizo.core.errors import UserError

Kind = str
KINDS: tuple[Kind, ...] = ("flip", "cut")


def files(folder: Path, leave: Sequence[str] = (".lock",)) -> list[str]:
    """All files of a folder, by their names in it."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.name not in leave)
    return sorted(str(path.relative_to(folder)) for path in found if path.stat().st_size)


def damage(path: Path, kind: Kind, chance: random.Random) -> str:
    """Change one byte at random, or cut a file off at random; what was done."""
    place = chance.randrange(path.stat().st_size)
    if kind == "cut":
        os.truncate(path, place)
        return f"cut at {place}"
    content, bit = bytearray(path.read_bytes()), 1 << chance.randrange(8)
    content[place] ^= bit
    path.write_bytes(bytes(content))
    return f"byte {place} ^ {bit}"


def each_file(folder: Path) -> Iterator[tuple[str, Kind]]:
    """Every file once in every way."""
    for name in files(folder):
        for kind in KINDS:
            yield name, kind


def drawn(folder: Path, times: int, chance: random.Random) -> Iterator[tuple[str, Kind]]:
    """Files and ways at random."""
    names = files(folder)
    for _ in range(times):
        yield chance.choice(names), chance.choice(KINDS)


def survey(
    whole: Path,
    place: Path,
    ask: Callable[[Path], object],
    cases: Iterator[tuple[str, Kind]],
    seed: int = 0,
) -> Counter[str]:
    """How often damage was told in a line, or changed nothing.

    AssertionError names the case in which it changed an answer without a word.

    ``ask`` works on a copy of the folder ``whole``, and raises UserError where it is refused.
    """
    chance, counts = random.Random(seed), Counter[str]()
    copy = place / whole.name
    shutil.copytree(whole, copy)
    wanted = ask(copy)
    for name, kind in cases:
        shutil.rmtree(copy)
        shutil.copytree(whole, copy)
        done = f"{name}: {damage(copy / name, kind, chance)}"
        try:
            found = ask(copy)
        except UserError as error:
            lines = str(error).count("\n")
            counts["refused"] += 1
            counts[f"refused {name}"] += 1
        else:
            lines = 0
            assert found == wanted, done
            counts["unharmed"] += 1
            counts[f"unharmed {name}"] += 1
        assert not lines, done
    return counts
