"""mp4 files that every player opens: H.264 in yuv420p."""

from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from chunkwise.files.durable import make_folders, scratch_file


def write_mp4(path: str | Path, frames: Iterable[UInt8[np.ndarray, "h w c=3"]], *, fps: float) -> int:
    """Writes RGB frames as H.264; the file appears under its name only when it is complete.

    yuv420p halves the colour planes, so an odd height or width grows by repeating the last row or column.

    Args:
      path: File to write; its folder is made.
      frames: RGB images of one size, values 0 to 255; at least one.
      fps: Frames shown per second; above 0.

    Returns:
      The number of frames written.

    Raises:
      ValueError: If there is no frame, or a frame differs in size from the first.
    """
    import av  # 0.15 s, and only videos need it

    path = Path(path)
    make_folders(path.parent)
    count, size = 0, None
    faststart = {"movflags": "faststart"}
    with scratch_file(path) as part, av.open(str(part), "w", format="mp4", options=faststart) as container:
        stream = container.add_stream(
            "libx264", rate=Fraction(float(fps)).limit_denominator(1001), options={"crf": "20", "preset": "veryfast"}
        )
        stream.pix_fmt = "yuv420p"
        for frame in frames:
            size = size or frame.shape
            if frame.shape != size:
                raise ValueError(f"frame {count} of {path} has shape {frame.shape}; the first one has {size}")
            even = np.pad(frame, ((0, size[0] % 2), (0, size[1] % 2), (0, 0)), mode="edge")
            if not count:
                stream.height, stream.width = even.shape[:2]
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(even), format="rgb24")))
            count += 1
        if not count:
            raise ValueError(f"{path}: no frames to write")
        container.mux(stream.encode(None))
    return count
