"""The flags of `stubserve serve`: which there are, what they take and set, and which belong to parts that are not here.

Flags of parts that stubserve does not have (yet) are known by name and refused with a plain word, never ignored. Those
that cannot matter here are in `flag_unneeded`. Together they are all that tritonserver 2.73 has (`tests/test_flags.py`
holds the list).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stubserve.cache_settings import parse_cache_config
from stubserve.flag_values import (
    parse_backend_config,
    parse_bool,
    parse_count,
    parse_gpu_fallback,
    parse_int,
    parse_kinds,
    parse_log_frequency,
    parse_metrics_config,
    parse_origin,
    parse_port_range,
    parse_rate_limit,
    parse_rate_limit_resource,
    parse_repository,
    parse_restricted_routes,
    parse_restricted_rpcs,
    parse_sandbox,
    parse_seconds,
    parse_size,
    parse_trace_config,
    parse_trace_count,
    parse_trace_file,
    parse_trace_level,
    parse_trace_rate,
)


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag: `setting` is what it sets, as the group and field of `Settings` (or a field of its own).

    `many` flags may be repeated and collect; a `switch` needs no value (bare means true).
    """

    name: str
    setting: str
    parse: Callable[[str], Any]
    help: str
    many: bool = False
    switch: bool = False


FLAGS = (
    Flag(
        "model-repository",
        "repository.paths",
        parse_repository,
        "A folder of models, or an address as s3://bucket/path. May be given several times.",
        many=True,
    ),
    Flag("model-store", "repository.paths", parse_repository, "Same as --model-repository.", many=True),
    Flag("id", "id", str, "The server's name in its metadata (triton)."),
    Flag("exit-on-error", "exit_on_error", parse_bool, "Exit when a model fails to load (true).", switch=True),
    Flag("strict-readiness", "strict_readiness", parse_bool, "Ready only when every model is (true).", switch=True),
    Flag(
        "disable-auto-complete-config",
        "repository.disable_auto_complete",
        parse_bool,
        "Take config.pbtxt as it is, never ask the model (false).",
        switch=True,
    ),
    Flag(
        "strict-model-config",
        "repository.disable_auto_complete",
        parse_bool,
        "The former name of --disable-auto-complete-config (false).",
        switch=True,
    ),
    Flag(
        "model-control-mode",
        "repository.control_mode",
        str.lower,
        "none, explicit (load by request) or poll (load what changes) (none).",
    ),
    Flag(
        "load-model",
        "repository.load_models",
        str,
        "A model to load at the start, * for all, with explicit model control.",
        many=True,
    ),
    Flag(
        "repository-poll-secs",
        "repository.poll_secs",
        parse_int,
        "Seconds between looks for changes, with poll; 0 for only one (15).",
    ),
    Flag(
        "model-load-thread-count",
        "repository.load_threads",
        parse_int,
        "Model versions that load at the same time (4).",
    ),
    Flag(
        "model-load-retry-count",
        "repository.load_retries",
        parse_count,
        "How often a model version that fails to load is tried again (0).",
    ),
    Flag(
        "model-namespacing",
        "repository.namespacing",
        parse_bool,
        "Serve models of the same name from several repositories (false).",
        switch=True,
    ),
    Flag(
        "repoagent-directory",
        "repository.agent_directory",
        Path,
        "Repository agents written in Python: <name>/agent.py (/opt/tritonserver/repoagents).",
    ),
    Flag(
        "repository-cache",
        "repository.remote_cache",
        Path,
        "Where repositories in the cloud are copied to (~/.cache/stubserve/repositories).",
    ),
    Flag("model-config-name", "repository.config_name", str, "Use configs/<name>.pbtxt of a model where it exists."),
    Flag(
        "backend-directory",
        "instances.backend_directory",
        Path,
        "Backends written in Python: <name>/model.py (/opt/tritonserver/backends).",
    ),
    Flag(
        "backend-config",
        "instances.backend_config",
        parse_backend_config,
        "[<backend>,]<setting>=<value>, passed to the backend.",
        many=True,
    ),
    Flag(
        "exit-timeout-secs",
        "exit_timeout_secs",
        parse_int,
        "How long a stopping server waits for requests and models (30).",
    ),
    Flag("allow-http", "http.allow", parse_bool, "Serve HTTP (true).", switch=True),
    Flag("http-address", "http.address", str, "The address to serve HTTP on (0.0.0.0)."),
    Flag("http-port", "http.port", parse_int, "The port to serve HTTP on (8000)."),
    Flag("reuse-http-port", "http.reuse_port", parse_bool, "Let several servers share the port (false).", switch=True),
    Flag(
        "http-max-input-size",
        "http.max_input_size",
        parse_int,
        "Largest JSON, compressed or raw request, in bytes (67108864).",
    ),
    Flag(
        "http-header-forward-pattern",
        "http.header_forward_pattern",
        str,
        "HTTP headers whose names match become request parameters.",
    ),
    Flag(
        "http-restricted-api",
        "http.restricted_apis",
        parse_restricted_routes,
        "<API>,...:<header>=<value> that requests to these APIs must have.",
        many=True,
    ),
    Flag("allow-grpc", "grpc.allow", parse_bool, "Serve gRPC (true).", switch=True),
    Flag("grpc-address", "grpc.address", str, "The address to serve gRPC on (0.0.0.0)."),
    Flag("grpc-port", "grpc.port", parse_int, "The port to serve gRPC on (8001)."),
    Flag("reuse-grpc-port", "grpc.reuse_port", parse_bool, "Let several servers share the port (false).", switch=True),
    Flag(
        "grpc-header-forward-pattern",
        "grpc.header_forward_pattern",
        str,
        "Metadata whose keys match become request parameters.",
    ),
    Flag(
        "grpc-restricted-protocol",
        "grpc.restricted_protocols",
        parse_restricted_rpcs,
        "<protocol>,...:<key>=<value> that metadata must have.",
        many=True,
    ),
    Flag("grpc-infer-response-compression-level", "grpc.compression_level", str, "none, low, medium or high (none)."),
    Flag("grpc-use-ssl", "grpc.use_ssl", parse_bool, "Serve gRPC over TLS (false).", switch=True),
    Flag(
        "grpc-use-ssl-mutual",
        "grpc.use_ssl_mutual",
        parse_bool,
        "TLS, and clients need a certificate (false).",
        switch=True,
    ),
    Flag("grpc-server-cert", "grpc.server_cert", str, "The server's certificate, a PEM file."),
    Flag("grpc-server-key", "grpc.server_key", str, "The certificate's private key, a PEM file."),
    Flag("grpc-root-cert", "grpc.root_cert", str, "Root certificates of clients, a PEM file."),
    Flag(
        "grpc-keepalive-time",
        "grpc.keepalive_time",
        parse_int,
        "Milliseconds without traffic until a client is pinged (7200000).",
    ),
    Flag(
        "grpc-keepalive-timeout",
        "grpc.keepalive_timeout",
        parse_int,
        "Milliseconds that a ping may go unanswered (20000).",
    ),
    Flag(
        "grpc-keepalive-permit-without-calls",
        "grpc.keepalive_permit_without_calls",
        parse_bool,
        "Ping without running calls (false).",
        switch=True,
    ),
    Flag(
        "grpc-http2-max-pings-without-data",
        "grpc.max_pings_without_data",
        parse_int,
        "Pings without data in between (2).",
    ),
    Flag(
        "grpc-http2-min-recv-ping-interval-without-data",
        "grpc.min_recv_ping_interval_without_data",
        parse_int,
        "Milliseconds between clients' pings (300000).",
    ),
    Flag(
        "grpc-http2-max-ping-strikes", "grpc.max_ping_strikes", parse_int, "Too early pings that a client may send (2)."
    ),
    Flag(
        "grpc-max-connection-age",
        "grpc.max_connection_age",
        parse_int,
        "Milliseconds that a connection may live (no limit).",
    ),
    Flag(
        "grpc-max-connection-age-grace",
        "grpc.max_connection_age_grace",
        parse_int,
        "Milliseconds more for its calls to end (no limit).",
    ),
    Flag("allow-metrics", "metrics.allow", parse_bool, "Serve metrics (true).", switch=True),
    Flag(
        "allow-cpu-metrics",
        "metrics.allow_cpu",
        parse_bool,
        "Metrics of the machine's CPU and memory (true).",
        switch=True,
    ),
    Flag("metrics-address", "metrics.address", str, "The address to serve metrics on (that of HTTP)."),
    Flag("metrics-port", "metrics.port", parse_int, "The port to serve metrics on (8002)."),
    Flag(
        "metrics-interval-ms",
        "metrics.interval_ms",
        parse_int,
        "How long CPU utilization is measured over, at least (2000).",
    ),
    Flag(
        "metrics-config",
        "metrics.config",
        parse_metrics_config,
        "<setting>=<value>, as summary_latencies=true.",
        many=True,
    ),
    Flag(
        "cache-config",
        "cache.config",
        parse_cache_config,
        "The response cache: local,size=256M or redis,host=...,port=... and other settings.",
        many=True,
    ),
    Flag(
        "response-cache-byte-size",
        "cache.byte_size",
        parse_int,
        "Same as --cache-config=local,size=...; 0 for none (0).",
    ),
    Flag(
        "rate-limit",
        "rate_limit.mode",
        parse_rate_limit,
        "execution_count: instances share resources and take turns by priority (rate_limiter); off (off).",
    ),
    Flag(
        "rate-limit-resource",
        "rate_limit.resources",
        parse_rate_limit_resource,
        "<name>:<count>[:<device>] of a resource there is (as much as the greediest instance asks for).",
        many=True,
    ),
    Flag("log-verbose", "logging.verbose", parse_int, "Verbose logging from level 1 on (0)."),
    Flag("log-info", "logging.info", parse_bool, "Log info messages (true).", switch=True),
    Flag("log-warning", "logging.warning", parse_bool, "Log warnings (true).", switch=True),
    Flag("log-error", "logging.error", parse_bool, "Log errors (true).", switch=True),
    Flag("log-format", "logging.format", str, "default, ISO8601 or json (default)."),
    Flag("access-log", "logging.access", parse_bool, "Log each HTTP request and its status (false).", switch=True),
    Flag("log-file", "logging.file", str, "Append the log to this file."),
    Flag(
        "trace-config",
        "tracing.config",
        parse_trace_config,
        "[<mode>,]<setting>=<value>, as level=TIMESTAMPS, rate=100 or triton,file=traces.json.",
        many=True,
    ),
    Flag("trace-file", "tracing.config", parse_trace_file, "Same as --trace-config triton,file.", many=True),
    Flag("trace-level", "tracing.config", parse_trace_level, "Same as --trace-config level.", many=True),
    Flag("trace-rate", "tracing.config", parse_trace_rate, "Same as --trace-config rate.", many=True),
    Flag("trace-count", "tracing.config", parse_trace_count, "Same as --trace-config count.", many=True),
    Flag(
        "trace-log-frequency",
        "tracing.config",
        parse_log_frequency,
        "Same as --trace-config triton,log-frequency.",
        many=True,
    ),
    # stubserve's own
    Flag("http-use-ssl", "http.use_ssl", parse_bool, "Serve HTTP and metrics over TLS (false).", switch=True),
    Flag(
        "http-use-ssl-mutual",
        "http.use_ssl_mutual",
        parse_bool,
        "TLS, and clients of HTTP and metrics need a certificate (false).",
        switch=True,
    ),
    Flag("http-server-cert", "http.server_cert", str, "The certificate for HTTP, a PEM file."),
    Flag("http-server-key", "http.server_key", str, "Its private key, a PEM file."),
    Flag("http-root-cert", "http.root_cert", str, "Root certificates of HTTP's clients, a PEM file."),
    Flag(
        "auth-token-file",
        "auth.token_file",
        Path,
        "Tokens, one of which each request needs: '<token> [<API>,...]' in each line.",
    ),
    Flag(
        "auth-open-api",
        "auth.open_kinds",
        parse_kinds,
        "APIs that need no token, as health,metrics (none).",
    ),
    Flag(
        "status-page",
        "metrics.status_page",
        parse_bool,
        "A page for people at / of the metrics port (true).",
        switch=True,
    ),
    Flag(
        "http-cors-origin",
        "http.cors_origins",
        parse_origin,
        "Pages of this origin may ask, as https://example.org, or * for all (none).",
        many=True,
    ),
    Flag("allow-sagemaker", "sagemaker.allow", parse_bool, "Serve SageMaker's routes (false).", switch=True),
    Flag("sagemaker-port", "sagemaker.port", parse_int, "The port to serve SageMaker's routes on (8080)."),
    Flag(
        "sagemaker-safe-port-range",
        "sagemaker.safe_ports",
        parse_port_range,
        "<first>-<last>: the ports that other protocols have to be among (none).",
    ),
    Flag("allow-vertex-ai", "vertex.allow", parse_bool, "Serve Vertex AI's routes (false).", switch=True),
    Flag("vertex-ai-port", "vertex.port", parse_int, "The port to serve Vertex AI's routes on (8080)."),
    Flag(
        "vertex-ai-default-model",
        "vertex.default_model",
        str,
        "The model that Vertex AI's predictions ask; needless where there is only one.",
    ),
    Flag(
        "shm-limit",
        "shm_limit",
        parse_size,
        "Shared memory for tensors, as 8G or in bytes (half of the machine's memory).",
    ),
    Flag(
        "shed-on-memory-pressure",
        "shed_on_memory_pressure",
        parse_bool,
        "Refuse requests to models with 503 for 5 seconds whenever the kernel tells that memory is short (false).",
        switch=True,
    ),
    Flag(
        "allow-client-shm",
        "clients.shm",
        parse_bool,
        "Let clients register shared memory for inputs and outputs, by name, in /dev/shm (false).",
        switch=True,
    ),
    Flag(
        "request-min-rate",
        "clients.min_rate",
        parse_int,
        "Bytes per second that an unfinished request has to arrive at (500).",
    ),
    Flag(
        "request-timeout-secs",
        "clients.request_timeout_secs",
        parse_int,
        "Seconds within which all of a request has to arrive; 0: no limit (3600).",
    ),
    Flag(
        "connection-share",
        "clients.share",
        parse_int,
        "Percent of --shm-limit for a connection's unfinished requests (50).",
    ),
    Flag(
        "send-timeout-secs",
        "clients.send_timeout_secs",
        parse_int,
        "Seconds that a client may take nothing of its answer; 0: no limit (60).",
    ),
    Flag(
        "idle-timeout-secs",
        "clients.idle_timeout_secs",
        parse_int,
        "Seconds that a connection may be idle; 0: no limit (3600).",
    ),
    Flag(
        "max-connections",
        "clients.max_connections",
        parse_int,
        "Connections of HTTP, and as many of gRPC; 0: as many as there are descriptors, less 64 (0).",
    ),
    Flag("grpc-transport", "grpc.transport", str, "native, or grpcio for gRPC through its C core: slower (native)."),
    Flag(
        "gpu-fallback",
        "repository.gpu_to_cpu",
        parse_gpu_fallback,
        "cpu: instances of KIND_GPU run on the CPU; none: they are refused (none).",
    ),
    Flag(
        "stub-restart-limit",
        "instances.restart_limit",
        parse_int,
        "Restarts in a row of a stub that dies; 0 turns restarting off (10).",
    ),
    Flag(
        "execute-timeout-secs",
        "instances.execute_timeout_secs",
        parse_seconds,
        "Time that one execute may take, where the model's EXECUTE_TIMEOUT_SECS does not say; 0 for no limit (0).",
    ),
    Flag(
        "sleep-after-secs",
        "instances.sleep_after_secs",
        parse_seconds,
        "Time without a request after which a model's instances end, to start again with the next; 0 for never (0).",
    ),
    Flag(
        "start-asleep",
        "instances.start_asleep",
        parse_bool,
        "Whether models whose config.pbtxt has inputs and outputs are first started by a request (false).",
        switch=True,
    ),
    Flag("stub-user", "instances.stub_user", str, "Run stubs as this user, where the server runs as root."),
    Flag(
        "stub-memory-limit",
        "instances.stub_memory_limit",
        parse_size,
        "Memory that a stub may have of its own, beside tensors, as 8G or in bytes (no limit).",
    ),
    Flag(
        "stub-sandbox",
        "instances.stub_sandbox",
        parse_sandbox,
        "files: stubs write nowhere but in their model's folder and for a time; network: no TCP; or both (none).",
    ),
    Flag(
        "stub-writable",
        "instances.stub_writable",
        Path,
        "With --stub-sandbox=files: a folder that stubs may write to all the same.",
        many=True,
    ),
    Flag(
        "stub-new-privileges",
        "instances.stub_new_privileges",
        parse_bool,
        "Let what models start gain privileges, as sudo does (false).",
        switch=True,
    ),
    Flag(
        "environment-cache",
        "instances.environment_cache",
        Path,
        "Where archives of environments are extracted (~/.cache/stubserve/environments).",
    ),
    Flag(
        "dev",
        "dev",
        parse_bool,
        "For who writes models: load what is saved, check all answers, allow breakpoint() (false).",
        switch=True,
    ),
    Flag(
        "check-outputs",
        "instances.check_outputs",
        str,
        "Compare answers of Python models with their configuration: never, first (of each instance), always (first).",
    ),
    Flag(
        "debug-model",
        "instances.debug_models",
        str,
        "Give this model's stub the terminal, so that breakpoint() works in it.",
        many=True,
    ),
)

# Flags of parts that do not exist yet: value -> what is missing. With the value that turns the part off they are fine.
MISSING: dict[str, tuple[str, tuple[str, ...]]] = {}
