"""Work on a card as CUDA graphs: captured once, then replayed with new numbers.

A round is dozens of small operations, and starting one takes the processor longer than the card
takes to do it. A graph starts all of them at once. While it is captured nothing is computed, and
when it is replayed no Python runs. So what differs from call to call comes in three ways alone:

* tensors that are given to the call are copied to where the graph reads them (`Graphed`): those of
  the host that are small together with all numbers, as one buffer;
* `each_call` does something on the host at every call, such as counting or making a rate;
* `fed` puts a number or an array of the host where the graph reads it.

Anything else of the host is what it was during the capture. What works on a card may therefore keep
its counters and draw its numbers by these functions only, and what looks at a tensor calls
`eager_only`. Outside a capture they do just what they say.

What a graph computes lies in memory that later graphs use as well, until it is copied.
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from vertizo.core import arrays
from vertizo.core.errors import VertizoError
from vertizo.core.plugins.lazy_import import torch

if TYPE_CHECKING:
    from torch import Tensor

LOG = logging.getLogger("vertizo.arrays")
SMALL = 2**16
"""Bytes up to which an array of the host is packed with the others of a call."""
WARM_UP = 2
"""Calls with tensors of the same shapes that run eagerly before one is captured: they load kernels
and make what lasts, such as an optimiser's vectors."""
ONE_AT_A_TIME = threading.RLock()
"""Held while a graph is captured or replayed: graphs of all threads share a card's memory."""
KEPT_FOR_GOOD: list[Any] = []
"""Graphs that nobody may drop: see `_of_card` and `_recorded`."""
Result = TypeVar("Result")
Key = TypeVar("Key")
Function = Callable[[Key, Sequence[int], Sequence["Tensor"]], tuple["Tensor", ...]]


class EagerOnlyError(VertizoError):
    """What cannot be part of a graph, in words."""


class Number(int):
    """Stands for a number of the host while a graph is captured; only `fed` can use it."""

    place: int
    """Where the number is among those of a call."""

    def __new__(cls, place: int) -> Number:
        """Its value is one that no counter has."""
        self = super().__new__(cls, -(2**40))
        self.place = place
        return self


class _Packed:
    """Arrays of the host in one buffer, which is copied to the card at once; there are views.

    ``like`` are tensors of their shapes and types.
    """

    def __init__(self, like: Sequence[Tensor], device: torch.device) -> None:
        ends = [*accumulate(-(-tensor.nbytes // 16) * 16 for tensor in like)]
        size = ends[-1] if ends else 0
        self._host = torch.zeros(size, dtype=torch.uint8)
        self._fetched = None
        if size and device.type == "cuda":
            self._host = self._host.pin_memory()
            self._fetched = torch.cuda.Event()  # type: ignore[no-untyped-call]
        card = torch.zeros(size, dtype=torch.uint8, device=device)
        self._card = card.data  # past autograd, which may have saved what is there
        starts = [0, *ends]
        self.pairs = [
            tuple(
                whole[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
                for whole in (self._host, card)
            )
            for start, tensor in zip(starts, like, strict=False)
        ]
        """Each on the host and on the card."""

    def open(self) -> None:
        """Let the host's side be written: the card has fetched what was sent before."""
        if self._fetched is not None:
            self._fetched.synchronize()

    def send(self) -> None:
        """Copy what is on the host to the card, which fetches it when it comes to that."""
        if self.pairs:
            self._card.copy_(self._host, non_blocking=True)
        if self._fetched is not None:
            self._fetched.record()


class _Capture:
    """What is to be done on the host before each replay of a graph, in order.

    It puts what it makes into ``slots``, of which a graph reads the second of each pair; what has
    none of them gets memory of the capture.
    """

    def __init__(self, given: int, slots: Sequence[Sequence[Tensor]] = ()) -> None:
        self.given = [Number(place) for place in range(given)]
        self.slots = [*slots]
        self._count, self._taken = given, 0
        self._actions: list[Callable[[list[Any]], None]] = []

    def number(self, action: Callable[[], Any]) -> Number:
        self._actions.append(lambda values: values.append(action()))
        self._count += 1
        return Number(self._count - 1)

    def slot(
        self, make: Callable[..., Any], numbers: Sequence[int], empty: Callable[[], Tensor]
    ) -> Tensor:
        if self._taken == len(self.slots):
            made = empty()
            self.slots.append((made, made))
        on_host, slot = self.slots[self._taken]
        self._taken += 1
        if not all(isinstance(number, Number) for number in numbers):
            raise EagerOnlyError("a number of the host is the same in every call")
        places = [number.place for number in numbers if isinstance(number, Number)]
        by_numpy = on_host.numpy() if on_host.device.type == "cpu" else None  # a number is quicker

        def put(values: list[Any]) -> None:
            value = make(*[values[place] for place in places])
            if by_numpy is None or isinstance(value, torch.Tensor):
                on_host.copy_(value)
            else:
                by_numpy[...] = value

        self._actions.append(put)
        return slot

    def begin(self, given: Sequence[int]) -> None:
        values = [*given]
        for action in self._actions:
            action(values)


_capture: ContextVar[_Capture | None] = ContextVar("capture", default=None)


def is_capturing() -> bool:
    """Whether a graph is being captured."""
    return _capture.get() is not None


def eager_only(why: str) -> None:
    """Say that what follows cannot be captured, and why."""
    if is_capturing():
        raise EagerOnlyError(why)


def each_call(action: Callable[[], Result]) -> Result | Number:
    """Do something on the host now, and again before each replay of the graph being captured.

    In a capture the result is a `Number`, which stands for those of the calls.
    """
    host = _capture.get()
    return action() if host is None else host.number(action)


def fed(
    make: Callable[..., Any],
    *numbers: int,
    device: torch.device,
    shape: tuple[int, ...] = (),
    dtype: torch.dtype | None = None,
) -> Any:
    """What the host makes of some numbers: itself on the processor, a tensor on a card.

    Args:
        make: numbers → a number, or a tensor of that shape and type.
        numbers: what it depends on beside its owner's state: given to the call, or by `each_call`.
        device: where it is used.
        shape: that of the tensor.
        dtype: its type; None for float32.
    """
    if not arrays.is_card(device):
        return make(*numbers)
    dtype = torch.float32 if dtype is None else dtype
    if (host := _capture.get()) is not None:
        empty = partial(torch.empty, shape, dtype=dtype, device=device)
        return host.slot(make, numbers, empty)
    value = make(*numbers)
    if isinstance(value, torch.Tensor):
        return arrays.here(value, device)
    return torch.full(shape, value, dtype=dtype, device=device)


def are_available(device: torch.device) -> bool:
    """Whether graphs can be made for that device."""
    return device.type == "cuda"


@cache
def _of_card(card: int) -> tuple[Any, Any]:
    """A card's stream for captures, and the memory that its graphs use one after the other.

    An empty graph is in it for good: PyTorch gives up a memory with the last graph in it, and then
    takes no other graph into it.
    """
    stream = torch.cuda.Stream(card)  # type: ignore[no-untyped-call]
    pool = torch.cuda.graph_pool_handle()
    keeper = torch.cuda.CUDAGraph()
    KEPT_FOR_GOOD.append(keeper)
    with _recorded(keeper, stream, pool):
        pass
    return stream, pool


@contextmanager
def _recorded(graph: Any, stream: Any, pool: Any) -> Iterator[None]:
    """Record what happens on the card inside the block as a graph.

    What would wait for the card is an error before the card hears of it: PyTorch cannot end a
    capture that has been broken, takes no other graph into its memory, and goes on asking its graph
    where memory comes from. So captures after it have another stream and memory. What happens in
    other threads is none of its business.
    """
    before, looking = torch.cuda.current_stream(), torch.cuda.get_sync_debug_mode()
    has_ended = False
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The CUDA Graph is empty")  # where nothing is moved
            warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype")
            capture = torch.cuda.graph(graph, pool, stream, capture_error_mode="thread_local")
            capture.__enter__()
            try:
                torch.cuda.set_sync_debug_mode("error")
                yield
            finally:
                torch.cuda.set_sync_debug_mode(looking)
                capture.__exit__(None, None, None)
                has_ended = True
    finally:
        torch.cuda.set_stream(before)
        if not has_ended:
            KEPT_FOR_GOOD.append(graph)
            _of_card.cache_clear()


def capture(work: Callable[[], Result], *, apart: bool) -> tuple[Result, Callable[[], None]]:
    """Capture what ``work`` does on the card as a graph; its result, and a function to replay it.

    Nothing is computed until then. What it computes is in memory of its own if it is ``apart``.
    """
    graph = torch.cuda.CUDAGraph()
    stream, pool = _of_card(torch.cuda.current_device())
    with _recorded(graph, stream, None if apart else pool):
        result = work()
    return result, graph.replay


@dataclass(eq=False)
class Graph:
    """A captured call."""

    _host: _Capture
    _packed: _Packed
    _inputs: Sequence[Tensor]
    _outputs: Sequence[Tensor]
    _replay: Callable[[], None]
    kept: Any = None
    """What its owner keeps of the capture."""

    def __call__(self, numbers: Sequence[int], tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Replay it on other numbers and tensors; results are copies."""
        with ONE_AT_A_TIME:
            self._packed.open()
            for place, given in zip(self._inputs, tensors, strict=True):
                place.copy_(arrays.pinned(given, place.device), non_blocking=True)
            self._host.begin(numbers)
            self._packed.send()
            self._replay()
            return tuple(output.clone() for output in self._outputs)


class Graphed(Generic[Key]):
    """A function of tensors on a card, captured for each shape of them after some calls.

    Where that fails it runs eagerly from then on, and one line of the log says why.

    Args:
        function: (key, numbers, tensors) → tensors; a graph is made for each key.
        name: what it is, for that line.
        device: the card.
        keeps: whether something that it computes is used after it returned, beside its results:
            then its graphs have memory of their own.
    """

    def __init__(
        self, function: Function[Key], name: str, device: torch.device, *, keeps: bool = False
    ) -> None:
        self._function, self._name, self._device, self._keeps = function, name, device, keeps
        self.is_eager = not are_available(device)
        """Whether nothing is captured any more."""
        self.used: Graph | None = None
        """The graph that the last call replayed; None where it ran eagerly."""
        self.forget()

    def forget(self) -> None:
        """Drop all graphs: tensors that they use may have been replaced."""
        self._graphs: dict[Any, Graph] = {}
        self._calls = Counter[Any]()
        self.used = None

    def __call__(
        self,
        key: Key,
        numbers: Sequence[int],
        tensors: Sequence[Tensor],
        *,
        at_once: bool = False,
    ) -> tuple[Tensor, ...]:
        """Call the function, or replay its graph, which is captured ``at_once`` or after some."""
        self.used = None
        if not self.is_eager:
            which = key, *((tensor.shape, tensor.dtype) for tensor in tensors)
            self.used = self._graphs.get(which)
            calls = self._calls[which] = self._calls[which] + 1
            if self.used is None and (at_once or calls > WARM_UP):
                self.used = self._captured(key, len(numbers), tensors)
            if self.used is not None:
                self._graphs[which] = self.used
                return self.used(numbers, tensors)
        return self._function(key, numbers, tensors)

    def _captured(self, key: Key, numbers: int, tensors: Sequence[Tensor]) -> Graph | None:
        with ONE_AT_A_TIME:
            return self._twice(key, numbers, tensors)

    def _twice(self, key: Key, numbers: int, tensors: Sequence[Tensor]) -> Graph | None:
        places = [tensor.to(self._device, copy=True) for tensor in tensors]
        try:  # twice: what is filled before a replay may not lie in memory that it works in
            first = _Capture(numbers)
            self._attempt(key, first, places)
            small = [tensor for tensor in tensors if _is_packed(tensor)]
            packed = _Packed(small + [slot for _, slot in first.slots], self._device)
            pairs = iter(packed.pairs)
            inputs = [
                next(pairs) if _is_packed(tensor) else (place, place)
                for tensor, place in zip(tensors, places, strict=True)
            ]
            for (on_host, _), tensor in zip(inputs, tensors, strict=True):
                on_host.copy_(tensor)
            packed.send()
            host = _Capture(numbers, [*pairs])
            outputs, replay = self._attempt(key, host, [on_card for _, on_card in inputs])
            # Past autograd: it may have saved a place, and lets no saved tensor be changed.
            written = [on_host.data for on_host, _ in inputs]
            return Graph(host, packed, written, outputs, replay)
        except Exception as error:  # of whatever kind: eagerly it may work
            why = f"{type(error).__name__}: {error}".partition("\n")[0]
            why = str(error) if isinstance(error, EagerOnlyError) else f"none can be made: {why}"
            _note(f"note: {self._name} runs without a CUDA graph, more slowly: {why}")
            self.is_eager = True
            return None

    def _attempt(
        self, key: Key, host: _Capture, inputs: Sequence[Tensor]
    ) -> tuple[Sequence[Tensor], Callable[[], None]]:
        token = _capture.set(host)
        try:
            work = partial(self._function, key, host.given, inputs)
            return capture(work, apart=self._keeps)
        finally:
            _capture.reset(token)


def _is_packed(tensor: Tensor) -> bool:
    """Whether a tensor that is given to a call goes to the card with the numbers of the host."""
    return tensor.device.type == "cpu" and tensor.nbytes <= SMALL


@cache
def _note(line: str) -> None:
    """Log a line once."""
    LOG.warning("%s", line)
