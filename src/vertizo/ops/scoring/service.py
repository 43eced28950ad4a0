"""The label holder's side of online scores: members look records up, and embeddings are cached.

For each member, a key passes through these states:

=========  =========  ============================================================================
from       to         when
=========  =========  ============================================================================
unknown    wanted     a request needs it, and no embedding of it is cached (`logits`)
wanted     asked      the member waits for something to do: all wanted keys go out together, so that
                      others gather while it works on them (`_offer`)
asked      cached     the member sent its embedding (`_hand_out`); until it is too old
asked      unknown    the member lacks it, or could not read its table
asked      wanted     the connection is lost, or the member asks without an answer (`_want_again`)
wanted     unknown    no request waits for it any more (`_withdraw`)
=========  =========  ============================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from threading import Event, Lock

import numpy as np
import torch
from cachetools import TTLCache
from numpy.typing import NDArray
from torch import Tensor

from vertizo.core.errors import MalformedError, RefusedError, RunError, WireError
from vertizo.core.names import Head
from vertizo.core.text.messages import Alarm
from vertizo.data.own_tables.keyed import KeyedTable
from vertizo.network.serving import frames
from vertizo.network.serving.frames import Found, Hello, Ready, Want
from vertizo.network.serving.options import ServeConfig
from vertizo.network.serving.service import MemberService
from vertizo.network.serving.trained_model import LabelHolderModel, terms_of
from vertizo.ops.scoring.lookup import Lookup
from vertizo.party.uploads import Uploads
from vertizo.protocol import wire
from vertizo.protocol.codecs.none import NoCompression
from vertizo.protocol.messages import Upload
from vertizo.run.loop.traffic import UPLOAD_BYTES, rows_at_once
from vertizo.run.trained.prediction import in_place_of_tests

MOST_KEYS = 1000
"""Most keys that a member is asked for at a time."""
Row = NDArray[np.float32]


class SilentError(RunError):
    """Some members did not answer in time, or could not read their tables."""


@dataclass(eq=False)
class _Request:
    """A request that waits for embeddings."""

    rows: list[dict[str, Row]]
    """For each member, embeddings by key."""
    missing: int = 0
    """Number of answers that it waits for."""
    failed: set[int] = field(default_factory=set)
    """Members whose tables could not be read."""
    done: Event = field(default_factory=Event)

    def hear(self, client: int, key: str, row: Row | None) -> None:
        if row is not None:
            self.rows[client][key] = row
        self._answered()

    def fail(self, client: int) -> None:
        self.failed.add(client)
        self._answered()

    def _answered(self) -> None:
        self.missing -= 1
        if not self.missing:
            self.done.set()


Waiting = dict[str, list[_Request]]
"""Key → the requests that wait for it, in the order in which keys were first wanted."""


@dataclass
class _Asked:
    """The keys that a member is looking up."""

    number: int
    keys: tuple[str, ...]
    waiting: Waiting


class ScoringService(MemberService):
    """Tells members which keys to look up, and gives callers' threads logits.

    Args:
        config: the configuration, with the section ``scoring``.
        model: the model of the finished job.
        own: the label holder's own table; None if the job had no columns of its own.
        notice: takes a line for people.
    """

    largest_ask = 2 * UPLOAD_BYTES

    def __init__(
        self,
        config: ServeConfig,
        model: LabelHolderModel,
        own: KeyedTable | None,
        notice: Callable[[str], None] = lambda line: None,
    ) -> None:
        super().__init__(config.federation, notice)
        assert config.scoring is not None, "checked before"
        self.model = model
        self._own: Lookup | None = None
        blank = None
        if model.own is not None:
            assert own is not None, "of its own columns"
            self._own = Lookup(own, model.own, notice)
            blank = in_place_of_tests(torch.zeros(0, model.own.width))
        self._party = party = model.party(blank, 0)
        if model.raw_head is not None:
            assert party.head is not None, "the configuration names one"
            party.head.load(model.raw_head)
        self._codec = NoCompression() if party.received else party.up
        self._checks = Uploads(model.dims, party.bound)
        count, kept = len(self.members), config.scoring
        self._there: set[int] = set()
        self._wanted: list[Waiting] = [{} for _ in range(count)]
        self._asked: list[_Asked | None] = [None] * count
        self._number = 0
        self._kept: list[TTLCache[str, Row] | None] = [
            TTLCache(kept.cached, kept.cache) if kept.cache and kept.cached else None
            for _ in range(count)
        ]
        self._models_turn = Lock()
        self.found = self.remembered = 0
        """Numbers of embeddings that members sent, and that were cached, since the start."""

    # What callers' threads ask.

    @property
    def is_ready(self) -> bool:
        """Whether all members are connected."""
        return len(self._there) == len(self.members)

    def logits(
        self, keys: Sequence[str], seconds: float
    ) -> tuple[list[str], Tensor, dict[str, list[str]]]:
        """Logits of records by their keys, of which none is there twice.

        Returns the keys that every party has, their logits [records, outputs], and for each other
        key the parties that lack it, ``""`` for the label holder.

        Raises:
            SilentError: a member did not answer within so many seconds, or could not look them up.
            DataError: the label holder's own table cannot be read.
        """
        lacking: dict[str, list[str]] = {}
        own: Tensor | None = None
        present = list(keys)
        if self._own is not None:
            places, own = self._own.features(present)
            there = {present[place] for place in places}
            lacking = {key: [""] for key in present if key not in there}
            present = [present[place] for place in places]
        found = self._embeddings(keys, seconds)
        for name, rows in zip(self.members, found, strict=True):
            for key in keys:
                if key not in rows:
                    lacking.setdefault(key, []).append(name)
        kept = [place for place, key in enumerate(present) if key not in lacking]
        complete = [present[place] for place in kept]
        if not complete:
            return [], torch.empty(0, self.model.task.outputs), lacking
        blocks = [np.stack([rows[key] for key in complete]) for rows in found]
        joined = torch.from_numpy(np.concatenate(blocks, 1))
        partition = None if own is None else in_place_of_tests(own[kept])
        by: Head = "private" if self.model.raw_head is None else "raw"
        with self._models_turn:
            logits = replace(self._party.scoring, own=partition).logits("test", joined, by)
        return complete, logits, lacking

    def _embeddings(self, keys: Sequence[str], seconds: float) -> list[dict[str, Row]]:
        """For each member, the embeddings that it has, by key; SilentError as of `logits`."""
        request = _Request([{} for _ in self.members])
        with self._lock:
            for client, (rows, cache) in enumerate(zip(request.rows, self._kept, strict=True)):
                for key in keys:
                    row = None if cache is None else cache.get(key)
                    if row is not None:
                        rows[key] = row
                        self.remembered += 1
                        continue
                    request.missing += 1
                    asked = self._asked[client]
                    if asked is not None and key in asked.waiting:
                        asked.waiting[key].append(request)
                    else:
                        self._wanted[client].setdefault(key, []).append(request)
                self._offer(client)
            if not request.missing:
                return request.rows
        silent: list[str] = []
        if not request.done.wait(seconds):
            with self._lock:  # none where it was complete after all
                silent = [self.members[client] for client in self._withdraw(request)]
        if silent:
            raise SilentError(f"{', '.join(silent)} did not answer within {seconds:g} s")
        if request.failed:
            failed = ", ".join(self.members[client] for client in sorted(request.failed))
            raise SilentError(f"{failed} cannot read the table that records are found in")
        return request.rows

    def _withdraw(self, request: _Request) -> list[int]:
        """Drop a request; return the members that it still waited for."""
        silent = []
        for client, (wanted, asked) in enumerate(zip(self._wanted, self._asked, strict=True)):
            everything = [wanted] if asked is None else [wanted, asked.waiting]
            for waiting in everything:
                for key, requests in list(waiting.items()):
                    if request in requests:
                        requests.remove(request)
                        silent.append(client)
                        if waiting is wanted and not requests:
                            del wanted[key]
        return sorted(set(silent))

    # What members ask.

    def gone(self, member: str) -> None:
        """Note that a member's connection is lost: the keys that it was asked are wanted again."""
        with self._lock:
            super().gone(member)
            client = self.members.index(member)
            self._there.discard(client)
            self._want_again(client)

    def tick(self) -> None:
        """Name members that are away for long; the driver calls this about once a second."""
        with self._lock:
            away = [client for client in range(len(self.members)) if client not in self._there]
            _, names = self._silent(away)
        if names:
            self._notice(Alarm(f"not connected: {names}; records are not scored without them"))

    def missing(self) -> list[str]:
        """Names of the members that are not connected."""
        there = set(self._there)
        return [name for client, name in enumerate(self.members) if client not in there]

    def _take(self, client: int, frame: bytes) -> None:
        first, *rest = frames.split(frame)
        ask = frames.decode(first)
        if isinstance(ask, Hello):
            self._meet(client, ask)
            self._answer(client, terms_of(self.model.job, self.members, client))
            return
        if not isinstance(ask, Ready | Found):
            raise MalformedError(f"a {type(ask).__name__}, which is no ask here")
        if isinstance(ask, Ready):
            self.model.check(client, ask)
            self._want_again(client)
        elif ask.job != self.model.job:
            raise RefusedError(f"an answer of {self.members[client]} for another job")
        elif (asked := self._asked[client]) is None or ask.number != asked.number:
            self._want_again(client)  # it asks, so that it does not work on that any more
        else:
            self._asked[client] = None
            if ask.places is None:
                for request in chain.from_iterable(asked.waiting.values()):
                    request.fail(client)
            else:
                self._hand_out(client, asked, self._found(client, asked, ask.places, rest))
        self._there.add(client)

    def _found(
        self, client: int, asked: _Asked, places: Sequence[int], uploads: Sequence[bytes]
    ) -> dict[str, Row]:
        """The embeddings that a member sent, by key; empty if they are refused."""
        if not places:
            return {}
        count = len(places)
        try:
            if list(places) != sorted(set(places)) or places[-1] >= len(asked.keys):
                raise RefusedError(f"places {places[0]} to {places[-1]} of {len(asked.keys)} keys")
            if len(uploads) != 1:
                raise MalformedError(f"{len(uploads)} uploads where one is wanted")
            upload = wire.decode(uploads[0], self._codec, Upload)
            if upload.client != client or upload.ids.numel() != count:
                raise RefusedError(f"an upload of {upload.ids.numel()} rows for {count} records")
            self._checks.check(upload, count)
        except (WireError, RefusedError) as error:
            self._refused[client] += 1
            self._notice(Alarm(f"{self.members[client]} sent what cannot be used: {error}"))
            return {}
        self.found += count
        rows = upload.embeddings[0].numpy()
        return {asked.keys[place]: rows[row] for row, place in enumerate(places)}

    def _hand_out(self, client: int, asked: _Asked, found: dict[str, Row]) -> None:
        cache = self._kept[client]
        for key, requests in asked.waiting.items():
            row = found.get(key)
            if cache is not None and row is not None:
                cache[key] = row
            for request in requests:
                request.hear(client, key, row)

    def _want_again(self, client: int) -> None:
        """Put keys that a member was asked, and did not answer, in front of its wanted keys."""
        asked, self._asked[client] = self._asked[client], None
        if asked is not None:
            left = {key: requests for key, requests in asked.waiting.items() if requests}
            for key, requests in self._wanted[client].items():
                left.setdefault(key, []).extend(requests)
            self._wanted[client] = left

    def _offer(self, client: int) -> None:
        """Ask a member that waits for the keys that are wanted of it."""
        wanted = self._wanted[client]
        if not wanted or client not in self._pending or self._asked[client] is not None:
            return
        most = min(MOST_KEYS, rows_at_once(self.model.dims[client]))
        keys = tuple(wanted)[:most] if len(wanted) > most else tuple(wanted)
        self._number += 1
        self._asked[client] = _Asked(self._number, keys, {key: wanted.pop(key) for key in keys})
        self._answer(client, Want(self._number, keys))
