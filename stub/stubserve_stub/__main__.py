"""The program of a stub: `python <this file> triton_python_backend_stub NAME ARENA_FD CONTROL_FD`.

It is run by file name, in the interpreter of the model's environment. So nothing of the parent's site-packages comes
onto that environment's path: this package and the two utility modules are registered from where they lie. msgpack is
the environment's own, or the parent's where it is missing or older than 1.0 (its pure-Python part works everywhere).

`multiprocessing` runs this file again, under another name, in each worker that it does not fork (`spawn`, and
`forkserver`, the default from Python 3.14 on). A worker imports the model's module, so it has to find the utility
modules, too.

Scripts look for stubs by the name `triton_python_backend_stub`, and people by the name of the instance.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType


def _register(name: str, path: str, is_package: bool = False) -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        name, path, submodule_search_locations=[os.path.dirname(path)] if is_package else None
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class _Found:
    """Finds this package and the utility modules for a worker's imports, in the places where the stub has them."""

    _folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name not in ("stubserve_stub", "triton_python_backend_utils", "c_python_backend_utils"):
            return None
        package = os.path.join(cls._folder, name)
        return importlib.util.spec_from_file_location(
            name, os.path.join(package, "__init__.py"), submodule_search_locations=[package]
        )


def _lend_msgpack(folder: str) -> bool:
    """Makes `import msgpack` work; True if the parent's msgpack was needed."""
    try:
        import msgpack

        if msgpack.version >= (1, 0):
            return False
    except ImportError:
        if not folder:
            raise
    _forget_msgpack()
    _register("msgpack", os.path.join(folder, "__init__.py"), is_package=True)
    return True


def _forget_msgpack() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "msgpack"]:
        del sys.modules[name]


def main() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    descriptors = [int(word) for word in sys.argv[3:5]]
    msgpack_folder = sys.argv[5] if len(sys.argv) > 5 else ""
    # A model's `unittest.main()` or argparse must not read the stub's arguments.
    sys.argv = [""]
    # A program that is run by file name has its own folder first on the path; upstream has the working folder ("").
    sys.path[0] = ""
    lent = _lend_msgpack(msgpack_folder)
    _register("stubserve_stub", os.path.join(here, "__init__.py"), is_package=True)
    for name in ("triton_python_backend_utils", "c_python_backend_utils"):
        _register(name, os.path.join(os.path.dirname(here), name, "__init__.py"), is_package=True)

    # Before anything that starts a thread
    from stubserve_stub.runtime.confinement import confine

    confine()

    from stubserve_stub.runtime.process import run

    if lent:
        # The stub needs no more of it. A model that imports msgpack gets that of its own environment, or none.
        _forget_msgpack()
    run(*descriptors)


if __name__ == "__main__":
    main()
elif __name__ == "__mp_main__":
    sys.meta_path.insert(0, _Found)
