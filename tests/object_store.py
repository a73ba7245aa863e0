"""An object store in another process: moto's server, which speaks S3, on this machine."""

import contextlib
import socket
import subprocess
import sys
import time
import urllib.request


@contextlib.contextmanager
def object_store(monkeypatch):
    """Gives the client of a store with an empty bucket: `s3://bucket/…` is in it for fsspec and TensorFlow alike."""
    import boto3
    import s3fs

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", f"-p{port}"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    for name, value in {
        "AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key", "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": address, "S3_ENDPOINT": address, "S3_USE_HTTPS": "0",
        "S3_VERIFY_SSL": "0",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    try:
        deadline = time.time() + 60
        while time.time() < deadline:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(address, timeout=5).close()
                break
            time.sleep(0.1)
        client = boto3.client("s3")
        client.create_bucket(Bucket="bucket")
        s3fs.S3FileSystem.clear_instance_cache()  # of another store
        yield client
    finally:
        server.kill()
        server.wait()


def upload(client, folder, prefix):
    """Puts the files of a folder into the bucket."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            client.put_object(Bucket="bucket", Key=f"{prefix}/{path.relative_to(folder)}", Body=path.read_bytes())


def stored(client, prefix):
    """Returns name below the prefix -> content."""
    pages = client.get_paginator("list_objects_v2").paginate(Bucket="bucket", Prefix=f"{prefix}/")
    keys = [entry["Key"] for page in pages for entry in page.get("Contents", ())]
    return {key[len(prefix) + 1 :]: client.get_object(Bucket="bucket", Key=key)["Body"].read() for key in keys}
