"""What is read as a typed document means what `infer_json` reads, whatever the request; and usual requests are."""

from __future__ import annotations

import json
import struct
from typing import Any
from unittest import mock

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stubserve_stub.wire import strings as wire_strings

from stubserve.http import infer, infer_document, infer_structs
from stubserve.inference.signature import Signature
from tests import outcomes
from tests.http.arena import Memory, decoded
from tests.inference.models import echo, io, signature

NUMBER_TYPES = ["UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP32", "FP64"]
TYPES = [*NUMBER_TYPES, "BOOL", "BYTES", "FP16", "BF16"]
LIMIT = 1 << 14


def echo_of(kind: str) -> Signature:
    return echo("m", "STRING" if kind == "BYTES" else kind, "-1", "max_batch_size: 8")


def outcome(model: Signature, text: bytes, tail: bytes, memory: Memory) -> Any:
    json_length = len(text) if tail else None
    return outcomes.outcome(lambda: decoded(text + tail, json_length, model, memory.store, LIMIT), model)


def same(model: Signature, text: bytes, memory: Memory, tail: bytes = b"") -> Any:
    """The outcome, which is the one that it has without typed documents. Colons are counted otherwise in long ones."""
    for spaces in (infer_document._LONG, 0):
        spaced = text + b" " * spaces
        found = outcome(model, spaced, tail, memory)
        with mock.patch.object(infer_structs, "decode", side_effect=msgspec.DecodeError):
            assert outcome(model, spaced, tail, memory) == found
    return found


def text_of(kind: str, data: str, shape: str = "[1,3]", front: str = "", back: str = "") -> bytes:
    field = f'"name":"IN","datatype":"{kind}","shape":{shape},"data":{data}'
    return f'{{{front}"inputs":[{{{field}}}]{back}}}'.encode()


def values(element: st.SearchStrategy[Any]) -> st.SearchStrategy[str]:
    nested = st.recursive(st.lists(element, max_size=4), lambda inner: st.lists(inner, max_size=3), max_leaves=4)
    lists = st.lists(element, min_size=3, max_size=3) | nested
    return st.tuples(lists, st.booleans()).map(lambda found: json.dumps(found[0], ensure_ascii=found[1]))


NUMBERS = [
    "[1e39,-1e39,1e-50]",
    "[1e400,0,0]",
    "[NaN,Inf,-Infinity]",
    "[18446744073709551615,18446744073709551616,0]",
    "[-9223372036854775808,-9223372036854775809,0]",
    "[340282356779733661637539395458142568447,3.4028235677973366e38,1.0]",
    "[0.1000000000000000055511151231257827,2.2250738585072011e-308,5e-324]",
    "[123456789012345678901234567890,1.7976931348623159e308,-0]",
    "[01,2,3]",
    "[1,2,3,]",
    "[1,,3]",
    "[1 2 3]",
    "[[1,2],3]",
    "[[1,2],[3]]",
    "[1,[2,3]]",
    "[[[[[[[[1,2,3]]]]]]]]",
    "[" * 120 + "1,2,3" + "]" * 120,
    "[" * 3000 + "1,2,3" + "]" * 3000,
    "[true,2,3]",
    "[null,2,3]",
    '["a]",2,3]',
    "[1,2,3]]",
    "[[1,2,3]",
    "5",
    '{"data":[1,2,3]}',
    " [1,2,3]",
    "[ 1 ,\t2\n, 3 ] ",
    "[1.0,2,3]",
    "[1,2,3.5]",
    "[300,-1,2]",
    '[1,2,3],"data":[4,5,6]',
    '[1,2,3],"x":[4]',
]
STRINGS = [
    '["a","b","c:d"]',
    r'["\"b\":","\\","\u00e9"]',
    r'["\ud83d\ude00","\u0000",""]',
    r'["\ud800","b","c"]',
    r'["\udc00","b","c"]',
    r'["\ud800\ud800","b","c"]',
    r'["\x","b","c"]',
    '["\u20ac","\U0001f600","\x7f"]',
    '["a\nb","b","c"]',
    '["a", "b", "c"]',
    '["a" ,"b","c"]',
    '["a","b","c" ]',
    '["a","b","c",]',
    '[,"b","c"]',
    '["a""b""c"]',
    r'["a\n", "\\b", "c"]',
    '["a","b",5]',
    '[["a"],["b"],["c"]]',
    '["a",["b"],"c"]',
    '[{"a":1},"b","c"]',
    '["a","b","c"],"data":["d:","e","f"]',
]
DATA = st.one_of(
    values(st.floats(allow_nan=False, allow_infinity=False)),
    values(st.integers(-(2**65), 2**65)),
    values(st.integers(0, 200)),
    values(st.booleans()),
    values(st.text(max_size=8)),
    values(st.one_of(st.booleans(), st.none(), st.text(max_size=3), st.integers(0, 2), st.just({}), st.floats())),
    st.text(alphabet='[]{},"0.5-eE+truefalsn :\\\0', max_size=12),
    st.sampled_from([*NUMBERS, *STRINGS]),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.sampled_from(TYPES), DATA)
def test_any_data(memory: Memory, kind: str, data: str) -> None:
    same(echo_of(kind), text_of(kind, data), memory)


@pytest.mark.parametrize("kind", TYPES)
def test_odd_data(memory: Memory, kind: str) -> None:
    for data in (*NUMBERS, *STRINGS):
        same(echo_of(kind), text_of(kind, data), memory)
    for data in (b'["\xff","b","c"]', b'["\xed\xa0\x80","b","c"]', b'["\xc0\x80","b","c"]', b"[1,2,\xff3]"):
        same(echo_of(kind), text_of(kind, "[]").replace(b"[]", data), memory)


class Pieces:
    """A document as text, of names and values of which some are odd, with names that may come twice."""

    def __init__(self, draw: Any) -> None:
        self._draw = draw

    def document(self) -> str:
        members = {"inputs": self.inputs}
        members |= self.some({"id": self.word, "parameters": self.parameters, "outputs": self.outputs, "x": self.word})
        return self.object(members)

    def some(self, members: dict[str, Any]) -> dict[str, Any]:
        wanted = self._draw(st.sets(st.sampled_from(sorted(members))))
        return {name: members[name] for name in sorted(wanted)}

    def object(self, members: dict[str, Any]) -> str:
        order = self._draw(st.permutations(sorted(members)))
        if self._draw(st.integers(0, 9)) == 0 and order:
            order = [*order, self._draw(st.sampled_from(order))]
        colons = st.sampled_from([":", ": ", " :", "\t:\n"] if self._draw(st.integers(0, 3)) == 0 else [":"])
        spelled = [self.name(name) + self._draw(colons) + members[name]() for name in order]
        return "{" + ",".join(spelled) + "}"

    def name(self, name: str) -> str:
        if self._draw(st.integers(0, 19)) == 0:
            return '"' + "".join(f"\\u{ord(letter):04x}" for letter in name) + '"'
        return f'"{name}"'

    def word(self) -> str:
        words = ['"a"', '"a:b"', r'"\u003a"', r'"\":"', '""', "5", "null", '"\u00e9"', r'"\u0000b"', r'"a\nb"', '":::"']
        return str(self._draw(st.sampled_from(words)))

    def number(self) -> str:
        numbers = [
            "1" + "0" * 400,
            "9223372036854775808",
            "0",
            "1",
            "2",
            "3",
            "12",
            "-1",
            "-0",
            "1.0",
            "1e2",
            "18446744073709551616",
            "null",
            '"1"',
            "true",
        ]
        return str(self._draw(st.sampled_from(numbers)))

    def flag(self) -> str:
        return str(self._draw(st.sampled_from(["true", "false", "1", "null", '"true"'])))

    def parameters(self) -> str:
        members = self.some(
            {
                "binary_data_output": self.flag,
                "sequence_id": self.number,
                "sequence_start": self.flag,
                "priority": self.number,
                "timeout": self.number,
                "other": self.word,
                "colon:": self.word,
                "triton_x": self.word,
            }
        )
        return str(self._draw(st.sampled_from([self.object(members)] * 5 + ["null", "5", "{}"])))

    def inputs(self) -> str:
        count = self._draw(st.sampled_from([1, 1, 1, 2, 0]))
        return "[" + ",".join(self.input() for _ in range(count)) + "]"

    def input(self) -> str:
        content = self._draw(st.sampled_from([{"data": self.data}, {"parameters": self.size}]))
        more = self.some({"x": self.word, "parameters": self.size}) if self._draw(st.integers(0, 9)) == 0 else {}
        return self.object(
            {"name": self.tensor_name, "datatype": self.datatype, "shape": self.shape, **content, **more}
        )

    def tensor_name(self) -> str:
        return str(self._draw(st.sampled_from(['"IN"'] * 9 + ['"IN:0"', '"OUT"', "5", r'"\u0049N"'])))

    def datatype(self) -> str:
        return str(self._draw(st.sampled_from(['"UINT8"'] * 9 + ['"FP32"', '"uint8"', "null", '"UINT:8"'])))

    def shape(self) -> str:
        return str(self._draw(st.sampled_from(["[1,3]"] * 9 + ["[3,1]", "[1,3.0]", "[0,3]", "[]", "[1,-3]", "3"])))

    def data(self) -> str:
        return str(self._draw(st.sampled_from(["[1,2,3]"] * 9 + ["[]", "[1,2]", '["a:"]', '{"a":1}', "null"])))

    def size(self) -> str:
        if self._draw(st.integers(0, 9)):
            return '{"binary_data_size":3}'
        more = self.some({"shared_memory_region": self.word, "x": self.word})
        return self.object({"binary_data_size": self.number, **more})

    def outputs(self) -> str:
        items = [self.output() for _ in range(self._draw(st.integers(0, 2)))]
        return "[" + ",".join(items) + "]"

    def output(self) -> str:
        members: dict[str, Any] = {"name": lambda: self._draw(st.sampled_from(['"OUT"'] * 5 + ['"OUT:0"', "null"]))}
        inner = self.some({"binary_data": self.flag, "classification": self.number, "shared_memory_region": self.word})
        if self._draw(st.booleans()):
            members["parameters"] = lambda: self.object(inner)
        return self.object(members)


@st.composite
def documents(draw: Any) -> str:
    return Pieces(draw).document()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=300)
@given(documents(), st.sampled_from([b"", b"abc", b"abcdef", b"ab"]))
def test_any_document(memory: Memory, text: str, tail: bytes) -> None:
    same(echo_of("UINT8"), text.encode("utf-8", "surrogatepass"), memory, tail)


@pytest.mark.parametrize(
    "text",
    [
        # Names spelled another way, and what only looks like a name
        rb'{"inputs":[{"name":"IN","shape":[1,1],"datatype":"FP32","d\u0061ta":[7],"x\"data":[1]}]}',
        rb'{"inputs":[{"name":"IN","shape":[1,1],"datatype":"FP32","data" :[7]}],"x\"data":[1]}',
        b'{"data":[1],"inputs":[{"name":"IN","shape":[1,1],"datatype":"FP32","data"\n:[7]}]}',
        # Of equal names the first counts, wherever colons are lost and found
        b'{"inputs":[{"name":"IN","shape":[1,1],"datatype":"FP32","data":[7],"data":[1]}]}',
        rb'{"id":"a","id":"\u003a","inputs":[{"name":"IN","shape":[1,1],"datatype":"FP32","data":[7]}]}',
        rb'{"id":"\u003a","id":"a","inputs":[{"name":"IN","shape":[1,1],"datatype":"FP32","data":[7]}]}',
        b'{"id":"a:","id":"b","inputs":[{"name":"IN","shape":[1,1],"datatype":"FP32","data":[7]}]}',
        b'{"id":"b","id":"a:","inputs":[{"name":"IN","shape":[1,1],"datatype":"FP32","data":[7]}]}',
        b'{"parameters":{"a":1,"a":"::"},"inputs":[{"name":"IN","shape":[1,1],"datatype":"FP32","data":[7]}]}',
        rb'{"inputs":[{"name":"IN","shape":[1,1],"datatype":"FP32","d\u0061ta":[7]}],'
        rb'"inputs":[{"name":"IN","shape":[1,1],"datatype":"FP32","data":[1]}]}',
        # What reads as data does, before it
        b'{"id":"[7]","inputs":[{"name":"IN","shape":[1,1],"datatype":"FP32","data":[7]}]}',
        b'{"id":"[7:]","id":"[7]","inputs":[{"name":"IN","shape":[1,1],"datatype":"FP32","data":[7]}]}',
        b'{"id":"[%b","inputs":[{"name":"IN","shape":[1,30],"datatype":"FP32","data":[%b]}]}'
        % (b"7," * 29, b",".join([b"7"] * 30)),
        # What rapidjson alone accepts
        b'{"inputs":[{"name":"IN","shape":[1,1],"datatype":"FP32","data":[7]}]}\0"data":[1]',
        b'\xef\xbb\xbf{"inputs":[{"name":"IN","shape":[1,1],"datatype":"FP32","data":[7]}]}',
        b'{"id":"\xff","inputs":[{"name":"IN","shape":[1,1],"datatype":"FP32","data":[7]}],"x":[1]}',
        b'{"id":"\xff","inputs":[{"name":"IN","shape":[1,1],"datatype":"FP32","data":[7]}]}',
        # Integers that are none to upstream
        b'{"parameters":{"a":1%b},"inputs":[{"name":"IN","shape":[1,1],"datatype":"FP32","data":[7]}]}' % (b"0" * 400),
        b'{"parameters":{"a":9223372036854775808},"inputs":[{"name":"IN","shape":[1,1],"datatype":"FP32","data":[7]}]}',
        b'{"parameters":{"sequence_id":18446744073709551615},"inputs":[]}',
        # No numbers counted
        b'{"inputs":[{"name":"IN","shape":[1,0],"datatype":"FP32","data":[7]}],"x":[1]}',
        b'{"inputs":[{"name":"IN","shape":[1,0],"datatype":"FP32","data":[7]}]}',
        b'{"inputs":[{"name":"IN","shape":[],"datatype":"FP32","data":5}]}',
        # Much of it
        b'{"inputs":[{"name":"IN","shape":[1,9999999],"datatype":"FP32","data":[7]}]}',
        b'{"inputs":[{"name":"IN","shape":[4611686018427387904%b],"datatype":"FP32","data":[7]}]}' % (b",2" * 99),
        b'{"inputs":[{"name":"IN","shape":[8,1],"datatype":"BYTES","data":["%b"]}]}' % b'","'.join([b"x" * 2045] * 8),
    ],
)  # fmt: skip
def test_odd_documents(memory: Memory, text: bytes) -> None:
    for kind in ("FP32", "BYTES"):
        same(echo_of(kind), text, memory)


TWO = signature(
    "m", io("input", "A", "STRING", "-1") + io("input", "B", "STRING", "-1") + io("output", "OUT", "STRING", "-1")
)
# What looks like the end of a list, like a key, or like a whole input
TRICKY = [
    '"]',
    '"]]',
    "]",
    '"data":',
    '"data":["',
    '"data": [1]',
    '"]},{"name":"B","data":["',
    ":",
    "\\",
    '\\"',
    "[",
    "é🚀",
]


def two(first: str, second: str, *more: str) -> bytes:
    """A request with two lists of strings, whose members are in another order in each input."""
    inputs = (
        f'{{"data":{first},"name":"A","datatype":"BYTES","shape":[13]}}',
        f'{{"shape":[13],"name":"B","datatype":"BYTES","data": {second}}}',
    )
    return f'{{"inputs":[{",".join([*inputs, *more])}],"id":"a]:"}}'.encode()


def strings(padding: int = 1500, escaped: bool = True) -> str:
    return json.dumps([*TRICKY, "x" * padding], ensure_ascii=escaped)


@pytest.mark.parametrize("model", [TWO, echo_of("BYTES")])
def test_long_lists_that_are_hard_to_tell_apart(memory: Memory, model: Signature) -> None:
    good = strings()
    texts = [
        two(good, good, '{"name":"C","datatype":"BYTES","shape":[1],"data":["a"]}'),
        two(good, good).replace(b'"id":"', b'"id":"]'),
        two(good, good).replace(b'"data": ', b'"data" :'),
        two(good, good).replace(b'"data":', b'"d\\u0061ta":'),
        two(good, good).replace(b'"data":[', b'"data":["a"],"data":['),
        two(good, good).replace(b'"data":[', b'"data":["a"],"data" :['),
        two(good, good).replace(b'"name":"A"', b'"name":"A","name":"A"'),
        two(good, good).replace(b'"id"', b'"parameters":{"data":["a"]},"id"'),
        two(good, good).replace(b'"id"', b'"parameters":{"data":"]"},"id"'),
        two(good, good).replace(b'"id"', b'"x\\"data":["a"],"id"'),
    ]
    numbers = "[" + "1," * 999 + "2]"
    texts += [two(numbers, numbers).replace(b'"data": ', b'"data" :'), two(numbers, numbers)]
    bad = [good[:-1], good + "]", f"[{good}]", f"[[{good}]", good.replace(",", ",,", 1), good + ',"a"', "[" + good[:-1]]
    bad += [
        good.replace('":"', "5"),
        good.replace('":"', "[]"),
        good.replace('":"', r'"\ud800"'),
        f'"{"x" * 999}"',
        "[]",
    ]
    for data in (*bad, numbers, "[[1],[" + "1," * 999 + "2]]"):
        texts += [two(data, good), two(good, data), text_of("BYTES", data), text_of("FP32", data, "[1000]")]
    for text in texts:
        same(model, text, memory)


def names() -> bytes:
    items = [f'{{"name":"{name}","datatype":"FP32","shape":[1],"data":[1]}}' for name in ("a:0", "b")]
    return f'{{"id":"urn:x:1","inputs":[{",".join(items)}],"outputs":[{{"name":"o:0"}}]}}'.encode()


# Without `decode_json` only what is read as a typed document is read at all.
@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(infer, "decode_json")


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(("kind", "letter"), [*zip(NUMBER_TYPES, "BHIQbhiqfd", strict=True)])
def test_numbers_are_usual(memory: Memory, kind: str, letter: str) -> None:
    for data in ("[4,5,6]", "[ 4, 5, 6 ]", "[[4,5,6]]", "[[[4],[5]],[[6]]]"):
        inputs, *_ = outcome(echo_of(kind), text_of(kind, data, front='"id":"b",'), b"", memory)
        assert inputs[0][2:] == ((1, 3), struct.pack("<3" + letter, 4, 5, 6))


@pytest.mark.usefixtures("alone")
def test_texts_and_booleans_are_usual(memory: Memory) -> None:
    inputs, *_ = outcome(echo_of("BYTES"), text_of("BYTES", r'["a: b","\n\"x\":","\u00e9"]'), b"", memory)
    assert inputs[0][3] == b'\4\0\0\0a: b\5\0\0\0\n"x":\2\0\0\0\xc3\xa9'
    inputs, *_ = outcome(echo_of("BOOL"), text_of("BOOL", "[true, false, true]"), b"", memory)
    assert inputs[0][3] == b"\1\0\1"


@pytest.mark.usefixtures("alone")
def test_colons_in_names_and_ids_are_usual(memory: Memory) -> None:
    model = signature(
        "m", io("input", "a:0", "FP32", "1") + io("input", "b", "FP32", "1") + io("output", "o:0", "FP32", "1")
    )
    assert outcome(model, names(), b"", memory)[1][0] == "urn:x:1"


@pytest.mark.usefixtures("alone")
def test_long_texts_with_colons_are_usual(memory: Memory) -> None:
    texts = [f'"{number}": {"{:}" * 10}' for number in range(100)]
    # The second input's data begins as the first one's, and as the id
    fields = '{{"name":"{}","datatype":"BYTES","shape":[100],"data":{}}}'
    items = [fields.format("A", json.dumps(texts)), fields.format("B", json.dumps([*texts[:-1], "0"]))]
    text = f'{{"id":{json.dumps(json.dumps(texts[:3])[:-1])},"inputs":[{",".join(items)}]}}'
    model = signature("m", io("input", "A", "STRING", "100") + io("input", "B", "STRING", "100"))
    inputs, (id, *_), *_ = outcome(model, text.encode(), b"", memory)
    assert id == json.loads(text)["id"]
    assert [made[3][-2:] for made in inputs] == [b":}", b"\x000"]


@pytest.mark.usefixtures("alone")
def test_large_numbers_of_elements_are_usual(memory: Memory) -> None:
    ones = json.dumps([1.5] * 300)
    inputs, *_ = outcome(echo_of("FP64"), text_of("FP64", ones, "[1,300]"), b"", memory)
    assert inputs[0][3] == struct.pack("<300d", *[1.5] * 300)


def test_no_memory_for_the_second_input(memory: Memory) -> None:
    fields = '"name":"{}","shape":[1,2000],"datatype":"FP64","data":' + json.dumps([1] * 2000)
    text = b'{"inputs":[{%b},{%b}]}' % (fields.format("A").encode(), fields.format("B").encode())
    model = signature("m", io("input", "A", "FP64", "-1") + io("input", "B", "FP64", "-1") + "max_batch_size: 8")
    stored: list[Any] = []

    def store(data: bytes | memoryview) -> Any:
        if stored:
            raise MemoryError
        stored.append(memory.store(data))
        return stored[0]

    with pytest.raises(MemoryError):
        decoded(text, None, model, store)
    assert len(stored) == 1


def test_what_was_placed_before_an_odd_input_is_let_go_of(memory: Memory) -> None:
    fields = '"name":"{}","shape":[1,2000],"datatype":"FP64","data":' + json.dumps([1] * 2000)
    odd = fields.replace("[1, 1,", "[null, 1,")
    text = b'{"inputs":[{%b},{%b}]}' % (fields.format("A").encode(), odd.format("B").encode())
    model = signature("m", io("input", "A", "FP64", "-1") + io("input", "B", "FP64", "-1") + "max_batch_size: 8")
    assert "Unable to parse 'data'" in same(model, text, memory)[1]


@pytest.mark.usefixtures("alone")
def test_long_lists_are_usual(memory: Memory) -> None:
    values = [*TRICKY, "x" * 1500]
    expected = wire_strings.join([value.encode() for value in values])
    for escaped in (False, True):
        data = strings(escaped=escaped)
        inputs, *_ = outcome(echo_of("BYTES"), text_of("BYTES", data, "[1,13]", back=',"id":"a:"'), b"", memory)
        assert inputs[0][3] == expected
        inputs, *_ = outcome(TWO, two(data, strings(2000, escaped)), b"", memory)
        assert [one[3] for one in inputs] == [expected, wire_strings.join([*map(str.encode, TRICKY), b"x" * 2000])]
    numbers = list(range(300))
    nested: list[Any] = [numbers, [numbers[:150], numbers[150:]], [[[number]] for number in numbers]]
    for data in [json.dumps(each, indent=indent) for each in nested for indent in (None, 1)]:
        inputs, *_ = outcome(echo_of("FP32"), text_of("FP32", data, "[1,300]"), b"", memory)
        assert inputs[0][3] == struct.pack("<300f", *numbers)
