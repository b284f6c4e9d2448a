"""Root causes of runs that do not learn, by what is at fault, and their ranking."""

ROOMS = ("cause", "machinery", "groups", "rewards", "updates", "outcomes", "ranking")
