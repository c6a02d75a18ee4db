"""The error tree. `api` maps it to HTTP once; nothing else knows status codes."""

from __future__ import annotations


class MlxServeError(Exception):
    """Root of every error this project raises on purpose."""


class RequestError(MlxServeError):
    """The request itself is at fault; the client can fix it.

    `field` is the path of the offending field in the client's own terms (`stop[1]`), or None.
    """

    def __init__(self, message: str, field: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.code = code


class ContextLengthError(RequestError):
    """The prompt leaves no room for a single generated token. reason: what sets the limit, a sentence for a person."""

    def __init__(self, max_model_len: int, prompt_tokens: int, field: str = "messages", reason: str = "") -> None:
        # The opening words are matched by clients (litellm and others) to recognise an overflow.
        super().__init__(
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt has "
            f"{prompt_tokens} tokens, and at least one must remain for the answer. "
            f"Please reduce the length of the prompt. {reason}".rstrip(),
            field=field,
            code="context_length_exceeded",
        )
        self.max_model_len = max_model_len
        self.prompt_tokens = prompt_tokens


class QueueFullError(MlxServeError):
    """A waiting queue is at its limit. `retry_after_s` is a whole number of seconds, at least 1.

    whose: the queue, for a person: that of a priority, or of an API key.
    """

    def __init__(self, limit: int, retry_after_s: int, whose: str = "the waiting queue") -> None:
        super().__init__(f"{whose} is full ({limit} requests); retry in {retry_after_s} s")
        self.limit = limit
        self.retry_after_s = retry_after_s
        self.whose = whose


class MemoryPressureError(MlxServeError):
    """The machine is short of memory: nothing new is begun until that is over."""

    def __init__(self, retry_after_s: int = 5) -> None:
        super().__init__(f"this machine is short of memory and begins nothing new; retry in {retry_after_s} s")
        self.retry_after_s = retry_after_s


class DeadlineError(MlxServeError):
    """The request took longer than it was allowed to."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"the request was not complete after {timeout_s:g} s, the longest it may take")
        self.timeout_s = timeout_s


class EngineNotReadyError(MlxServeError):
    """The model is still loading, or cannot be loaded again yet."""

    def __init__(self, retry_after_s: int = 2, message: str = "the model is still loading") -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class EngineDeadError(MlxServeError):
    """The engine has stopped and answers nothing more."""


class RowError(MlxServeError):
    """A step cannot be executed because of one request alone: the others in it are not to blame."""

    def __init__(self, request_id: str, message: str) -> None:
        super().__init__(message)
        self.request_id = request_id


class GenerationError(MlxServeError):
    """This request failed inside the engine; others are not affected."""


class ModelLoadError(MlxServeError):
    """The model cannot be loaded, or cannot be served exactly. The message is the reason, for a person."""


class SettingsError(MlxServeError):
    """A setting is outside its legal range. The message names the key, the value and the range."""
