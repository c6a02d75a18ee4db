"""Sends what schemathesis makes of the OpenAPI document, and counts what comes back."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any
from zlib import crc32

import hypothesis
import requests
import schemathesis
from schemathesis import APIOperation, Case, GenerationMode
from schemathesis.config import (
    GenerationConfig,
    OutputConfig,
    ProjectConfig,
    ProjectsConfig,
    SanitizationConfig,
    SchemathesisConfig,
)
from schemathesis.core.failures import FailureGroup

from tests.fuzz.checks import checks

TIMEOUT_S = 60.0
"""Longest silence of a response: beyond it a request hangs."""
CAP = 4
"""Tokens that most requests are lowered to. One of `WILD` keeps what was generated, as far as the context goes."""
WILD = 4
GOOD_EVERY = 50
NONE_LEFT = ("running", "waiting", "blocks_used", "failed_steps", "restarts")
MODEL = "demo"
QUESTION: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "temperature": 0,
    "max_tokens": 12,
}


@dataclass
class Failure:
    """A promise that was broken, and the request that shows it."""

    operation: str
    mode: str
    title: str
    message: str
    request: str


@dataclass
class Report:
    """Of one run. slowest_s: seconds of the slowest response."""

    cases: int = 0
    good_requests: int = 0
    slowest_s: float = 0.0
    statuses: dict[str, Counter[int]] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {
            "cases": self.cases,
            "good_requests": self.good_requests,
            "slowest_s": round(self.slowest_s, 3),
            "statuses": {name: dict(sorted(counts.items())) for name, counts in sorted(self.statuses.items())},
            "failures": [asdict(failure) for failure in self.failures.values()],
        }


class Fuzzer:
    """Against a running daemon. Raises nothing for what the daemon does: `report.failures` has one of each kind."""

    def __init__(self, url: str) -> None:
        self.report = Report()
        self._url = url
        self._session = requests.Session()
        self._session.trust_env = False
        self._generation = GenerationConfig(with_security_parameters=False, deterministic=True)
        document = self._session.get(f"{url}/openapi.json", timeout=TIMEOUT_S).json()
        projects = ProjectsConfig(default=ProjectConfig(base_url=url, generation=self._generation))
        output = OutputConfig(sanitization=SanitizationConfig(enabled=False))
        config = SchemathesisConfig(projects=projects, output=output, seed=1)
        self._schema = schemathesis.openapi.from_dict(document, config=config)
        self._schema.validate()
        self.operations: list[APIOperation] = [found.ok() for found in self._schema.get_all_operations()]
        self._checks = checks()
        self._baseline = self._good()

    def boundaries(self, operation: APIOperation, every: int = 1) -> None:
        """Each value at and beyond each limit of the document, one at a time; or one of `every` so many of them."""
        cases = self._schema.iter_coverage_cases(
            operation, generation_modes=list(GenerationMode), generation_config=self._generation
        )
        for case in islice(cases, 0, None, every):
            self.send(case)

    def random(self, operation: APIOperation, count: int, seed: int) -> None:
        """`count` requests that the document allows, and as many whose body it forbids, where there is one."""
        for mode in GenerationMode:
            if mode is GenerationMode.POSITIVE or operation.body:
                self._random(operation, mode, count, seed)

    def _random(self, operation: APIOperation, mode: GenerationMode, count: int, seed: int) -> None:
        @hypothesis.seed(seed)
        @hypothesis.settings(
            max_examples=count,
            database=None,
            deadline=None,
            phases=[hypothesis.Phase.generate],
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(operation.as_strategy(generation_mode=mode))
        def send(case: Case) -> None:
            self.send(case)

        send()

    def send(self, case: Case) -> None:
        """One request and everything that must be true of its response."""
        _tame(case)
        started = time.perf_counter()
        try:
            response = case.call(session=self._session, timeout=TIMEOUT_S)
            self._count(case, response.status_code)
            case.validate_response(response, checks=self._checks)
            if self.report.cases % GOOD_EVERY == 0:
                self._check_good(case)
        except FailureGroup as group:
            for failure in group.exceptions:
                self._fail(case, type(failure).__name__ + ": " + failure.title, failure.message)
        except requests.Timeout as error:
            self._fail(case, "hangs", str(error))
        except requests.ConnectionError as error:
            self._fail(case, "drops the connection", str(error))
        self.report.slowest_s = max(self.report.slowest_s, time.perf_counter() - started)

    def check_idle(self) -> None:
        """The good request once more; afterwards nothing runs, waits or holds a block, and nothing has ever failed."""
        text = self._good()
        stats = self._session.get(f"{self._url}/health", timeout=TIMEOUT_S).json()["stats"]
        left = {name: stats[name] for name in NONE_LEFT if stats[name]}
        if text != self._baseline or left:
            self.report.failures["end"] = Failure("-", "-", "the end is not as the beginning", f"{text!r} {left}", "-")

    def _check_good(self, case: Case) -> None:
        self.report.good_requests += 1
        text = self._good()
        if text != self._baseline:
            self._fail(case, "the next good request is changed", f"{text!r} instead of {self._baseline!r}")

    def _good(self) -> str:
        response = self._session.post(f"{self._url}/v1/chat/completions", json=QUESTION, timeout=TIMEOUT_S)
        response.raise_for_status()
        return str(response.json()["choices"][0]["message"]["content"])

    def _count(self, case: Case, status: int) -> None:
        self.report.cases += 1
        self.report.statuses.setdefault(f"{case.operation.label} {_mode(case)}", Counter())[status] += 1

    def _fail(self, case: Case, title: str, message: str) -> None:
        key = f"{case.operation.label} {title} {message[:60]}"
        if key not in self.report.failures:
            failure = Failure(case.operation.label, _mode(case), title, message, case.as_curl_command())
            self.report.failures[key] = failure


def _mode(case: Case) -> str:
    return case.meta.generation.mode.value if case.meta is not None else "unknown"


def _tame(case: Case) -> None:
    """Cap the work of most chats and name a model that exists: what is about the rest shall be reached, and soon."""
    if crc32(f"{case.body!r} {case.path_parameters!r}".encode(errors="replace")) % WILD == 0:
        return
    if _is_short(case.headers.get("x-request-timeout")):
        case.headers["x-request-timeout"] = str(TIMEOUT_S)
    if isinstance(case.path_parameters.get("model_id"), str):
        case.path_parameters["model_id"] = MODEL
    if not isinstance(case.body, dict):
        return
    if isinstance(case.body.get("model"), str):
        case.body["model"] = MODEL
    for name in ("max_tokens", "max_completion_tokens", "min_tokens"):
        value = case.body.get(name)
        if isinstance(value, int) and value > CAP:
            case.body[name] = CAP


def _is_short(timeout_s: object) -> bool:
    try:
        return 0 < float(str(timeout_s)) < TIMEOUT_S
    except ValueError:
        return False
