"""Which clusters are refused."""

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
