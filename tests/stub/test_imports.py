"""The stub's modules import in one direction, and none in a circle; imports for type checkers count as well."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import stubserve_stub

PACKAGE = Path(stubserve_stub.__file__).parent

# Each folder may import from itself and from those before it.
ORDER = ["wire", "device", "runtime", "api", "backends"]
# These call a backend's functions, and know none.
INTERFACE = {("runtime.seats", "backends.base"), ("runtime.main_loop", "backends.base")}


def imports() -> dict[str, set[str]]:
    """For each module the modules that it imports, without the package's name."""
    modules = {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path
        for path in PACKAGE.rglob("*.py")
    }
    found: dict[str, set[str]] = {}
    for name, path in modules.items():
        found[name] = set()
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("stubserve_stub"):
                base = (node.module or "").removeprefix("stubserve_stub").removeprefix(".")
                for alias in node.names:
                    inner = f"{base}.{alias.name}".removeprefix(".")
                    found[name].add(inner if inner in modules else base)
    return found


def test_there_is_no_circle() -> None:
    assert len(list(TopologicalSorter(imports()).static_order())) > 40


def test_one_direction() -> None:
    against = [
        (module, imported)
        for module, all_imported in imports().items()
        for imported in all_imported
        if module.partition(".")[0] in ORDER
        and ORDER.index(imported.partition(".")[0]) > ORDER.index(module.partition(".")[0])
        and (module, imported) not in INTERFACE
    ]
    assert against == []


def test_backends_do_not_know_each_other() -> None:
    for module, all_imported in imports().items():
        folder = ".".join(module.split(".")[:2])
        if module.startswith("backends."):
            parts = ("base", "card", "native", "gather", "ragged", "contract", "on_gpu")
            shared = {f"backends.{part}" for part in parts}
            others = {name for name in all_imported if name.startswith("backends.")} - shared
            # Their models are Python models that are built in.
            built_in = module.startswith(("backends.repeat", "backends.remote", "backends.video", "backends.llamacpp"))
            known = ("backends.python",) if built_in else ()
            assert all(name.startswith((folder, "backends.loading", *known)) for name in others), (module, others)


def test_the_loop_loads_no_backend() -> None:
    """A stub pays for the one that it runs."""
    show = "print(*(name for name in sys.modules if name.startswith('stubserve_stub.')))"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys, stubserve_stub.runtime.process; {show}"],
        env={"PYTHONPATH": str(PACKAGE.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = {name.removeprefix("stubserve_stub.") for name in done.stdout.split()}
    assert {name for name in loaded if name.startswith(("api", "backends."))} == {imported for _, imported in INTERFACE}
