"""The parameter ``privacy`` of estimators: the guarantee that is asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from vertizo.core.errors import ConfigError


@dataclass(frozen=True)
class Privacy:
    """A budget for every training record, against all clients together.

    What holds after training, and for what of a record, is said by the estimator's ``privacy_``.

    >>> Privacy(epsilon=1.0)
    Privacy(epsilon=1.0, delta=1e-05, clip=None, server_share=None, noise=None)
    """

    epsilon: float
    """ε of the whole run, finite and > 0."""
    delta: float = 1e-5
    """δ, in (0, 1)."""
    clip: float | None = None
    """C, the largest norm of one record's values in a reply; None chooses it."""
    server_share: float | None = None
    """Share of the budget, in (0, 1), for the server's own training; None chooses it."""
    noise: Literal["seeded", "secure"] | None = None
    """secure: from the operating system; seeded: repeatable by whoever knows the seed, so that the
    guarantee is only `simulated`; None: seeded where random_state is an integer, else secure."""

    def __post_init__(self) -> None:
        for name, top in (
            ("epsilon", math.inf),
            ("delta", 1.0),
            ("clip", math.inf),
            ("server_share", 1.0),
        ):
            value = getattr(self, name)
            if value is None and name in ("clip", "server_share"):
                continue
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not is_number or not 0 < value < top:
                bound = "above 0" if top == math.inf else f"above 0 and below {top:g}"
                more = "; without a guarantee, leave privacy out" if name == "epsilon" else ""
                raise ConfigError(f"Privacy: {name} is {value!r}; it must be {bound}{more}")
        if self.noise not in (None, "seeded", "secure"):
            raise ConfigError(f"Privacy: noise is {self.noise!r}; use 'seeded' or 'secure'")

    def section(self) -> dict[str, Any]:
        """The section ``privacy`` of a configuration, with the fields that are not None."""
        return {name: value for name, value in vars(self).items() if value is not None}
