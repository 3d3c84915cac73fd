"""Which answers count as the same."""

import gzip
from pathlib import Path
from typing import Any, cast

from .compare import describe_response, differences, same
from .servers import Server
from .wire import Response


def _server(root: str) -> Server:
    return Server("triton", cast(Any, None), 1, 2, Path(root), Path("/log"))


def _describe(body: bytes, *headers: tuple[str, str], root: str = "/here/models") -> dict[str, Any]:
    return describe_response(Response(200, "OK", headers, body), _server(root))


def test_paths_addresses_and_times_do_not_count() -> None:
    one = _describe(b'{"a":"/here/models/m/1/model.py(3) at 0x7f00aa","ns":12,"last_inference":5}')
    other = _describe(b'{"a":"/there/m/1/model.py(3) at 0x55bb00","ns":7,"last_inference":9}', root="/there")
    assert same(one, other)


def test_whether_time_passed_does_count() -> None:
    assert not same(_describe(b'{"ns":0}'), _describe(b'{"ns":1}'))


def test_an_integer_is_not_a_float_and_nan_equals_itself() -> None:
    assert not same(_describe(b"[1]"), _describe(b"[1.0]"))
    assert same(_describe(b"[NaN]"), _describe(b"[NaN]"))
    assert not same(_describe(b"[0.0]"), _describe(b"[-0.0]"))


def test_frames_of_the_helper_library_and_of_the_import_machinery_are_dropped() -> None:
    one = rb'"E\n\nAt:\n  /a/triton_python_backend_utils.py(5): f\n  <frozen importlib._bootstrap>(241): g\n"'
    assert same(_describe(one), _describe(rb'"E\n\nAt:\n"'))
    assert same(_describe(one), _describe(rb'"E\n\nAt:\n  /b/stubserve_stub/api/model_config.py(99): f\n"'))
    assert not same(_describe(one), _describe(rb'"E\n\nAt:\n  /a/other.py(5): f\n"'))


def test_paths_of_the_standard_library_are_named_alike_however_long_the_text() -> None:
    one = _describe(b'"At: /usr/lib/python3.11/x.py(1): f"')
    assert same(one, _describe(b'"At: /home/somebody/lib/python3.11/x.py(1): f"'))
    assert not same(one, _describe(b'"At: /usr/lib/python3.11/y.py(1): f"'))
    # Long enough for a search from each slash not to end within the test's time.
    many = b"/a" * 400_000
    assert _describe(b'"' + many + b'"')["json"] == many.decode()


def test_compressed_bodies_are_compared_unpacked() -> None:
    header = ("Content-Encoding", "gzip")
    assert same(_describe(gzip.compress(b"[1]", 1), header), _describe(gzip.compress(b"[1]", 9), header))
    assert not same(_describe(gzip.compress(b"[1]"), header), _describe(b"[1]", header))


def test_a_binary_part_is_split_off_and_compared_byte_by_byte() -> None:
    length = ("Inference-Header-Content-Length", "2")
    assert _describe(b"{}\x01\x02", length)["binary"] == "0102"
    assert not same(_describe(b"{}\x01\x02", length), _describe(b"{}\x01\x03", length))


def test_header_case_does_not_count_but_values_and_presence_do() -> None:
    assert same(_describe(b"", ("X-A", "1"), ("Date", "now")), _describe(b"", ("x-a", "1"), ("Server", "s")))
    assert not same(_describe(b"", ("X-A", "1")), _describe(b"", ("X-A", "2")))
    assert not same(_describe(b"", ("Content-Length", "0")), _describe(b""))


def test_differences_name_the_place() -> None:
    assert differences({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}], "c": 1}) == [("a[1].b", 2, 3), ("c", None, 1)]
    assert differences([1], [1, 2]) == [("answer", [1], [1, 2])]
