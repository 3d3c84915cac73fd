"""What the system refuses is said as what it is: limits, permissions, and mistakes in files."""

from __future__ import annotations

from pathlib import Path

from tests.real_server import PATIENCE_S, Serving, refused, write_model
from tests.server.privileges import needs_setpriv, unprivileged


def write_model_in(environment: Path, repository: Path) -> None:
    folder = write_model(repository, "echo")
    with open(folder / "config.pbtxt", "a") as config:
        config.write(f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{environment}" }} }}\n')


def refused_while_locked(home: Path, repository: Path) -> Serving:
    """A server that has not started, where nobody may enter `home`."""
    home.chmod(0)
    try:
        return refused(repository, *unprivileged())
    finally:
        home.chmod(0o700)


def limited(limit: str) -> list[str]:
    return ["sh", "-c", f'ulimit {limit}; exec "$@"', "sh"]


def test_a_limit_on_the_size_of_files(repository: Path) -> None:
    write_model(repository, "echo")
    server = refused(repository, *limited("-f 1000"))
    server.wait_for(r"error: creating server: File too large: a file may have \d+ bytes at most \(ulimit -f\)")


def test_a_limit_on_open_files(repository: Path) -> None:
    write_model(repository, "echo")
    # Enough for the server, and not for a stub
    for count in range(20, 60, 2):
        server = Serving(repository, "--allow-grpc=false", "--allow-metrics=false")
        server.command = [*limited(f"-n {count}"), *server.command]
        server.start()
        server.process.wait(PATIENCE_S)
        server.stop()
        if "Stub process 'echo_0' cannot be started" in server.output:
            break
    server.wait_for(rf"Too many open files: this process may have {count} files open \(ulimit -n;")


@needs_setpriv
def test_an_environment_in_a_home_that_others_may_not_enter(repository: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "env" / "bin").mkdir(parents=True)
    (home / "env" / "bin" / "python").symlink_to("/usr/bin/python3")
    (home / "env" / "bin" / "activate").touch()
    write_model_in(home / "env", repository)
    server = refused_while_locked(home, repository)
    server.wait_for(rf"{home}/env\. It cannot be reached: the server's user \(\d+\) may not enter '{home}' \(mode 0000")


@needs_setpriv
def test_an_interpreter_that_lies_where_others_may_not_enter(repository: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "python").symlink_to("/usr/bin/python3")
    (tmp_path / "env" / "bin").mkdir(parents=True)
    (tmp_path / "env" / "bin" / "python").symlink_to(home / "bin" / "python")
    (tmp_path / "env" / "bin" / "activate").touch()
    write_model_in(tmp_path / "env", repository)
    server = refused_while_locked(home, repository)
    server.wait_for(rf"'{home}/bin/python' cannot be reached: the server's user \(\d+\) may not enter '{home}'")


@needs_setpriv
def test_an_archive_that_may_not_be_read(repository: Path) -> None:
    archive = repository / "echo" / "env.tar.gz"
    write_model_in(archive, repository)
    archive.touch(mode=0o000)
    server = refused(repository, *unprivileged())
    server.wait_for(rf"cannot use {archive}: the server's user \(\d+\) may not read it \(mode 0000.*chmod a\+r")


def test_a_misspelt_field_is_told_with_its_line_and_what_was_meant(repository: Path) -> None:
    write_model(repository, "misspelt", config='backend: "python"\nmax_batchsize: 4\n')
    file = repository / "misspelt" / "config.pbtxt"
    refused(repository).wait_for(
        rf"(?m)^    {file}:2: ModelConfig has no field named 'max_batchsize'; did you mean 'max_batch_size'\?\n"
        r"        max_batchsize: 4\n"
        r"        \^$"
    )


def test_a_field_that_makes_no_sense_is_told_with_its_line(repository: Path) -> None:
    config = 'backend: "python"\nmax_batch_size: 4\ninput [ { name: "A" dims: [ 1 ] } ]\n'
    write_model(repository, "untyped", config=config)
    file = repository / "untyped" / "config.pbtxt"
    refused(repository).wait_for(rf"must specify 'data_type'.*\n    {file}:3\n        input \[ ")


def test_mistakes_in_tensors_come_before_missing_versions_where_nothing_is_completed(repository: Path) -> None:
    given = 'input [ { name: "I" data_type: TYPE_FP32 dims: 1 } ]'
    returned = 'output [ { name: "O" data_type: TYPE_FP32 dims: 1 } ]'
    mistakes = {
        "dims": (f'input [ {{ name: "I" data_type: TYPE_FP32 }} ] {returned}', "model input 'I' must specify 'dims'"),
        "named": (f"{given} output [ {{ data_type: TYPE_FP32 dims: 1 }} ]", "model output must specify 'name'"),
        "made": (
            f"{given} {returned} batch_input [ {{ kind: BATCH_ELEMENT_COUNT target_name: 'X' data_type: TYPE_FP32 "
            "source_input: 'nosuch' } ]",
            "unknown source input name 'nosuch'",
        ),
    }
    for name, (text, _) in {**mistakes, "fine": (f"{given} {returned}", "")}.items():
        (repository / name).mkdir()
        (repository / name / "config.pbtxt").write_text(f'backend: "python" {text}')
    with Serving(repository, "--model-control-mode=explicit", "--disable-auto-complete-config") as server:
        for name, (_, reason) in mistakes.items():
            answer = server.request("POST", f"/v2/repository/models/{name}/load", b"{}")
            wrong = f"failed to load '{name}', failed to poll from model repository: {reason} for {name}"
            assert (answer.status, answer.error) == (500, wrong)
        answer = server.request("POST", "/v2/repository/models/fine/load", b"{}")
        assert answer.error.startswith("load failed for model 'fine': at least one version must be available under")


def test_a_log_in_a_file_does_not_hide_why_there_is_no_start(repository: Path, tmp_path: Path) -> None:
    write_model(repository, "broken", "import nothing_of_that_name\n")
    server = Serving(repository, f"--log-file={tmp_path / 'log'}")
    server.start()
    assert server.process.wait(PATIENCE_S) == 1
    server.stop()
    assert "error: creating server: Internal - failed to load all models" in server.output
    assert "No module named 'nothing_of_that_name'" in (tmp_path / "log").read_text()
