"""What the server knows of the backend. It reads this card, and never imports the backend itself."""

from stubserve_stub.backends.card import FILE, ON_CPUS, Card, ModelFile, Parameter

CARD = Card(
    "newbackend",
    "stubserve_newbackend.backend:Backend",
    # A version folder with this file is a model of the backend. It needs no config.pbtxt.
    files=(ModelFile("model.newbackend", shape=FILE),),
    # Models may bring an environment of their own (EXECUTION_ENV_PATH); this package has to be installed there, too.
    in_environments=True,
    devices=ON_CPUS,
    gathers=True,
    # The module that the backend imports. `stubserve check` says so where the server has none, for a model without an
    # environment of its own.
    package="numpy",
    checks_config="stubserve_newbackend.options:check",
    parameters=(Parameter("FACTOR", "number", "The number to multiply inputs by, in place of the file's."),),
)
