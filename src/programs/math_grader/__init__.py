#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = ["math-verify[antlr4_13_2]>=0.8,<1"]
# ///
"""Grade mathematical answers: the final answer of a completion against a gold answer, always within a time limit.

Numbers are compared exactly, as fractions; roots, pi, functions and polynomials at sample points. The rest (integrals,
sums, absolute values) goes to math-verify in a worker process that can be killed, so that the limits of 0.4 s per
comparison and 1 s per item hold in threads and in async code. They are processor time, so a busy machine changes no
score. The worker starts with the first item, in about 2 s of processor time; the first item that needs it waits.
Model text is never evaluated: a parser of our own reads it. Digits of any script are read; 四十二 is text.

What counts: `\\boxed{}`, `<answer>`, `####` and "the answer is", after the thinking part, or a text that is only an
answer. A box decides over phrases before it; other different answers, a box cut off and lists of guesses score 0.

Deliberately left out: taking the last number of a text as its answer, which would pay for repeating the prompt.

The reward library loads this file when a function grades mathematics.

    python scripts/math_grader.py "so it is \\boxed{\\frac{1}{2}}" 0.5
"""

ROOMS = ("vocabulary", "values", "worker", "equality", "answers")
