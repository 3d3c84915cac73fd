"""HTTP/2 below gRPC: frames that no client library sends, each followed by a call that shows what is left."""

from ..http2 import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HAS_PRIORITY,
    HEADERS,
    LIVE,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    head,
    message,
    number,
    settings,
)
from ..request import Case, Frames, case

_INITIAL_WINDOW_SIZE, _MAX_FRAME_SIZE, _ENABLE_PUSH = 4, 5, 2
_CANCEL = 8
_BEGIN = PREFACE + settings()
_BLOCK = head(1)[9:]
_CALL = head(1) + message(1)
# A call that takes more than one message, and so stays open.
_STREAM = head(1, "/inference.GRPCInferenceService/ModelStreamInfer")


def _case(name: str, *sent: bytes, ends: int = 0) -> Case:
    """``sent`` on a connection that has begun well; by it so many streams end."""
    return case(f"http2/{name}", Frames(_BEGIN + b"".join(sent), ends=ends, timeout=3.0))


CASES: tuple[Case, ...] = (
    case("http2/preface_http1", Frames(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", False, timeout=3.0)),
    case("http2/preface_garbage", Frames(bytes(64), False, timeout=3.0)),
    case("http2/preface_without_settings", Frames(PREFACE)),
    _case("call", _CALL, ends=1),
    # Frames
    _case("unknown_type", frame(0xBB, 0xFF, 0, b"whatever"), frame(0xBB, 0, 7, b"")),
    _case("unknown_flags", frame(PING, 0xFE, 0, bytes(8))),
    _case("reserved_bit", frame(PING, 0, 0x8000_0000, bytes(8))),
    _case("frame_of_16_mib", head(1), b"\xff\xff\xff" + frame(DATA, 0, 1)[3:] + bytes(1000)),
    _case("priority", frame(PRIORITY, 0, 1, b"\0\0\0\0\x10"), _CALL, ends=1),
    _case("priority_short", frame(PRIORITY, 0, 1, b"\0\0")),
    _case("push_promise", frame(PUSH_PROMISE, END_HEADERS, 1, bytes(4) + _BLOCK)),
    _case("goaway", frame(GOAWAY, 0, 0, bytes(8)), _CALL, ends=1),
    # Settings
    _case("settings_unknown", settings((0xABCD, 7))),
    _case("settings_length", frame(SETTINGS, 0, 0, bytes(5))),
    _case("settings_ack_with_payload", frame(SETTINGS, ACK, 0, bytes(6))),
    _case("settings_on_stream", frame(SETTINGS, 0, 1, b"")),
    _case("settings_push_2", settings((_ENABLE_PUSH, 2))),
    _case("settings_window_too_large", settings((_INITIAL_WINDOW_SIZE, 2**31))),
    _case("settings_frame_too_small", settings((_MAX_FRAME_SIZE, 16_383))),
    _case("settings_frame_too_large", settings((_MAX_FRAME_SIZE, 1 << 24))),
    # Pings
    _case("ping_length", frame(PING, 0, 0, bytes(7))),
    _case("ping_on_stream", frame(PING, 0, 1, bytes(8))),
    _case("ping_flood", *[frame(PING, 0, 0, bytes(8))] * 20),
    # Header blocks
    _case(
        "headers_in_pieces",
        frame(HEADERS, 0, 1, _BLOCK[:5]),
        frame(CONTINUATION, 0, 1),
        frame(CONTINUATION, END_HEADERS, 1, _BLOCK[5:]),
        message(1),
        ends=1,
    ),
    _case("headers_padded", frame(HEADERS, END_HEADERS | PADDED, 1, b"\x05" + _BLOCK + bytes(5)), message(1), ends=1),
    _case(
        "headers_with_priority",
        frame(HEADERS, END_HEADERS | HAS_PRIORITY, 1, b"\0\0\0\0\x10" + _BLOCK),
        message(1),
        ends=1,
    ),
    _case("headers_padding_too_long", frame(HEADERS, END_HEADERS | PADDED, 1, b"\xff" + _BLOCK)),
    _case("headers_not_ended", frame(HEADERS, 0, 1, _BLOCK), frame(PING, 0, 0, bytes(8))),
    _case(
        "headers_without_end",
        frame(HEADERS, 0, 1, _BLOCK),
        *[frame(CONTINUATION, 0, 1, b"\x00\x01a\x7f\xff\x3e" + b"b" * 16_000)] * 20,
    ),
    _case("headers_stream_0", frame(HEADERS, END_HEADERS, 0, _BLOCK)),
    _case("headers_even_stream", frame(HEADERS, END_HEADERS, 2, _BLOCK)),
    _case("headers_lower_stream", head(5), message(5), head(3), message(3), ends=1),
    _case("headers_no_hpack", frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff")),
    _case("headers_index_unknown", frame(HEADERS, END_HEADERS, 1, b"\xfe")),
    _case("headers_empty", frame(HEADERS, END_HEADERS | END_STREAM, 1), ends=1),
    _case(
        "trailers_of_a_client",
        head(1),
        message(1, flags=0),
        frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x00\x01a\x01b"),
        ends=1,
    ),
    _case("continuation_of_nothing", frame(CONTINUATION, END_HEADERS, 1, _BLOCK)),
    _case("continuation_of_another", frame(HEADERS, 0, 1, _BLOCK), frame(CONTINUATION, END_HEADERS, 3, b"")),
    # What is asked for
    _case("method_get", head(1, **{":method": "GET"}), message(1), ends=1),
    _case("content_type_json", head(1, content_type="application/json"), message(1), ends=1),
    _case("content_type_proto", head(1, content_type="application/grpc+proto"), message(1), ends=1),
    _case("path_unknown", head(1, "/nothing"), message(1), ends=1),
    _case("timeout_malformed", head(1, grpc_timeout="soon"), message(1), ends=1),
    _case("encoding_unknown", head(1, grpc_encoding="snappy"), frame(DATA, END_STREAM, 1, b"\x01\0\0\0\0"), ends=1),
    _case("compressed_without_encoding", head(1), frame(DATA, END_STREAM, 1, b"\x01\0\0\0\0"), ends=1),
    # Data
    _case("data_in_pieces", head(1), *[frame(DATA, 0, 1, b"\0")] * 5, frame(DATA, END_STREAM, 1), ends=1),
    _case("data_padded", head(1), frame(DATA, END_STREAM | PADDED, 1, b"\x03" + bytes(5) + bytes(3)), ends=1),
    _case("data_padding_too_long", head(1), frame(DATA, END_STREAM | PADDED, 1, b"\x09" + bytes(5))),
    _case("data_stream_0", frame(DATA, 0, 0, bytes(5))),
    _case("data_idle_stream", frame(DATA, END_STREAM, 1, bytes(5))),
    _case("data_after_the_end", _CALL, message(1), ends=1),
    _case("data_flag", head(1), frame(DATA, END_STREAM, 1, b"\x07\0\0\0\0"), ends=1),
    _case("data_cut", head(1), frame(DATA, END_STREAM, 1, b"\0\0\0\0\x09abc"), ends=1),
    _case("data_none", head(1, flags=END_HEADERS | END_STREAM), ends=1),
    _case("data_two_messages", head(1), message(1, flags=0), message(1), ends=1),
    # Flow control
    _case("window_update_length", frame(WINDOW_UPDATE, 0, 0, bytes(3))),
    _case("window_update_zero", number(WINDOW_UPDATE, 0, 0)),
    _case("window_update_zero_on_stream", _STREAM, number(WINDOW_UPDATE, 1, 0)),
    _case("window_update_idle_stream", number(WINDOW_UPDATE, 7, 10)),
    _case("window_overflow", *[number(WINDOW_UPDATE, 0, 2**31 - 1)] * 2),
    _case("window_overflow_on_stream", _STREAM, *[number(WINDOW_UPDATE, 1, 2**31 - 1)] * 2),
    _case(
        "window_exceeded",
        _STREAM,
        *[frame(DATA, 0, 1, b"\0\0\xff\xff\xff" + bytes(16_000))] + [frame(DATA, 0, 1, bytes(16_384))] * 600,
    ),
    _case(
        "window_of_0",
        settings((_INITIAL_WINDOW_SIZE, 0)),
        _CALL,
        number(WINDOW_UPDATE, 1, 100),
        settings((_INITIAL_WINDOW_SIZE, 65_535)),
        ends=1,
    ),
    # Streams that end early
    _case("rst_length", _STREAM, frame(RST_STREAM, 0, 1, bytes(3))),
    _case("rst_idle_stream", number(RST_STREAM, 1, _CANCEL)),
    _case("rst_stream_0", number(RST_STREAM, 0, _CANCEL)),
    _case("rst_twice", _STREAM, *[number(RST_STREAM, 1, _CANCEL)] * 2),
    _case("rst_100", *[head(id, LIVE) + number(RST_STREAM, id, _CANCEL) for id in range(1, 200, 2)]),
    _case("rst_flood", *[head(id, LIVE) + number(RST_STREAM, id, _CANCEL) for id in range(1, 20_000, 2)]),
)
