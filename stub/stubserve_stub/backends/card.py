"""The card of a backend: all that anybody beside the backend itself knows of it.

The server reads cards, and never a backend: a card imports nothing but the standard library, and keeps to Python 3.8.
It lies in the backend's folder, in `CARDS` of `card.py`. `cards` has the table of those that come with stubserve, and
finds those of installed packages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Tuple

# Where instances run: on CPUs; on a GPU where a group asks for one; on all GPUs of a machine that has some
ON_CPUS, ON_GPUS_IF_ASKED, ON_GPUS = "cpus", "gpus if asked", "gpus"
# Whether the instances of a group on a device have one stub, each a thread of it: never; where the model asks for it;
# unless the model does not want it
ALONE, IF_ASKED, TOGETHER = "alone", "if asked", "together"
# What a model's file may be in its version's folder
FILE, FOLDER, EITHER = "file", "folder", "either"


class ModelFile(NamedTuple):
    """A file that makes its folder a version of a backend's model.

    A configuration with this `platform`, or its `alias`, means the file. `fills_name` is False where a configuration
    gets the file's name only if it names the backend alone.
    """

    name: str
    platform: str = ""
    shape: str = EITHER
    alias: str = ""
    fills_name: bool = True


class Parameter(NamedTuple):
    """A parameter of a model's configuration, for people: `kind` and `help` stand in the reference."""

    name: str
    kind: str
    help: str


class FileProblem(NamedTuple):
    """`file` is the path to look at. A warning does not keep the model from being served."""

    file: str
    text: str
    is_warning: bool = False


@dataclass(frozen=True)
class Card:
    """`name` is what `backend` says in a configuration. A card with a name alone is that of a backend nobody knows."""

    name: str
    # "module:Class" of the backend. Empty: the name and its files are Triton's, and stubserve has no such backend.
    program: str = ""
    # In the order in which they are looked for. Without a file that decides, a model has the first one, unless
    # `needs_file` says that there has to be one.
    files: Tuple[ModelFile, ...] = ()
    needs_file: bool = False
    # Endings of files that may be served by themselves, without a repository
    lone_endings: Tuple[str, ...] = ()
    # Whether stubs run in the environment that a model names, because packages are there
    in_environments: bool = False
    # Whether `runtime: "model.py"` means something without such a file: Triton has one beside its library
    has_python_runtime: bool = False
    devices: str = ON_GPUS
    # Instances on a CPU where the configuration has no count
    instances_on_cpu: int = 1
    # ALONE, IF_ASKED or TOGETHER; on GPUs, too; and a parameter of a model that asks for it
    shares: str = ALONE
    shares_on_gpus: bool = False
    shares_with: str = ""
    # Whether a batch is one tensor, so that `batch_input` and `batch_output` mean something
    gathers: bool = False
    # Whether each request is answered by itself: a batch would only make its requests wait for each other
    answers_one_by_one: bool = False
    # Whether instances on GPUs read inputs there
    reads_on_gpus: bool = False
    # What the backend makes of `optimization`, and whether `model_operations` name libraries for it
    optimizations: Tuple[str, ...] = ()
    takes_operations: bool = False
    # Whether profiles of instances, secondary devices, shape tensors and formats that are not linear mean something
    has_engines: bool = False
    # Whether the server keeps the implicit states, and gives them with each request, so that they outlive a stub
    server_keeps_states: bool = False
    # What the backend imports, and the extra of stubserve that installs it
    package: str = ""
    extra: str = ""
    # "module:function", called with the configuration as JSON has it. The first raises Refusal for one that the backend
    # would not take, and what it returns may have `remarks` for people. The second also gets a version's folder, and
    # yields a FileProblem for each that it finds there.
    checks_config: str = ""
    checks_files: str = ""
    # "module:function" that opens a model's file, for `stubserve init --from`: gets its path, and returns the contract
    # and what makes a list of outputs of a mapping of inputs. Raises ImportError without the package.
    opens_file: str = ""
    # "module:function", called with a number of threads in each stub whose threads are limited
    limits_threads: str = ""
    parameters: Tuple[Parameter, ...] = ()
    # Variables for its stubs, unless the server's environment has them; those of stubserve's own cards, for all stubs
    variables: Tuple[Tuple[str, str], ...] = ()

    @property
    def platforms(self) -> Tuple[str, ...]:
        """The only platforms that the backend may have; empty: any."""
        return tuple(name for file in self.files for name in (file.platform, file.alias) if name)
