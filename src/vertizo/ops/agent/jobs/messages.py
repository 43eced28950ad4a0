"""Messages of agents: a member's agent reports, the label holder's answers with orders.

Each message has the whole state and is repeated every second: a lost, repeated or late one changes
nothing, and neither side need remember what it said. Frames have the header of
`vertizo.network.serving.frames` with a magic of their own and a MessagePack body; msgspec checks
every type and length. Tables, alignments and models are named, and each party looks the names up
among its own.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from vertizo.core.errors import MalformedError
from vertizo.network.serving import frames
from vertizo.ops.agent.jobs.states import State
from vertizo.ops.agent.options import JOB_NAME, Cover, Kind

PROTOCOL = 2
MAGIC = b"VA"
MOST_JOBS = 64
"""Most jobs that one member may have open at a time."""
LARGEST_SETTINGS = 8192

JobName = Annotated[str, msgspec.Meta(pattern=rf"\A{JOB_NAME}\Z", max_length=40)]
Optional = Annotated[str, msgspec.Meta(pattern=rf"\A({JOB_NAME})?\Z", max_length=40)]
Name = Annotated[str, msgspec.Meta(pattern=r"\A[\w.@-]+\Z", max_length=64)]
Line = Annotated[str, msgspec.Meta(max_length=1000)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**31)]
Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]


class _Frame(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    pass


class Offer(_Frame, frozen=True):
    """The description of a job, which never changes."""

    job: JobName
    kind: Kind
    members: Annotated[tuple[Name, ...], msgspec.Meta(max_length=256)]
    table: Name
    alignment: Optional = ""
    """The job that aligned the table; empty: the table is used as it is."""
    model: Optional = ""
    """For predict: the job that trained."""
    method: Literal["private", "hashed"] = "private"
    """For align: the method of the alignment."""
    settings: Annotated[str, msgspec.Meta(max_length=LARGEST_SETTINGS)] = "{}"
    """For train: the settings that all parties share, as JSON."""
    covers: tuple[Cover, ...] = ()
    """For train: what the guarantee covers."""
    epsilon: float | None = None
    delta: float | None = None


class Standing(_Frame, frozen=True):
    """The state of a job at a member."""

    job: JobName
    state: Literal["offered", "approved", "refused", "running", "finished", "failed", "broken"]
    """broken: its process is gone and cannot resume; all parties must begin a new attempt."""
    attempt: Count
    line: Line

    @property
    def words(self) -> str:
        """The state and its line, for people."""
        if self.state == "offered":
            return "waits for a person there"
        return f"{self.state}: {self.line}" if self.line else self.state


class Report(_Frame, frozen=True, tag=1):
    """A member's report: the states of all its jobs that are not over."""

    protocol: Count
    federation: Name
    parallel: Count
    """Most jobs that it runs side by side."""
    jobs: Annotated[tuple[Standing, ...], msgspec.Meta(max_length=MOST_JOBS)]


class Order(_Frame, frozen=True):
    """The state of a job at the label holder, with its offer if the member lacks it."""

    job: JobName
    state: State
    line: Line
    port: Port
    attempt: Count
    offer: Offer | None = None


class Orders(_Frame, frozen=True, tag=2):
    """Orders on all of a member's open jobs, and on jobs whose end it does not know yet."""

    jobs: Annotated[tuple[Order, ...], msgspec.Meta(max_length=2 * MOST_JOBS)]


class Rejection(_Frame, frozen=True, tag=3):
    """The label holder's agent does not accept this agent's reports."""

    words: Line


Frame = Report | Orders | Rejection
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Frame)
_offers = msgspec.msgpack.Decoder(Offer)


def encode(frame: Frame) -> bytes:
    """Encode a frame of this module."""
    return frames.framed(MAGIC, _encoder.encode(frame))


def decode(frame: bytes) -> Frame:
    """Decode one frame of this module, or raise WireError."""
    body = frames.body_of(MAGIC, frame)
    try:
        found: Frame = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedError(f"not a frame of agents: {error}") from None
    return found


def encode_offer(offer: Offer) -> bytes:
    """Encode an offer for the store."""
    return _encoder.encode(offer)


def decode_offer(content: bytes) -> Offer:
    """Decode an offer from the store."""
    return _offers.decode(content)
