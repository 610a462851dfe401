"""Sign-in and sign-out: a pasted token becomes a session, whose id the browser keeps.

Where no tokens are required, people may give a name.
"""

from typing import Annotated

from fastapi import Query, Request
from starlette.responses import RedirectResponse, Response

from logdoctor.errors import RequestRefused
from logdoctor.store.keeping.tokens import Token, holds
from logdoctor.web.dependencies import FormReader, Reader, state_of
from logdoctor.web.gate import SESSION, check_form, form_key, set_name
from logdoctor.web.rendering import checked_form, form, local, page, router

_UNSENT = "Your form was not accepted: sign in, then send it again. What you typed may be lost."


pages = router()


@pages.get("/login")
async def login_form(
    request: Request, next: Annotated[str, Query()] = "/", unsent: Annotated[str, Query()] = ""
) -> Response:
    """Show the form for a token; redirect whoever is signed in."""
    target = local(next)
    gate, session = state_of(request).gate, str(request.session.get(SESSION, ""))
    if not gate.wants_token or gate.person(request) or (session and await gate.of_session(session) is not None):
        return RedirectResponse(target, 303)
    ended = "You were signed out, or your token has expired or was revoked. Paste one." if session else ""
    request.session.pop(SESSION, None)
    return _login_page(request, target, f"{ended} {_UNSENT}".strip() if unsent else ended)


@pages.post("/login")
async def login(request: Request) -> Response:
    """Sign in with a token that may read."""
    given = await form(request)
    target, secret = local(given.get("next", "/")), given.get("token", "").strip()
    if not state_of(request).gate.wants_token:
        return RedirectResponse(target, 303)
    try:
        check_form(request, given.get("key", ""))
    except RequestRefused:
        message = "This form is too old, or your browser keeps no cookies. Allow them for this site and try again."
        return _login_page(request, target, message, 403)
    token = await _found(request, secret)
    if not isinstance(token, Token):
        return _login_page(request, target, *token)
    await _end(request)
    request.session[SESSION] = await state_of(request).gate.sign_in(token)
    return RedirectResponse(target, 303)


@pages.post("/logout")
async def logout(request: Request) -> Response:
    """Sign out: the session ends, wherever its cookie was copied to. The token stays as it is."""
    check_form(request, (await form(request)).get("key", ""))
    await _end(request)
    return RedirectResponse("/login" if state_of(request).gate.wants_token else "/", 303)


@pages.get("/name")
async def name_form(request: Request, caller: Reader, next: Annotated[str, Query()] = "/") -> Response:
    """Ask for a name, where no tokens are required."""
    target = local(next)
    if state_of(request).gate.wants_token:
        return RedirectResponse(target, 303)
    return page(request, "name.html", {"next": target, "name": caller.given, "key": form_key(request)})


@pages.post("/name")
async def name(request: Request, caller: FormReader) -> Response:
    """Store a given name in the browser. It appears with the person's actions, marked as unverified."""
    given = await checked_form(request)
    if not state_of(request).gate.wants_token:
        set_name(request, given.get("name", ""))
    return RedirectResponse(local(given.get("next", "/")), 303)


async def _end(request: Request) -> None:
    """End the session of a browser, if it has one."""
    if session := str(request.session.get(SESSION, "")):
        await state_of(request).gate.sign_out(session)
    request.session.clear()


async def _found(request: Request, secret: str) -> Token | tuple[str, int]:
    """Return the token if it may read pages, else why not and the HTTP status."""
    if not secret:
        return "Paste a token first.", 400
    try:
        token = await state_of(request).gate.token(secret, request.client.host if request.client else "")
    except RequestRefused as error:
        return "Too many wrong tokens came from your address. Wait a minute, then try again.", error.status
    if token is None:
        return "This token is unknown, expired or revoked. Check that you pasted all of it.", 401
    if not holds(token, "read"):
        return "This token may not read. Ask for one with the scope read.", 403
    return token


def _login_page(request: Request, target: str, message: str, status: int = 200) -> Response:
    return page(request, "login.html", {"next": target, "message": message, "key": form_key(request)}, status)
