"""Who has not been heard of for long: by a clock that only runs forward."""

from __future__ import annotations

from collections.abc import Iterable


class Liveness:
    """When each member was last heard.

    Args:
        members: their names.
        patience: seconds of silence that are nothing to speak of.
        now: on a clock that nobody sets; a change of the time of day means nothing here.
    """

    def __init__(self, members: tuple[str, ...], patience: float, now: float) -> None:
        self._members = members
        self._patience = patience
        self._now = now
        self._heard = [now] * len(members)
        self._since: dict[int, float] = {}
        self._named: set[int] = set()

    def heard(self, member: int, now: float) -> bool:
        """Note a sign of life; whether the member had been named as silent."""
        self._heard[member] = self._now = now
        self._since.pop(member, None)
        named = member in self._named
        self._named.discard(member)
        return named

    def is_long(self, member: int) -> bool:
        """Whether a member has been silent for longer than is patient."""
        return self._now - self._heard[member] > self._patience

    def among(self, waited_for: Iterable[int], now: float) -> set[int]:
        """Those who are silent, and have been waited for, for longer than is patient."""
        self._now = now
        wanted = set(waited_for)
        self._since = {member: self._since.get(member, now) for member in wanted}
        return {
            member
            for member in wanted
            if self.is_long(member) and now - self._since[member] > self._patience
        }

    def name(self, silent: set[int]) -> str:
        """The names of those who have not been named yet; they have been now."""
        new = silent - self._named
        self._named |= new
        return ", ".join(self._members[member] for member in sorted(new))
