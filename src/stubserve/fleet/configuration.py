"""The configuration of HAProxy in a front, as text. `balancer` says what it does."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from stubserve.fleet.directory import Fleet
from stubserve.fleet.replica_client import GRPC_SERVICE

LEAVES = " weight 0"
# How many sequences of a group may be under way; a place takes some 150 bytes
_PLACES = 1 << 20
# How many requests for all replicas are under way at a time
_MOST_FOR_EVERYONE = 256
# Seconds for which a sequence keeps its server at least and at most, if no request of it comes
_IDLE_S = 600, 7 * 86400
_FULL = "more sequences are under way than a front has places for"
_JSON = "content-type application/json string"
_LUA = Path(__file__).with_name("sequence.lua")
_CHECK = "check inter 500ms fall 3 rise 1 on-marked-down shutdown-sessions"

_TOP = """\
global
    # Long streams go on for that long in a process that was replaced.
    hard-stop-after 1h
    # Half of the cores: HAProxy would take all, also those that this node's servers need.
    nbthread {threads}
    lua-load-per-thread {lua}
    stats socket {folder}/admin.sock level admin expose-fd listeners

defaults
    mode http
    option redispatch 1
    retries 3
    retry-on conn-failure
    timeout connect 2s
    timeout http-request 1m
    timeout client 1h
    timeout server 1h
    # Whether it can be reached; the directory knows whether it is ready. What waits for one that is lost ends.
    option httpchk GET /v2/health/live
    http-check expect status 200
    timeout check 2s
    http-error status 502 {json} '{{"error":"the replica of this request has died"}}'
    http-error status 503 {json} '{{"error":"no replica of this model is ready"}}' hdr Retry-After 1
    http-error status 504 {json} '{{"error":"the replica of this request is silent"}}'
"""

_FRONTENDS = """
frontend http
    bind {address}:{http}
    http-request return status 200 if {{ path /v2/health/live }}
    http-request return status 200 if {{ path /v2/health/ready }} {all_ready}
    http-request return status 503 hdr Retry-After 1 if {{ path /v2/health/ready }}
    # A server decodes a path once, and then takes it as it is.
    http-request set-var(txn.path) path,url_dec
    http-request return status 400 {json} '{{"error":"the path is malformed"}}' unless {{ var(txn.path) -m found }}
    http-request return status 400 {json} '{{"error":"ask a server itself"}}' if {{ var(txn.path) -m str /v2/drain }}
    http-request set-var(txn.model) var(txn.path),field(4,/),url_enc
{sequences_http}    use_backend fan_out_http if {{ var(txn.path) -m beg /v2/repository/ /v2/logging /v2/trace/ }}
    use_backend fan_out_http if {{ var(txn.path) -m beg /v2/systemsharedmemory /v2/cudasharedmemory }}
    use_backend fan_out_http if {{ var(txn.path) -m end /stats /trace/setting }}
{by_model_http}    default_backend http_{first}

frontend grpc
    bind {address}:{grpc} proto h2
{model_grpc}{sequences_grpc}    use_backend fan_out_grpc if {{ path_beg {service}Repository }}
    use_backend fan_out_grpc if {{ path_beg {service}SystemShared {service}CudaShared }}
    use_backend fan_out_grpc if {{ path {service}ModelStatistics {service}TraceSetting {service}LogSettings }}
{by_model_grpc}    default_backend grpc_{first}

frontend metrics
    bind {address}:{metrics}
    http-request deny deny_status 404 unless {{ path /metrics }}
    default_backend fan_out_http

backend fan_out_http
    timeout queue 10s
    server fan_out 127.0.0.1:{fan_out_http} maxconn {most}

backend fan_out_grpc
    timeout queue 10s
    server fan_out 127.0.0.1:{fan_out_grpc} proto h2 maxconn {most}
"""

_BY_MODEL = "    use_backend {kind}_%[{group}] if {{ {group} -m found }}\n"

_INFERS_HTTP = """\
    acl infers method POST
    acl infers_by_header var(txn.path) -m end /infer /generate /generate_stream
    acl infers_by_body var(txn.path) -m end /infer
"""

_INFERS_GRPC = """\
    acl infers method POST
    acl infers_by_header path {service}ModelInfer {service}ModelStreamInfer
    acl infers_by_body path {service}ModelInfer
"""

# A hash is enough: sequences with the same one share a server.
_SEQUENCES = """\
    acl has_id var(txn.id) -m len gt 0
    http-request set-var(txn.id) req.fhdr(x-sequence-id) if infers infers_by_header
    http-request wait-for-body time 2s if infers infers_by_body !has_id
    http-request set-var(txn.id) lua.sequence_of_{form} if infers infers_by_body !has_id
    http-request set-var(txn.sequence) var(txn.id),xxh64 if has_id
"""

_MODEL_GRPC = """\
    acl has_model var(txn.name) -m len gt 0
    http-request set-var(txn.name) req.hdr(x-model-name)
    http-request wait-for-body time 1s at-least 6 if !has_model
    http-request set-var(txn.name) req.body,ungrpc(1) if !has_model
    http-request set-var(txn.model) var(txn.name),url_enc if has_model
"""

_BACKEND = """
backend {backend}
    balance leastconn
"""

# A place is for a sequence that a server has answered; with `nopurge` none loses it to others. Until its first answer a
# sequence has one in a table that anybody may fill.
_TABLES = """
backend sequences_{group}
    stick-table type binary len 8 size {places} expire {idle}s nopurge peers fronts

backend begun_{group}
    stick-table type binary len 8 size 100k expire 1m peers fronts
"""

_STICK = """\
    acl of_sequence var(txn.sequence) -m found
    acl has_place var(txn.sequence),in_table(sequences_{group})
    acl has_place table_avl(sequences_{group}) gt 0
    http-request return status 503 {json} '{{"error":"{full}"}}' hdr Retry-After 1 if of_sequence !has_place
    stick match var(txn.sequence) table sequences_{group} if of_sequence
    stick on var(txn.sequence) table begun_{group} if of_sequence
    stick store-response var(txn.sequence) table sequences_{group} if of_sequence {{ status 200 500 }} {answered}
"""
# Of gRPC's: what has no answer but an error has its status in the head. 13 is that of a model's error.
_ANSWERED = {"http": "", "grpc": "!{ res.hdr(grpc-status) -m found } || of_sequence { res.hdr(grpc-status) 13 }"}


@dataclass(frozen=True)
class Addresses:
    """Where a front listens, for clients and (on loopback) for HAProxy."""

    address: str
    http: int
    grpc: int
    metrics: int
    fan_out_http: int
    fan_out_grpc: int


def configuration(folder: Path, addresses: Addresses, fleet: Fleet, sequence_groups: dict[str, int]) -> str:
    """The text of haproxy.cfg. `sequence_groups` are those with models that have sequences."""
    # Any group says of a model that nobody has that it is unknown.
    first = fleet.group_of("") or next(iter(fleet.groups))
    threads = max(1, len(os.sched_getaffinity(0)) // 2)
    names = {"folder": folder, "first": word_of(first), "service": GRPC_SERVICE, "threads": threads}
    names |= {"json": _JSON, "most": _MOST_FOR_EVERYONE, "lua": _LUA}
    infers = {"http": _INFERS_HTTP, "grpc": _INFERS_GRPC.format(**names)}
    sequences = {
        kind: infers[kind] + _SEQUENCES.format(form="json" if kind == "http" else kind) if sequence_groups else ""
        for kind in infers
    }
    ready = "".join(f" {{ nbsrv(http_{word_of(group)}) gt 0 }}" for group in fleet.groups)
    several, group_of_model = len(fleet.groups) > 1, f"var(txn.model),map({folder}/groups.map)"
    parts = [
        _TOP.format(**names),
        "\npeers fronts\n",
        *(f"    peer {front.id} {front.host}:{front.peer_port}\n" for front in fleet.fronts),
        _FRONTENDS.format(
            all_ready=ready.strip(),
            sequences_http=sequences["http"],
            sequences_grpc=sequences["grpc"],
            model_grpc=_MODEL_GRPC.format() if several else "",
            by_model_http=_BY_MODEL.format(kind="http", group=group_of_model) if several else "",
            by_model_grpc=_BY_MODEL.format(kind="grpc", group=group_of_model) if several else "",
            **names,
            **vars(addresses),
        ),
    ]
    servers = servers_of(fleet)
    for group in fleet.groups:
        word, idle = word_of(group), sequence_groups.get(group, 0)
        parts.append(_TABLES.format(group=word, idle=idle, places=_PLACES) if idle else "")
        for kind, answered in _ANSWERED.items():
            backend = f"{kind}_{word}"
            stick = _STICK.format(group=word, answered=answered, json=_JSON, full=_FULL) if idle else ""
            parts.append(_BACKEND.format(backend=backend) + stick)
            for name, rest in servers.items():
                if name.startswith(f"{backend}/"):
                    parts.append(f"    server {name.rpartition('/')[2]} {rest}\n")
    return "".join(parts)


def sequence_groups(fleet: Fleet) -> dict[str, int]:
    """For how many seconds a sequence keeps its server, for each group with models that have sequences."""
    least, most = _IDLE_S
    idle: dict[str, int] = {}
    for replica in fleet.replicas:
        if replica.sequences:
            idle[replica.group] = max(idle.get(replica.group, least), min(replica.sequences, most))
    return idle


def servers_of(fleet: Fleet) -> dict[str, str]:
    """Backend and server -> how HAProxy writes the rest. Both protocols are checked over HTTP."""
    servers = {}
    for replica in fleet.replicas:
        leaves = LEAVES if replica.leaving else ""
        checks = f"id {replica.number} {_CHECK} port {replica.http_port}{leaves}"
        place = f"{word_of(replica.group)}/r{replica.number}"
        servers[f"http_{place}"] = f"{replica.host}:{replica.http_port} {checks}"
        servers[f"grpc_{place}"] = f"{replica.host}:{replica.grpc_port} proto h2 check-proto h1 {checks}"
    return servers


def word_of(name: str) -> str:
    """The name of a group with characters that HAProxy allows."""
    return quote(name, safe="").replace("%", ":")
