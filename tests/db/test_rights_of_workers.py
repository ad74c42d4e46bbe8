"""What a worker's login may do, and when."""

import psycopg
import pytest

from tests.fix_db import PUPPET_LOGIN


def test_the_workers_login_has_users_rights_only_while_it_is_one_of_them(site):
    with site.connect(PUPPET_LOGIN) as connection:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("SELECT 1 FROM images_table")
        connection.execute("SET ROLE alice")
        assert connection.execute("SELECT count(*) AS rows FROM images_table").fetchone() == {"rows": 9}
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("UPDATE tensile.workers SET state = 'gone'")
    flags = "SELECT rolsuper OR rolcreaterole OR rolbypassrls FROM pg_roles WHERE rolname = %s"
    assert site.value(flags, PUPPET_LOGIN) is False


def test_a_worker_cannot_reach_the_settings(site):
    assert site.refusal("UPDATE tensile.settings SET value = 'x'", role=PUPPET_LOGIN)[0] == "42501"
