"""The reference pages of the site, made from the code when the site is built: nothing of them is kept, so none is stale.

What the code says is taken from there (names, defaults, signatures, docstrings, the texts of metrics). What it does not
say is in tables here, and `tests/tools/test_reference.py` fails for a field, a flag or a route that a table lacks, and
for a row about something that is gone.
"""

from __future__ import annotations

from collections.abc import Callable

from tools.reference.backends import backends_page
from tools.reference.config import config_page
from tools.reference.flags import flags_page
from tools.reference.metrics import metrics_page
from tools.reference.pb_utils import pb_utils_page
from tools.reference.routes import routes_page

# Where a page lies in the site -> what writes it
PAGES: dict[str, Callable[[], str]] = {
    "reference/flags.md": flags_page,
    "reference/config.md": config_page,
    "reference/backends.md": backends_page,
    "reference/pb_utils.md": pb_utils_page,
    "reference/metrics.md": metrics_page,
    "reference/routes.md": routes_page,
}
