"""Errors meant for users. Imports nothing, so that they can be told without jax."""

# Longer messages lose their middle, which lists names: of a file of somebody else's, perhaps.
_LONGEST = 2000


class SpecdecError(Exception):
  """A mistake of the user's, told in one line: what, expected, what to do.

  The command line prints it without a traceback and exits with 2. Whatever a message quotes,
  it stays a line that a terminal can show: characters that are none become spaces.
  """

  def __init__(self, message: str = ""):
    line = "".join(c if c.isprintable() else " " for c in str(message))
    if len(line) > _LONGEST:
      line = f"{line[:_LONGEST - 500]} ... {line[-495:]}"
    super().__init__(line)


class InputError(SpecdecError):
  """A mistake in one of several inputs.

  Attributes:
    index: place of the input in the data, from 0.
    problem: what is wrong with it; a caller that knows the input by another name
      (a line of a file, say) puts that name in front.
  """

  def __init__(self, index: int, problem: str):
    super().__init__(f"input {index} {problem}")
    self.index = index
    self.problem = problem
