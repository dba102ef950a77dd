"""Which clusters are refused."""

import socket

import pytest

from chunkwise.distributed import ray_cluster
from chunkwise.errors import ConfigError


def test_a_cluster_that_anybody_may_use_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    ray_cluster.require_closed("auto", ["127.0.0.1", "127.0.0.1"])
    with pytest.raises(ConfigError, match=r"fleet.address is auto, a cluster on 10.0.0.1 with RAY_AUTH_MODE=disabled"):
        ray_cluster.require_closed("auto", ["127.0.0.1", "10.0.0.1"])
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    ray_cluster.require_closed("auto", ["127.0.0.1", "10.0.0.1"])
    with pytest.raises(ConfigError, match=r"listens on the loopback alone, found 10.0.0.1"):
        ray_cluster.require_closed("local", ["10.0.0.1"])


def test_a_cluster_that_is_not_there_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray tries for many minutes, and only when the first rollouts are due."""
    monkeypatch.setattr(ray_cluster, "ANSWER_SECONDS", 0.1)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}"):
            with pytest.raises(ConfigError, match=rf"fleet\.address is {address}: expected a Ray cluster there, found"):
                ray_cluster.require_answers(address)
        listening.listen()
        for address in (None, "auto", "local", f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}"):
            ray_cluster.require_answers(address)
    for wrong in ("127.0.0.1:head", "127.0.0.1:99999"):
        with pytest.raises(ConfigError, match="found nothing that listens"):
            ray_cluster.require_answers(wrong)
