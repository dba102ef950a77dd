"""The sections of benchmarks/accelerator.py, each in a process of its own, which the parent starts:

    python benchmarks/accelerator_sections.py SECTION [--small] [--qc PYTHON DIR]

A row is a line that begins with `ROW `, and JSON after it; everything else is for people.
"""

import argparse
import dataclasses
import json
import os
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script, from anywhere

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from benchmarks import lerobot_loader
from benchmarks import qchunk_update as ours
from chunkwise.config.experiment import MeshConfig
from chunkwise.data.shards import PackSettings
from chunkwise.distributed.repeatable import ask_for_repeatable_kernels
from chunkwise.train import ahead, rngs
from chunkwise.train import compile as verb
from chunkwise.train import sharding as mesh_lib
from chunkwise.train.flops import flops
from chunkwise.train.loop import CALLS_IN_FLIGHT
from chunkwise.train.provenance import describe
from chunkwise.train.targets import Target, chip_of
from chunkwise.train.update import stack
from configs.openpi_ript import pi0_full as full_config
from configs.openpi_ript import sft as lora_config
from openpi_ript.config import toy
from openpi_ript.data.dataset import open_data
from openpi_ript.data.lerobot_writer import train_tokenizer
from openpi_ript.data.pack import pack
from openpi_ript.model.lora import only_where, trainable
from openpi_ript.tasks.supervised import SupervisedTask
from openpi_ript.train import without_data
from qchunk.config import AgentConfig

ROW, MACHINE = "ROW ", "MACHINE "
ROOM = 0.97
"""Share of what jax may have that the compiler's figure may fill."""
A_ROW = 0.2e9
"""Bytes of activations that a row of full-size pi0 takes at least, below which nothing is compiled in vain."""


class Setting(NamedTuple):
    """How much a section does."""

    small: bool
    qc: tuple[str, str] | None
    """Python and checkout of the official code."""


def tell(what: str, value: float, unit: str, **beside: Any) -> None:
    """Reports a row."""
    row = {
        "what": what,
        "value": value,
        "unit": unit,
        "beside": {name.replace("_", " "): x for name, x in beside.items()},
    }
    print(ROW + json.dumps(row), flush=True)


def tell_machine() -> None:
    """Reports devices, memory and versions, for the head of the table."""
    first, made = jax.devices()[0], describe()
    memory = (first.memory_stats() or {}).get("bytes_limit")
    known = {
        "platform": first.platform,
        "driver": " ".join(first.client.platform_version.split()),
        "memory of a device": memory,
    }
    print(MACHINE + json.dumps(made["machine"] | known | {"commit": (made["commit"] or {}).get("commit")}), flush=True)


def best(run: Callable[[], Any], rounds: int) -> float:
    """Seconds of the quickest of some runs, each waited for, after one that compiles."""

    jax.block_until_ready(run())
    took = []
    for _ in range(rounds):
        began = time.perf_counter()
        jax.block_until_ready(run())
        took.append(time.perf_counter() - began)
    return min(took)


def device(setting: Setting) -> None:
    """Measures what the first device reaches alone."""

    chip = chip_of(jax.devices()[0].device_kind)
    n, count = (256, 2**16) if setting.small else (8192, 2**28)
    left = jnp.ones((n, n), jnp.bfloat16)
    times = 2 if setting.small else 16
    chain = jax.jit(lambda x: jax.lax.fori_loop(0, times, lambda _, y: (x @ y) * jnp.bfloat16(1 / n), x))
    rate = 2.0 * n**3 * times / best(lambda: chain(left), 3)
    share = {} if chip is None else {"share_of_peak": percent(rate / chip.flops)}
    tell(f"products of {n} x {n}, bfloat16", rate / 1e12, "TFLOP/s", **share)
    numbers = jnp.ones(count, jnp.float32)
    add = jax.jit(lambda x: jax.lax.fori_loop(0, 8, lambda _, y: y + 1, x))
    rate = 8 * 2 * numbers.nbytes / best(lambda: add(numbers), 3)
    share = {} if chip is None else {"share_of_peak": percent(rate / chip.bandwidth)}
    tell("memory, read and written", rate / 1e9, "GB/s", **share)
    host = np.ones(count // 4, np.float32)
    tell("from the host to the device", host.nbytes / best(lambda: jax.device_put(host), 3) / 1e9, "GB/s")


def pi0_full(setting: Setting) -> None:
    """Measures updates of all weights."""

    first_that_fits("all weights", full_ways(len(jax.devices()), setting.small), setting).tell_rate()


def full_ways(devices: int, small: bool) -> Iterator[tuple[str, Any]]:
    """Yields forms of the update of all weights, by what they are called, the largest first."""

    config = dataclasses.replace(full_config.get_config(), weights=None, mesh=MeshConfig(fsdp=devices))
    if small:
        yield "tiny", smaller(config, 2 * devices)
        return
    depth = config.model.language.depth
    for layers, ema in ((depth, 0.99), (depth, None), (depth // 2, None), (depth // 6, None)):
        gemmas = (dataclasses.replace(one, depth=layers) for one in (config.model.language, config.model.expert))
        model = dataclasses.replace(config.model, **dict(zip(("language", "expert"), gemmas, strict=True)))
        for rows in (32, 16, 8, 2):
            train = dataclasses.replace(config.train, batch_size=rows * devices, ema_decay=ema)
            words = (
                "moving average" if ema else "no moving average" if layers == depth else f"{layers} of {depth} layers"
            )
            yield words, dataclasses.replace(config, model=model, train=train)


def lora_ways(devices: int, small: bool) -> Iterator[tuple[str, Any]]:
    """Yields forms of the update of the adapters."""

    config = dataclasses.replace(lora_config.get_config(), weights=None, mesh=MeshConfig(fsdp=1))
    if small:
        yield "tiny", smaller(config, 2 * devices)
        return
    model = dataclasses.replace(config.model, attention_block=128)
    without = dataclasses.replace(model, freeze=("vision", "language", "expert"))
    for words, one in (("image encoder trained", model), ("image encoder frozen", without)):
        for rows in (32, 8, 2):
            train = dataclasses.replace(config.train, batch_size=rows * devices)
            yield words, dataclasses.replace(config, model=one, train=train)


def smaller(config: Any, rows: int) -> Any:
    """The config with openpi's dummy widths, two layers, few pixels, and so many rows."""

    tiny = dataclasses.replace(toy("pi0"), action_dim=32, dtype="bfloat16", remat=True)
    lora, old = config.model.language.lora, config.model
    gemma = dataclasses.replace(tiny.language, lora=lora)
    kept = {name: getattr(old, name) for name in ("freeze", "frozen_dtype", "attention_block")}
    return dataclasses.replace(
        config,
        model=dataclasses.replace(tiny, language=gemma, expert=gemma, **kept),
        data=dataclasses.replace(config.data, horizon=tiny.action_horizon, image_size=(tiny.image_size,) * 2),
        train=dataclasses.replace(config.train, batch_size=rows),
    )


class Program:
    """A compiled update with its state on the devices."""

    def __init__(self, words: str, config: Any, program: Any, known: Any, *, small: bool) -> None:

        self.words, self.config, self.rounds = words, config, 1 if small else 4
        self.program, self.known = program, known
        mesh = mesh_lib.make_mesh(config.mesh)
        self.sharding = mesh_lib.batch_sharding(mesh, config.train.batch_size)
        self.count = mesh_lib.put_same(np.int32(1), NamedSharding(mesh, PartitionSpec()))
        fresh = ahead.compiled(config, known, jax.devices(), "init").compiled
        self.state = fresh(jax.device_put(rngs.key(0, "init"), self.count.sharding))
        self.batch = self.put(random_like(known.batch))
        self.seconds = float("inf")

    def put(self, batch: Any) -> Any:
        """A batch of one call, on the devices."""

        return mesh_lib.shard_batch(stack([batch], 1), self.sharding)

    def update(self, batch: Any) -> Any:
        """Dispatches an update; returns its metrics."""
        self.state, metrics = self.program.compiled(self.state, batch, self.count)
        return metrics

    def run(self) -> None:
        """Times rounds of five updates on one batch that lies there, each round waited for."""

        def five() -> Any:
            for _ in range(5):
                self.update(self.batch)
            return self.state

        self.seconds = best(five, self.rounds) / 5

    def tell_rate(self) -> None:
        """Reports time, share of peak, bound and memory."""

        report, rows = report_of(self.program, self.config), self.config.train.batch_size
        beside = {"rows": rows, "rows/s": round(rows / self.seconds, 1)}
        if report.bounds:
            executed = report.bounds["products"] / self.seconds
            again = sum(self.program.flops.values()) / max(sum(self.needed().values()), 1)
            beside["share of peak"] = f"{percent(executed)} ({percent(executed / again)})"
            beside["no faster than"] = f"{1e3 * max(report.bounds.values()):.0f} ms"
        beside["TFLOP"] = f"{sum(self.program.flops.values()) / 1e12:.3g}"
        beside |= {"compiler's memory": gigabytes(report.total), "held at most": held(jax.local_devices()[0])}
        beside["compiled in"] = f"{self.program.seconds:.0f} s"
        tell(f"update of pi0, {self.words}, {rows} rows", 1e3 * self.seconds, "ms", **beside)

    def needed(self) -> Mapping[str, float]:
        """Operations of an update that keeps all activations."""

        model = dataclasses.replace(self.config.model, remat=False, attention_block=None)
        known = without_data(dataclasses.replace(self.config, model=model), {})
        state = jax.eval_shape(known.updates.init, jax.random.key(0))
        return flops(jax.make_jaxpr(known.updates.step)(state, known.batch))


def first_that_fits(what: str, ways: Iterator[tuple[str, Any]], setting: Setting) -> Program:
    """Returns the first form of an update that fits, timed; says which did not. Raises SystemExit where none does."""

    room = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", float("inf")) * ROOM
    for words, config in ways:
        rows = config.train.batch_size
        name, known = f"{what}, {words}", without_data(config, {})
        if not setting.small and (least := least_memory(config, known)) > room:
            print(f"{name}, {rows} rows: at least {least / 1e9:.1f} GB, not tried", flush=True)
            continue
        try:
            program = ahead.compiled(config, known, jax.devices())
            total = report_of(program, config).total
            if total > room:
                print(f"{name}, {rows} rows: {total / 1e9:.1f} GB by the compiler, not run", flush=True)
                continue
            updates = Program(name, config, program, known, small=setting.small)
            updates.run()
        except Exception as error:  # jax's class of runtime errors is its own
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            print(f"{name}, {rows} rows: {' '.join(str(error).split())[:200]}", flush=True)
            continue
        return updates
    raise SystemExit(f"{what}: no form of the update fits into {room / 1e9:.1f} GB")


def least_memory(config: Any, known: Any) -> float:
    """Bytes of a device that state, gradients and rows take in any case."""

    state = jax.eval_shape(known.updates.init, jax.random.key(0))
    trained = only_where(state.params, trainable(state.params, config.model))
    nbytes = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves((state, trained)))
    return nbytes / config.mesh.fsdp + config.train.batch_size / len(jax.devices()) * A_ROW


def report_of(program: Any, config: Any) -> Any:
    """What `chunkwise compile` says of a program that is compiled for the devices that are here."""

    kind, count = jax.devices()[0].device_kind, len(jax.devices())
    target = Target(name=kind, shape=(count,), chip=chip_of(kind))
    return verb.report_of(program, config=config.package, topology=f"{kind}:{count}", what="update", target=target)


def random_like(shapes: Any) -> Any:
    """Numbers of the given shapes and types: pixels of any value, tokens of the first 256, masks that hide nothing."""

    rng = np.random.default_rng(0)

    def one(path: Any, leaf: Any) -> np.ndarray:
        dtype = np.dtype(leaf.dtype)
        if dtype.kind == "b":
            return np.full(leaf.shape, "pad" not in jax.tree_util.keystr(path))
        if dtype.kind in "ui":
            return rng.integers(0, 256 if "images" in jax.tree_util.keystr(path) else 2, leaf.shape).astype(dtype)
        return rng.normal(size=leaf.shape).astype(dtype)

    return jax.tree.map_with_path(one, shapes)


def pi0_lora(setting: Setting) -> None:
    """Measures updates of the adapters, and the same with batches from files."""

    updates = first_that_fits("adapters", lora_ways(len(jax.devices()), setting.small), setting)
    updates.tell_rate()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder  # the index of a dataset that is gone afterwards
        feed(updates, Path(folder), setting)


def feed(updates: Program, folder: Path, setting: Setting) -> None:
    """Times updates with batches that the loader reads, decodes and moves while the device works."""

    config = updates.config
    lerobot_loader.EPISODES = 2 if setting.small else 6
    lerobot_loader.FRAMES = 30 if setting.small else 100
    lerobot_loader.write_ourselves(folder / "video", "video")
    pack(folder / "video", folder / "raw", settings=PackSettings(image_size=config.data.image_size, encoding="raw"))
    (folder / "tokenizer.model").write_bytes(train_tokenizer(["move to the disc"]))
    count = 4 if setting.small else 20
    for storage in ("raw", "video"):
        data = dataclasses.replace(config.data, path=str(folder / storage), read_threads=os.cpu_count() or 1)
        fed = dataclasses.replace(config, data=data, tokenizer=str(folder / "tokenizer.model"))
        batches = SupervisedTask(fed, open_data(data)).batches(0)
        under_way: deque[Any] = deque()
        jax.block_until_ready(updates.update(updates.put(next(batches))))
        began = time.perf_counter()
        for _ in range(count):
            under_way.append(updates.update(updates.put(next(batches))))
            if len(under_way) > CALLS_IN_FLIGHT:
                jax.device_get(under_way.popleft())
        jax.block_until_ready(updates.state)
        took = (time.perf_counter() - began) / count
        words = {"raw": "packed, raw", "video": "LeRobot's videos"}[storage]
        beside = {"on the device already": f"{1e3 * updates.seconds:.1f} ms", "rows": config.train.batch_size}
        tell(
            f"the same fed from {words}",
            1e3 * took,
            "ms",
            **beside,
            waiting=percent(max(0, 1 - updates.seconds / took)),
        )


def serve(setting: Setting) -> None:
    """Measures how long a chunk takes, from arrays on the host to arrays on the host."""

    config = dataclasses.replace(full_config.get_config(), weights=None)
    config = smaller(config, 2) if setting.small else config
    known, place, calls = without_data(config, {}), jax.local_devices()[0], 5 if setting.small else 60
    for dtype in ("bfloat16", "int8"):
        kept = known.served(1, dtype).kept
        params = jax.jit(lambda key, kept=kept: kept(known.updates.init(key).params))(rngs.key(0, "init"))
        for rows in (1, 4):
            call = known.served(rows, dtype)
            program = ahead.compiled_call(config, known, call, place)
            inputs = list(random_like(call.inputs))
            inputs[-1] = np.int32(10)
            took = []
            for _ in range(calls):
                began = time.perf_counter()
                np.asarray(program.compiled(params, *jax.device_put(tuple(inputs), place)))
                took.append(1e3 * (time.perf_counter() - began))
            middle, slow = np.percentile(took[2:], [50, 99])
            report = report_of(program, config)
            beside = {"99 %": f"{slow:.1f} ms", "held at most": held(place)}
            if report.bounds:
                beside["no faster than"] = f"{1e3 * max(report.bounds.values()):.1f} ms"
            beside["compiler's memory"] = gigabytes(report.total)
            tell(f"chunks of pi0, {rows} rows, 10 steps, {dtype}", float(middle), "ms", **beside)


def qchunk(setting: Setting) -> None:
    """Measures updates of Q-chunking, and of the official code where it is."""

    chip = chip_of(jax.devices()[0].device_kind)
    peer, why = official(setting.qc)
    agents = {"qc_fql": ("QC-FQL", AgentConfig()), "qc": ("QC", AgentConfig(policy="best_of_n"))}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        ours.write_episodes(Path(folder), ours.PEER_OBSERVATION)
        for name, (words, agent) in agents.items():
            if setting.small:
                agent = dataclasses.replace(agent, hidden_sizes=(32, 32))
            config = ours.config_of(folder, agent)
            beside = {}
            if peer is not None:
                peer.ask(f"update {name} 50")
                beside["official"] = f"{1e3 * min(peer.ask(f'update {name} 50')[0] for _ in range(3)) / 50:.2f} ms"
            for per_call in (4,) if setting.small else (1, 10, 50):
                updates = ours.Updates(config, ours.make_batches(config), per_call, 4 if setting.small else 100)
                took = min(updates.round() for _ in range(2 if setting.small else 4)) / updates.updates
                alone = min(updates.xla() for _ in range(3)) / per_call
                row = {"on the device": f"{1e3 * alone:.2f} ms", "updates/s": round(1 / took, 1)}
                batch = jax.tree.map(lambda x: x[0], updates.on_device)
                work = sum(flops(jax.make_jaxpr(updates.agent.step)(updates.state, batch)).values())
                if chip is not None:
                    row["share of peak"] = percent(work / chip.flops_float32 / took)
                row["GFLOP"] = f"{work / 1e9:.3g}"
                tell(f"{words}, {per_call} updates a call", 1e3 * took, "ms", **row, **beside)
    if peer is None:
        print(f"the official code was not measured: {why}", flush=True)


def official(named: tuple[str, str] | None) -> tuple[Any, str]:
    """The official code in a process of its own, or None and why there is none."""
    import importlib.util

    if named is None:
        try:
            spec = importlib.util.find_spec("agents.acfql")
        except ModuleNotFoundError:
            spec = None
        if spec is None or spec.origin is None:
            return None, "--qc PYTHON DIR names it"
        named = sys.executable, str(Path(spec.origin).parents[1])
    try:
        return ours.Peer(*named), ""
    except (SystemExit, OSError) as error:
        return None, str(error)


def percent(share: float) -> str:
    """A share in words."""
    return f"{100 * share:.1f} %"


def held(place: Any) -> str:
    """The most memory that a device held so far in this process."""
    peak = (place.memory_stats() or {}).get("peak_bytes_in_use")
    return "not told" if peak is None else gigabytes(peak)


def gigabytes(size: float) -> str:
    """A size in words."""
    return f"{size / 1e9:.3g} GB"


SECTIONS: dict[str, Callable[[Setting], None]] = {
    "device": device,
    "pi0_full": pi0_full,
    "serve": serve,
    "qchunk": qchunk,
    "pi0_lora": pi0_lora,
}


def main() -> None:
    """Runs one section."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("section", choices=SECTIONS)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--qc", nargs=2, metavar=("PYTHON", "DIR"))
    given = parser.parse_args()
    ask_for_repeatable_kernels()  # as every command does: what is timed is what runs
    if given.section == "device":
        tell_machine()
    SECTIONS[given.section](Setting(given.small, None if given.qc is None else tuple(given.qc)))


if __name__ == "__main__":
    main()
