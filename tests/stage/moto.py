"""An S3 of this machine: moto's server in a process of its own, with the bucket ``lake``."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator

PROGRAM = """
import sys, boto3, moto.server
server = moto.server.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
at = "http://{}:{}".format(*server.get_host_and_port())
keys = {"aws_access_key_id": "x", "aws_secret_access_key": "y"}
boto3.client("s3", endpoint_url=at, region_name="us-east-1", **keys).create_bucket(Bucket="lake")
print(at, flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def moto_server() -> Iterator[str]:
    """Run it meanwhile; its URL."""
    command = [sys.executable, "-c", PROGRAM]
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, text=True, **streams) as process:  # type: ignore[call-overload]
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()


def variables(url: str) -> dict[str, str]:
    """Return the environment that leads programs to an S3."""
    keys = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y", "AWS_REGION": "us-east-1"}
    return {"AWS_ENDPOINT_URL": url, **keys}
