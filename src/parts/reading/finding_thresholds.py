"""From where on a figure counts."""

TREND_STEPS = 10  # fewer: no trend is judged
CRITIC_STEPS = 5  # the first ones are a critic's warm-up, whatever the settings say; its value head starts at 0
SOLVED = 0.95
GAIN = 0.03  # of the held-out figure; the standard error of 256 answers at one half
ALARM = 0.006  # of flat series show a trend by chance; benchmarks/false_alarms.py counts them
