"""Operators of mutation: small faults that people make, found in a syntax tree as edits of the source's bytes.

Own ones, since those that exist (mutmut, cosmic-ray) draw comparisons, numbers and names, and what goes wrong in array
programs is an axis, a keyword, an order of arguments, a gradient that is not stopped.
"""

import ast
import dataclasses
from collections.abc import Callable, Iterator

COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "//"),
    ast.Pow: ("**", "*"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
}
NAMES = {
    "min": "max",
    "max": "min",
    "minimum": "maximum",
    "maximum": "minimum",
    "argmin": "argmax",
    "argmax": "argmin",
    "any": "all",
    "all": "any",
    "sum": "mean",
    "mean": "sum",
    "floor": "ceil",
    "ceil": "floor",
    "sin": "cos",
    "cos": "sin",
    "zeros": "ones",
    "ones": "zeros",
    "zeros_like": "ones_like",
    "ones_like": "zeros_like",
    "cumsum": "cumprod",
    "std": "var",
}
BUILTIN_ONLY = {"sum": "max", "mean": None, "std": None}
"""What a bare name becomes instead: Python has no `mean`."""
TRANSPARENT = {"abs", "sorted", "stop_gradient", "reversed", "absolute", "sqrt", "exp", "log", "round", "copy"}
"""Functions whose one argument can stand in their place."""
DEFAULTS = {"bool": "not ({})", "int": "({}) + 1", "float": "({}) + 1.0", "str": '""', "list": "[]", "dict": "{{}}"}
SYMMETRIC = {"isinstance", "getattr", "minimum", "maximum", "min", "max", "array_equal", "gcd"}
"""Functions whose arguments are not swapped."""
UNREAD = {"main", "__str__", "__repr__", "_parser", "describe"}
"""Functions that only put words together."""
SILENT = {"print", "warn", "info", "debug", "warning", "error", "exception", "log_timing", "say", "_say", "_print"}
"""Calls that only tell a person something."""
LIBRARIES = {"np", "jnp", "jax", "nn", "optax", "ocp", "json", "os", "shutil", "cv2", "subprocess", "hashlib", "math"}


@dataclasses.dataclass(frozen=True)
class Edit:
    """Bytes from start to end of a source, replaced."""

    function: str
    """Dotted name of the function in which it lies, "" for the module's own statements."""
    operator: str
    start: int
    end: int
    new: bytes


class Source:
    """A file's bytes, and where the nodes of its tree lie in them."""

    def __init__(self, text: str) -> None:
        self.data = text.encode()
        self.tree = ast.parse(text)
        self._lines = [0]
        for line in self.data.split(b"\n"):
            self._lines.append(self._lines[-1] + len(line) + 1)

    def span(self, node: ast.AST) -> tuple[int, int]:
        """First byte and the one after the last."""
        place = node.lineno, node.col_offset, node.end_lineno, node.end_col_offset  # type: ignore[attr-defined]
        return self._lines[place[0] - 1] + place[1], self._lines[place[2] - 1] + place[3]

    def text(self, node: ast.AST) -> bytes:
        """What stands there."""
        start, end = self.span(node)
        return self.data[start:end]

    def edits(self) -> list[Edit]:
        """All edits of all operators, in the order of the source."""
        found: list[Edit] = []
        for function, node in _walk(self.tree.body, ""):
            for operator in OPERATORS:
                for start, end, new in operator(self, node):
                    if self.data[start:end] != new:
                        found.append(Edit(function, operator.__name__.strip("_"), start, end, new))
        return sorted(set(found), key=lambda edit: (edit.start, edit.end, edit.operator, edit.new))


def _walk(nodes: list[ast.stmt], function: str) -> Iterator[tuple[str, ast.AST]]:
    """Nodes that may be changed, each with the function in which it lies."""
    for node in nodes:
        yield from _inside(node, function)


def _inside(node: ast.AST, function: str) -> Iterator[tuple[str, ast.AST]]:
    """The node and what is below it, but for what only a person reads or what types say."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        dotted = f"{function}.{node.name}".strip(".")
        if node.name in UNREAD or (isinstance(node, ast.ClassDef) and _protocol(node)):
            return
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for default in [*node.args.defaults, *filter(None, node.args.kw_defaults)]:
                yield from _inside(default, dotted)
            yield dotted, node
        body = [each for each in node.body if not (isinstance(node, ast.ClassDef) and isinstance(each, ast.AnnAssign))]
        for inner in body:  # without its attributes an object fails at once, which tells nothing of the tests
            if node.name != "__init__" or not isinstance(inner, ast.Assign):
                yield from _inside(inner, dotted)
            else:
                yield from _inside(inner.value, dotted)
        return
    if isinstance(node, ast.If) and isinstance(node.test, ast.Compare) and _name(node.test.left) == "__name__":
        return
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):  # a docstring, or `...`
        return
    if isinstance(node, ast.Import | ast.ImportFrom | ast.JoinedStr):
        return
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _name(node.value.func) in SILENT:
        return
    yield function, node
    if isinstance(node, ast.Raise | ast.Assert):  # the message; the statement itself may go
        if isinstance(node, ast.Assert):
            yield from _inside(node.test, function)
        return
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "type_comment"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _inside(child, function)


def _protocol(node: ast.ClassDef) -> bool:
    """Whether a class is a Protocol, which has no code."""
    return any(_name(base) == "Protocol" for base in node.bases)


def _name(node: ast.AST) -> str:
    """The last word of a dotted name, or ""."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _root(node: ast.AST) -> str:
    """The first word of a dotted name, or ""."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """What is below a function, but for functions inside it."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            yield from _own(child)


def _is_type(node: ast.AST) -> bool:
    """Whether an expression names a class, as in `isinstance(x, A | B)`."""
    return _name(node)[:1].isupper() or (isinstance(node, ast.Constant) and node.value is None)


def _is_text(node: ast.AST) -> bool:
    """Whether an expression is a string for certain, or a path that is put together."""
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)):
        return True
    words = ("path", "folder", "run", "root", "directory", "text", "name")
    if isinstance(node, ast.Call):
        return _name(node.func) in ("str", "join", "Path", "format")
    return any(_name(node).lower().endswith(word) for word in words)


def _between(source: Source, left: ast.AST, right: ast.AST, old: str) -> tuple[int, int] | None:
    """Where an operator stands between its operands."""
    start, end = source.span(left)[1], source.span(right)[0]
    place = source.data.find(old.encode(), start, end)
    return None if place < 0 else (place, place + len(old))


Found = Iterator[tuple[int, int, bytes]]


def _comparison(source: Source, node: ast.AST) -> Found:
    """`<` for `<=`, `==` for `!=`, `is` for `is not`, `in` for `not in`."""
    if isinstance(node, ast.Compare):
        operands = [node.left, *node.comparators]
        for left, operator, right in zip(operands, node.ops, operands[1:], strict=False):
            old, new = COMPARISONS[type(operator)]
            if place := _between(source, left, right, old):
                yield *place, new.encode()


def _arithmetic(source: Source, node: ast.AST) -> Found:
    """`+` for `-`, `*` for `/` and so on, not between texts and paths."""
    if isinstance(node, ast.BinOp) and not any(_is_text(side) or _is_type(side) for side in (node.left, node.right)):
        if isinstance(node.op, ast.BitOr) and isinstance(node.left, ast.Subscript):
            return
        names = ARITHMETIC.get(type(node.op))
        if names and (place := _between(source, node.left, node.right, names[0])):
            yield *place, names[1].encode()


def _constant(source: Source, node: ast.AST) -> Found:
    """A number off by one, a fraction doubled, True for False."""
    if isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
        value = node.value
        if isinstance(value, bool):
            changed: list[object] = [not value]
        elif isinstance(value, int):
            changed = [value + 1, value - 1] if value > 1 else [value + 1]
        else:
            changed = [value * 2 if value else 1.0]
        for other in changed:
            yield *source.span(node), repr(other).encode()


def _axis(source: Source, node: ast.AST) -> Found:
    """The first axis for the last."""
    if isinstance(node, ast.keyword) and node.arg == "axis":
        text = source.text(node.value)
        if text in (b"0", b"1", b"-1", b"-2"):
            yield *source.span(node.value), {b"0": b"-1", b"1": b"0", b"-1": b"0", b"-2": b"-1"}[text]


def _boolean(source: Source, node: ast.AST) -> Found:
    """`and` for `or`."""
    if isinstance(node, ast.BoolOp):
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        if place := _between(source, node.values[0], node.values[1], old):
            yield *place, new.encode()


def _negation(source: Source, node: ast.AST) -> Found:
    """A condition turned round, a `not` or a minus left out."""
    if isinstance(node, ast.If | ast.While | ast.IfExp) and not isinstance(node.test, ast.UnaryOp | ast.Compare):
        yield *source.span(node.test), b"(not (" + source.text(node.test) + b"))"
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.Invert):
        yield *source.span(node), source.text(node.operand)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and not isinstance(node.operand, ast.Constant):
        yield *source.span(node), source.text(node.operand)


def _function(source: Source, node: ast.AST) -> Found:
    """`max` for `min`, `mean` for `sum`, `any` for `all`, `cos` for `sin`; or the argument in place of the call."""
    if not isinstance(node, ast.Call):
        return
    name = _name(node.func)
    other = BUILTIN_ONLY.get(name, NAMES.get(name)) if isinstance(node.func, ast.Name) else NAMES.get(name)
    if other:
        end = source.span(node.func)[1]
        yield end - len(name), end, other.encode()
    if name in TRANSPARENT and len(node.args) == 1 and not isinstance(node.args[0], ast.Starred):
        yield *source.span(node), b"(" + source.text(node.args[0]) + b")"


def _keyword(source: Source, node: ast.AST) -> Found:
    """A keyword argument left out, of a library's function: of ours most have no default."""
    if isinstance(node, ast.Call) and _root(node.func) in LIBRARIES:
        for argument in node.keywords:
            if argument.arg is None or argument.arg in ("strict", "flush", "file", "dtype"):
                continue
            start, end = source.span(argument)
            following = source.data[end : end + 1] == b","
            yield start, end + following, b""


def _arguments(source: Source, node: ast.AST) -> Found:
    """The first two arguments of a call swapped, and the two values of a conditional."""
    if isinstance(node, ast.Call) and len(node.args) > 1 and _name(node.func) not in SYMMETRIC:
        pairs = [(node.args[-2], node.args[-1])] if _name(node.func) == "where" else [(node.args[0], node.args[1])]
        if _name(node.func) != "where" and type(node.args[0]) is not type(node.args[1]):  # a swap that fails at once
            return
    elif isinstance(node, ast.IfExp):
        pairs = [(node.body, node.orelse)]
    else:
        return
    for first, second in pairs:
        if isinstance(first, ast.Starred | ast.Lambda) or isinstance(second, ast.Starred | ast.Lambda):
            continue
        (start, middle), (after, end) = source.span(first), source.span(second)
        yield start, end, source.text(second) + source.data[middle:after] + source.text(first)


def _bounds(source: Source, node: ast.AST) -> Found:
    """A slice that begins or ends one later."""
    if not isinstance(node, ast.Slice):
        return
    for bound in (node.lower, node.upper):
        if bound is not None and not isinstance(bound, ast.Constant):
            yield *source.span(bound), b"(" + source.text(bound) + b") + 1"
    if node.lower is None and node.upper is not None:
        start = source.span(node)[0]
        yield start, start, b"1"


def _augmented(source: Source, node: ast.AST) -> Found:
    """`=` or `-=` in place of `+=`."""
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add | ast.BitAnd | ast.BitOr):
        old = {ast.Add: "+=", ast.BitAnd: "&=", ast.BitOr: "|="}[type(node.op)]
        if place := _between(source, node.target, node.value, old):
            yield *place, b"="
            if old == "+=":
                yield *place, b"-="


def _statement(source: Source, node: ast.AST) -> Found:
    """A statement left out whose only use is what it does: a call, a raise, a change of an attribute or an entry."""
    called = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await | ast.Yield)
    entry = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute | ast.Subscript)
    if called or entry or isinstance(node, ast.Raise | ast.Continue | ast.Break | ast.AugAssign | ast.Assert):
        yield *source.span(node), b"pass"


def _returned(source: Source, node: ast.AST) -> Found:
    """A value returned that says nothing: an empty list, the opposite truth, one more."""
    if not isinstance(node, ast.FunctionDef) or node.returns is None:
        return
    said = source.text(node.returns).decode()
    kind = next((kind for kind in DEFAULTS if said == kind or said.startswith(f"{kind}[")), None)
    default = DEFAULTS[kind] if kind else "None" if said.endswith("| None") else None
    if default is None:
        return
    for inner in _own(node):
        if isinstance(inner, ast.Return) and inner.value is not None and not isinstance(inner.value, ast.Constant):
            value = source.text(inner.value).decode()
            if value not in ("[]", "{}", "None"):
                yield *source.span(inner.value), default.format(value).encode()


OPERATORS: list[Callable[[Source, ast.AST], Found]] = [
    _comparison,
    _arithmetic,
    _constant,
    _axis,
    _boolean,
    _negation,
    _function,
    _keyword,
    _arguments,
    _bounds,
    _augmented,
    _statement,
    _returned,
]
