"""What may change when a run goes on, and what an earlier version wrote."""

import json
from pathlib import Path

import pytest

from chunkwise.config.load import load
from chunkwise.config.saved import ResumeRules, comparable, fingerprint, flatten, read_config, resume_rules

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


FREE = ResumeRules(always=("run.dir", "data.path", "checkpoint."), at_a_constant_rate=("train.steps",))
EVERY_RUN = {
    *("run.dir", "run.resume", "run.dry_run", "run.compile_cache", "run.loggers", "run.profile"),
    *("train.updates_per_call", "train.log_every", "train.eval_every", "train.max_skipped"),
    *("mesh.", "checkpoint.", "eval.", "data.path", "data.read_threads"),
    *("data.verify", "data.allow_links_to", "data.limits."),
}
RIPT = {"tokenizer", "data.norm_stats", "env.num_envs", "env.initial_states", "fleet."}
DRIVING = {"data.cache_mb", "data.index_processes", "record.processes", "rollout.num_envs"}
QCHUNK = {
    "data.norm_stats",
    "data.frames",
    "data.memory_gib",
    "data.refresh_ahead",
    "data.decode_threads",
    "record.processes",
}


def test_fingerprint_leaves_out_what_may_change_on_resume():
    flat = {"run.dir": "a", "run.seed": 1, "train.steps": 5, "optim.schedule": "constant", "checkpoint.every": 3}
    assert fingerprint(flat, FREE) == {"run.seed": 1, "optim.schedule": "constant"}
    kept = dict.fromkeys(
        ["train.batch_size", "train.grad_accum_steps", "train.ema_decay", "data.path_of", "checkpoint"], 2
    )
    assert fingerprint(kept, FREE) == kept
    assert "train.steps" in fingerprint(flat | {"optim.schedule": "cosine"}, FREE)


@pytest.mark.parametrize(
    ("file", "always", "constant"),
    [
        ("qchunk/debug", EVERY_RUN | QCHUNK | {"fleet."}, {"train.steps", "online.steps"}),
        ("openpi_ript/debug", EVERY_RUN | RIPT, {"train.steps"}),
        ("driving/debug", EVERY_RUN | DRIVING, {"train.steps"}),
    ],
)
def test_the_fields_that_may_change_on_resume(file: str, always: set[str], constant: set[str]):
    """All of them: a name more lets a run go on with other batches, one less refuses runs that are there."""
    config, _ = load(["--config", str(ROOT / f"configs/{file}.py")])
    rules = resume_rules(type(config))
    assert set(rules.always) == always
    assert set(rules.at_a_constant_rate) == constant
    assert fingerprint({"eval": None, "mesh.data": 1}, rules) == {"eval": None}  # whether there is one is not free


def test_a_checkpoint_of_before_the_list_of_files_is_comparable():
    before = {"run.seed": 1, "data.path": "a", "optim.schedule": "constant", "dataset.manifest": "x"}
    now = {"run.seed": 1, "optim.schedule": "constant", "dataset.manifest": "x", "dataset.files": "y"}
    saved, current, note = comparable(before, now, FREE)
    assert saved == current
    assert "earlier version" in note
    assert comparable(now, now, FREE) == (now, now, "")
    more = now | {"dataset.arrays_of_the_reader": "r"}
    *both, note = comparable(now, more, FREE)
    assert both == [now, now]
    assert note.startswith("the checkpoint is an earlier version's, which kept nothing of what a reader of your own")
    saved, current, _ = comparable(now, now | {"dataset.files": "z"}, FREE)
    assert saved != current
    saved, current, _ = comparable(before, now | {"dataset.manifest": "z"}, FREE)
    assert saved != current


OF_EARLIER = {
    "train.accumulate": "train.grad_accum_steps",
    "train.ema": "train.ema_decay",
    "checkpoint.keep_last": "checkpoint.max_to_keep",
    "checkpoint.keep_every": "checkpoint.keep_period",
}
OF_EARLIER_BY_PACKAGE = {
    "qchunk": {"agent.target_rate": "agent.tau"},
    "driving": {"eval.pictures": "eval.plotted_moments"},
}


@pytest.mark.parametrize("file", ["qchunk/debug.py", "openpi_ript/debug.py", "driving/debug.py"])
def test_a_run_that_used_earlier_names_of_fields_reads_as_the_same_config(file: str, tmp_path: Path):
    config, _ = load(["--config", str(ROOT / "configs" / file), "--checkpoint.keep-period", "7"])
    earlier = OF_EARLIER | OF_EARLIER_BY_PACKAGE.get(file.split("/")[0], {})
    names = {now: before for before, now in earlier.items()}
    flat = {names.get(name, name): value for name, value in flatten(config).items()}
    assert set(earlier) <= set(flat)
    (tmp_path / "config.json").write_text(json.dumps(flat))
    assert read_config(tmp_path, type(config)) == config
    rules = resume_rules(type(config))
    assert dict(rules.renamed) == earlier
    assert fingerprint(flat, rules) == fingerprint(flatten(config), rules)
    other = fingerprint(flat | {"train.accumulate": 99}, rules)
    assert other != fingerprint(flatten(config), rules), "a value under its earlier name is still compared"


def test_a_field_that_an_earlier_version_lacked_may_have_its_default_alone():
    config, _ = load(DEBUG)
    rules, now = resume_rules(type(config)), flatten(config)
    before = {name: value for name, value in now.items() if name not in ("agent.factory", "agent.settings")}
    saved, current, _ = comparable(before, fingerprint(now, rules), rules)
    assert saved == current
    own = fingerprint(now | {"agent.factory": "mine:make"}, rules)
    saved, current, _ = comparable(before, own, rules)
    assert current["agent.factory"] == "mine:make"
    assert "agent.factory" not in saved
    needed = {name: value for name, value in before.items() if name != "train.batch_size"}
    saved, current, _ = comparable(needed, fingerprint(now, rules), rules)
    assert "train.batch_size" in current, "a field without a default was always there"
    another = {name: value for name, value in before.items() if name != "agent.discount"}
    saved, current, _ = comparable(another, fingerprint(now | {"agent.discount": 0.5}, rules), rules)
    assert current["agent.discount"] == 0.5


def test_a_field_whose_default_is_new_stands_for_what_was_done_before_it_was_there(tmp_path: Path):
    config, _ = load(["--config", str(ROOT / "configs/openpi_ript/debug.py")])
    rules, now = resume_rules(type(config)), flatten(config)
    assert now["data.constant_dims"] == "openpi"
    earlier = {name: value for name, value in now.items() if name != "data.constant_dims"}
    (tmp_path / "config.json").write_text(json.dumps(earlier))
    assert flatten(read_config(tmp_path, type(config))) == now | {"data.constant_dims": "floored"}
    saved, current, _ = comparable(earlier, fingerprint(now, rules), rules)
    assert (saved["data.constant_dims"], current["data.constant_dims"]) == ("floored", "openpi")
    saved, current, _ = comparable(earlier, fingerprint(now | {"data.constant_dims": "floored"}, rules), rules)
    assert saved == current
    assert "data.constant_dims" not in fingerprint({"run.seed": 1}, rules)  # of a config without the part


@pytest.mark.parametrize(
    ("path", "field", "rows"), [("openpi_ript/debug_ript.py", "env", 4), ("qchunk/debug.py", "eval", 9)]
)
def test_what_was_done_before_may_follow_from_the_fields_beside_it(
    tmp_path: Path, path: str, field: str, rows: int
) -> None:
    """Earlier versions had no rows of their own: half of env.num_envs, and all of eval.num_envs."""
    config, _ = load(["--config", str(ROOT / "configs" / path), f"--{field}.num-envs", "9"])
    now = flatten(config)
    earlier = {name: value for name, value in now.items() if name != f"{field}.rows"}
    (tmp_path / "config.json").write_text(json.dumps(earlier))
    assert flatten(read_config(tmp_path, type(config))) == now | {f"{field}.rows": rows}


@pytest.mark.parametrize(
    ("state_dim", "written", "goes_on"), [(6, 14, True), (14, 14, True), (16, 14, False), (16, 16, True), (6, 8, False)]
)
def test_none_goes_on_where_it_stands_for_what_was_written_out(state_dim: int, written: int, goes_on: bool) -> None:
    """A state was cut to 14 numbers by default: such a run says so again, and others go on with None."""
    config, _ = load(["--config", str(ROOT / "configs/openpi_ript/debug.py")])
    rules, name = resume_rules(type(config)), "data.robot.target_state_dim"
    now = flatten(config) | {"data.robot.state_dim": state_dim, name: None}
    earlier = now | {name: written}
    saved, current, _ = comparable(fingerprint(earlier, rules), fingerprint(now, rules), rules)
    assert (saved == current) == goes_on
    assert fingerprint({name: None}, rules) == {name: None}, "of a damaged file"
    saved, current, _ = comparable(earlier, fingerprint(earlier, rules), rules)
    assert saved == current
    assert saved[name] == written


def test_how_many_environments_there_are_may_change_and_their_rows_may_not() -> None:
    config, _ = load(["--config", str(ROOT / "configs/openpi_ript/debug_ript.py")])
    rules, now = resume_rules(type(config)), flatten(config)
    saved = fingerprint(now, rules)
    assert fingerprint(now | {"env.num_envs": 64}, rules) == saved
    assert fingerprint(now | {"env.rows": 64}, rules) != saved
    # As it is read back from a checkpoint: without what may change.
    assert comparable(saved, saved, rules) == (saved, saved, "")


@pytest.mark.parametrize("path", ["qchunk/debug.py", "openpi_ript/debug.py", "driving/debug.py"])
def test_what_the_data_are_taken_as_may_not_change(path: str) -> None:
    config, _ = load(["--config", str(ROOT / "configs" / path)])
    rules, now = resume_rules(type(config)), flatten(config)
    saved = fingerprint(now, rules)
    assert {"data.cameras", "data.image_size"} <= saved.keys()


def test_the_page_names_every_field_that_may_change_on_resume():
    text = (ROOT / "docs/reliability.md").read_text()
    told = text[text.index("Fields that may change on resume:") :].partition("\n\n")[0]
    rules = EVERY_RUN | RIPT | DRIVING | QCHUNK | {"train.steps", "online.steps"}
    assert [name for name in sorted(rules) if f"`{name}{'*' if name.endswith('.') else ''}`" not in told] == []
