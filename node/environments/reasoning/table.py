"""Which data sets of reasoning-gym 0.1.25 are scored here, and what they pay for any answer whatever.

Of each of the 106, eight problems of one seed were made under two hash seeds and scored with their own answer, none,
and 22 pieces of garbage ("0", "nan", "[]", "9**9**9" ...). What was found: docs/served-environments.md.
"""

from node.environments.errors import nearest

# One version exactly: another one makes other problems of the same numbers.
VERSION = "0.1.25"

_RUNS_ANSWERS = "its scorer evaluates the answer as Python: whoever answers would run code on every member's machine"
_DIFFERS = "it made other problems in another process, and was not tried for garbage since that was mended"
_PAYS_GARBAGE = "its scorer pays in full for a wrong answer"
_NO_ANSWER = "its problems carry no right answer, so that nobody can check that one is paid"
_UNSET = "it is a mixture of others, which [[environments]] is here"

DENIED: dict[str, str] = {
    "binary_matrix": _RUNS_ANSWERS,
    "countdown": _RUNS_ANSWERS,
    "intermediate_integration": _RUNS_ANSWERS,
    "n_queens": _RUNS_ANSWERS,
    "polynomial_multiplication": _RUNS_ANSWERS,
    "puzzle24": _RUNS_ANSWERS,
    "simple_integration": _RUNS_ANSWERS,
    "spiral_matrix": _RUNS_ANSWERS,
    "string_insertion": _RUNS_ANSWERS,
    "codeio": _DIFFERS,
    "knight_swap": _DIFFERS,
    "coin_flip": _PAYS_GARBAGE,
    "complex_arithmetic": _PAYS_GARBAGE,
    "game_of_life_halting": _PAYS_GARBAGE,
    "boxnet": _NO_ANSWER,
    "graph_color": _NO_ANSWER,
    "propositional_logic": _NO_ANSWER,
    "rubiks_cube": _NO_ANSWER,
    "rush_hour": _NO_ANSWER,
    "composite": _UNSET,
}
"""Name -> why it is not scored."""

FLOORS: dict[str, float] = {
    "acre": 0.5,
    "advanced_geometry": 0.05,
    "aiw": 0.0625,
    "arc_agi": 0.05,
    "binary_alternation": 0.0625,
    "calendar_arithmetic": 0.0126,
    "chain_sum": 0.0625,
    "color_cube_rotation": 0.01,
    "emoji_mystery": 0.01,
    "figlet_font": 0.2,
    "fraction_simplification": 0.01,
    "game_of_life": 0.01,
    "gcd": 0.5,
    "group_anagrams": 0.01,
    "gsm_symbolic": 0.01,
    "jugs": 0.01,
    "largest_island": 0.1429,
    "letter_counting": 0.5,
    "maze": 0.1429,
    "number_sequence": 0.2,
    "palindrome_generation": 0.05,
    "polynomial_equations": 0.5,
    "power_function": 0.01,
    "prime_factorization": 0.01,
    "rearc": 0.05,
    "rectangle_count": 0.64,
    "sentence_reordering": 0.05,
    "spell_backward": 0.25,
    "syllogism": 0.5,
    "time_intervals": 0.67,
    "tower_of_hanoi": 0.05,
    "tsumego": 0.01,
}
"""Name -> the most that garbage was paid; up to this, a score is nothing."""

# A list of what is allowed: a data set that a later version adds is scored only after somebody has tried it.
ALLOWED = (
    "ab",
    "acre",
    "advanced_geometry",
    "aiw",
    "arc_1d",
    "arc_agi",
    "base_conversion",
    "basic_arithmetic",
    "bf",
    "binary_alternation",
    "bitwise_arithmetic",
    "caesar_cipher",
    "calendar_arithmetic",
    "chain_sum",
    "circuit_logic",
    "color_cube_rotation",
    "count_bits",
    "count_primes",
    "course_schedule",
    "cryptarithm",
    "decimal_arithmetic",
    "decimal_chain_sum",
    "dice",
    "emoji_mystery",
    "family_relationships",
    "figlet_font",
    "fraction_simplification",
    "futoshiki",
    "game_of_life",
    "gcd",
    "group_anagrams",
    "gsm_symbolic",
    "isomorphic_strings",
    "jugs",
    "kakurasu",
    "knights_knaves",
    "largest_island",
    "lcm",
    "leg_counting",
    "letter_counting",
    "letter_jumble",
    "list_functions",
    "mahjong_puzzle",
    "manipulate_matrix",
    "maze",
    "mini_sudoku",
    "modulo_grid",
    "needle_haystack",
    "number_filtering",
    "number_format",
    "number_sequence",
    "number_sorting",
    "palindrome_generation",
    "palindrome_partitioning",
    "path_star",
    "polynomial_equations",
    "pool_matrix",
    "power_function",
    "prime_factorization",
    "products",
    "quantum_lock",
    "ransom_note",
    "rearc",
    "rectangle_count",
    "rotate_matrix",
    "rotten_oranges",
    "self_reference",
    "sentence_reordering",
    "shortest_path",
    "simple_equations",
    "simple_geometry",
    "sokoban",
    "spell_backward",
    "string_manipulation",
    "string_splitting",
    "string_synthesis",
    "sudoku",
    "survo",
    "syllogism",
    "time_intervals",
    "tower_of_hanoi",
    "tsumego",
    "word_ladder",
    "word_sequence_reversal",
    "word_sorting",
    "zebra_puzzles",
)


def refusal(dataset: str) -> tuple[str, str] | None:
    """(why, remedy) if answers to a data set are not scored here."""
    if dataset in ALLOWED:
        return None
    if dataset in DENIED:
        return f"reasoning-gym's {dataset!r} is left out: {DENIED[dataset]}", "use another data set of it"
    return f"reasoning-gym {VERSION} has no data set {dataset[:80]!r}", nearest(dataset, ALLOWED)
