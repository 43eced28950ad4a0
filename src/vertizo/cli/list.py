"""``vertizo list``: lists methods, data sets, models, codecs, mechanisms and trackers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

from vertizo.cli.console import print_list, say
from vertizo.cli.options import argument
from vertizo.core.plugins.imports import object_at
from vertizo.core.plugins.wings import wings

KINDS = ("methods", "datasets", "models", "codecs", "mechanisms", "trackers")
if TYPE_CHECKING:
    Kind = str
else:
    Kind = Literal[(*KINDS, *(kind for wing in wings() for kind in wing.lists))]
MECHANISMS = {
    "none": "No noise: replies leave as they are, or cut to a limit.",
    "gaussian": "Noise on the server's replies; each record's part is cut to a limit before.",
    "embedding-noise": "Each client adds noise to its embeddings; labels get no protection.",
    "randomised-response": "Each label is kept or exchanged by chance, once before training.",
    "teacher": "Labels that a small model predicts, which is fitted to one noised sum.",
}
INTRODUCTION = """\
Each client (a party with columns) turns its columns into a few numbers for each record, an
embedding. The server (the party with labels) predicts from all embeddings, and its replies say how
clients should change. Without noise, no method hides labels from a malicious client."""
METHODS = {
    "dpzv": "The client sends two slightly different embeddings and gets one number back. For an ε "
    "for labels (with noise and a private server), and for models that have no gradient.",
    "czofo": "The client sends embeddings; the server tries small changes of them and sends back "
    "how its loss reacts. For few bytes down, close to the accuracy of gradients.",
    "cascaded": "The client sends two slightly different embeddings and gets back two losses; only "
    "the server computes gradients. For client models that have no gradient.",
    "zoo-vfl": "As cascaded, but the server computes no gradient either. For models that have none "
    "anywhere; each client goes at its own pace.",
    "syn-zoo-vfl": "As zoo-vfl, with all clients in each round. For clients of about one speed.",
    "vafl": "The client sends embeddings and gets their gradients back, which tell labels. For the "
    "best accuracy where labels are no secret; each client goes at its own pace.",
    "split": "As vafl, with all clients in each round: the whole is trained like one model.",
    "compressed-vfl": "As split, with 8 bits for each number and, if you like, several steps "
    "for each exchange. For slow lines up.",
    "fedbcd": "As split, with several steps of every party for each exchange. For lines on which a "
    "round trip takes long.",
    "flex-vfl": "As split, with as many steps for each party as it has time for. For parties of "
    "different speed.",
    "tangent": "The client sends embeddings of all records and how they can move, and gets "
    "a finished step back. For few, narrow messages under an ε.",
    "label-statistic": "The client asks once about its whole table, gets a noised sum over labels "
    "back, and fits its model to it. For one message each way under an ε.",
    "one-shot": "The client uploads numbers that it made without labels, once; the server fits a "
    "model that stays there. For ε = 0: nothing that depends on a label is sent.",
}
AUTO = """\
Vertizo chooses: without an ε what predicts validation records best of split learning and DPZV, with
one what `vertizo privacy plan` advises. For train, worth and the estimators."""
TRACKERS = {
    "tensorboard": "Event files below DIR, as tensorboard=DIR.",
    "mlflow": "A run of MLflow's in a folder or at a server, as mlflow=DIR or mlflow=URI.",
}


def list(kind: Annotated[Kind, argument("What to list.")]) -> None:
    """List what you can choose, with one line about each."""
    if kind == "methods":
        say([" ".join(INTRODUCTION.split()), ""])
    print_list(_entries(kind))


def _entries(kind: Kind) -> Iterator[tuple[str, str]]:
    if (added := next((w.lists[kind] for w in wings() if kind in w.lists), None)) is not None:
        yield from object_at(added)()
        return
    from vertizo.config.architectures import CLIENT_MODELS, SERVER_MODELS
    from vertizo.data.datasets.catalog import CATALOG
    from vertizo.methods import choice
    from vertizo.protocol.codecs.catalog import CODECS

    models = {**SERVER_MODELS, **CLIENT_MODELS}  # a name on both sides is told as the client's
    sides = {"client": CLIENT_MODELS, "server": SERVER_MODELS}.items()
    registry: Any = CLIENT_MODELS
    if kind == "models":
        for name in {**CLIENT_MODELS, **models}:
            places = " and ".join(side for side, known in sides if name in known)
            yield name, f"{first_words(models[name])} ({places})"
    elif kind == "methods":
        registry = choice.METHODS
        yield "auto", " ".join(AUTO.split())
        for name, method in choice.METHODS.items():
            yield name, f"{METHODS[name]} Source: {method.paper}."
    elif kind == "mechanisms":
        from vertizo.privacy import options

        registry = options.MECHANISMS
        yield from MECHANISMS.items()
    elif kind == "trackers":
        from vertizo.run.loop import tracking

        registry = tracking.TRACKERS
        yield from TRACKERS.items()
    elif kind == "codecs":
        registry = CODECS
        yield from ((name, first_words(codec)) for name, codec in CODECS.items())
    else:
        registry = CATALOG
        yield from ((name, entry.summary) for name, entry in CATALOG.items())
    yield from ((name, f"by {each.value}") for name, each in registry.offered().items())


def first_words(option: type) -> str:
    """The first paragraph of a class's docstring, in a line."""
    return " ".join((option.__doc__ or "").split("\n\n")[0].split())
