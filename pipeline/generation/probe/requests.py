"""The requests of a probe, and their worst cases.

Each prompt is sent as a stream and as one body, `repeats` times. Guarantees: a request differs from its probe only in
form and sample id, and in thinking where the model always thinks or never does. What the model's
format, or the endpoint, cannot take is left out with the reason.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from pipeline.fingerprints.models import ThinkingMode, model_of
from pipeline.generation.backends.hosted import worst_case
from pipeline.generation.budget import Amount
from pipeline.generation.engines.catalog import Endpoint
from pipeline.generation.engines.openrouter import encode_body
from pipeline.generation.engines.request import request_body
from pipeline.generation.ledger import Request, identity
from pipeline.generation.outcome import refusing_errors
from pipeline.generation.plan import Plan
from pipeline.generation.probe.probes import DATASET, Probe
from pipeline.proof.locations import special_text
from pipeline.records import Ids, Refusal, Route, Sampling, ToolMode

THINKS = 1024
"""The least `max_tokens` of a model that thinks although it is asked not to."""


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """One request of a probe, and its worst case.

    Its row is `PROBE/FORM/TIME`.
    """

    probe: Probe
    stream: bool
    request: Request
    worst: Amount


@dataclass(frozen=True, slots=True)
class ProbeRequests:
    """The requests of a probe, and what is left out.

    In rounds, so that a stop leaves whole ones; what is left out has its reason.
    """

    asked: tuple[ProbeRequest, ...]
    left_out: tuple[tuple[str, str], ...] = ()

    @property
    def worst(self) -> Amount:
        """The most that all of them may use."""
        return sum((one.worst for one in self.asked), Amount())


def probe_requests_of(chosen: Sequence[Probe], plan: Plan, endpoint: Endpoint, run: str, repeats: int) -> ProbeRequests:
    """Return every request, in the order of asking."""
    fitted = [(probe, _fitted(probe, plan, endpoint)) for probe in chosen]
    requests = []
    kept = [found for _, found in fitted if not isinstance(found, str)]
    for time, (probe, ids), stream in product(range(1, repeats + 1), kept, (False, True)):
        row = f"{probe.id}/{form_of(stream=stream)}/{time}"
        route = Route(plan.route.api, plan.route.model, plan.route.provider, stream)
        sampling = Sampling(temperature=probe.temperature, max_tokens=probe.max_tokens)
        # Another one in each run: a probe asks what the route does today, and the ledger has what it did before.
        sample_id = hashlib.sha256(f"{DATASET}\n{run}\n{row}".encode()).hexdigest()[:32]
        body = request_body(
            *(probe.prompt, route, sampling, probe.tool_mode, plan.fmt, sample_id),
            privacy=plan.privacy,
            supported=endpoint.supported_parameters,
        )
        worst = worst_case(len(ids), probe.max_tokens, endpoint)
        key = identity(route, body, run=run)  # type: ignore[arg-type]  # request_body's values are JSON
        request = Request(key, run, route, row, encode_body(body), worst.pico, DATASET, worst.tokens)
        requests.append(ProbeRequest(probe, stream, request, worst))
    return ProbeRequests(tuple(requests), tuple((probe.id, why) for probe, why in fitted if isinstance(why, str)))


def form_of(*, stream: bool) -> str:
    """Return the word for a form, in rows and files."""
    return "stream" if stream else "json"


def _fitted(probe: Probe, plan: Plan, endpoint: Endpoint) -> tuple[Probe, Ids] | str:
    """Fit a probe to this model and endpoint.

    Returns it with its prompt's ids, or why it cannot be asked.
    """
    if probe.tool_mode is ToolMode.STRUCTURED and "tools" not in endpoint.supported_parameters:
        return "the endpoint takes no tools"
    most = endpoint.max_completion_tokens
    why = "the format does not render it"
    for adapted in _adapted(probe, plan.route.model):
        found = refusing_errors(lambda one=adapted: plan.fmt.render(one.prompt))  # type: ignore[misc]  # bound at once
        if isinstance(found, Refusal):
            why = found.detail
        elif (spelled := special_text(plan.fmt, adapted.prompt)) is not None:
            return spelled.detail
        elif len(found) + adapted.max_tokens > endpoint.context_length:
            return f"it needs {len(found) + adapted.max_tokens} tokens, the endpoint takes {endpoint.context_length}"
        elif most is not None and adapted.max_tokens > most:
            return f"it needs an answer of {adapted.max_tokens} tokens, the endpoint gives {most}"
        else:
            return adapted, found
    return why


def _adapted(probe: Probe, model: str) -> Iterator[Probe]:
    """Yield the probe, as it is or thinking otherwise.

    A model that never thinks is asked without, one that always does with thinking, and a prompt that the format cannot
    render without thinking is tried with it.
    """
    known = model_of(model)
    if known is not None and known.thinks is ThinkingMode.NEVER:
        yield replace(probe, prompt=replace(probe.prompt, thinking=False))
        return
    if probe.prompt.thinking or known is None or known.thinks is not ThinkingMode.ALWAYS:
        yield probe
    if not probe.prompt.thinking:
        longer = probe.max_tokens if probe.known.cut else max(probe.max_tokens, THINKS)
        yield replace(probe, prompt=replace(probe.prompt, thinking=True), max_tokens=longer)
