"""The page of `config.pbtxt`: every field of the protocol's ModelConfig, and what it does here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from stubserve.model_config.proto import ModelConfig, is_repeated
from tools.reference.config_fields import FIELDS
from tools.reference.markdown import name as whole
from tools.reference.markdown import table

_HEAD = """\
# config.pbtxt

Every field of a model's configuration, and what it does in stubserve. The names and types are those of Triton's `ModelConfig`. `stubserve check`
finds fields and values that do not exist, with their lines ([Tools](../tools.md)). The rest of a model's folder is in [From Triton](../guides/from-triton.md).

`string[]` may be written several times, or as a list; `map` is written as `{ key: "..." value { ... } }`.

"""


def messages() -> Iterator[tuple[str, Descriptor]]:
    """(name, descriptor) of ModelConfig and of all that it is made of, each once, in the order in which they are met."""
    seen: set[str] = set()

    def walk(descriptor: Any) -> Iterator[tuple[str, Descriptor]]:
        if descriptor.full_name in seen:
            return
        seen.add(descriptor.full_name)
        if not descriptor.GetOptions().map_entry:
            yield descriptor.full_name.partition(".")[2], descriptor
        for field in descriptor.fields:
            if field.message_type is not None:
                yield from walk(field.message_type)

    return walk(ModelConfig.DESCRIPTOR)


def config_page() -> str:
    """The page as Markdown."""
    parts = [_HEAD]
    for name, descriptor in messages():
        parts.append(f"## {name}\n\n")
        if not descriptor.fields:
            parts.append("It has no fields: `{ }`.\n\n")
            continue
        rows = [(whole(field.name), _type(field), FIELDS[name][field.name]) for field in descriptor.fields]
        parts.append(table(("field", "type", "what it does"), rows))
    types = ModelConfig.DESCRIPTOR.file.enum_types_by_name["DataType"]
    parts.append("## DataType\n\n" + ", ".join(f"`{value.name}`" for value in types.values) + ".\n")
    return "".join(parts)


def _type(field: FieldDescriptor) -> str:
    message: Any = field.message_type
    if message is not None and message.GetOptions().map_entry:
        return f"map to {_type(message.fields_by_name['value'])}"
    many = "[]" if is_repeated(field) else ""
    if message is not None:
        name = message.full_name.partition(".")[2]
        return f"[{name}{many}](#{_anchor(name)})"
    if field.enum_type is not None and len(field.enum_type.values) > _FEW:
        return f"[{field.enum_type.name}](#{_anchor(field.enum_type.name)})"
    if field.enum_type is not None:
        return f"one of {', '.join(f'`{value.name}`' for value in field.enum_type.values)}{', many' if many else ''}"
    return f"`{_SCALARS[field.type]}{many}`"


def _anchor(name: str) -> str:
    """As mkdocs makes one of a heading."""
    return name.lower().replace(".", "")


# Values of an enumeration that stand in a table
_FEW = 6
_SCALARS = {
    getattr(FieldDescriptor, f"TYPE_{name.upper()}"): name
    for name in ("double", "float", "int32", "int64", "uint32", "uint64", "bool", "string")
}
