"""The ``privacy`` section of a configuration, and how it chooses what carries noise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PlainSerializer, PositiveInt, WrapValidator, model_validator
from pydantic_core import PydanticCustomError

from vertizo.core.errors import ConfigError
from vertizo.core.options import Options, within
from vertizo.core.plugins.registry import Registry

_PLAN = "vertizo.privacy.plan"
MECHANISMS: Registry[Any] = Registry(
    "mechanism",
    {
        "none": f"{_PLAN}:NoPrivacy",
        "gaussian": f"{_PLAN}:ClippedGaussian",
        "embedding-noise": "vertizo.privacy.noise.embedding:EmbeddingStatement",
        "randomised-response": "vertizo.privacy.labels.private_labels:RandomisedResponse",
        "teacher": "vertizo.privacy.labels.private_labels:Teacher",
    },
    "vertizo.privacy.own_mechanism:OwnMechanism",
)


def _own(name: Any, builtin: Callable[[Any], Any]) -> Any:
    """Accept the name of a mechanism that is not built in: an installed one or an import path."""
    if not isinstance(name, str) or name in MECHANISMS or not MECHANISMS.knows(name):
        return builtin(name)
    try:
        MECHANISMS.find(name, "privacy.mechanism")
    except ConfigError as error:
        raise PydanticCustomError("whole_line", "{line}", {"line": str(error)}) from None
    return name


MechanismName = Annotated[
    Literal["none", "gaussian", "embedding-noise", "randomised-response", "teacher"],
    WrapValidator(_own),
    PlainSerializer(str),
]
MAGNITUDES, EPSILONS, DELTAS = (1e-30, 1e30), (1e-9, 1e6), (1e-100, 0.5)
"""Accepted ranges of clips and noise, of ε and of δ, far beyond any use: powers of larger numbers
overflow, and those of smaller ones vanish."""
SHARES, RATES = (1e-9, 0.999), (1e-5, 0.999)
"""Accepted ranges of shares of ε, and of rates of secret samples; the accounting of smaller rates
would need tens of gigabytes."""
ON_LABELS = ("randomised-response", "teacher")
"""Mechanisms whose private labels take the place of the raw ones (`privacy.private_labels`)."""

RESPONSE_FROM = 2.0
"""ε from which randomised response leaves labels right often enough."""
LEAST_RESPONSE = 1.0
"""ε below which labels of randomised response are hardly better than guesses."""


def mechanism_for(epsilon: float, *, teachable: bool) -> str:
    """The mechanism that makes labels private where a configuration names none.

    ``teachable`` says whether features are numbers, which a teacher can be fitted on.
    """
    if teachable and epsilon < RESPONSE_FROM:
        return "teacher"
    return "randomised-response" if epsilon >= LEAST_RESPONSE else "gaussian"


class TeacherConfig(Options):
    """What a teacher of labels is fitted on."""

    features: Literal["pca", "kmeans", "filters"] | None = None
    """What each client makes of its features for it, without labels; as client.pretrain. Default:
    filters for images, else pca."""
    components: PositiveInt = 56
    """Numbers of each record that each client uploads once for it. Default: of filters 56, else 150
    between all clients."""
    kept: PositiveInt | None = None
    """Principal components of all of these numbers together that it is fitted on, at most. Default:
    as many as rise above the noise, by ε, δ and the number of records."""
    whitening: float = Field(default=0.75, ge=0, le=1)
    """α: components of variance Λ are scaled by Λ^(−α/2)."""
    spread: Annotated[float, Field(gt=0), within(MAGNITUDES)] = 0.7
    """τ, how large a coefficient is expected to be."""


class PrivacyConfig(Options):
    """What carries noise: the server's replies, the labels, or the clients' embeddings."""

    mechanism: MechanismName = "none"
    """gaussian: noise on the server's replies. randomised-response, teacher: private labels take
    the place of the raw ones, made once, so that all training on them is free. embedding-noise:
    noise that each client adds to its embeddings. Default: gaussian if noise_std or epsilon is
    given; but with epsilon alone and a method whose replies are gradients, teacher, from ε = 2 on
    randomised-response, for texts from ε = 1 on (not where the label holder has columns, which
    neither covers)."""
    clip: Annotated[float | None, Field(gt=0), within(MAGNITUDES)] = None
    """C, the largest norm of one record's values, or of one embedding. Without noise_std and
    epsilon it is a clip alone, which protects nothing. Default for noise on replies: by the number
    of columns and clients."""
    noise_std: Annotated[float | None, Field(gt=0), within(MAGNITUDES)] = None
    """σ, the noise on the sum over the batch, or on an embedding; give this or epsilon."""
    epsilon: Annotated[float | None, Field(gt=0), within(EPSILONS)] = None
    """The ε that the noise is calibrated to: over all clients and epochs, or over one record's
    embeddings of one client."""
    delta: Annotated[float, Field(gt=0, lt=1), within(DELTAS)] = 1e-5
    """The δ at which ε is stated."""
    server_share: Annotated[float | None, Field(gt=0, lt=1), within(SHARES)] = None
    """Share of the budget (of μ²) for the server's private updates; replies get the rest. Default:
    0.5 if the server has such updates."""
    server_noise_std: Annotated[float | None, Field(gt=0), within(MAGNITUDES)] = None
    """σ of the noise on the sum of a private update; goes with noise_std, without epsilon."""
    accounting: Literal["exact", "published"] = "exact"
    """How noise is calibrated to epsilon; the published formula gives less noise than ε needs."""
    ledger: Path | None = None
    """File that this run's spending is charged to, with all other runs on these records (`vertizo
    privacy ledger create`). Default: the budget is for this run alone. With private labels: the
    file that keeps them; the first run makes it, and further runs cost nothing."""
    teacher: TeacherConfig = TeacherConfig()
    """For mechanism teacher."""
    noise: Literal["seeded", "secure"] | None = None
    """Source of the noise on replies or labels. secure: discrete noise from the operating system.
    seeded: made from the seed, so that the run can be repeated, but its guarantee is only
    `simulated`. Default: seeded if a seed is given, else secure."""

    @model_validator(mode="before")
    @classmethod
    def _noise_has_a_mechanism(cls, given: Any) -> Any:
        """Choose gaussian where noise_std or epsilon is given without a mechanism."""
        if not isinstance(given, Mapping) or "mechanism" in given:
            return given
        noised = any(given.get(key) is not None for key in ("epsilon", "noise_std"))
        return {**given, "mechanism": "gaussian"} if noised else given

    @model_validator(mode="after")
    def _complete(self) -> PrivacyConfig:
        mechanism = self.mechanism
        own = ("clip", "noise_std", "epsilon", "server_share", "server_noise_std")
        given = [k for k in own if getattr(self, k) is not None]
        if mechanism == "none" and (given := [key for key in given if key != "clip"]):
            raise ValueError(
                f"privacy.{given[0]} is set but privacy.mechanism is 'none'; use 'gaussian'"
            )
        if mechanism == "embedding-noise" and self.clip is None:
            raise ValueError(f"privacy.mechanism {mechanism!r} needs privacy.clip, e.g. 5.0")
        known = mechanism in MECHANISMS  # somebody's own heeds what it likes
        if known and mechanism != "none" and (self.noise_std is None) == (self.epsilon is None):
            raise ValueError(
                f"privacy.mechanism {mechanism!r} needs exactly one of privacy.noise_std "
                "and privacy.epsilon"
            )
        if known and self.accounting == "published":
            if mechanism == "none":
                raise ValueError(
                    "privacy.accounting is 'published' but privacy.mechanism is 'none'; "
                    "use 'gaussian' or 'embedding-noise'"
                )
            if self.epsilon is None:
                raise ValueError("privacy.accounting is 'published', which needs privacy.epsilon")
        if mechanism in ON_LABELS:
            self._check_on_labels()
        elif self.ledger is not None and mechanism != "gaussian":
            raise ValueError(
                f"privacy.ledger is set but privacy.mechanism is {mechanism!r}, which charges "
                "nothing; use 'gaussian'"
            )
        elif self.noise is not None and mechanism != "gaussian":
            raise ValueError(
                f"privacy.noise is {self.noise!r} but privacy.mechanism is {mechanism!r}; "
                "it is for 'gaussian'"
            )
        return self

    def _check_on_labels(self) -> None:
        """Refuse keys that private labels do not use: they are paid for by ε alone."""
        for key in ("noise_std", "clip"):
            if getattr(self, key) is not None:
                raise ValueError(
                    f"privacy.{key} is set but privacy.mechanism {self.mechanism!r} makes labels "
                    "private, not replies; give privacy.epsilon"
                )
        if self.accounting == "published":
            raise ValueError(
                f"privacy.accounting is 'published' but privacy.mechanism {self.mechanism!r} has "
                "no published formula; use 'exact'"
            )
