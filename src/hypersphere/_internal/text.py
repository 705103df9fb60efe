"""Text that is safe to print. Needs no torch."""


def printable(text: str) -> str:
    """Escape control characters except line ends, so that none reaches the terminal."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def escaped(name: str) -> str:
    """Escape control characters in a name, line ends too."""
    return printable(name).replace("\n", "\\n")


def one_line(text: object) -> str:
    """Return a text with white space of any kind as single blanks; of an error without a text, its type."""
    return " ".join(str(text).split()) or (type(text).__name__ if isinstance(text, BaseException) else "")
