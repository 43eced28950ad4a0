"""The finished job of real parties, which services are tried on."""

from tests.network.conftest import tables, trained

__all__ = ["tables", "trained"]
