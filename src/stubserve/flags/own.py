"""The flags that only stubserve has."""

from __future__ import annotations

from pathlib import Path

from stubserve.flags.flag import Flag
from stubserve.flags.values import (
    parse_bool,
    parse_count,
    parse_fair_queues,
    parse_gpu_fallback,
    parse_int,
    parse_kinds,
    parse_origin,
    parse_port_range,
    parse_sandbox,
    parse_seconds,
    parse_size,
    parse_variable,
)

OWN = (
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
        "try-page",
        "http.try_page",
        parse_bool,
        "A page at /try to ask models from, and /v2/openapi.json (true where --http-address is loopback).",
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
        "exit-delay-secs",
        "exit_delay_secs",
        parse_count,
        "Seconds after SIGTERM in which the server is not ready but still serves requests; --exit-timeout-secs begin "
        "after them (0).",
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
    Flag(
        "max-queue-size",
        "instances.max_queue_size",
        parse_count,
        "Requests that may wait at a model that sets no max_queue_size, but for sequences; 0: no limit (0).",
    ),
    Flag(
        "fair-queues",
        "clients.fair_queues",
        parse_fair_queues,
        "In a full queue a new request takes a place of the client that has most in it. A client is a connection, an "
        "address or a token; off: the new request is refused (off).",
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
        "restart-wait-secs",
        "instances.restart_wait_secs",
        parse_seconds,
        "Time that requests wait for a stub that is restarted, when their model has no other that serves; "
        "0 for none (10).",
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
        "Start models whose config.pbtxt has inputs and outputs with their first request (false).",
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
        "files: stubs write only to their model's folder and to a temporary folder of their own; network: no TCP; "
        "or both (none).",
    ),
    Flag(
        "stub-writable",
        "instances.stub_writable",
        Path,
        "With --stub-sandbox=files: one more folder that stubs may write to.",
        many=True,
    ),
    Flag(
        "stub-env",
        "instances.stub_env",
        parse_variable,
        "[<model>:]<name>: models see this variable of the server's environment; -<name>: they do not. * stands for "
        "any characters, and the last that fits counts (all but the server's own secrets).",
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
        "For writing models: load what is saved, refuse wrong outputs, allow breakpoint() (false).",
        switch=True,
    ),
    Flag(
        "check-outputs",
        "instances.check_outputs",
        str,
        "Compare outputs of Python models with their configuration: never, first (answers of each instance), always, "
        "or refuse, which answers wrong ones with an error (first).",
    ),
    Flag(
        "debug-model",
        "instances.debug_models",
        str,
        "Give this model's stub the terminal, so that breakpoint() works in it.",
        many=True,
    ),
)
