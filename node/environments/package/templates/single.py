# /// environment
# name = "NAME"
# class = "exact"     # score(row, turns) uses nothing but its arguments; "judged": judges score it
# about = "the capital of a country"
#
# [limits]            # of every call; what they stop gets the floor 0, on every machine alike
# fuel = 2_000_000_000
# memory_mib = 256
# ///
"""Name the capital of a country.

Try it:      intellect-node env check THIS_FILE
Train on it: in a run file, [environment] with package = "THIS_FILE"
"""

import re

CAPITALS = {
    "France": "Paris", "Japan": "Tokyo", "Kenya": "Nairobi", "Peru": "Lima", "Norway": "Oslo", "Egypt": "Cairo",
    "Chile": "Santiago", "Spain": "Madrid", "Italy": "Rome", "Cuba": "Havana", "Ghana": "Accra", "Iraq": "Baghdad",
    "Nepal": "Kathmandu", "Greece": "Athens", "Austria": "Vienna", "Poland": "Warsaw", "Sweden": "Stockholm",
    "Portugal": "Lisbon", "Finland": "Helsinki", "Hungary": "Budapest", "Ireland": "Dublin", "Denmark": "Copenhagen",
    "Senegal": "Dakar", "Uganda": "Kampala", "Jordan": "Amman", "Lebanon": "Beirut", "Bolivia": "Sucre",
    "Uruguay": "Montevideo", "Ecuador": "Quito", "Vietnam": "Hanoi", "Thailand": "Bangkok", "Mongolia": "Ulaanbaatar",
}  # fmt: skip


def rows():
    """The problems: dicts of plain values. An "id" of their own keeps the split when rows are added."""
    return [{"id": country, "capital": capital} for country, capital in CAPITALS.items()]


def prompt(row):
    """What the model is asked: text, or a list of {"role", "content"} that ends with the user's."""
    return f"What is the capital of {row['id']}? Answer with its name only."


def score(row, turns):
    """The reward, 0 to 1. turns: [{"role": "assistant", "content": the answer}]"""
    answer = re.sub(r"[^a-z]", "", turns[-1]["content"].lower())
    return float(answer == row["capital"].lower())


def golden(row):
    """An answer that must get 1: `env check` tries it."""
    return row["capital"]
