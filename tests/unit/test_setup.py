"""scripts/setup on machines that lack something, played by stand-ins for the system's commands."""

import subprocess
from pathlib import Path

import pytest

SETUP = Path(__file__).parents[2] / "scripts" / "setup"

#: Each looks into the folder $MACHINE: lists/ and known are the package system's, server and images what it
#: has installed, offline and stale what goes wrong.
COMMANDS = {
    "id": "echo 0",
    "python3": """
        case "$*" in
            *find_postgres*) test -e "$MACHINE/server" ;;
            --version) echo "Python 3.11" ;;
        esac""",
    "apt-cache": """
        test -e "$MACHINE/lists/a_Packages" || exit 100
        case "$1" in
            show) grep -qx "$2" "$MACHINE/known" ;;
            depends) grep -qx postgresql "$MACHINE/known" && echo "  Depends: postgresql-15" ;;
        esac""",
    "apt-get": """
        while [ "$1" != update ] && [ "$1" != install ]; do shift; done
        echo "$*" >> "$MACHINE/log"
        test ! -e "$MACHINE/offline" || exit 100
        case "$*" in
            update) touch "$MACHINE/lists/a_Packages"; rm -f "$MACHINE/stale" ;;
            *) test ! -e "$MACHINE/stale" || exit 100 ;;
        esac
        case "$*" in
            *plpython3*) touch "$MACHINE/server" ;;
            *dataset*) touch "$MACHINE/images/train-images-idx3-ubyte.gz" ;;
        esac""",
}

IMAGES = "install --no-install-recommends dataset-fashion-mnist"
POSTGRES = "install --no-install-recommends postgresql-15 postgresql-plpython3-15"


class Machine:
    """A machine that runs scripts/setup in a checkout whose .venv is complete."""

    def __init__(self, folder):
        self.folder = folder
        for name in ("lists", "images", "bin", "checkout/scripts", "checkout/.venv/bin"):
            (folder / name).mkdir(parents=True)
        for name, body in COMMANDS.items():
            self._command(folder / "bin" / name, body)
        self._command(folder / "checkout/.venv/bin/python", "exit 0")
        for name in ("requirements.lock", ".venv/tensile_db.lock"):
            (folder / "checkout" / name).write_text("")
        script = SETUP.read_text()
        for path, own in (("/usr/share/datasets/fashion-mnist", "images"), ("/var/lib/apt/lists", "lists")):
            assert script.count(path) == 1
            script = script.replace(path, str(folder / own))
        (folder / "checkout/scripts/setup").write_text(script)

    def _command(self, path, body):
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def has(self, *names, known=("postgresql", "dataset-fashion-mnist")):
        """Put things in place; known: the packages that the lists name, once they are there."""
        for name in names:
            (self.folder / name).touch()
        (self.folder / "known").write_text("".join(f"{name}\n" for name in known))

    def setup(self):
        """Run scripts/setup; return its exit status, its output, and what apt-get was told."""
        done = subprocess.run(
            ["/bin/sh", str(self.folder / "checkout/scripts/setup")],
            env={"PATH": f"{self.folder / 'bin'}:/usr/bin:/bin", "MACHINE": str(self.folder)},
            capture_output=True,
            text=True,
            check=False,
        )
        log = self.folder / "log"
        told = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return done.returncode, done.stdout + done.stderr, told


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_a_complete_machine_is_only_looked_at(machine):
    machine.has("server", "lists/a_Packages", "images/train-images-idx3-ubyte.gz")
    assert machine.setup() == (0, "", [])


def test_a_fresh_machine_fetches_its_lists_once_and_gets_everything(machine):
    machine.has()
    status, output, told = machine.setup()
    assert (status, told) == (0, ["update", POSTGRES, IMAGES]), output
    assert machine.setup() == (0, "", [])


def test_lists_that_are_missing_are_fetched_for_the_images_alone(machine):
    machine.has("server")
    assert machine.setup()[::2] == (0, ["update", IMAGES])


def test_lists_that_are_old_are_fetched_anew(machine):
    machine.has("server", "lists/a_Packages", "stale")
    assert machine.setup()[::2] == (0, [IMAGES, "update", IMAGES])


def test_a_distribution_without_the_images_is_asked_nothing(machine):
    machine.has("server", "lists/a_Packages", known=["postgresql"])
    assert machine.setup() == (0, "", [])


def test_without_a_network_the_images_are_no_reason_to_stop(machine):
    machine.has("server", "lists/a_Packages", "offline")
    status, output, _ = machine.setup()
    assert status == 0
    assert "the demo will use scikit-learn's digits" in output


def test_without_a_network_the_missing_server_is_named(machine):
    machine.has("offline")
    status, output, told = machine.setup()
    assert (status, told) == (1, ["update"])
    assert "the distribution offers no package postgresql" in output
    assert "Is there a network?" in output
