"""Clients' shared memory: registering, its status, and requests that refer to it.

The servers of this setup have a file in /dev/shm, `SHARED_KEY`, of a page: four floats, and zeros. Each case leaves
no region behind.
"""

from __future__ import annotations

import json
from typing import Any

from ..messages import infer as grpc_infer
from ..messages import output, tensor, unary
from ..request import Case, Exchange, Step, case, get, infer, post
from ..shared_file import SHARED_KEY

_PATH = "/v2/systemsharedmemory"
_CUDA = "/v2/cudasharedmemory"
_CLEAN = post(f"{_PATH}/unregister", "")


def _case(name: str, *steps: Step) -> Case:
    return case(f"shared_memory/{name}", *steps, _CLEAN, server="shared_memory")


def _register(name: str = "r", body: str | None = None, **fields: Any) -> Exchange:
    given = {"key": SHARED_KEY, "byte_size": 4096, **fields}
    said = {key: value for key, value in given.items() if value is not None}
    return post(f"{_PATH}/region/{name}/register", json.dumps(said) if body is None else body)


def _piece(nbytes: Any = 16, offset: Any = None, region: Any = "r") -> dict[str, Any]:
    piece = {"shared_memory_region": region, "shared_memory_byte_size": nbytes, "shared_memory_offset": offset}
    return {key: value for key, value in piece.items() if value is not None}


def _infer(given: dict[str, Any], wanted: dict[str, Any] | None = None) -> Exchange:
    body: dict[str, Any] = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [4], "parameters": given}]}
    if wanted is not None:
        body["outputs"] = [{"name": "OUT", "parameters": wanted}]
    return infer("echo_fp32", body)


def _refused(name: str, given: dict[str, Any], wanted: dict[str, Any] | None = None) -> Case:
    return _case(name, _register(), _infer(given, wanted))


def _rpc(given: dict[str, Any], wanted: dict[str, Any] | None = None) -> Step:
    outputs = [] if wanted is None else [output("OUT", **wanted)]
    return grpc_infer("echo_fp32", tensor("IN", "FP32", [4], None, **given), outputs=outputs)


_REGISTER_RPC = unary("SystemSharedMemoryRegister", {"name": "r", "key": SHARED_KEY, "byte_size": "4096"})

CASES: tuple[Case, ...] = (
    _case("status", get(f"{_PATH}/status"), _register(), get(f"{_PATH}/status"), get(f"{_PATH}/region/r/status")),
    _case("status_unknown", get(f"{_PATH}/region/x/status")),
    _case("status_post", post(f"{_PATH}/status", "")),
    _case("register_get", get(f"{_PATH}/region/r/register")),
    _case("no_route", get(_PATH)),
    _case("register_twice", _register(), _register()),
    _case("register_no_key", _register(key=None)),
    _case("register_no_size", _register(byte_size=None)),
    _case("register_key_number", _register(key=5)),
    _case("register_size_text", _register(byte_size="5")),
    _case("register_size_negative", _register(byte_size=-5)),
    _case("register_offset_text", _register(offset="x")),
    _case("register_empty", _register(body="")),
    _case("register_array", _register(body="[]")),
    _case("register_no_json", _register(body="{")),
    _case("register_unknown_key", _register(key="/no_such_region_anywhere")),
    _case("register_folder", _register(key="/.")),
    _case("register_path", _register(key="/../etc/hostname")),
    _case("register_inner_slash", _register(key="/a/b")),
    _case("register_no_slash", _register(key=SHARED_KEY[1:]), get(f"{_PATH}/status")),
    _case("register_too_large", _register(byte_size=4097)),
    _case("register_behind", _register(offset=1)),
    _case("register_nothing", _register(byte_size=0)),
    _case("register_nameless", post(f"{_PATH}/register", "{}")),
    _case("register_empty_key", _register(key="///")),
    _case("register_reserved", _register(key="/triton_python_backend_shm_region_x")),
    _case("register_odd_offset", _register(offset=4, byte_size=64), get(f"{_PATH}/status")),
    _case("unregister_unknown", post(f"{_PATH}/region/x/unregister", "")),
    _case("unregister", _register(), post(f"{_PATH}/region/r/unregister", ""), get(f"{_PATH}/status")),
    _case("infer", _register(), _infer(_piece()), _infer(_piece(), _piece(offset=64)), _infer(_piece(offset=64))),
    _case("infer_output_larger", _register(), _infer(_piece(), _piece(1024, 128))),
    _refused("infer_output_too_small", _piece(), _piece(8, 64)),
    _refused("infer_output_no_size", _piece(), _piece(None)),
    _refused("infer_output_behind", _piece(), _piece(16, 4090)),
    _refused("infer_output_unknown", _piece(), _piece(region="x")),
    _refused("infer_output_binary", _piece(), {**_piece(), "binary_data": True}),
    _refused("infer_output_not_binary", _piece(), {**_piece(16, 64), "binary_data": False}),
    _refused("infer_output_classes", _piece(), {**_piece(), "classification": 1}),
    _refused("infer_unknown", _piece(region="x")),
    _refused("infer_no_size", _piece(None)),
    _refused("infer_size_text", _piece("16")),
    _refused("infer_size_negative", _piece(-1)),
    _refused("infer_region_number", _piece(region=5)),
    _refused("infer_offset_behind", _piece(16, 4096)),
    _refused("infer_offset_last", _piece(16, 4095)),
    _refused("infer_wrong_size", _piece(12)),
    _refused("infer_no_region", {"shared_memory_byte_size": 16}),
    _case("rpc_infer", _REGISTER_RPC, _rpc(_piece()), _rpc(_piece(), _piece(16, 64)), _rpc(_piece(16, 64))),
    _case("rpc_status", _REGISTER_RPC, unary("SystemSharedMemoryStatus"),
          unary("SystemSharedMemoryStatus", {"name": "r"})),
    _case("rpc_unregister", _REGISTER_RPC, unary("SystemSharedMemoryUnregister", {"name": "r"})),
    _case("rpc_output_too_small", _REGISTER_RPC, _rpc(_piece(), _piece(8, 64))),
    _case("rpc_no_size", _REGISTER_RPC, _rpc(_piece(None))),
    _case("rpc_no_region", _REGISTER_RPC, _rpc({"shared_memory_offset": 1})),
    _case("rpc_unknown", _rpc(_piece())),
    _case("rpc_offset_text", _REGISTER_RPC, _rpc(_piece(16, "x"))),
    _case("rpc_classes", _REGISTER_RPC, _rpc(_piece(), {**_piece(), "classification": 1})),
    _case("cuda_status", get(f"{_CUDA}/status"), get(f"{_CUDA}/region/x/status")),
    _case("cuda_status_of_system", _register(), get(f"{_CUDA}/region/r/status")),
    _case("cuda_register_nameless", post(f"{_CUDA}/register", "{}")),
    _case("cuda_register", post(f"{_CUDA}/region/c/register", json.dumps({
        "raw_handle": {"b64": "A" * 86 + "=="}, "device_id": 0, "byte_size": 4,
    }))),
    _case("cuda_unregister", post(f"{_CUDA}/region/c/unregister", ""), post(f"{_CUDA}/unregister", "")),
)  # fmt: skip
