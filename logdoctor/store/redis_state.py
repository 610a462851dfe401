"""State that processes share and may lose at any time, in Redis: wake-ups, rate limits, pauses of models.

If Redis is away, slow, full or flushed, only that is lost: no call here raises, each takes a moment at most, and every
caller has a fallback. After a failure Redis is not asked for a few seconds.
"""

import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

from logdoctor.errors import SettingsError
from logdoctor.extras import translated

if TYPE_CHECKING:
    import redis
    from redis.asyncio import Redis as AsyncRedis

log = structlog.get_logger()
T = TypeVar("T")

_PATIENCE = 0.25  # seconds for an answer
_LEFT_ALONE = 5.0  # seconds without requests after a failure
_HEARD = 1.0  # seconds for which one call waits for messages
_CHECKED = 15.0  # seconds of silence after which a connection is checked

_TAKE = """
local now = redis.call('TIME')
now = now[1] + now[2] / 1e6
local rate, burst = tonumber(ARGV[1]), tonumber(ARGV[2])
local kept = redis.call('HMGET', KEYS[1], 'level', 'at')
local level = math.min((tonumber(kept[1]) or burst) + math.max(now - (tonumber(kept[2]) or now), 0) * rate, burst)
local taken = level >= 1
if taken then level = level - 1 end
redis.call('HSET', KEYS[1], 'level', tostring(level), 'at', tostring(now))
redis.call('PEXPIRE', KEYS[1], math.ceil(1000 * burst / rate) + 1000)
return taken and 1 or 0
"""


class RedisState:
    """The state that the processes of one service share in the Redis at a URL; services on one Redis need different
    database numbers. Thread-safe; what is `async` is for one event loop. `SettingsError` for a bad URL."""

    def __init__(self, url: str) -> None:
        with translated():
            import redis
            import redis.asyncio
        self._left_alone_until, self._is_away = 0.0, False
        options: dict[str, Any] = {
            "socket_timeout": _PATIENCE,
            "socket_connect_timeout": _PATIENCE,
            "socket_keepalive": True,
            "retry": None,
            "max_connections": 64,
        }
        try:
            self._redis = redis.Redis.from_url(url, health_check_interval=_CHECKED, **options)
            pool = redis.asyncio.BlockingConnectionPool.from_url(url, timeout=_PATIENCE, **options)
            self._async: AsyncRedis = redis.asyncio.Redis(connection_pool=pool)
        except (ValueError, TypeError):
            next_step = "Use redis://:PASSWORD@HOST:6379/0; write / @ : of a password as %2F %40 %3A."
            raise SettingsError("LOGDOCTOR_REDIS_URL", "is no URL of a Redis", next_step) from None
        database = self._redis.connection_pool.connection_kwargs.get("db", 0)  # channels ignore it
        self._prefix = f"logdoctor:{database}:"
        self._take = self._async.register_script(_TAKE)

    @property
    def is_away(self) -> bool:
        """Whether Redis did not answer the last request."""
        return self._is_away

    async def take(self, bucket: str, rate: float, burst: float) -> bool | None:
        """Take one token from a shared bucket of `burst`, refilled at `rate` per second. Return whether one was there;
        None when Redis does not answer."""
        asked = self._take(keys=[f"{self._prefix}rate:{bucket}"], args=[rate, burst])
        found = await self._tried_later(asked)
        return None if found is None else bool(found)

    def leave_alone(self, what: str, seconds: float) -> None:
        """Make all processes pause something for so many seconds; 0 ends that."""
        key, milliseconds = f"{self._prefix}pause:{what}", max(int(1000 * seconds), 0)
        if milliseconds:
            self._tried(lambda redis: redis.set(key, 1, px=milliseconds))
        else:
            self._tried(lambda redis: redis.delete(key))

    def left_alone(self, what: str) -> float:
        """Return the seconds for which something is paused; 0 also when Redis does not answer."""
        found = self._tried(lambda redis: int(redis.pttl(f"{self._prefix}pause:{what}")))
        return max(found or 0, 0) / 1000

    def publish(self, message: str) -> None:
        """Publish a message to all listening processes."""
        self._tried(lambda redis: redis.publish(f"{self._prefix}news", message))

    def messages(self) -> Iterator[str | None]:
        """Yield messages of all processes as they come; None at intervals, and when messages may have been missed. Ends
        when Redis does not answer."""
        if time.monotonic() < self._left_alone_until:
            return
        heard: Any = self._redis.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call] # has no types
        with heard:
            try:
                heard.subscribe(f"{self._prefix}news")
                self._answered()
                yield None
                while True:
                    message = heard.get_message(timeout=_HEARD)
                    yield bytes(message["data"]).decode("ascii", "replace") if message else None
            except Exception as error:  # noqa: BLE001 -- a server may say anything
                self._failed(error)

    def close(self) -> None:
        """Close the connections."""
        self._redis.close()

    def _tried(self, asked: "Callable[[redis.Redis], Any]") -> Any:
        if time.monotonic() < self._left_alone_until:
            return None
        try:
            found = asked(self._redis)
        except Exception as error:  # noqa: BLE001 -- a server may say anything
            self._failed(error)
            return None
        self._answered()
        return found

    async def _tried_later(self, asked: Awaitable[T]) -> T | None:
        if time.monotonic() < self._left_alone_until:
            getattr(asked, "close", lambda: None)()  # it was not awaited
            return None
        try:
            found = await asked
        except Exception as error:  # noqa: BLE001 -- a server may say anything
            self._failed(error)
            return None
        self._answered()
        return found

    def _answered(self) -> None:
        if self._is_away:
            self._is_away = False
            log.info("Redis answers again")

    def _failed(self, error: Exception) -> None:
        self._left_alone_until = time.monotonic() + _LEFT_ALONE
        if not self._is_away:
            self._is_away = True
            log.warning("Redis does not answer: limits count per process, news come later", cause=str(error))
