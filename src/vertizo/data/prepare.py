"""From the ``data`` section of a configuration to what every party holds."""

from __future__ import annotations

from vertizo.data import catalog, vertical
from vertizo.data.options import DataConfig
from vertizo.data.vertical import VerticalData
from vertizo.randomness import Stream


def prepare(options: DataConfig, stream: Stream) -> VerticalData:
    """Load the data set that is named, and cut it between the parties.

    Args:
        options: validated.
        stream: randomness of the choice of validation records.

    Raises:
        ConfigError, DataError: one line that says what does not fit, or is missing.
    """
    return vertical.cut(
        catalog.load(options.name, options.root),
        split=options.split,
        parties=options.parties,
        columns=options.columns,
        validation=options.validation,
        limit=options.limit,
        stream=stream,
    )
