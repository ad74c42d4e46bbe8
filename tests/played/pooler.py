"""A connection pooler as a worker meets it: it knows no startup option, and refuses or drops it."""

import socket
import struct
import threading
from contextlib import contextmanager, suppress
from pathlib import Path

_SSL_REQUEST, _GSS_REQUEST = 80877103, 80877104


@contextmanager
def pooler(server_socket: Path, folder: Path, *, drops: bool):
    """Give a folder, as libpq's host, where a pooler stands before a server's socket; drops: or refuses."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / server_socket.name))
        listening.listen()
        threading.Thread(target=_accept, args=(listening, server_socket, drops), daemon=True).start()
        yield folder
        with suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)


def _accept(listening, server_socket, drops):
    with suppress(OSError):
        while True:
            client, _ = listening.accept()
            threading.Thread(target=_serve, args=(client, server_socket, drops), daemon=True).start()


def _serve(client, server_socket, drops):
    with client, socket.socket(socket.AF_UNIX) as server, suppress(OSError, struct.error):
        version, parameters = _startup(client)
        if b"options" in parameters and not drops:
            fields = (b"SFATAL", b"VFATAL", b"C08P01", b"Munsupported startup parameter: options")
            body = b"\0".join(fields) + b"\0\0"
            client.sendall(b"E" + struct.pack("!i", 4 + len(body)) + body)
            return
        parameters.pop(b"options", None)
        body = b"".join(name + b"\0" + value + b"\0" for name, value in parameters.items()) + b"\0"
        server.connect(str(server_socket))
        server.sendall(struct.pack("!ii", 8 + len(body), version) + body)
        threading.Thread(target=_pump, args=(server, client), daemon=True).start()
        _pump(client, server)


def _startup(client):
    """Return the protocol version and the parameters, once the client has asked for encryption in vain."""
    while True:
        nbytes, code = struct.unpack("!ii", client.recv(8, socket.MSG_WAITALL))
        if code in (_SSL_REQUEST, _GSS_REQUEST):
            client.sendall(b"N")
            continue
        values = client.recv(nbytes - 8, socket.MSG_WAITALL).rstrip(b"\0").split(b"\0")
        return code, dict(zip(values[::2], values[1::2], strict=False))


def _pump(source, target):
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_RDWR)
