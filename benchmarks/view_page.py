"""Time until a page of `chunkwise view` shows its first image in Chromium, and the server's memory.

    python -m benchmarks.view_page DIR [--jumps 20] [--make FRAMES]

--make writes the dataset to DIR first: ALOHA-layout episodes of 500 frames with two cameras of 480 x 640 as JPEG. Each
jump opens another episode at a frame of its own; the server reads the whole dataset in the background meanwhile.
"""

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import h5py
import numpy as np

from chunkwise.data.images import encode_jpeg
from chunkwise.files.aloha_hdf5 import write_array, write_jpegs
from tests.browser import Tab, browsing

LENGTH = 500
DIFFERENT = 40
"""Images that follow one another again and again."""


def write_dataset(root: Path, frames: int) -> None:
    """Writes episodes of LENGTH frames, as many as make up `frames`."""
    root.mkdir(parents=True)
    rng = np.random.default_rng(0)
    v, u = np.mgrid[0:480, 0:640]
    moved = [
        np.stack([(u // 3 + 5 * k) % 256, (v // 2 + 7 * k) % 256, (u + v + k) % 256], -1) for k in range(DIFFERENT)
    ]
    jpegs = [encode_jpeg(image.astype(np.uint8), quality=85) for image in moved]
    for episode in range(frames // LENGTH):
        with h5py.File(root / f"episode_{episode}.hdf5", "w") as h5:
            joints = np.cumsum(rng.normal(size=(LENGTH, 14)), 0).astype(np.float32) / 20
            for name in ("/action", "/observations/qpos", "/observations/state"):
                write_array(h5, name, joints)
            shown = [jpegs[(episode + t) % DIFFERENT] for t in range(LENGTH)]
            write_jpegs(h5, {"cam_high": shown, "cam_left_wrist": shown})
            h5.attrs["success"] = episode % 2 == 0


def peak_mb(pid: int) -> float:
    """The most memory that a process had so far, in 10^6 bytes."""
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024 / 1e6


def shown(tab: Tab, url: str, place: str) -> float:
    """Opens an address; returns the seconds until its images are drawn."""
    episode, frame = place.split(":")
    begin = time.monotonic()
    tab.go(f"{url}#episode={episode}&frame={frame}")
    tab.wait(f"document.body && document.body.dataset.shown === '{place}'")
    return time.monotonic() - begin


def main() -> int:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("dir", type=Path)
    parser.add_argument("--jumps", type=int, default=20)
    parser.add_argument("--make", type=int, metavar="FRAMES")
    arguments = parser.parse_args()
    if arguments.make is not None:
        write_dataset(arguments.dir, arguments.make)
    begin = time.monotonic()
    words = [sys.executable, "-m", "chunkwise", "view", str(arguments.dir)]
    with tempfile.TemporaryDirectory() as profile, subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            said = [server.stdout.readline(), server.stdout.readline()]
            served_s = time.monotonic() - begin
            (url,) = re.findall(r"open (\S+) in", said[1])
            with browsing(Path(profile)) as tab:
                first_s = shown(tab, url, "0:0")
                episodes = tab.evaluate("state.episodes.length")
                places = [f"{(37 * k + 1) % episodes}:{(113 * k + 7) % LENGTH}" for k in range(arguments.jumps)]
                jumps_s = [shown(tab, url, place) for place in places]
            print(said[0].strip())
            print(f"from the command to its address  {served_s:.2f} s")
            print(f"from there to the first image    {first_s:.2f} s")
            print(
                f"to another episode's frame       {statistics.median(jumps_s):.2f} s (median of {len(jumps_s)}), "
                f"at most {max(jumps_s):.2f} s"
            )
            print(f"the server's memory              {peak_mb(server.pid):.0f} MB at its peak")
        finally:
            server.terminate()
    return 0


if __name__ == "__main__":
    sys.exit(main())
