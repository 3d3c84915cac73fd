"""From text to `ModelConfig`: the protobuf text of `config.pbtxt`, and the JSON of a load override.

A `config.pbtxt` may have placeholders such as `${triton_max_batch_size}`, which a script should have filled in.
Repositories of TensorRT-LLM and others are kept in this form. A placeholder in the place of a value cannot be read. A
placeholder in a string can be read: the model gets it unchanged, and some models take it for "not set".
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf import json_format, text_format
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from stubserve.errors import internal, invalid
from stubserve.model_config.proto import ModelConfig, is_repeated

_STRING_OR_COMMENT = re.compile(rb"""("(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|#[^\n]*""")


def decode_text(content: bytes) -> str:
    """The text of a `config.pbtxt`: UTF-8 with or without a byte order mark, but comments may be in any encoding.

    Comments that are not UTF-8 become spaces. Raises UnicodeDecodeError for all other bytes that are not UTF-8.
    """
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        without = _STRING_OR_COMMENT.sub(lambda match: match[1] or b" " * len(match[0]), content)
        return without.decode("utf-8-sig")


def parse_text(text: str, where: str) -> ModelConfig:
    """Parses protobuf text; `where` is the file's path, for the error.

    Raises ServeError INTERNAL. The text begins as upstream's does. Then it has what upstream writes only to its own
    standard error: line and column (both from 1) and the reason.
    """
    config = ModelConfig()
    try:
        text_format.Parse(text, config)
    except text_format.ParseError as error:
        line, column = error.GetLine(), error.GetColumn()
        reason = str(error).removeprefix(f"{line}:{column} : ")
        templates = find_templates(text, in_string=False)
        if templates:
            # The parser's own error does not name them
            line, column, reason = templates[0].line, templates[0].column, templates[0].remark
            if templates[1:]:
                others = dict.fromkeys(f"{one.place} (line {one.line})" for one in templates[1:])
                reason += f". Not filled in either: {', '.join(others)}"
        raise internal(f"failed to read text proto from {where}: line {line}, column {column}: {reason}") from None
    except ValueError as error:
        line, column = place_of_number(text, error)
        raise internal(f"failed to read text proto from {where}: line {line}, column {column}: {error}") from None
    return config


def place_of_number(text: str, error: ValueError) -> tuple[int, int]:
    """Line and column, both from 1, of a number that no enum can have: protobuf's error has the number, no place."""
    before, _, _ = text.partition(str(error).rpartition(" ")[2])
    return before.count("\n") + 1, len(before) - before.rfind("\n")


def parse_json(text: str | bytes) -> ModelConfig:
    """Parses the JSON form of a configuration: the `config` parameter of a load request, or the result of a model.

    As upstream: unknown fields are refused, enum names are read in any case, 64-bit integers may be numbers or strings,
    and a list of one needs no brackets. Raises ServeError INVALID_ARG.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise invalid(f"failed to parse the model configuration JSON: {error}") from None
    return from_json_dict(document)


def from_json_dict(document: object) -> ModelConfig:
    """`parse_json` for a document that is already decoded. Raises ServeError INVALID_ARG."""
    if not isinstance(document, dict):
        raise invalid(f"the model configuration must be a JSON object, not {type(document).__name__}")
    config = ModelConfig()
    try:
        json_format.ParseDict(_as_python_reads_it(document, ModelConfig.DESCRIPTOR), config)
    except (json_format.ParseError, ValueError, TypeError, AttributeError) as error:
        # Python's parser lets some wrong types (a list where an object belongs) escape as TypeError or AttributeError.
        raise invalid(f"failed to parse the model configuration JSON: {error}") from None
    return config


def _as_python_reads_it(document: Mapping[str, Any], message: Descriptor) -> dict[str, Any]:
    """A copy in the spelling of Python's parser, which is stricter than C++'s.

    C++'s parser ignores the case of enum names, and takes one value without brackets for a list of one.
    """
    fields: dict[str, FieldDescriptor] = {**message.fields_by_camelcase_name, **message.fields_by_name}
    return {key: _in_field(value, fields.get(key)) for key, value in document.items()}


def _in_field(value: Any, field: FieldDescriptor | None) -> Any:
    if field is None or value is None:
        return value
    message: Descriptor | None = field.message_type
    if message is not None and message.GetOptions().map_entry:
        entry = message.fields_by_name["value"]
        if not isinstance(value, dict):
            return value
        for key, given in value.items():
            if entry.message_type is not None and given is not None and not isinstance(given, dict):
                text = f"{field.name}['{key}'] must be an object, not {type(given).__name__}"
                if entry.message_type.name == "ModelParameter":
                    right = {field.name: {key: {"string_value": given if isinstance(given, str) else "..."}}}
                    text += f", as in {json.dumps(right)}"
                raise ValueError(text)
        return {k: _in_field(v, entry) for k, v in value.items()}
    if is_repeated(field):
        return [_element(item, field) for item in (value if isinstance(value, list) else [value])]
    return _element(value, field)


def _element(value: Any, field: FieldDescriptor) -> Any:
    enum: EnumDescriptor | None = field.enum_type
    if enum is not None:
        return _enum_name(value, enum)
    message: Descriptor | None = field.message_type
    if message is None:
        return value
    if isinstance(value, dict):
        return _as_python_reads_it(value, message)
    if value is not None:
        # Python's parser takes an empty list for an empty message.
        raise ValueError(f"{field.name} must be an object, not {type(value).__name__}")
    return value


def _enum_name(value: Any, enum: EnumDescriptor) -> Any:
    if not isinstance(value, str) or value in enum.values_by_name:
        return value
    name = value.upper().replace("-", "_")
    return name if name in enum.values_by_name else value


_TOKEN = re.compile(r"""(?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|(?P<comment>#[^\n]*)|\$\{\w+\}""")
_PLACEHOLDER = re.compile(r"\$\{(\w+)\}")


@dataclass(frozen=True)
class Template:
    """One placeholder. `start` is its offset in the text; line and column count from 1."""

    name: str
    start: int
    line: int
    column: int
    in_string: bool

    @property
    def place(self) -> str:
        return f"${{{self.name}}}"

    @property
    def remark(self) -> str:
        """What to tell of it: a placeholder in a string is kept as it is, any other is an error."""
        if self.in_string:
            return f"{self.place} is a template that has not been filled in; the model gets it as it stands"
        return (
            f"{self.place} is a template that has not been filled in. Write a value in its place, or have a script do "
            f"it: tensorrtllm_backend's is tools/fill_template.py -i config.pbtxt {self.name}:VALUE"
        )


def find_templates(text: str, in_string: bool) -> list[Template]:
    """The placeholders within strings, or those in the place of a value, in the order of the text."""
    found = []
    for token in _TOKEN.finditer(text):
        if token.lastgroup != "comment" and in_string == (token.lastgroup == "string"):
            for match in _PLACEHOLDER.finditer(text, token.start(), token.end()):
                start = match.start()
                line, column = text.count("\n", 0, start) + 1, start - text.rfind("\n", 0, start)
                found.append(Template(match[1], start, line, column, in_string))
    return found


def with_words(text: str, templates: Sequence[Template]) -> str:
    """The text with a word of the same length in place of each of these placeholders."""
    for one in templates:
        length = len(one.place)
        text = text[: one.start] + "_" * length + text[one.start + length :]
    return text
