"""The messages of `grpc.health.v1` and of server reflection, described here: their packages would pin protobuf."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

HEALTH = "grpc.health.v1"
REFLECTION = ("grpc.reflection.v1", "grpc.reflection.v1alpha")

_TYPES = {
    "string": FieldDescriptorProto.TYPE_STRING,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
    "int32": FieldDescriptorProto.TYPE_INT32,
}

# Message -> its fields: name, number, type ("*" behind it: repeated; "|" behind it: of the oneof).
_REFLECTION_MESSAGES = {
    "ServerReflectionRequest": (
        ("host", 1, "string"),
        ("file_by_filename", 3, "string|"),
        ("file_containing_symbol", 4, "string|"),
        ("file_containing_extension", 5, "ExtensionRequest|"),
        ("all_extension_numbers_of_type", 6, "string|"),
        ("list_services", 7, "string|"),
    ),
    "ExtensionRequest": (("containing_type", 1, "string"), ("extension_number", 2, "int32")),
    "ServerReflectionResponse": (
        ("valid_host", 1, "string"),
        ("original_request", 2, "ServerReflectionRequest"),
        ("file_descriptor_response", 4, "FileDescriptorResponse|"),
        ("all_extension_numbers_response", 5, "ExtensionNumberResponse|"),
        ("list_services_response", 6, "ListServiceResponse|"),
        ("error_response", 7, "ErrorResponse|"),
    ),
    "FileDescriptorResponse": (("file_descriptor_proto", 1, "bytes*"),),
    "ExtensionNumberResponse": (("base_type_name", 1, "string"), ("extension_number", 2, "int32*")),
    "ListServiceResponse": (("service", 1, "ServiceResponse*"),),
    "ServiceResponse": (("name", 1, "string"),),
    "ErrorResponse": (("error_code", 1, "int32"), ("error_message", 2, "string")),
}


def _describe(file: FileDescriptorProto, messages: dict[str, tuple[tuple[str, int, str], ...]]) -> None:
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field_name, number, kind in fields:
            field = message.field.add(name=field_name, number=number)
            repeated, one_of = kind.endswith("*"), kind.endswith("|")
            kind = kind.rstrip("*|")
            field.label = FieldDescriptorProto.LABEL_REPEATED if repeated else FieldDescriptorProto.LABEL_OPTIONAL
            if kind in _TYPES:
                field.type = _TYPES[kind]
            else:
                field.type = FieldDescriptorProto.TYPE_MESSAGE
                field.type_name = f".{file.package}.{kind}"
            if one_of:
                field.oneof_index = 0
                if not message.oneof_decl:
                    message.oneof_decl.add(name="message_" + ("request" if name.endswith("Request") else "response"))


def _health() -> FileDescriptorProto:
    file = FileDescriptorProto(name="grpc/health/v1/health.proto", package=HEALTH, syntax="proto3")
    _describe(file, {"HealthCheckRequest": (("service", 1, "string"),), "HealthCheckResponse": ()})
    response = file.message_type[1]
    status = response.enum_type.add(name="ServingStatus")
    for number, name in enumerate(("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")):
        status.value.add(name=name, number=number)
    response.field.add(
        name="status",
        number=1,
        type=FieldDescriptorProto.TYPE_ENUM,
        label=FieldDescriptorProto.LABEL_OPTIONAL,
        type_name=f".{HEALTH}.HealthCheckResponse.ServingStatus",
    )
    service = file.service.add(name="Health")
    for method, streams in (("Check", False), ("Watch", True)):
        service.method.add(
            name=method,
            input_type=f".{HEALTH}.HealthCheckRequest",
            output_type=f".{HEALTH}.HealthCheckResponse",
            server_streaming=streams,
        )
    return file


def _reflection(package: str) -> FileDescriptorProto:
    file = FileDescriptorProto(name=package.replace(".", "/") + "/reflection.proto", package=package, syntax="proto3")
    _describe(file, _REFLECTION_MESSAGES)
    file.service.add(name="ServerReflection").method.add(
        name="ServerReflectionInfo",
        input_type=f".{package}.ServerReflectionRequest",
        output_type=f".{package}.ServerReflectionResponse",
        client_streaming=True,
        server_streaming=True,
    )
    return file


# A pool of their own: the packages that define the same messages may be imported in this process as well.
POOL = descriptor_pool.DescriptorPool()
for _file in (_health(), *map(_reflection, REFLECTION)):
    POOL.AddSerializedFile(_file.SerializeToString())


def message_class(name: str) -> Any:
    """The class of the message of this full name."""
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(name))
