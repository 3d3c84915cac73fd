"""Reads the JSON of an inference request in upstream's order, and refuses it with upstream's texts."""

# Compiled by mypyc.
from __future__ import annotations

from math import inf
from typing import Any

from stubserve_stub.wire.datatypes import BY_NAME, BY_NUMBER, shape_text
from stubserve_stub.wire.options import NO_OPTIONS

from stubserve.api.placement import IN_REGION, INVALID_DATATYPE, Placer, ReplyFormat, Slot, regions_of
from stubserve.errors import ServeError, invalid
from stubserve.http.body import too_large
from stubserve.http.infer_document import read_parameters
from stubserve.http.json import text as json_text
from stubserve.http.json.values import UNSET, as_array, as_bool, as_string, as_uint, find, parse_json
from stubserve.inference.admission import duplicate_input, duplicate_output
from stubserve.inference.request import Request
from stubserve.inference.signature import InputSignature
from stubserve.inference.tensor import Tensor

_MAX_ELEMENTS = (1 << 63) - 1
_MAX_BYTES = (1 << 64) - 1
_CONTENT_FIELDS = (
    "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
    "'shared_memory_region' in 'parameters'. But"
)


def decode_json(
    header: bytes, signature: InputSignature, placer: Placer, max_input_size: int, most_odd: float = inf
) -> tuple[Request, ReplyFormat]:
    """The request that a JSON header and what lies behind it describe.

    Raises ServeError; OddJson as `parse_json`, for more than `most_odd` bytes.
    """
    document = parse_json(header, most_odd)
    id = find(document, "id")
    # Upstream's strings end at a NUL.
    id = "" if id is UNSET else as_string(id, "id").partition("\0")[0]
    parameters = find(document, "parameters")
    options, default_binary = (NO_OPTIONS, False) if parameters is UNSET else read_parameters(parameters)
    inputs: list[Tensor] = []
    at = len(header)
    names = set()
    for item in as_array(find(document, "inputs"), "inputs"):
        parameters = find(item, "parameters")
        _check_content_fields(item, parameters)
        name = as_string(find(item, "name"), "name")
        named = as_string(find(item, "datatype"), "datatype")
        datatype = BY_NAME.get(named, INVALID_DATATYPE).number
        shape = tuple([as_uint(size, "shape") for size in as_array(find(item, "shape"), "shape")])
        if any(size > _MAX_ELEMENTS for size in shape):
            raise invalid(
                f"invalid shape for input '{name}': shape {shape_text(shape)} contains one or more invalid dimensions"
            )
        if name in names:
            raise duplicate_input(id, name)
        names.add(name)
        nbytes = find(parameters, "binary_data_size")
        if nbytes is not UNSET:
            nbytes = as_uint(nbytes, "binary_data_size")
            if nbytes > placer.size - at:
                raise invalid(
                    f"unexpected size for input '{name}', expecting {nbytes - (placer.size - at)} additional bytes "
                    f"for model '{signature.model}'"
                )
            inputs.append(placer.slice(name, datatype, shape, at, nbytes))
            at += nbytes
        else:
            region = _region(parameters)
            if region is not None:
                inputs.append(placer.in_region(name, datatype, shape, *region))
                continue
            data = _json_tensor(name, named, datatype, shape, item["data"], max_input_size)
            inputs.append(placer.put(name, datatype, shape, data))
    if at != placer.size:
        raise invalid(f"unexpected additional input data for model '{signature.model}'")
    slots = _read_outputs(id, find(document, "outputs"), placer)
    outputs = None if slots is None else list(slots)
    return Request(inputs, id, options, outputs, regions_of(placer.regions, slots)), ReplyFormat(
        slots, default_binary, regions=placer.regions
    )


def _check_content_fields(item: Any, parameters: Any) -> None:
    fields = (
        ("data", find(item, "data")),
        ("binary_data_size", find(parameters, "binary_data_size")),
        ("shared_memory_region", find(parameters, "shared_memory_region")),
    )
    given = [name for name, value in fields if value is not UNSET]
    if len(given) != 1:
        found = "".join(f" '{name}'" for name in given)
        raise invalid(f"{_CONTENT_FIELDS} set{found}" if given else f"{_CONTENT_FIELDS} no field is set")


def _region(parameters: Any) -> tuple[str, int, int] | None:
    """The shared memory that parameters name: region, offset and size; None if they name none."""
    region = find(parameters, "shared_memory_region")
    if region is UNSET:
        return None
    as_string(region, "shared_memory_region")
    offset, nbytes = find(parameters, "shared_memory_offset"), find(parameters, "shared_memory_byte_size")
    return (
        region,
        0 if offset is UNSET else as_uint(offset, "shared_memory_offset"),
        0 if nbytes is UNSET else as_uint(nbytes, "shared_memory_byte_size"),
    )


def _json_tensor(name: str, named: str, datatype: int, shape: tuple[int, ...], data: Any, max_input_size: int) -> bytes:
    elements = 0 if 0 in shape else 1
    for size in shape:
        elements *= size
        # Stop here: the product of a long shape can take minutes to compute.
        if elements > _MAX_ELEMENTS:
            raise invalid(
                f"invalid shape for input '{name}': shape {shape_text(shape)} causes total element count to exceed "
                f"maximum size of {_MAX_ELEMENTS}"
            )
    if not elements or not shape:
        # Without a shape upstream counts no elements, and does not look at the data.
        return b""
    data = as_array(data, "data")
    itemsize = BY_NUMBER[datatype].itemsize if datatype in BY_NUMBER else 0
    if elements * itemsize > _MAX_BYTES:
        raise invalid(
            f"byte size overflow for input '{name}': element count ({elements}) * data type size ({itemsize}) "
            f"exceeds maximum allowed size ({_MAX_BYTES})"
        )
    if elements * itemsize > max_input_size:
        raise too_large(f"JSON input '{name}'", elements * itemsize, max_input_size)
    if datatype not in BY_NUMBER:
        raise _no_datatype(name, named)
    content = json_text.read(name, datatype, data, elements)
    if len(content) > max_input_size:
        raise too_large(f"JSON input '{name}'", len(content), max_input_size)
    return content


def _no_datatype(name: str, named: str) -> ServeError:
    """Upstream's text. If `named` is a type of `config.pbtxt`, the text adds the type's name in requests."""
    meant = next((kind.name for kind in BY_NAME.values() if named in (kind.config_name, kind.config_name[5:])), "")
    return invalid(
        f"invalid datatype for input {name}" + (f". In requests {named} is called {meant}." if meant else "")
    )


def _read_outputs(id: str, outputs: Any, placer: Placer) -> dict[str, Slot] | None:
    """The requested outputs; None for all."""
    if outputs is UNSET:
        return None
    slots: dict[str, Slot] = {}
    for item in as_array(outputs, "outputs"):
        parameters = find(item, "parameters")
        classification = find(parameters, "classification")
        binary = find(parameters, "binary_data")
        if find(parameters, "shared_memory_region") is not UNSET:
            if classification is not UNSET:
                raise invalid("Output can't set both 'shared_memory_region' and 'classification'")
            if binary is True:
                raise invalid("Output can't set both 'shared_memory_region' and 'binary_data'")
        name = as_string(find(item, "name"), "name")
        if name in slots:
            raise duplicate_output(id, name)
        classes = 0 if classification is UNSET else as_uint(classification, "classification", "set")
        region = _region(parameters)
        as_binary = binary is not UNSET and as_bool(binary, "binary_data")
        if region is None:
            slots[name] = Slot(as_binary, classes)
        else:
            slots[name] = Slot(as_binary, IN_REGION, placer.output_in_region(*region))
    return slots or None
