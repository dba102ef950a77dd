import socket

import pytest

from chunkwise.distributed import cluster
from chunkwise.distributed.cluster import DEFAULT_PORT, Decision, decide
from chunkwise.errors import ConfigError, PeerError


def explicit(processes: int, index: int, coordinator: str, local_devices: tuple[int, ...] | None, reason: str):
    return Decision(
        processes=processes, index=index, coordinator=coordinator, local_devices=local_devices, reason=reason
    )


JAX = {"JAX_COORDINATOR_ADDRESS": "node1:1234", "JAX_NUM_PROCESSES": "4", "JAX_PROCESS_ID": "3"}
NODES = {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "10.0.0.1"}
SKYPILOT = {"SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_RANK": "0", "SKYPILOT_NODE_IPS": "10.0.0.7\n10.0.0.8"}
SLURM_NODE = {
    "SLURM_JOB_ID": "8195",
    "SLURM_NTASKS": "3",
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "2",
    "SLURM_STEP_NODELIST": "gpu[003-004,007]",
    "SLURM_STEP_TASKS_PER_NODE": "1(x3)",
    "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7",
}
SLURM_GPU = SLURM_NODE | {
    "SLURM_NTASKS": "10",
    "SLURM_PROCID": "9",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NODELIST": "gpu3,gpu4",
    "SLURM_STEP_TASKS_PER_NODE": "8,2",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911",
}


def test_alone_where_nothing_is_announced():
    found = decide({"HOME": "/root", "CUDA_VISIBLE_DEVICES": "0,1"})
    assert (found.processes, found.index, found.several) == (1, 0, False)


def test_variables_of_jax():
    reason = "JAX_NUM_PROCESSES=4, JAX_PROCESS_ID=3, JAX_COORDINATOR_ADDRESS"
    assert decide(JAX) == explicit(4, 3, "node1:1234", None, reason)
    assert decide(JAX | {"JAX_COORDINATOR_ADDRESS": "[fe80::1]:99"}).coordinator == "[fe80::1]:99"
    assert decide(JAX | {"JAX_COORDINATOR_ADDRESS": "node1"}).coordinator == f"node1:{DEFAULT_PORT}"
    assert not decide({"JAX_NUM_PROCESSES": "1"}).several


def test_they_come_before_all_others():
    everything = NODES | SKYPILOT | SLURM_NODE | OPEN_MPI | {"TPU_WORKER_HOSTNAMES": "a,b"}
    assert decide(everything | JAX) == decide(JAX)
    assert decide(everything) == decide(NODES)
    assert not decide(everything | {"JAX_NUM_PROCESSES": "1"}).several


def test_kubernetes_index_stands_in_for_a_missing_one():
    without = {name: value for name, value in JAX.items() if name != "JAX_PROCESS_ID"}
    assert decide(without | {"JOB_COMPLETION_INDEX": "2"}).index == 2
    assert decide(JAX | {"JOB_COMPLETION_INDEX": "2"}).index == 3
    assert decide({"NNODES": "2", "MASTER_ADDR": "a", "JOB_COMPLETION_INDEX": "1"}).index == 1


def test_one_process_a_node():
    assert decide(NODES) == explicit(2, 1, f"10.0.0.1:{DEFAULT_PORT}", None, "NNODES=2, NODE_RANK=1, MASTER_ADDR")
    assert decide(NODES | {"MASTER_PORT": "77"}).coordinator == "10.0.0.1:77"
    assert not decide({"NNODES": "1", "NODE_RANK": "0", "MASTER_ADDR": "localhost"}).several


def test_skypilot():
    reason = "SKYPILOT_NUM_NODES=2, SKYPILOT_NODE_RANK=0, SKYPILOT_NODE_IPS"
    assert decide(SKYPILOT) == explicit(2, 0, f"10.0.0.7:{DEFAULT_PORT}", None, reason)
    alone = {"SKYPILOT_NUM_NODES": "1", "SKYPILOT_NODE_RANK": "0", "SKYPILOT_NODE_IPS": "10.0.0.7"}
    assert not decide(alone).several


def test_slurm_with_one_task_a_node_leaves_it_all_gpus():
    reason = "SLURM_NTASKS=3, SLURM_PROCID=2, SLURM_STEP_NODELIST"
    assert decide(SLURM_NODE) == explicit(3, 2, "gpu003:61443", None, reason)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("a", "a"),
        ("a,b", "a"),
        ("n[07-15],b", "n07"),
        ("n[1,7-15]", "n1"),
        ("rack-2-n[3]", "rack-2-n3"),
        ("gpu[01-04]-ib", "gpu01-ib"),
        ("a-b-[1-2].x.y,c", "a-b-1.x.y"),
        ("rack[1-2]node[01-04]", "rack1node01"),
    ],
)
def test_first_node_of_a_slurm_list(nodes: str, first: str):
    assert decide(SLURM_NODE | {"SLURM_STEP_NODELIST": nodes}).coordinator == f"{first}:61443"


def test_steps_of_one_job_meet_at_ports_of_their_own():
    found = [decide(SLURM_NODE | {"SLURM_STEP_ID": str(step)}).coordinator for step in range(100)]
    assert found[:2] == ["gpu003:61443", "gpu003:62440"]
    assert len(set(found)) == 100
    assert all(61440 <= int(str(one).rpartition(":")[2]) < 65536 for one in found)


def test_slurm_with_one_task_a_gpu():
    assert decide(SLURM_GPU | {"CUDA_VISIBLE_DEVICES": "0,1"}).local_devices == (1,)
    assert decide(SLURM_GPU).local_devices == (4, 5, 6, 7)  # two tasks share eight
    assert decide(SLURM_GPU | {"CUDA_VISIBLE_DEVICES": "5"}).local_devices is None  # dealt out by Slurm
    unset = {name: value for name, value in SLURM_GPU.items() if name != "CUDA_VISIBLE_DEVICES"}
    assert decide(unset).local_devices == (1,)


def test_a_slurm_job_of_one_task_is_alone():
    assert not decide({"SLURM_NTASKS": "1", "SLURM_JOB_ID": "1"}).several


def test_open_mpi():
    reason = "OMPI_COMM_WORLD_SIZE=2, OMPI_COMM_WORLD_RANK=1, OMPI_MCA_orte_hnp_uri"
    assert decide(OPEN_MPI) == explicit(2, 1, f"10.96.0.1:{61440 + 373920 % 4096}", None, reason)
    assert decide(OPEN_MPI | {"OMPI_MCA_orte_hnp_uri": "4096.0;tcp6://[fe80::b,fd::3]:43370"}).coordinator == (
        "[fe80::b]:61441"
    )
    two = {"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
    assert decide(OPEN_MPI | two).local_devices == (1,)
    newer = {name: value for name, value in OPEN_MPI.items() if "orte" not in name}
    assert decide(newer | {"JAX_COORDINATOR_ADDRESS": "head:5"}).coordinator == "head:5"


@pytest.mark.parametrize(
    "environment",
    [
        {"JAX_NUM_PROCESSES": "auto"},
        {"TPU_WORKER_HOSTNAMES": "a,b", "TPU_WORKER_ID": "0"},
        {"TPU_PROCESS_ADDRESSES": "a:1,b:1"},
        {"MEGASCALE_NUM_SLICES": "2"},
        {"JOB_COMPLETION_INDEX": "0"},
    ],
)
def test_platforms_that_jax_asks(environment: dict[str, str]):
    found = decide(environment)
    assert found.several
    assert (found.processes, found.index, found.coordinator) == (None, None, None)


@pytest.mark.parametrize("environment", [{"TPU_WORKER_HOSTNAMES": "localhost"}, {"MEGASCALE_NUM_SLICES": "1"}])
def test_platforms_of_one_host(environment: dict[str, str]):
    assert not decide(environment).several


def without(environment: dict[str, str], name: str) -> dict[str, str]:
    return {key: value for key, value in environment.items() if key != name}


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (without(JAX, "JAX_PROCESS_ID"), "JAX_NUM_PROCESSES=4 and JAX_PROCESS_ID is not set"),
        (without(JAX, "JAX_NUM_PROCESSES"), "JAX_PROCESS_ID is set and JAX_NUM_PROCESSES is not"),
        (without(JAX, "JAX_COORDINATOR_ADDRESS"), "JAX_COORDINATOR_ADDRESS is not set"),
        ({"JAX_COORDINATOR_ADDRESS": "a:1"}, "set JAX_NUM_PROCESSES and JAX_PROCESS_ID too"),
        (JAX | {"JAX_PROCESS_ID": "4"}, "JAX_PROCESS_ID=4 and JAX_NUM_PROCESSES=4; expected an index from 0 to 3"),
        (JAX | {"JAX_PROCESS_ID": "-1"}, "JAX_PROCESS_ID=-1"),
        (JAX | {"JAX_NUM_PROCESSES": "1"}, "JAX_PROCESS_ID=3 and JAX_NUM_PROCESSES=1"),
        (JAX | {"JAX_NUM_PROCESSES": "0"}, "JAX_NUM_PROCESSES=0; expected at least 1"),
        (JAX | {"JAX_NUM_PROCESSES": "two"}, "JAX_NUM_PROCESSES='two'; expected an integer"),
        (JAX | {"JAX_COORDINATOR_ADDRESS": "a:http"}, "JAX_COORDINATOR_ADDRESS='a:http'; expected a port from 1 to"),
        (JAX | {"JAX_COORDINATOR_ADDRESS": "a:99999"}, "JAX_COORDINATOR_ADDRESS='a:99999'; expected a port from 1 to"),
        (JAX | {"JAX_COORDINATOR_ADDRESS": ""}, "JAX_COORDINATOR_ADDRESS=''; expected host:port"),
        (JAX | {"JAX_COORDINATOR_ADDRESS": "fe80::1"}, "expected host:port, an address of IPv6 in brackets"),
        (NODES | {"MASTER_ADDR": ""}, "MASTER_ADDR=''; expected a host, whose port is MASTER_PORT"),
        (NODES | {"MASTER_ADDR": "h:29500"}, "MASTER_ADDR='h:29500'; expected a host, whose port is MASTER_PORT"),
        (NODES | {"MASTER_PORT": ""}, "MASTER_PORT=''; expected a port from 1 to 65535"),
        (NODES | {"MASTER_PORT": "0"}, "MASTER_PORT='0'; expected a port from 1 to 65535"),
        (without(NODES, "NNODES"), "NODE_RANK and MASTER_ADDR are set and NNODES is not"),
        (SLURM_NODE | {"SLURM_STEP_NODELIST": ""}, "SLURM_STEP_NODELIST='': expected names of nodes"),
        (SLURM_NODE | {"SLURM_STEP_NODELIST": "a[1-2"}, "SLURM_STEP_NODELIST='a[1-2': expected names of nodes"),
        (without(NODES, "MASTER_ADDR"), "NNODES=2 and MASTER_ADDR is not set"),
        (without(NODES, "NODE_RANK"), "NNODES=2 and NODE_RANK is not set"),
        (SKYPILOT | {"SKYPILOT_NODE_IPS": "10.0.0.7"}, "SKYPILOT_NODE_IPS names 1 nodes and SKYPILOT_NUM_NODES is 2"),
        (without(SLURM_NODE, "SLURM_STEP_NODELIST"), "Start the program with srun"),
        (SLURM_NODE | {"SLURM_PROCID": "3"}, "SLURM_PROCID=3 and SLURM_NTASKS=3"),
        (SLURM_GPU | {"CUDA_VISIBLE_DEVICES": "0,1,2"}, "CUDA_VISIBLE_DEVICES=0,1,2"),
        (SLURM_NODE | {"SLURM_STEP_TASKS_PER_NODE": "one"}, "SLURM_STEP_TASKS_PER_NODE='one'"),
        (without(OPEN_MPI, "OMPI_MCA_orte_hnp_uri"), "Set JAX_COORDINATOR_ADDRESS"),
        ({"MEGASCALE_NUM_SLICES": "many"}, "MEGASCALE_NUM_SLICES='many'"),
    ],
)
def test_what_contradicts_itself_is_named(environment: dict[str, str], message: str):
    with pytest.raises(ConfigError) as found:
        decide(environment)
    assert message in str(found.value)


def test_addresses_of_ipv6():
    assert decide(NODES | {"MASTER_ADDR": "fe80::1"}).coordinator == f"[fe80::1]:{DEFAULT_PORT}"


def test_a_port_where_another_job_listens_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(cluster, "SHUTDOWN_SECONDS", 0)
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as other:
        port = other.getsockname()[1]
        for bind in ("127.0.0.1", ""):
            first = decide(JAX | {"JAX_PROCESS_ID": "0", "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}"})
            with pytest.raises(ConfigError, match=f"another program listens at port {port}"):
                cluster._meet(first, f"127.0.0.1:{port}", f"{bind}:{port}")
        second = decide(JAX | {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}"})
        cluster._meet(second, f"127.0.0.1:{port}", None)
    assert f"process 3 joins process 0 at 127.0.0.1:{port}" in capsys.readouterr().out
    cluster._meet(first, f"127.0.0.1:{port}", f"127.0.0.1:{port}")
    assert f"process 0 waits for 3 more at 127.0.0.1:{port}" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["0.0.0.0", "[::]", ":77", "0.0.0.0:99999", "0.0.0.0:", "fe80::1:77"])
def test_an_address_to_listen_at_has_a_port(text: str):
    with pytest.raises(ConfigError, match=r"JAX_COORDINATOR_BIND_ADDRESS='.*'; expected"):
        cluster._bind_address({"JAX_COORDINATOR_BIND_ADDRESS": text})
    for good in ("0.0.0.0:77", "[::]:77", "node1:77"):
        assert cluster._bind_address({"JAX_COORDINATOR_BIND_ADDRESS": good}) == good
    assert cluster._bind_address({}) is None


@pytest.mark.parametrize(
    ("address", "error"),
    [("127.0.0.1:9", PeerError), ("no-such-host.invalid:9", ConfigError), ("node1..svc:9", ConfigError)],
)
def test_a_first_process_that_is_not_there_is_named(
    monkeypatch: pytest.MonkeyPatch, address: str, error: type[Exception]
):
    monkeypatch.setattr(cluster, "JOIN_SECONDS", 1)
    with pytest.raises(
        error, match=rf"process 0 at {address} \(JAX_NUM_PROCESSES=4, .*\) could not be reached for 1 s"
    ):
        cluster._meet(decide(JAX | {"JAX_COORDINATOR_ADDRESS": address}), address, None)


def test_process_0_listens_at_its_own_address_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    local = decide(JAX | {"JAX_PROCESS_ID": "0", "JAX_COORDINATOR_ADDRESS": "localhost:77"})
    assert cluster._listen_at(local, {}) == "localhost:77"
    assert cluster._listen_at(local, {"JAX_COORDINATOR_BIND_ADDRESS": "[::]:77"}) is None
    assert cluster._listen_at(decide(JAX | {"JAX_COORDINATOR_ADDRESS": "127.0.0.1:77"}), {}) is None, "not process 0"
    assert capsys.readouterr().out == ""

    def resolved(*addresses: str) -> None:
        found = [(0, 0, 0, "", (address, 0)) for address in addresses]
        monkeypatch.setattr(cluster.socket, "getaddrinfo", lambda *_, **__: found)

    named, own = decide(JAX | {"JAX_PROCESS_ID": "0"}), "198.51.100.7"  # nobody's, as 203.0.113.1 (RFC 5737)
    assert cluster._is_own("127.0.0.1")
    assert not cluster._is_own(own)
    monkeypatch.setattr(cluster, "_is_own", lambda address: address in ("127.0.0.1", "127.0.1.1", own))
    resolved(own)
    assert cluster._listen_at(named, {}) == "node1:1234"
    for addresses in ([], ["127.0.1.1"], ["203.0.113.1"], [own, "203.0.113.1"]):
        resolved(*addresses)
        assert cluster._listen_at(named, {}) is None, addresses
        assert "at all addresses, since node1 is none of this machine's" in capsys.readouterr().out
