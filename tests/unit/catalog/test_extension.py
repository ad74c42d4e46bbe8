"""The files of an extension, as they are written."""

import pytest

from tensile_db.catalog import extension
from tensile_db.errors import NotInstalled

pytestmark = pytest.mark.slow

ARCHITECTURES = [("it's", "plugin", "a:b"), ("mlp", "mlp", "mlp")]


@pytest.fixture(autouse=True)
def _version(monkeypatch):
    monkeypatch.setattr(extension, "package_version", lambda: "1.2")


def test_there_is_a_control_file_and_a_script_for_each_way_to_this_version(tmp_path):
    folder = tmp_path / "new" / "one"
    paths = extension.build(folder, architectures=ARCHITECTURES, earlier={"1.0": "0026", "1.1": "0027"})
    assert sorted(folder.iterdir()) == sorted(paths)
    assert [path.name for path in paths] == [
        "tensile_db.control",
        "tensile_db--1.2.sql",
        "tensile_db--1.0--1.2.sql",
        "tensile_db--1.1--1.2.sql",
    ]
    control, made, from_1_0, from_1_1 = (path.read_text() for path in paths)
    assert "default_version = '1.2'" in control
    assert made.startswith('\\echo Use "CREATE EXTENSION tensile_db CASCADE" to load this file. \\quit\n')
    assert "('it''s', 'plugin', 'a:b'),\n    ('mlp', 'mlp', 'mlp');" in made
    assert ("Running upgrade  -> 0001" in made, "Running upgrade 0026 -> 0027" in made) == (True, True)
    assert ("-> 0026" in from_1_0, "-> 0027" in from_1_0, "-> 0027" in from_1_1) == (False, True, False)


def test_equal_versions_give_equal_files_also_over_others(tmp_path):
    first = extension.build(tmp_path / "first", architectures=ARCHITECTURES)
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / "tensile_db.control").write_text("older")
    second = extension.build(tmp_path / "second", architectures=reversed(ARCHITECTURES))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_a_checkout_that_is_not_installed_has_no_version_to_be_one_of(tmp_path, monkeypatch):
    monkeypatch.setattr(extension, "package_version", lambda: "unpackaged")
    with pytest.raises(NotInstalled, match="has none"):
        extension.build(tmp_path / "none", architectures=ARCHITECTURES)
    assert not (tmp_path / "none").exists()
