"""Deploys the application for Ray Serve on a cluster that runs; ray is needed.

usage: python ray_driver.py ADDRESS

A line of standard input is a JSON object: the name of an application, the function of `stubserve.ray_serve` that makes
it, and its arguments. Each is answered by a line of standard output, once the application is deployed.
"""

from __future__ import annotations

import json
import sys

import ray
from ray import serve

from stubserve import ray_serve


def main(address: str) -> None:
    ray.init(address=address, log_to_driver=False)
    serve.start(proxy_location="Disabled")
    for line in sys.stdin:
        said = json.loads(line)
        application = getattr(ray_serve, said["make"])(said["arguments"])
        serve.run(application, name=said["name"], route_prefix=None)
        print("deployed", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
