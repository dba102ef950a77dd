"""Checks shapes and dtypes of annotated arrays while tests run, by jaxtyping and beartype.

jaxtyping's own hook checks every function, those without arrays too, whose types the type checker knows. On the tests
of qchunk/data that took 60 of 107 seconds of a core, in binding a million calls and in compiling a check for each
function that is made inside another; this takes 20.
"""

import ast
from collections.abc import Sequence
from typing import Any

from beartype import beartype
from jaxtyping import _import_hook, install_import_hook


def install(packages: Sequence[str]) -> None:
    """Checks functions and classes of these packages that are imported from now on, where they annotate arrays."""
    _import_hook.JaxtypingTransformer = ArraysAlone
    install_import_hook(packages, "tests.array_checks.checked")


def checked(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Applies beartype; named in the bytecode's files, which so are others than those of jaxtyping's own hook."""
    return beartype(function, *args, **kwargs)


class ArraysAlone(_import_hook.JaxtypingTransformer):
    """Decorates what names an array with its shape, as Float32[Array, "b t"], or an alias of one."""

    def visit_Module(self, node: ast.Module) -> ast.Module:
        """Notes the module's aliases of arrays first."""
        assigned = [one for one in node.body if isinstance(one, ast.Assign) and _names_shape(one.value)]
        self._aliases = {name.id for one in assigned for name in one.targets if isinstance(name, ast.Name)}
        return super().visit_Module(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        """Decorates a function whose arguments or result are arrays."""
        given = node.args
        arguments = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
        annotations = [argument.annotation for argument in arguments if argument is not None] + [node.returns]
        if any(self._names_array(one) for one in annotations):
            return super().visit_FunctionDef(node)
        self.generic_visit(node)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        """Decorates a class that has arrays as fields."""
        if any(self._names_array(one.annotation) for one in node.body if isinstance(one, ast.AnnAssign)):
            return super().visit_ClassDef(node)
        self.generic_visit(node)
        return node

    def _names_array(self, annotation: ast.expr | None) -> bool:
        if annotation is None:
            return False
        names = (one.id for one in ast.walk(annotation) if isinstance(one, ast.Name))
        return _names_shape(annotation) or not self._aliases.isdisjoint(names)


def _names_shape(annotation: ast.expr) -> bool:
    """Whether a part of it is a type and a text in brackets."""
    for one in ast.walk(annotation):
        if isinstance(one, ast.Subscript) and isinstance(one.slice, ast.Tuple):
            if isinstance(one.value, ast.Name) and one.value.id == "Literal":
                continue
            last = one.slice.elts[-1]
            if isinstance(last, ast.Constant) and isinstance(last.value, str):
                return True
    return False
