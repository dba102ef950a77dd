"""Measures the structure of the code and draws it, from its own imports.

    python docs/house.py                          # figures of this tree
    python docs/house.py --draw docs/house.png    # and the figure of docs/architecture.md
    python docs/house.py --tree DIR               # figures of another checkout, an earlier one too

Counted are: modules that lie directly in a package and are not `__init__`, `config`, `train` or `cli`; circles of files
that import one another (imports inside functions count); and lines of product code.
"""

import argparse
import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

PACKAGES = ("qchunk", "openpi_ript", "driving")
SPINES = ("chunkwise", "core")  # the spine's name, today and earlier
OPEN_LEVEL = {"__init__", "__main__", "config", "train", "cli"}


def modules(root: Path) -> dict[str, Path]:
    """Returns the product's modules by dotted name; a package bears its folder's name."""
    found = {}
    for top in (*SPINES, *PACKAGES):
        for path in sorted((root / top).rglob("*.py")):
            found[".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")] = path
    return found


def imports(found: Mapping[str, Path]) -> dict[str, set[str]]:
    """Returns, for each module, those of the product that it imports, inside functions too."""
    graph: dict[str, set[str]] = {}
    for name, path in found.items():
        graph[name] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    graph[name].add(whole if whole in found else node.module)
            elif isinstance(node, ast.Import):
                graph[name] |= {alias.name for alias in node.names}
        graph[name] = {other for other in graph[name] if other in found and other != name}
    return graph


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Returns the groups of nodes that reach one another (Tarjan's strongly connected components), sorted."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in index:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == index[node]:
            group = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(group) > 1:
                groups.append(sorted(group))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return sorted(groups)


def flat(found: Mapping[str, Path], root: Path) -> list[str]:
    """Returns the modules that lie directly in a package, without those that every package has."""
    direct = (name for name, path in found.items() if len(path.relative_to(root).parts) == 2)
    return sorted(name for name in direct if found[name].stem not in OPEN_LEVEL)


def lines(paths: Iterable[Path]) -> int:
    """Returns the number of lines of files."""
    return sum(len(path.read_text().splitlines()) for path in paths)


def rooms(
    found: Mapping[str, Path], graph: Mapping[str, set[str]], top: str
) -> tuple[dict[str, int], dict[str, set[str]]]:
    """Returns a package's rooms with their lines, and the rooms of the same package that each imports."""
    room = {name: ".".join(name.split(".")[:2]) for name in found if name.split(".")[0] == top and name != top}
    size = dict.fromkeys(sorted(set(room.values())), 0)
    arrows: dict[str, set[str]] = {name: set() for name in size}
    for name, place in room.items():
        size[place] += lines([found[name]])
        arrows[place] |= {room[other] for other in graph[name] if other in room and room[other] != place}
    return size, arrows


def floors(arrows: Mapping[str, set[str]]) -> list[list[str]]:
    """Returns rooms by floor, the ground first: a room stands above all that it imports; circles share a floor."""
    together = {name: group for group in circles(arrows) for name in group}
    height: dict[str, int] = {}

    def of(name: str) -> int:
        if name not in height:
            height[name] = 0  # ends a circle
            below = arrows[name] - set(together.get(name, ()))
            height[name] = max((of(other) + 1 for other in below), default=0)
        return height[name]

    for name in arrows:
        of(name)
    return [[name for name in arrows if height[name] == level] for level in range(max(height.values()) + 1)]


def direct(arrows: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Returns the arrows that no longer way implies, so that a figure of them can be read."""

    def below(name: str, passed: frozenset[str]) -> set[str]:
        ahead = arrows[name] - passed
        return ahead.union(*(below(other, passed | ahead) for other in ahead))

    return {
        name: {
            other
            for other in others
            if not any(
                other in below(third, frozenset({name})) for third in others - {other} if name not in arrows[third]
            )
        }
        for name, others in arrows.items()
    }


def figures(root: Path) -> Iterator[str]:
    """Yields the measures of a tree, a line each."""
    found = modules(root)
    graph = imports(found)
    found_circles = circles(graph)
    yield f"product lines: {lines([*found.values(), root / 'launch.py'])} in {len(found)} modules"
    yield f"modules directly in a package: {len(flat(found, root))}"
    yield f"circles of files: {len(found_circles)}"
    yield from (f"  {' <-> '.join(group)}" for group in found_circles)


def draw(root: Path, file: Path) -> None:
    """Draws packages as boxes of rooms, floor upon floor, with the arrows of `direct`."""
    from matplotlib import pyplot
    from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

    found = modules(root)
    graph = imports(found)
    colours = {"qchunk": "#cfe8cf", "openpi_ript": "#ddd3ee", "driving": "#f1d3d8", "chunkwise": "#cfdfee"}
    figure = pyplot.figure(figsize=(16, 12), dpi=100)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, 160)
    axes.set_ylim(0, 120)
    axes.axis("off")

    def package(top: str, left: float, bottom: float, width: float, height: float) -> None:
        size, arrows = rooms(found, graph, top)
        levels = floors(arrows)
        axes.add_patch(FancyBboxPatch((left, bottom), width, height, boxstyle="round,pad=0.3", fc="white", ec="#777"))
        axes.text(left + 1, bottom + height - 2.6, f"{top}/", fontsize=15, weight="bold")
        axes.text(left + width - 1, bottom + height - 2.6, f"{sum(size.values()):,} lines", ha="right", color="#555")
        step = (height - 5) / len(levels)
        places = {}
        for level, names in enumerate(levels):
            each = width / len(names)
            for i, name in enumerate(names):
                x, y = left + each * i + 0.8, bottom + level * step + 0.8
                box = (x, y, each - 1.6, step - 3.2)
                places[name] = (x + box[2] / 2, y, y + box[3])
                axes.add_patch(FancyBboxPatch(box[:2], *box[2:], boxstyle="round,pad=0.2", fc=colours[top], ec="#999"))
                short = name.split(".")[1]
                inside = "" if (found[name].name != "__init__.py") else "/"
                axes.text(places[name][0], y + box[3] / 2 + 0.5, short + inside, ha="center", fontsize=9.5)
                axes.text(
                    places[name][0], y + box[3] / 2 - 1.5, f"{size[name]:,}", ha="center", fontsize=7.5, color="#555"
                )
        for name, others in direct(arrows).items():
            for other in others:
                x, y, _ = places[name]
                to_x, _, to_y = places[other]
                up = to_y > y
                axes.add_patch(
                    FancyArrowPatch(
                        (x, y - 0.2),
                        (to_x, to_y + 0.2),
                        arrowstyle="-|>",
                        mutation_scale=9,
                        linewidth=0.7,
                        color="#c0392b" if up else "#777777",
                        alpha=0.55,
                        connectionstyle="arc3,rad=0.05",
                        zorder=3,
                    )
                )

    for i, top in enumerate(PACKAGES):
        package(top, 2 + 53 * i, 64, 50, 52)
        axes.annotate(
            "", (27 + 53 * i, 56.6), (27 + 53 * i, 63), arrowprops={"arrowstyle": "-|>", "lw": 2, "color": "#555"}
        )
    package("chunkwise", 2, 3, 156, 53)
    figure.savefig(file)
    pyplot.close(figure)


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, default=Path(__file__).resolve().parents[1], help="a checkout")
    parser.add_argument("--draw", type=Path, metavar="FILE", help="draw it there")
    options = parser.parse_args()
    print("\n".join(figures(options.tree)))
    if options.draw:
        draw(options.tree, options.draw)


if __name__ == "__main__":
    main()
