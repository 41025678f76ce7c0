"""How results show themselves where they are the value of a cell or a prompt."""

from typing import TYPE_CHECKING
from typing import Any

if TYPE_CHECKING:
  from rich.text import Text


class Shown:
  """A page in notebooks, coloured text in a terminal: `rich.print(result)`, or IPython's prompt."""

  def _repr_html_(self) -> str:
    from specdec.engine import trace_page

    return trace_page.cell(self)

  def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
    from specdec.engine import trace_text

    printer.text("..." if cycle else trace_text.show(self).plain)

  def __rich__(self) -> "Text":
    from specdec.engine import trace_text

    return trace_text.show(self)
