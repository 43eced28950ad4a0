"""`VerticalRegressor`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin

from vertizo.core.errors import ConfigError
from vertizo.run.estimators.base import VerticalEstimator
from vertizo.run.estimators.privacy import Privacy


class VerticalRegressor(RegressorMixin, VerticalEstimator):  # type: ignore[misc]
    """A regressor that several parties train together, each on columns of its own.

    See `VerticalClassifier`, whose parameters it has, but for ``classes``.

    Args:
        label_range: lowest and highest label that there can be, from public knowledge; None to
            scale labels by their mean and standard deviation, with which there is no guarantee.
    """

    task = "regression"

    def __init__(
        self,
        parties: Mapping[str, Sequence[str | int]] | None = None,
        *,
        method: str | Mapping[str, Any] = "dpzv",
        privacy: Privacy | Mapping[str, Any] | None = None,
        label_holder: str | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        embedding_dim: int | None = None,
        client_hidden: Sequence[int] | None = None,
        server_hidden: Sequence[int] | None = None,
        client_learning_rate: float | None = None,
        server_learning_rate: float | None = None,
        validation: float = 0.1,
        categorical: Sequence[str | int] | None = None,
        label_range: Sequence[float] | None = None,
        config: Mapping[str, Any] | None = None,
        random_state: Any = None,
        verbose: bool = False,
        out: str | Path | None = None,
    ) -> None:
        self._keep(locals())

    def predict(self, X: Any) -> NDArray[np.float32]:  # noqa: N803 - scikit-learn's name
        """The value of each record, in the unit of y.

        Raises:
            ValueError: X has other columns than in fit, or text where there were numbers.
        """
        return self._outputs(X)

    def _label_options(self, y: NDArray[Any]) -> dict[str, Any]:
        return {}

    def _check_public(self) -> None:
        if self.label_range is None:
            raise ConfigError(
                "label_range is None, but privacy needs label_range=[lowest, highest], from public "
                "knowledge: scaled by statistics of y, no ε would hold"
            )
