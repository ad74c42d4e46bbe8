"""Installing again while workers train and sessions look: nobody is ended for it, and nobody waits long."""

import threading

import psycopg
import pytest
from psycopg import sql

from tensile_db.catalog import exclusive
from tensile_db.catalog.exclusive import lock_catalog
from tensile_db.catalog.install import install
from tensile_db.errors import CatalogInUse
from tests.at_once import at_once
from tests.fixtures.worker import ARCHITECTURES
from tests.jobs.picture_jobs import cancel, is_training

INSTALLS = 4

OTHERS = (*ARCHITECTURES, ("vgg16", "timm", "vgg16"))

LOOKS = (
    "SELECT * FROM tensile.progress",
    "SELECT * FROM tensile.queue",
    "SELECT * FROM tensile.plan_summary",
)


def test_jobs_train_on_and_sessions_look_on_while_it_is_installed_again_and_again(database, start_worker):
    start_worker()
    jobs = [database.submit("points", epochs=10**6) for _ in range(2)]
    for job in jobs:
        database.wait_until(job, is_training)
    ended = threading.Event()
    looked = []

    def install_again():
        try:
            for _ in range(INSTALLS):
                install(database.admin, architectures=ARCHITECTURES)
        finally:
            ended.set()

    def look_again():
        with psycopg.connect(database.admin, autocommit=True) as connection:
            while not ended.is_set():
                looked.extend(connection.execute(look).rowcount for look in LOOKS)

    at_once(lambda work: work(), [install_again, look_again])
    assert looked
    began = [database.job(job)["iteration"] for job in jobs]
    for job, iteration in zip(jobs, began, strict=True):
        database.wait_until(job, lambda row, past=iteration: row["iteration"] > past)
    assert [database.job(job)["attempt"] for job in jobs] == [1, 1]
    assert cancel(database, *jobs) == ["cancelled"] * 2


def test_an_open_transaction_keeps_it_from_being_installed_and_the_error_names_it(database):
    with psycopg.connect(database.admin, application_name="a report") as reader:
        reader.execute("SELECT * FROM tensile.jobs")
        with pytest.raises(CatalogInUse) as refusal:
            install(database.admin, patience_s=0.2)
        assert f"process {reader.info.backend_pid} (postgres, a report), " in refusal.value.message
        assert refusal.value.sqlstate == "55006"
    install(database.admin, patience_s=0.2)


@pytest.mark.parametrize("autocommit", [False, True])
def test_whoever_holds_the_lock_of_installs_is_waited_for_and_named(site, autocommit):
    dsn = site.dsn("alice")
    with psycopg.connect(dsn, application_name="a prank", autocommit=autocommit) as connection:
        connection.execute("SELECT pg_advisory_lock(%s)", [exclusive._INSTALLS])
        with pytest.raises(CatalogInUse) as refusal:
            install(site.admin, patience_s=0.2)
        process = f"it is process {connection.info.backend_pid} (alice, a prank), "
        assert process in refusal.value.message
        assert "pg_terminate_backend" in refusal.value.hint
        # Two numbers are another lock.
        connection.execute("SELECT pg_advisory_unlock_all(), pg_advisory_lock(7, 7)")
        install(site.admin, patience_s=0.2)


def test_a_transaction_that_was_prepared_and_forgotten_is_named(site):
    name = "Anna's, forgotten"
    with site.connect("alice", autocommit=False) as connection:
        connection.execute("SELECT * FROM tensile.jobs")
        connection.execute(f"PREPARE TRANSACTION {sql.quote(name)}")
        with pytest.raises(CatalogInUse) as refusal:
            install(site.admin, patience_s=0.2)
    assert refusal.value.message.endswith(f"by the prepared transaction {sql.quote(name)}")
    site.execute(refusal.value.hint.partition(": ")[2].removesuffix("."))
    install(site.admin, patience_s=0.2)


def test_where_nothing_has_changed_an_open_transaction_is_no_hindrance(database):
    install(database.admin, architectures=ARCHITECTURES)
    with psycopg.connect(database.admin) as reader:
        reader.execute("SELECT * FROM tensile.jobs")
        install(database.admin, architectures=ARCHITECTURES, patience_s=0.2, if_changed=True)
        with pytest.raises(CatalogInUse):
            install(database.admin, architectures=OTHERS, patience_s=0.2, if_changed=True)
    install(database.admin, architectures=OTHERS, patience_s=0.2, if_changed=True)
    assert database.execute("SELECT name FROM tensile.architectures") == [{"name": "mlp"}, {"name": "vgg16"}]


def test_whoever_reads_the_servers_roles_is_no_hindrance_and_nobody_is_kept_out(database, cluster):
    with psycopg.connect(cluster.dsn(dbname="postgres")) as elsewhere:
        elsewhere.execute("SELECT * FROM pg_roles")
        install(database.admin, patience_s=0.2)
    with psycopg.connect(database.admin) as installing:
        installing.execute("SELECT 1")
        lock_catalog(installing, patience_s=0.2)
        held = installing.execute(
            "SELECT relation::regclass::text FROM pg_locks WHERE pid = pg_backend_pid()"
            " AND mode = 'AccessExclusiveLock' AND locktype = 'relation'"
        ).fetchall()
        assert {name.split(".")[0] for (name,) in held} == {"tensile"}
        assert ("tensile.progress",) in held
        assert ("tensile.jobs",) in held
        psycopg.connect(database.admin, connect_timeout=10).close()


def test_nobody_stands_behind_an_install_that_waits_for_an_open_transaction(database):
    failures = []

    def install_patiently():
        try:
            install(database.admin)
        except CatalogInUse as error:
            failures.append(error)

    with psycopg.connect(database.admin) as reader:
        reader.execute("SELECT * FROM tensile.jobs")
        installing = threading.Thread(target=install_patiently)
        installing.start()
        with psycopg.connect(database.worker, options="-c lock_timeout=5s") as worker:
            for _ in range(100):
                worker.execute("UPDATE tensile.jobs SET updated_at = now()")
                worker.commit()
        assert installing.is_alive()
    installing.join()
    assert failures == []
