import logging
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stubserve.errors import Code, ServeError
from stubserve.model_config.parse import parse_text
from stubserve.model_config.proto import ModelConfig
from stubserve.repository.candidate import find_candidate
from stubserve.repository.folder import (
    ModelFolder,
    available_versions,
    check_model_name,
    list_names,
    locate,
    read_config,
    read_labels,
    survey,
)
from stubserve.settings.groups import RepositorySettings

LATEST = parse_text("version_policy { latest { num_versions: 1 } }", "c")


@pytest.fixture
def folder(tmp_path: Path) -> ModelFolder:
    path = tmp_path / "m"
    path.mkdir()
    return ModelFolder("m", path, tmp_path)


def add(path: Path, *names: str) -> None:
    for name in names:
        (path / name).mkdir(parents=True)


def refusal(error: pytest.ExceptionInfo[ServeError]) -> str:
    return error.value.status_text


# Names


@pytest.mark.parametrize("name", ["m", "add_sub", "net-1.2", "sp ace", "größe", "-m", "a.b.c"])
def test_good_names(name: str) -> None:
    check_model_name(name)


@pytest.mark.parametrize("name", ["..", ".", "../m", "m/..", "/etc", "a/b", "a\\b"])
def test_names_that_leave_the_repository(name: str) -> None:
    with pytest.raises(ServeError) as caught:
        check_model_name(name)
    assert refusal(caught) == (
        f"Invalid argument: invalid model name '{name}', model name must not contain path traversal characters"
    )


@pytest.mark.parametrize("name", [*(f"m{c}" for c in ";|&$`<>()[]{}\"'*?~#!"), "a\nb", "a\0b"])
def test_names_with_forbidden_characters(name: str) -> None:
    with pytest.raises(ServeError) as caught:
        check_model_name(name)
    assert refusal(caught) == "Invalid argument: Invalid stub name: contains invalid characters"


@pytest.mark.parametrize("name", ["...", "a..b", "..m", "m.."])
def test_names_of_dots_that_stay_in_the_repository(name: str) -> None:
    check_model_name(name)


def test_a_folder_of_dots_is_no_hidden_one(tmp_path: Path) -> None:
    for name in ("...", ".git"):
        (tmp_path / name).mkdir()
    assert list(survey([tmp_path]).models) == list(list_names([tmp_path])) == ["..."]


@pytest.mark.parametrize("name", ["", " ", "  \t"])
def test_empty_name(name: str) -> None:
    with pytest.raises(ServeError) as caught:
        check_model_name(name)
    assert refusal(caught) == "Invalid argument: Model name cannot be empty. Please enter a valid name to deploy."


@settings(deadline=None)
@given(st.text())
def test_an_accepted_name_stays_in_its_repository(name: str) -> None:
    try:
        check_model_name(name)
    except ServeError:
        return
    assert (Path("/repository") / name).resolve().parent == Path("/repository")


# Surveying


def test_survey(tmp_path: Path) -> None:
    add(tmp_path, "b", "a")
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    models = survey([tmp_path]).models
    assert models == {name: ModelFolder(name, tmp_path / name, tmp_path) for name in ("a", "b", "link")}
    assert list(models) == ["a", "b", "link"]


def test_survey_skips_what_is_no_model(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    add(tmp_path, ".git", "__pycache__", "m", "a;b")
    assert list(survey([tmp_path]).models) == ["m"]
    assert [record.getMessage() for record in caplog.records] == [
        f"ignore model directory '{tmp_path}/a;b': Invalid stub name: contains invalid characters"
    ]


def test_a_model_in_two_repositories_is_served_from_neither(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    add(tmp_path, "r1/a", "r1/b", "r2/a", "r2/c", "r3/a")
    repositories = [tmp_path / "r1", tmp_path / "r2", tmp_path / "r3"]
    found = survey(repositories)
    assert list(found.models) == ["b", "c"]
    assert found.models["c"].repository == tmp_path / "r2"
    assert found.duplicates == {"a"}
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (logging.ERROR, "failed to poll model 'a': not unique across all model repositories")
    ]


@pytest.mark.parametrize("kind", ["missing", "file"])
def test_a_repository_that_can_not_be_listed(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "r"
    if kind == "file":
        path.write_text("")
    with pytest.raises(ServeError) as caught:
        survey([tmp_path, path])
    assert refusal(caught).startswith(f"Internal: failed to open directory {path}: ")


def test_locate(tmp_path: Path) -> None:
    add(tmp_path, "r1/a", "r1/b", "r2/a")
    repositories = [tmp_path / "r1", tmp_path / "r2"]
    assert locate(repositories, "b") == ModelFolder("b", tmp_path / "r1" / "b", tmp_path / "r1")
    with pytest.raises(ServeError, match=r"^model appears in two or more repositories$"):
        locate(repositories, "a")
    for name in ("c", "x" * 5000):
        with pytest.raises(ServeError, match=r"^model not found in any model repository$"):
            locate(repositories, name)
    with pytest.raises(ServeError, match="path traversal"):
        locate(repositories, "../r1")


# Configuration


def test_no_config(folder: ModelFolder) -> None:
    assert read_config(folder) is None


def test_config(folder: ModelFolder) -> None:
    (folder.path / "config.pbtxt").write_text("max_batch_size: 3")
    assert read_config(folder) == ModelConfig(max_batch_size=3)


def test_config_with_byte_order_mark(folder: ModelFolder) -> None:
    (folder.path / "config.pbtxt").write_bytes(b"\xef\xbb\xbfmax_batch_size: 3")
    assert read_config(folder) == ModelConfig(max_batch_size=3)


def test_custom_config_name(folder: ModelFolder) -> None:
    (folder.path / "config.pbtxt").write_text("max_batch_size: 1")
    assert read_config(folder, "small") == ModelConfig(max_batch_size=1)
    add(folder.path, "configs")
    (folder.path / "configs" / "small.pbtxt").write_text("max_batch_size: 2")
    assert read_config(folder, "small") == ModelConfig(max_batch_size=2)
    assert read_config(folder) == ModelConfig(max_batch_size=1)


def test_comments_may_be_in_any_encoding(folder: ModelFolder) -> None:
    text = 'name: "# gr\u00fcn" # gr\u00fcn "\nmax_batch_size: 2'.encode()
    (folder.path / "config.pbtxt").write_bytes(text.replace(b" # gr\xc3\xbcn", b" # gr\xfcn"))
    assert read_config(folder) == ModelConfig(name="# gr\u00fcn", max_batch_size=2)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"foo: 1", "failed to read text proto from {}: line 1, column 1: "),
        (b'name: "\xff"', "failed to read text proto from {}: no UTF-8 at byte 7"),
        (b'# \xff "\nname: "\xff"', "failed to read text proto from {}: no UTF-8 at byte 13"),
        (None, "failed to open text file for read {}: Is a directory"),
    ],
)
def test_unreadable_config_is_named(content: bytes | None, text: str, folder: ModelFolder) -> None:
    path = folder.path / "config.pbtxt"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    with pytest.raises(ServeError) as caught:
        read_config(folder)
    assert refusal(caught).startswith("Internal: " + text.format(path))


# Versions


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("latest { num_versions: 1 }", [10]),
        ("latest { num_versions: 2 }", [3, 10]),
        ("latest { num_versions: 9 }", [0, 1, 3, 10]),
        ("all {}", [0, 1, 3, 10]),
        ("", [0, 1, 3, 10]),
        ("specific { versions: [10, 1, 1] }", [1, 10]),
    ],
)
def test_version_policy(policy: str, expected: list[int], folder: ModelFolder) -> None:
    add(folder.path, "0", "1", "3", "10")
    config = parse_text(f"version_policy {{ {policy} }}", "c")
    assert available_versions(folder, config) == expected
    assert [folder.version_path(version).is_dir() for version in expected] == [True] * len(expected)


@pytest.mark.parametrize(
    "policy", ["latest { num_versions: 1 }", "latest {}", "specific { versions: 5 }", "specific {}"]
)
def test_no_version_left(policy: str, folder: ModelFolder) -> None:
    if policy != "latest { num_versions: 1 }":
        add(folder.path, "1")
    with pytest.raises(ServeError) as caught:
        available_versions(folder, parse_text(f"version_policy {{ {policy} }}", "c"))
    assert refusal(caught) == (
        "Invalid argument: at least one version must be available under the version policy of model 'm'"
    )


@pytest.mark.parametrize(
    ("file", "config", "advice"),
    [
        ("model.py", "", "model.py belongs in a folder for its version: mkdir {0}/1 && mv {0}/model.py {0}/1"),
        ("model.onnx", "", "model.onnx belongs in a folder for its version: mkdir {0}/1 && mv {0}/model.onnx {0}/1"),
        ("", "ensemble_scheduling {}", "as .gitkeep): mkdir {0}/1"),
        ("", "", "Make a folder for its version, with the model's file in it: {0}/1/model.py"),
    ],
)
def test_the_log_says_how_to_make_a_version(file: str, config: str, advice: str, folder: ModelFolder) -> None:
    if file:
        (folder.path / file).touch()
    with pytest.raises(ServeError) as caught:
        available_versions(folder, parse_text(config, "c"))
    assert advice.format(folder.path) in caught.value.log_message
    assert advice.format(folder.path) not in caught.value.message


def test_the_log_says_so_where_there_is_no_configuration_either(folder: ModelFolder) -> None:
    (folder.path / "model.py").touch()
    with pytest.raises(ServeError) as caught:
        find_candidate(folder, RepositorySettings(), None, None)
    advice = f" model.py belongs in a folder for its version: mkdir {folder.path}/1 && mv {folder.path}/model.py"
    assert caught.value.message.startswith("Invalid model name: Could not determine backend for model 'm'")
    assert caught.value.log_message.startswith(caught.value.message + advice)


def test_missing_specific_version_is_logged(folder: ModelFolder, caplog: pytest.LogCaptureFixture) -> None:
    add(folder.path, "1")
    config = parse_text("version_policy { specific { versions: [1, 5] } }", "c")
    assert available_versions(folder, config) == [1]
    assert [record.getMessage() for record in caplog.records] == [
        "version 5 is specified for model 'm', but the version directory is not present"
    ]


def test_folders_that_are_no_versions(folder: ModelFolder, caplog: pytest.LogCaptureFixture) -> None:
    add(folder.path, "2", "warmup", "initial_state", "configs", ".git", "__pycache__")
    (folder.path / "7").write_text("a file")
    assert available_versions(folder, LATEST) == [2]
    assert caplog.records == []


def test_a_folder_that_a_parameter_names_is_no_version(folder: ModelFolder, caplog: pytest.LogCaptureFixture) -> None:
    add(folder.path, "2", "clips", "voices")
    parameters = "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'
        for key, value in (("files", "clips"), ("default", "voices/low.wav"), ("limit", "2"))
    )
    assert available_versions(folder, parse_text(parameters, "c")) == [2]
    assert caplog.records == []


@pytest.mark.parametrize("name", ["007", "00"])
def test_leading_zeros_are_ignored(name: str, folder: ModelFolder, caplog: pytest.LogCaptureFixture) -> None:
    add(folder.path, "1", name)
    assert available_versions(folder, LATEST) == [1]
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (
            logging.WARNING,
            f"ignore version directory '{folder.path / name}' which contains leading zeros in its directory name",
        )
    ]


@pytest.mark.parametrize("name", ["abc", "-3", "+3", "1abc", "1.5", " 2", "9223372036854775808", "\u0663"])
def test_other_names_are_ignored(name: str, folder: ModelFolder, caplog: pytest.LogCaptureFixture) -> None:
    add(folder.path, "1", name)
    assert available_versions(folder, LATEST) == [1]
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (
            logging.WARNING,
            f"ignore version directory '{folder.path / name}' which fails to convert to integral number",
        )
    ]


def test_vanished_model(tmp_path: Path) -> None:
    gone = ModelFolder("m", tmp_path / "m", tmp_path)
    with pytest.raises(ServeError) as caught:
        available_versions(gone, LATEST)
    assert refusal(caught) == f"Internal: failed to open directory {tmp_path}/m: No such file or directory"


# Labels


def labelled(*filenames: str) -> ModelConfig:
    config = ModelConfig(name="m")
    for index, filename in enumerate(filenames):
        config.output.add(name=f"Y{index}", label_filename=filename)
    return config


@pytest.mark.parametrize(
    ("content", "labels"),
    [
        (b"cat\ndog\n", ["cat", "dog"]),
        (b"cat\ndog", ["cat", "dog"]),
        (b"cat\n\ndog\n\n", ["cat", "", "dog", ""]),
        (b"", []),
        ("größe\n".encode(), ["größe"]),
        (b"\xff\n", ["\ufffd"]),
    ],
)
def test_labels(content: bytes, labels: list[str], folder: ModelFolder) -> None:
    (folder.path / "labels.txt").write_bytes(content)
    assert read_labels(folder, labelled("labels.txt", "")) == {"Y0": labels}


def test_label_path_is_relative_to_the_model(folder: ModelFolder) -> None:
    add(folder.path, "sub")
    (folder.path / "sub" / "l.txt").write_text("a")
    assert read_labels(folder, labelled("/sub/l.txt", "sub/l.txt")) == {"Y0": ["a"], "Y1": ["a"]}


@pytest.mark.parametrize("filename", ["../secret.txt", "sub/../../secret.txt", "link.txt", "../m2/l.txt"])
def test_label_file_outside(filename: str, folder: ModelFolder) -> None:
    (folder.repository / "secret.txt").write_text("secret")
    add(folder.repository, "m2")
    (folder.repository / "m2" / "l.txt").write_text("secret")
    (folder.path / "link.txt").symlink_to(folder.repository / "secret.txt")
    with pytest.raises(ServeError) as caught:
        read_labels(folder, labelled(filename))
    assert caught.value.code == Code.UNSUPPORTED
    assert caught.value.message == (
        f"label file path '{folder.path}/{filename}' for output 'Y0' in model 'm' is outside model directory"
    )


def test_missing_label_file(folder: ModelFolder) -> None:
    with pytest.raises(ServeError) as caught:
        read_labels(folder, labelled("x.txt"))
    assert refusal(caught) == (
        f"Internal: failed to open text file for read {folder.path}/x.txt: No such file or directory"
    )


def test_two_label_files_for_one_output(folder: ModelFolder) -> None:
    (folder.path / "l.txt").write_text("a")
    config = labelled("l.txt", "l.txt")
    config.output[1].name = "Y0"
    with pytest.raises(ServeError) as caught:
        read_labels(folder, config)
    assert refusal(caught) == "Internal: multiple label files for 'Y0'"
