"""What may change when a run goes on, and what an earlier version wrote."""

from pathlib import Path

import pytest

from chunkwise.config.load import load
from chunkwise.config.saved import FreeFields, comparable, fingerprint, free_fields

ROOT = Path(__file__).parents[3]
DEBUG = ["--config", str(ROOT / "configs/qchunk/debug.py")]


def test_a_checkpoint_without_a_list_of_files_is_compared_in_the_rest_and_that_is_said():
    current = {"run.seed": 1, "dataset.files": "f"}
    assert comparable({"run.seed": 1, "dataset.files": "g"}, current, FREE) == (
        {"run.seed": 1, "dataset.files": "g"},
        current,
        "",
    )
    saved, now, remark = comparable({"run.seed": 2}, current, FREE)
    assert (saved, now) == ({"run.seed": 2}, {"run.seed": 1})
    assert remark.startswith("the checkpoint is an earlier version's, which kept no list of the dataset's files")


FREE = FreeFields(always=("run.dir", "data.path", "checkpoint."), at_a_constant_rate=("train.steps",))
EVERY_RUN = {
    *("run.dir", "run.resume", "run.compile_cache"),
    *("train.updates_per_call", "train.log_every", "train.eval_every", "train.max_skipped"),
    *("mesh.", "checkpoint.", "eval.", "data.path", "data.read_threads"),
    *("data.verify", "data.allow_links_to", "data.limits."),
}
QCHUNK = {"data.norm_stats", "data.frames", "data.memory_gib", "data.decode_threads", "record.processes"}


def test_fingerprint_leaves_out_what_may_change_on_resume():
    flat = {"run.dir": "a", "run.seed": 1, "train.steps": 5, "optim.schedule": "constant", "checkpoint.every": 3}
    assert fingerprint(flat, FREE) == {"run.seed": 1, "optim.schedule": "constant"}
    kept = dict.fromkeys(["train.batch_size", "train.accumulate", "train.ema", "data.path_of", "checkpoint"], 2)
    assert fingerprint(kept, FREE) == kept
    assert "train.steps" in fingerprint(flat | {"optim.schedule": "cosine"}, FREE)


@pytest.mark.parametrize(
    ("file", "always", "constant"),
    [
        ("qchunk/debug", EVERY_RUN | QCHUNK, {"train.steps", "online.steps"}),
        ("openpi_ript/debug", EVERY_RUN | {"tokenizer", "data.norm_stats"}, {"train.steps"}),
        ("driving/debug", EVERY_RUN | {"data.cache_mb", "record.processes"}, {"train.steps"}),
    ],
)
def test_the_fields_that_may_change_on_resume(file: str, always: set[str], constant: set[str]):
    """All of them: a name more lets a run go on with other batches, one less refuses runs that are there."""
    config, _ = load(["--config", str(ROOT / f"configs/{file}.py")])
    free = free_fields(type(config))
    assert set(free.always) == always
    assert set(free.at_a_constant_rate) == constant
    assert fingerprint({"eval": None, "mesh.data": 1}, free) == {"eval": None}  # whether there is one is not free


def test_a_checkpoint_of_before_the_list_of_files_is_comparable():
    before = {"run.seed": 1, "data.path": "a", "optim.schedule": "constant", "dataset.manifest": "x"}
    now = {"run.seed": 1, "optim.schedule": "constant", "dataset.manifest": "x", "dataset.files": "y"}
    saved, current, note = comparable(before, now, FREE)
    assert saved == current
    assert "earlier version" in note
    assert comparable(now, now, FREE) == (now, now, "")
    saved, current, _ = comparable(now, now | {"dataset.files": "z"}, FREE)
    assert saved != current
    saved, current, _ = comparable(before, now | {"dataset.manifest": "z"}, FREE)
    assert saved != current
