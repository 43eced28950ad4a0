"""``vertizo list``: what can be chosen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from vertizo.cli.console import print_list
from vertizo.cli.options import argument

Kind = Literal["methods", "datasets", "models", "codecs", "mechanisms", "trackers", "attacks"]
MECHANISMS = {
    "none": "No noise: replies leave as they are, or clipped alone.",
    "gaussian": "Noise on the server's replies, each record clipped before.",
    "embedding-noise": "Noise that each client adds to its clipped embeddings.",
    "randomised-response": "Labels that are kept or exchanged by chance, once before training.",
    "teacher": "Labels that a softmax regression on one noised statistic predicts.",
}
TRACKERS = {
    "tensorboard": "Event files below DIR, as tensorboard=DIR.",
    "mlflow": "A run of MLflow's in a folder or at a server, as mlflow=DIR or mlflow=URI.",
}


def list(kind: Annotated[Kind, argument("What to list.")]) -> None:
    """List what you can choose, with one line about each."""
    print_list(_entries(kind))


def _entries(kind: Kind) -> Iterator[tuple[str, str]]:
    if kind == "attacks":
        from vertizo.attacks.choice import ATTACKS

        for a in ATTACKS.values():
            yield a.name, f"{a.paper}: {_doc(a)} Adversary: {a.adversary}."
        return
    from vertizo.config.architectures import CLIENT_MODELS, SERVER_MODELS
    from vertizo.data.datasets.catalog import CATALOG
    from vertizo.methods.choice import METHODS
    from vertizo.protocol.codecs.catalog import CODECS

    models = {**SERVER_MODELS, **CLIENT_MODELS}  # a name on both sides is told as the client's
    sides = {"client": CLIENT_MODELS, "server": SERVER_MODELS}.items()
    registry: Any = CLIENT_MODELS
    if kind == "models":
        for name in {**CLIENT_MODELS, **models}:
            places = " and ".join(side for side, known in sides if name in known)
            yield name, f"{_doc(models[name])} ({places})"
    elif kind == "methods":
        registry = METHODS
        yield from ((name, f"{method.paper}: {_doc(method)}") for name, method in METHODS.items())
    elif kind == "mechanisms":
        from vertizo.privacy import options

        registry = options.MECHANISMS
        yield from MECHANISMS.items()
    elif kind == "trackers":
        from vertizo.run import tracking

        registry = tracking.TRACKERS
        yield from TRACKERS.items()
    elif kind == "codecs":
        registry = CODECS
        yield from ((name, _doc(codec)) for name, codec in CODECS.items())
    else:
        registry = CATALOG
        yield from ((name, entry.summary) for name, entry in CATALOG.items())
    yield from ((name, f"by {each.value}") for name, each in registry.offered().items())


def _doc(option: type) -> str:
    return (option.__doc__ or "").strip().splitlines()[0]
