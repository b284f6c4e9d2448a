"""Rewards for two steps of a trainer: scores that differ, and scores that are all the same."""


def varied(prompt, completion):
    return sum(completion.encode()) % 7 / 6


def equal(prompt, completion):
    return 1.0
