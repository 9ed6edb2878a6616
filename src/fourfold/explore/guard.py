"""Every request passes here: it checks who asks and how much, and tells the browser what an answer may do.

Every local user, and each page that a browser has open, can reach a port of this machine. So each request brings a token: the
printed address has it, and a cookie keeps it, whose name has the port, since browsers send a host's cookies to all its ports.
"""

import asyncio
import hmac
import secrets
from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_BODY_BYTES = 1_000_000
BODY_SECONDS = 20.0
"""Within which a request's body comes."""
COOKIE = "fourfold_token"
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
        "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_KEPT, _DAY, _NOT_KEPT = "public, max-age=31536000, immutable", "public, max-age=86400", "no-store"
"""For how long a browser keeps files whose names say their content, the page's mark, and everything else."""


class TooLarge(Exception):
    """The body is longer than is read."""


class TooLate(Exception):
    """The body does not come."""


def new_token() -> str:
    """Letters that nobody guesses."""
    return secrets.token_urlsafe(24)


class Guard:
    """ASGI middleware. `hosts`: what `Host` may say, with the port; None: anything, since a page of another name, which a name
    server leads here, has no token. `token`: what every request needs. `ticket`: in place of it in an address, once: other users
    see the command line of the browser that is opened. `port`: where the server listens."""

    def __init__(self, app: ASGIApp, hosts: Iterable[str] | None, token: str, ticket: str, port: int) -> None:
        self._app, self._hosts = app, frozenset(hosts) if hosts is not None else None
        self._token, self._ticket, self._cookie = token, ticket, f"{COOKIE}_{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers, read, is_complete, path = Headers(scope=scope), 0, False, scope["path"]
        kept = _KEPT if path.startswith("/assets/") else _DAY if path == "/mark.svg" else _NOT_KEPT

        async def limited() -> Message:
            nonlocal read, is_complete
            try:
                async with asyncio.timeout(None if is_complete else BODY_SECONDS):
                    message = await receive()
            except TimeoutError:
                raise TooLate from None
            read += len(message.get("body", b""))
            is_complete = is_complete or not message.get("more_body", False)
            if read > MOST_BODY_BYTES:
                raise TooLarge
            return message

        async def headed(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    added.setdefault(name, value)
                added["Cache-Control"] = kept
            await send(message)

        refused = self._refused(scope, headers)
        try:
            await (self._app(scope, limited, headed) if refused is None else refused(scope, receive, headed))
        except TooLarge:
            await _refusal(413, f"the request is larger than {MOST_BODY_BYTES} bytes")(scope, receive, headed)
        except TooLate:
            await _refusal(408, f"the request did not come in {BODY_SECONDS:.0f} seconds")(scope, receive, headed)

    def _refused(self, scope: Scope, headers: Headers) -> ASGIApp | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if self._hosts is not None and host not in self._hosts:
            return _refusal(421, "this server answers to its own address alone; open the address that it printed")
        if origin is not None and origin != f"{scope['scheme']}://{host}":
            return _refusal(403, "requests of other pages are not answered")
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return _refusal(403, "requests of other pages are not answered")
        if scope["method"] == "POST" and headers.get("content-type", "").partition(";")[0] != "application/json":
            return _refusal(415, "allowed: application/json")
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length[:12]) > MOST_BODY_BYTES:
            return _refusal(413, f"the request is larger than {MOST_BODY_BYTES} bytes")
        return self._without_token(scope, headers)

    def _without_token(self, scope: Scope, headers: Headers) -> ASGIApp | None:
        """The answer to a request that has no cookie: one that has a token in its address gets it."""
        stated = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0] if scope["path"] == "/" else ""
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(self._cookie)
        except CookieError:
            cookie = None
        if cookie is not None and _is_same(cookie.value, self._token):
            return RedirectResponse("/", 303) if stated else None
        if _is_same(stated, self._token) or (self._ticket and _is_same(stated, self._ticket)):
            if not _is_same(stated, self._token):
                self._ticket = ""
            found = RedirectResponse("/", 303)
            found.set_cookie(self._cookie, self._token, httponly=True, samesite="strict")
            return found
        return _refusal(401, "open the address that fourfold explore printed: it brings the token")


def _is_same(stated: str, secret: str) -> bool:
    return hmac.compare_digest(stated.encode("utf-8", "surrogateescape"), secret.encode())


def _refusal(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": message}, status)
