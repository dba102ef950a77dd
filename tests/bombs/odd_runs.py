"""Cases: folders of runs and weights of others, statistics and tokenizers that are broken in odd ways."""

import atexit
import functools
import json
import os
import shutil
import struct
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.bombs import Command, case
from tests.bombs.odd_files import ONE, sparse
from tests.bombs.programs import ROOT, train, train_lerobot
from tests.hostile import artefacts
from tests.lerobot_files import record, write_v21

SAFETENSORS = (
    "import sys; from chunkwise.errors import RunError; from openpi_ript.weights import load_safetensors\n"
    "try: load_safetensors(sys.argv[1])\nexcept RunError as error: print(error); sys.exit(error.exit_code)"
)


@functools.cache
def good(name: str) -> Path:
    """A good run or export, made once by the programs."""
    folder = Path(tempfile.mkdtemp(prefix="bomb-runs-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for needed in ("ript", "export") if name == "export" else (name,):
        artefacts.GOOD[needed](folder / needed)
    return folder / name


def run(folder: Path, change: Callable[[Path], object], name: str = "ript") -> Path:
    """A copy of a run, changed."""
    out = folder / name
    shutil.copytree(good(name), out)
    change(out)
    return out


def serve(run: Path) -> Command:
    """Serves its policy; a good one would be served for ever."""
    return ["-m", "chunkwise.policies.serve", str(run), "--port", "0"]


def verify(run: Path) -> Command:
    """Reads every array of a run."""
    return ["-m", "chunkwise.checkpoint", "verify", str(run)]


def newest(run: Path) -> Path:
    """The newest checkpoint's state."""
    return run / "checkpoints" / "4" / "state"


def text(path: str, content: str | bytes) -> Callable[[Path], object]:
    """Writes a file of the run."""
    data = content.encode() if isinstance(content, str) else content
    return lambda run: (run / path).write_bytes(data)


def edit(path: str, **values: Any) -> Callable[[Path], object]:
    """Replaces keys of a JSON object of the run."""
    return lambda run: (run / path).write_text(json.dumps({**json.loads((run / path).read_text()), **values}))


def safetensors(folder: Path, header: bytes, data: bytes = b"") -> Command:
    """Loads a file of this header."""
    path = folder / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)
    return ["-c", SAFETENSORS, str(path)]


def tensor(kind: str, shape: Sequence[int], *places: int) -> dict[str, Any]:
    """A tensor of a safetensors header."""
    return {"dtype": kind, "shape": list(shape), "data_offsets": list(places)}


def statistics(folder: Path, content: str) -> Command:
    """Trains with this norm_stats.json."""
    from tests.qchunk.recordings import dataset

    stats = folder / "norm_stats.json"
    stats.write_text(content)
    return train(
        "qchunk", dataset(folder / "data"), "--data.norm-stats", str(stats), "--data.action-norm", "mean_std", *ONE
    )


def stats_of(**values: str) -> str:
    """norm_stats.json of good positions and four actions, with texts of JSON for some values of the actions."""
    good = {"mean": 0, "std": 1, "q01": -1, "q99": 1}
    actions = {key: str([value] * 4) for key, value in good.items()} | values
    inner = "{" + ", ".join(f'"{key}": {value}' for key, value in actions.items()) + "}"
    state = json.dumps({key: [value] * 6 for key, value in good.items()})
    return f'{{"norm_stats": {{"state": {state}, "actions": {inner}}}}}'


def tokenizer(folder: Path, content: bytes) -> Command:
    """Trains with this tokenizer."""
    path = folder / "tokenizer.model"
    path.write_bytes(content)
    root = write_v21(folder / "data", record((9, 9, 9)), "image")
    return train_lerobot(root, "--tokenizer", str(path))


@case(codes=(64, 65))
def run_config_of_lists(folder: Path) -> Command:
    """config.json of 30 million lists."""
    return serve(run(folder, text("config.json", "[" + "[]," * 20_000_000 + "[]]")))


@case(codes=(64, 65))
def run_config_nested_deeply(folder: Path) -> Command:
    """config.json of 100,000 levels."""
    return serve(run(folder, text("config.json", '{"a":' * 100_000 + "1" + "}" * 100_000)))


@case(codes=(64, 65, 78))
def run_config_of_odd_numbers(folder: Path) -> Command:
    """Sizes of the model are 2**62, NaN and texts."""
    sizes = {"model.action_dim": 1 << 62, "model.image_size": float("nan"), "model.prompt_tokens": "sixteen"}
    return serve(run(folder, edit("config.json", **sizes)))


@case(codes=(64, 65, 78))
def run_config_of_a_huge_model(folder: Path) -> Command:
    """The language model is 2**30 wide."""
    sizes = {"model.language.width": 1 << 30, "model.language.mlp_dim": 1 << 30}
    return serve(run(folder, edit("config.json", **sizes)))


@case(codes=(64, 65, 78))
def run_config_of_many_tokens(folder: Path) -> Command:
    """A vocabulary of 2**28 words, which would take 34 GB."""
    return serve(run(folder, edit("config.json", **{"model.vocab_size": 1 << 28})))


@case(codes=(64, 65, 78))
def run_that_raises_its_limits(folder: Path) -> Command:
    """The run's own config lifts all limits, and its statistics are 20 million lists."""

    def change(run: Path) -> None:
        names = [name for name in json.loads((run / "config.json").read_text()) if name.startswith("data.limits.")]
        assert names
        edit("config.json", **dict.fromkeys(names, 1 << 50))(run)
        (run / "norm_stats.json").write_text('{"norm_stats": [' + "[]," * 20_000_000 + "[]]}")

    return serve(run(folder, change))


@case(codes=(64, 65))
def run_config_is_a_pipe(folder: Path) -> Command:
    """config.json is a FIFO."""

    def change(run: Path) -> None:
        (run / "config.json").unlink()
        os.mkfifo(run / "config.json")

    return serve(run(folder, change))


@case(codes=(64, 65, 78))
def run_statistics_of_another_width(folder: Path) -> Command:
    """The run's norm_stats.json has one number."""
    return serve(run(folder, text("norm_stats.json", stats_of(mean="[0]", std="[1]", q01="[0]", q99="[1]"))))


@case(codes=(64, 65, 78))
def run_tokenizer_of_a_terabyte(folder: Path) -> Command:
    """The run's tokenizer.model is followed by a terabyte of nothing."""
    return serve(run(folder, lambda run: sparse(run / "tokenizer.model")))


@case
def run_metadata_of_lists(folder: Path) -> Command:
    """Orbax's _METADATA is 20 million lists; the checkpoint is verified."""
    return verify(run(folder, lambda run: (newest(run) / "_METADATA").write_text("[" + "[]," * 20_000_000 + "[]]")))


@case
def run_manifest_of_zeros(folder: Path) -> Command:
    """OCDBT's manifest is zeros, a gigabyte of them."""

    def change(run: Path) -> None:
        (newest(run) / "manifest.ocdbt").write_bytes(b"")
        sparse(newest(run) / "manifest.ocdbt", 1 << 30)

    return verify(run(folder, change))


@case
def run_checkpoint_of_a_terabyte(folder: Path) -> Command:
    """A file of the arrays has a terabyte of nothing behind it."""
    return verify(run(folder, lambda run: sparse(next((newest(run) / "d").iterdir()))))


@case
def run_checkpoint_is_a_pipe(folder: Path) -> Command:
    """A file of the arrays is a FIFO."""

    def change(run: Path) -> None:
        path = next((newest(run) / "d").iterdir())
        path.unlink()
        os.mkfifo(path)

    return verify(run(folder, change))


@case
def run_seal_of_lists(folder: Path) -> Command:
    """SHA256SUMS names files above the run, devices, and one file a million times."""
    lines = [f"{'0' * 64}  ../../../../etc/passwd", f"{'0' * 64}  /dev/zero", *[f"{'0' * 64}  x"] * 1_000_000]
    return verify(run(folder, text("checkpoints/4/SHA256SUMS", "\n".join(lines) + "\n")))


@case(may_read=True)
def run_of_odd_steps(folder: Path) -> Command:
    """Checkpoints called by Arabic digits, by 5,000... digits, by -1, and by 1e3, all empty folders."""

    def change(run: Path) -> None:
        for name in ("\u0664\u0662", "9" * 200, "-1", "1e3", " 7", "007", "\u00b2"):
            (run / "checkpoints" / name).mkdir()

    return verify(run(folder, change))


@case(codes=(64, 65))
def export_of_a_huge_array(folder: Path) -> Command:
    """openpi's _METADATA says that an array has 2**40 columns."""

    def change(export: Path) -> None:
        path = export / "params" / "_METADATA"
        content = json.loads(path.read_text())
        path.write_text(json.dumps(content).replace('"write_shape": [', '"write_shape": [1099511627776, '))
        (export / "params" / "manifest.ocdbt").write_bytes(b"\x0c\xdb\x3a\x2a" + bytes(200))

    return [*serve(run(folder, change, "export")), "--config", str(ROOT / "configs/openpi_ript/debug.py")]


@case(codes=(64, 65))
def driving_run_with_another_evaluation(folder: Path) -> Command:
    """evaluation.json of a run of driving is a list of NaN."""
    path = run(folder, text("evaluation.json", "[NaN, 1e999]"), "driving")
    return ["-m", "driving.evaluate", str(path)]


@case(codes=(64, 65))
def driving_run_with_an_evaluation_of_lists(folder: Path) -> Command:
    """evaluation.json of a run of driving has lists for all its values."""

    def change(run: Path) -> None:
        content = json.loads((run / "evaluation.json").read_text())
        (run / "evaluation.json").write_text(json.dumps({key: [[]] for key in content}))

    return ["-m", "driving.evaluate", str(run(folder, change, "driving"))]


@case(codes=(64, 65))
def evaluations_of_odd_states(folder: Path) -> Command:
    """Two evaluations whose outcomes are numbers beyond floats and lists."""
    for name in "ab":
        (folder / f"{name}.json").write_text('{"episodes": [[1], {"success": 1e999}], "states": 7}')
    return ["-m", "openpi_ript.evaluate", "compare", str(folder / "a.json"), str(folder / "b.json")]


@case
def weights_that_overlap(folder: Path) -> Command:
    """1,000 tensors that are the same 4 MB."""
    header = {f"t{n}": tensor("F32", (1 << 20,), 0, 4 << 20) for n in range(1000)}
    return safetensors(folder, json.dumps(header).encode(), bytes(4 << 20))


@case
def weights_of_a_shape_that_overflows(folder: Path) -> Command:
    """2**32 x 2**32 float32, whose bytes are 0 in 64 bits."""
    return safetensors(folder, json.dumps({"a": tensor("F32", (1 << 32, 1 << 32), 0, 0)}).encode())


@case
def weights_of_negative_places(folder: Path) -> Command:
    """A tensor that ends before it begins."""
    return safetensors(folder, json.dumps({"a": tensor("F32", (-1,), 4, 0)}).encode(), bytes(8))


@case
def weights_of_two_names(folder: Path) -> Command:
    """One name twice."""
    one = json.dumps(tensor("F32", (1,), 0, 4))
    other = json.dumps(tensor("F32", (1,), 4, 8))
    return safetensors(folder, f'{{"a": {one}, "a": {other}}}'.encode(), bytes(8))


@case
def weights_with_a_header_of_lists(folder: Path) -> Command:
    """A header of 20 million lists."""
    return safetensors(folder, b'{"__metadata__": [' + b"[]," * 20_000_000 + b"[]]}")


@case
def weights_with_a_deep_header(folder: Path) -> Command:
    """A header of 100,000 levels, which is no UTF-8 either."""
    return safetensors(folder, b'{"\xff": ' + b"[" * 100_000 + b"]" * 100_000 + b"}")


@case(codes=(64, 65))
def statistics_beyond_floats(folder: Path) -> Command:
    """A mean of 1e999."""
    return statistics(folder, stats_of(mean="[1e999, 0, 0, 0]"))


@case(codes=(64, 65))
def statistics_below_zero(folder: Path) -> Command:
    """Deviations below 0."""
    return statistics(folder, stats_of(std="[-1, -1, -1, -1]"))


@case(codes=(64, 65))
def statistics_beyond_float32(folder: Path) -> Command:
    """A mean of 1e300."""
    return statistics(folder, stats_of(mean="[1e300, 0, 0, 0]"))


@case(codes=(64, 65))
def statistics_of_true(folder: Path) -> Command:
    """Deviations that are true."""
    return statistics(folder, stats_of(std="[true, true, true, true]"))


@case(codes=(64, 65))
def statistics_upside_down(folder: Path) -> Command:
    """q01 above q99."""
    text = stats_of(q01="[1, 1, 1, 1]", q99="[-1, -1, -1, -1]")
    return [*statistics(folder, text), "--data.action-norm", "quantile"]


@case(codes=(64, 65))
def statistics_twice(folder: Path) -> Command:
    """Two means."""
    return statistics(folder, stats_of().replace('"mean"', '"mean": [5, 5, 5, 5], "mean"', 1))


@case(codes=(64, 65))
def tokenizer_of_nothing(folder: Path) -> Command:
    """An empty tokenizer.model."""
    return tokenizer(folder, b"")


@case(codes=(64, 65))
def tokenizer_of_groups(folder: Path) -> Command:
    """A tokenizer.model of two million groups in one another."""
    return tokenizer(folder, b"\x0b" * 2_000_000)


@case(codes=(64, 65))
def tokenizer_of_pieces(folder: Path) -> Command:
    """A tokenizer.model of 10 million pieces of no letter."""
    return tokenizer(folder, b"\x0a\x00" * 10_000_000)


@case(codes=(64, 65))
def tokenizer_of_pieces_within_the_limit(folder: Path) -> Command:
    """A tokenizer.model of 8 MiB, all of them pieces of no letter: the most that one costs."""
    return tokenizer(folder, b"\x0a\x00" * (4 << 20))


@case(codes=(64, 65))
def tokenizer_of_noise(folder: Path) -> Command:
    """A tokenizer.model of random bytes."""
    return tokenizer(folder, b"\x0a\x10\x0a\x0e" + bytes(range(256)) * 40)
