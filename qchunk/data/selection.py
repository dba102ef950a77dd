"""What a run takes of an indexed dataset: labels, the arrays and cameras that it needs, and sizes that agree."""

import collections
import dataclasses
import os
import re
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Bool

from chunkwise.data.problems import Problem
from qchunk.config import DataConfig
from qchunk.data.conventions import convention_problems, success_reward
from qchunk.data.readers import aloha, lerobot, ogbench
from qchunk.data.readers.aloha_images import COLOUR, DEPTH, camera_path
from qchunk.data.readers.report import EpisodeReport, ImageReport
from qchunk.data.relabel import base_env, needs_buttons

_LIKE_SCORE = re.compile(r"(?i)scores?[ _-]*(\d+)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Selection:
    """What a run takes of a dataset."""

    reports: tuple[EpisodeReport, ...]
    """Episodes without a problem."""
    positives: Bool[np.ndarray, " episodes"]
    """Label of each."""
    problems: tuple[Problem, ...]
    bad: tuple[str, ...]
    """Episodes that the problems are of."""
    success_reward: float | None
    """Ends an episode whose file has a reward and does not say where it terminated; None: none does."""
    left_out: int
    """Episodes in score folders that are neither positive nor negative."""
    notes: tuple[str, ...]


def select(reports: Sequence[EpisodeReport], data: DataConfig, *, all_images: bool = False) -> Selection:
    """Judges what was indexed by what this run needs: labels, arrays, images, and widths that agree.

    Args:
      reports: From `read_index`.
      data: Of the run.
      all_images: Damaged images of cameras that data does not name are problems too.
    """
    taken, positives, left_out, unlabelled = [], [], 0, []
    for report in reports:
        score = _score(report, data)
        if score is not None and score not in (*data.positive_scores, *data.negative_scores):
            left_out += 1
            continue
        taken.append(report)
        positives.append(label_of(report, data))
        if positives[-1] is None and not report.problems:
            unlabelled.append(report)
    notes = []
    if left_out:
        scores = f"positive {data.positive_scores}, negative {data.negative_scores}"
        notes.append(f"{left_out} episode(s) left out by the score of their folder ({scores})")
    labelled = any(label is not None for label in positives)
    cameras = camera_paths(data)
    problems = {
        report.id: [
            *report.problems,
            *(p for p in report.image_problems if all_images or any(c.startswith(camera_path(p.key)) for c in cameras)),
        ]
        for report in taken
    }
    if unlabelled and labelled:
        for report in unlabelled:
            problems[report.id].append(
                Problem(
                    file=report.id,
                    key="attribute success",
                    expected="a label, as other episodes have one (folder score_<n>, or this attribute)",
                    found="none",
                )
            )
    elif unlabelled:
        notes.append("no labels (folders score_<n>, or the attribute success): every episode counts as positive")
    for report in taken:
        problems[report.id] += _misspelt_score(report, data)
    whole = [report for report in taken if not problems[report.id]]
    from_files = data.format in ("aloha_hdf5", "lerobot", "ogbench_npz") and data.task is None
    if from_files and data.missing_reward == "label":
        for problem in convention_problems(whole):
            problems[problem.file].append(dataclasses.replace(problem, key=name_in_file("reward", data)))
    widths, forms = _common_widths(whole, data), _common_forms(whole, data)
    for report in whole:
        problems[report.id] += _needs(report, data) + _width_problems(report, widths, data)
        problems[report.id] += _image_problems(report, data, forms)
    good = [not problems[report.id] for report in taken]
    left = [report for report, ok in zip(taken, good, strict=True) if ok]
    labels = [label is not False for label, ok in zip(positives, good, strict=True) if ok]
    if from_files and left and all(report.rewards is None for report in left) and not any(labels):
        notes.append(_no_positive(data))
    if from_files and left and data.format == "ogbench_npz" and all(report.rewards is None for report in left):
        notes.append("no rewards: each episode earns 1 at its last frame, and ends there; data.task computes a task's")
    success = success_reward(left) if from_files else None
    notes += _ends(left, success) if from_files else []
    notes += _unread(left, data) + _rates(left)
    return Selection(
        success_reward=success,
        reports=tuple(left),
        positives=np.array(labels, bool),
        problems=tuple(problem for report in taken for problem in problems[report.id]),
        bad=tuple(report.id for report, ok in zip(taken, good, strict=True) if not ok),
        left_out=left_out,
        notes=tuple(notes),
    )


def _unread(reports: Sequence[EpisodeReport], data: DataConfig) -> list[str]:
    """What some of the episodes hold, and no batch does, since others lack it or have another width of it."""
    found = []
    for name in {"qpos", "state"} - {data.observation}:
        widths = collections.Counter(report.dims.get(name) for report in reports)
        if len(widths) > 1:
            held = len(reports) - widths[None]
            found.append(
                f"{name_in_file(name, data)}: in {held} of {len(reports)} episodes, or of several widths; it is not "
                f"read (data.observation is {data.observation}), and batches have none"
            )
    return found


def _rates(reports: Sequence[EpisodeReport]) -> list[str]:
    """What the files say about their frames a second, where that is not one number."""
    rates = collections.Counter(float(f"{report.fps:.4g}") for report in reports if report.fps is not None)
    if not rates or max(rates) - min(rates) <= 0.01 * max(rates):  # 29.97 and 30
        return []
    each = ", ".join(f"{rate:g} in {count}" for rate, count in sorted(rates.items()))
    return [f"attribute fps: {each} episodes; a chunk of these lasts another time, and a policy learns all as one rate"]


def label_of(report: EpisodeReport, data: DataConfig) -> bool | None:
    """Returns whether an episode is positive, by its folder or else by what its file says; None where neither does."""
    score = _score(report, data)
    return score in data.positive_scores if score is not None else report.success


def _score(report: EpisodeReport, data: DataConfig) -> int | None:
    """n of the innermost folder score_<n> that an episode lies in: below data.path, or data.path itself."""
    return aloha.score_of(_own_name(data)) if report.score is None else report.score


def _own_name(data: DataConfig) -> str:
    """Name of the folder data.path, also where it is given as "."; empty where its name means nothing."""
    return os.path.basename(os.path.abspath(data.path)) if data.format == "aloha_hdf5" else ""


def _misspelt_score(report: EpisodeReport, data: DataConfig) -> list[Problem]:
    """Folders that are meant as score_<n>, and are not called so: their episodes would have no label."""
    if _score(report, data) is not None:
        return []
    for folder in (_own_name(data), *report.path.split("/")[:-1]):
        if match := _LIKE_SCORE.fullmatch(folder):
            meant = f"a folder score_{int(match[1])}"
            return [Problem(file=report.id, key=f"folder {folder}", expected=meant, found=folder)]
    return []


def _no_positive(data: DataConfig) -> str:
    return (
        "no episode is positive: rewards that are made from labels are 0 everywhere, and the critic learns nothing; "
        f"put successes into folders score_<n>, n one of data.positive_scores {data.positive_scores}, or give their "
        "files the attribute success"
    )


def _ends(reports: Sequence[EpisodeReport], success: float | None) -> list[str]:
    """How episodes end whose files have a reward, and do not say where they terminated."""
    cut = [report.rewards for report in reports if report.rewards is not None and not report.rewards.terminated]
    if success is None:
        return []
    ended = sum(rewards.high == success for rewards in cut)
    return [
        f"{len(cut)} episode(s) that do not say where they terminated: {ended} end with the reward of success, "
        f"{success:g}, and count as terminated there; {len(cut) - ended} were cut off by time"
    ]


def _common_widths(reports: Sequence[EpisodeReport], data: DataConfig) -> dict[str, int | None]:
    """Width in most episodes of each array that the run reads; None where most have no such array."""
    # Of other formats qpos and state are one array.
    always = {"aloha_hdf5": ("qpos",)}.get(data.format, () if ":" in data.format else ("qpos", "state"))
    names = {
        *always,
        data.observation,
        data.action,
        *(("base_action",) if data.base_action else ()),
        *(() if data.task is None else ("sim_qpos", "button_states")),
    }
    counts = {name: collections.Counter(report.dims.get(name) for report in reports) for name in sorted(names)}
    return {name: count.most_common(1)[0][0] for name, count in counts.items() if count}


_OGBENCH = ogbench.KEYS | {"qpos": ogbench.KEYS["state"]}  # the files' own qpos is the simulator's


def name_in_file(name: str, data: DataConfig) -> str:
    """Name of an array as the dataset's files have it; a reader of one's own gives it under the short one."""
    formats = {"aloha_hdf5": aloha.DATASETS, "lerobot": lerobot.KEYS, "ogbench_npz": _OGBENCH}
    return formats.get(data.format, {}).get(name, name)


def _width_problems(report: EpisodeReport, widths: Mapping[str, int | None], data: DataConfig) -> list[Problem]:
    def words(width: int | None) -> str:
        return "no such array" if width is None else f"{width} dimensions"

    problems = [
        Problem(
            file=report.id,
            key=name_in_file(name, data),
            expected=f"{words(width)}, as in most episodes",
            found=words(report.dims.get(name)),
        )
        for name, width in widths.items()
        if report.dims.get(name) != width
    ]
    return list(dict.fromkeys(problems))  # qpos and state may be two names of one array


def camera_paths(data: DataConfig) -> list[str]:
    """Paths of the datasets of the cameras that the run sees, depth last."""
    return [f"{COLOUR}/{name}" for name in data.cameras] + [f"{DEPTH}/{name}" for name in data.depth_cameras]


Form = tuple[str, tuple[int, int] | None]  # dtype, and height and width where all must agree


def _form(report: ImageReport, data: DataConfig) -> Form:
    return report.dtype, (report.height, report.width) if data.image_size is None else None


def _common_forms(reports: Sequence[EpisodeReport], data: DataConfig) -> dict[str, Form | None]:
    """What most images are, of colour and of depth: they share an array, so all must be alike."""
    counts = {group: collections.Counter[Form]() for group in (COLOUR, DEPTH)}
    for report in reports:
        for name in camera_paths(data):
            if report.images is not None and name in report.images:
                counts[name.rpartition("/")[0]][_form(report.images[name], data)] += 1
    return {group: count.most_common(1)[0][0] if count else None for group, count in counts.items()}


def _image_problems(report: EpisodeReport, data: DataConfig, forms: Mapping[str, Form | None]) -> list[Problem]:
    """Cameras that the episode lacks, and images unlike most others."""
    problems = []
    for name in camera_paths(data):
        images = report.images or {}
        if name not in images:
            field = "data.cameras" if name.startswith(f"{COLOUR}/") else "data.depth_cameras"
            found = f"cameras {', '.join(sorted(images)) or 'none'}"
            problems.append(Problem(file=report.id, key=name, expected=f"images, for {field}", found=found))
            continue
        form, usual = _form(images[name], data), forms[name.rpartition("/")[0]]
        if form != usual and usual is not None:
            expected = f"{_words(usual)}, as of most cameras and episodes (or set data.image_size)"
            problems.append(Problem(file=report.id, key=name, expected=expected, found=_words(form)))
    return problems


def _words(form: Form) -> str:
    return form[0] if form[1] is None else f"{form[0]} of {form[1][0]} x {form[1][1]}"


def _needs(report: EpisodeReport, data: DataConfig) -> list[Problem]:
    """Arrays that the config asks for and the episode lacks."""
    needed = {"qpos": "data"} if data.format == "aloha_hdf5" else {}
    if ":" in data.format and data.action == "qpos":
        needed["qpos"] = "data.action=qpos"
    if ":" in data.format or data.observation == "state":
        needed[data.observation] = f"data.observation={data.observation}"
    if data.action == "action":
        needed["action"] = "data.action=action"
    if data.base_action:
        needed["base_action"] = "data.base_action"
    if data.task is not None:
        needed["sim_qpos"] = "data.task (rewards are computed from it)"
        if needs_buttons(data.task):
            needed["button_states"] = "data.task (rewards are computed from it)"
    found = [
        Problem(file=report.id, key=name_in_file(name, data), expected=f"this array, for {why}", found="none")
        for name, why in needed.items()
        if name not in report.dims
    ]
    if data.task is None and data.missing_reward == "refuse" and report.total_reward is None:
        expected = "a reward, for data.missing_reward=refuse"
        found.append(Problem(file=report.id, key=name_in_file("reward", data), expected=expected, found="none"))
    if data.task is not None and report.env is not None and report.env != base_env(data.task):
        expected = f"{base_env(data.task)}, for data.task={data.task}"
        found.append(Problem(file=report.id, key="attribute env", expected=expected, found=report.env))
    return found
