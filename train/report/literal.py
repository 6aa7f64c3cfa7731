"""What people typed, on the screen."""

from rich.table import Column
from rich.text import Text

from ..errors import visible


def literal(text: object) -> Text:
    """A text as it stands: nothing in it is markup, a smiley's name or a command to the terminal."""
    return Text(visible(str(text)))


def headed(text: object) -> Column:
    """A column of a table with such a text as its heading."""
    return Column(literal(text))
