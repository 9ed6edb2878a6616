"""Messages for a command line that cannot be read: the word, what is allowed, the nearest."""

from collections.abc import Sequence
from typing import Literal, get_args, get_origin

from cyclopts import (
    CoercionError,
    CycloptsError,
    MissingArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from fourfold.config.errors import did_you_mean, lower_first, nearest


def usage_message(error: CycloptsError, commands: Sequence[str]) -> str:
    """`commands`: names of all commands, of which an unknown one may be a mistake."""
    match error:
        case UnknownCommandError(unused_tokens=[word, *_]):
            allowed = [*error.app] if error.command_chain and error.app is not None else commands
            allowed = [name for name in allowed if not name.startswith("-")]
            return f"command {word[:100]!r} is unknown; {did_you_mean(word, allowed)}allowed: {', '.join(allowed)}"
        case UnknownOptionError(token=token):
            word = (token.keyword or token.value).partition("=")[0]
            allowed = [name for each in error.argument_collection for name in each.names if name.startswith("--")]
            return f"option {word[:100]} is unknown; {did_you_mean(word, allowed)}allowed: {', '.join(allowed)}"
        case CoercionError(token=token, target_type=kind) if token is not None and get_origin(kind) is Literal:
            allowed = [str(each) for each in get_args(kind)]
            name = token.keyword or (error.argument.name.lstrip("-").upper() if error.argument is not None else "")
            hint = did_you_mean(token.value, allowed)
            return f"{name} {token.value[:100]!r} is unknown; {hint}allowed: {', '.join(allowed)}"
        case MissingArgumentError(argument=argument, keyword=None) if argument is not None:
            name = argument.name if argument.name.startswith("--") else argument.name.upper()
            allowed = [str(each) for each in get_args(argument.hint)] if get_origin(argument.hint) is Literal else []
            unread = next((word for word in error.unused_tokens or () if nearest(word, [name])), None)
            hint = f"; {unread} is unknown, {did_you_mean(unread, [name]).strip()}" if unread is not None else ""
            return f"{name} is missing{hint}{'; allowed: ' if allowed else ''}{', '.join(allowed)}"
        case UnusedCliTokensError(unused_tokens=[word, *_]):
            return f"{word[:100]!r} is one word too many"
    return lower_first(str(error))
