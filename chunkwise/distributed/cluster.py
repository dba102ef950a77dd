"""Decides whether this process is alone or one of several, starts jax accordingly, and says what it found.

Nothing has to be said on the command line: schedulers describe a job in environment variables. In this order:

1. JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES, JAX_PROCESS_ID: written by hand. jax itself reads only the first.
2. NNODES, NODE_RANK, MASTER_ADDR, MASTER_PORT: one process a node.
3. SkyPilot: SKYPILOT_NUM_NODES, SKYPILOT_NODE_RANK, SKYPILOT_NODE_IPS: one process a node.
4. Slurm (inside `srun`) and Open MPI (`mpirun`), with one task a node or several that share its GPUs.
5. Cloud TPU and Kubernetes, where jax asks the platform. JAX_NUM_PROCESSES=auto asks it too, for TPU VMs that set
   no variables.
6. Otherwise one process.

JAX_COORDINATOR_BIND_ADDRESS is where process 0 listens; by default at the address that the others are given.
On Kubernetes JOB_COMPLETION_INDEX stands in for a missing JAX_PROCESS_ID or NODE_RANK.
"""

import contextlib
import dataclasses
import errno
import ipaddress
import os
import re
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any

from chunkwise.errors import ConfigError, PeerError

DEFAULT_PORT = 8476
HEARTBEAT_SECONDS = 10
"""A process that has been silent for so long is dead, and the others end."""
JOIN_SECONDS = 300
"""How long processes wait for one another at the start; jax's own limit."""
SHUTDOWN_SECONDS = 60
"""How long a process that is done waits for the others."""

_BIND_ADDRESS = "JAX_COORDINATOR_BIND_ADDRESS"
# What jax's own detection needs a platform to answer.
_ASK_THE_PLATFORM = "JAX_NUM_PROCESSES=auto"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decision:
    """How to start jax."""

    processes: int | None
    """How many there are; None leaves it to jax, which asks the platform."""
    index: int | None
    """Of this one, from 0."""
    coordinator: str | None
    """host:port of process 0."""
    local_devices: tuple[int, ...] | None
    """Numbers of the GPUs that are this process's; None takes all that it sees."""
    reason: str
    """The variables that decided."""

    @property
    def several(self) -> bool:
        """Whether there are other processes."""
        return self.processes != 1


def decide(environment: Mapping[str, str]) -> Decision:
    """What the environment says; a function of nothing else.

    Raises:
      ConfigError: Variables are missing or contradict one another; the message names them.
    """
    for scheme in (_from_jax, _from_nodes, _from_skypilot, _from_slurm, _from_open_mpi, _from_platform):
        found = scheme(environment)
        if found is not None:
            return found
    return _alone("nothing in the environment announces another")


def initialise() -> None:
    """Starts jax as `decide` says, and prints what was decided and the devices found.

    From here on only the first process prints to stdout; errors go to stderr from every process.

    Raises:
      ConfigError: As `decide`; or the first process has no address, another program has its port, or jax cannot start
        on the platform asked for.
      PeerError: The first process does not answer.
    """
    decision = decide(os.environ)
    import jax

    if decision.several:
        _join(decision)
    try:
        devices = jax.devices()
    except RuntimeError as error:
        raise ConfigError(f"jax cannot start: {error}") from error
    kind = f"{len(devices)} {devices[0].platform} device{'s' * (len(devices) > 1)}"
    if not decision.several:
        print(f"one process ({decision.reason}), {kind}", flush=True)
        return
    here = f"process {jax.process_index()} of {jax.process_count()}"
    if jax.process_index() > 0:
        print(f"{here} has joined; the first one prints what follows", flush=True)
        sys.stdout = open(os.devnull, "w")
    print(f"{here} ({decision.reason}), {kind}, {jax.local_device_count()} of them here", flush=True)


def _join(decision: Decision) -> None:
    """Connects to the other processes."""
    import jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # Its handler for SIGTERM would replace ours, and Orbax asks it too, from a thread of its own and with other step
    # numbers, which can move the step that was agreed on. chunkwise/train/loop.py agrees on a step by itself.
    jax.config.update("jax_enable_preemption_service", False)
    listen_at = _listen_at(decision, os.environ)
    if decision.coordinator is not None and decision.processes is not None:
        _meet(decision, decision.coordinator, listen_at or _bind_address(os.environ))
    try:
        jax.distributed.initialize(
            coordinator_address=decision.coordinator,
            coordinator_bind_address=listen_at,
            num_processes=decision.processes,
            process_id=decision.index,
            local_device_ids=decision.local_devices,
            # With one task a node jax would take the first GPU only, on Slurm and Open MPI.
            cluster_detection_method=None if decision.processes is None else "deactivate",
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=SHUTDOWN_SECONDS,
        )
    except (RuntimeError, ValueError) as error:
        where = "" if decision.coordinator is None else f" at {decision.coordinator}"
        raise ConfigError(f"cannot join the other processes{where} ({decision.reason}): {error}") from error


def _meet(decision: Decision, coordinator: str, listen_at: str | None) -> None:
    """Says whom this process waits for, and waits until process 0 can be reached, or its own port is free.

    Where nobody answers, jax would end the process by SIGABRT after five minutes, without the address; where two jobs
    have one port, gRPC shares it between them, and they end one another.

    Raises:
      ConfigError: The first process has no address, or another program listens at its port.
      PeerError: It did not answer.
    """
    host, _, port = coordinator.rpartition(":")
    others = (decision.processes or 1) - 1
    if decision.index == 0:
        own = _bare(listen_at or f":{port}")
        _require_free(own[0], int(own[1]))
        print(f"process 0 waits for {others} more at {coordinator}, {JOIN_SECONDS} s at most", flush=True)
        return
    print(f"process {decision.index} joins process 0 at {coordinator}, within {JOIN_SECONDS} s", flush=True)
    until, said, unknown = time.monotonic() + JOIN_SECONDS, "", False
    while time.monotonic() < until:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
            return
        except (OSError, UnicodeError) as error:  # UnicodeError: a name that is none
            said, unknown = str(error), not isinstance(error, OSError) or isinstance(error, socket.gaierror)
        time.sleep(0.5)
    text = f"process 0 at {coordinator} ({decision.reason}) could not be reached for {JOIN_SECONDS} s: {said}"
    raise ConfigError(text) if unknown else PeerError(text)


def _require_free(host: str, port: int) -> None:
    """Raises ConfigError if another program listens at this port for longer than one that ends does."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    until = time.monotonic() + SHUTDOWN_SECONDS
    while True:
        try:
            with socket.socket(family, socket.SOCK_STREAM) as tried:
                tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # ports of connections that have ended
                tried.bind((host, port))
                return
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                return  # jax says what is wrong
        if time.monotonic() > until:
            raise ConfigError(
                f"another program listens at port {port}, where the processes of this run are to meet, for "
                f"{SHUTDOWN_SECONDS} s: is it another job? Give each one a port of its own, as the variables that "
                "announce it name it"
            )
        time.sleep(0.5)


def _listen_at(decision: Decision, environment: Mapping[str, str]) -> str | None:
    """Where the first process listens for the others: at the address by which they know it, and at no other.

    None leaves it to jax: JAX_COORDINATOR_BIND_ADDRESS, or all addresses. So it must be where the name means another
    address to the others than to this machine (many Linux systems give their own name 127.0.1.1), or none of its own,
    as that of a service of Kubernetes; then a line says so.
    """
    if decision.index != 0 or decision.coordinator is None or _BIND_ADDRESS in environment:
        return None
    host = decision.coordinator.rpartition(":")[0].strip("[]")
    found = [info[4][0] for info in _resolve(host)]
    loopback = [address for address in found if ipaddress.ip_address(address).is_loopback]
    if found and (found == loopback) == _is_loopback(host) and all(map(_is_own, found)):
        return decision.coordinator
    print(
        f"listening for the other processes at all addresses, since {host} is none of this machine's as the others see "
        f"it; {_BIND_ADDRESS}=<address>:<port> names one",
        flush=True,
    )
    return None


def _is_loopback(host: str) -> bool:
    """Whether everyone means their own machine by this name."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _resolve(host: str) -> list[Any]:
    try:
        return socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # UnicodeError: a name that is none
        return []


def _is_own(address: str) -> bool:
    """Whether this machine can listen there."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as tried:
            tried.bind((address, 0))
    except OSError:
        return False
    return True


def _alone(reason: str) -> Decision:
    return Decision(processes=1, index=0, coordinator=None, local_devices=None, reason=reason)


def _from_jax(environment: Mapping[str, str]) -> Decision | None:
    """JAX_COORDINATOR_ADDRESS and its like; the address alone is left to jax, with what else is recognised."""
    text = environment.get("JAX_NUM_PROCESSES")
    if text == "auto":
        return _platform(_ASK_THE_PLATFORM)
    if text is None:
        if "JAX_PROCESS_ID" in environment:
            raise ConfigError("JAX_PROCESS_ID is set and JAX_NUM_PROCESSES is not; set it to the number of processes")
        return None
    index = _one_of("JAX_PROCESS_ID", "JOB_COMPLETION_INDEX", environment)
    return _explicit("JAX_NUM_PROCESSES", index, environment, _address(environment, "JAX_COORDINATOR_ADDRESS"))


def _from_nodes(environment: Mapping[str, str]) -> Decision | None:
    """NNODES, NODE_RANK, MASTER_ADDR."""
    if "NNODES" not in environment:
        if {"NODE_RANK", "MASTER_ADDR"} <= set(environment):
            raise ConfigError("NODE_RANK and MASTER_ADDR are set and NNODES is not; set it to the number of nodes")
        return None
    address = _address(environment, "JAX_COORDINATOR_ADDRESS")
    if address is None and "MASTER_ADDR" in environment:
        host, port = environment["MASTER_ADDR"], environment.get("MASTER_PORT", str(DEFAULT_PORT))
        if not host or (":" in host and not _is_ipv6(host)):
            raise ConfigError(f"MASTER_ADDR={host!r}; expected a host, whose port is MASTER_PORT")
        address = ("MASTER_ADDR", host, _checked_port("MASTER_PORT", port, port))
    return _explicit("NNODES", _one_of("NODE_RANK", "JOB_COMPLETION_INDEX", environment), environment, address)


def _from_skypilot(environment: Mapping[str, str]) -> Decision | None:
    """SKYPILOT_NUM_NODES and its like."""
    if "SKYPILOT_NUM_NODES" not in environment:
        return None
    hosts = environment.get("SKYPILOT_NODE_IPS", "").split()
    count = _integer("SKYPILOT_NUM_NODES", environment)
    if count > 1 and len(hosts) != count:
        raise ConfigError(f"SKYPILOT_NODE_IPS names {len(hosts)} nodes and SKYPILOT_NUM_NODES is {count}")
    address = ("SKYPILOT_NODE_IPS", hosts[0], str(DEFAULT_PORT)) if hosts else None
    return _explicit("SKYPILOT_NUM_NODES", "SKYPILOT_NODE_RANK", environment, address)


def _from_slurm(environment: Mapping[str, str]) -> Decision | None:
    """A step of `srun`; the shell of `sbatch` and `salloc` has SLURM_NTASKS too, but is one process."""
    if "SLURM_NTASKS" not in environment or _integer("SLURM_NTASKS", environment) == 1:
        return None
    missing = [name for name in ("SLURM_STEP_NODELIST", "SLURM_PROCID", "SLURM_JOB_ID") if name not in environment]
    if missing:
        raise ConfigError(
            f"SLURM_NTASKS={environment['SLURM_NTASKS']} and {', '.join(missing)} not set: this is not a step of the "
            "job. Start the program with srun, or set JAX_NUM_PROCESSES=1 for a single process"
        )
    step = _integer("SLURM_STEP_ID", environment) if "SLURM_STEP_ID" in environment else 0
    port = _port(_integer("SLURM_JOB_ID", environment) + 997 * step)  # steps of one job may run side by side
    address = ("SLURM_STEP_NODELIST", _first_node(environment["SLURM_STEP_NODELIST"]), str(port))
    found = _explicit("SLURM_NTASKS", "SLURM_PROCID", environment, address)
    return _with_devices(found, _slurm_tasks_here(environment), "SLURM_LOCALID", environment)


def _first_node(nodes: str) -> str:
    """Returns the first of Slurm's list of nodes: node007 of 'node[007-015,021],host2', a1x of 'a[1-2]x'."""
    first = re.match(r"(?:[^,\[\]]|\[[^\[\]]+\])+(?=,|$)", nodes)
    if first is None:
        raise ConfigError(f"SLURM_STEP_NODELIST={nodes!r}: expected names of nodes, such as 'node[007-015],host2'")
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", first[0])


def _slurm_tasks_here(environment: Mapping[str, str]) -> int:
    """Tasks of the step on this node: 'SLURM_STEP_TASKS_PER_NODE' is '8(x3),2', node by node."""
    text = environment.get("SLURM_STEP_TASKS_PER_NODE") or environment.get("SLURM_TASKS_PER_NODE", "1")
    counts: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if found is None:
            raise ConfigError(f"SLURM_STEP_TASKS_PER_NODE={text!r}: expected something like '8(x3),2'")
        counts += [int(found[1])] * int(found[2] or 1)
    node = _integer("SLURM_NODEID", environment) if "SLURM_NODEID" in environment else 0
    return counts[min(node, len(counts) - 1)]


def _from_open_mpi(environment: Mapping[str, str]) -> Decision | None:
    """A rank of `mpirun`."""
    if "OMPI_COMM_WORLD_SIZE" not in environment or _integer("OMPI_COMM_WORLD_SIZE", environment) == 1:
        return None
    uri = environment.get("OMPI_MCA_orte_hnp_uri", "")
    found = re.match(r"(\d+)\.\d+;tcp6?://\[?([^,\]]+?)(?=[,\]]|:\d+$)", uri)
    address = _address(environment, "JAX_COORDINATOR_ADDRESS")
    if address is None and found is None:
        raise ConfigError(
            f"OMPI_COMM_WORLD_SIZE={environment['OMPI_COMM_WORLD_SIZE']} and no address of process 0: Open MPI 5 "
            "gives none. Set JAX_COORDINATOR_ADDRESS=<host of rank 0>:<port>, for example with mpirun -x"
        )
    if address is None and found is not None:
        address = ("OMPI_MCA_orte_hnp_uri", found[2], str(_port(int(found[1]) // 2**12)))
    several = _explicit("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", environment, address)
    here = _integer("OMPI_COMM_WORLD_LOCAL_SIZE", environment) if "OMPI_COMM_WORLD_LOCAL_SIZE" in environment else 1
    return _with_devices(several, here, "OMPI_COMM_WORLD_LOCAL_RANK", environment)


def _from_platform(environment: Mapping[str, str]) -> Decision | None:
    """Platforms of several hosts that jax asks for the rest."""
    for name in ("TPU_PROCESS_ADDRESSES", "TPU_WORKER_HOSTNAMES"):
        if "," in environment.get(name, ""):
            return _platform(name)
    slices = "MEGASCALE_NUM_SLICES"
    if slices in environment and _integer(slices, environment) > 1:
        return _platform(slices)
    if "JOB_COMPLETION_INDEX" in environment:
        return _platform("JOB_COMPLETION_INDEX; set JAX_NUM_PROCESSES, to 1 for a single pod, to decide it yourself")
    if "JAX_COORDINATOR_ADDRESS" in environment:
        raise ConfigError("JAX_COORDINATOR_ADDRESS is set; set JAX_NUM_PROCESSES and JAX_PROCESS_ID too, or unset it")
    return None


def _platform(reason: str) -> Decision:
    return Decision(processes=None, index=None, coordinator=None, local_devices=None, reason=reason)


def _explicit(
    count_name: str, index_name: str, environment: Mapping[str, str], address: tuple[str, str, str] | None
) -> Decision:
    """A decision from a count, an index and an address (variable, host, port), checked against one another."""
    count = _integer(count_name, environment)
    if count < 1:
        raise ConfigError(f"{count_name}={count}; expected at least 1")
    if count == 1 and index_name not in environment:
        return _alone(f"{count_name}=1")
    if index_name not in environment:
        raise ConfigError(f"{count_name}={count} and {index_name} is not set; set it to 0 to {count - 1}")
    index = _integer(index_name, environment)
    if not 0 <= index < count:
        raise ConfigError(f"{index_name}={index} and {count_name}={count}; expected an index from 0 to {count - 1}")
    if count == 1:
        return _alone(f"{count_name}=1")
    if address is None:
        wanted = {"JAX_NUM_PROCESSES": "JAX_COORDINATOR_ADDRESS", "NNODES": "MASTER_ADDR"}
        name = wanted.get(count_name, "SKYPILOT_NODE_IPS")
        raise ConfigError(f"{count_name}={count} and {name} is not set; set it to the address of process 0")
    variable, host, port = address
    return Decision(
        processes=count,
        index=index,
        coordinator=f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
        local_devices=None,
        reason=f"{count_name}={count}, {index_name}={index}, {variable}",
    )


def _with_devices(decision: Decision, tasks: int, local_name: str, environment: Mapping[str, str]) -> Decision:
    """The GPUs of one of `tasks` processes on a node: an equal share of those that it sees, all if it is alone there.

    CUDA_VISIBLE_DEVICES says what a process sees. Where the scheduler has dealt them out already it names one GPU, and
    where it is not set each task is taken to have the GPU of its own number.
    """
    if tasks == 1 or decision.processes == 1:
        return decision
    local = _integer(local_name, environment)
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    seen = tasks if visible is None else len([name for name in visible.split(",") if name.strip()])
    if visible is not None and seen <= 1:
        return decision
    if not 0 <= local < tasks or seen % tasks:
        raise ConfigError(
            f"{local_name}={local} with {tasks} tasks on this node and CUDA_VISIBLE_DEVICES={visible}: expected "
            "a number of GPUs that the tasks can share equally; ask for one task a node or one task a GPU"
        )
    share = seen // tasks
    return dataclasses.replace(decision, local_devices=tuple(range(local * share, (local + 1) * share)))


def _one_of(name: str, instead: str, environment: Mapping[str, str]) -> str:
    """`name`, or `instead` where only that is set."""
    return instead if name not in environment and instead in environment else name


def _address(environment: Mapping[str, str], name: str) -> tuple[str, str, str] | None:
    """Variable, host and port of 'host:port'."""
    text = environment.get(name)
    if text is None:
        return None
    if ":" not in text and text:
        return name, text, str(DEFAULT_PORT)
    return name, *_host_and_port(name, text)


def _host_and_port(name: str, text: str) -> tuple[str, str]:
    """Host and port of 'host:port' or '[host]:port'; raises ConfigError, with the variable, for anything else."""
    host, port = _bare(text)
    if not host or (":" in host and (text.startswith(host) or not _is_ipv6(host))):
        raise ConfigError(f"{name}={text!r}; expected host:port, an address of IPv6 in brackets")
    return host, _checked_port(name, text, port)


def _checked_port(name: str, text: str, port: str) -> str:
    """Returns a port that is one; raises ConfigError, with the variable and its text, if it is none."""
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 2**16):
        raise ConfigError(f"{name}={text!r}; expected a port from 1 to {2**16 - 1}")
    return port


def _is_ipv6(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).version == 6
    return False


def _bind_address(environment: Mapping[str, str]) -> str | None:
    """Where JAX_COORDINATOR_BIND_ADDRESS has the first process listen; raises ConfigError unless it is address:port."""
    text = environment.get(_BIND_ADDRESS)
    if text is not None:
        _host_and_port(_BIND_ADDRESS, text)
    return text


def _bare(address: str) -> tuple[str, str]:
    """Host and port of 'host:port' or '[host]:port'."""
    host, _, port = address.rpartition(":")
    return (host[1:-1] if host.startswith("[") and host.endswith("]") else host), port


def _integer(name: str, environment: Mapping[str, str]) -> int:
    if name not in environment:
        raise ConfigError(f"{name} is not set; expected an integer")
    try:
        return int(environment[name])
    except ValueError as error:
        raise ConfigError(f"{name}={environment[name]!r}; expected an integer") from error


def _port(job: int) -> int:
    """A port that two jobs on one node seldom share, among the last 4096."""
    return 65536 - 2**12 + job % 2**12
