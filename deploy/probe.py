#!/usr/bin/env python
"""Ask a party's health service: ``probe.py [HOST:PORT [SERVICE]]`` ends with 0 if it is serving.

Without an address it asks at ``VERTIZO_SET__FEDERATION__HEALTH``; where that is not set, it ends
with 0: commands other than ``serve`` and ``join`` have no such service.
"""

from __future__ import annotations

import os
import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc


def main(address: str, service: str = "") -> int:
    """The exit code; what is wrong is one line."""
    with grpc.insecure_channel(address, [("grpc.enable_http_proxy", 0)]) as channel:
        ask = health_pb2_grpc.HealthStub(channel).Check
        try:
            status = ask(health_pb2.HealthCheckRequest(service=service), timeout=5).status
        except grpc.RpcError as error:
            print(f"{address}: {error.code().name}", file=sys.stderr)
            return 1
    name = health_pb2.HealthCheckResponse.ServingStatus.Name(status)
    print(f"{address}: {name}", file=sys.stderr)
    return 0 if name == "SERVING" else 1


if __name__ == "__main__":
    if len(sys.argv) > 3:
        sys.exit(f"{sys.argv[0]} [HOST:PORT [SERVICE]]")
    given = sys.argv[1:] or [os.environ.get("VERTIZO_SET__FEDERATION__HEALTH", "")]
    sys.exit(main(*given) if given[0] else 0)
