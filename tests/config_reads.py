"""Which fields of the config classes are read, told by the type of what each is read from.

A small inference over syntax trees, enough for a program whose functions are annotated. A name has the types of its
annotation and of all that is assigned to it; a call those of the return annotation; an attribute those of the field,
property or `self.x = ...` of the class. Containers are as what they hold, so that a loop over them gives their items.
What cannot be told has no type, and what is read from it counts for nothing: a field is never read by its bare name.
"""

import ast
import dataclasses
from collections.abc import Iterator
from pathlib import Path

Types = frozenset[str]
Function = ast.FunctionDef | ast.AsyncFunctionDef
NONE: Types = frozenset()
PASSED_ON = {"list", "tuple", "set", "sorted", "reversed", "iter", "next", "zip", "enumerate", "min", "max", "replace"}
"""Functions of others whose result holds what they are given."""
ROOT_CLASS = "ExperimentConfig"


@dataclasses.dataclass
class Scope:
    """Names of a module, class or function, and the expressions that say what they are."""

    module: str
    parent: "Scope | None" = None
    owner: tuple[str, str] | None = None
    """Class and method in which it lies."""
    names: dict[str, list[tuple[str, ast.AST, "Scope"]]] = dataclasses.field(default_factory=dict)

    def bind(self, target: ast.AST, kind: str, value: ast.AST, scope: "Scope") -> None:
        """Notes what all names of an assignment's left side may be."""
        for node in ast.walk(target):
            if isinstance(node, ast.Name):
                self.names.setdefault(node.id, []).append((kind, value, scope))


@dataclasses.dataclass
class Class:
    """A class and what its attributes are."""

    name: str
    node: ast.ClassDef
    scope: Scope
    """Of what it inherits from and its annotations."""
    fields: dict[str, ast.expr] = dataclasses.field(default_factory=dict)
    methods: dict[str, Function] = dataclasses.field(default_factory=dict)
    assigned: dict[str, list[tuple[ast.AST, Scope]]] = dataclasses.field(default_factory=dict)


class Program:
    """The classes, functions and reads of some packages."""

    def __init__(self, root: Path, packages: list[str]) -> None:
        """Reads all files."""
        self.modules: dict[str, Scope] = {}
        self.classes: dict[str, Class] = {}
        self.trees: dict[str, ast.Module] = {}
        self.type_variables: set[str] = set()
        self._functions: list[tuple[Function, Scope]] = []
        self._configs: dict[str, list[str]] = {}
        self._known: dict[tuple[int, int], Types] = {}
        self._under_way: set[tuple[int, int]] = set()
        for package in packages:
            for path in sorted((root / package).rglob("*.py")):
                parts = path.relative_to(root).with_suffix("").parts
                name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
                scope = self.modules[name] = Scope(name)
                self.trees[name] = ast.parse(path.read_text())
                self._enter(self.trees[name], scope, "")

    def _enter(self, node: ast.AST, scope: Scope, class_name: str) -> None:
        """Notes what the statements below a node bind, and opens the scopes of classes and functions in it."""
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                name = f"{scope.module}.{child.name}"
                self.classes[name] = Class(name, child, scope)
                scope.names.setdefault(child.name, []).append(("class", child, scope))
                inner = Scope(scope.module, scope)
                for item in child.body:
                    if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                        self.classes[name].fields[item.target.id] = item.annotation
                self._enter(child, inner, name)
            elif isinstance(child, Function):
                if class_name:
                    self.classes[class_name].methods[child.name] = child
                else:
                    scope.names.setdefault(child.name, []).append(("function", child, scope))
                self._function(child, scope, class_name)
            else:
                self._statement(child, scope)
                self._enter(child, scope, class_name if isinstance(node, ast.ClassDef) else "")

    def _function(self, node: Function, outer: Scope, class_name: str) -> None:
        inner = Scope(outer.module, outer, (class_name, node.name) if class_name else outer.owner)
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        for i, argument in enumerate(arguments):
            if argument.annotation is not None:
                inner.names.setdefault(argument.arg, []).append(("annotation", argument.annotation, outer))
            elif i == 0 and class_name:
                inner.names[argument.arg] = [("class", self.classes[class_name].node, self.classes[class_name].scope)]
        self._enter(node, inner, "")
        self._functions.append((node, inner))

    def _statement(self, node: ast.AST, scope: Scope) -> None:
        """Notes what one statement or expression binds; nested ones come by themselves."""
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._assign(target, "value", node.value, scope)
                called = _last_name(node.value.func) if isinstance(node.value, ast.Call) else ""
                if called == "TypeVar" and isinstance(target, ast.Name):
                    self.type_variables.add(target.id)
        elif isinstance(node, ast.AnnAssign):
            self._assign(node.target, "annotation", node.annotation, scope)
        elif isinstance(node, ast.NamedExpr):
            self._assign(node.target, "value", node.value, scope)
        elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            self._assign(node.target, "value", node.iter, scope)
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            self._assign(node.optional_vars, "value", node.context_expr, scope)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.asname or alias.name.split(".")[0]
                whole = alias.name if alias.asname else name
                scope.names.setdefault(name, []).append(("module", ast.Name(id=whole), scope))
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = ast.Name(id=f"{node.module}.{alias.name}")
                scope.names.setdefault(alias.asname or alias.name, []).append(("imported", whole, scope))

    def _assign(self, target: ast.AST, kind: str, value: ast.AST, scope: Scope) -> None:
        scope.bind(target, kind, value, scope)
        for node in ast.walk(target):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
                owner = scope.owner
                if owner is not None and owner[0] in self.classes:
                    if kind == "annotation":
                        assert isinstance(value, ast.expr)
                        self.classes[owner[0]].fields.setdefault(node.attr, value)
                    else:
                        self.classes[owner[0]].assigned.setdefault(node.attr, []).append((value, scope))

    # What a name stands for.

    def _lookup(self, name: str, scope: Scope | None) -> list[tuple[str, ast.AST, Scope]]:
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.parent
        return []

    def _global(self, dotted: str, depth: int = 0) -> list[tuple[str, ast.AST, Scope]]:
        """What `module.name` stands for, followed through packages that only pass it on."""
        module, _, name = dotted.rpartition(".")
        if module not in self.modules or depth > 5:
            return [("module", ast.Name(id=dotted), Scope(""))] if dotted in self.modules else []
        if name not in self.modules[module].names:
            return [("module", ast.Name(id=dotted), Scope(""))] if dotted in self.modules else []
        found = []
        for kind, node, scope in self.modules[module].names[name]:
            found += self._global(node.id, depth + 1) if kind == "imported" else [(kind, node, scope)]  # type: ignore[attr-defined]
        return found

    def _meanings(self, node: ast.AST, scope: Scope) -> list[tuple[str, ast.AST, Scope]]:
        """What a name, or a name in a module, stands for."""
        if isinstance(node, ast.Name):
            found = []
            for kind, value, where in self._lookup(node.id, scope):
                found += self._global(value.id) if kind == "imported" else [(kind, value, where)]  # type: ignore[attr-defined]
            return found
        if isinstance(node, ast.Attribute):
            whole = []
            for kind, value, _ in self._meanings(node.value, scope):
                if kind == "module":
                    whole += self._global(f"{value.id}.{node.attr}")  # type: ignore[attr-defined]
            return whole
        return []

    # Types.

    def annotation(self, node: ast.AST | None, scope: Scope) -> Types:
        """Classes that an annotation names; of a Callable those of its result."""
        if node is None:
            return NONE
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            try:
                return self.annotation(ast.parse(node.value, mode="eval").body, scope)
            except SyntaxError:  # the dimensions of an array
                return NONE
        if isinstance(node, ast.Subscript) and getattr(node.value, "id", "") == "Callable":
            parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else []
            return self.annotation(parts[-1], scope) if parts else NONE
        if isinstance(node, ast.Subscript) and getattr(node.value, "id", "") == "Literal":
            return NONE
        if isinstance(node, ast.Name | ast.Attribute):
            found: set[str] = set()
            for kind, value, where in self._meanings(node, scope):
                if kind == "class":
                    found.add(f"{where.module}.{value.name}")  # type: ignore[attr-defined]
                elif kind == "value" and not isinstance(value, ast.Call):  # an alias of a type
                    found |= self.annotation(value, where)
            return frozenset(found)
        return frozenset().union(*(self.annotation(child, scope) for child in ast.iter_child_nodes(node)))

    def types(self, node: ast.AST, scope: Scope) -> Types:
        """Classes of which an expression's value may be, or which it may hold."""
        key = (id(node), id(scope))
        if key in self._known:
            return self._known[key]
        if key in self._under_way:
            return NONE
        self._under_way.add(key)
        found = self._types(node, scope)
        self._under_way.discard(key)
        self._known[key] = found
        return found

    def _types(self, node: ast.AST, scope: Scope) -> Types:
        match node:
            case ast.Name():
                return self._of_meanings(node, scope)
            case ast.Attribute():
                return self._of_meanings(node, scope) or self.attribute(self.types(node.value, scope), node.attr)
            case ast.Call():
                return self._call(node, scope)
            case ast.Subscript() | ast.Starred() | ast.Await():
                return self.types(node.value, scope)
            case ast.NamedExpr():
                return self.types(node.value, scope)
            case ast.IfExp():
                return self.types(node.body, scope) | self.types(node.orelse, scope)
            case ast.BoolOp():
                return frozenset().union(*(self.types(value, scope) for value in node.values))
            case ast.List() | ast.Tuple() | ast.Set():
                return frozenset().union(*(self.types(value, scope) for value in node.elts))
            case ast.Dict():
                return frozenset().union(*(self.types(value, scope) for value in node.values))
            case ast.ListComp() | ast.GeneratorExp() | ast.SetComp():
                return self.types(node.elt, scope)
            case ast.DictComp():
                return self.types(node.value, scope)
        return NONE

    def _of_meanings(self, node: ast.AST, scope: Scope) -> Types:
        found: Types = NONE
        for kind, value, where in self._meanings(node, scope):
            if kind == "class":
                found |= {f"{where.module}.{value.name}"}  # type: ignore[attr-defined]
            elif kind == "annotation":
                found |= self.annotation(value, where)
            elif kind == "value":
                found |= self.types(value, where)
        return found

    def _call(self, node: ast.Call, scope: Scope) -> Types:
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        name = _last_name(node.func)
        if name == "cast" and node.args:
            return self.annotation(node.args[0], scope)
        for kind, value, where in self._meanings(node.func, scope):
            if kind == "function":
                assert isinstance(value, Function)
                return self._result(value, where, given, scope)
        if isinstance(node.func, ast.Attribute):
            owners = self.types(node.func.value, scope)
            found: Types = NONE
            for owner in owners:
                for one in self.lineage(owner):
                    if node.func.attr in one.methods:
                        found |= self._result(one.methods[node.func.attr], one.scope, given, scope)
                        break
            if found:
                return found
            if name in {"get", "items", "values", "pop", "setdefault"}:
                return owners
        if name in PASSED_ON:
            return frozenset().union(*(self.types(value, scope) for value in given))
        return self.types(node.func, scope)

    def _result(self, function: Function, where: Scope, given: list[ast.expr], scope: Scope) -> Types:
        """Classes of a return annotation; of a type variable those of all arguments."""
        if function.returns is None:
            return NONE
        named = {node.id for node in ast.walk(function.returns) if isinstance(node, ast.Name)}
        found = self.annotation(function.returns, where)
        if named & self.type_variables:
            found = found.union(*(self.types(value, scope) for value in given))
        return found

    def lineage(self, name: str) -> Iterator[Class]:
        """A class and what it inherits from, as far as these are of the program."""
        if name in self.classes:
            one = self.classes[name]
            yield one
            for base in one.node.bases:
                for parent in self.annotation(base, one.scope):
                    yield from self.lineage(parent)

    def attribute(self, owners: Types, name: str) -> Types:
        """Classes of an attribute of some classes."""
        found: Types = NONE
        for owner in owners:
            for one in self.lineage(owner):
                if name in one.fields:
                    found |= self.annotation(one.fields[name], one.scope)
                elif name in one.methods:
                    found |= self.annotation(one.methods[name].returns, one.scope)
                elif name in one.assigned:
                    found |= frozenset().union(*(self.types(value, where) for value, where in one.assigned[name]))
                else:
                    continue
                break
        return found

    # Configs.

    def configs(self) -> dict[str, list[str]]:
        """Fields of the experiments' configs and of all configs nested in them, by class."""
        if self._configs:
            return self._configs
        found: dict[str, list[str]] = {}
        waiting = [name for name in self.classes if ROOT_CLASS in (one.node.name for one in self.lineage(name))]
        while waiting:
            name = waiting.pop()
            for one in self.lineage(name):
                if one.name not in found:
                    found[one.name] = list(one.fields)
                    for annotation in one.fields.values():
                        waiting += self.annotation(annotation, one.scope)
        self._configs = {name: fields for name, fields in sorted(found.items()) if fields}
        return self._configs

    def _declared(self, owner: str, name: str) -> list[str]:
        """Classes that declare what is read as an attribute; of a protocol, those of the configs that fulfil it."""
        for one in self.lineage(owner):
            if any(getattr(base, "id", "") == "Protocol" for base in one.node.bases):
                wanted = set(one.methods) | set(one.fields)
                fulfil = [
                    config
                    for config in self.configs()
                    if wanted <= {member for part in self.lineage(config) for member in (*part.fields, *part.methods)}
                ]
                return [found for config in fulfil for found in self._declared(config, name)] if name in wanted else []
            if name in one.fields or name in one.methods:
                return [one.name]
        return []

    def unread(self) -> list[str]:
        """Fields `module.Class.field` that nothing reads.

        A config's own `__post_init__` reads nothing: to check a value is no use of it. What another method or a
        property of a config reads counts if that is read itself.
        """
        configs = self.configs()
        reads: dict[tuple[str, str], set[tuple[str, str] | None]] = {}
        by_name = self._read_by_name()
        for node, scope in [*self._functions, *((None, scope) for scope in self.modules.values())]:
            owner = scope.owner if scope.owner is not None and scope.owner[0] in configs else None
            for child in self._parts(node, scope):
                if isinstance(child, ast.Attribute) and isinstance(child.ctx, ast.Load):
                    found = {one for kind in self.types(child.value, scope) for one in self._declared(kind, child.attr)}
                    for declared in found:
                        reads.setdefault((declared, child.attr), set()).add(owner)
                elif isinstance(child, ast.Call):
                    for declared, name in self._names_given(child, scope, by_name):
                        reads.setdefault((declared, name), set()).add(owner)
        used = {what for what, by in reads.items() if None in by}
        while more := {what for what, by in reads.items() if what not in used and by & used}:
            used |= more
        return [f"{name}.{field}" for name, fields in configs.items() for field in fields if (name, field) not in used]

    def _parts(self, node: ast.AST | None, scope: Scope) -> Iterator[ast.AST]:
        """All nodes of a function, or of a module, that lie in no function of their own."""
        for statement in ast.iter_child_nodes(self.trees[scope.module] if node is None else node):
            yield from _same_scope(statement)

    def _read_by_name(self) -> dict[int, tuple[int, str, ast.expr | None, Types]]:
        """Functions that read the field whose name they are given: by node its place, name, default and the owners."""
        found = {}
        for node, scope in self._functions:
            given = [*node.args.posonlyargs, *node.args.args]
            names = [argument.arg for argument in given]
            for child in self._parts(node, scope):
                match child:
                    case ast.Call(func=ast.Name(id="getattr"), args=[value, ast.Name(id=name), *_]) if name in names:
                        place = names.index(name)
                        after = place - len(given) + len(node.args.defaults)
                        default = node.args.defaults[after] if after >= 0 else None
                        found[id(node)] = (place, name, default, self.types(value, scope))
        return found

    def _names_given(
        self, call: ast.Call, scope: Scope, by_name: dict[int, tuple[int, str, ast.expr | None, Types]]
    ) -> Iterator[tuple[str, str]]:
        """Class and field that a call of one of those functions reads."""
        for _, function, _ in self._meanings(call.func, scope):
            if id(function) in by_name:
                place, name, default, owners = by_name[id(function)]
                given = [keyword.value for keyword in call.keywords if keyword.arg == name]
                given += call.args[place : place + 1]
                for word in given or [default]:
                    if isinstance(word, ast.Constant) and isinstance(word.value, str):
                        for owner in owners:
                            yield from ((declared, word.value) for declared in self._declared(owner, word.value))


def _same_scope(node: ast.AST) -> Iterator[ast.AST]:
    """A statement's parts without the functions and classes in it, which are gone through by themselves."""
    if not isinstance(node, Function | ast.ClassDef):
        yield node
        for child in ast.iter_child_nodes(node):
            yield from _same_scope(child)


def _last_name(node: ast.AST) -> str:
    """`f` of `f` and of `module.f`."""
    return getattr(node, "id", getattr(node, "attr", ""))
