"""What training with a config would say of a dataset, before it takes anything of it."""

from chunkwise.data.verdict import Verdict
from chunkwise.errors import RunError
from qchunk.config import QChunkConfig
from qchunk.data import reach
from qchunk.data.dataset import Dataset, open_dataset
from qchunk.data.holdout import open_measured
from qchunk.data.image_store import open_store
from qchunk.data.refresh import episodes_of_pool


def of_training(config: QChunkConfig) -> Verdict:
    """Opens the dataset as a run does, and asks what it asks; environments are made where the config names any."""
    notes: list[str] = []
    try:
        dataset = open_dataset(config)
        notes += dataset.notes
        _require_fit(config, dataset)
        notes += reach.judge(config, dataset)
        if dataset.cameras or dataset.depth_cameras:
            pools = config.data.shards
            notes += open_store(config, dataset.source, pools=pools, rows=config.train.batch_size).notes
        if config.data.holdout:
            open_measured(config, dataset.source)
        for shard in range(config.data.shards):
            notes += [f"pool: {note}" for note in episodes_of_pool(config, dataset.source, 0, 0, shard).notes]
    except RunError as error:
        return Verdict(notes=tuple(dict.fromkeys(notes)), refusal=str(error), exit_code=error.exit_code)
    return Verdict(notes=tuple(dict.fromkeys(notes)), refusal=None)


def _require_fit(config: QChunkConfig, dataset: Dataset) -> None:
    """As training compares widths; without an environment nothing is imported."""
    if config.eval.env is not None or config.online is not None:
        from qchunk.train import require_fit  # imports jax

        require_fit(config, dataset)
