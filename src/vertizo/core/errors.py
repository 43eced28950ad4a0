"""The one exception tree of the package.

``UserError`` ends a command with exit code 2 and one line. A party raises ``WireError`` or
``RefusedError`` about another's message, and has then changed nothing.
"""

from __future__ import annotations


class VertizoError(Exception):
    """Base of every error that this package raises on purpose."""


_CONTROLS = {code: repr(chr(code))[1:-1] for code in (*range(32), *range(127, 160))}


class UserError(VertizoError):
    """A user's mistake: the message is one line and says what would be right.

    >>> print(UserError("the column 'a\\nb' is missing"))
    the column 'a\\nb' is missing
    """

    def __str__(self) -> str:
        """The message with control characters escaped: they could break the line or a terminal."""
        return super().__str__().translate(_CONTROLS)


class ConfigError(UserError):
    """A configuration key, its value, or a combination of them is wrong."""


class DataError(UserError):
    """A data set, or a file or column of it, is missing or wrong."""


class RunError(UserError):
    """A run folder is missing, in use, or of another run; or a run failed, as by diverging."""


class Interrupted(VertizoError):  # noqa: N818 - it is no error
    """A run was stopped on request; what it had done is kept where it has a folder."""


class WireError(VertizoError):
    """Bytes from another party are not a message of this package."""


class TruncatedError(WireError):
    """A frame has fewer bytes than its header announces."""


class OversizedError(WireError):
    """A frame, or an array in it, is larger than allowed."""


class MalformedError(WireError):
    """A frame has a wrong magic, version, type, field or length."""


class RefusedError(VertizoError):
    """A well-formed message is not accepted; it has changed nothing."""


class UnknownPartyError(RefusedError):
    """The sender, or the receiver, is not a member of the federation."""


class UnknownRecordError(RefusedError):
    """A message names record IDs that the federation does not have."""


class OtherRoundError(UnknownRecordError):
    """A query is about the records of another synchronous round than the one under way."""


class RepeatedRecordError(RefusedError):
    """A record occurs more than once in a batch."""


class ShapeError(RefusedError):
    """An array has another shape than the federation agreed on."""


class NonFiniteError(RefusedError):
    """An array holds NaN, an infinity, or values beyond the agreed bound."""


class ConflictError(RefusedError):
    """A query number was skipped, or used before with other content."""


class BudgetError(RefusedError):
    """Answering would charge a record more often than its privacy budget allows."""
