"""Prompts to PaliGemma tokens, in openpi's format."""

from collections.abc import Sequence
from pathlib import Path
from warnings import warn

import numpy as np
from jaxtyping import Bool, Float, Int32

from chunkwise.errors import ConfigError
from chunkwise.files import budget

SOURCE = "gs://big_vision/paligemma_tokenizer.model"
STATE_BINS = 256
MOST_TOLD = 100
"""Prompts that a tokenizer warns of, since each warning is kept."""


class PromptTokenizer:
    """PaliGemma's sentencepiece model, with openpi's prompt formats, padded to a fixed length."""

    def __init__(self, model_file: str | Path, max_tokens: int) -> None:
        """Reads the tokenizer.

        Args:
          model_file: PaliGemma's `tokenizer.model`.
          max_tokens: Length of every result (`model.prompt_tokens`: openpi takes 48 for pi0, 200 for pi0.5).

        Raises:
          ConfigError: If the file is missing or no sentencepiece model; the message says where it is to be had.
          LimitError: If it is larger than tokenizer_mib, before sentencepiece sees it.
        """
        from sentencepiece import SentencePieceProcessor

        path = Path(model_file)
        self._max_tokens = max_tokens
        self._told: set[str] = set()
        where = (
            f"download PaliGemma's tokenizer.model once, with `gsutil cp {SOURCE} {path}` (public, 4 MB; it also lies "
            "in each of the google/paligemma repositories on Hugging Face), and name it in the config"
        )
        try:
            content = budget.read_bytes(path, "tokenizer_mib")
            if not content:  # which sentencepiece takes, and fails at the first prompt
                raise ValueError("an empty file")
            self._pieces = SentencePieceProcessor(model_proto=content)
            self._pieces.encode("pick up the cube")
        except FileNotFoundError as error:
            raise ConfigError(f"tokenizer {path}: no such file; {where}") from error
        except (RuntimeError, OSError, ValueError) as error:
            raise ConfigError(f"tokenizer {path}: expected a sentencepiece model, found {error}; {where}") from error

    @property
    def vocab_size(self) -> int:
        """Number of pieces; ids are below it."""
        return self._pieces.vocab_size()

    def encode(
        self, prompt: str, state: Float[np.ndarray, " s"] | None = None
    ) -> tuple[Int32[np.ndarray, " n"], Bool[np.ndarray, " n"]]:
        """Tokens, padded with 0, and the mask that is true at tokens.

        Underscores and line breaks inside the prompt become spaces, as in openpi. A prompt that is too long is cut,
        with a warning.

        Args:
          prompt: Task in words.
          state: None for pi0: beginning of sequence, prompt, line break. For pi0.5 the normalised state, before it is
            padded: "Task: <prompt>, State: <256 bins over [-1, 1]>;" and a line "Action: ".
        """
        text = prompt.strip().replace("_", " ").replace("\n", " ")
        if state is None:
            # The line break is a call of its own, as in openpi: sentencepiece may not merge it with what is before.
            ids = self._pieces.encode(text, add_bos=True) + self._pieces.encode("\n")
        else:
            numbers = " ".join(str(number) for number in discretise(state))
            ids = self._pieces.encode(f"Task: {text}, State: {numbers};\nAction: ", add_bos=True)
        if len(ids) > self._max_tokens:
            self._tell_cut(prompt, len(ids))
        ids = ids[: self._max_tokens]
        tokens = np.zeros(self._max_tokens, np.int32)
        tokens[: len(ids)] = ids
        return tokens, np.arange(self._max_tokens) < len(ids)

    def _tell_cut(self, prompt: str, tokens: int) -> None:
        """Warns of a prompt that is cut, up to MOST_TOLD of them: a robot's may be another at every step."""
        beginning = prompt[:80]
        if beginning in self._told or len(self._told) > MOST_TOLD:
            return
        self._told.add(beginning)
        told = repr(beginning) + ("" if beginning == prompt else "...")
        last = "; no more of them are told" if len(self._told) > MOST_TOLD else ""
        warn(
            f"prompt of {tokens} tokens cut to {self._max_tokens}: {told}; raise model.prompt_tokens{last}",
            stacklevel=3,
        )

    def encode_batch(
        self, prompts: Sequence[str], states: Float[np.ndarray, "b s"] | None = None
    ) -> tuple[Int32[np.ndarray, "b n"], Bool[np.ndarray, "b n"]]:
        """`encode` of each row, stacked."""
        rows = [self.encode(prompt, None if states is None else states[i]) for i, prompt in enumerate(prompts)]
        tokens, masks = zip(*rows, strict=True)
        return np.stack(tokens), np.stack(masks)


def discretise(state: Float[np.ndarray, " s"]) -> list[int]:
    """Bin of each value among 256 equal ones over [-1, 1].

    A value above 1 gets the last bin, 255, and one below -1 gets -1: openpi's format, and so what pi0.5 was trained on.
    """
    edges = np.linspace(-1, 1, STATE_BINS + 1)[:-1]
    return (np.digitize(state, edges) - 1).tolist()
