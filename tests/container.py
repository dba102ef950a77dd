"""Builds the container image by the commands of docs/install.md that need no Docker daemon, and runs it.

    python -m tests.container

Needs root, debootstrap and buildah, and 10 GB of disk; where they are missing it says so, does nothing, and ends with
0. The image is built from the last commit, in a folder of its own, and removed. Behind a proxy that opens TLS, pip in
the image trusts what `PIP_CERT` names.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.page_commands import ROOT, commands

PROGRAMS = ("debootstrap", "buildah")
IMAGES = ("localhost/chunkwise", "localhost/debian-python")
CHECKS = ("python -m chunkwise doctor", "python -m chunkwise train qchunk/debug --train.steps 20 --run.dir /tmp/run")


def script() -> str:
    """Returns the page's commands as one script, with what `PIP_CERT` names put into the base before it is added."""
    lines = [one.line for one in commands() if one.page == "docs/install.md" and one.line != "make env"]
    ours = [line for line in lines if any(program in line for program in PROGRAMS)]
    assert ours[0].startswith("debootstrap"), ours
    trusted = (
        'if [ -n "${PIP_CERT-}" ]; then cp "$PIP_CERT" rootfs/etc/ssl/certs/ca-certificates.crt; '
        "printf '[global]\\ncert = /etc/ssl/certs/ca-certificates.crt\\n' > rootfs/etc/pip.conf; fi"
    )
    checks = [f"buildah run --isolation chroot $made -- {check}" for check in CHECKS]
    made = "made=$(buildah from localhost/chunkwise)"
    return "\n".join(["set -euxo pipefail", ours[0], trusted, *ours[1:], made, *checks, "buildah rm $made $container"])


def main() -> int:
    """Builds and runs it; returns the exit code."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing or os.geteuid() != 0:
        print(f"left out: no container was built: {' and '.join(missing) or 'root'} not found")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        context = Path(folder) / "chunkwise"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(context)], check=True)
        code = subprocess.run(["bash", "-c", script()], cwd=context).returncode
        subprocess.run(["buildah", "rmi", "--force", *IMAGES], capture_output=True)
    print("the image was built and runs" if code == 0 else f"a command of the page ended with {code}")
    return code


if __name__ == "__main__":
    sys.exit(main())
