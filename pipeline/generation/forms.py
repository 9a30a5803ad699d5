"""Whether to ask a route for a stream or for one body: the form whose fingerprint lets more rows be proven.

Guarantees: only proven traits count; where they do not tell the two apart, and where neither form is known, a stream is
asked for, since it keeps what a body hides.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.proof.fingerprint import Fingerprint, TraitName


def better_form(route: str, model: str, known: Sequence[Fingerprint]) -> bool:
    """True for a stream. `route` is API/PROVIDER as the user writes it."""
    provider = _plain(route.partition("/")[2].partition("/")[0])
    forms = {one.stream: strength(one) for one in known if one.model == model and _plain(one.provider) == provider}
    return forms.get(True, 0) >= forms.get(False, 0)


def strength(fingerprint: Fingerprint) -> int:
    """How much can be proven without ids: 0 nothing, 1 by counts, 2 by deltas, where more rows are."""
    native = fingerprint.proven(TraitName.COUNT_NATIVE) is True
    if fingerprint.proven(TraitName.SEAM) != "kept" or not native:
        return 0
    return 2 if fingerprint.proven(TraitName.DELTAS) == "tokens" else 1


def _plain(name: str) -> str:
    """Providers are written in two ways: `Moonshot AI` answers, `moonshotai` is asked."""
    return "".join(char for char in name.lower() if char.isalnum())
