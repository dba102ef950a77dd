"""The attacks: what is made of which artefact, and the command that a user then runs on it."""

import dataclasses
import json
from collections.abc import Callable, Sequence

from tests.hostile import artefacts
from tests.hostile.artefacts import Place

EVALUATE = ("-m", "openpi_ript.evaluate", "run", "{folder}", "--episodes", "1", "--out", "{folder}/out.json")
# The port is refused after the policy has been loaded and has acted.
SERVE = ("-m", "chunkwise.policies.serve", "{folder}", "--port", "99999", "--batch-sizes", "1")
SERVE_EXPORT = (
    *("-m", "chunkwise.policies.serve", "{folder}", "--port", "99999", "--batch-sizes", "1"),
    *("--config", "{good}/ript_config.py", "--", "--tokenizer", "{good}/ript_data/tokenizer.model"),
)
DRIVING = ("-m", "driving.evaluate", "--again", "{folder}")
VERIFY = ("-m", "chunkwise.checkpoint", "verify", "{folder}")
PRUNE = ("-m", "chunkwise.checkpoint", "prune", "{folder}")
RESUME = (
    *("launch.py", "--config", "{good}/ript_config.py", "--run.dir", "{folder}", "--run.resume"),
    *("--data.path", "{good}/ript_data", "--tokenizer", "{good}/ript_data/tokenizer.model", "--train.steps", "5"),
    *("--train.updates-per-call", "1", "--eval.final-episodes", "1"),
)
QCHUNK = ("-m", "qchunk.inspect", "{folder}")
LEROBOT = ("-m", "openpi_ript.inspect", "{folder}")
VALIDATE = ("-m", "driving.validate", "{folder}")


@dataclasses.dataclass(frozen=True)
class Attack:
    """One artefact made hostile, and what is done with it."""

    name: str
    base: str
    """Of artefacts.GOOD."""
    change: Callable[[Place], object]
    command: Sequence[str]
    codes: tuple[int, ...] = (64, 65, 78)
    """Exit codes that are right; 78 where a file is not the one that the checkpoint was made with."""
    says: str = ""
    """Must be among what it prints."""
    inside: bool = False
    """Started inside the folder, as SECURITY.md says how."""


def _attacks() -> list[Attack]:
    def config(**changes: object) -> Callable[[Place], None]:
        return lambda place: place.change_json("config.json", **changes)

    def write(name: str, content: Callable[[Place], bytes]) -> Callable[[Place], object]:
        return lambda place: (place.folder / name).write_bytes(content(place))

    def link(name: str, target: str) -> Callable[[Place], None]:
        return lambda place: place.link(name, target)

    def modules(place: Place) -> None:
        place.scatter_modules()

    def tokenizer_outside(place: Place) -> None:
        (place.folder / "tokenizer.model").unlink()
        place.change_json("config.json", tokenizer=str(place.outside / "secret.bin"))

    def compiled(place: Place) -> None:
        place.change_json("config.json", run__compile_cache=str(place.outside))

    def image_path(path: str) -> Callable[[Place], None]:
        def change(place: Place) -> None:
            file = place.folder / "a.json"
            tree = json.loads(file.read_text())
            tree["frames"][3]["observations"]["cameras"]["front"]["image_path"] = path.format(outside=place.outside)
            file.write_text(json.dumps(tree))

        return change

    links = "links inside the folder alone"
    hls = "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nfile://{other}\n#EXT-X-ENDLIST\n"
    return [
        Attack("modules in a run, evaluate inside it", "ript", modules, EVALUATE, codes=(0,), inside=True),
        Attack("modules in a run, serve inside it", "ript", modules, SERVE, says="cannot listen", inside=True),
        Attack("modules in a run, driving.evaluate inside it", "driving", modules, DRIVING, codes=(0,), inside=True),
        Attack("env.suite names a module", "ript", config(env__suite="evil:Env"), EVALUATE, says="env.suite"),
        Attack("env.task names a module", "ript", config(env__task="evil:factory"), EVALUATE),
        Attack(
            "env.task names a module of robosuite",
            "ript",
            config(env__suite="robosuite", env__task="evil:Env"),
            EVALUATE,
        ),
        Attack(
            "env.task names a module of gymnasium",
            "ript",
            config(env__suite="gymnasium", env__task="evil:Env-v0"),
            EVALUATE,
        ),
        Attack("tokenizer outside, evaluate", "ript", tokenizer_outside, EVALUATE, says="tokenizer.model"),
        Attack("tokenizer outside, serve", "ript", tokenizer_outside, SERVE, says="tokenizer.model"),
        Attack("compile cache of the config, evaluate", "ript", compiled, EVALUATE, codes=(0,)),
        Attack("compile cache of the config, serve", "ript", compiled, SERVE, says="cannot listen"),
        Attack("10^12 environments", "ript", config(env__num_envs=10**12), EVALUATE, says="num_envs"),
        Attack("a model of 10^12", "ript", config(model__action_dim=10**12), SERVE),
        Attack("a width that is 1e300", "ript", config(model__action_dim=1e300), SERVE, says="action_dim"),
        Attack("tokenizer is a pickle", "ript", write("tokenizer.model", lambda p: p.pickled), SERVE),
        Attack("statistics are a pickle", "ript", write("norm_stats.json", lambda p: p.pickled), SERVE),
        Attack("manifest is a pickle", "ript", write("manifest.json", lambda p: p.pickled), EVALUATE),
        Attack("statistics are a link", "ript", link("norm_stats.json", "norm_stats.json"), SERVE, says=links),
        Attack("manifest is a link", "ript", link("manifest.json", "secret.bin"), EVALUATE, says=links),
        Attack("checkpoint is a link", "ript", link("checkpoints/4", "folder"), SERVE, says=links),
        Attack("evaluations are a link", "ript", link("evaluations", "folder"), EVALUATE, says=links),
        Attack("checkpoints are a link, prune", "ript", link("checkpoints", "folder"), PRUNE, says=links),
        Attack("checkpoints are a link, verify", "ript", link("checkpoints", "folder"), VERIFY, says=links),
        Attack("metrics are a link, resume", "ript", link("metrics.jsonl", "secret.bin"), RESUME, says=links),
        Attack("lock is a link, resume", "ript", link("lock", "secret.bin"), RESUME, says=links),
        Attack("metadata name other classes, serve", "ript", artefacts.orbax_metadata, SERVE),
        Attack("metadata name other classes, verify", "ript", artefacts.orbax_metadata, VERIFY),
        Attack("driving: statistics a link", "driving", link("checkpoints/4/extra", "secret.bin"), DRIVING, says=links),
        Attack(
            "driving: a report that is a pickle",
            "driving",
            write("evaluation.json", lambda p: p.pickled),
            ("-m", "driving.evaluate", "{folder}"),
        ),
        Attack("export: untouched, for comparison", "export", lambda place: None, SERVE_EXPORT, says="cannot listen"),
        Attack(
            "export: statistics a link",
            "export",
            link("assets/robot/norm_stats.json", "norm_stats.json"),
            SERVE_EXPORT,
            says=links,
        ),
        Attack("export: weights a link", "export", link("params/d", "folder"), SERVE_EXPORT, says=links),
        Attack("export: metadata name other classes", "export", artefacts.orbax_metadata, SERVE_EXPORT),
        Attack(
            "safetensors is a pickle",
            "nothing",
            write("model.safetensors", lambda p: p.pickled),
            (*SERVE_EXPORT[:2], "{folder}/model.safetensors", *SERVE_EXPORT[3:]),
        ),
        Attack("modules in a dataset, inspect inside it", "aloha", modules, QCHUNK, codes=(0, 65), inside=True),
        Attack("modules in drives, validate inside them", "episodes", modules, VALIDATE, codes=(0, 65), inside=True),
        Attack("HDF5: external link, storage, virtual", "aloha", artefacts.external_hdf5, QCHUNK),
        Attack("HDF5: a linked episode", "aloha", link("episode_9.hdf5", "other.hdf5"), QCHUNK),
        Attack(
            "npz of pickles",
            "nothing",
            lambda p: artefacts.pickled_npz(p, "x.npz", "observations", "actions", "terminals", "qpos"),
            ("-m", "qchunk.inspect", "{folder}/x.npz"),
        ),
        Attack("LeRobot: playlists as mp4 (HLS)", "lerobot", lambda p: artefacts.playlist(p, hls), LEROBOT),
        Attack(
            "LeRobot: playlists as mp4 (concat)",
            "lerobot",
            lambda p: artefacts.playlist(p, "ffconcat version 1.0\nfile {other}\n"),
            LEROBOT,
        ),
        Attack(
            "LeRobot: a linked video",
            "lerobot",
            link("videos/chunk-000/observation.images.base/episode_000000.mp4", "other.mp4"),
            LEROBOT,
        ),
        Attack(
            "LeRobot: a linked image",
            "lerobot_images",
            link("images/observation.images.base/episode_000000/frame_000000.png", "secret.png"),
            LEROBOT,
        ),
        Attack(
            "LeRobot: paths that lead out",
            "lerobot",
            lambda p: p.change_json("meta/info.json", data_path="../outside/{episode_index}.parquet"),
            LEROBOT,
        ),
        Attack(
            "LeRobot: a path with attributes",
            "lerobot",
            lambda p: p.change_json("meta/info.json", data_path="{episode_index.__class__.__init__}"),
            LEROBOT,
        ),
        Attack("LeRobot: pickled extension types", "lerobot", artefacts.pickled_parquet, LEROBOT, codes=(0, 65)),
        Attack("drives: an absolute path", "episodes", image_path("{outside}/secret.jpg"), VALIDATE),
        Attack("drives: a path with ..", "episodes", image_path("../outside/secret.jpg"), VALIDATE),
        Attack("drives: a URL", "episodes", image_path("file://{outside}/secret.jpg"), VALIDATE),
        Attack("drives: a linked image", "episodes", link("a_images/0003_front.jpg", "secret.jpg"), VALIDATE),
        Attack(
            "drives: an index of pickles",
            "episodes",
            lambda p: artefacts.pickled_npz(p, "_index.npz", "manifest", "cameras"),
            VALIDATE,
            codes=(0, 65),
        ),
    ]


ATTACKS = _attacks()
