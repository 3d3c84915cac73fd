"""Tells which GPUs there are, for a server that loads no driver itself: JSON with `devices`, or the `problem`."""

from __future__ import annotations

import json
import sys
from typing import Any, Dict

from stubserve_stub.device.cuda import Cuda
from stubserve_stub.device.driver import DriverError


def told() -> Dict[str, Any]:
    try:
        devices = Cuda().devices()
    except DriverError as error:
        return {"problem": str(error)}
    return {
        "devices": [
            {
                "number": one.number,
                "name": one.name,
                "mib": one.memory >> 20,
                "compute_capability": "{}.{}".format(*one.compute_capability),
            }
            for one in devices
        ]
    }


if __name__ == "__main__":
    json.dump(told(), sys.stdout)
