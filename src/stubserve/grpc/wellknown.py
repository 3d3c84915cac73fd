"""The messages of `grpc.health.v1` and of server reflection, described here: their packages would pin protobuf."""

from __future__ import annotations

from typing import Any

from stubserve.model_config.protobuf_schema import add_file

HEALTH = "grpc.health.v1"
REFLECTION = ("grpc.reflection.v1", "grpc.reflection.v1alpha")

_HEALTH = """
message HealthCheckRequest: string service = 1
message HealthCheckResponse: ServingStatus status = 1
enum HealthCheckResponse.ServingStatus: UNKNOWN SERVING NOT_SERVING SERVICE_UNKNOWN
service Health: Check(HealthCheckRequest) returns (HealthCheckResponse)
    Watch(HealthCheckRequest) returns (stream HealthCheckResponse)
"""

_REFLECTION = """
message ServerReflectionRequest: string host = 1; oneof message_request { string file_by_filename = 3;
    string file_containing_symbol = 4; ExtensionRequest file_containing_extension = 5;
    string all_extension_numbers_of_type = 6; string list_services = 7 }
message ExtensionRequest: string containing_type = 1; int32 extension_number = 2
message ServerReflectionResponse: string valid_host = 1; ServerReflectionRequest original_request = 2;
    oneof message_response { FileDescriptorResponse file_descriptor_response = 4;
    ExtensionNumberResponse all_extension_numbers_response = 5; ListServiceResponse list_services_response = 6;
    ErrorResponse error_response = 7 }
message FileDescriptorResponse: repeated bytes file_descriptor_proto = 1
message ExtensionNumberResponse: string base_type_name = 1; repeated int32 extension_number = 2
message ListServiceResponse: repeated ServiceResponse service = 1
message ServiceResponse: string name = 1
message ErrorResponse: int32 error_code = 1; string error_message = 2
service ServerReflection: ServerReflectionInfo(stream ServerReflectionRequest) returns (stream ServerReflectionResponse)
"""

# The messages of health, and those of reflection by package
health: Any = add_file("grpc/health/v1/health.proto", HEALTH, _HEALTH)
reflection: dict[str, Any] = {
    package: add_file(package.replace(".", "/") + "/reflection.proto", package, _REFLECTION) for package in REFLECTION
}
