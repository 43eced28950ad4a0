"""The ``privacy`` section of a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from vertizo.core.options import Options
from vertizo.privacy.choice import MECHANISMS, MechanismName


class PrivacyConfig(Options):
    """What carries noise: the server's replies, or the clients' embeddings."""

    mechanism: MechanismName = "none"
    """gaussian: noise on the server's replies. embedding-noise: noise that each client adds to its
    embeddings. Default: gaussian if epsilon or noise_std is given."""
    clip: float | None = Field(default=None, gt=0)
    """C, the largest norm of one record's values, or of one embedding. Default for noise on
    replies: by the number of columns and clients."""
    noise_std: float | None = Field(default=None, gt=0)
    """σ, the noise on the sum over the batch, or on an embedding; give this or epsilon."""
    epsilon: float | None = Field(default=None, gt=0)
    """The ε that the noise is calibrated to: over all clients and epochs, or over one record's
    embeddings of one client."""
    delta: float = Field(default=1e-5, gt=0, lt=1)
    """The δ at which ε is stated."""
    server_share: float | None = Field(default=None, gt=0, lt=1)
    """Share of the budget (of μ²) for the server's private updates; replies get the rest. Default:
    0.5 if the server has such updates."""
    server_noise_std: float | None = Field(default=None, gt=0)
    """σ of the noise on the sum of a private update; goes with noise_std, without epsilon."""
    accounting: Literal["exact", "published"] = "exact"
    """How noise is calibrated to epsilon; the published formula gives less noise than ε needs."""
    ledger: Path | None = None
    """File that this run's spending is charged to, with all other runs on these records (`vertizo
    privacy ledger create`). Default: the budget is for this run alone."""
    noise: Literal["seeded", "secure"] | None = None
    """Source of the noise on replies. secure: discrete noise from the operating system. seeded:
    made from the seed, so that the run can be repeated, but its guarantee is only `simulated`.
    Default: seeded if a seed is given, else secure."""

    @model_validator(mode="before")
    @classmethod
    def _noise_has_a_mechanism(cls, given: Any) -> Any:
        """An ε alone is wish enough."""
        if not isinstance(given, Mapping) or "mechanism" in given:
            return given
        noised = any(given.get(key) is not None for key in ("epsilon", "noise_std"))
        return {**given, "mechanism": "gaussian"} if noised else given

    @model_validator(mode="after")
    def _complete(self) -> PrivacyConfig:
        own = ("clip", "noise_std", "epsilon", "server_share", "server_noise_std")
        given = [k for k in own if getattr(self, k) is not None]
        if self.mechanism == "none" and given:
            raise ValueError(
                f"privacy.{given[0]} is set but privacy.mechanism is 'none'; use 'gaussian'"
            )
        if self.mechanism not in MECHANISMS:  # somebody's own, which heeds what it likes
            return self._reply_noise_is_gaussian()
        if self.mechanism != "none":
            if self.clip is None and self.mechanism == "embedding-noise":
                raise ValueError(
                    f"privacy.mechanism {self.mechanism!r} needs privacy.clip, e.g. 5.0"
                )
            if (self.noise_std is None) == (self.epsilon is None):
                raise ValueError(
                    f"privacy.mechanism {self.mechanism!r} needs exactly one of privacy.noise_std "
                    "and privacy.epsilon"
                )
        if self.mechanism == "none" and self.accounting == "published":
            raise ValueError(
                "privacy.accounting is 'published' but privacy.mechanism is 'none'; "
                "use 'gaussian' or 'embedding-noise'"
            )
        if self.accounting == "published" and self.epsilon is None:
            raise ValueError("privacy.accounting is 'published', which needs privacy.epsilon")
        return self._reply_noise_is_gaussian()

    def _reply_noise_is_gaussian(self) -> PrivacyConfig:
        if self.ledger is not None and self.mechanism != "gaussian":
            raise ValueError(
                f"privacy.ledger is set but privacy.mechanism is {self.mechanism!r}, which charges "
                "nothing; use 'gaussian'"
            )
        if self.noise is not None and self.mechanism != "gaussian":
            raise ValueError(
                f"privacy.noise is {self.noise!r} but privacy.mechanism is {self.mechanism!r}; "
                "it is for 'gaussian'"
            )
        return self
