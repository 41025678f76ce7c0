"""Errors meant for users. Imports nothing, so that they can be told without jax."""


class SpecdecError(Exception):
  """A mistake of the user's, told in one line: what, expected, what to do.

  The command line prints it without a traceback and exits with 2.
  """


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
