"""Whether two numbers are one answer: the bounds that scorers have in common.

Whole numbers are equal or not: a relative bound would pay for 998244352 where 998244353 is right. For the rest there is
one relative bound. There is no absolute one, to which all small numbers were equal.
"""

import re
from fractions import Fraction

RELATIVE = Fraction(1, 1_000_000)
"""How far two numbers that are not whole may lie apart, in parts of the right one."""
ROUNDED = Fraction(1, 10_000)
"""How far a program's 2.9999999 may lie from a whole number, in all."""
ZERO = Fraction(1, 100_000_000)
"""How far a program's 1e-17 may lie from 0."""
# Bounded in digits and exponent: a Fraction of 1e999999999 would compute all its digits.
_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,1024}(?:\.[0-9]{0,1024})?|\.[0-9]{1,1024})(?:[eE][+-]?[0-9]{1,3})?")
_INTEGER = re.compile(r"([+-]?)0*([0-9]+)")


def number(text: str) -> Fraction | None:
    """What a text of digits is worth; None for one that is no number, or too long."""
    return Fraction(text) if _NUMBER.fullmatch(text) else None


def integer(text: str) -> str | None:
    """A whole number of any length in its one spelling, None for anything else: digits are compared, not computed."""
    found = _INTEGER.fullmatch(text)
    if found is None:
        return None
    return found[2] if found[1] != "-" or found[2] == "0" else f"-{found[2]}"


def near(value: Fraction, right: Fraction) -> bool:
    """Whether a written number is the right one."""
    if value.denominator == 1 or right.denominator == 1:
        return value == right
    return abs(value - right) <= RELATIVE * abs(right)


def computed_near(value: Fraction, right: Fraction) -> bool:
    """Whether a program's number is the right one. Its arithmetic rounds, so what should be whole may be nearly so."""
    exact = 1 << 53  # whole numbers that a float holds one by one. Above it, what is written as a float is one of many.
    if value.denominator == 1 and right.denominator == 1 and abs(right) < exact:
        return value == right
    if right == 0:
        return abs(value) <= ZERO
    bound = RELATIVE * abs(right)
    return abs(value - right) <= (min(bound, ROUNDED) if right.denominator == 1 and abs(right) < exact else bound)
