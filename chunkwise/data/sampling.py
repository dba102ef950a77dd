"""Counter-based sampling: what is drawn is a function of (seed, epoch, shard, step) and of nothing that ran before.

Philox is a keyed function of a counter. Here the key is (seed, epoch) and the counter's upper words are (purpose,
shard, step), so two different draws never share a stream, and the draw of any step costs the same as the first.
"""

import dataclasses
import enum
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64, Int64, UInt64

from chunkwise.errors import ConfigError

STEPS_PER_BLOCK = 64
"""Steps whose starts are drawn by one generator: making one costs 25 us, a draw of 32 starts 0.3 us."""


@enum.unique
class Purpose(enum.Enum):
    """What a random number is for: the one list of all of them, but of jax's keys, which have names (train/rngs.py).

    A value is a family and a word. Numbers of one family may be drawn from one seed, in one program, so their words
    differ; programs that never meet have families of their own. `words` puts the word last, after the numbers that say
    which draw it is. numpy fills up to four words with zeros: [a, b] seeds as [a, b, 0] does, so None counts as 0.

    Where a chunk's number follows the word, that number stands where another purpose has its word: the noise of an
    evaluated chunk n may be the stream that another purpose of the family, with one number more, has under word n.
    Each feeds another generator or another distribution (a simulator's reset, a permutation, jax's normal numbers).
    """

    POOL_EPISODES = ("Philox", 0)
    POOL_STARTS = ("Philox", 1)
    POOL_ITEM = ("Philox", 2)
    """Start of one transition of the specification's dataset: (seed, epoch), the rank, and its index as the step."""
    POOL_MIXTURE = ("Philox", 3)
    """How the places of a pool are rounded for each dataset of a mixture: (seed, epoch), and the shard."""
    AUGMENTATION = ("Philox, driving", 0)
    """Of one sample: (seed, epoch), and its index in the epoch as the step."""

    QCHUNK_EVALUATION_SCENE = ("qchunk", None)
    """Reset of an evaluated episode: (seed, episode)."""
    ONLINE_SCENE = ("qchunk", 1)
    """Reset of an online episode: (seed, episode, numbered across all environments)."""
    ONLINE_ACTION = ("qchunk", 2)
    """Key of the policy: (seed, environment step, numbered across all environments)."""
    ONLINE_ROWS = ("qchunk", 3)
    """Rows of a batch that come from online episodes: (seed, update)."""
    QCHUNK_EVALUATION_ACTION = ("qchunk", 4)
    """Key of the policy in an evaluated episode: (seed, update, episode), and after the word the chunk."""

    RIPT_ORDER = ("openpi_ript", None)
    """Order of the dataset's frames: (seed, epoch)."""
    ROLLOUT_SCENE = ("openpi_ript", 1)
    """Reset of a rollout: (seed, initial state)."""
    ROLLOUT_ACTION = ("openpi_ript", 2)
    """Noise of a rollout's policy: (seed, update, initial state, number in its group), and after the word the chunk."""
    RIPT_EVALUATION = ("openpi_ript", 3)
    """Reset of an evaluated episode: (seed, episode); its policy's noise, with the chunk after the word: that of chunk
    0 has the words of the reset."""
    ROLLOUT_ROWS = ("openpi_ript", 4)
    """Rows of a batch of rollouts' windows: (seed, update)."""
    CANDIDATES = ("openpi_ript", 5)
    """Order in which initial states are tried: (seed, update)."""
    CHUNK_ORDER = ("openpi_ript", 6)
    """Order of a round's chunks in one pass over them: (seed, update of the round, pass)."""
    EXPLORATION = ("openpi_ript", 7)
    """Offset of a rollout's actions: (seed, update, initial state, number in its group)."""
    HINDSIGHT = ("openpi_ript", 8)
    """The frame whose place becomes a failed rollout's goal: (seed, update, initial state, number in its group)."""
    SERVED_ACTION = ("served policies", None)
    """Noise of a policy: (seed, length of the draw's name, its words, row)."""

    DRIVING_ORDER = ("driving", None)
    """Order of the anchors: (seed, epoch)."""
    MODE_ANCHORS = ("driving", 1)
    """Where k-means over futures begins: (seed)."""

    STUDY_BOOTSTRAP = ("study", None)
    """Runs that are drawn with replacement: (groups of them)."""
    STUDY_SIGNS = ("study's signs", None)
    """Signs of paired differences, where there are too many to go through them: (differences)."""

    PLAY = ("recording of play", None)
    """(seed, episode, attempt)."""
    TRANSFER = ("recording of cube transfers", None)
    """(seed, episode)."""
    DEMONSTRATION = ("recording of Lift", None)
    """(seed, episode)."""
    POINT = ("recording of a point", None)
    """Where a group starts: (seed, group, 0); its episodes: (seed, group, number from 1 on)."""
    DRIVE = ("recording of a town", 0)
    """Reset of a recorded drive: (seed, episode)."""
    PLAN_NOISE = ("recording of a town", 1)
    """Errors in the plans that the car follows there: (seed, episode)."""
    LOST_IMAGES = ("recording of a town", 2)
    ROUTE = ("driving in closed loop", 0)
    """A town and who drives in it: (seed of the reset)."""
    ROUTE_COLOURS = ("driving in closed loop", 1)
    """Colours, houses, light of that town: (seed of the reset)."""
    ROUTE_EVALUATION = ("driving in closed loop", 2)
    """Reset of an evaluated drive: (seed, episode)."""
    ROUTE_TRAINING = ("driving in closed loop", 3)
    """Reset of a drive that is learnt from: (seed, route)."""
    ROUTE_LEAD = ("driving in closed loop", 7)
    """Seconds that the town's own driver drives first: (seed of the reset)."""
    MODE_DRAW = ("driving in closed loop", 4)
    """The modes of a drive that is learnt from: (seed, update, route, number in its group), and the decision after the
    word."""
    ROUND_ROUTES = ("driving in closed loop", 5)
    """Routes of a round: (seed, update)."""
    DECISIONS = ("driving in closed loop", 6)
    """Decisions of a batch: (seed, update)."""

    @property
    def word(self) -> int | None:
        """Last word of the seed."""
        return self.value[1]


def words(purpose: Purpose, seed: int, *numbers: int) -> list[int]:
    """Returns the words that seed numpy for one draw of a purpose."""
    return [seed, *numbers] if purpose.word is None else [seed, *numbers, purpose.word]


def generator(purpose: Purpose, seed: int, *numbers: int) -> np.random.Generator:
    """Makes the generator of one draw of a purpose."""
    return np.random.default_rng(words(purpose, seed, *numbers))


def seed_of(purpose: Purpose, seed: int, *numbers: int) -> int:
    """Returns a seed of 32 bits for who takes one: a simulator, a jax key."""
    return int(np.random.SeedSequence(words(purpose, seed, *numbers)).generate_state(1)[0])


def seed_of_draw(draw: Sequence[int]) -> int:
    """Returns a seed of 32 bits of the words of a rollout's draw: those of its purpose, then the chunk."""
    return int(np.random.SeedSequence(draw).generate_state(1)[0])


def philox(purpose: Purpose, seed: int, epoch: int, *, shard: int = 0, step: int = 0) -> np.random.Generator:
    """Makes an independent generator for each set of arguments; Philox counts in the lowest word of its counter."""
    key = _key(seed, epoch)
    counter = np.array([0, step, shard, purpose.word], np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


def uniform_rows(
    purpose: Purpose, seed: int, places: Sequence[tuple[int, int]], count: int
) -> Float64[np.ndarray, "b count"]:
    """Draws `count` numbers of [0, 1) for each (epoch, step), as its `philox` would.

    One generator is set to each place in turn: making one asks the system for entropy, and takes three times as long.
    """
    bits = np.random.Philox(key=_key(seed, 0))
    generator, state = np.random.Generator(bits), bits.state
    rows = np.empty((len(places), count))
    for row, (epoch, step) in enumerate(places):
        counter = np.array([0, step, 0, purpose.word], np.uint64)
        state["state"] = {"counter": counter, "key": _key(seed, epoch)}
        bits.state = state
        generator.random(out=rows[row])
    return rows


def _key(seed: int, epoch: int) -> UInt64[np.ndarray, "2"]:
    if not 0 <= seed < 1 << 63:
        raise ConfigError(f"run.seed is {seed}; expected 0 to 2^63 - 1")
    return np.array([seed, epoch], np.uint64)


def block_of_starts(
    total: int, size: int, *, seed: int, epoch: int, shard: int, block: int
) -> Int64[np.ndarray, "steps b"]:
    """Starts of STEPS_PER_BLOCK consecutive steps of one shard, uniform over [0, total).

    Row k belongs to step `block * STEPS_PER_BLOCK + k` of the epoch.

    Args:
      total: Starts in the shard's pool.
      size: b, rows that the shard gives to one batch.
      seed: Of the run, 0 to 2^63 - 1.
      epoch: Of the pool.
      shard: Virtual shard.
      block: Step inside the epoch, divided by STEPS_PER_BLOCK.

    Raises:
      ConfigError: If the seed is out of range.
    """
    rng = philox(Purpose.POOL_STARTS, seed, epoch, shard=shard, step=block)
    return rng.integers(0, total, size=(STEPS_PER_BLOCK, size))


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpisodeDraw:
    """Episodes of one pool, and what could not be done as asked."""

    indices: Int64[np.ndarray, " n"]
    notes: tuple[str, ...]


def draw_episodes(
    positives: Int64[np.ndarray, " p"],
    negatives: Int64[np.ndarray, " q"],
    *,
    count: int,
    positive_ratio: float,
    seed: int,
    epoch: int,
    shard: int,
    part: int = 0,
) -> EpisodeDraw:
    """Draws round(positive_ratio * count) positive episodes and fills up with negative ones, uniformly.

    Without replacement where a class has enough episodes. Where it has fewer than asked, all of them are taken
    first and the rest is drawn again with replacement; where it has none, the other class fills its places. Both
    are said in `notes`.

    Args:
      positives: Indices of the positive episodes.
      negatives: Indices of the negative episodes.
      count: n, episodes of the pool.
      positive_ratio: In [0, 1].
      seed: Of the run, 0 to 2^63 - 1.
      epoch: Of the pool.
      shard: Virtual shard.
      part: Number of this draw, where several fill one pool.

    Raises:
      ValueError: If there is no episode at all.
      ConfigError: If the seed is out of range.
    """
    if not len(positives) and not len(negatives):
        raise ValueError("no episodes to draw from")
    rng = philox(Purpose.POOL_EPISODES, seed, epoch, shard=shard, step=part)
    want = round(positive_ratio * count)
    wanted = {"positive": want, "negative": count - want}
    classes = {"positive": positives, "negative": negatives}
    notes: list[str] = []
    for name, other in (("positive", "negative"), ("negative", "positive")):
        if wanted[name] and not len(classes[name]):
            notes.append(f"no {name} episode: its {wanted[name]} places of {count} are filled with {other} ones")
            wanted = {name: 0, other: count}
    drawn = []
    for name, members in classes.items():
        if 0 < len(members) < wanted[name]:
            notes.append(f"{len(members)} {name} episodes for {wanted[name]} places: some are drawn more than once")
        drawn.append(_draw(rng, members, wanted[name]))
    return EpisodeDraw(indices=np.concatenate(drawn), notes=tuple(notes))


def _draw(rng: np.random.Generator, members: Int64[np.ndarray, " m"], count: int) -> Int64[np.ndarray, " n"]:
    if count <= len(members):
        return rng.choice(members, count, replace=False)
    again = rng.choice(members, count - len(members), replace=True)
    return np.concatenate([rng.permutation(members), again])
