"""Nothing executable is deserialised, and no shell is started: which modules could, and do not; a new one has to be
argued for here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Modules that make code, or objects of any class, of bytes; and functions that do.
MODULES = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml", "dbm", "code"}
CALLS = {"eval", "exec", "compile", "__import__"}
FUNCTIONS = {"torch.load", "np.load", "numpy.load", "runpy.run_path", "runpy.run_module"}

# What reads a text as a command line
SHELLS = {
    "os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput", "asyncio.create_subprocess_shell",
    "pty.spawn",
}  # fmt: skip

# What is there, and why it is right.
ALLOWED = {
    # The model's own module, which is code by its nature and the operator's
    "stub/stubserve_stub/backends/python/model.py": {"__import__"},
    # Writes only: what is hashed to know a request again
    "src/stubserve/response_cache/key.py": {"marshal.dumps"},
    # Weights only, and within `unpickling`, which refuses every name but those of tensors
    # Told by the user to look at it, in a process of its own
    "src/stubserve/commands/model_file.py": {"pickle.load"},
    "stub/stubserve_stub/backends/pytorch/saved.py": {"torch.load"},
}


def found_in(tree: ast.AST) -> Iterator[str]:
    """What is called of those; of a module that is imported every name that is used, or the module for none."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for module in (alias.name for alias in node.names if alias.name.partition(".")[0] in MODULES):
                used = [one for one in ast.walk(tree) if isinstance(one, ast.Attribute)]
                names = [ast.unparse(one) for one in used if ast.unparse(one.value) == module]
                yield from names or [module]
        elif isinstance(node, ast.ImportFrom):
            if (node.module or "").partition(".")[0] in MODULES and not node.level:
                yield str(node.module)
        elif isinstance(node, ast.Call):
            function = node.func
            if isinstance(function, ast.Name) and function.id in CALLS:
                yield function.id
            elif ast.unparse(function) in FUNCTIONS:
                yield ast.unparse(function)


def test_nothing_executable_is_deserialised() -> None:
    found: dict[str, set[str]] = {}
    for folder in ("src", "stub"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            names = set(found_in(ast.parse(path.read_text())))
            if names:
                found[str(path.relative_to(ROOT))] = names
    assert found == ALLOWED


def shells_in(tree: ast.AST) -> Iterator[str]:
    """The calls that start a shell, or could."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if ast.unparse(node.func) in SHELLS or any(keyword.arg == "shell" for keyword in node.keywords):
                yield ast.unparse(node)
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names if f"{node.module}.{alias.name}" in SHELLS)


def test_no_shell_is_started() -> None:
    """What is started is a list of words, so no name, path or value is ever read as a command."""
    found = {
        str(path.relative_to(ROOT)): calls
        for folder in ("src", "stub")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if (calls := list(shells_in(ast.parse(path.read_text()))))
    }
    assert found == {}


@pytest.mark.parametrize("text", ["os.system('x')", "subprocess.run(x, shell=True)", "from os import popen"])
def test_a_shell_would_be_found(text: str) -> None:
    assert list(shells_in(ast.parse(text)))


def test_weights_are_loaded_as_weights_only() -> None:
    tree = ast.parse((ROOT / "stub/stubserve_stub/backends/pytorch/saved.py").read_text())
    loads = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "load"
        if isinstance(node.func.value, ast.Name) and node.func.value.id == "torch"
    ]
    assert loads
    for call in loads:
        [only] = [keyword.value for keyword in call.keywords if keyword.arg == "weights_only"]
        assert isinstance(only, ast.Constant)
        assert only.value is True


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("import pickle", ["pickle"]),
        ("import marshal; marshal.loads(x)", ["marshal.loads"]),
        ("from yaml import load", ["yaml"]),
        ("eval('1')", ["eval"]),
        ("model.eval()", []),
        ("torch.load('x')", ["torch.load"]),
        ("from .code import x", []),
        ("re.compile('x')", []),
    ],
)
def test_it_would_be_found(text: str, names: list[str]) -> None:
    assert list(found_in(ast.parse(text))) == names
