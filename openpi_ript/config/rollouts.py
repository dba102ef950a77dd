"""Settings of environments, rollouts, evaluation and datasets that are made, as frozen dataclasses. No jax here."""

import dataclasses
import difflib
from typing import Literal

from chunkwise.config.experiment import (
    FREE_AS_A_PLACE,
    FREE_ON_RESUME,
    before_it_was_there,
    require_fraction,
    require_non_negative,
    require_positive,
)
from openpi_ript.config.data import AdvantageConfig
from openpi_ript.config.ppo import PpoConfig

SUITES = ("aloha", "gymnasium", "libero", "metaworld", "ogbench", "point", "robomimic", "robosuite")
STATE_FUNCTIONS = ("concatenate", "axis_angle", "relative", "differences")
FROM_PLACES = ("relative", "differences")
"""Those of STATE_FUNCTIONS to which the first three numbers of each array are a place."""
RESTORABLE = ("libero", "metaworld", "robomimic", "robosuite")
"""Suites that can begin in a given state."""
QUATERNION = "quat"
"""End of the names of arrays that are quaternions."""
MAX_ENVS = 1024
"""Processes of one machine; a run from elsewhere may ask for any number."""
MAX_SIDE = 4096
"""Pixels; the largest framebuffers of software renderers are as large."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnvConfig:
    """One simulated task or several of a suite, and how the policy acts in them."""

    suite: str
    """One of SUITES, or `module:factory` of your own, which is called with an EnvSpec (chunkwise/envs/environment.py).
    point: the simulated point of record.py, which needs no simulator."""
    python: str = ""
    """Path of the interpreter that runs `module:factory`, where its simulator needs other versions than this Python
    has. It needs numpy and the simulator, and nothing of ours. Empty: this Python."""
    task: str = ""
    """robosuite: its environment, e.g. Lift. robomimic: lift, can or square, seen as `state` alone. libero: suite and
    number of the task, e.g. libero_spatial/0. aloha: AlohaTransferCube or AlohaInsertion. metaworld: one of its 50,
    e.g. reach-v3. ogbench: a single task, e.g. cube-single-singletask-task2-v0. gymnasium: any id, e.g. Pendulum-v1,
    or module:id, which is imported. point: the disc that is right, red or blue."""
    tasks: tuple[str, ...] = ()
    """Several tasks in place of `task`: their names, or that of a set which the suite knows (metaworld: MT10, MT50,
    easy, medium, hard, very_hard; libero: libero_spatial, libero_object, libero_goal, libero_10, libero_90)."""
    prompt: str = ""
    """The task in words, as the policy is told it; empty: as its suite says it (metaworld, libero)."""
    prompts: dict[str, str] = dataclasses.field(default_factory=dict)
    """The same of some of `tasks`, by name."""
    max_steps: int
    """Steps after which an episode that has not succeeded has failed."""
    steps: dict[str, int] = dataclasses.field(default_factory=dict)
    """In place of `max_steps` for some of `tasks`, by name."""
    initial_states: str = dataclasses.field(default="", metadata=FREE_AS_A_PLACE)
    """An .npz file of published states in which episodes begin (chunkwise/envs/initial_states.py): evaluations in its
    first rows of each task, groups of rollouts in its last. The run keeps a copy. Empty: states are drawn by seeds."""
    state: tuple[str, ...] = ("robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos")
    """Arrays of an observation of which the policy's state is made."""
    state_function: str = "concatenate"
    """How it is made. concatenate: one after another. axis_angle: the same, each quaternion (x, y, z, w; four numbers,
    its name ends in quat) as its rotation vector, as openpi's LIBERO client has it. relative: the first three numbers
    of every array but the first are a place, given from the first one's, as of object and goal from the hand.
    differences: the way from each array's place to that of each later one, then what the arrays hold beside their
    places; no place itself, so that what is learnt at one place holds at every other. Or `module:function` of your own,
    called with an observation and `state`; it gives floats [*T, s] of arrays [*T, ...]."""
    cameras: dict[str, str] = dataclasses.field(default_factory=dict)
    """openpi's name of each image to the observation's, e.g. base_0_rgb to agentview_image; empty: none is rendered."""
    image_size: tuple[int, int] = (84, 84)
    """Height and width at which cameras are rendered."""
    rendering: Literal["full", "fast"] = "full"
    """full: as the suite renders. fast (robosuite, LIBERO): no multisampling, no reflections, shadow maps of 1024; a
    third of the time without a graphics card, and values of 255 that differ by 1.3 to 1.7 in the mean (Lift)."""
    execute: int = 8
    """Actions of each chunk that are executed before the policy is asked again."""
    num_envs: int = dataclasses.field(default=4, metadata=FREE_ON_RESUME)
    """Worker processes, each with one environment; those that wait are inferred for while the others step."""
    rows: int = dataclasses.field(default=2, metadata=before_it_was_there(lambda env: max(env["num_envs"] // 2, 1)))
    """Rows of every batch that the policy infers for, whoever is ready; half of num_envs keeps all of them busy. It is
    a part of what the policy does: in a batch of another size numbers may round differently."""

    def __post_init__(self) -> None:
        require_positive(self, "max_steps", "execute", "num_envs", "rows")
        if self.suite not in SUITES and ":" not in self.suite:
            raise ValueError(
                f"env.suite is {self.suite!r}; expected one of {', '.join(SUITES)}, or module:factory of your own"
            )
        if self.python and ":" not in self.suite:
            raise ValueError(
                f"env.python is {self.python!r} and env.suite {self.suite!r}; expected module:factory of your own"
            )
        self._check_tasks()
        for name in ("num_envs", "rows"):
            if (count := getattr(self, name)) > MAX_ENVS:
                raise ValueError(f"env.{name} is {count}; expected at most {MAX_ENVS}")
        if self.initial_states and (self.python or (self.suite in SUITES and self.suite not in RESTORABLE)):
            raise ValueError(
                f"env.initial_states is {self.initial_states!r}, env.suite {self.suite!r} and env.python "
                f"{self.python!r}; expected one of {', '.join(RESTORABLE)}, or module:factory with reset_to(state) in "
                "this Python, or no initial states"
            )
        if not all(0 < side <= MAX_SIDE for side in self.image_size):
            raise ValueError(f"env.image_size is {self.image_size}; expected two numbers from 1 to {MAX_SIDE}")
        if self.rendering == "fast" and self.suite not in ("robosuite", "libero"):
            raise ValueError(f"env.rendering is fast; expected full for the suite {self.suite}")
        if not self.state:
            raise ValueError("env.state is empty; expected the names of the arrays that are the policy's state")
        if self.state_function not in STATE_FUNCTIONS and ":" not in self.state_function:
            near = difflib.get_close_matches(self.state_function, STATE_FUNCTIONS, n=1)
            raise ValueError(
                f"env.state_function is {self.state_function!r}; expected one of {', '.join(STATE_FUNCTIONS)}, or "
                f"module:function of your own{f'; did you mean {near[0]!r}?' if near else ''}"
            )
        if self.state_function == "axis_angle" and not any(name.endswith(QUATERNION) for name in self.state):
            raise ValueError(
                f"env.state_function is 'axis_angle' and env.state {self.state}; expected a quaternion among them, "
                f"whose name ends in {QUATERNION}, or 'concatenate'"
            )
        if self.state_function in FROM_PLACES and len(self.state) < 2:
            raise ValueError(
                f"env.state_function is {self.state_function!r} and env.state {self.state}; expected the array from "
                "which places are given, and after it at least another"
            )
        if self.state_function in FROM_PLACES and any(name.endswith(QUATERNION) for name in self.state):
            raise ValueError(
                f"env.state_function is {self.state_function!r} and env.state {self.state}; expected arrays that begin "
                f"with a place, none whose name ends in {QUATERNION}; a function of your own can tell them apart"
            )

    def _check_tasks(self) -> None:
        """Raises ValueError unless there is one task or several, each described once."""
        if (self.task and self.tasks) or (self.suite in SUITES and not (self.task or self.tasks)):
            raise ValueError(f"env.task is {self.task!r} and env.tasks {self.tasks}; expected one of the two")
        if len(set(self.tasks)) != len(self.tasks):
            raise ValueError(f"env.tasks is {self.tasks}; expected each once")
        if self.tasks and self.prompt:
            raise ValueError(
                f"env.prompt is {self.prompt!r} and env.tasks {self.tasks}; expected the prompts in env.prompts"
            )
        if not self.tasks and (self.prompts or self.steps):
            raise ValueError("env.prompts and env.steps are for env.tasks; expected env.prompt and env.max_steps")
        if any(steps < 1 for steps in self.steps.values()):
            raise ValueError(f"env.steps is {self.steps}; expected 1 or more of each")


@dataclasses.dataclass(frozen=True, kw_only=True)
class HindsightConfig:
    """A rollout that failed, taken for one of the goal that it did reach (hindsight experience replay,
    arXiv:1707.01495). It asks more of a simulator than success: that a goal is a place, and whose."""

    reached: dict[str, str]
    """Of a task, by its name, the array of its observations whose first numbers are to come to the goal, e.g. hand for
    reach-v3; rollouts of other tasks stay failures."""
    radius: dict[str, float]
    """How near counts as there, of the same tasks, in the goal's units."""
    places: Literal["last", "passed"] = "last"
    """Which place becomes the goal. last: where it was in the last frame. passed: where it was in a frame that is drawn
    from those farther than two radii from where it began (HER's strategy "future", of the first frame), so that goals
    lie on the whole way and not only where a rollout ran out of time."""
    goal: str = "goal"
    """The array that says where the goal is; the policy sees it in env.state, and in no other array of it."""

    def __post_init__(self) -> None:
        if not self.reached or self.reached.keys() != self.radius.keys():
            raise ValueError(
                f"rollout.hindsight.reached names {sorted(self.reached)} and rollout.hindsight.radius "
                f"{sorted(self.radius)}; expected the same tasks, at least one"
            )
        if not all(radius > 0 for radius in self.radius.values()):
            raise ValueError(f"rollout.hindsight.radius is {self.radius}; expected numbers above 0")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExplorationConfig:
    """Rollouts that are led elsewhere: an offset of its own is added to the actions of each of them. What is trained on
    is what was executed."""

    deviation: tuple[float, ...]
    """Standard deviation of the offset to each number of an action, in its units; 0: none."""
    each: float = 1.0
    """Probability that such a number has one."""
    steps: int | None = None
    """Steps of an episode after which offsets end at the latest, so that the policy goes on by itself from where it was
    led. Each rollout ends its own after a number of steps that is drawn evenly from half of this (rounded up) to all of
    it. None: never."""
    share: float = 0.5
    """Share of the rollouts of each group that explore, the last ones of it. The others act as the policy says; by them
    alone a task's share of successes is told."""
    below: float = 1.0
    """Share of successes from which on a task's rollouts explore no more: (successes + 1) / (rollouts + 2) of those of
    the task's last round that did not explore, as for rollout.tasks. So 1 never ends it, 8 rollouts that all succeed
    have 0.9; a task that was not played yet has 0.5."""

    def __post_init__(self) -> None:
        require_positive(self, "each", "share", "below", *(["steps"] if self.steps is not None else []))
        require_fraction(self, "each", "share", "below")
        if min(self.deviation, default=0) < 0 or not any(self.deviation):
            raise ValueError(
                f"rollout.exploration.deviation is {self.deviation}; expected numbers of 0 or above, one of them above"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RolloutConfig:
    """RIPT's rounds (arXiv:2505.17016): groups of rollouts from one initial state each, then updates on them."""

    start: int
    """Updates on the dataset (supervised: every frame is labelled positive) before the first round."""
    updates: int
    """Updates of a round."""
    groups: int
    """Groups with both successes and failures that a round wants."""
    max_groups: int
    """Groups that a round tries at most."""
    size: int = 8
    """Rollouts of a group."""
    early_stop: float = 1.0
    """Share of `groups` that is enough: with it a round goes on to its updates."""
    initial_states: int = 200
    """Initial states of each task from which groups are taken; none of them is one of the evaluation's."""
    tasks: Literal["uniform", "success", "need"] = "uniform"
    """Which of several tasks the next group is of. uniform: each in turn, in an order drawn for the round. The others
    draw by p, the share of successes when the task was last played, (successes + 1) / (rollouts + 2): success by
    p (1 - p), so that tasks in which outcomes differ come more often; need by 1 - p."""
    retry_after: int = 0
    """Updates for which an initial state that all of its rollouts solved is not tried again; 0, or above `updates`."""
    replay_rounds: int = 1
    """Newest rounds whose rollouts are drawn from, as far as they have something to learn from. Where none has, the
    updates leave the weights as they are."""
    rows: Literal["frames", "tasks", "need"] = "frames"
    """How the rows of a batch are drawn from rollouts. frames: every frame alike, so that a task counts by how many of
    its frames there are, and a failure, which lasts up to the limit, for more than a success. tasks: first the task,
    all alike, then, where it has both, successes or failures, then one of their frames. need: the same, but tasks by
    1 - p, with p as for `tasks` above, so that a batch holds more of what is not solved; tasks that are told in the
    same words count once, by the lowest p of those that were played."""
    staleness: Literal[0, 1] = 0
    """Rounds of updates by which the weights that play are behind. With 1 the next round is played, with the weights of
    this round's begin, while this round's updates are made, on a copy on the first device; a run gives the same
    rollouts whichever is faster."""
    dataset_share: float = 0.0
    """Share of the rows of each batch that are of the dataset, imitated, while the others are of rollouts. With 1 no
    rollouts are played and imitation goes on: the control of an experiment."""
    objective: Literal["guided", "rejection", "ppo"] = "guided"
    """guided: advantages inside each group label its rollouts. rejection: all successful rollouts of a round, those of
    groups without a difference too, are imitated as demonstrations are, and nothing else (rejection sampling). ppo:
    rollouts are sampled with noise, and what was sampled becomes more or less likely by its advantage."""
    ppo: PpoConfig = dataclasses.field(default_factory=PpoConfig)
    """Of the objective ppo."""
    exploration: ExplorationConfig | None = None
    """Rollouts that try other actions than the policy's; None: none do."""
    hindsight: HindsightConfig | None = None
    """Failed rollouts that are imitated as successes at the goals that they reached (rejection alone, and no new run
    with env.cameras, whose images go on to show the goal that was meant); None: none."""
    advantage: AdvantageConfig = dataclasses.field(default_factory=AdvantageConfig)
    """How advantages become weights; rollouts are always compared inside their group, and groups of equal outcomes
    never drawn."""

    def __post_init__(self) -> None:
        require_non_negative(self, "start", "retry_after")
        require_positive(self, "updates", "groups", "initial_states", "replay_rounds", "early_stop")
        require_fraction(self, "early_stop", "dataset_share")
        if self.size < 2:
            raise ValueError(f"rollout.size is {self.size}; a rollout is compared with others, so expected at least 2")
        if self.max_groups < self.groups:
            raise ValueError(f"rollout.max_groups is {self.max_groups}; expected at least rollout.groups {self.groups}")
        if self.advantage != dataclasses.replace(self.advantage, group_by="init_hash", uniform_groups="keep"):
            raise ValueError("rollout.advantage: expected group_by 'init_hash' and uniform_groups 'keep', the defaults")
        if self.hindsight is not None and self.objective != "rejection":
            raise ValueError(
                f"rollout.hindsight is set and rollout.objective {self.objective!r}, which compares rollouts by what "
                "they were to do; expected 'rejection', or None"
            )
        if self.exploration is not None and not 0 < self.explorers < self.size:
            raise ValueError(
                f"rollout.exploration.share is {self.exploration.share}, {self.explorers} of the {self.size} rollouts "
                "of a group; expected 1 or more of both kinds"
            )
        self._check_ppo()

    @property
    def explorers(self) -> int:
        """Rollouts of a group that explore, where its task does."""
        return 0 if self.exploration is None else round(self.exploration.share * self.size)

    @property
    def evaluated_with_noise(self) -> bool:
        """Whether evaluation samples chunks as rollouts do."""
        return self.objective == "ppo" and self.ppo.evaluate == "sde"

    def _check_ppo(self) -> None:
        """Raises ValueError for settings that have no effect with, or without, the objective ppo."""
        if self.objective != "ppo":
            if self.ppo != PpoConfig():
                fields = [field.name for field in dataclasses.fields(PpoConfig)]
                pairs = [(name, getattr(self.ppo, name), getattr(PpoConfig(), name)) for name in fields]
                said = "; ".join(f"{name} is {own}, by default {usual}" for name, own, usual in pairs if own != usual)
                raise ValueError(
                    f"rollout.ppo is set and rollout.objective {self.objective!r}, which has no use for it ({said}); "
                    "expected the defaults, or the objective 'ppo'"
                )
            return
        if self.replay_rounds != 1:
            raise ValueError(
                f"rollout.replay_rounds is {self.replay_rounds} and rollout.objective 'ppo', which trains on what the "
                "weights of this round did; expected 1"
            )
        if self.exploration is not None:
            raise ValueError(
                "rollout.exploration is set and rollout.objective 'ppo', to which an action is what the policy sampled "
                "and for which rollout.ppo.noise explores; expected None"
            )
        if self.rows != "frames":
            raise ValueError(
                f"rollout.rows is {self.rows!r} and rollout.objective 'ppo', which passes over all chunks; expected "
                "'frames'"
            )
        if self.staleness:
            raise ValueError(
                f"rollout.staleness is {self.staleness} and rollout.objective 'ppo', which compares the weights that "
                "train with those of this round; expected 0"
            )
        if self.dataset_share not in (0, 1):
            raise ValueError(
                f"rollout.dataset_share is {self.dataset_share} and rollout.objective 'ppo', whose batches are chunks "
                "of rollouts alone; expected 0, or 1 for the control"
            )
        if self.advantage != AdvantageConfig():
            raise ValueError(
                f"rollout.advantage is {self.advantage} and rollout.objective 'ppo', which takes advantages as they "
                "are, the negative ones too; expected the defaults"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """Evaluation on held-out initial states, the same ones for every run and step."""

    episodes: int = 50
    """Initial states of an evaluation during training: of all tasks together, of each equally many."""
    final_episodes: int = 100
    """Of the one after the last update; both begin with the same ones."""
    seed: int = 0
    """Of the initial states; independent of run.seed, so that runs can be compared state by state."""
    videos: int = 0
    """Episodes in the grid video of the last evaluation; 0: no video."""

    def __post_init__(self) -> None:
        require_positive(self, "episodes", "final_episodes")
        require_non_negative(self, "seed", "videos")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordConfig:
    """A small synthetic dataset, written where data.path does not exist (record.py): half of its episodes fail."""

    groups: int = 8
    """Initial states."""
    rollouts: int = 4
    """Episodes from each of them; every other one goes to the wrong disc."""
    length: int = 20
    """Frames of an episode."""
    prompted: tuple[Literal["red", "blue"], ...] = ("red", "blue")
    """Discs that the prompts ask for, one group after another; at least one."""
    luck: float = 0.0
    """Share of the episodes whose outcome is reported the wrong way round: a reward that depends on more than the
    policy's actions."""
    seed: int = 0

    def __post_init__(self) -> None:
        require_positive(self, "groups", "rollouts", "length")
        require_non_negative(self, "seed")
        require_fraction(self, "luck")
        if not self.prompted:
            raise ValueError("record.prompted is empty; expected red, blue or both")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DemonstrateConfig:
    """Demonstrations of a scripted policy (robosuite's Lift, Stack, Door, NutAssemblySquare, PickPlaceCan; Meta-World;
    an environment's own `expert()`), written where data.path does not exist."""

    episodes: int = 60
    """Of all tasks together, one task after the other."""
    noise: tuple[float, ...] = (0.2,)
    """Standard deviation of what is added to the actions, of one episode of a task after another; 1 is 5 cm or 0.5 rad
    in robosuite, 1 cm in Meta-World."""
    seed: int = 0
    keep_failures: bool = True
    """Whether episodes that did not succeed are kept."""

    def __post_init__(self) -> None:
        require_positive(self, "episodes")
        require_non_negative(self, "seed")
        if not self.noise or min(self.noise) < 0:
            raise ValueError(f"demonstrate.noise is {self.noise}; expected one or more numbers of 0 or above")
