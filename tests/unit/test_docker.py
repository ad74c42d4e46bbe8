"""The Dockerfiles and the compose files, as far as they can be held against the rest without Docker.

`make check-docker` builds and runs them.
"""

import re
import tomllib
from pathlib import Path

import pytest
import typer
import yaml

from tensile_db.cli import app
from tensile_db.commands import installing

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
COMPOSE = ("compose.yaml", "compose.gpu.yaml")


def _services(name):
    return yaml.safe_load((DOCKER / name).read_text())["services"]


def _commands():
    """Return the files' calls of tensile-db, as its arguments."""
    return [
        pytest.param(settings["command"], id=f"{name}-{service}")
        for name in COMPOSE
        for service, settings in _services(name).items()
        if "command" in settings
    ]


@pytest.mark.parametrize("arguments", _commands())
def test_the_command_line_takes_what_services_are_started_with(arguments):
    group = typer.main.get_command(app)
    context = group.make_context("tensile-db", list(arguments))
    name, command, rest = group.resolve_command(context, list(arguments))
    # Which raises where an option is not known, or an argument is too many.
    parameters = command.make_context(name, rest, parent=context).params
    assert parameters["dsn"].startswith("host=postgres ")
    assert "postgres" in _services(COMPOSE[0])


def test_the_worker_logs_in_as_the_role_that_the_install_makes_with_its_password():
    install, worker = (_services(COMPOSE[0])[name] for name in ("install", "worker"))
    role = next(
        argument.removeprefix("--worker=") for argument in install["command"] if "--worker" in argument
    )
    (dsn,) = (argument for argument in worker["command"] if argument.startswith("--dsn="))
    assert dsn.endswith(f" user={role}")
    variables = {installing._WORKERS_VARIABLE, installing._USERS_VARIABLE}
    assert variables | {"PGPASSWORD"} == install["environment"].keys()
    assert worker["environment"] == {"PGPASSWORD": install["environment"][installing._WORKERS_VARIABLE]}


def test_a_gpu_changes_nothing_but_the_device():
    usual, gpu = (_services(name)["worker"] for name in COMPOSE)
    assert gpu.keys() == {"command", "deploy"}
    assert [argument.replace("cuda:0", "cpu") for argument in gpu["command"]] == usual["command"]


def test_the_example_names_every_variable_and_no_password():
    text = "".join((DOCKER / name).read_text() for name in COMPOSE)
    used = dict(re.findall(r"\$\{(\w+):([-?])", text))
    assert len(used) == len(set(re.findall(r"\$\{(\w+)", text)))
    example = (DOCKER / "env.example").read_text()
    for how, line in (("?", r"^(\w+)=$"), ("-", r"^# (\w+)=")):
        named = set(re.findall(line, example, re.MULTILINE))
        assert named == {name for name, usual in used.items() if usual == how}


def test_images_get_all_of_the_package():
    recipe = (DOCKER / "worker.Dockerfile").read_text()
    copied = {name for line in re.findall(r"^COPY (.+) \S+$", recipe, re.MULTILINE) for name in line.split()}
    with (ROOT / "pyproject.toml").open("rb") as file:
        settings = tomllib.load(file)
    folders = {"tensile_db", *settings["tool"]["setuptools"]["package-dir"].values()}
    assert copied >= folders | {"pyproject.toml", settings["project"]["readme"]}
    sent = set(re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE))
    assert copied == sent
    assert all((ROOT / name).exists() for name in copied)
