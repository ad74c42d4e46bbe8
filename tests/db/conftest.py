"""Fixtures of this tier."""

from tests.fix_db import site, site_template
from tests.fix_worker import database, engine, installed_template, start_worker

__all__ = ["database", "engine", "installed_template", "site", "site_template", "start_worker"]
