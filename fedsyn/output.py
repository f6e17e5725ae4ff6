"""Output for people: printing, Markdown, and what a log may hold.

Names of columns and categories, files and runs come from others. A terminal obeys control characters, a page obeys
markup: what is printed goes through `plain`, what is written into Markdown through `markdown`, templates do it by
themselves (`filled`), CSV files other than tables through `cell`. A traceback may show
values of the table that was read, so it appears only where FEDSYN_DEBUG=1 asks for it: each process that fedsyn starts
calls `no_tracebacks` first.

A test reads the sources: nothing else prints, opens a rich console, or writes a traceback.
"""

from __future__ import annotations

import importlib.util
import io
import logging
import os
import re
import socketserver
import sys
import threading
import traceback
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast

if TYPE_CHECKING:
    from jinja2 import Environment
    from rich.console import Console

T = TypeVar("T")

#: Asks for the traceback of what went wrong.
DEBUG = "FEDSYN_DEBUG"
# What a terminal or a page takes for a command, and what changes the order in which letters are shown: control
# characters, formats but the two joiners that some scripts are written with, surrogates, separators of lines.
_ODD = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
_JOINERS = "\u200c\u200d"
_MARKUP = re.compile(r"([\\`\[\]|])")
_TRACE = "Traceback (most recent call last)"


def plain(text: str, keep: str = "\n") -> str:
    r"""Returns the text with escapes for what would command a terminal.

    Args:
        text: what is to be shown.
        keep: control characters that stay; a name has none.

    >>> print(plain("age \x1b[2J\x07, \u202eevil"))
    age \x1b[2J\x07, \u202eevil
    """
    if text.isprintable():
        return text
    return "".join(letter if letter in keep or not _is_odd(letter) else _escape(letter) for letter in text)


def counted(count: int, what: str, several: str | None = None) -> str:
    """Returns a number of things in words.

    >>> counted(1, "row"), counted(1200, "row"), counted(2, "person", "people")
    ('1 row', '1,200 rows', '2 people')
    """
    return f"{count:,} {what if count == 1 else several or what + 's'}"


def first_of(names: Sequence[str], most: int, mark: str = ",") -> str:
    """Returns the first names, and how many more there are.

    One more is named, as its name is as short.

    >>> first_of(["a", "b", "c"], 2), first_of(["a", "b", "c", "d"], 2), first_of(["a", "b", "c"], 1, ";")
    ('a, b, c', 'a, b and 2 more', 'a; and 2 more')
    """
    if len(names) <= most + 1:
        return f"{mark} ".join(names)
    return f"{f'{mark} '.join(names[:most])}{mark * (mark != ',')} and {len(names) - most:,} more"


def shortened(text: str, most: int) -> str:
    """Returns both ends of a text that is longer than `most` letters.

    >>> shortened("income", 8), shortened("systolic pressure at visit 4", 12)
    ('income', 'systol…sit 4')
    """
    half = most // 2
    return text if len(text) <= most else f"{text[:half]}…{text[len(text) - most + half + 1 :]}"


def _is_odd(letter: str) -> bool:
    return letter not in _JOINERS and unicodedata.category(letter) in _ODD


def _escape(letter: str) -> str:
    return letter.encode("ascii", "backslashreplace").decode() if ord(letter) > 127 else f"\\x{ord(letter):02x}"


def markdown(text: str) -> str:
    r"""Returns the text as one line of harmless Markdown.

    It shows the text, and contains no link, table or HTML.

    >>> print(markdown("a|b](x) <script>"))
    a\|b\](x) &lt;script&gt;
    """
    shown = plain(text, keep="").replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKUP.sub(r"\\\1", shown)


def cell(value: Any) -> Any:
    """Returns a CSV cell that no spreadsheet takes for a formula.

    Such a text gets `'` in front; numbers stay.

    >>> [cell(value) for value in ("=1+1", "@x", "-0.5", "augflaim", 2.0)]
    ["'=1+1", "'@x", '-0.5', 'augflaim', 2.0]
    """
    if not isinstance(value, str) or not value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def filled(room: str, template: str, /, **values: Any) -> str:
    """Fills a template of `fedsyn/FOLDER/templates` with values.

    No value can be markup or command a reader.

    Args:
        room: folder of the package.
        template: file name; one that ends in .html.md is HTML, any other is Markdown.
        values: for the template, each shown as text; a missing one is an error.
    """
    return str(_templates(room).get_template(template).render(values))


@cache
def _templates(room: str) -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined, pass_eval_context

    @pass_eval_context
    def text(context: Any, value: Any) -> Any:
        if hasattr(value, "__html__"):  # of another template, or JSON inside a script
            return value
        return plain(str(value), keep="\n\t") if context.autoescape else markdown(str(value))

    environment = Environment(
        loader=PackageLoader("fedsyn", f"{room}/templates"),
        autoescape=lambda name: name is not None and name.endswith(".html.md"),
        finalize=text,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return environment


def say(text: str, *, error: bool = False) -> None:
    """Prints a line at once, to standard output or standard error."""
    stream, line = sys.stderr if error else sys.stdout, plain(text, keep="\n\t") + "\n"
    try:
        stream.write(line)
    except UnicodeEncodeError:  # a terminal of another encoding
        stream.write(line.encode("ascii", "backslashreplace").decode())
    stream.flush()


def no_more_output() -> None:
    """Sends what else is printed nowhere: `| head` has seen enough."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def table_stream() -> BinaryIO:
    """Opens standard output for a table that nobody wants in a file.

    A pipe gets the table's bytes, a terminal what `plain` leaves of them.
    """
    return cast(BinaryIO, _Shown()) if is_terminal() else sys.stdout.buffer


def is_terminal() -> bool:
    """Returns whether standard output is a terminal."""
    return sys.stdout.isatty()


class _Shown(io.RawIOBase):
    """Bytes of text in UTF-8 for a terminal, line by line."""

    def __init__(self) -> None:
        self._rest = b""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        whole, line_end, self._rest = (self._rest + bytes(data)).rpartition(b"\n")
        if line_end:
            say(whole.decode("utf-8", "backslashreplace").replace("\r\n", "\n"))
        return len(data)


def console(*, error: bool = False) -> Console:
    """Returns a rich console for tables, bars and styles.

    Its texts are plain: no markup, and nothing that commands a terminal.
    """
    from rich.console import Console as RichConsole
    from rich.segment import Segment

    class Plain(RichConsole):
        def render_str(self, text: str, **named: Any) -> Any:  # every text that is no `Text` yet: its width is right
            return super().render_str(plain(text), **named)

        def render(self, *args: Any, **named: Any) -> Iterator[Segment]:  # all that is printed
            for segment in super().render(*args, **named):
                yield segment if segment.control else Segment(plain(segment.text, keep="\n\t"), segment.style)

    return Plain(stderr=error, markup=False, emoji=False)


@contextmanager
def progress_bar(title: str, total: int | None, wanted: bool | None = None) -> Iterator[Callable[[int], None] | None]:
    """Yields a callback for finished steps.

    It is None where no bar is shown. The bar disappears when the work that it shows is done.

    Args:
        title: of the work.
        total: of its steps; None where nobody knows.
        wanted: None: where somebody watches, in a notebook or a terminal.
    """
    # In a notebook, rich draws with ipywidgets.
    notebook = "ipykernel" in sys.modules and importlib.util.find_spec("ipywidgets") is not None
    if wanted is False or (wanted is None and not notebook and not sys.stderr.isatty()):
        yield None
        return
    from rich.progress import Progress

    with Progress(console=console(error=True), transient=True) as progress:
        task = progress.add_task(title, total=total)
        yield lambda done: progress.update(task, completed=done)


def watched(items: Sequence[T], title: str, wanted: bool | None = None) -> Iterator[T]:
    """Yields items, and shows how many are done, as `progress_bar`."""
    with progress_bar(title, len(items), wanted) as advance:
        for done, item in enumerate(items, 1):
            yield item
            if advance is not None:
                advance(done)


def log_handler(form: str) -> logging.Handler:
    """Returns a log handler for standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(form))
    return handler


# Logs and failures ---------------------------------------------------------------------------------------------------


def wants_tracebacks() -> bool:
    """Returns whether FEDSYN_DEBUG asks for tracebacks."""
    return os.environ.get(DEBUG, "0") not in ("", "0")


def reason(error: BaseException) -> str:
    """Returns one line that may be said of an error.

    An error of fedsyn gives its sentence and its cause, any other error its kind and place alone.
    """
    if getattr(error, "is_for_people", False):
        cause = f"; because of {reason(error.__cause__)}" if error.__cause__ is not None else ""
        return plain(f"{type(error).__name__}: {error}", keep="") + cause
    frames = traceback.extract_tb(error.__traceback__)
    fedsyn_frames = [frame for frame in frames if "fedsyn" in Path(frame.filename).parts] or list(frames)
    place = f" in {Path(fedsyn_frames[-1].filename).name}:{fedsyn_frames[-1].lineno}" if fedsyn_frames else ""
    return f"{type(error).__name__}{place}"


def log_failure(logger: logging.Logger, sentence: str, error: BaseException) -> None:
    """Logs a failure as a sentence and its `reason`.

    FEDSYN_DEBUG=1 adds the traceback.

    The record carries the error itself as `failure`.
    """
    trace = error if wants_tracebacks() else None
    logger.error("%s (%s)", sentence, reason(error), exc_info=trace, extra={"failure": error}, stacklevel=2)


def log_to_stderr(form: str, level: int = logging.INFO) -> None:
    """Lets this process log to standard error, and in no other way."""
    logging.basicConfig(stream=sys.stderr, format=form, level=level)
    logging.getLogger("fedsyn").handlers.clear()


def no_tracebacks() -> None:
    """Makes this process log and print one line instead of a traceback.

    Python, Flower and other libraries are covered.

    FEDSYN_DEBUG=1 leaves everything as it is.
    """
    if wants_tracebacks():
        return
    logging.setLogRecordFactory(_Record)
    sys.excepthook = _ended
    threading.excepthook = _thread_ended
    sys.unraisablehook = lambda args: None if args.exc_value is None else _fault("ignored", args.exc_value)
    socketserver.BaseServer.handle_error = _not_served  # type: ignore[assignment, method-assign]


class _Record(logging.LogRecord):
    """Strips tracebacks and control characters from a record, for every formatter."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        error = self.exc_info[1] if self.exc_info else None
        self._why = "" if error is None else f" ({reason(error)})"
        self.exc_info = self.exc_text = self.stack_info = None

    def getMessage(self) -> str:
        message = super().getMessage()
        if _TRACE in message:  # Flower logs some as text
            kind = message.strip().splitlines()[-1].partition(":")[0]
            message = f"{kind} ({DEBUG}=1 shows where)"
        return plain(message + self._why, keep="\n\t")


def _ended(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        return
    _fault("ended", error.with_traceback(trace))


def _thread_ended(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
        _fault("a thread ended", args.exc_value)


def _not_served(server: socketserver.BaseServer, request: Any, address: Any) -> None:
    error = sys.exc_info()[1]
    if error is not None and not isinstance(error, ConnectionError | TimeoutError):  # the caller has gone
        _fault("a page was not served", error)


def _fault(what: str, error: BaseException) -> None:
    if sys.stderr is not None:
        say(f"error: {what}: {reason(error)}; {DEBUG}=1 prints the traceback", error=True)
