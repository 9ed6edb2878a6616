"""Every request passes here: it checks who asks and how much, and tells the browser what an answer may do."""

import hmac
from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_BODY_BYTES = 1_000_000
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


class Guard:
    """ASGI middleware. `hosts`: what `Host` may say, with the port. `token`: None on the loopback address alone; else every
    request needs it, as the address that was printed brings it and a cookie keeps it."""

    def __init__(self, app: ASGIApp, hosts: Iterable[str], token: str | None) -> None:
        self._app, self._hosts, self._token = app, frozenset(hosts), token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers, read, path = Headers(scope=scope), 0, scope["path"]
        kept = _KEPT if path.startswith("/assets/") else _DAY if path == "/mark.svg" else _NOT_KEPT

        async def limited() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
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

    def _refused(self, scope: Scope, headers: Headers) -> ASGIApp | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if host not in self._hosts:
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
        return None if self._token is None else self._without_token(scope, headers, self._token)

    def _without_token(self, scope: Scope, headers: Headers, token: str) -> ASGIApp | None:
        stated = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if scope["path"] == "/" and hmac.compare_digest(stated.encode(), token.encode()):
            found = RedirectResponse("/", 303)
            found.set_cookie(COOKIE, token, httponly=True, samesite="strict")
            return found
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            cookie = None
        if cookie is not None and hmac.compare_digest(cookie.value.encode(), token.encode()):
            return None
        return _refusal(401, "open the address that fourfold explore printed: it brings the token")


def _refusal(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": message}, status)
