"""Placement of a model's layers on this machine's GPUs and on RPC servers."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from llama_eagle.errors import EnvironmentFailure, UsageError
from llama_eagle.gguf.header import Header, Source, read_model
from llama_eagle.gguf.size import available_bytes
from llama_eagle.native import calls, rpc
from llama_eagle.native.calls import library
from llama_eagle.sessions.options import LoadOptions, for_draft

GPUS = (1, 2)  # ggml_backend_dev_type: discrete, integrated
DEVICES = (0, *GPUS)  # and the CPU
MIB = 1 << 20


def require_servers(options: LoadOptions, target: Source, draft: Header | None = None) -> None:
    """Check the RPC servers before loading.

    Raises `EnvironmentFailure` if one cannot be used or memory is short, `UsageError` for too many shares.
    """
    if not options.rpc_servers:
        return
    remote, gpus = rpc.query(*options.rpc_servers), devices_of_kind(GPUS)
    if len(options.tensor_split) > len(remote) + len(gpus):
        n_shares, n_devices = len(options.tensor_split), len(remote) + len(gpus)
        raise UsageError(f"tensor_split has {n_shares} shares for {n_devices} devices. Remove some.")
    files = read_model(target)[1] + ([draft] if draft else [])
    needed = sum(file.file_size for file in {file.path: file for file in files}.values())
    local = available_bytes()
    if local is None:
        return
    free = [(device.server, device.free) for device in remote]
    free += [(str(gpu["name"]), gpu["free_mib"] * MIB) for gpu in gpus] + [("this machine", local)]
    if needed > sum(n_bytes for _, n_bytes in free):
        found = ", ".join(f"{where} {n_bytes / 2**30:.1f}" for where, n_bytes in free)
        raise EnvironmentFailure(
            f"the model takes {needed / 2**30:.1f} GiB, more than all machines have free (GiB: {found}). "
            "Add rpc_servers, or use a smaller type."
        )


def set_devices(params: Any, options: LoadOptions) -> None:
    """Set devices and split ratio in a `llama_model_params`, which also keeps the arrays alive."""
    from llama_eagle.native import llama_cpp

    if options.tensor_split:
        n = int(llama_cpp.llama_max_devices())
        if len(options.tensor_split) > n:
            raise UsageError(f"tensor_split has {len(options.tensor_split)} shares, the maximum is {n}. Remove some.")
        params.kept_shares = (ctypes.c_float * n)(*options.tensor_split)
        params.tensor_split = params.kept_shares
    devices = list(options.devices) or _devices_for(options)
    if devices:
        params.kept_devices = (ctypes.c_void_p * (len(devices) + 1))(*devices, None)
        params.devices = ctypes.addressof(params.kept_devices)


def draft_options(target: Any, load: LoadOptions, n_gpu_layers: int | None) -> LoadOptions:
    """Return `for_draft`. If the target uses RPC servers, the draft is placed on the device of its output layer."""
    if load.rpc_servers:
        load = replace(load, rpc_servers=(), tensor_split=(), main_gpu=0, devices=_head_devices(target))
    return for_draft(load, n_gpu_layers)


def _devices_for(options: LoadOptions) -> list[int]:
    """Return RPC devices, then local GPUs, so that the last layers and the head are local. []: llama.cpp's default."""
    if not options.rpc_servers:
        return []
    return [*rpc.handles(options.rpc_servers), *_local_handles(GPUS)]


def _head_devices(model: Any) -> tuple[int, ...]:
    """Return the device of the output layer; () if that is the CPU."""
    from llama_eagle.native import llama_cpp

    found = library().eagle_layer_device(model, llama_cpp.llama_model_n_layer(model))
    return () if not found or _functions().ggml_backend_dev_type(found) == 0 else (found,)


def last_device(load: LoadOptions) -> str:
    """Return the name of the last device with a share.

    llama-server places the output layer there if servers are used.
    """
    n_remote = len(rpc.query(*load.rpc_servers))
    names = [f"RPC{i}" for i in range(n_remote)] + [str(gpu["name"]) for gpu in devices_of_kind(GPUS)]
    shares = list(load.tensor_split) or [1.0] * len(names)
    return [name for name, share in zip(names, shares, strict=False) if share > 0][-1]


def placement(model: Any) -> list[dict[str, Any]]:
    """Return the placement in layer order: `device`, `server` if remote, `layers` [first, last], and `head`."""
    from llama_eagle.native import llama_cpp

    n_layers = llama_cpp.llama_model_n_layer(model)
    handles = [library().eagle_layer_device(model, layer) for layer in range(n_layers + 1)]
    found = []
    for handle, group in groupby(range(n_layers + 1), key=lambda layer: handles[layer]):
        layers = list(group)
        inner = [layer for layer in layers if layer < n_layers]
        found.append(
            {**_names(handle), "layers": [inner[0], inner[-1]] if inner else [], "head": layers[-1] == n_layers}
        )
    return found


def summary(parts: Sequence[dict[str, Any]]) -> str:
    """Describe a placement in one sentence for people."""
    return "; ".join(f"{_layers(part)} on {part['device']}{_server(part)}" for part in parts)


def _layers(part: dict[str, Any]) -> str:
    words = ["layers {}-{}".format(*part["layers"])] if part["layers"] else []
    return " and ".join([*words, "the head"] if part["head"] else words)


def _server(part: dict[str, Any]) -> str:
    return f" ({part['server']})" if part["server"] else ""


def _names(handle: int) -> dict[str, Any]:
    ggml = _functions()
    name = ggml.ggml_backend_dev_name(handle).decode()
    server = ggml.ggml_backend_dev_description(handle).decode() if name.startswith("RPC") else None
    return {"device": name, "server": server}


def devices_of_kind(kinds: Sequence[int]) -> list[dict[str, Any]]:
    """Return `name`, `backend`, `description`, `free_mib` and `total_mib` of this machine's devices."""
    return [_described(handle) for handle in _local_handles(kinds)]


def _local_handles(kinds: Sequence[int]) -> list[int]:
    ggml = _functions()
    handles = [ggml.ggml_backend_dev_get(i) for i in range(ggml.ggml_backend_dev_count())]
    return [handle for handle in handles if ggml.ggml_backend_dev_type(handle) in kinds]


def _described(handle: int) -> dict[str, Any]:
    ggml = _functions()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    ggml.ggml_backend_dev_memory(handle, ctypes.byref(free), ctypes.byref(total))
    return {
        "name": ggml.ggml_backend_dev_name(handle).decode(),
        "backend": ggml.ggml_backend_reg_name(ggml.ggml_backend_dev_backend_reg(handle)).decode(),
        "description": ggml.ggml_backend_dev_description(handle).decode(),
        "free_mib": free.value >> 20,
        "total_mib": total.value >> 20,
    }


def _functions() -> Any:
    ggml = calls.ggml()
    size, device = ctypes.c_size_t, ctypes.c_void_p
    types: dict[str, tuple[list[Any], Any]] = {
        "ggml_backend_dev_count": ([], size),
        "ggml_backend_dev_get": ([size], device),
        "ggml_backend_dev_type": ([device], ctypes.c_int),
        "ggml_backend_dev_name": ([device], ctypes.c_char_p),
        "ggml_backend_dev_description": ([device], ctypes.c_char_p),
        "ggml_backend_dev_backend_reg": ([device], device),
        "ggml_backend_reg_name": ([device], ctypes.c_char_p),
        "ggml_backend_dev_memory": ([device, ctypes.POINTER(size), ctypes.POINTER(size)], None),
    }
    for name, (arguments, result) in types.items():
        function = getattr(ggml, name)
        function.argtypes, function.restype = arguments, result
    return ggml
