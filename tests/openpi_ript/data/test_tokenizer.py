import io
from pathlib import Path

import numpy as np
import pytest
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

from chunkwise.errors import ConfigError
from chunkwise.files import budget
from openpi_ript.data.tokenizer import MOST_TOLD, PromptTokenizer, discretise

WORDS = ["grab", "the", "screwdriver", "Task:", "State:", "Action:", "red", "blue", "cube", "push", "to", "left"]


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model with PaliGemma's traits: a beginning-of-sequence piece, a piece for the line break, bytes."""
    rng = np.random.default_rng(0)
    sentences = [" ".join([*rng.choice(WORDS, 6), *map(str, rng.integers(-1, 256, 4)), ";,"]) for _ in range(500)]
    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(sentences),
        model_writer=model,
        vocab_size=320,
        byte_fallback=True,
        user_defined_symbols=["\n"],
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=False,
        pad_id=0,
        eos_id=1,
        bos_id=2,
        unk_id=3,
        minloglevel=2,
    )
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.model"
    path.write_bytes(model.getvalue())
    return path


def pieces(model_file: Path) -> SentencePieceProcessor:
    return SentencePieceProcessor(model_proto=model_file.read_bytes())


def test_pi0_prompt_is_cleaned_text_and_a_line_break(model_file: Path) -> None:
    tokenizer = PromptTokenizer(model_file, 48)
    tokens, mask = tokenizer.encode("  grab_the\nscrewdriver ")
    n = int(mask.sum())
    assert (tokens.dtype, tokens.shape, mask.dtype) == (np.dtype(np.int32), (48,), np.dtype(bool))
    assert tokens[0] == 2
    assert pieces(model_file).decode(tokens[1 : n - 1].tolist()) == "grab the screwdriver"
    assert pieces(model_file).id_to_piece(int(tokens[n - 1])) == "\n"
    assert mask.tolist() == [True] * n + [False] * (48 - n)
    assert not tokens[n:].any()
    assert tokenizer.vocab_size == 320


def test_pi05_prompt_holds_the_state_as_bins(model_file: Path) -> None:
    tokenizer = PromptTokenizer(model_file, 200)
    state = np.array([-1.0, 0.0, 0.999, 1.0, 7.0, -1.001], np.float32)
    tokens, mask = tokenizer.encode("push_the cube\n", state)
    text = pieces(model_file).decode(tokens[mask][1:].tolist())
    assert text == "Task: push the cube, State: 0 128 255 255 255 -1;\nAction: "


def test_bins_are_equal_parts_of_minus_one_to_one() -> None:
    width = 2 / 256
    centres = -1 + width * (np.arange(256) + 0.5)
    assert discretise(centres) == list(range(256))
    assert discretise(np.array([-1.0, -1.0 + width, 1.0 - width, 1.5, -1.5])) == [0, 1, 255, 255, -1]


def test_batch_stacks_rows(model_file: Path) -> None:
    tokenizer = PromptTokenizer(model_file, 60)
    states = np.array([[0.5], [-0.5]])
    tokens, mask = tokenizer.encode_batch(["red cube", "blue"], states)
    assert tokens.shape == mask.shape == (2, 60)
    for i, prompt in enumerate(("red cube", "blue")):
        row, row_mask = tokenizer.encode(prompt, states[i])
        np.testing.assert_array_equal(tokens[i], row)
        np.testing.assert_array_equal(mask[i], row_mask)


def test_long_prompt_is_cut_with_a_warning(model_file: Path) -> None:
    long, short = PromptTokenizer(model_file, 48), PromptTokenizer(model_file, 4)
    with pytest.warns(UserWarning, match=r"prompt of \d+ tokens cut to 4: 'push the red cube to the left'"):
        tokens, mask = short.encode("push the red cube to the left")
    assert mask.all()
    np.testing.assert_array_equal(tokens, long.encode("push the red cube to the left")[0][:4])


def test_prompts_that_differ_at_every_step_are_not_all_told(model_file: Path, recwarn: pytest.WarningsRecorder) -> None:
    """A warning is kept by Python, and a server's log grows with it."""
    short = PromptTokenizer(model_file, 4)
    for step in range(3 * MOST_TOLD):
        short.encode(f"step {step} " + "move it now " * 50)
    texts = [str(one.message) for one in recwarn]
    assert len(texts) == MOST_TOLD + 1
    assert max(map(len, texts)) < 200
    assert [text.endswith("no more of them are told") for text in texts[-2:]] == [False, True]


def test_missing_or_broken_file_says_where_to_get_it(tmp_path: Path) -> None:
    (tmp_path / "broken.model").write_bytes(b"no tokenizer")
    for name, reason in (("missing", "no such file"), ("broken", "expected a sentencepiece model")):
        with pytest.raises(ConfigError, match=f"{name}.model: {reason}") as caught:
            PromptTokenizer(tmp_path / f"{name}.model", 48)
        assert "gs://big_vision/paligemma_tokenizer.model" in str(caught.value)


def test_a_large_file_never_reaches_sentencepiece(
    model_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(model_file.read_bytes())
    with open(path, "ab") as file:
        file.truncate(8 << 20)
    monkeypatch.setattr("sentencepiece.SentencePieceProcessor", lambda **_: pytest.fail("it was loaded"))
    with pytest.raises(pytest.fail.Exception, match="it was loaded"):  # 8 MiB are allowed
        PromptTokenizer(path, 48)
    with open(path, "ab") as file:
        file.write(b"x")
    with pytest.raises(budget.LimitError, match=r"tokenizer\.model: expected at most 8 MiB .*limits\.tokenizer-mib"):
        PromptTokenizer(path, 48)
