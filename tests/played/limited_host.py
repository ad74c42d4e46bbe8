"""A host's memory with a limit, for a pool of buffers."""

from tensile_db.errors import HostOutOfMemory
from tensile_db.worker.devices.host_memory import HostPool, new_storage


class LimitedHost:
    """A host with so much memory; what is kept for later counts."""

    def __init__(self, limit_nbytes):
        self.used_nbytes = self.most_nbytes = 0
        self.limit_nbytes = limit_nbytes

    def pool(self):
        """Return a pool of this host's buffers."""
        return HostPool(self.make, self.discard)

    def make(self, nbytes):
        if self.used_nbytes + nbytes > self.limit_nbytes:
            raise HostOutOfMemory(
                wanted_nbytes=nbytes, used_nbytes=self.used_nbytes, limit_nbytes=self.limit_nbytes
            )
        self.used_nbytes += nbytes
        self.most_nbytes = max(self.most_nbytes, self.used_nbytes)
        return new_storage(nbytes)

    def discard(self, buffer):
        self.used_nbytes -= buffer.nbytes()
