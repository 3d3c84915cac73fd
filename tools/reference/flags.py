"""The page of all flags of `stubserve serve`, out of the table that the command line is read with."""

from __future__ import annotations

import re
from operator import attrgetter
from typing import Any

from stubserve.flags.table import FLAGS, GROUPS, Flag
from stubserve.flags.unneeded import UNNEEDED
from stubserve.settings.groups import Settings
from tools.reference.markdown import name as whole
from tools.reference.markdown import table

_HEAD = """\
# Flags

`stubserve serve REPOSITORY [REPOSITORY ...] [--flag=value ...]`. A value follows `=` or a space. Where a flag is `true` or `false`, the
flag alone means `true`. The flags have the names that `tritonserver` gives them, so a command line of Triton works here as it is.
This page is made from the code: it describes the release that it comes with.

"""


def default_of(flag: Flag) -> tuple[str, str]:
    """(what the help text says without the default, the default as text, empty for none)."""
    match = re.fullmatch(r"(.*?)(?: \(([^()]*)\))?\.", flag.help, re.DOTALL)
    if match is not None and match[2]:
        return match[1] + ".", match[2]
    return flag.help, plain(set_by(flag))


def set_by(flag: Flag) -> Any:
    """What its setting is where the flag is not given."""
    return attrgetter(flag.setting)(Settings())


def plain(value: Any) -> str:
    """A setting as it would be written on a command line; empty for nothing, and for what collects."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None or value == () or value == "":
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value)


def flags_page() -> str:
    """The page as Markdown."""
    parts = [_HEAD]
    for group, title in GROUPS.items():
        flags = [flag for flag in FLAGS if flag.group == group]
        parts += [f"## {title}\n\n", table(("flag", "default", "what it does"), [_row(flag) for flag in flags])]
    parts.append(
        "## Accepted, without an effect\n\nThey are in many a command line for Triton. The log says that they do nothing.\n\n"
    )
    parts.append(table(("flag", "why"), [(whole(f"--{name}"), one.why + ".") for name, one in UNNEEDED.items()]))
    return "".join(parts)


def _row(flag: Flag) -> tuple[str, str, str]:
    text, default = default_of(flag)
    if flag.many and "several times" not in text:
        text += " May be repeated."
    return whole(f"--{flag.name}"), f"`{default}`" if default and " " not in default else default, text
