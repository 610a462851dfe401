"""Links given by people: only those that are safe to follow from a page."""

from urllib.parse import urlsplit

MAX_LINK = 2000


def checked_link(url: str) -> str:
    """Return a URL that is safe as a link: http or https, with a host and no user; `ValueError` says why not."""
    url = url.strip()
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url or len(url) > MAX_LINK:
        raise ValueError("it has spaces or special characters, or is too long")
    parts = urlsplit(url)  # raises ValueError, too
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise ValueError("it is no http or https URL")
    return url
