"""Sizes of the config that nothing can be made of."""

from pathlib import Path

import pytest

from chunkwise.config.load import load
from chunkwise.errors import ConfigError

DEBUG = Path(__file__).parents[2] / "configs/qchunk/debug.py"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--agent.hidden-sizes", "-64", "64"), "agent.hidden_sizes is (-64, 64); expected numbers above 0"),
        (("--agent.hidden-sizes", "64", "0"), "agent.hidden_sizes is (64, 0); expected numbers above 0"),
        (("--eval.render-size", "0", "64"), "eval.render_size is (0, 64); expected height and width above 0"),
    ],
)
def test_sizes_below_1_are_refused_when_the_command_line_is_read(words: tuple[str, ...], said: str):
    with pytest.raises(ConfigError) as refused:
        load(["--config", str(DEBUG), *words])
    assert said in " ".join(str(refused.value).split()), "which is broken into lines"
