"""Label holders and members that score in this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tests.deployments import DirectChannel, GoneError
from tests.network.by_hand import NAMES, holder_config, member, new_records, predicted_together
from torch import Tensor

from vertizo.core.names import Head
from vertizo.data.own_tables.keyed import FileTable
from vertizo.data.tabular.csv_lines import CsvFormat
from vertizo.network.serving.options import ScoringOptions
from vertizo.network.serving.predicting import PredictingService
from vertizo.ops.scoring.member import ScoringMember
from vertizo.ops.scoring.scorer import Scorer
from vertizo.ops.scoring.service import ScoringService


@dataclass
class Scoring:
    """A label holder that scores new records of the fixture ``tables``."""

    tables: Path
    trained: Path
    options: ScoringOptions
    service: ScoringService
    scorer: Scorer
    key: str
    notices: list[str]
    keys: list[str]
    """Of records that all parties have."""

    def table(self, name: str) -> FileTable:
        """A party's new records."""
        return FileTable(self.tables / f"{name}.new.csv", "key", CsvFormat())

    def member(self, name: str, channel: Any, table: Any = None) -> ScoringMember:
        """A member that asks through a channel."""
        config = member(self.tables, self.trained, name)
        return ScoringMember(config, table or self.table(name), channel, self.notices.append)

    @contextmanager
    def members(
        self,
        names: Sequence[str] = NAMES,
        channel: Callable[..., DirectChannel] = DirectChannel,
        tables: dict[str, Any] | None = None,
    ) -> Iterator[dict[str, ScoringMember]]:
        """Members at work, each in a thread."""
        over = threading.Event()
        made = {
            name: self.member(
                name, channel(self.service, name, 60.0, over.is_set), (tables or {}).get(name)
            )
            for name in names
        }

        def work(one: ScoringMember) -> None:
            with suppress(GoneError):
                one.run()

        threads = [threading.Thread(target=work, args=(one,)) for one in made.values()]
        for thread in threads:
            thread.start()
        try:
            yield made
        finally:
            over.set()
            for thread in threads:
                thread.join()
            for name in names:
                self.service.gone(name)


def predicted(tables: Path, trained: Path, head: Head = "private") -> dict[str, Tensor]:
    """Logits of `vertizo predict` for all new records, by key."""
    own = new_records(tables, "bank")
    service = PredictingService(holder_config(tables, trained), own, head=head)
    logits = predicted_together(service, tables, trained)
    return dict(zip(own.keys, torch.unbind(logits), strict=True))
