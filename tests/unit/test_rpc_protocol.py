"""Addresses of RPC servers, and answers to the query of their devices, right and wrong."""

from __future__ import annotations

import socket
import struct
from unittest.mock import Mock

import pytest
from fixtures.rpc import HOST, about_devices, answering, hello, message
from llama_eagle.errors import EnvironmentFailure, UsageError
from llama_eagle.native import rpc
from llama_eagle.native.rpc import RemoteDevice
from llama_eagle.serving.llama_server.process import _announce

pytestmark = pytest.mark.native


@pytest.mark.parametrize(
    "given", ["host", "host:0", "host:99999", ":50052", "::1:50052", "a:1,a:1", "a:²", "a:" + "1" * 5000]
)
def test_no_servers(given: str) -> None:
    with pytest.raises(UsageError, match="rpc_servers"):
        rpc.read_servers(given)


def test_devices_of_several_servers() -> None:
    one, two = answering(*about_devices((1, 2), (3 << 40, 4 << 40))), answering(*about_devices((5, 6)))
    assert rpc.query(one, two) == [
        RemoteDevice(one, 0, 1, 2),
        RemoteDevice(one, 1, 3 << 40, 4 << 40),
        RemoteDevice(two, 0, 5, 6),
    ]


def test_the_command_names_its_devices_when_it_listens(capsys: pytest.CaptureFixture[str]) -> None:
    endpoint = answering(*about_devices((3 << 30, 5 << 30), (1 << 20, 1 << 30)))
    assert _announce(Mock(poll=lambda: None), endpoint, lambda: False) == ""
    assert capsys.readouterr().out == f"listening on {endpoint}, 3072 of 5120 MiB free; 1 of 1024 MiB free\n"
    assert _announce(Mock(poll=lambda: None), endpoint, lambda: True) == "" == capsys.readouterr().out


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ([hello(6)], "it uses protocol 6.0, this build uses 7.0"),
        ([hello(7, 9)], "it uses protocol 7.9"),
        ([message(bytes((7, 0)))], "it uses protocol 7.0"),
        ([], "its answer does not follow RPC protocol"),
        ([message(b"")], "its answer does not follow RPC protocol"),
        ([b"HTTP/1.1 400 Bad Request\r\n\r\n"], "its answer does not follow RPC protocol"),
        ([hello(7), message(struct.pack("<Q", 1))], "its answer does not follow RPC protocol"),
        ([*about_devices((1, 2))[:2], message(bytes(8))], "its answer does not follow RPC protocol"),
        ([*about_devices((1, 2), (3, 4))[:3]], "its answer does not follow RPC protocol"),
    ],
)
def test_wrong_servers(answers: list[bytes], why: str) -> None:
    endpoint = answering(*answers)
    with pytest.raises(EnvironmentFailure, match=f"^RPC server {endpoint}: {why}"):
        rpc.query(endpoint)


@pytest.mark.parametrize("host", ["..", "a" * 64, "a..b"])
def test_no_host_name(host: str) -> None:
    with pytest.raises(EnvironmentFailure, match="cannot be reached"):
        rpc.query(f"{host}:50052")


def test_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc, "TIMEOUT_S", 0.2)
    listener = socket.create_server((HOST, 0))  # takes connections, says nothing: a server that has a client
    with pytest.raises(EnvironmentFailure, match="It serves another client"):
        rpc.query(f"{HOST}:{listener.getsockname()[1]}")
    listener.close()
