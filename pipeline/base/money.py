"""Money as whole pico-dollars (10^-12 USD).

Guarantees: sums are exact, since no binary float takes part in one; what does not fit twelve decimals is rounded up,
never down. A micro-dollar would be too coarse: one token of a cheap model costs less, and providers bill to nine
decimals and more.
"""

from __future__ import annotations

from decimal import ROUND_CEILING, Decimal

PICO_PER_USD = 10**12
# SQLite keeps 64-bit integers; nine million dollars is far above any budget here.
MOST_PICO = 2**63 - 1


def pico(usd: Decimal | float | str) -> int:
    """Convert USD to whole pico-dollars, rounded up.

    A float counts as its shortest decimal, the one that was sent. Raises ValueError for what is no amount: not a
    number, negative, or above nine million dollars.

    >>> pico("0.0142")
    14200000000
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
    """Return the exact amount in USD, four decimals or more.

    >>> usd_text(14_200_000_000), usd_text(12_345_000)
    ('0.0142', '0.000012345')
    """
    sign, whole, part = "-" * (amount < 0), *divmod(abs(amount), PICO_PER_USD)
    return f"{sign}{whole}.{f'{part:012d}'.rstrip('0'):0<4}"
