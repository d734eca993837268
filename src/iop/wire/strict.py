"""Protobuf without its leniency: every received byte must be accounted for by the message (W3, P35)."""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from iop.errors import MalformedFrame

M = TypeVar("M", bound=Message)


def parse_strict(message_type: type[M], data: bytes) -> M:
    """Read ``data`` as one ``message_type``; anything but a plain encoding is :class:`~iop.errors.MalformedFrame`.

    Protobuf itself keeps unknown fields, lets the last of several values win and takes padded or cut numbers. None of
    that survives when what was understood is written again, so comparing the bytes refuses all of it at any depth.
    Their number alone would not do: what a cut number saves leaves room for something else.
    """
    try:
        message = message_type.FromString(data)
    except DecodeError:
        raise MalformedFrame(f"the bytes of a {message_type.__name__} do not parse") from None
    message.DiscardUnknownFields()
    if message.SerializeToString() != data:
        raise MalformedFrame(f"the bytes of a {message_type.__name__} are not its plain encoding")
    return message
