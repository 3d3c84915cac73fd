"""Deploys the application for Ray Serve on a cluster that runs; ray is needed.

usage: python ray_driver.py ADDRESS

A line of standard input is a JSON object: the arguments of `stubserve.ray_serve:app`, or {} to end. Each is answered by
a line of standard output, once what is to be deployed is deployed.
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
        arguments = json.loads(line)
        if not arguments:
            break
        serve.run(ray_serve.app(arguments), name="models", route_prefix=None)
        print("deployed", flush=True)
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
