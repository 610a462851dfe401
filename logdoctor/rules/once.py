"""Properties computed once, without a lock.

`functools.cached_property` of Python 3.11 has one lock per property for all objects: if a thread computes one while
another forks a process, the lock is never released there, and that process waits forever.
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

Value = TypeVar("Value")


class once(Generic[Value]):
    """A property that keeps its first value; threads that ask at once may compute it twice."""

    def __init__(self, function: Callable[[Any], Value]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> "once[Value]": ...

    @overload
    def __get__(self, instance: object, owner: type) -> Value: ...

    def __get__(self, instance: object, owner: type) -> "once[Value] | Value":
        if instance is None:
            return self
        value = self._function(instance)
        instance.__dict__[self._name] = value  # found there from now on
        return value
