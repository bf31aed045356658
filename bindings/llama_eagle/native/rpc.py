"""RPC servers: queried over a separate connection first, then registered as devices of ggml.

The protocol is that of ggml-rpc.cpp: a command byte, the length of the request (u64), the request; the response has the
same form without a command. A server serves one client at a time.
"""

from __future__ import annotations

import ctypes
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from llama_eagle.errors import EnvironmentFailure, UsageError
from llama_eagle.native import build, calls, log
from llama_eagle.native.calls import backend_function
from llama_eagle.native.limits import read_number

GET_DEVICE_MEMORY, HELLO, DEVICE_COUNT = 11, 14, 15
CAPABILITIES = bytes(24)  # TCP only
TIMEOUT_S = 5.0
LOST = "the RPC server "  # beginning of the message of native/src/ggml-rpc/eagle_rpc_link.cpp
MAX_SERVERS = 16  # GGML_RPC_MAX_SERVERS


@dataclass(frozen=True)
class RemoteDevice:
    """A device of a server. Sizes are in bytes, as the server reports them."""

    server: str
    index: int
    free: int
    total: int


def read_servers(text: str | Sequence[str] | None) -> tuple[str, ...]:
    """Parse HOST:PORT,... or a list of them. Raises `UsageError` for wrong or repeated entries."""
    parts = text.split(",") if isinstance(text, str) else list(text or ())
    servers = tuple(part.strip() for part in parts)
    for server in servers:
        _address(server)
    if len(set(servers)) != len(servers) or len(servers) > MAX_SERVERS:
        raise UsageError(f"rpc_servers names a server twice, or more than {MAX_SERVERS}. Correct it.")
    return servers


def query(*servers: str) -> list[RemoteDevice]:
    """Return the devices of servers. Raises `EnvironmentFailure` if one cannot be reached or used.

    All connections are open at once: a server that is named twice would let llama.cpp wait forever.
    """
    if not servers:
        return []
    protocol = build.build_info().rpc_protocol
    if not protocol:
        raise EnvironmentFailure("this build has no RPC (GGML_RPC=OFF). Build it with GGML_RPC=ON.")
    with ExitStack() as stack:
        connections = ((server, stack.enter_context(_connected(server))) for server in servers)
        return [device for server, connection in connections for device in _devices(server, connection, protocol)]


def _devices(server: str, connection: socket.socket, protocol: str) -> list[RemoteDevice]:
    hello = _request(connection, HELLO, CAPABILITIES)
    if len(hello) < 2:
        raise EOFError
    found = f"{hello[0]}.{hello[1]}"
    if len(hello) != 4 + len(CAPABILITIES) or not _is_compatible(found, protocol):
        raise EnvironmentFailure(
            f"RPC server {server}: it uses protocol {found}, this build uses {protocol}. Use the same version of "
            "llama-eagle, or the llama.cpp that it is based on, on all machines."
        )
    (count,) = struct.unpack("<I", _request(connection, DEVICE_COUNT, b""))
    memory = [_request(connection, GET_DEVICE_MEMORY, struct.pack("<I", i)) for i in range(count)]
    return [RemoteDevice(server, i, *struct.unpack("<QQ", answer)) for i, answer in enumerate(memory)]


def require_servers_alive() -> None:
    """Raise `EnvironmentFailure` if llama.cpp has lost a server since `log.clear()`."""
    if reason := log.error_beginning(LOST):
        raise EnvironmentFailure(f"{reason}. Start it again, with the same version of llama-eagle on all machines.")


def _is_compatible(found: str, protocol: str) -> bool:
    """Apply ggml's rule: the same major version, and no newer minor version."""
    (major, minor), (our_major, our_minor) = (map(int, version.split(".")) for version in (found, protocol))
    return major == our_major and minor <= our_minor


def _address(server: str) -> tuple[str, int]:
    host, _, port = server.rpartition(":")
    number = read_number(port) or 0
    if not host or ":" in host or not 0 < number < 65536:
        raise UsageError(f"rpc_servers: {server!r} is not HOST:PORT. Give an IPv4 address or a name, and a port.")
    return host, number


@contextmanager
def _connected(server: str) -> Iterator[socket.socket]:
    """Connect to a server, and translate connection errors into `EnvironmentFailure` with a remedy."""
    try:
        connection = socket.create_connection(_address(server), TIMEOUT_S)
    except (OSError, UnicodeError) as error:  # the second: no valid host name
        reason = getattr(error, "strerror", None) or error
        raise EnvironmentFailure(
            f"RPC server {server}: it cannot be reached ({reason}). Start llama-eagle rpc-server "
            "there with --host and --port, or correct the address."
        ) from None
    try:
        with connection:
            yield connection
    except TimeoutError:
        raise EnvironmentFailure(
            f"RPC server {server}: no answer in {TIMEOUT_S:.0f} s. It serves another client, has two of the given "
            "names, or is not an RPC server."
        ) from None
    except (OSError, EOFError, struct.error):
        raise EnvironmentFailure(
            f"RPC server {server}: its answer does not follow RPC protocol {build.build_info().rpc_protocol}. "
            "Use the same version of llama-eagle, or the llama.cpp that it is based on, on all machines."
        ) from None


def _request(connection: socket.socket, command: int, data: bytes) -> bytes:
    connection.sendall(struct.pack("<BQ", command, len(data)) + data)
    (size,) = struct.unpack("<Q", _read(connection, 8))
    if size > 1024:
        raise EOFError
    return _read(connection, size)


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def handles(servers: Sequence[str]) -> list[int]:
    """Return ggml's devices of these servers, in order. llama.cpp does not use them by default."""
    ggml = calls.ggml()
    count, get = ggml.ggml_backend_reg_dev_count, ggml.ggml_backend_reg_dev_get
    count.argtypes, count.restype = [ctypes.c_void_p], ctypes.c_size_t
    get.argtypes, get.restype = [ctypes.c_void_p, ctypes.c_size_t], ctypes.c_void_p
    add = backend_function("RPC", "ggml_backend_rpc_add_server", ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p))
    found = []
    for server in servers:
        registry = add(server.encode())
        if not registry:
            raise EnvironmentFailure(f"RPC server {server}: it has stopped, or has no device. Start it again.")
        found += [get(registry, i) for i in range(count(registry))]
    return found
