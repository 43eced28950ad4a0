"""Figures as people read them."""

from __future__ import annotations

from vertizo.run.summary_figures import size_text

__all__ = ["size_text"]
