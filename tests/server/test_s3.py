"""Models served from S3, which is moto's server here: loads, polling, what is fetched when, and what goes wrong."""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

from tests.environments.made import MODEL, TELLS
from tests.real_server import Serving, binary_output, eventually, io_config, write_model
from tests.s3_store import KEYS, S3Store
from tests.server.ensembles import load, run, unload, values
from tests.server.test_environments import small_archive, versions
from tests.server.test_model_control import NUMBER

pytest.importorskip("s3fs", reason="`make test-long` installs it")
# The store is large, and slow to start.
pytestmark = pytest.mark.long

EXPLICIT = "--model-control-mode=explicit"


@pytest.fixture(scope="module")
def store() -> Iterator[S3Store]:
    with S3Store() as store:
        yield store


class Bucket:
    """A bucket with a repository, and the folder where its models are written before."""

    def __init__(self, store: S3Store, name: str, home: Path) -> None:
        self.store = store
        self.name = name
        self.home = home
        store.make_bucket(name)

    @property
    def address(self) -> str:
        return self.store.address(f"{self.name}/models")

    def number(self, model: str, value: float) -> None:
        self.store.put_folder(self.name, f"models/{model}", write_model(self.home, model, NUMBER.format(value, value)))

    def serving(self, *flags: str, environment: dict[str, str] | None = None) -> Serving:
        variables = {"XDG_CACHE_HOME": str(self.home / "cache"), **KEYS, **(environment or {})}
        return Serving(self.address, *flags, environment=variables)


@pytest.fixture
def bucket(store: S3Store, tmp_path: Path, request: pytest.FixtureRequest) -> Bucket:
    return Bucket(store, re.sub(r"[^a-z0-9]", "-", request.node.name.lower())[:50], tmp_path)


def test_models_are_loaded_and_fetched_once(bucket: Bucket) -> None:
    bucket.number("one", 1)
    bucket.store.put(bucket.name, "models/one/1/big.bin", bytes(1 << 20))
    bucket.number("two", 2)
    with bucket.serving(EXPLICIT, "--load-model=one") as server:
        assert values(run(server, "one", 0)) == [1]
        assert run(server, "two", 0).status == 404
        rows = server.request("POST", "/v2/repository/index").json()
        assert [row["name"] for row in rows] == ["one", "two"]
        assert load(server, "two").status == 200
        assert values(run(server, "two", 0)) == [2]
        bucket.number("one", 11)
        assert values(run(server, "one", 0)) == [1]
        assert load(server, "one").status == 200
        assert values(run(server, "one", 0)) == [11]
        assert bucket.store.gets(f"/{bucket.name}/models/one/1/big.bin") == 1
        answer = load(server, "three")
        assert (answer.status, "model not found in any model repository" in answer.error) == (500, True)
    with bucket.serving() as server:
        assert values(run(server, "one", 0)) == [11]
        assert bucket.store.gets(f"/{bucket.name}/models/one/1/big.bin") == 1
        (copies,) = (bucket.home / "cache" / "stubserve" / "repositories").glob("*/servers/*")
        server.process.send_signal(signal.SIGKILL)
    with bucket.serving() as server:
        assert not copies.exists()
        assert values(run(server, "two", 0)) == [2]
    assert not list((bucket.home / "cache" / "stubserve" / "repositories").glob("*/servers/*"))


def test_changes_are_found(bucket: Bucket) -> None:
    bucket.number("changes", 1)
    bucket.number("goes", 1)
    with bucket.serving("--model-control-mode=poll", "--repository-poll-secs=1") as server:
        bucket.number("changes", 2)
        bucket.number("comes", 3)
        bucket.store.delete(bucket.name, "models/goes/")
        eventually(lambda: values(run(server, "changes", 0)) == [2])
        eventually(lambda: run(server, "comes", 0).status == 200)
        eventually(lambda: run(server, "goes", 0).status == 404)
        # Half of an upload: the configuration is there, the model is not yet.
        bucket.store.put(bucket.name, "models/half/config.pbtxt", (bucket.home / "comes" / "config.pbtxt").read_bytes())
        server.wait_for("failed to load|Poll failed for model directory 'half'")
        bucket.store.put_folder(bucket.name, "models/half/1", bucket.home / "comes" / "1")
        eventually(lambda: run(server, "half", 0).status == 200)
        # The repository vanishes: what serves goes on.
        bucket.store.process.send_signal(signal.SIGSTOP)
        try:
            assert [values(run(server, name, 0)) for name in ("changes", "comes")] == [[2], [3]]
            server.wait_for("[Tt]he last known state of it is used")
            assert values(run(server, "comes", 0)) == [3]
        finally:
            bucket.store.process.send_signal(signal.SIGCONT)
        bucket.number("comes", 4)
        eventually(lambda: values(run(server, "comes", 0)) == [4])


def test_what_is_wrong_is_said(bucket: Bucket, tmp_path: Path) -> None:
    with pytest.raises(AssertionError) as caught, bucket.serving(environment={"TRITON_CLOUD_CREDENTIAL_PATH": "/no"}):
        pass
    assert "the file of credentials /no, which TRITON_CLOUD_CREDENTIAL_PATH names, cannot be read: No such" in str(
        caught.value
    )
    nowhere = Bucket.__new__(Bucket)
    nowhere.store, nowhere.name, nowhere.home = bucket.store, "no-such-bucket", tmp_path
    with pytest.raises(AssertionError) as caught, nowhere.serving():
        pass
    assert f"repository '{nowhere.address}' cannot be read: " in str(caught.value)


def test_an_unreachable_store_holds_up_nobody(bucket: Bucket, repository: Path) -> None:
    write_model(repository, "local", NUMBER.format(5, 5))
    bucket.number("remote", 1)
    with bucket.serving(f"--model-repository={repository}", EXPLICIT, "--load-model=local") as server:
        bucket.store.process.send_signal(signal.SIGSTOP)
        try:
            connection = server.connect()
            connection.request("POST", "/v2/repository/models/remote/load")
            assert values(run(server, "local", 0)) == [5]
            assert server.get("/v2/health/live").status == 200
        finally:
            bucket.store.process.send_signal(signal.SIGCONT)
        assert connection.getresponse().status == 200
        connection.close()
        assert values(run(server, "remote", 0)) == [1]
        assert unload(server, "remote").status == 200


def test_wrong_credentials(tmp_path: Path) -> None:
    with S3Store(open_for=3) as store:
        bucket = Bucket(store, "closed", tmp_path)
        bucket.number("secret", 1)
        with pytest.raises(AssertionError) as caught, bucket.serving():
            pass
        assert re.search(
            r"repository '.*/closed/models' cannot be read: .*Access Key Id.*Credentials come from AWS_ACCESS_KEY_ID",
            str(caught.value),
        )


# A backend in Python whose models are files of numbers beside their configuration.
TIMES = """
    import json, os
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            path = os.path.join(args["model_repository"], args["model_version"], "factor.json")
            with open(path) as file:
                self.factor = json.load(file)

        def execute(self, requests):
            return [
                pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy() * self.factor)])
                for request in requests
            ]
"""


def test_environments_and_backends_in_python(bucket: Bucket, tmp_path: Path) -> None:
    """An archive beside the model, fetched once and extracted once; a model whose backend lies on this machine."""
    home, name = bucket.home, bucket.name
    config = TELLS.format("$$TRITON_MODEL_DIRECTORY/env.tar.gz", "")
    bucket.store.put_folder(name, "models/packed", write_model(home, "packed", MODEL, config))
    bucket.store.put(name, "models/packed/env.tar.gz", small_archive(tmp_path).read_bytes())
    bucket.store.put(name, "models/times/config.pbtxt", io_config().replace('"python"', '"times"').encode())
    bucket.store.put(name, "models/times/1/factor.json", b"3")
    write_model(tmp_path / "backends", "times", TIMES)
    (tmp_path / "backends" / "times" / "1" / "model.py").rename(tmp_path / "backends" / "times" / "model.py")
    flags = (
        f"--backend-directory={tmp_path / 'backends'}",
        f"--environment-cache={tmp_path / 'environments'}",
        EXPLICIT,
    )
    with bucket.serving(*flags, "--load-model=*") as server:
        prefix = Path(versions(server, "packed")[2])
        assert prefix.parent == tmp_path / "environments"
        assert binary_output(server.infer_array("times", np.array([2], np.float32))).tolist() == [6]
        # Another file of numbers: the environment is neither fetched nor extracted again.
        bucket.store.put(name, "models/times/1/factor.json", b"4")
        bucket.store.put(name, "models/packed/1/model.py", (dedent(MODEL) + "\n# changed\n").encode())
        assert [load(server, model).status for model in ("times", "packed")] == [200, 200]
        assert binary_output(server.infer_array("times", np.array([2], np.float32))).tolist() == [8]
        assert Path(versions(server, "packed")[2]) == prefix
        server.wait_for_all("Extracting Python execution env", 1)
        assert bucket.store.gets(f"/{name}/models/packed/env.tar.gz") == 1


def test_servers_of_one_machine_that_start_together_share_the_work(bucket: Bucket, tmp_path: Path) -> None:
    """As replicas of a fleet do: each object is fetched once, and an environment is extracted once."""
    config = TELLS.format("$$TRITON_MODEL_DIRECTORY/env.tar.gz", "")
    bucket.store.put_folder(bucket.name, "models/packed", write_model(bucket.home, "packed", MODEL, config))
    bucket.store.put(bucket.name, "models/packed/env.tar.gz", small_archive(tmp_path).read_bytes())
    bucket.store.put(bucket.name, "models/packed/1/big.bin", bytes(16 << 20))
    with contextlib.ExitStack() as stack, ThreadPoolExecutor() as threads:
        cache = f"--environment-cache={tmp_path / 'environments'}"
        servers = list(threads.map(lambda _: stack.enter_context(bucket.serving(cache)), range(3)))
        prefixes = {Path(versions(server, "packed")[2]) for server in servers}
        assert len(prefixes) == 1
        assert sum("Extracting Python execution env" in server.output for server in servers) == 1
    for name in ("env.tar.gz", "1/big.bin", "1/model.py"):
        assert bucket.store.gets(f"/{bucket.name}/models/packed/{name}") == 1
