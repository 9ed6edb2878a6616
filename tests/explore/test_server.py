"""The server under hostile input: what is none of ours is refused in a sentence, and the server stays alive."""

import asyncio
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx
import pytest

from fourfold.explore.entrance import listening_socket
from fourfold.explore.pool import Superseded, WorkerPool
from tests.support.explore_server import client_of, cookies_of, needs_page, running

SMALL = {
    "overrides": {"model.preset": "smollm2-135m", "batch.global_sequences": 16, "batch.sequence_length": 512},
    "cluster": "dgx-h100:8",
}
HEAVY = {"run": "preset:megatron-1t", "overrides": {}}


Found = TypeVar("Found")


@pytest.fixture
def client(address: str) -> httpx.Client:
    return client_of(address)


def in_own_loop(scenario: Coroutine[Any, Any, Found]) -> Found:
    """Runs a coroutine in a thread: the browser's driver may have a loop in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, scenario).result()


def is_alive(client: httpx.Client) -> bool:
    return client.post("/api/simulate", json=SMALL).json()["fits"]


def test_the_answer_names_its_policy(client: httpx.Client) -> None:
    for path in ("/", "/mark.svg", "/api/nothing"):
        headers = client.get(path).headers
        assert "script-src 'self'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
    assert "http" not in client.get("/").text.replace("http-equiv", "")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Host": "127.0.0.1"}, 421),
        ({"Host": "127.0.0.1.evil.example:4404"}, 421),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
    ],
)
def test_another_page_is_not_answered(client: httpx.Client, headers: dict[str, str], status: int) -> None:
    answer = client.post(
        "/api/simulate", content=json.dumps(SMALL), headers={"Content-Type": "application/json"} | headers
    )
    assert (answer.status_code, "error" in answer.json()) == (status, True)


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 200),  # an empty request is a run that states nothing: refused with what is missing
        (b"{", 422),
        (b"[]", 422),
        (b"\xff\xfe", 422),
        (b"[" * 100_000, 422),
        (b'{"overrides": {"layout.tp": 1e999}}', 422),
        (b'{"overrides": {"layout.tp": NaN}}', 422),
        (b'{"run": 5}', 422),
        (b'{"run": "preset:../../etc/passwd"}', 200),
        (b'{"overrides": {"model.num_layers": 100000000000000000000000000}}', 200),
        (b'{"overrides": {"batch.global_sequences": "x"}}', 200),
        (b" " * 2_000_000, 413),
        (b'{"a": "' + b"x" * 2_000_000 + b'"}', 413),
    ],
)
def test_a_malformed_request_is_refused_in_a_sentence(client: httpx.Client, content: bytes, status: int) -> None:
    answer = client.post("/api/simulate", content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == status
    message = answer.json()["refused" if status == 200 else "error"]
    assert 0 < len(message) < 2000
    assert "Traceback" not in message


def test_a_body_without_an_end_is_not_collected(address: str) -> None:
    place, cookie = urlsplit(address), "; ".join("=".join(pair) for pair in cookies_of(address).items())
    with socket.create_connection((place.hostname, place.port), timeout=20) as raw:
        raw.sendall(
            f"POST /api/simulate HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Type: application/json\r\n"
            f"Cookie: {cookie}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        )
        with suppress(OSError):  # the server closes
            for _ in range(64):
                raw.sendall(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
        assert b" 413 " in raw.recv(65536)


@pytest.mark.parametrize(
    "path", ["/../server.py", "/%2e%2e/server.py", "/assets/../../server.py", "/..%2fserver.py", "/nothing"]
)
def test_no_file_outside_of_the_page_is_given(client: httpx.Client, path: str) -> None:
    assert client.get(path).status_code == 404


@pytest.mark.parametrize("number", [150, pytest.param(1000, marks=pytest.mark.rest)])
def test_many_requests_at_once(address: str, client: httpx.Client, number: int) -> None:
    """Each is answered, or told to come again; then the server answers as before."""

    async def all_at_once() -> list[int]:
        limits = httpx.Limits(max_connections=number)
        async with httpx.AsyncClient(
            base_url=address, limits=limits, cookies=cookies_of(address), timeout=None
        ) as many:

            async def one(window: int) -> int:
                body = SMALL | {"overrides": SMALL["overrides"] | {"optimizer.lr": 1e-4 + window * 1e-7}}
                try:
                    return (await many.post("/api/texts", json=body, headers={"X-Window": str(window)})).status_code
                except httpx.TransportError:
                    return 0

            return await asyncio.gather(*map(one, range(number)))

    found = in_own_loop(all_at_once())
    assert set(found) <= {0, 200, 503}
    assert found.count(200) > 0
    assert is_alive(client)


def test_a_newer_request_ends_the_older(client: httpx.Client) -> None:
    """The latest of one window and view wins; the older one's process does not go on."""
    headers, answers = {"X-Window": "w", "X-View": "v"}, list[int]()

    def heavy() -> None:
        answers.append(client.post("/api/simulate", json=HEAVY, headers=headers).status_code)

    thread = threading.Thread(target=heavy)
    thread.start()
    time.sleep(1.5)  # until it computes, which takes ten seconds and more
    assert client.post("/api/simulate", json=SMALL, headers=headers).status_code == 200
    thread.join()
    assert answers == [409]


def test_a_search_tells_how_far_it_is(client: httpx.Client) -> None:
    events = []
    with client.stream("POST", "/api/plan", json=SMALL | {"keep": 1}) as answer:
        for line in answer.iter_lines():
            if line.startswith("event: "):
                events.append(line.removeprefix("event: "))
    assert events[0] == "progress"
    assert events[-1] == "document"
    with client.stream("POST", "/api/plan", json=SMALL | {"keep": 0}) as answer:
        assert "event: error" in answer.read().decode()


def test_a_reader_that_goes_ends_the_search(client: httpx.Client) -> None:
    big = {"run": "preset:llama3-405b-8k", "overrides": {}, "budget": 5000}
    for _ in range(6):  # more than there are processes
        with client.stream("POST", "/api/plan", json=big) as answer:
            next(answer.iter_lines())
    assert is_alive(client)


def test_a_process_that_dies_is_replaced() -> None:
    async def scenario() -> list[str]:
        pool, outcomes = WorkerPool(1), []
        pool.start()
        try:
            first = asyncio.ensure_future(pool.compute("simulate", HEAVY, "a"))
            await asyncio.sleep(0.5)
            second = asyncio.ensure_future(pool.compute("simulate", SMALL, "a"))
            for task in (first, second):
                try:
                    outcomes.append("done" if await task else "")
                except Superseded:
                    outcomes.append("superseded")
        finally:
            pool.stop()
        return outcomes

    assert in_own_loop(scenario()) == ["superseded", "done"]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--port", "70000"), "allowed: 0 to 65535"),
        (("none.toml",), "no such run file"),
        (("preset:none",), "no such run"),
    ],
)
def test_a_wrong_command_line_says_what_works(arguments: tuple[str, ...], word: str) -> None:
    needs_page()
    done = subprocess.run(
        [sys.executable, "-m", "fourfold", "explore", *arguments, "--no-browser"],
        capture_output=True,
        text=True,
        timeout=None,
    )
    assert (done.returncode, word in done.stderr) == (2, True), done.stderr
    assert "Traceback" not in done.stderr


def test_an_answer_does_not_wait_for_the_receipt_of_its_head() -> None:
    """An accepted connection sends at once: a browser tells of its receipt 40 ms late."""
    with (
        listening_socket("127.0.0.1", 0) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_no_torch_is_imported() -> None:
    code = "import sys; sys.modules['torch'] = None; from fourfold.explore import server, documents; import json\n" + (
        f"print(json.loads(documents.encoded('simulate', {SMALL!r}, print))['fits'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=None)
    assert done.stdout.strip() == "True", done.stderr


def test_a_run_opens_as_a_state(tmp_path: Any) -> None:
    needs_page()
    run = tmp_path / "<script>.toml"
    run.write_text(
        '[model]\npreset = "smollm2-135m"\n[batch]\nglobal_sequences = 8\nsequence_length = 256\n[cluster]\npreset = "dgx-h100:8"\n'
    )
    with running(str(run)) as address:
        assert "#/strategy?" in address
        assert "cluster=dgx-h100%3A8" in address
        assert "<" not in address
