"""The only train loop: evaluate, save, interact, take the next batches, step, log.

The order matters for resume. At step n the loop first evaluates the weights of step n if that is due, then saves, and
only then interacts and moves the data; so a checkpoint of step n holds everything up to and including the evaluation
at n, and a resumed run goes on with the interaction and the batch n. Nothing flows back into the data except the step,
and what an `Interaction` brought from the world before it.

In several processes each runs this loop over its own rows of the same global batches. What decides where the loop goes
is the same in all of them: the step, the metrics (sums over all devices), and requests to stop, which travel with the
updates: every call sums a flag over the processes, and a set one is acted on where that call's metrics are collected,
by all at the same step. Only the first process writes files and prints, but for what others found when they acted. All
act between updates, and the first evaluates, alone while the others wait, or all do together: with the whole weights on
the first device of each that does, so they must fit there (chunkwise/train/interaction.py).
"""

import dataclasses
import gc
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from chunkwise.arrays import NumpyTree
from chunkwise.checkpoint import saved_steps
from chunkwise.checkpoint.checksums import digest
from chunkwise.checkpoint.manager import Checkpoints
from chunkwise.checkpoint.prune import finite_metrics
from chunkwise.checkpoint.reader import Progress
from chunkwise.cli.progress import ProgressLine
from chunkwise.config.experiment import ExperimentConfig
from chunkwise.config.saved import fingerprint, flatten, resume_rules
from chunkwise.distributed import processes, stopping
from chunkwise.errors import ConfigError, NonFiniteError, PeerError, PreemptedError, StopRequested
from chunkwise.state import TrainState
from chunkwise.train import dry_run, machine, provenance, rngs
from chunkwise.train import sharding as mesh_lib
from chunkwise.train.clock import Clock
from chunkwise.train.compile_cache import keep_programs
from chunkwise.train.interaction import Home, Interaction, evaluate, interact
from chunkwise.train.metrics import Mean
from chunkwise.train.optimizer import unfinished_warmup
from chunkwise.train.run_dir import RunFolder
from chunkwise.train.tracing import Tracing
from chunkwise.train.update import jit_updates, stack

# Calls that may be under way before the loop waits for the oldest: enough to hide the host's work, few enough that
# neither batches nor the reaction to SIGTERM pile up.
CALLS_IN_FLIGHT = 2
PATIENCE = 2.0
"""Seconds that a request to stop leaves to the next batches: nearly all come within them, and are used."""

T = TypeVar("T")


@runtime_checkable
class Task(Protocol):
    """What a package hands to the loop."""

    def init(self, key: Any) -> TrainState:
        """Fresh state; traced, so that the weights are born with their shardings."""
        ...

    def step(self, state: TrainState, batch: Any) -> tuple[TrainState, dict[str, Mean]]:
        """One update on one batch; traced.

        The metrics must hold the loss and the norm of the gradient: an update is applied only if all are finite.
        With FSDP the weights are split: a loss calls `sharding.all_gather_params` on those that it is about to use.
        """
        ...

    def batches(self, start_step: int, *, shard: int = 0, num_shards: int = 1) -> Iterator[NumpyTree]:
        """Numpy batches from update `start_step` on: of each, stretch `shard` of `num_shards` equal ones."""
        ...

    def evaluate(self, state: TrainState, *, final: bool) -> dict[str, float]:
        """Metrics of the weights, {} where there is nothing to evaluate; prints what a person wants to know of them.

        With train.ema_decay the weights are the moving average, here and in an interaction that wants it.

        A function of the state alone, so that a repetition after a kill gives the same. Of several processes only the
        first is asked, with step and weights alone, on its first device; the others are where there is `help_evaluate`
        (chunkwise/train/interaction.py).
        """
        ...

    def finish(self) -> None:
        """Called once after the last metrics are written, for figures of the run; on the first process alone."""
        ...

    def data_fingerprint(self) -> dict[str, Any]:
        """JSON values that identify the dataset."""
        ...


def fit(
    config: ExperimentConfig,
    task: Task,
    folder: RunFolder,
    *,
    load: Callable[[TrainState], TrainState] | None = None,
    interaction: Interaction | None = None,
) -> str:
    """Trains until `train.steps`, from the newest checkpoint if the folder holds one.

    Args:
      config: Of the run.
      task: What is trained, on what.
      folder: Open; it gets metrics and checkpoints.
      load: Puts weights from files into the fresh state. Called once, where no checkpoint is there to go on from.
      interaction: What happens between updates, where anything does.

    Returns:
      The digest of the final state, which `done.json` holds too; empty for a dry run.

    Raises:
      PreemptedError: SIGTERM or SIGINT came; everything is saved.
      NonFiniteError: Metrics were NaN or infinite in train.max_skipped updates in a row.
      RunError: As `Checkpoints` and the task raise.
    """
    if config.run.compile_cache is not None:
        keep_programs(config.run.compile_cache)
    return _Run(config, task, folder, load, interaction).run()


class _Run:
    """State of one call of `fit`."""

    def __init__(
        self,
        config: ExperimentConfig,
        task: Task,
        folder: RunFolder,
        load: Callable[[TrainState], TrainState] | None,
        interaction: Interaction | None,
    ) -> None:
        self.config = config
        self.load = load
        self.interaction = interaction
        self.task = task
        self.folder = folder
        self.clock = Clock()
        self.tracing = Tracing(folder.path, config.run.profile)
        self.began = time.perf_counter()
        self.compiled: set[str] = set()
        self.stop_agreed, self.skipped_in_a_row = False, 0
        self.window: dict[str, list[float]] = {}
        self.in_flight: deque[tuple[int, dict[str, Mean], int, jax.Array | None]] = deque()
        self.evaluated, self.home = False, Home()
        self.evaluation: dict[str, float] = {}
        mesh = mesh_lib.make_mesh(config.mesh)
        self.everywhere = NamedSharding(mesh, PartitionSpec())
        self.batch_sharding = mesh_lib.batch_sharding(mesh, config.train.batch_size // config.train.grad_accum_steps)
        self.shard, self.num_shards = mesh_lib.shard_of_batch(mesh)
        self.flag_sharding = NamedSharding(mesh, PartitionSpec(("data", "fsdp")))
        self.jit_any = jax.jit(jnp.max, out_shardings=self.everywhere)
        self.abstract_state = jax.eval_shape(task.init, rngs.key(config.run.seed, "init"))
        self.shardings = mesh_lib.state_shardings(mesh, self.abstract_state, config.mesh.replicate_below)
        self.jit_updates = jit_updates(task.step, mesh, self.shardings, ema=config.train.ema_decay)
        rules = resume_rules(type(config))
        marks = fingerprint(flatten(config), rules) | {f"dataset.{k}": v for k, v in task.data_fingerprint().items()}
        same_everywhere = {name: value for name, value in flatten(config).items() if name != "run.dir"}
        processes.require_same(same_everywhere | marks | machine.shared(config))
        self.checkpoints = Checkpoints(folder.path, config.checkpoint, marks, folder.kept, rules=rules)

    def run(self) -> str:
        """Restores or initialises, then loops."""
        callers = gc.get_freeze_count()  # a caller who has frozen objects of theirs gets them back so
        try:
            with stopping.watched() as self.watch:
                self._restore()
                self.watch.carry_on()
                if self.config.run.dry_run:
                    dry_run.show(self.state, self._batches(), self._program_for)
                    return ""
                with ProgressLine(self.step, self.config.train.steps) as self.progress:
                    self._loop()
                return self._finish()
        finally:
            self.tracing.stop()
            if self.interaction is not None:
                self.interaction.close()
            self.checkpoints.close()
            if not callers:
                gc.unfreeze()

    def _unless_stopped(self, work: Callable[[], T], patience: float = math.inf, *, alone: bool = False) -> T | None:
        """Returns what `work` does, or None if a request to stop broke it off; what it began must not count then.

        Where `work` does not come back, be it in a read that never ends, the state is saved without it.

        Args:
          work: Changes nothing of what is saved before it is done.
          patience: Seconds after which a request breaks it off; infinite where it must not be broken off at any place.
          alone: Whether a process of several ends without the others where `work` does not come back.
        """
        rescue = self._save_alone if alone or not processes.is_multiprocess() else None
        try:
            return self.watch.attend(work, rescue, patience)
        except StopRequested:
            return None
        except Exception as error:
            if not self._requested() or patience == math.inf:
                raise
            print(f"dropped, since the run is to stop: {type(error).__name__}: {error}", flush=True)
            return None

    def _save_alone(self) -> NoReturn:
        """Ends the run in the place of the main thread, called by another while that one does not answer."""
        if processes.is_multiprocess():
            said = f"process {jax.process_index()}: asked to stop in the middle of a step, which none can save alone"
            raise PeerError(f"{said}. Start all again with --run.resume, which goes on from the last save")
        self._save_and_stop()

    def _restore(self) -> None:
        """The newest whole checkpoint, or fresh weights."""
        abstract = jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
            self.abstract_state,
            self.shardings,
        )
        restored = self.checkpoints.restore(abstract)
        if self.interaction is not None:  # which may refuse, before anything of the run's folder is changed
            self.interaction.rewind(None if restored is None else restored[1].position)
        if restored is None:
            self.step, interacted = 0, False
            init = jax.jit(self.task.init, out_shardings=self.shardings)
            key = rngs.key(self.config.run.seed, "init")
            processes.compile_together(init, key)
            self.state = init(key)
            if self.load is not None:
                self.state = self.load(self.state)
            self.checkpoints.prepare(self.state)
            self.folder.go_on(None)
            if note := unfinished_warmup(self.config.optim, self.config.train.steps):
                print(note, flush=True)
        else:
            self.state, progress = restored
            self.step, self.window, self.evaluated = progress.step, progress.window, progress.evaluated
            self.skipped_in_a_row, interacted = progress.skipped_in_a_row, progress.interacted
            made_up = self.folder.go_on(self.step, progress.metrics_bytes, evaluated=self.evaluated)
            self.evaluated, self.evaluation = self.evaluated or bool(made_up), made_up or progress.evaluation
            print(f"resumed from step {self.step}", flush=True)
        machine.note(self.folder.path, self.step, machine.own_code(self.config))
        if processes.is_primary():
            data = self.task.data_fingerprint()
            provenance.note(self.folder.path, step=self.step, seed=self.config.run.seed, data=data)
        if self.interaction is not None:
            self.home = Home(position=self.interaction.position(), interacted=interacted)
        self.clock.charge("start", self.began)

    def _loop(self) -> None:
        """Until the last step, or a request to stop."""
        steps, every = self.config.train.steps, self.config.checkpoint.every
        batches: Iterator[NumpyTree] = iter(())
        if self.step < steps:
            batches = self._batches()
        saved_step = self.checkpoints.durable_step
        while True:
            self._evaluate_if_due()
            if self._stopping and not (self.step >= steps and self.evaluated):
                self._save_and_stop()
            if self.step >= steps:
                break
            if self.step % every == 0 and self.step not in (0, saved_step):
                self._save()
            if self._interact_if_due():
                self._update(batches, self._updates_until_due())

    def _batches(self) -> Iterator[NumpyTree]:
        """Batches of this process, from the step on."""
        return self.task.batches(self.step, shard=self.shard, num_shards=self.num_shards)

    @property
    def _stopping(self) -> bool:
        """Whether the run is to stop at this step; the same in all processes."""
        return self.stop_agreed if processes.is_multiprocess() else self._requested()

    def _requested(self) -> bool:
        """Whether this process was asked to stop."""
        return self.watch.requested is not None

    def _updates_until_due(self) -> int:
        """Updates of the next dispatch: at most updates_per_call, ending where anything else is due."""
        train = self.config.train
        rhythms = [train.log_every, self.config.checkpoint.every] + [train.eval_every] * (train.eval_every > 0)
        due = min((self.step // rhythm + 1) * rhythm for rhythm in rhythms)
        if self.interaction is not None:
            past, every = self.step - self.interaction.start, self.interaction.every
            due = min(due, self.interaction.start + (past // every + 1) * every if past >= 0 else self.step - past)
        return min(train.updates_per_call, due - self.step, train.steps - self.step)

    def _longest_call(self) -> int:
        """Updates that a dispatch can have at this step; shorter ones are padded, so that one program serves them."""
        if self.interaction is None or self.step < self.interaction.start:
            return self.config.train.updates_per_call
        return min(self.config.train.updates_per_call, self.interaction.every)

    def _interact_if_due(self) -> bool:
        """Lets the interaction act once before this update; False if a request to stop broke it off."""
        if self.interaction is None or self.home.interacted:
            return True
        past = self.step - self.interaction.start
        if past < 0 or past % self.interaction.every:
            return True
        began = self.clock.after(list(self.in_flight))
        state = self.state.averaged() if self.interaction.averaged else self.state
        metrics = interact(self.interaction, state, self.step, self._requested, self._unless_stopped, self._came_home)
        self.stop_agreed |= metrics is None
        self.window, self.home = self.home.counted(self.window), dataclasses.replace(self.home, metrics={})
        self.clock.charge("interact", began)
        return metrics is not None

    def _came_home(self, home: Home) -> None:
        """Notes an interaction: the watching thread may save what it changed before `attend` comes back."""
        self.home = home

    def _update(self, batches: Iterator[NumpyTree], updates: int) -> None:
        """Takes batches, dispatches one call, and logs if due; does nothing if a request to stop comes between."""
        began = time.perf_counter()
        # Of several processes each must come to the step on which they agree.
        patience = math.inf if processes.is_multiprocess() else PATIENCE
        taken = self._unless_stopped(lambda: [next(batches) for _ in range(updates)], patience, alone=True)
        if taken is None:
            return
        stacked = stack(taken, self._longest_call())
        on_device = mesh_lib.shard_batch(stacked, self.batch_sharding)
        count = mesh_lib.put_same(np.int32(updates), self.everywhere)
        self.clock.charge("data", began)
        began = time.perf_counter()
        shapes = str(jax.tree.map(np.shape, stacked))
        if shapes not in self.compiled and not self._compile(on_device, count):
            return
        with self.tracing.call(self.step, updates, lambda: self.state), jax.transfer_guard("disallow"):
            self.state, metrics = self.jit_updates(self.state, on_device, count)
        if shapes not in self.compiled:
            self.compiled.add(shapes)
            gc.collect()
            gc.freeze()  # else each full collection walks what jax keeps of its traces: 160 ms, seen within saves
            self.clock.charge("compile", began)
            began = time.perf_counter()
        self.in_flight.append((self.step, metrics, updates, self._ask_to_stop()))
        while len(self.in_flight) > CALLS_IN_FLIGHT:
            self._collect(*self.in_flight.popleft())
        self.step += updates
        self.evaluated, self.evaluation, self.home = False, {}, dataclasses.replace(self.home, interacted=False)
        self.progress.update(self.step, acting=self.interaction is not None and self.step > self.interaction.start)
        if self.step % self.config.train.log_every == 0 or self.step == self.config.train.steps:
            self._log()
        self.clock.charge("step", began)

    def _compile(self, on_device: NumpyTree, count: jax.Array) -> bool:
        """Compiles the update for batches of these shapes; False if a request to stop broke that off."""
        if processes.is_multiprocess():  # the others would wait for this one
            processes.compile_together(self.jit_updates, self.state, on_device, count)
            return True
        if self._requested():
            return False
        jitted: Any = self.jit_updates
        compiled = self._unless_stopped(lambda: jitted.lower(self.state, on_device, count).compile(), patience=0.0)
        return compiled is not None

    def _program_for(self, batch: NumpyTree) -> Any:
        """The update, compiled for calls of this batch alone."""
        on_device = mesh_lib.shard_batch(stack([batch], self._longest_call()), self.batch_sharding)
        jitted: Any = self.jit_updates
        return jitted.lower(self.state, on_device, mesh_lib.put_same(np.int32(1), self.everywhere)).compile()

    def _ask_to_stop(self) -> jax.Array | None:
        """Of several processes: whether any was asked to stop before this call, known when the call is done."""
        if not processes.is_multiprocess():
            return None
        flags = np.full(jax.local_device_count(), self._requested(), np.int32)
        return self.jit_any(mesh_lib.shard_batch(flags, self.flag_sharding))

    def _collect(self, first: int, metrics: dict[str, Mean], updates: int, stop: jax.Array | None) -> None:
        """Adds the (sum, count) pairs of the updates that were made to the window, waiting for the device if need be.

        Update by update in float64, so that the result does not depend on how many updates a call had. An update that
        was not applied has no part in the means; it is counted.
        """
        if stop is not None:
            self.stop_agreed |= bool(jax.device_get(stop))
        on_host = jax.device_get(metrics)
        for i in range(updates):
            bad = [name for name, mean in on_host.items() if not np.isfinite([mean.sum[i], mean.count[i]]).all()]
            if bad:
                self._skip(first + i + 1, bad)
                continue
            self.skipped_in_a_row = 0
            for name, mean in on_host.items():
                entry = self.window.setdefault(name, [0.0, 0.0])
                entry[0] += float(mean.sum[i])
                entry[1] += float(mean.count[i])

    def _skip(self, step: int, bad: list[str]) -> None:
        """Counts an update that was not applied, and ends the run where too many follow one another."""
        self.window["skipped_updates"] = [self.window.get("skipped_updates", [0.0])[0] + 1, 1.0]  # a number, not a mean
        self.skipped_in_a_row += 1
        if self.skipped_in_a_row >= self.config.train.max_skipped:
            raise NonFiniteError(
                f"step {step}: {', '.join(bad)} not finite, and so for {self.skipped_in_a_row} updates in a row; none "
                f"was applied. {saved_steps.told(self.checkpoints.durable_step)}; look at metrics.jsonl for where it "
                "grew, lower optim.learning_rate or set optim.clip_norm"
            )

    def _drain(self) -> None:
        """Collects every call under way."""
        while self.in_flight:
            self._collect(*self.in_flight.popleft())

    def _log(self) -> None:
        """One line of metrics.jsonl: the means since the line before."""
        self._drain()
        # A masked metric whose mask was empty throughout has no mean, and is left out of the line.
        means = {name: total / count for name, (total, count) in sorted(self.window.items()) if count > 0}
        self.window = {}
        self.folder.log(self.step, "train", means)
        self.folder.log_timing(self.step, dataclasses.asdict(self.clock) | {"wall": time.perf_counter() - self.began})
        self.progress.show(means)

    def _evaluate_if_due(self) -> None:
        """Evaluates the weights of this step once; a request to stop ends it, and the resumed run does it again."""
        train = self.config.train
        final = self.step >= train.steps
        due = final or (train.eval_every > 0 and self.step > 0 and self.step % train.eval_every == 0)
        if not due or self.evaluated or self._stopping:
            return
        began = self.clock.after(list(self.in_flight))
        state, ask, work = self.state.averaged(), self._requested, self._unless_stopped
        metrics = evaluate(self.task, state, final=final, stopping=ask, unless_stopped=work)
        self.clock.charge("evaluate", began)
        if metrics is None:
            self.stop_agreed = True
            return
        if metrics:
            try:
                self.evaluation = finite_metrics(metrics, self.config.checkpoint.keep_best)
            except ConfigError:  # the updates up to here are whole, and the run goes on with another name
                self._save_durably()
                raise
            self.folder.log(self.step, "eval", metrics)
            self.checkpoints.best.note(self.step, self.evaluation)
        self.evaluated = True

    def _progress(self) -> Progress:
        """What to remember beside the arrays."""
        self._drain()
        home = self.home  # once: the main thread may replace it meanwhile
        if self.interaction is not None:
            self.interaction.sync()
        return Progress(
            step=self.step,
            metrics_bytes=self.folder.metrics_size(),
            window=home.counted(self.window),
            evaluated=self.evaluated,
            position=home.position,
            skipped_in_a_row=self.skipped_in_a_row,
            evaluation=self.evaluation,
            interacted=home.interacted,
        )

    def _save(self) -> None:
        """Saves in the background."""
        began = self.clock.after(list(self.in_flight))
        self.checkpoints.save(self.state, self._progress())
        self.clock.charge("save", began)

    def _save_durably(self) -> None:
        """Saves and waits; a step that is on disk already is not written again."""
        began = self.clock.after(list(self.in_flight))
        self.checkpoints.wait()
        if self.checkpoints.durable_step != self.step:
            self.checkpoints.save_now(self.state, self._progress())
        self.clock.charge("save", began)

    def _save_and_stop(self) -> NoReturn:
        """Ends a run that was asked to."""
        self.checkpoints.hurry()
        self._save_durably()
        raise PreemptedError(f"stopped and saved at step {self.step}. To go on: the same command with --run.resume")

    def _finish(self) -> str:
        """Saves the end durably, and prints the last line."""
        self._save_durably()
        processes.run_on_primary(lambda: self._unless_stopped(self.task.finish))
        position = {"step": self.step} | ({} if self.interaction is None else {"interaction": self.home.position})
        result = {"step": self.step, "digest": digest(self.state, position)}
        wall = time.perf_counter() - self.began
        print(self.clock.summary(wall), flush=True)
        self.folder.log_timing(self.step, dataclasses.asdict(self.clock) | {"wall": wall})
        self.folder.finish(result)
        print(f"done step={result['step']} digest={result['digest']}", flush=True)
        return result["digest"]
