"""Bad purchases: for each, the status and what differs from a valid request."""

import json
from typing import Any

from tests.shop.web.test_bad_input import JSON
from tests.shop.web.wsgi_browser import FORM

BIG = "x" * 2_700_000
QUANTITIES = [
    *("0", "-1", "1.5", "", " ", " 1", "1 ", "+1", "01", "\0", "1\0", "9" * 20),
    *("1_0", "٣", "1.0", "1e0", "0x1", "one", "true", "NaN", "9" * 5000, "１"),
]
KEYS = ["", " ", "x" * 256, "a\0", "a\nb", "a\x7f", "a\x85b", "\u202e", None, 7, ["k"], "\ud800"]

# Status, and what differs from a valid request: names of WSGI in capitals, the whole body, or
# fields of the form (None: missing).
CASES: dict[str, tuple[int, dict[str, Any]]] = {
    **{
        method: (405, {"REQUEST_METHOD": method})
        for method in ("GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW", "")
    },
    "foreign origin": (403, {"HTTP_ORIGIN": "https://evil.example"}),
    "no CSRF token": (403, {"purchase_token": None, "HTTP_X_CSRFTOKEN": ""}),
    "malformed CSRF token": (403, {"purchase_token": None, "HTTP_X_CSRFTOKEN": "x"}),
    "foreign CSRF token": (403, {"purchase_token": None, "HTTP_X_CSRFTOKEN": "a" * 32}),
    "unknown sale": (404, {"PATH_INFO": "/sales/none/buy/"}),
    "foreign host": (400, {"HTTP_HOST": "evil.example"}),
    "malformed host": (400, {"HTTP_HOST": "a b\xff"}),
    "no host": (400, {"HTTP_HOST": ""}),
    "anonymous": (302, {"HTTP_COOKIE": ""}),
    "malformed cookie": (302, {"HTTP_COOKIE": 'sessionid=\xff"; =;\x85'}),
    "malformed headers": (
        400,
        {
            "HTTP_ACCEPT_LANGUAGE": "\xff;q=x, *;q=" + "9" * 99,
            "HTTP_X_FORWARDED_FOR": "\xff, ::1%",
            "QUERY_STRING": "%00=%ff&" + "a" * 3000,
            "quantity": None,
        },
    ),
    "text with a charset that is none": (415, {"CONTENT_TYPE": f"{FORM}; charset=\xff"}),
    "unknown session": (302, {"HTTP_COOKIE": f"sessionid={'x' * 32}"}),
    "text": (415, {"CONTENT_TYPE": "text/plain"}),
    "no type": (415, {"CONTENT_TYPE": ""}),
    "no length": (400, {"CONTENT_LENGTH": ""}),
    "a false length": (400, {"CONTENT_LENGTH": "10"}),
    "a length of 20 digits": (400, {"CONTENT_LENGTH": "1" * 20}),
    "in the URL": (400, {"body": b"", "QUERY_STRING": "quantity=1&idempotency_key=k"}),
    "too large": (400, {"x": BIG}),
    "too many fields": (400, {"x": ["1"] * 1001}),
    "UTF-16 by declaration": (415, {"CONTENT_TYPE": f"{FORM}; charset=utf-16"}),
    "quantity not UTF-8": (400, {"quantity": b"\xff"}),
    "key not UTF-8": (400, {"idempotency_key": b"\xff"}),
    "multipart": (400, {"CONTENT_TYPE": "multipart/form-data; boundary=x", "body": b"--x\r\nC"}),
    "no quantity": (400, {"quantity": None}),
    "quantity twice": (400, {"quantity": [1, 1]}),
    "no key": (400, {"idempotency_key": None}),
    "key twice": (400, {"idempotency_key": ["k", "k"]}),
    "two keys": (400, {"HTTP_IDEMPOTENCY_KEY": "l"}),
    "long key in the header": (400, {"idempotency_key": None, "HTTP_IDEMPOTENCY_KEY": "k" * 256}),
    **{f"quantity {ascii(sent)[:12]}": (400, {"quantity": sent}) for sent in QUANTITIES},
    **{
        f"key {ascii(key)[:12]}": (400, {"idempotency_key": key})
        for key in KEYS
        if isinstance(key, str) and key != "\ud800"
    },
}
JSON_QUANTITIES = ["0", "-1", "1.5", "1.0", "1e0", "NaN", "null", "true", "[1]", '"1"', "9" * 5000]
BODIES = {
    "broken": b'{"quantity": 1',
    "blank": b" ",
    "not UTF-8": b'{"quantity": 1, "idempotency_key": "\xff"}',
    "array": b"[1]",
    "nested": b"[" * 100_000 + b"]" * 100_000,
    "too large": b'{"x": "%s"}' % BIG.encode(),
    "name twice": b'{"quantity": 1, "quantity": 1, "idempotency_key": "k"}',
    "no quantity": b'{"idempotency_key": "k"}',
    "no key": b'{"quantity": 1}',
    **{
        f"quantity {sent[:12]}": f'{{"quantity": {sent}, "idempotency_key": "k"}}'.encode()
        for sent in JSON_QUANTITIES
    },
    **{
        f"key {ascii(key)[:12]}": json.dumps({"quantity": 1, "idempotency_key": key}).encode()
        for key in KEYS
    },
}
CASES |= {
    f"JSON: {name}": (400, {"CONTENT_TYPE": JSON, "body": body}) for name, body in BODIES.items()
}
