"""Command lines become settings, in stubserve's spelling and in Triton's."""

from __future__ import annotations

import re
import subprocess
import sys
from operator import attrgetter
from pathlib import Path

import pytest

from stubserve.errors import UsageError
from stubserve.flags import parse_arguments, usage
from stubserve.flags.table import FLAGS
from stubserve.flags.unneeded import UNNEEDED
from stubserve.settings.fronts import Tls


def test_both_spellings() -> None:
    ours = parse_arguments(
        ["models", "--http-port", "9000", "--exit-on-error", "false", "--disable-auto-complete-config"]
    )
    theirs = parse_arguments(
        ["--model-repository=models", "--http-port=9000", "--exit-on-error=OFF", "--disable-auto-complete-config=1"]
    )
    assert ours == theirs
    assert ours.repository.paths == (Path("models"),)
    assert (ours.http.port, ours.exit_on_error, ours.repository.disable_auto_complete) == (9000, False, True)


def test_repeated_flags_collect() -> None:
    settings = parse_arguments(
        ["a", "--model-repository=b", "--model-store", "c", "--backend-config=python,x=1", "--backend-config=y=2"]
    )
    assert settings.repository.paths == (Path("a"), Path("b"), Path("c"))
    assert settings.instances.backend_config == (("python", "x", "1"), ("", "y", "2"))


def test_backend_settings_without_effect_are_said() -> None:
    (notice,) = parse_arguments(["m", "--backend-config=python,shm-default-byte-size=1048576"]).notices
    assert notice.startswith("--backend-config=python,shm-default-byte-size=1048576 has no effect: shared memory is")
    # A backend of somebody else's may read it.
    (notice,) = parse_arguments(["m", "--backend-config=tensorflow,version=2"]).notices
    assert notice == "--backend-config=tensorflow,version=2 has no effect on the backends that come with stubserve"


def test_a_backends_own_setting_goes_before_that_of_all() -> None:
    words = ["--backend-config=default-max-batch-size=7", "--backend-config=python,default-max-batch-size=8"]
    settings = parse_arguments(["m", *words, "--backend-config=other,default-max-batch-size=9"])
    assert settings.notices == ()
    told = [settings.instances.backend_setting(one, "default-max-batch-size") for one in ("python", "other", "third")]
    assert told == ["8", "9", "7"]
    assert settings.instances.backend_setting("python", "nosuch") is None


@pytest.mark.parametrize(
    ("words", "http", "grpc", "metrics"),
    [
        ("", "0.0.0.0", "0.0.0.0", "0.0.0.0"),
        ("--http-address=::1", "::1", "0.0.0.0", "::1"),
        ("--http-address=::1 --metrics-address=::2", "::1", "0.0.0.0", "::2"),
        ("--host=::1", "::1", "::1", "::1"),
        ("--http-address=0.0.0.0 --host ::1", "0.0.0.0", "::1", "::1"),
        ("--dev", "127.0.0.1", "127.0.0.1", "127.0.0.1"),
        ("--dev --host=0.0.0.0", "0.0.0.0", "0.0.0.0", "0.0.0.0"),
        ("--dev --grpc-address=::1", "127.0.0.1", "::1", "127.0.0.1"),
    ],
)
def test_the_addresses_of_ports(words: str, http: str, grpc: str, metrics: str) -> None:
    settings = parse_arguments(["m", *words.split()]).with_addresses()
    assert (settings.http.address, settings.grpc.address, settings.metrics.address) == (http, grpc, metrics)
    assert settings.http.shows_try_page == (http in ("127.0.0.1", "::1"))


def test_clients_certificates_want_tls() -> None:
    words = ["m", "--grpc-server-cert=c", "--grpc-server-key=k"]
    assert parse_arguments(words).grpc.tls is None
    tls = parse_arguments([*words, "--grpc-use-ssl-mutual", "--grpc-root-cert=r"]).grpc.tls
    assert tls == Tls("c", "k", "r", mutual=True)


def test_a_cache_is_said_in_one_flag_or_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_arguments(["m"]).cache.name == ""
    assert parse_arguments(["m", "--response-cache-byte-size=0"]).cache.name == ""
    assert parse_arguments(["m", "--response-cache-byte-size=2048"]).cache.local_bytes == 2048
    assert (
        parse_arguments(["m", "--cache-config=local,size=1M", "--cache-config=local,size=2M"]).cache.local_bytes
        == 2 << 20
    )
    assert parse_arguments(["m", "--cache-config=local,size=1M,coalesce=true"]).cache.coalesces
    # So little holds no answer either, but Triton serves with it, too.
    assert parse_arguments(["m", "--cache-config=local,size=200"]).cache.local_bytes == 200
    one = parse_arguments(["m", "--cache-config=redis,host=h,port=1,password=a,b=c,socket_timeout=0"]).cache.redis
    assert (one.host, one.port, one.password, one.timeout_s) == ("h", 1, "a,b=c", 0.25)
    assert "a,b=c" not in repr(one)
    monkeypatch.setenv("TRITONCACHE_REDIS_PASSWORD", "secret")
    several = ["--cache-config=redis,host=h", "--cache-config=redis,port=1", "--cache-config=redis,user=me"]
    settings = parse_arguments(["m", *several])
    assert (settings.cache.redis.user, settings.cache.redis.password) == ("me", "secret")
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(UsageError, match=re.escape("pip install 'stubserve[redis]'")):
        parse_arguments(["m", *several])


def test_resources_of_the_rate_limiter() -> None:
    words = ["--rate-limit=EXECUTION_COUNT", "--rate-limit-resource=R:4", "--rate-limit-resource=S:2:1"]
    settings = parse_arguments(["m", *words]).rate_limit
    assert (settings.mode, settings.resources) == ("execution_count", (("R", 4, None), ("S", 2, 1)))


def test_a_switch_before_a_folder_does_not_swallow_it() -> None:
    assert parse_arguments(["--strict-readiness", "models"]).repository.paths == (Path("models"),)
    assert parse_arguments(["--allow-grpc", "models"]).repository.paths == (Path("models"),)


def test_what_becomes_of_instances_for_gpus() -> None:
    assert not parse_arguments(["m"]).repository.gpu_to_cpu
    assert not parse_arguments(["m", "--gpu-fallback=none"]).repository.gpu_to_cpu
    assert parse_arguments(["m", "--gpu-fallback", "cpu"]).repository.gpu_to_cpu
    with pytest.raises(UsageError, match="must be cpu or none"):
        parse_arguments(["m", "--gpu-fallback=CUDA"])


def test_every_flag_has_a_setting() -> None:
    settings = parse_arguments(["m"])
    for flag in FLAGS:
        attrgetter(flag.setting)(settings)
    assert all(f"--{flag.name} " in usage() for flag in FLAGS)


def test_the_help_is_in_groups() -> None:
    _, *groups = usage().split("\n\n")[2:]
    titles = [group.partition(":\n")[0] for group in groups]
    assert titles[:3] == ["The server", "Models", "Instances and their stubs"]
    (http,) = (group for group in groups if group.startswith("HTTP:\n"))
    assert "--http-port " in http
    assert "--grpc-port " not in http


@pytest.mark.parametrize(
    ("text", "value"), [("1048576", 1 << 20), ("512M", 512 << 20), ("8G", 8 << 30), ("3k", 3 << 10)]
)
def test_sizes(text: str, value: int) -> None:
    assert parse_arguments(["m", f"--shm-limit={text}"]).shm_limit == value


def test_the_default_limit_is_half_of_memory_at_most() -> None:
    import psutil

    assert 0 < parse_arguments(["m"]).shm_limit <= psutil.virtual_memory().total // 2


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "--model-repository must be specified"),
        (["m", "--shm-limit=0"], "positive number of bytes"),
        (["m", "--http-port=99999999999"], "Provided option value is out of bound. Got 99999999999"),
        (["m", "--execute-timeout-secs=soon"], "--execute-timeout-secs: a time is a number of seconds, from 0 on. Got"),
        (["m", "--execute-timeout-secs=-1"], "--execute-timeout-secs: a time is a number of seconds, from 0 on. Got"),
        (["m", "--http-port=8o"], "--http-port: Invalid option value. Got 8o"),
        (["m", "--grpc-port=65536"], "--grpc-port must be a number from 0 (any that is free) to 65535. Got 65536"),
        (["m", "--log-info=maybe"], "--log-info: invalid value for bool option: maybe"),
        (["m", "--htp-port=1"], "Unexpected argument: --htp-port=1; did you mean --http-port"),
        (["m", "--http-port"], "option '--http-port' requires an argument"),
        (["m", "--backend-config=python"], "--backend-config option format is '<backend name>,<setting>=<value>'"),
        (["m", "--model-control-mode=on"], "--model-control-mode must be none, explicit or poll. Got on"),
        (["m", "--repository-poll-secs=-1"], "--repository-poll-secs must not be negative. Got -1"),
        (["m", "--load-model=a"], "Use of '--load-model' requires setting '--model-control-mode=explicit' as well."),
        (["m", "-x"], "Unexpected argument: -x"),
        (["m", "--log-format=xml"], "got: xml"),
        (
            ["m", "--grpc-port=8000"],
            "HTTP requests and GRPC requests at the same address and port 0.0.0.0:8000",
        ),
        (["m", "--metrics-port=8001"], "GRPC requests and metrics requests at the same address and port 0.0.0.0:8001"),
        (["m", "--metrics-config=x"], "--metrics-config option format is '<setting>=<value>'. Got x"),
        (["m", "--metrics-config=latencies=true"], "--metrics-config has the settings"),
        (["m", "--metrics-config=summary_quantiles=2:0.1"], "with quantiles from 0 to 1. Got 2:0.1"),
        (["m", "--grpc-use-ssl"], "--grpc-use-ssl needs --grpc-server-cert and --grpc-server-key"),
        (["m", "--grpc-header-forward-pattern=["], "--grpc-header-forward-pattern is no regular expression"),
        (["m", "--grpc-infer-response-compression-level=max"], "got: max"),
        (["m", "--grpc-restricted-protocol=health"], "--grpc-restricted-protocol option format is"),
        (["m", "--grpc-restricted-protocol=healt:a=b"], "unknown restricted protocol 'healt'. Use health, "),
        (
            ["m", "--grpc-restricted-protocol=health,trace:a=b", "--grpc-restricted-protocol=trace:c=d"],
            "restricted protocol 'trace' can not be specified in multiple config groups",
        ),
        (
            ["m", "--http-restricted-api=health"],
            "--http-restricted-api option format is '<api>,<api>,...:<key>=<value>'",
        ),
        (["m", "--stub-restart-limit=-1"], "--stub-restart-limit: a count is a number from 0 on. Got -1"),
        (["m", "--http-restricted-api=healt:a=b"], "unknown restricted api 'healt'. Use health, "),
        (
            ["m", "--http-restricted-api=health,trace:a=b", "--http-restricted-api=trace:c=d"],
            "restricted api 'trace' can not be specified in multiple config groups",
        ),
        (["m", "--http-use-ssl"], "--http-use-ssl needs --http-server-cert and --http-server-key"),
        (
            ["m", "--http-use-ssl-mutual", "--http-server-cert=a", "--http-server-key=b"],
            "--http-use-ssl-mutual needs --http-root-cert",
        ),
        (["m", "--auth-open-api=health"], "without it no API needs a token"),
        (
            ["m", "--auth-token-file=t", "--fair-queues=token", "--auth-open-api=inference"],
            "--auth-open-api=inference lets clients invent them",
        ),
        (
            ["m", "--auth-token-file=t", "--auth-open-api=helth"],
            "--auth-open-api: unknown API 'helth'; there are health,",
        ),
        (["m", "--cache-config=local"], "--cache-config option format is '<cache name>,<setting>=<value>'. Got local"),
        (
            ["m", "--cache-config=size=5"],
            "--cache-config option format is '<cache name>,<setting>=<value>'. Got size=5",
        ),
        (["m", "--cache-config=local,coalesce=true"], "config didn't contain a valid 'size' field"),
        (["m", "--cache-config=local,size=0"], "a size of 0 bytes holds no answer"),
        (["m", "--cache-config=local,size=1M,sise=2"], "config didn't contain a valid 'size' field"),
        (["m", "--cache-config=local,sise=2"], "the local cache has no setting 'sise'; it has coalesce, size"),
        (["m", "--cache-config=nope,size=1M"], "there is no cache 'nope'; there are local and redis"),
        (["m", "--cache-config=redis,host=h"], "--cache-config=redis,... needs 'port'"),
        (["m", "--cache-config=redis,host=h,port=x"], "'port' is a number from 1 to 65535. Got x"),
        (["m", "--cache-config=redis,host=h,port=1,tls_enabled=maybe"], "'tls_enabled' is true or false. Got maybe"),
        (
            ["m", "--cache-config=local,size=1M", "--cache-config=redis,host=h"],
            "found multiple cache configurations, but only a single cache is currently supported",
        ),
        (
            ["m", "--cache-config=local,size=1M", "--response-cache-byte-size=1048576"],
            "Incompatible flags --response-cache-byte-size and --cache-config both provided",
        ),
        (["m", "--rate-limit=sometimes"], "--rate-limit: invalid argument, got: sometimes"),
        (["m", "--rate-limit-resource=R"], "--rate-limit-resource option format is"),
        (["m", "--rate-limit-resource=R:1:2:3"], "--rate-limit-resource option format is"),
        (["m", "--rate-limit-resource=R:x"], "Invalid option value. Got x"),
        (["m", "--grpc-restricted-protocol=health,health:a=b"], "restricted protocol 'health' can not be specified in"),
    ],
)
def test_what_is_wrong_is_said(words: list[str], text: str) -> None:
    with pytest.raises(UsageError, match=re.escape(text)):
        parse_arguments(words)


@pytest.mark.parametrize("word", ["run", "start", "sevre"])
def test_a_word_for_serve_names_serve(word: str) -> None:
    done = subprocess.run([sys.executable, "-m", "stubserve", word, "my models"], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.endswith("Did you mean: stubserve serve 'my models'\n")


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["--log-info=maybe"], "true or false"),
        (["--http-port=8o"], "a whole number"),
        (["--rate-limit=sometimes"], "off or execution_count"),
        (["--log-format=iso"], "default, ISO8601 or json"),
        (["--grpc-infer-response-compression-level=most"], "none, low, medium or high"),
        (["--check-outputs=maybe"], "never, first, always or refuse"),
    ],
)
def test_a_bad_value_names_the_good_ones(words: list[str], names: str) -> None:
    with pytest.raises(UsageError, match=names):
        parse_arguments(["m", *words])


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            ["serve", "m", "--http-port=x"],
            "--http-port: Invalid option value. Got x. Use a whole number\n\n'stubserve serve --help' lists",
        ),
        (["models"], "stubserve has no command 'models', only serve, init, check, ask, fetch, env, deploy and trace"),
        (
            ["run", "models"],
            "stubserve has no command 'run', only serve, init, check, ask, fetch, env, deploy and",
        ),
        ([], "usage: stubserve serve REPOSITORY"),
    ],
)
def test_the_command_says_it_first_and_ends_with_1(words: list[str], text: str) -> None:
    done = subprocess.run([sys.executable, "-m", "stubserve", *words], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(text)


# Every option of tritonserver 2.73, but --help
UPSTREAM = """
    allow-client-shm allow-cpu-metrics allow-gpu-metrics allow-grpc allow-http allow-metrics allow-sagemaker
    allow-vertex-ai backend-config backend-directory buffer-manager-thread-count cache-config cache-directory
    cuda-memory-pool-byte-size cuda-virtual-address-size disable-auto-complete-config enable-peer-access
    exit-on-error exit-timeout-secs grpc-address grpc-header-forward-pattern grpc-http2-max-ping-strikes
    grpc-http2-max-pings-without-data grpc-http2-min-recv-ping-interval-without-data grpc-infer-allocation-pool-size
    grpc-infer-response-compression-level grpc-infer-thread-count grpc-keepalive-permit-without-calls
    grpc-keepalive-time grpc-keepalive-timeout grpc-max-connection-age grpc-max-connection-age-grace
    grpc-max-response-pool-size grpc-port grpc-restricted-protocol grpc-root-cert grpc-server-cert grpc-server-key
    grpc-use-ssl grpc-use-ssl-mutual host-policy http-address http-header-forward-pattern http-max-input-size
    http-port http-restricted-api http-thread-count id load-model log-error log-file log-format log-info log-verbose
    log-warning metrics-address metrics-config metrics-interval-ms metrics-port min-supported-compute-capability
    model-config-name model-control-mode model-load-gpu-limit model-load-retry-count model-load-thread-count
    model-namespacing model-repository model-store pinned-memory-pool-byte-size rate-limit rate-limit-resource
    repoagent-directory repository-poll-secs response-cache-byte-size reuse-grpc-port reuse-http-port sagemaker-port
    sagemaker-safe-port-range sagemaker-thread-count strict-model-config strict-readiness trace-config trace-count
    trace-file trace-level trace-log-frequency trace-rate vertex-ai-default-model vertex-ai-port
    vertex-ai-thread-count
"""


@pytest.mark.parametrize("name", UPSTREAM.split())
def test_every_flag_of_upstream_is_known(name: str) -> None:
    places = [name in {flag.name for flag in FLAGS}, name in UNNEEDED]
    assert places.count(True) == 1


# Those of Triton's own front end for OpenAI's protocol
OPENAI = """
    --model-repository m --tokenizer . --backend vllm --lora-separator + --tritonserver-log-verbose-level 1
    --host 127.0.0.1 --tool-call-parser llama3 --max-tool-call-parse-bytes 512 --chat-template x.jinja
    --default-max-tokens 16 --model-control-mode explicit --load-model * --openai-port 9000 --uvicorn-log-level info
    --openai-restricted-api inference,model-repository admin-key admin-value --openai-restricted-api metrics key value
    --http-max-input-size 1000 --enable-kserve-frontends --kserve-http-port 8010 --kserve-grpc-port 8011
"""


def test_a_command_line_of_the_front_end_for_openai() -> None:
    settings = parse_arguments(OPENAI.split()).with_addresses()
    http = settings.http
    assert (http.address, http.port, http.openai_port) == ("127.0.0.1", 8010, 9000)
    assert (settings.grpc.address, settings.grpc.port, settings.logging.verbose) == ("127.0.0.1", 8011, 1)
    admin = ("admin-key", "admin-value")
    assert http.openai_restrictions == ({"inference": admin, "model-repository": admin}, {"metrics": ("key", "value")})
    assert settings.instances.tokenizer == Path()
    assert len(settings.notices) == 8
    assert all(" has no effect: " in notice for notice in settings.notices)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("--openai-port=70000", "--openai-port must be a number from 0"),
        ("--tokenizer=meta-llama/Meta-Llama-3", "nothing is fetched from Hugging Face here"),
        ("--openai-port=0 --openai-restricted-api x key value", "Unknown API 'x'. Available APIs: ['inference',"),
        ("--openai-port=0 --openai-restricted-api inference key", "it needs three words"),
        (
            "--openai-port=0 --openai-restricted-api inference k v --openai-restricted-api inference k v",
            "restricted api 'inference' can not be specified in multiple config groups",
        ),
        ("--openai-restricted-api inference key value", "--openai-restricted-api needs --openai-port"),
    ],
)
def test_wrong_values_for_the_front_end_for_openai(words: str, text: str) -> None:
    with pytest.raises(UsageError, match=re.escape(text)):
        parse_arguments(["m", *words.split()])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("http-thread-count", "8"),
        ("cuda-virtual-address-size", "0:1099511627776"),
        ("host-policy", "gpu_0,cpu-cores=0-3"),
    ],
)
def test_what_nothing_here_could_heed_is_said_to_be_without_effect(name: str, value: str) -> None:
    (notice,) = parse_arguments(["m", f"--{name}={value}"]).notices
    assert notice.startswith(f"--{name} has no effect: ")
    assert parse_arguments(["m", f"--{name}", value]).notices == (notice,)


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("--http-thread-count=x", "Invalid option value. Got x"),
        ("--pinned-memory-pool-byte-size=9223372036854775808", "Provided option value is out of bound. Got 9223372"),
        ("--cuda-memory-pool-byte-size=1", "argument requires format <first>:<second>. Found: 1"),
        ("--cuda-virtual-address-size=0:x", "Invalid option value. Got x"),
        ("--min-supported-compute-capability=new", "Invalid option value. Got new"),
        ("--model-load-gpu-limit=0:2", "expects limit fraction to be in range [0.0, 1.0], got 2"),
        ("--model-load-gpu-limit=a:0.1", "Invalid option value. Got a"),
        ("--host-policy=x", "--host-policy option format is '<policy name>,<setting>=<value>'. Got x"),
        ("--host-policy=a,b=c", "Unsupported host policy setting 'b' is specified, supported settings are 'numa-node'"),
        ("--enable-peer-access=x", "invalid value for bool option: x"),
        ("--model-load-retry-count=-1", "a count is a number from 0 on. Got -1"),
    ],
)
def test_values_of_flags_without_effect_are_read_as_upstream_reads_them(word: str, text: str) -> None:
    with pytest.raises(UsageError, match=re.escape(text)):
        parse_arguments(["m", word])


def test_the_former_name_of_a_flag() -> None:
    assert parse_arguments(["m", "--strict-model-config=true"]).repository.disable_auto_complete
