"""The HTTP client of the load, against a scripted server."""

import socket
import threading

import pytest

from devservers import HOST
from loadtest.load.http.client import send_requests


def serve(listener, script):
    """Send the scripted answers of each connection, one for each request."""
    for parts in script:
        connection, _ = listener.accept()
        with connection:
            for part in parts:
                connection.recv(65536)
                connection.sendall(part[:20])
                connection.sendall(part[20:])


@pytest.fixture
def replies():
    """Return a function that drives a scripted server, one connection after the other."""

    def run(*script, seconds=60.0):
        with socket.create_server((HOST, 0)) as listener:
            server = threading.Thread(target=serve, args=(listener, script))
            server.start()
            try:
                count = sum(map(len, script))
                port = listener.getsockname()[1]
                return send_requests(port, [b"x"] * count, connections=1, seconds=seconds)
            finally:
                server.join()

    return run


def http(status, body=b"", head=b""):
    return b"HTTP/1.1 %d Any\r\n%sContent-Length: %d\r\n\r\n%s" % (status, head, len(body), body)


def test_kind_of_each_answer(replies):
    refusal = b'{"error": "sold_out", "title": "Sold out"}'
    compressed = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
    heard = replies([http(201, b"{}"), http(303), http(409, refusal), compressed, http(500, b"oh")])
    assert [answer.kind for answer in heard.replies] == ["ok", "ok", "sold_out", "ok", "500"]
    assert heard.began <= heard.replies[0].sent <= heard.replies[0].received
    assert heard.ended == heard.replies[-1].received


def test_closed_connection_is_opened_again_until_the_time_is_over(replies):
    last = http(200, head=b"Connection: close\r\n")
    assert len(replies([last], [http(200)]).replies) == 2
    assert len(replies([http(200)], seconds=0).replies) == 1


@pytest.mark.parametrize("answer", [http(200)[:30], b"HTTP/1.1 200 OK\r\n\r\n"])
def test_incomplete_answer_is_an_error(replies, answer):
    with pytest.raises(ConnectionError):
        replies([answer])
