"""Fixtures of this tier: real servers, real workers, and what users would call."""

from tests.fix_worker import database, installed_template, start_worker

__all__ = ["database", "installed_template", "start_worker"]
