"""Protobuf messages from a short description: without generated code, or a package with such code.

A description has one statement a line; indented lines continue it:

    enum Color: RED GREEN                    numbered from 0
    message Box: uint32 size = 1; oneof filling { string text = 2; Box inner = 3 }
    message Box.Label: repeated string line = 1; map<string, Color> marks = 2
    service Shop: Buy Sell(stream BuyRequest) returns (stream BuyResponse)

A message's name before the last dot is its enclosing message, which must come first. A type is looked up from the
message outwards, as protobuf does. A method without types uses the messages with its own name and `Request` or
`Response` behind it.

All messages are in one pool of the server's own. Packages that define the same messages may be imported in this process
as well: their classes differ, and the bytes are the same.
"""

from __future__ import annotations

import re
from types import SimpleNamespace

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

POOL = descriptor_pool.DescriptorPool()

_STATEMENT = re.compile(r"^(enum|message|service) ([\w.]+):((?:.*\n(?: +.*\n)*))", re.MULTILINE)
_FIELD = re.compile(r"oneof (\w+) \{|(\})|(repeated )?(?:map<(\w+), ([\w.]+)>|([\w.]+)) (\w+) = (\d+)")
_METHOD = re.compile(r"(\w+)(?:\((stream )?(\w+)\) returns \((stream )?(\w+)\))?")


def add_file(name: str, package: str, description: str, uses: tuple[str, ...] = ()) -> SimpleNamespace:
    """Describes the messages of a file, which may use those of the files in `uses`.

    Returns the file's top-level contents by name: message classes, enums, the values of enums; and its `DESCRIPTOR`.
    """
    file = FileDescriptorProto(name=name, package=package, syntax="proto3", dependency=uses)
    messages: dict[str, DescriptorProto] = {}
    for kind, full_name, rest in _STATEMENT.findall(description):
        holder, _, own_name = full_name.rpartition(".")
        if kind == "enum":
            enum = (messages[holder] if holder else file).enum_type.add(name=own_name)
            for number, value in enumerate(rest.split()):
                enum.value.add(name=value, number=number)
        elif kind == "message":
            message = messages[holder].nested_type.add() if holder else file.message_type.add()
            message.name = own_name
            messages[full_name] = message
            _add_fields(message, rest)
        else:
            service = file.service.add(name=own_name)
            for method, takes_many, takes, gives_many, gives in _METHOD.findall(rest):
                service.method.add(
                    name=method,
                    input_type=takes or f"{method}Request",
                    output_type=gives or f"{method}Response",
                    client_streaming=bool(takes_many),
                    server_streaming=bool(gives_many),
                )
    POOL.AddSerializedFile(file.SerializeToString())
    return _namespace(name)


def _add_fields(message: DescriptorProto, fields: str) -> None:
    one_of = None
    for begins, ends, repeated, key, value, single, name, number in _FIELD.findall(fields):
        if begins:
            one_of = len(message.oneof_decl)
            message.oneof_decl.add(name=begins)
        elif ends:
            one_of = None
        else:
            field = message.field.add(name=name, number=int(number))
            if key:
                entry = message.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
                entry.options.map_entry = True
                _set_type(entry.field.add(name="key", number=1), key)
                _set_type(entry.field.add(name="value", number=2), value)
                single, repeated = entry.name, "repeated"
            _set_type(field, single, bool(repeated))
            if one_of is not None:
                field.oneof_index = one_of


def _set_type(field: FieldDescriptorProto, name: str, repeated: bool = False) -> None:
    field.label = FieldDescriptorProto.LABEL_REPEATED if repeated else FieldDescriptorProto.LABEL_OPTIONAL
    scalar = f"TYPE_{name.upper()}"
    if name.islower():
        field.type = FieldDescriptorProto.Type.Value(scalar)
    else:
        field.type_name = name


def _namespace(file: str) -> SimpleNamespace:
    described = POOL.FindFileByName(file)
    found = SimpleNamespace(DESCRIPTOR=described)
    for name, message in described.message_types_by_name.items():
        setattr(found, name, message_factory.GetMessageClass(message))
    for name, enum in described.enum_types_by_name.items():
        setattr(found, name, EnumTypeWrapper(enum))
        for value in enum.values:
            setattr(found, value.name, value.number)
    return found
