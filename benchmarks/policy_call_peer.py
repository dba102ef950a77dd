"""openpi's own `Policy`, timed for benchmarks/policy_call.py in an environment of its own.

Started by it as `PYTHON policy_call_peer.py OPENPI FOLDER`. PYTHON has the packages that openpi names, of which a call
needs jax==0.5.3 flax==0.10.2 orbax-checkpoint==0.11.13 "numpy<2" torch transformers==4.53.2 sentencepiece augmax einops
equinox beartype==0.19.0 jaxtyping==0.2.36 ml_collections tyro pillow numpydantic dm-tree treescope polars fsspec
filelock tqdm-loggable flatbuffers. What is changed in openpi: the tables of model sizes, the vocabulary, and where the
tokenizer comes from. Reads a number of calls a line, and answers with the seconds of each and the last chunk.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np


def make_policy(folder: Path, about: dict[str, Any]) -> Any:
    """Makes the policy as openpi's policy_config does, from the files in the folder."""
    import jax
    from openpi import transforms  # pyright: ignore[reportMissingImports]
    from openpi.models import gemma, model, pi0_config, siglip, tokenizer  # pyright: ignore[reportMissingImports]
    from openpi.policies import libero_policy, policy  # pyright: ignore[reportMissingImports]
    from openpi.shared.normalize import NormStats  # pyright: ignore[reportMissingImports]
    from sentencepiece import SentencePieceProcessor

    gemma.PALIGEMMA_VOCAB_SIZE = about["vocab_size"]
    parts = {}
    for name in ("language", "expert"):
        parts[name] = gemma.Config(**{key: value for key, value in about["model"][name].items() if key != "lora"})
    gemma.get_config = {"gemma_2b": parts["language"], "gemma_300m": parts["expert"]}.__getitem__
    vision = {key: value for key, value in about["model"]["vision"].items() if key != "patch_size"}
    siglip.decode_variant = lambda _: vision | {"patch_size": (14, 14)}
    config = pi0_config.Pi0Config(dtype="float32")
    loaded = config.load(model.restore_params(folder / "params", dtype=jax.numpy.float32))
    words = object.__new__(tokenizer.PaligemmaTokenizer)
    words._max_len = config.max_token_len
    words._tokenizer = SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    stats = {
        name: NormStats(mean=np.array(one["mean"]), std=np.array(one["std"])) for name, one in about["stats"].items()
    }
    return policy.Policy(
        loaded,
        transforms=[
            libero_policy.LiberoInputs(model_type=config.model_type),
            transforms.Normalize(stats),
            transforms.InjectDefaultPrompt(None),
            transforms.ResizeImages(224, 224),
            transforms.TokenizePrompt(words),
            transforms.PadStatesAndActions(config.action_dim),
        ],
        output_transforms=[transforms.Unnormalize(stats), libero_policy.LiberoOutputs()],
    )


def main() -> None:
    """Answers until the input ends."""
    sys.path[:0] = [f"{sys.argv[1]}/src", f"{sys.argv[1]}/packages/openpi-client/src"]
    import jax

    folder = Path(sys.argv[2])
    about = json.loads((folder / "about.json").read_text())
    acting = make_policy(folder, about)
    with np.load(folder / "seen.npz") as seen:
        images, state, noise = seen["images"], seen["state"], seen["noise"]
    asked = {"observation/image": images[0], "observation/wrist_image": images[1], "observation/state": state}
    asked["prompt"] = about["prompt"]
    acting.infer(dict(asked), noise=noise)
    print(json.dumps({"version": f"jax {jax.__version__}"}), flush=True)
    for line in sys.stdin:
        seconds, chunk = [], np.empty(0)
        for _ in range(int(line)):
            began = time.perf_counter()
            chunk = acting.infer(dict(asked), noise=noise)["actions"]
            seconds.append(time.perf_counter() - began)
        print(json.dumps({"seconds": seconds, "actions": chunk.tolist()}), flush=True)


if __name__ == "__main__":
    main()
