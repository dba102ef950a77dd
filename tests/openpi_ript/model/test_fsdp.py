"""What devices that share one copy of the weights exchange, by the compiled update of a toy model."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

PROGRAM = """
import dataclasses, json
from pathlib import Path
from benchmarks.pod_program import compile_update, sent_by, sizes_of_weights
from chunkwise.config.experiment import MeshConfig
from openpi_ript.config import toy
from tests.openpi_ript.small_run import small_config
model = toy("pi0")
model = dataclasses.replace(model, remat=True, vision=dataclasses.replace(model.vision, depth=2))
config = small_config(Path("none"), Path("none"), guidance=None, model=model)
config = dataclasses.replace(
    config,
    data=dataclasses.replace(config.data, advantage=None),
    mesh=MeshConfig(fsdp=8, replicate_below=0),
    train=dataclasses.replace(config.train, batch_size=48),
)
sent = sent_by(compile_update(config, compiler_chooses=False).as_text(), sizes_of_weights(config))
print(json.dumps([[*key, size] for key, size in sent.items()]))
"""


@pytest.mark.long
def test_weights_travel_and_not_activations():
    flags = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    sent = {(kind, what): size for kind, what, size in json.loads(done.stdout.splitlines()[-1])}
    # Neither activations nor a stack of layers at once. The table of embeddings is smaller here than what a batch looks
    # up of it, so that it travels as well.
    assert {what for _, what in sent} == {"weights and their gradients"}
    assert {kind for kind, _ in sent} == {"all-gather", "all-reduce"}
