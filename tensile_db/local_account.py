"""The operating-system user that runs the private server, and the folders it can reach.

PostgreSQL refuses to run as root.  For root the server runs as the distribution's own user `postgres`;
for anybody else as themselves.
"""

import os
import pwd
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tensile_db.errors import LocalServerFailed, NotInstalled

#: Made by the packages of Debian, Ubuntu, Fedora and Alpine alike.
SERVER_USER = "postgres"


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """An operating-system user."""

    name: str
    uid: int
    gid: int
    home: str

    @property
    def is_self(self) -> bool:
        """Whether this process already runs as this user."""
        return self.uid == os.geteuid()

    def run(
        self, command: Sequence[str], *, cwd: Path, timeout_s: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """Run a program as this user and return what it printed, both streams in one.

        cwd: must be reachable by the user.
        """
        return subprocess.run(
            command,
            cwd=cwd,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
            start_new_session=True,
            # Only root may switch; None leaves the process as it is.
            user=None if self.is_self else self.uid,
            group=None if self.is_self else self.gid,
            extra_groups=None if self.is_self else os.getgrouplist(self.name, self.gid),
        )

    def can_use(self, folder: Path) -> bool:
        """Whether the user can enter this folder and write in it."""
        if self.is_self:
            return os.access(folder, os.W_OK | os.X_OK)
        test = ["/bin/sh", "-c", 'test -w "$1" && test -x "$1"', "sh", str(folder)]
        return self.run(test, cwd=Path("/")).returncode == 0

    def own(self, folder: Path) -> None:
        """Make a private folder of this user, or make an existing one private."""
        folder.mkdir(exist_ok=True, mode=0o700)
        if not self.is_self:
            os.chown(folder, self.uid, self.gid)
        folder.chmod(0o700)

    def _environment(self) -> dict[str, str]:
        """Return a clean environment.

        PG* variables would point the programs elsewhere, and PYTHON* variables or a virtual environment
        would reach plpython3u, whose interpreter is the server's own.
        """
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "TZ") if name in os.environ}
        return {**kept, "HOME": self.home, "USER": self.name, "LOGNAME": self.name}


def server_account(data: Path, user: str = SERVER_USER) -> Account:
    """Return the user to run the server of this data folder.

    An existing folder keeps its owner; user: of a new one, where root asks.  Raises NotInstalled where there
    is no such user, LocalServerFailed where the folder is another person's.
    """
    uid = os.geteuid()
    try:
        owner = data.stat().st_uid
    except PermissionError as error:
        raise _belongs_to_another(data) from error
    except FileNotFoundError:
        owner = uid
    if uid != 0:
        if owner != uid:
            raise _belongs_to_another(data)
        return account_of(uid)
    return account_of(owner) if owner != 0 else _unprivileged(user)


def account_of(uid: int) -> Account:
    """Return the user of this number; a container's user may have no entry in the user database."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return Account(name=str(uid), uid=uid, gid=os.getegid(), home="/")
    return Account(name=entry.pw_name, uid=uid, gid=entry.pw_gid, home=entry.pw_dir)


def _unprivileged(user: str) -> Account:
    try:
        return account_of(pwd.getpwnam(user).pw_uid)
    except KeyError as error:
        raise NotInstalled(
            f'PostgreSQL does not run as root, and there is no user "{user}" to run it',
            hint=f"Install the distribution's postgresql package, or: useradd --system {user}.",
        ) from error


def _belongs_to_another(data: Path) -> LocalServerFailed:
    return LocalServerFailed(
        f"the cluster in {data} belongs to another user",
        hint="Run as that user or with sudo, or name another folder with --folder.",
    )
