"""Finding a PostgreSQL with plpython3u among those that are installed."""

import pytest

from tensile_db import local_postgres
from tensile_db.errors import NotInstalled
from tensile_db.local_postgres import find_postgres


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a pretended PostgreSQL of a version, laid out as Debian does."""
    monkeypatch.setattr(local_postgres, "_VERSIONED_FOLDERS", (str(tmp_path),))
    monkeypatch.delenv("PG_CONFIG", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")

    def make(version, *, plpython=True):
        bindir = tmp_path / str(version) / "bin"
        share, library = tmp_path / f"share{version}", tmp_path / f"lib{version}"
        for folder in (bindir, share / "extension", library):
            folder.mkdir(parents=True)
        if plpython:
            (share / "extension" / "plpython3u.control").touch()
            (library / "plpython3.so").touch()
        scripts = {
            "initdb": "",
            "postgres": f"echo 'postgres (PostgreSQL) {version}.3 (Debian {version}.3-1)'",
            "pg_config": f"case $1 in --sharedir) echo {share};; --pkglibdir) echo {library};;"
            f" --bindir) echo {bindir};; esac",
        }
        for name, body in scripts.items():
            (bindir / name).write_text(f"#!/bin/sh\n{body}\n")
            (bindir / name).chmod(0o755)
        return bindir

    return make


def test_the_newest_with_plpython_is_taken(install):
    install(15)
    bindir = install(16)
    install(17, plpython=False)
    found = find_postgres()
    assert (found.version, found.bindir) == (16, bindir)


def test_versions_are_compared_as_numbers(install):
    install(9)
    install(14)
    assert find_postgres().version == 14


def test_a_cluster_is_opened_by_the_version_that_made_it(install):
    install(15)
    install(16)
    assert find_postgres(15).version == 15


def test_a_version_that_was_removed_is_named(install):
    install(16)
    with pytest.raises(NotInstalled, match="made by PostgreSQL 15, which is not installed any more"):
        find_postgres(15)


def test_without_any_the_hint_names_the_packages(install):
    with pytest.raises(NotInstalled, match="found: none") as caught:
        find_postgres()
    assert "apt-get install postgresql postgresql-plpython3-<version>" in caught.value.hint


def test_one_that_is_too_old_is_named(install):
    install(13)
    with pytest.raises(NotInstalled, match="found: 13"):
        find_postgres()


def test_one_without_plpython_names_the_package_for_its_version(install):
    install(15, plpython=False)
    with pytest.raises(NotInstalled, match="plpython3u is not") as caught:
        find_postgres()
    assert "postgresql-plpython3-15" in caught.value.hint


def test_pg_config_in_the_environment_adds_an_installation_elsewhere(install, tmp_path, monkeypatch):
    install(15)
    elsewhere = install(18)
    elsewhere.rename(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "pg_config").write_text(
        (tmp_path / "elsewhere" / "pg_config")
        .read_text()
        .replace(str(elsewhere), str(tmp_path / "elsewhere"))
    )
    monkeypatch.setenv("PG_CONFIG", str(tmp_path / "elsewhere" / "pg_config"))
    assert find_postgres().bindir == tmp_path / "elsewhere"


def test_of_two_of_a_version_the_one_that_pg_config_names_is_taken(install, tmp_path, monkeypatch):
    bindir = install(15)
    for number in range(8):
        elsewhere = tmp_path / f"elsewhere{number}"
        elsewhere.mkdir()
        for name in ("initdb", "postgres", "pg_config"):
            text = (bindir / name).read_text().replace(str(bindir), str(elsewhere))
            (elsewhere / name).write_text(text)
            (elsewhere / name).chmod(0o755)
        monkeypatch.setenv("PG_CONFIG", str(elsewhere / "pg_config"))
        assert find_postgres().bindir == elsewhere


@pytest.mark.parametrize("script", [None, "#!/bin/sh\nexit 1\n", "no program"])
def test_a_pg_config_that_leads_nowhere_is_said_to(install, tmp_path, monkeypatch, script):
    install(15)
    named = tmp_path / "named"
    if script is not None:
        named.write_text(script)
        named.chmod(0o755)
    monkeypatch.setenv("PG_CONFIG", str(named))
    with pytest.raises(NotInstalled, match=f"PG_CONFIG is '{named}'") as caught:
        find_postgres()
    assert "Unset PG_CONFIG" in caught.value.hint
