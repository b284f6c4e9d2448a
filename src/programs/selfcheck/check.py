"""What a check is."""


def check(advice: str, moved: bool = True):
    """Mark `function(subject) -> (passed or None for not applicable, what was measured)` as a check.

    Args:
        advice: what to do when it fails.
        moved: whether the policy has to be off its start.
    """

    def mark(function):
        function.advice, function.moved = advice, moved
        return function

    return mark
