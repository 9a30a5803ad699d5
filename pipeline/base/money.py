"""Money as whole pico-dollars (10^-12 USD), so that sums are exact.

A micro-dollar is too coarse: one token of a cheap model costs less, and providers bill to nine decimals and more.
Guarantees: no binary float takes part in a sum; what does not fit twelve decimals is rounded up, never down.
"""

from __future__ import annotations

from decimal import ROUND_CEILING, Decimal

PICO_PER_USD = 10**12
# SQLite keeps 64-bit integers; nine million dollars is far above any budget here.
MOST_PICO = 2**63 - 1


def pico(usd: Decimal | float | str) -> int:
    """Whole pico-dollars of an amount in USD, rounded up. A float counts as its shortest decimal, the one sent.

    Raises ValueError for what is no amount: not a number, negative, or above nine million dollars.
    """
    try:
        amount = Decimal(repr(usd)) if isinstance(usd, float) else Decimal(usd)
        whole = int((amount * PICO_PER_USD).to_integral_value(rounding=ROUND_CEILING))
    except (ArithmeticError, ValueError) as error:
        raise ValueError(f"{usd!r} is no amount in USD: give a number such as 0.50") from error
    if not 0 <= whole <= MOST_PICO:
        raise ValueError(f"{usd!r} USD is outside 0 to {MOST_PICO // PICO_PER_USD}")
    return whole


def usd_text(amount: int) -> str:
    """The exact decimal of an amount in pico-dollars, at least four decimals: `0.0142`, `0.000012345`."""
    sign, whole, part = "-" * (amount < 0), *divmod(abs(amount), PICO_PER_USD)
    return f"{sign}{whole}.{f'{part:012d}'.rstrip('0'):0<4}"
