"""The modules of tensile_db.udf, which are compiled as they are installed."""

import pytest

from tensile_db.catalog.install import install
from tests.db.installing.changed_code import CHANGED

#: By whom the modules are loaded.
CALL = "SELECT count(*) FROM tensile_doctor()"

NEVER_CALLED = """
    CREATE OR REPLACE FUNCTION tensile.compile_udf() RETURNS bytea LANGUAGE plpgsql AS $$
    BEGIN
        RAISE EXCEPTION 'compiled';
    END
    $$
"""

SERVER = "SELECT status, hint FROM tensile_doctor() WHERE \"check\" = 'server'"


def test_a_session_compiles_nothing(site):
    site.execute(NEVER_CALLED)
    assert site.value(CALL, role="alice") > 0


@pytest.mark.parametrize("byte", [0, 4])
def test_code_of_another_python_or_other_sources_is_compiled_again(site, byte):
    site.execute(CHANGED.format(byte=byte))
    assert site.value(CALL, role="alice") > 0
    site.execute(NEVER_CALLED)
    assert site.refusal(CALL)[1].endswith("compiled")


@pytest.mark.parametrize("if_changed", [False, True])
def test_an_install_compiles_for_another_python(site, if_changed):
    assert site.execute(SERVER, role="alice") == [{"status": "ok", "hint": None}]
    site.execute(CHANGED.format(byte=0))
    (told,) = site.execute(SERVER, role="alice")
    assert told["status"] == "warning"
    assert "tensile-db install" in told["hint"]
    install(site.admin, if_changed=if_changed)
    assert site.execute(SERVER, role="alice") == [{"status": "ok", "hint": None}]
    site.execute(NEVER_CALLED)
    assert site.value(CALL, role="alice") > 0


def test_code_does_not_depend_on_what_a_session_holds(site):
    (server,) = site.execute("SELECT found FROM tensile_doctor() WHERE \"check\" = 'server'")
    if tuple(map(int, server["found"].rpartition(" ")[2].split(".")[:2])) >= (3, 14):
        pytest.skip("the form in which that Python's code is written does")
    same = "SELECT tensile.udf_code() = tensile.compile_udf() AS same"
    with site.connect("alice") as connection:
        assert connection.execute(same).fetchone() == {"same": True}
        connection.execute(CALL)
        assert connection.execute(same).fetchone() == {"same": True}


@pytest.mark.parametrize("setting", ["bytea_output = 'escape'", "standard_conforming_strings = off"])
def test_it_is_installed_whatever_a_databases_settings_are(site, setting):
    database = site.value("SELECT current_database()")
    site.execute(f'ALTER DATABASE "{database}" SET {setting}')
    site.execute("DROP FUNCTION tensile.udf_code()")
    install(site.admin)
    site.execute(NEVER_CALLED)
    assert site.value(CALL, role="alice") > 0
