"""Errors that a client sees, each with its HTTP status and the fields of OpenAI's error object."""

from __future__ import annotations

from typing import Any, ClassVar

from chop.errors import ChopError


class RequestError(ChopError, ValueError):
    """A request that the server rejects. `param`: the field at fault, if it is one."""

    status: ClassVar[int] = 400
    kind: ClassVar[str] = "invalid_request_error"
    code: ClassVar[str | None] = None

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param

    def body(self) -> dict[str, Any]:
        """Return the body of the answer."""
        fields = {"type": self.kind, "param": self.param, "code": self.code}
        return {"error": {"message": str(self), **fields}}


class ContextLengthError(RequestError):
    """A prompt that does not fit with its answer."""

    code = "context_length_exceeded"


class AccessError(RequestError):
    """A request without the API key."""

    status, kind, code = 401, "authentication_error", "invalid_api_key"


class UnknownModelError(RequestError):
    """A request for a model that is not served."""

    status, kind, code = 404, "not_found_error", "model_not_found"


class UnknownPathError(RequestError):
    """A request for a path that does not exist."""

    status, kind = 404, "not_found_error"


class MethodError(RequestError):
    """A request with another method than the path takes."""

    status = 405


class BodySizeError(RequestError):
    """A body that is too long."""

    status = 413


class MediaTypeError(RequestError):
    """A body that is not announced as JSON."""

    status = 415


class QueueFullError(RequestError):
    """A request that finds the queue full."""

    status, kind, code = 429, "rate_limit_error", "queue_full"


class GenerationError(RequestError):
    """An answer that failed in the engine."""

    status, kind = 500, "server_error"


class StoppedError(RequestError):
    """A request to a server that is stopping, or whose engine has failed."""

    status, kind, code = 503, "server_error", "stopped"
