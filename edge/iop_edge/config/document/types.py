"""The bounded scalars that the document is made of. Every number has both bounds (CFG-3).

`extra={"wants": …}` completes the sentence "this must be …" where the type alone says too little.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

_END = r"$(?!\n)"
_NO_CONTROL = r"[^\x00-\x1f\x7f-\x9f]"

_NO_BLANK = r"[^\s\x00-\x1f\x7f-\x9f]"

_VISIBLE = r"[^\x00-\x1f\x7f-\x9f\xad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]"
"""Two ids must not differ in what nobody can see."""

DAY_MS = 86_400_000
MAX_TOKENS = 100_000_000

Id = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=256,
        pattern=rf"^(?! ){_VISIBLE}+(?<! ){_END}",
        extra={
            "wants": "an id of 1 to 256 characters, none of them a control or invisible character, "
            "without a space at either end"
        },
    ),
]
IdOrBlank = Annotated[
    str,
    Meta(
        max_length=256,
        pattern=rf"^{_NO_CONTROL}*{_END}",
        extra={"wants": "an id of at most 256 characters without control characters"},
    ),
]
Label = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=64,
        pattern=rf"^[a-z0-9_-]+{_END}",
        extra={"wants": "1 to 64 of the characters a-z, 0-9, `_` and `-`"},
    ),
]
Text = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=1024,
        pattern=rf"^{_NO_CONTROL}*{_NO_BLANK}{_NO_CONTROL}*{_END}",
        extra={"wants": "one line of text that is not blank, of at most 1024 characters"},
    ),
]
FilePath = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=4096,
        pattern=rf"^{_NO_CONTROL}+{_END}",
        extra={"wants": "a file path"},
    ),
]
Address = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=512,
        pattern=rf"^[^\x00-\x20\x7f-\x9f]+{_END}",
        extra={"wants": "an address without spaces, such as `127.0.0.1:8080`"},
    ),
]
Url = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=2048,
        pattern=rf"^[^\x00-\x20\x7f-\x9f]+{_END}",
        extra={"wants": "a URL without spaces, such as `http://127.0.0.1:8000`"},
    ),
]
VariableName = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=256,
        pattern=rf"^[A-Za-z_][A-Za-z0-9_]*{_END}",
        extra={"wants": "the name of an environment variable: letters, digits and `_`"},
    ),
]
Sha256Hex = Annotated[
    str,
    Meta(
        min_length=64,
        max_length=64,
        pattern=rf"^[0-9A-Fa-f]{{64}}{_END}",
        extra={"wants": "the 64 hex digits of a sha256"},
    ),
]
HeaderName = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=128,
        pattern=rf"^[!#$%&'*+.^_`|~0-9A-Za-z-]+{_END}",
        extra={"wants": "the name of an HTTP header"},
    ),
]
Scheme = Annotated[
    str,
    Meta(
        max_length=64,
        pattern=rf"^[!#$%&'*+.^_`|~0-9A-Za-z-]*{_END}",
        extra={"wants": "an authentication scheme such as `Bearer`, or empty text for none"},
    ),
]
OperationPath = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=2048,
        pattern=rf"^(/|https?://)[^\x00-\x20\x7f-\x9f]*{_END}",
        extra={"wants": "a path that begins with `/`, or a whole http(s) URL"},
    ),
]
ProbePath = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=2048,
        pattern=rf"^/[^\x00-\x20\x7f-\x9f]*{_END}",
        extra={"wants": "a path that begins with `/`"},
    ),
]

TimeoutMs = Annotated[int, Meta(ge=1, le=DAY_MS)]
OptionalTimeoutMs = Annotated[int, Meta(ge=0, le=DAY_MS)]
QueueLength = Annotated[int, Meta(ge=0, le=1_000_000)]
Slots = Annotated[int, Meta(ge=1, le=100_000)]
LongSlots = Annotated[int, Meta(ge=0, le=100_000)]
Priority = Annotated[int, Meta(ge=0, le=1_000_000)]
Concurrency = Annotated[int, Meta(ge=0, le=1_000_000)]
Tokens = Annotated[int, Meta(ge=1, le=MAX_TOKENS)]
TokensOrZero = Annotated[int, Meta(ge=0, le=MAX_TOKENS)]
TotalTokens = Annotated[int, Meta(ge=0, le=10_000_000_000_000)]
CharsPerToken = Annotated[float, Meta(ge=0.1, le=100.0)]
BodyBytes = Annotated[int, Meta(ge=1024, le=1_073_741_824)]
HeaderBytes = Annotated[int, Meta(ge=1024, le=16_777_216)]
Connections = Annotated[int, Meta(ge=1, le=1_000_000)]
Recoveries = Annotated[int, Meta(ge=0, le=3)]
SnapshotBytes = Annotated[int, Meta(ge=0, le=16_777_216)]
Runes = Annotated[int, Meta(ge=1, le=1_000_000)]
FilterTimeoutMs = Annotated[int, Meta(ge=1, le=600_000)]
ProbeIntervalMs = Annotated[int, Meta(ge=100, le=DAY_MS)]
ProbeFailures = Annotated[int, Meta(ge=1, le=1_000)]

StructType = type[Struct]
"""For class attributes of structs that have a field named `type`."""
