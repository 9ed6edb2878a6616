"""Who is let in to `fourfold explore`: whoever has the printed address, and no other user, page, or name of this machine."""

import asyncio
import os
import queue
import re
import resource
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import uvicorn

from fourfold.explore import connections, guard
from fourfold.explore.connections import BoundedProtocol, most_connections
from fourfold.explore.entrance import listening_socket, own_address
from fourfold.explore.server import Settings
from tests.support.explore_server import needs_page, printed_by
from tests.support.waiting import until

ASKED = {"run": "preset:llama3-70b"}


def test_without_the_token_nothing_is_answered() -> None:
    needs_page()
    with printed_by() as printed:
        place = urlsplit(printed)
        base = f"http://{place.netloc}"
        stranger = httpx.Client(base_url=base, timeout=None)
        for path in (
            "/",
            "/?token=",
            "/?token=x",
            "/mark.svg",
            "/index.html",
            f"/mark.svg?{place.query}",
            "/?token=%ff",
        ):
            assert stranger.get(path).status_code == 401, path
        for path in ("/api/simulate", "/api/run", f"/api/run?{place.query}"):
            assert stranger.post(path, json=ASKED).status_code == 401, path
        assert not stranger.cookies
        entered = stranger.get(f"/?{place.query}")
        assert (entered.status_code, entered.headers["location"]) == (303, "/")
        name, _, rest = entered.headers["set-cookie"].partition("=")
        assert name == f"fourfold_token_{place.port}"
        assert {"HttpOnly", "SameSite=strict"} <= {each.strip() for each in rest.split(";")}
        assert stranger.get("/").status_code == 200
        assert stranger.post("/api/texts", json=ASKED).status_code == 200
        token = place.query.removeprefix("token=")
        assert len(token) >= 32
        for wrong in ("", "x" * len(token), token[:-1], "\xff"):
            asked = httpx.post(
                f"{base}/api/texts", json=ASKED, headers={"Cookie": f"{name}={wrong}".encode("latin-1")}, timeout=None
            )
            assert asked.status_code == 401, wrong
        other = httpx.post(
            f"{base}/api/texts", json=ASKED, headers={"Cookie": f"fourfold_token_1={token}"}, timeout=None
        )
        assert other.status_code == 401, "the cookie of another port"


def test_two_servers_have_two_tokens() -> None:
    assert Settings().token != Settings().token
    assert Settings().token != Settings().ticket


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.2"])
def test_another_machine_enters_by_whatever_name_it_knows(host: str) -> None:
    """With the token; a page of another origin, which a name server leads here, has none."""
    needs_page()
    with printed_by("--host", host) as printed:
        place = urlsplit(printed)
        base = f"http://127.0.0.{1 if host == '0.0.0.0' else 2}:{place.port}"
        for name in ("127.0.0.1", "192.0.2.7", "training-machine", "a.b.example"):
            headers = {"Host": f"{name}:{place.port}"}
            with httpx.Client(base_url=base, headers=headers, timeout=None) as client:
                assert client.get("/").status_code == 401
                cookie = client.get(f"/?{place.query}").headers["set-cookie"].partition(";")[0]
                headers = {"Cookie": cookie}
                assert client.get("/", headers=headers).status_code == 200
                ours, theirs = f"http://{name}:{place.port}", f"http://evil.example:{place.port}"
                for origin, status in ((ours, 200), (theirs, 403), ("null", 403)):
                    asked = client.post("/api/texts", json=ASKED, headers={**headers, "Origin": origin})
                    assert asked.status_code == status


def test_the_address_for_other_machines_is_printed() -> None:
    needs_page()
    command = [sys.executable, "-m", "fourfold", "explore", "--host", "0.0.0.0", "--port", "0", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        here, there = process.stdout.readline(), process.stdout.readline()
        process.terminate()
    (mine, port, token), (theirs, *same) = (
        re.findall(r"http://(.+):(\d+)/\?token=(\S+)", line)[0] for line in (here, there)
    )
    assert [port, token] == same
    assert (mine, theirs) == ("127.0.0.1", own_address("0.0.0.0"))


def test_the_browser_is_opened_with_a_ticket_that_works_once(tmp_path: Path) -> None:
    """Other users see its command line."""
    needs_page()
    browser, opened = tmp_path / "browser", tmp_path / "opened"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {opened}.part && mv {opened}.part {opened}\n')
    browser.chmod(browser.stat().st_mode | stat.S_IXUSR)
    command = [sys.executable, "-m", "fourfold", "explore", "--port", "0"]
    env = {**os.environ, "BROWSER": f"{browser} %s"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env, cwd=tmp_path) as process:
        try:
            assert process.stdout is not None
            printed = re.findall(r"http://\S+", process.stdout.readline())[0]
            until(opened.exists, process)
            ticket = opened.read_text()
            assert ticket.partition("=")[0] == printed.partition("=")[0]
            assert ticket != printed
            first = httpx.get(ticket, timeout=None)
            assert (first.status_code, httpx.get(ticket, timeout=None).status_code) == (303, 401)
            again = httpx.get(ticket, cookies=first.cookies, timeout=None)
            assert again.status_code == 303, "the browser that was let in may ask twice"
            assert httpx.get(printed, timeout=None).status_code == 303
        finally:
            process.terminate()


@contextmanager
def served(app: Any) -> Iterator[int]:
    """An application behind the server's connections, in a thread; its port."""
    listener = listening_socket("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, http=BoundedProtocol, ws="none", lifespan="off", log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = server.force_exit = True
        thread.join()


begun = queue.Queue[str]()
"""Requests that are never answered, as they begin."""


async def answers(scope: Any, receive: Callable, send: Callable) -> None:
    """Says its path; at `/slow` never."""
    if scope["path"] == "/slow":
        begun.put(scope["path"])
        await asyncio.Event().wait()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


def ask(connection: socket.socket, path: str) -> None:
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: here\r\n\r\n".encode())


def is_answered(connection: socket.socket) -> bool:
    told = b""
    while not told.endswith(b"ok") and (piece := connection.recv(1000)):
        told += piece
    return b" 200 " in told


def ended(connection: socket.socket) -> bool:
    """Waits for the other side to close."""
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=60)


def test_connections_that_say_nothing_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoundedProtocol, "most_of_client", 4)
    with served(answers) as port:
        busy, silent = connect(port), []
        ask(busy, "/slow")
        assert begun.get(timeout=60) == "/slow"
        for _ in range(6):
            silent.append(connect(port))
            ask(silent[-1], "/")
            assert is_answered(silent[-1]), "the newest is answered, whoever waits"
        assert [ended(each) for each in silent[:3]] == [True] * 3, "the oldest made room"
        for each in silent[3:]:
            ask(each, "/")
            assert is_answered(each), "and no other"
        busy.setblocking(False)
        with pytest.raises(BlockingIOError):  # what is being answered was not closed
            busy.recv(1)
        for each in (busy, *silent):
            each.close()


def test_a_client_whose_connections_are_all_answered_has_no_further_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoundedProtocol, "most_of_client", 2)
    with served(answers) as port:
        busy = []
        for _ in range(2):
            busy.append(connect(port))
            ask(busy[-1], "/slow")
            assert begun.get(timeout=60) == "/slow"
        with connect(port) as further:
            assert ended(further)
        for each in busy:
            each.close()


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: a\r\nX: "])
def test_headers_that_do_not_come_end_the_connection(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1 <= connections.HEADER_SECONDS <= 30
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.2)
    with served(answers) as port, connect(port) as slow:
        slow.sendall(sent)
        assert ended(slow)
    with served(answers) as port, connect(port) as second:  # a further request of a connection too
        ask(second, "/")
        assert is_answered(second)
        second.sendall(b"GET / HT")
        assert ended(second)


def test_a_body_that_does_not_come_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def reads(scope: Any, receive: Callable, send: Callable) -> None:
        while (await receive()).get("more_body"):
            pass

    assert 1 <= guard.BODY_SECONDS <= 60
    monkeypatch.setattr(guard, "BODY_SECONDS", 0.2)
    guarded = guard.Guard(reads, None, "token", "", 80)
    with served(guarded) as port, connect(port) as slow:
        slow.sendall(
            b"POST /api/run HTTP/1.1\r\nHost: here\r\nCookie: fourfold_token_80=token\r\nContent-Type: application/json\r\n"
            b"Content-Length: 100\r\n\r\n{"
        )
        assert b" 408 " in slow.recv(10_000)


def test_connections_are_a_part_of_what_may_be_open(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, most in ((64, 32), (1024, 512), (1 << 20, 512), (resource.RLIM_INFINITY, 512)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, limit=limit: (limit, limit))
        assert most_connections() == most
