"""What a pi0-style policy is made of: sizes, kind, arithmetic, frozen parts, and openpi's own sets of them."""

import dataclasses
import enum
from typing import Literal

from chunkwise.config.experiment import RematPolicy, require_positive, require_remat

__all__ = [
    "GEMMA_2B",
    "GEMMA_300M",
    "PROMPT_TOKENS",
    "SO400M",
    "GemmaConfig",
    "LoraConfig",
    "ModelConfig",
    "Optimality",
    "Part",
    "SiglipConfig",
    "dummy",
    "full",
    "full_lora",
    "toy",
]


class Optimality(enum.IntEnum):
    """What a branch of the policy is told about the action it is to imitate: a row of the condition embedding."""

    NEGATIVE = 0
    POSITIVE = 1
    NONE = 2
    """The unconditional branch. It is a value of its own, never the negative label."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """Low-rank adapters on attention and feed-forward weights (arXiv:2106.09685)."""

    rank: int
    alpha: float
    """The adapter's output is scaled by alpha / rank."""

    def __post_init__(self) -> None:
        require_positive(self, "rank", "alpha")

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


@dataclasses.dataclass(frozen=True, kw_only=True)
class GemmaConfig:
    """Sizes of one of the two Gemma transformers that share attention (arXiv:2403.08295)."""

    width: int
    depth: int
    mlp_dim: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    lora: LoraConfig | None = None
    """None: no adapters."""

    def __post_init__(self) -> None:
        require_positive(self, "width", "depth", "mlp_dim", "num_heads", "num_kv_heads", "head_dim")
        if self.num_heads % self.num_kv_heads or self.num_heads == self.num_kv_heads:
            raise ValueError(
                f"num_heads {self.num_heads} and num_kv_heads {self.num_kv_heads}: expected several query heads for "
                "each key head, as in every Gemma of openpi; with equal numbers its checkpoints use other names"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SiglipConfig:
    """Sizes of the image encoder (arXiv:2303.15343)."""

    width: int
    depth: int
    mlp_dim: int
    num_heads: int
    patch_size: int = 14

    def __post_init__(self) -> None:
        require_positive(self, "width", "depth", "mlp_dim", "num_heads", "patch_size")


Part = Literal["vision", "language", "expert"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A pi0-style policy: image encoder, language model, action expert (arXiv:2410.24164, arXiv:2504.16054)."""

    kind: Literal["pi0", "pi05"]
    """pi0: state as a token, time through an MLP. pi05: state in the prompt, time through adaRMS in every layer."""
    vision: SiglipConfig
    language: GemmaConfig
    expert: GemmaConfig
    vocab_size: int = 257_152
    image_size: int = 224
    """Rows and columns of every camera's image."""
    action_dim: int = 32
    """State and action are padded with zeros to this many dimensions."""
    action_horizon: int = 50
    """Steps of one chunk."""
    prompt_tokens: int
    """Tokens that a prompt is padded or cut to."""
    state_in_prompt: bool | None = None
    """Whether the prompt ends with the state in words (openpi's discrete_state_input). None: as the kind was
    pretrained, with it for pi05. False is for pi05 alone, which then sees no state at all: openpi's pi05_libero."""
    optimality: bool = False
    """Whether the action tokens carry the condition embedding (guidance needs it; openpi's own models have none)."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Of the transformers' arithmetic; weights, norms, softmax, and the small heads are float32."""
    remat: bool = True
    """Recompute each layer in the backward pass instead of keeping its activations."""
    remat_policy: RematPolicy = "nothing"
    """What is kept of a recomputed layer all the same."""
    scan_unroll: int = 1
    """Layers in one iteration of the layer loop; a larger number compiles longer."""
    attention_block: int | None = None
    """Queries whose attention scores exist at a time, in forward and backward pass: the same numbers in less memory.
    None: all, as in openpi."""
    hidden_block: int | None = None
    """Hidden units of the language model's feed-forward layers that exist at a time, in forward and backward pass, a
    divisor of language.mlp_dim and a multiple of mesh.fsdp: the same numbers but for the order of sums, in less memory,
    and mlp_dim / hidden_block times as many exchanges, each smaller by as much. None: all, as in openpi."""
    splash: bool = False
    """Whether updates on TPUs run the language model's attention as jax's splash kernel, which keeps no scores in
    memory (model/splash.py). The expert's, of 51 queries, and the image encoder's, whose heads are 72 wide, stay as
    they are; so does that of evaluation and serving."""
    freeze: tuple[Part, ...] = ()
    """Parts whose weights do not train; adapters inside them, and the heads, always do."""
    frozen_dtype: Literal["float32", "bfloat16", "int8"] = "float32"
    """In which a run keeps weights that do not train and go into products, all but norms and positions. Products are in
    `dtype`: where that is bfloat16 and so is this, no number of an update changes but embeddings, rounded before they
    are scaled and not after. int8: matrices of the layers and the table of embeddings in 8 bits, rounded by half of
    1/127 of a channel's largest weight at most (model/int8.py). A checkpoint has them so, too."""

    def __post_init__(self) -> None:
        require_positive(self, "vocab_size", "image_size", "action_dim", "action_horizon", "prompt_tokens")
        require_positive(self, "scan_unroll")
        if self.attention_block is not None and self.attention_block < 1:
            raise ValueError(f"model.attention_block is {self.attention_block}; expected 1 or above, or None")
        if self.hidden_block is not None and (self.hidden_block < 1 or self.language.mlp_dim % self.hidden_block):
            raise ValueError(
                f"model.hidden_block is {self.hidden_block}; expected a divisor of model.language.mlp_dim, "
                f"{self.language.mlp_dim}, or None"
            )
        if self.splash and self.language.head_dim % 128:
            raise ValueError(
                f"model.splash is on and model.language.head_dim {self.language.head_dim}; expected a multiple of 128"
            )
        require_remat(self.remat, self.remat_policy, "model")
        if self.kind == "pi0" and self.state_in_prompt is not None:
            raise ValueError(
                f"model.state_in_prompt is {self.state_in_prompt} and model.kind pi0, which reads the state as a token "
                "and never in the prompt; expected None"
            )
        if self.frozen_dtype != "float32" and not self.freeze:
            raise ValueError(
                f"model.frozen_dtype is {self.frozen_dtype} and model.freeze is empty, so that no weight is frozen; "
                "expected parts in model.freeze, or float32"
            )
        if self.image_size % self.vision.patch_size:
            raise ValueError(
                f"model.image_size {self.image_size} is not divisible by model.vision.patch_size "
                f"{self.vision.patch_size}"
            )
        for name in ("depth", "num_heads", "num_kv_heads", "head_dim"):
            language, expert = getattr(self.language, name), getattr(self.expert, name)
            if language != expert:
                raise ValueError(
                    f"model.language.{name} is {language} and model.expert.{name} is {expert}; "
                    "they share attention in every layer and need the same"
                )
        if self.expert.width % 2:
            raise ValueError(f"model.expert.width is {self.expert.width}; the time embedding needs an even number")

    @property
    def prompt_has_state(self) -> bool:
        """Whether the state is written into the prompt."""
        return self.kind == "pi05" and self.state_in_prompt is not False


SO400M = SiglipConfig(width=1152, depth=27, mlp_dim=4304, num_heads=16)
GEMMA_2B = GemmaConfig(width=2048, depth=18, mlp_dim=16_384, num_heads=8, num_kv_heads=1, head_dim=256)
GEMMA_300M = GemmaConfig(width=1024, depth=18, mlp_dim=4096, num_heads=8, num_kv_heads=1, head_dim=256)
PROMPT_TOKENS = {"pi0": 48, "pi05": 200}


def full(kind: Literal["pi0", "pi05"]) -> ModelConfig:
    """openpi's released sizes: 3.2 billion weights."""
    return ModelConfig(
        kind=kind, vision=SO400M, language=GEMMA_2B, expert=GEMMA_300M, prompt_tokens=PROMPT_TOKENS[kind]
    )


def full_lora(kind: Literal["pi0", "pi05"]) -> ModelConfig:
    """openpi's adapter setting: rank 16 and 32, both transformers frozen and in bfloat16, the image encoder trained."""
    return dataclasses.replace(
        full(kind),
        language=dataclasses.replace(GEMMA_2B, lora=LoraConfig(rank=16, alpha=16.0)),
        expert=dataclasses.replace(GEMMA_300M, lora=LoraConfig(rank=32, alpha=32.0)),
        freeze=("language", "expert"),
        frozen_dtype="bfloat16",
    )


def dummy(kind: Literal["pi0", "pi05"]) -> ModelConfig:
    """openpi's `dummy` Gemma with a small image encoder, at full prefix and suffix lengths: half a million weights."""
    gemma = GemmaConfig(width=64, depth=4, mlp_dim=128, num_heads=8, num_kv_heads=1, head_dim=16)
    vision = SiglipConfig(width=64, depth=2, mlp_dim=128, num_heads=4)
    return ModelConfig(
        kind=kind,
        vision=vision,
        language=gemma,
        expert=gemma,
        vocab_size=512,
        prompt_tokens=PROMPT_TOKENS[kind],
        dtype="float32",
        remat=False,
    )


def toy(kind: Literal["pi0", "pi05"]) -> ModelConfig:
    """Smallest sizes with every part, for tests and CPU runs of seconds: four tokens a camera, chunks of 8."""
    gemma = GemmaConfig(width=32, depth=2, mlp_dim=64, num_heads=2, num_kv_heads=1, head_dim=16)
    return dataclasses.replace(
        dummy(kind),
        vision=SiglipConfig(width=32, depth=1, mlp_dim=64, num_heads=2),
        language=gemma,
        expert=gemma,
        image_size=28,
        action_dim=8,
        action_horizon=8,
        prompt_tokens=16 if kind == "pi0" else 48,
    )
