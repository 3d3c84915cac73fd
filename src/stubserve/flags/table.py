"""All flags that have an effect: their names, the settings that they set, and their help.

In the table a group of settings is in brackets, with the title that people see. Below it each flag has a line, and the
indented lines after it: its name, the field of the group that it sets, and its help. Each group has tritonserver's
flags first; flags without effect are in `unneeded`. The type of the field says how to read a flag's value, or `_VALUES`
if the type is not enough. A field that is a tuple of any length collects: its flag may be repeated.
"""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stubserve.flags import values
from stubserve.settings.cache import parse_cache_config
from stubserve.settings.groups import Settings

_TABLE = """
[] The server
id = id: The server's name in its metadata (triton).
exit-on-error = exit_on_error: Exit when a model fails to load (true).
strict-readiness = strict_readiness: Ready only when every model is (true).
exit-timeout-secs = exit_timeout_secs: How long a stopping server waits for requests and models (30).
shm-limit = shm_limit: Shared memory for tensors, as 8G or in bytes (half of the machine's memory).
exit-delay-secs = exit_delay_secs: Seconds after SIGTERM in which the server is not ready but still serves requests;
    --exit-timeout-secs begin after them (0).
shed-on-memory-pressure = shed_on_memory_pressure: Refuse requests to models with 503 for 5 seconds whenever the
    kernel tells that memory is short (false).
host = host: The address of all ports whose own flags name none; 127.0.0.1 is for this machine alone (0.0.0.0, with
    --dev 127.0.0.1).
dev = dev: For writing models: load what is saved, refuse wrong outputs, allow breakpoint(), serve this machine alone
    (false).
[repository] Models
model-repository = paths: A folder of models, or an address as s3://bucket/path. May be given several times.
model-store = paths: Same as --model-repository.
disable-auto-complete-config = disable_auto_complete: Take config.pbtxt as it is, never ask the model (false).
strict-model-config = disable_auto_complete: The former name of --disable-auto-complete-config (false).
model-control-mode = control_mode: none, explicit (load by request) or poll (load what changes) (none).
load-model = load_models: A model to load at the start, * for all, with explicit model control.
repository-poll-secs = poll_secs: Seconds between looks for changes, with poll; 0 for only one (15).
model-load-thread-count = load_threads: Model versions that load at the same time (4).
model-load-retry-count = load_retries: How often a model version that fails to load is tried again (0).
model-namespacing = namespacing: Serve models of the same name from several repositories (false).
repoagent-directory = agent_directory: Repository agents written in Python: <name>/agent.py
    (/opt/tritonserver/repoagents).
repository-cache = remote_cache: Where repositories in the cloud are copied to (~/.cache/stubserve/repositories).
model-config-name = config_name: Use configs/<name>.pbtxt of a model where it exists.
min-supported-compute-capability = least_capability: GPUs of a lower compute capability run no models (7.5).
gpu-fallback = gpu_to_cpu: cpu: instances for GPUs that are not there run on the CPU; none: they are refused (none).
[instances] Instances and their stubs
backend-directory = backend_directory: Backends written in Python: <name>/model.py (/opt/tritonserver/backends).
backend-config = backend_config: [<backend>,]<setting>=<value>, passed to the backend.
max-queue-size = max_queue_size: Limit for the queue of a model without a max_queue_size, but not for sequences; 0: no
    limit (0).
stub-restart-limit = restart_limit: Restarts in a row of a stub that dies before it executes anything; 0 turns
    restarting off (10).
restart-wait-secs = restart_wait_secs: Seconds that requests wait for a stub that is being restarted, when their model
    has no other; 0: they do not wait (10).
quarantine-secs = quarantine_secs: Seconds for which a request is refused if an equal one was being executed at two
    deaths of stubs, alone at the last, and not answered between them; 0: it is executed again (0).
execute-timeout-secs = execute_timeout_secs: Time that one execute may take, where the model's EXECUTE_TIMEOUT_SECS
    does not say; 0 for no limit (0).
sleep-after-secs = sleep_after_secs: Time without a request after which a model's instances end, to start again with
    the next; 0 for never (0).
start-asleep = start_asleep: Start models whose config.pbtxt has inputs and outputs with their first request (false).
stub-user = stub_user: Run stubs as this user, where the server runs as root.
stub-memory-limit = stub_memory_limit: Memory that a stub may have of its own, beside tensors, as 8G or in bytes (no
    limit).
stub-sandbox = stub_sandbox: files: stubs write only to their model's folder and to a temporary folder of their own;
    network: no TCP; or both (none).
stub-writable = stub_writable: With --stub-sandbox=files: one more folder that stubs may write to.
stub-env = stub_env: [<model>:]<name>: models see this variable of the server's environment; -<name>: they do not. *
    stands for any characters, and the last that fits counts (all but the server's own secrets).
stub-new-privileges = stub_new_privileges: Let what models start gain privileges, as sudo does (false).
environment-cache = environment_cache: Where archives of environments are extracted (~/.cache/stubserve/environments).
cuda-memory-pool-byte-size = gpu_pools: <GPU>:<bytes>: the most memory of a GPU that the tensors of one stub may take,
    where that is not all; 0: all.
pinned-memory-pool-byte-size = pinned_memory: The most host memory that each stub pins for copies from GPUs, in bytes;
    0 for none (268435456).
model-load-gpu-limit = gpu_load_limits: <GPU>:<fraction>: loads on this GPU fail if more of its memory is in use after
    them.
enable-peer-access = peer_access: Copy tensors from one GPU to another directly, where the GPUs can (true).
check-outputs = check_outputs: Compare outputs of Python models with their configuration: never, first (answers of
    each instance), always, or refuse, which answers wrong ones with an error (first).
tokenizer = tokenizer: A folder with a tokenizer's files; its chat template is for models that take a text and have none
    in their own folders.
debug-model = debug_models: Give this model's stub the terminal, so that breakpoint() works in it.
[http] HTTP
allow-http = allow: Serve HTTP (true).
http-address = address: The address to serve HTTP on (that of --host).
http-port = port: The port to serve HTTP on (8000).
reuse-http-port = reuse_port: Let several servers share the port (false).
http-max-input-size = max_input_size: Largest JSON, compressed or raw request, in bytes (67108864).
http-header-forward-pattern = header_forward_pattern: HTTP headers whose names match become request parameters.
http-restricted-api = restrictions: <API>,...:<header>=<value> that requests to these APIs must have.
http-status = status: The statuses of errors: triton, those of Triton's front end, with 400 for all errors of a model
    in generate and 500 for JSON that cannot be read; or standard, those that retries and alerts expect (triton).
http-use-ssl = use_ssl: Serve HTTP and metrics over TLS (false).
http-use-ssl-mutual = use_ssl_mutual: TLS, and clients of HTTP and metrics need a certificate (false).
http-server-cert = server_cert: The certificate for HTTP, a PEM file.
http-server-key = server_key: Its private key, a PEM file.
http-root-cert = root_cert: Root certificates of HTTP's clients, a PEM file.
try-page = try_page: Pages at /try and, with --openai, /chat (true where only this machine reaches the port).
openapi = openapi: /v2/openapi.json describes the models, and /docs shows that where the package swagger-ui-py is
    installed (as --try-page).
openai = openai: OpenAI's routes at /v1, for chats, completions and embeddings (false).
openai-port = openai_port: One more port for HTTP, where OpenAI's routes answer as Triton's own front end for them does;
    it may be 9000, the one that this has (none).
openai-restricted-api = openai_restrictions: <API>,... <header> <value> that requests to these APIs must have on this
    port: inference, model-repository, metrics or health.
http-cors-origin = cors_origins: Pages of this origin may ask, as https://example.org, or * for all (none).
[grpc] gRPC
allow-grpc = allow: Serve gRPC (true).
grpc-address = address: The address to serve gRPC on (that of --host).
grpc-port = port: The port to serve gRPC on (8001).
reuse-grpc-port = reuse_port: Let several servers share the port (false).
grpc-header-forward-pattern = header_forward_pattern: Metadata whose keys match become request parameters.
grpc-restricted-protocol = restrictions: <protocol>,...:<key>=<value> that metadata must have.
grpc-infer-response-compression-level = compression_level: none, low, medium or high (none).
grpc-use-ssl = use_ssl: Serve gRPC over TLS (false).
grpc-use-ssl-mutual = use_ssl_mutual: TLS, and clients need a certificate (false).
grpc-server-cert = server_cert: The server's certificate, a PEM file.
grpc-server-key = server_key: The certificate's private key, a PEM file.
grpc-root-cert = root_cert: Root certificates of clients, a PEM file.
grpc-keepalive-time = keepalive_time: Milliseconds without traffic until a client is pinged (7200000).
grpc-keepalive-timeout = keepalive_timeout: Milliseconds that a ping may go unanswered (20000).
grpc-keepalive-permit-without-calls = keepalive_permit_without_calls: Ping without running calls (false).
grpc-http2-max-pings-without-data = max_pings_without_data: Pings without data in between (2).
grpc-http2-min-recv-ping-interval-without-data = min_recv_ping_interval_without_data: Milliseconds between clients'
    pings (300000).
grpc-http2-max-ping-strikes = max_ping_strikes: Too early pings that a client may send (2).
grpc-max-connection-age = max_connection_age: Milliseconds that a connection may live (no limit).
grpc-max-connection-age-grace = max_connection_age_grace: Milliseconds more for its calls to end (no limit).
[clients] Limits for clients
allow-client-shm = shm: Let clients register shared memory for inputs and outputs, by name, in /dev/shm (false).
request-min-rate = min_rate: Bytes per second that an unfinished request has to arrive at (500).
request-timeout-secs = request_timeout_secs: Seconds within which all of a request has to arrive; 0: no limit (3600).
connection-share = share: Percent of --shm-limit for a connection's unfinished requests (50).
send-timeout-secs = send_timeout_secs: Seconds that a client may leave its answer unread; 0: no limit (60).
idle-timeout-secs = idle_timeout_secs: Seconds that a connection may be idle; 0: no limit (3600).
max-connections = max_connections: Connections of HTTP, and as many of gRPC; 0: as many as there are descriptors, less
    64 (0).
fair-queues = fair_queues: When a queue is full, refuse a request of the client that has most requests in it. A client
    is a connection, an address or a token; off: refuse the new request (off).
[auth] Authentication
auth-token-file = token_file: Tokens, one of which each request needs: '<token> [<API>,...]' in each line.
auth-open-api = open_kinds: APIs that need no token, as health,metrics (none).
[metrics] Metrics
allow-metrics = allow: Serve metrics (true).
allow-cpu-metrics = allow_cpu: Metrics of the machine's CPU and memory (true).
allow-gpu-metrics = allow_gpu: Metrics of the machine's GPUs, where nvidia-ml-py is installed (true).
metrics-address = address: The address to serve metrics on (that of --host, or of HTTP).
metrics-port = port: The port to serve metrics on (8002).
metrics-interval-ms = interval_ms: How long CPU utilization is measured over, at least, and how often GPUs are asked
    (2000).
metrics-config = config: <setting>=<value>, as summary_latencies=true.
status-page = status_page: A page for people at / of the metrics port (true).
[sagemaker] SageMaker
allow-sagemaker = allow: Serve SageMaker's routes (false).
sagemaker-port = port: The port to serve SageMaker's routes on (8080).
sagemaker-safe-port-range = safe_ports: <first>-<last>: other protocols have to use ports in this range (none).
[vertex] Vertex AI
allow-vertex-ai = allow: Serve Vertex AI's routes (false).
vertex-ai-port = port: The port to serve Vertex AI's routes on (8080).
vertex-ai-default-model = default_model: The model that Vertex AI's predictions ask; needless where there is only one.
[cache] Response cache
cache-config = config: The response cache: local,size=256M or redis,host=...,port=... and other settings.
response-cache-byte-size = byte_size: Same as --cache-config=local,size=...; 0 for none (0).
[rate_limit] Rate limiter
rate-limit = mode: execution_count: instances share resources and take turns by priority (rate_limiter); off (off).
rate-limit-resource = resources: <name>:<count>[:<device>]: how much of a resource there is (as much as the instance
    with the largest need asks for).
[logging] Log
log-verbose = verbose: Verbose logging from level 1 on (0).
log-info = info: Log info messages (true).
log-warning = warning: Log warnings (true).
log-error = error: Log errors (true).
log-format = format: default, ISO8601 or json (default).
access-log = access: Log each HTTP request and gRPC call, and its status (false).
log-file = file: Append the log to this file.
[tracing] Traces
trace-config = config: [<mode>,]<setting>=<value>, as level=TIMESTAMPS, rate=100 or triton,file=traces.json.
trace-file = config: Same as --trace-config triton,file.
trace-level = config: Same as --trace-config level.
trace-rate = config: Same as --trace-config rate.
trace-count = config: Same as --trace-config count.
trace-log-frequency = config: Same as --trace-config triton,log-frequency.
"""


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag: `setting` is the group and field of `Settings` that it sets (or a field of `Settings` itself).

    A `many` flag may be repeated and collects; a `switch` needs no value (bare means true).
    """

    name: str
    setting: str
    parse: Callable[[str], Any]
    help: str
    many: bool
    switch: bool

    @property
    def group(self) -> str:
        return self.setting.rpartition(".")[0]


_TYPES: dict[str, Callable[[str], Any]] = {
    "str": str,
    "Path": Path,
    "bool": values.parse_bool,
    "int": values.parse_int,
    "float": values.parse_seconds,
}
_VALUES: dict[str, Callable[[str], Any]] = {
    "exit-delay-secs": values.parse_count,
    "model-load-retry-count": values.parse_count,
    "max-queue-size": values.parse_count,
    "stub-restart-limit": values.parse_count,
    "shm-limit": values.parse_size,
    "stub-memory-limit": values.parse_size,
    "model-repository": values.parse_repository,
    "model-store": values.parse_repository,
    "model-control-mode": str.lower,
    "gpu-fallback": values.parse_gpu_fallback,
    "min-supported-compute-capability": values.parse_capability,
    "backend-config": values.parse_backend_config,
    "stub-sandbox": values.parse_sandbox,
    "stub-env": values.parse_variable,
    "cuda-memory-pool-byte-size": values.parse_gpu_pool,
    "pinned-memory-pool-byte-size": values.parse_long,
    "model-load-gpu-limit": values.parse_gpu_fraction,
    "http-cors-origin": values.parse_origin,
    "http-restricted-api": values.restricted("--http-restricted-api", "api"),
    "grpc-restricted-protocol": values.restricted("--grpc-restricted-protocol", "protocol"),
    "openai-restricted-api": values.parse_openai_restriction,
    "sagemaker-safe-port-range": values.parse_port_range,
    "fair-queues": values.parse_fair_queues,
    "auth-open-api": values.parse_kinds,
    "metrics-config": values.parse_metrics_config,
    "cache-config": parse_cache_config,
    "rate-limit": values.parse_rate_limit,
    "rate-limit-resource": values.parse_rate_limit_resource,
    "trace-config": values.parse_trace_config,
    "trace-file": values.older_trace_flag("triton", "file"),
    "trace-level": values.older_trace_flag("", "level"),
    "trace-rate": values.older_trace_flag("", "rate"),
    "trace-count": values.older_trace_flag("", "count"),
    "trace-log-frequency": values.older_trace_flag("triton", "log-frequency"),
}


def _flags() -> Iterator[Flag]:
    defaults = Settings()
    group = ""
    for head, name, field, text in re.findall(
        r"^(?:\[(\w*)\] .*|(\S+) = (\w+): (.*(?:\n +.*)*))$", _TABLE, re.MULTILINE
    ):
        if not name:
            group = head
            continue
        holder = getattr(defaults, group) if group else defaults
        type_ = ChainMap(*(getattr(kind, "__annotations__", {}) for kind in type(holder).__mro__))[field]
        plain = type_.removesuffix(" | None").removeprefix("tuple[").removesuffix(", ...]")
        parse = _VALUES.get(name) or _TYPES[plain]
        setting = f"{group}.{field}" if group else field
        yield Flag(name, setting, parse, re.sub(r"\n +", " ", text), type_.endswith("...]"), parse is values.parse_bool)


FLAGS = tuple(_flags())

# The groups of settings, and their titles in the help and on the page of flags; "" is the server as a whole.
GROUPS: dict[str, str] = dict(re.findall(r"^\[(\w*)\] (.*)$", _TABLE, re.MULTILINE))
