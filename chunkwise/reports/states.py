"""Runs on the same initial states: what came of each, pair by pair, and the videos of each state side by side."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chunkwise.reports import results
from chunkwise.reports.intervals import wilson
from chunkwise.reports.markup import embedded, text
from chunkwise.reports.paired import compare
from chunkwise.reports.run_record import RunRecord, State


@dataclasses.dataclass(frozen=True, kw_only=True)
class Filmed:
    """Initial states of which at least two runs have a video."""

    shown: dict[State, dict[str, Path]] = dataclasses.field(default_factory=dict)
    """Those that the page has room for, by run, in the order of the page."""
    left_out: int = 0
    """Others."""

    def place(self, state: State) -> str | None:
        """Returns where the page shows a state; None if it does not."""
        return f"v{list(self.shown).index(state)}" if state in self.shown else None


def filmed(runs: Mapping[str, RunRecord], *, room: int) -> Filmed:
    """Chooses the states to show: first those with different outcomes, then those where all failed, then the others.

    Args:
      runs: By name.
      room: Bytes that the videos may have.
    """
    found: dict[State, dict[str, Path]] = {}
    outcomes: dict[State, set[bool]] = {}
    for name, record in runs.items():
        own = results.own_evaluation(record)
        if own is None:
            continue
        for state, clip in own.clips.items():
            found.setdefault(state, {})[name] = clip
            outcomes.setdefault(state, set()).add(own.outcomes[state]["success"])
    common = [state for state, clips in found.items() if len(clips) > 1]
    common.sort(key=lambda state: (len(outcomes[state]) == 1, True in outcomes[state]))
    shown: dict[State, dict[str, Path]] = {}
    for state in common:
        room -= sum(clip.stat().st_size for clip in found[state].values())
        if room < 0:
            break
        shown[state] = found[state]
    return Filmed(shown=shown, left_out=len(common) - len(shown))


def films(runs: Mapping[str, RunRecord], chosen: Filmed) -> str:
    """Returns the videos of the chosen states, those of one state beside each other; empty without any."""
    parts = []
    for state, clips in chosen.shown.items():
        figures = []
        for name, clip in clips.items():
            own = results.own_evaluation(runs[name])
            assert own is not None
            said = f"{name}: {_said(own.outcomes[state])}"
            if own.settings:
                said += f" ({', '.join(f'{key} {value}' for key, value in own.settings.items())})"
            figures.append(f"<figure>{embedded(clip)}<figcaption>{text(said)}</figcaption></figure>")
        title = f"<h3>{text(_named(state))} <button>play together</button></h3>"
        parts.append(
            f'<div class="together" id="{chosen.place(state)}">{title}<div class="media">{"".join(figures)}</div></div>'
        )
    if chosen.left_out:
        parts.append(
            f'<p class="soft">{chosen.left_out} more states have videos, for which the page has no room '
            "(--film-mib of chunkwise compare).</p>"
        )
    return "".join(parts)


def paired(a: tuple[str, RunRecord], b: tuple[str, RunRecord], chosen: Filmed) -> str:
    """Returns two runs on the initial states that both were evaluated on; empty without any evaluation.

    Args:
      a: Name and run.
      b: The other.
      chosen: States whose videos the page shows; a mark leads to them.
    """
    evaluations = results.own_evaluations_of(a[1], b[1])
    names = [text(name) for name, _ in (a, b)]
    if evaluations is None:
        if not (a[1].evaluations and b[1].evaluations):
            return ""
        newest = [results.newest(record)[0].file for record in (a[1], b[1])]
        return (
            f'<p class="soft">{names[0]} and {names[1]} have no evaluations of their newest steps with the same '
            f"settings: {text(newest[0])} and {text(newest[1])} are of other ones.</p>"
        )
    ours, theirs = evaluations
    states = [state for state in ours.outcomes if state in theirs.outcomes]
    if not states:
        return f'<p class="soft">{names[0]} and {names[1]} were evaluated on no initial state in common.</p>'
    pairs = [(ours.outcomes[state], theirs.outcomes[state]) for state in states]
    found = compare([x["success"] for x, _ in pairs], [y["success"] for _, y in pairs])
    order = sorted(range(len(states)), key=lambda k: (not pairs[k][0]["success"], not pairs[k][1]["success"]))
    marks = "".join(_mark(states[k], pairs[k], chosen.place(states[k])) for k in order)
    counts = (found.both + found.only_a, found.both + found.only_b)
    shares = [f"{n} {share(c, found.episodes)}" for n, c in zip(names, counts, strict=True)]
    unclear = "" if found.p_value < 0.05 else f"; {found.shown}"
    more = [f"{n} was evaluated on {len(one.outcomes)}" for n, one in zip(names, evaluations, strict=True)]
    apart = any(len(one.outcomes) > len(states) for one in evaluations)
    both = f" Of {len(states)} states that both have: {'; '.join(more)}." if apart else ""
    films = "; those with a blue edge lead to their videos" if any(chosen.place(state) for state in states) else ""
    return (
        f"<h3>{names[0]} (upper half) and {names[1]} (lower half), state by state</h3><p>{'; '.join(shares)}.{both} "
        f"Both {found.both}, only {names[0]} {found.only_a}, only {names[1]} {found.only_b}, neither {found.neither}; "
        f"McNemar's exact p = {found.p_value:.3g}{unclear}.</p>"
        f'<div class="states">{marks}</div><p class="soft">Blue succeeded, orange failed. {text(ours.file)} and '
        f"{text(theirs.file)}{films}</p>"
    )


def share(successes: int, episodes: int) -> str:
    """Returns a count with its 95 % interval as text."""
    low, high = wilson(successes, episodes)
    return f"{successes} of {episodes} ({low:.0%} to {high:.0%})"


def _mark(state: State, pair: Sequence[Mapping[str, Any]], place: str | None) -> str:
    title = text(f"{_named(state)}: {_said(pair[0])}; {_said(pair[1])}")
    halves = "".join(f"<i{' class=yes' if one['success'] else ''}></i>" for one in pair)
    return f'<a href="#{place}" title="{title}">{halves}</a>' if place else f'<span title="{title}">{halves}</span>'


def _named(state: State) -> str:
    task, seed, _ = state
    return f"{task} seed {seed}".strip()


def _said(outcome: Mapping[str, Any]) -> str:
    return f"{'succeeded' if outcome['success'] else 'failed'} after {outcome.get('length', '?')} steps"
