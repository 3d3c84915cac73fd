"""The page of the backends' parameters, out of their cards."""

from __future__ import annotations

from stubserve_stub.backends.cards import all_cards

from tools.reference.markdown import name as whole
from tools.reference.markdown import table

_HEAD = """\
# Parameters of backends

What `parameters` of a `config.pbtxt` may say to a backend, as `parameters { key: "NAME" value { string_value: "VALUE" } }`. A default stands
in parentheses. [Backends](../guides/backends.md) says what the backends are for. Parameters of the server are in the [configuration](config.md).

"""


def backends_page() -> str:
    """The page as Markdown."""
    parts = [_HEAD]
    for card in all_cards():
        if card.parameters:
            rows = [(whole(one.name), one.kind, one.help) for one in card.parameters]
            parts += [f"## {card.name}\n\n", table(("parameter", "value", "what it does"), rows)]
    return "".join(parts)
