"""What is said of long work, and how often."""

import io

import pytest

from chunkwise.cli import progress


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that stands until its only number is changed."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_a_line_every_ten_seconds(seconds: list[float]):
    said: list[str] = []
    lines = progress.Lines(10, "played {count} of {total} episodes", say=said.append)
    for _ in range(6):
        seconds[0] += 4
        lines.advance()
    # After 12 s three of ten: seven more take 28 s; after 24 s six of ten: four more take 16 s.
    assert said == ["played 3 of 10 episodes, 28 s left", "played 6 of 10 episodes, 16 s left"]


def test_without_a_terminal_there_is_no_bar_whatever_force_color_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert list(progress.follow("ab", 2, "recording", "recorded", rate=None, say=print)) == ["a", "b"]
    assert "recording" not in capsys.readouterr().out


def test_items_are_followed_with_their_speed(seconds: list[float]):
    said: list[str] = []

    def made():
        for item in "abc":
            seconds[0] += 20
            yield item

    rate = (1000.0, "transitions")
    followed = progress.follow(made(), 3, "recording", "recorded {count} of {total}", rate=rate, say=said.append)
    assert list(followed) == ["a", "b", "c"]
    assert said == [
        f"recorded {count} of 3, 50 transitions a second, {left} s left" for count, left in ((1, 40), (2, 20), (3, 0))
    ]


def test_the_time_left_does_not_count_compiling(seconds: list[float], capsys: pytest.CaptureFixture[str]):
    with progress.ProgressLine(100, 1100) as line:
        seconds[0] += 500
        line.update(120)
        line.show({})  # nothing but the compiled call to go by, 20 updates in 500 s: no speed
        seconds[0] += 40
        line.update(520)
        line.show({"loss": 0.5})
    assert capsys.readouterr().out.splitlines() == [
        "step 120/1100",
        "step 520/1100  10/s  58 s left  loss 0.5",
    ]


def test_the_speed_begins_anew_where_updates_wait_for_an_environment(
    seconds: list[float], capsys: pytest.CaptureFixture[str]
):
    """10,000 updates at 200 a second, then one in 2.5 s: a mean since the start would say 50 a second."""
    with progress.ProgressLine(0, 10_100) as line:
        for step in range(0, 10_001, 100):
            seconds[0] += 0.5
            line.update(step)
        line.show({})
        for step in range(10_001, 10_061):
            seconds[0] += 2.5
            line.update(step, acting=True)
        line.show({})
    assert capsys.readouterr().out.splitlines() == [
        "step 10000/10100  200/s  0 s left",
        "step 10060/10100  0.4/s  2 min left",
    ]


def test_the_time_left_counts_evaluations(seconds: list[float], capsys: pytest.CaptureFixture[str]):
    """100 updates a second and 100 s of evaluation every 10,000: half as fast, whenever one looks."""
    with progress.ProgressLine(0, 50_000) as line:
        line.update(0)
        for step in range(1_000, 20_001, 1_000):
            seconds[0] += 10
            line.update(step)
            seconds[0] += 100 * (step % 10_000 == 0)
            if step == 11_000:
                line.show({})
        line.show({})
    assert capsys.readouterr().out.splitlines() == [
        "step 11000/50000  52.4/s  12 min left",
        "step 20000/50000  50/s  10 min left",
    ]


def test_a_slow_update_has_a_speed(seconds: list[float], capsys: pytest.CaptureFixture[str]):
    with progress.ProgressLine(0, 30) as line:
        for step in range(1, 4):
            seconds[0] += 300
            line.update(step)
        line.show({"loss": 1.0})
    assert capsys.readouterr().out == "step 3/30  0.00333/s  2.2 h left  loss 1\n"


def test_of_many_tasks_the_line_has_the_mean_and_their_number(seconds: list[float], capsys: pytest.CaptureFixture[str]):
    tasks = {f"policy/success/task-{n}": n / 50 for n in range(50)}
    alone = {"rollouts/success": 0.25, "rollouts/success/one": 0.25, "policy/success_low": 0.4, "loss/a": 1.0}
    with progress.ProgressLine(0, 10) as line:
        seconds[0] += 20
        line.update(1)
        line.show(tasks | {"policy/success": 0.49} | alone)
    shown = capsys.readouterr().out.removeprefix("step 1/10  ").strip()
    assert shown == (
        "policy/success 0.49 (each of 50: metrics.jsonl)  rollouts/success 0.25  rollouts/success/one 0.25  "
        "policy/success_low 0.4  loss/a 1"
    )


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_table_is_shown_on_a_terminal_alone_and_names_are_no_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def rows() -> list[tuple[str, str]]:
        asked.append(1)
        return [("[red]a\x1b[2J", "7/30")]

    for stdout, shown in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr("sys.stdout", stdout)
        monkeypatch.setenv("TERM", "xterm")
        with progress.live_table(("run", "updates"), rows):
            pass
        text = stdout.getvalue()
        assert ("[red]a\\x1b[2J" in text and "7/30" in text and "updates" in text) == shown
        assert "\x1b[2J" not in text
        assert bool(asked) == shown
        asked.clear()
