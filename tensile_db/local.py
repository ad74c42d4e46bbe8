"""The private PostgreSQL of the embedded default: one folder, one server, reached by its Unix socket alone.

    <folder>/postgres/         mode 0700, owned by the server's user
        data/                  the cluster
        run/.s.PGSQL.5432      the socket; elsewhere where this path would be too long for one
        server.log

Who may connect is decided by the operating system: nothing listens on a network, the folder and the socket
are the server user's alone, and behind them every role is trusted.  Where root calls and the server's user
cannot reach the folder (a checkout under a home of mode 0700), `postgres` is a link into /var/lib/tensile_db.
"""

import fcntl
import hashlib
import os
import re
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tensile_db.errors import LocalServerFailed
from tensile_db.local_account import SERVER_USER, Account, server_account
from tensile_db.local_postgres import PostgresPrograms, find_postgres
from tensile_db.local_removal import INCLUDE, is_ours, remove_home

OWNER = "postgres"
WORKER_LOGIN = "tensile_worker_login"
DEMO_USER = "demo"
DATABASE = "tensile"

#: Only names the socket's file, so that it is never taken.
PORT = 5432

#: sockaddr_un holds 108 bytes with the closing zero (unix(7)).
_SOCKET_PATH_NBYTES = 107

#: pg_ctl hands the data folder to a shell within double quotes.
_UNSAFE_FOR_SHELL = re.compile(r"[\"$`\\\n\r]")

#: A list of folders in postgresql.conf would be split or unquoted at anything else.
_SAFE_IN_SETTING = re.compile(r"[A-Za-z0-9_./-]+")

_FALLBACK = Path("/var/lib/tensile_db")

_START_TIMEOUT_S = 300
_STOP_TIMEOUT_S = 60

#: How long the last backends of a killed postmaster may take to notice and leave.
_ORPHANS_TIMEOUT_S = 30

_SETTINGS = """\
# Written by tensile-db at every start; put your own settings into postgresql.conf below the include.
listen_addresses = ''
unix_socket_directories = '{socket_directory}'
unix_socket_permissions = 0700
port = {port}
# Nobody replicates a private cluster; bulk loads and checkpoints of weights write far less log this way.
wal_level = minimal
max_wal_senders = 0
max_wal_size = 2GB
log_line_prefix = '%m [%p] %q%u@%d '
fsync = {durable}
synchronous_commit = {durable}
full_page_writes = {durable}
"""


class LocalCluster:
    """A cluster in a folder.  Every method may be called again; two processes may call at once."""

    def __init__(self, folder: Path, *, durable: bool = True, server_user: str = SERVER_USER) -> None:
        """Describe the cluster; nothing is read or made yet.

        durable: survive a crash of the machine; only throw-away clusters of tests do without.
        server_user: who runs the server of a new one, where root makes it.
        """
        self.folder = folder.resolve()
        self.durable = durable
        self._server_user = server_user

    @property
    def home(self) -> Path:
        """The folder of data, socket and log, links resolved."""
        return (self.folder / "postgres").resolve()

    @property
    def is_elsewhere(self) -> bool:
        """Whether the server's user cannot reach the folder, so that the cluster lies outside it."""
        return (self.folder / "postgres").is_symlink()

    @property
    def data(self) -> Path:
        """The data folder, PGDATA."""
        return self.home / "data"

    @property
    def log(self) -> Path:
        """The server's log."""
        return self.home / "server.log"

    @property
    def socket_directory(self) -> Path:
        """The folder of the socket, libpq's `host`."""
        inside = self.home / "run"
        length = len(os.fsencode(inside / f".s.PGSQL.{PORT}"))
        if length <= _SOCKET_PATH_NBYTES and _SAFE_IN_SETTING.fullmatch(str(inside)):
            return inside
        return Path(tempfile.gettempdir()) / f"tensile-{_digest(self.home)}"

    @property
    def _lock(self) -> Path:
        return self.folder / "lock"

    @property
    def _socket(self) -> Path:
        return self.socket_directory / f".s.PGSQL.{PORT}"

    @property
    def programs(self) -> PostgresPrograms:
        """The PostgreSQL that runs it.  Raises NotInstalled."""
        made_with = self.data / "PG_VERSION"
        return find_postgres(int(made_with.read_text()) if self._exists() else None)

    def dsn(self, user: str = OWNER, dbname: str = DATABASE) -> str:
        """Return a libpq connection string, whether or not the server runs."""
        return make_conninfo(host=str(self.socket_directory), port=PORT, user=user, dbname=dbname)

    def create(self) -> None:
        """Make the cluster unless it is there.  Raises NotInstalled, LocalServerFailed."""
        with self._locked():
            self._create()

    def start(self) -> None:
        """Make the cluster if need be, start its server, make roles and database.

        Raises NotInstalled, LocalServerFailed.
        """
        with self._locked():
            self._create()
            if not self.is_running():
                self._start()
            self._provision()

    def stop(self) -> None:
        """Stop the server if it runs; open connections are closed.  Raises LocalServerFailed."""
        if not self.is_running():
            return
        with self._locked():
            for mode in ("fast", "immediate"):
                command = ["stop", "--wait", f"--timeout={_STOP_TIMEOUT_S}", f"--mode={mode}"]
                output = self._pg_ctl(*command, timeout_s=_STOP_TIMEOUT_S + 10)
                if not self.is_running():
                    return
            raise LocalServerFailed(f"the server does not stop: {output}", hint=f"See {self.log}.")

    def is_made(self) -> bool:
        """Whether a cluster of ours lies here, be it half-made.  Raises LocalServerFailed."""
        if self.is_elsewhere and not self.home.exists():
            return self.home.parent == _FALLBACK
        try:
            return is_ours(self.home, self._lock)
        except PermissionError as error:
            raise self._belongs_to_another() from error

    def remove(self) -> None:
        """Stop the server and delete the cluster with all its data; what else lies there stays.

        Raises LocalServerFailed.
        """
        self.stop()
        if not self.is_made():
            return
        home, link = self.home, self.folder / "postgres"
        socket_directory = self.socket_directory
        try:
            with self._locked():
                # By its home it is known as ours, should this be broken off.
                if socket_directory.exists():
                    shutil.rmtree(socket_directory)
                if home.exists():
                    remove_home(home)
                if link.is_symlink():
                    link.unlink()
                self._lock.unlink(missing_ok=True)
        except OSError as error:
            raise LocalServerFailed(
                f"cannot delete {error.filename or home}: {error.strerror}",
                hint="Mend that, and delete the cluster once more.",
            ) from error

    def is_running(self) -> bool:
        """Whether its server accepts connections on the socket, be it only to say that it is starting."""
        try:
            # A socket in a shared folder that somebody else put there is not ours to talk to.
            if self._socket.lstat().st_uid != self.data.stat().st_uid:
                return False
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                probe.connect(str(self._socket))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except PermissionError as error:
            raise self._belongs_to_another() from error
        return True

    def _belongs_to_another(self) -> LocalServerFailed:
        return LocalServerFailed(
            f"the cluster in {self.home} belongs to another user",
            hint="Run as that user or with sudo, or name another folder with --folder.",
        )

    def _exists(self) -> bool:
        return (self.data / "PG_VERSION").exists()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other processes out of the folder, which is made; waits for them."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._lock, os.O_RDONLY | os.O_CREAT, 0o644)
        except OSError as error:
            raise LocalServerFailed(
                f"{self.folder} cannot hold a cluster: {error.strerror}",
                hint="Choose a folder of yours: --folder.",
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _account(self) -> Account:
        return server_account(self.data, self._server_user)

    def _create(self) -> None:
        if self._exists():
            return
        programs, account = self.programs, self._account()
        _make_home(self.folder / "postgres", account)
        # Renamed when whole, so that an initdb killed half-way is not taken for a cluster.
        fresh = self.home / "data.new"
        if fresh.exists():
            shutil.rmtree(fresh)
        finished = account.run(
            [
                programs.program("initdb"),
                f"--pgdata={fresh}",
                f"--username={OWNER}",
                "--auth=trust",
                "--encoding=UTF8",
                "--locale=C.UTF-8",
                *(["--data-checksums"] if self.durable else ["--no-sync"]),
            ],
            cwd=self.home,
            timeout_s=_START_TIMEOUT_S,
        )
        if finished.returncode != 0:
            raise LocalServerFailed(
                f"initdb failed in {self.home}: {finished.stdout.strip()}",
                hint="Is the disk full, or the folder on a file system without owners?",
            )
        with (fresh / "postgresql.conf").open("a") as configuration:
            configuration.write(f"\n{INCLUDE}\n")
        fresh.rename(self.data)

    def _start(self) -> None:
        account = self._account()
        if not account.can_use(self.data):
            raise LocalServerFailed(
                f'the user "{account.name}", who runs the server, cannot reach {self.data}',
                hint=f"Open the folders above it: chmod a+x, or delete {self.folder} and begin anew.",
            )
        _make_socket_directory(self.socket_directory, account)
        self._write_settings()
        deadline = time.monotonic() + _ORPHANS_TIMEOUT_S
        while True:
            self._forget_stale_locks()
            log_nbytes = self.log.stat().st_size if self.log.exists() else 0
            output = self._pg_ctl(
                "start",
                "--wait",
                f"--timeout={_START_TIMEOUT_S}",
                f"--log={self.log}",
                timeout_s=_START_TIMEOUT_S + 10,
            )
            if self.is_running():
                return
            said = self._log_since(log_nbytes)
            if "is still in use" not in said or time.monotonic() > deadline:
                raise LocalServerFailed(
                    f"the server does not start: {said or output}", hint=f"See {self.log}."
                )
            time.sleep(0.5)

    def _pg_ctl(self, *arguments: str, timeout_s: float) -> str:
        command = [self.programs.program("pg_ctl"), f"--pgdata={self.data}", *arguments]
        return self._account().run(command, cwd=self.home, timeout_s=timeout_s).stdout.strip()

    def _write_settings(self) -> None:
        text = _SETTINGS.format(
            socket_directory=self.socket_directory, port=PORT, durable="on" if self.durable else "off"
        )
        path = self.data / "tensile.conf"
        path.write_text(text)
        path.chmod(0o644)  # root may have written it; the folder above is private

    def _forget_stale_locks(self) -> None:
        """Remove the lock files of a crashed server whose process number is no server's now.

        PostgreSQL forgives a number that is nobody's, but not one that another program has since been given,
        nor a zombie's, which stays where a container has no init to bury it.  It still refuses to start
        while backends of the old server are attached to its memory.
        """
        for lock in (self.data / "postmaster.pid", self._socket.with_name(self._socket.name + ".lock")):
            try:
                pid = int(lock.read_text().split("\n", 1)[0])
                arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except (FileNotFoundError, ValueError):
                continue
            if Path(os.fsdecode(arguments[0])).name not in {"postgres", "postmaster"}:
                lock.unlink(missing_ok=True)

    def _log_since(self, offset: int) -> str:
        if not self.log.exists():
            return ""
        with self.log.open("rb") as log:
            log.seek(offset)
            return log.read().decode(errors="replace").strip()

    def _provision(self) -> None:
        """Make the roles and the database that are missing."""
        with psycopg.connect(self.dsn(dbname="postgres"), autocommit=True) as connection:
            roles = {name for (name,) in connection.execute("SELECT rolname FROM pg_catalog.pg_roles")}
            for role in (WORKER_LOGIN, DEMO_USER):
                if role not in roles:
                    connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(role)))
            databases = {name for (name,) in connection.execute("SELECT datname FROM pg_catalog.pg_database")}
            if DATABASE not in databases:
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE)))


def _make_home(home: Path, account: Account) -> None:
    """Make the server user's folder, or a link to one outside where the user cannot reach it."""
    if home.exists():
        return
    if home.is_symlink():  # to a folder that is gone
        home.unlink()
    if not _UNSAFE_FOR_SHELL.search(str(home)):
        try:
            account.own(home)
        except PermissionError:  # a file system without owners
            reachable = False
        else:
            reachable = account.can_use(home)
        if reachable:
            return
        home.rmdir()
    if account.is_self:
        raise LocalServerFailed(
            f"{home} cannot hold a cluster", hint="Choose a folder of yours with a plain name: --folder."
        )
    _FALLBACK.mkdir(mode=0o755, parents=True, exist_ok=True)
    elsewhere = _FALLBACK / _digest(home)
    account.own(elsewhere)
    home.symlink_to(elsewhere)


def _make_socket_directory(directory: Path, account: Account) -> None:
    """Make a private folder; one that is another person's, under a shared folder, is refused."""
    try:
        entry = directory.lstat()
    except FileNotFoundError:
        account.own(directory)
        return
    if not stat.S_ISDIR(entry.st_mode) or entry.st_uid != account.uid:
        raise LocalServerFailed(
            f"{directory}, where the server's socket belongs, is not a folder of {account.name}'s",
            hint="Remove it, or name a folder with a shorter path: --folder.",
        )
    directory.chmod(0o700)


def _digest(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
