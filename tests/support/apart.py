"""Calling a function in a process of its own, which may become another user or have less."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

from energize.errors import EnergizeError


def apart(function: Callable[[], Any], method: str = "fork") -> Any:
    """What the function returns there, or the text of the error of energize that it raises."""
    context: Any = multiprocessing.get_context(method)
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_call, args=(function, sender))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    finally:
        process.join()
        receiver.close()


def _call(function: Callable[[], Any], sender: Any) -> None:
    try:
        result = function()
    except EnergizeError as error:
        result = str(error)
    sender.send(result)
