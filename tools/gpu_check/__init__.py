"""Shows on a machine with a GPU which promises about its memory hold there. `python -m tools.gpu_check`.

It needs a checkout and Python, and for its first part nothing else. So the stub's sources are found even where
stubserve is not installed.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "stub"))
