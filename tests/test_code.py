"""Rules about the code itself that no linter knows."""

import ast
from collections.abc import Iterator
import inspect
import pathlib
from types import FunctionType

import pytest

import specdec

PACKAGE = pathlib.Path(specdec.__file__).parent
TESTS = pathlib.Path(__file__).parent
MOST_LINES = 450
# What Flax and Python call by itself.
CALLED_BY_OTHERS = {"setup"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def modules(*folders: pathlib.Path) -> list[pathlib.Path]:
  return sorted(path for folder in folders for path in folder.rglob("*.py"))


def name_of(path: pathlib.Path) -> str:
  return path.relative_to(PACKAGE.parent if PACKAGE in path.parents else TESTS.parent).as_posix()


def too_long(text: str) -> bool:
  """Whether a module is long and does not say why."""
  return len(text.splitlines()) > MOST_LINES and "\nLong because " not in text[:2000]


def test_long_modules_say_why():
  found = modules(PACKAGE, TESTS)
  assert len(found) > 200
  long = [name_of(path) for path in found if too_long(path.read_text(encoding="utf-8"))]
  assert not long, f"{long} have more than {MOST_LINES} lines: divide them, or say why not"


def test_a_long_module_is_found():
  lines = "x = 1\n" * (MOST_LINES + 1)
  assert too_long(lines)
  assert not too_long(f'"""A table.\n\nLong because it is one.\n"""\n{lines}')
  assert not too_long("x = 1\n" * MOST_LINES)


def public(nodes: list[ast.stmt]) -> Iterator[ast.stmt]:
  return (n for n in nodes
          if isinstance(n, Function | ast.ClassDef) and not n.name.startswith("_"))


def undocumented(trees: dict[str, ast.Module]) -> list[str]:
  """Public modules, functions, classes and methods without a docstring.

  A method may leave it to a class that its own is made from, or to a protocol that it follows.
  """
  classes = {node.name: node for tree in trees.values() for node in ast.walk(tree)
             if isinstance(node, ast.ClassDef)}
  told = lambda node: {m.name for m in public(node.body) if ast.get_docstring(m)}
  bases = lambda node: [ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases]
  protocols = set().union(*(told(node) for node in classes.values() if "Protocol" in bases(node)))

  def inherited(node: ast.ClassDef) -> set[str]:
    above = [classes[name] for name in bases(node) if name in classes and name != node.name]
    return set().union(*(told(base) | inherited(base) for base in above))

  out = []
  for name, tree in trees.items():
    if not ast.get_docstring(tree):
      out.append(name)
    for node in public(tree.body):
      if not ast.get_docstring(node):
        out.append(f"{name}: {node.name}")
      if isinstance(node, ast.ClassDef):
        known = inherited(node) | protocols | CALLED_BY_OTHERS | told(node)
        out += [f"{name}: {node.name}.{m.name}" for m in public(node.body) if m.name not in known]
  return out


def test_everything_public_has_a_docstring():
  trees = {name_of(path): ast.parse(path.read_text(encoding="utf-8"))
           for path in modules(PACKAGE) if path.name == "__init__.py" or path.name[0] != "_"}
  assert len(trees) > 150
  assert undocumented(trees) == []


def test_what_has_no_docstring_is_found():
  text = '''
class Contract(Protocol):
  def draw(self):
    """Draws."""

class Base:
  """A base."""
  def told(self):
    """Tells."""
  def untold(self):
    pass

class Child(Base):
  """One that follows both."""
  def told(self):
    pass
  def draw(self):
    pass
  def own(self):
    pass
  def _own(self):
    pass

def function():
  pass
'''
  assert undocumented({"m": ast.parse(text)}) == [
      "m", "m: Contract", "m: Base.untold", "m: Child.own", "m: function"]


def api() -> dict[str, object]:
  """What users call: the functions of `specdec`, and the methods of its classes."""
  out = {}
  for name in specdec.__all__:
    value = getattr(specdec, name)
    if inspect.isfunction(value):
      out[name] = value
    elif inspect.isclass(value):
      out |= {f"{name}.{key}": getattr(value, key) for key, member in vars(value).items()
              if key[0] != "_" and isinstance(member, FunctionType | staticmethod | classmethod)
              and member.__module__.startswith("specdec")}
  return out


def untold(function) -> list[str]:
  """Parameters that an `Args` section leaves out, and `Returns` where that is missing."""
  doc = inspect.getdoc(function) or ""
  parameters = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
  names = ["**" * (p.kind == p.VAR_KEYWORD) + p.name for p in parameters]
  out = [name for name in names if f"\n  {name}: " not in doc]
  returns = inspect.signature(function).return_annotation
  if parameters and returns is not None and "Returns:\n" not in doc:
    out.append("Returns")
  return out


@pytest.mark.parametrize("name", sorted(api()))
def test_what_users_call_tells_its_arguments_and_what_it_returns(name):
  assert untold(api()[name]) == []


def test_an_argument_that_is_not_told_is_found():
  def function(a: int, *, b: int = 1, **c: int) -> int:
    """Adds.

    Args:
      a: a number.
    """
    return a + b + sum(c.values())
  assert untold(function) == ["b", "**c", "Returns"]
