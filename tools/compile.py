"""The build hook that has mypyc compile the modules which every request passes through.

It is part of the build only where HATCH_BUILD_HOOK_ENABLE_CUSTOM is set, as `make wheel` and `make compiled` set it: a
compiled wheel fits one Python and one kind of machine. Without it, and where there is no C compiler, the same sources
run as they are. A module that is compiled has the line `MARK`. The sources go into the wheel as well: they are what a
traceback shows.

There is a plugin for hatchling, hatch-mypyc. It writes its results beside the sources, where they would take the place
of what is being edited, and moves pyproject.toml away meanwhile; so it is not used.
"""

from __future__ import annotations

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# As most of the time goes into calls of the interpreter, more than 2 is not worth waiting for. For tests 0 will do. The
# variable has the name that mypy's own build gives it.
OPTIMISATION = os.environ.get("MYPYC_OPT_LEVEL", "2")
# `make check` wants more of types than a build needs, and packages have other stubs where Python is older.
LENIENT = ["--allow-any-generics", "--allow-subclassing-any", "--no-warn-return-any", "--no-warn-unused-ignores"]

# Stands alone on a line of each module that is compiled.
MARK = "# Compiled by mypyc."


def marked(folder: Path) -> list[Path]:
    """The modules of a folder that are compiled."""
    return sorted(file for file in folder.rglob("*.py") if MARK in file.read_text().splitlines())


class CompiledModules(BuildHookInterface[Any]):
    """Adds compiled modules to a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compiles the modules that are marked so, in the folder `sources` of its table in pyproject.toml."""
        if version == "editable":
            return
        # Named from the root on, for tracebacks show the names
        files = [str(file.relative_to(self.root)) for file in marked(Path(self.root) / self.config["sources"])]
        self._made = tempfile.TemporaryDirectory(prefix="stubserve-compiled-")
        made = Path(self._made.name)
        _compile(Path(self.root), files, made)
        for library in (made / "lib").rglob("*.so"):
            build_data["force_include"][str(library)] = str(library.relative_to(made / "lib"))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """The wheel is written."""
        if version != "editable":
            self._made.cleanup()


def _compile(root: Path, files: list[str], made: Path) -> None:
    """Leaves libraries, in their packages' folders, in `made`/lib. Raises what mypyc and the C compiler raise."""
    # Needed by this alone, and mypyc decides as it is imported that setuptools is what it builds with
    from mypyc.build import mypycify
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    class SideBySide(build_ext):
        """Nearly all files are of one extension, and setuptools compiles those of one extension in a row."""

        def build_extensions(self) -> None:
            in_a_row = self.compiler.compile
            with ThreadPoolExecutor(os.cpu_count()) as processors:

                def compile(sources: Any, **options: Any) -> list[str]:
                    made = processors.map(lambda source: in_a_row([source], **options), sources)
                    return [file for files in made for file in files]

                self.compiler.compile = compile
                super().build_extensions()

    os.chdir(root)
    extensions = mypycify(
        ["--config-file", "pyproject.toml", "--cache-dir", ".mypy_cache/compiled", *LENIENT, *files],
        opt_level=OPTIMISATION,
        debug_level="0",
        multi_file=True,
        target_dir=str(made / "c"),
        group_name="stubserve",
    )
    command = SideBySide(Distribution({"ext_modules": extensions}))
    command.build_lib = str(made / "lib")
    command.build_temp = str(made / "o")
    command.parallel = os.cpu_count()
    command.ensure_finalized()
    command.run()
