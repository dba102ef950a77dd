"""What images.json says of a run's images, and what a policy tells of images of another shape."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from chunkwise.data.images import one_shape
from chunkwise.errors import DataError
from chunkwise.policies.recorded_images import RecordedSizes, images_json, read_shrunk, read_sizes


def test_the_file_gives_back_what_was_kept(tmp_path: Path) -> None:
    assert images_json((), {}) == {}, "nothing is known: a run of before had no file"
    assert images_json(("top",), {}) == {"images.json": b'{"shrunk_jpegs": ["top"]}\n'}, "as runs of before have it"
    (found,) = images_json(("top",), {"wrist": (480, 640)}).values()
    (tmp_path / "images.json").write_bytes(found)
    assert (read_shrunk(tmp_path), read_sizes(tmp_path)) == (("top",), {"wrist": (480, 640)})
    (found,) = images_json((), {"wrist": (480, 640)}).values()
    (tmp_path / "images.json").write_bytes(found)
    assert (read_shrunk(tmp_path), read_sizes(tmp_path)) == ((), {"wrist": (480, 640)})


@pytest.mark.parametrize("sizes", [[480, 640], {"wrist": [480]}, {"wrist": [480.0, 640]}, {"wrist": [0, 640]}])
def test_other_sizes_are_refused_by_name(sizes: Any, tmp_path: Path) -> None:
    (tmp_path / "images.json").write_text(json.dumps({"recorded_sizes": sizes}))
    with pytest.raises(DataError, match=r"images\.json: expected recorded_sizes, height and width of cameras, found"):
        read_sizes(tmp_path)
    (tmp_path / "images.json").write_text("[]")
    with pytest.raises(DataError, match=r"images\.json: expected shrunk_jpegs and recorded_sizes, found \[\]"):
        read_sizes(tmp_path)


def test_a_shape_is_known_where_all_images_have_it() -> None:
    assert one_shape({(480, 640): 3, (240, 320): 5, (1080, 1440): 1}) == (240, 320)
    assert one_shape({(720, 1280): 900, (480, 640): 1}) is None
    assert one_shape({(224, 224): 10}) is None, "may be a whole view that was squeezed before"
    assert one_shape({}) is None


def test_another_shape_is_told_once_of_each_camera() -> None:
    recorded = RecordedSizes({"wrist": (480, 640), "top": (480, 640)})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for size in ((480, 640), (240, 320), (960, 1280), (464, 640), (480, 656), (224, 224)):
            recorded.compare("wrist", size, (224, 224))  # 464 and 656: by 3 %
        recorded.compare("unknown", (720, 1280), (224, 224))
    with pytest.warns(
        UserWarning, match="camera wrist: images of 720 x 1280 .* recordings have 480 x 640: .*224 x 224"
    ):
        recorded.compare("wrist", (720, 1280), (224, 224))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        recorded.compare("wrist", (720, 1280), (224, 224))
    with pytest.warns(UserWarning, match="camera top: images of 640 x 480"):
        recorded.compare("top", (640, 480), (224, 224))
    assert (recorded["top"], recorded["unknown"]) == ((480, 640), None)
