"""The checks of an environment and the verdict."""

import math
import re
import statistics

from programs.reward_preflight.environment_process import PLAY, play_in
from programs.reward_preflight.policies import ECHOED, POLICIES, WITH_TOOLS, WITHOUT_TOOLS, gold_scripts
from programs.reward_preflight.preflight import FULL_SHARE, MIN_RECALL, TRIAL_ROWS
from programs.reward_preflight.reward_process import OwnProcess
from programs.reward_preflight.scoring import KINDS, PAYING_ROWS, Checks, Graded, Grader, ranked

POLICY_ROWS = 8  # rows on which scripted policies play; gold plays all
AGAIN_ROWS = 4  # conversations of each policy that are played again, alone and all at once
OUTCOME = ("return", "turns", "calls", "failures", "ended_by", "turn_rewards")  # must be the same when played again
CAUSE = "something outlives a conversation, such as a class attribute, or the environment depends on chance or time"
ENVIRONMENT_ADVICE = {
    "fault": "accept whatever a model may say: bound its length, catch exceptions, return a finite number",
    "hung": "bound the work of reset, reply and get_reward; --timeout_s allows more time",
    "died": "never run a model's code in this process: use another one, as sandbox.py does",
    "hung_tool": "set a limit inside the tool; --tool_timeout allows more time",
    "reset": "set every attribute in reset: TRL reuses objects",
    "not_repeatable": "create all state in reset, on self; take random values from a column of the row",
}


class EnvironmentPreflight(Checks):
    """Plays scripted policies and checks what they are paid, what fails, and whether results repeat."""

    advice_on = ENVIRONMENT_ADVICE

    def __init__(self, args, rows: list[dict], process: OwnProcess):
        super().__init__(args, rows, environment=args.environment)
        self.process, self.kinds = process, process.about
        self.grader = Grader(process, {PLAY: 1.0}, self.jobs, self.problem)

    def run(self) -> dict:
        """All checks; returns the report with the verdict."""
        golds, step = self.gold(), max(1, len(self.rows) // POLICY_ROWS)
        rows, kinds = self.rows[::step][:POLICY_ROWS], self.kinds[::step][:POLICY_ROWS]
        plays_of = {"gold": golds} if golds else {}
        for name, (_, policy) in POLICIES.items():
            pairs = []
            for i, (row, kind) in enumerate(zip(rows, kinds, strict=True)):
                fits = name not in (WITHOUT_TOOLS if kind["tools"] else WITH_TOOLS)
                scripts = policy(row, kind, self.args) if fits else []
                pairs += [(row, script) for script in (scripts[i :: len(rows)] if name == "injection" else scripts)]
            plays_of[name] = self.played(name, pairs)
        few = [
            play for name, plays in plays_of.items() if name not in ("echo", "injection") for play in plays[:AGAIN_ROWS]
        ]
        few = [play for play in few if play.outcome and not play.outcome["hung"]]
        self.same_again(few)
        self.report["policies"] = [self.line(name, plays, golds) for name, plays in plays_of.items() if plays]
        self.report["plays"] = [
            {"policy": p.policy, "row": p.row["number"], "script": p.text, "return": p.outcome["return"]} for p in few
        ]
        return self.verdict()

    def evidence(self, play: Graded) -> dict:
        return {"row": play.row["number"], "policy": play.policy}

    def problem(self, kind: str, _, text: str, play: Graded) -> None:
        """Add a finding about a conversation that did not come to its end."""
        if "gave no answer in" in text:
            self.grader.tallies[PLAY]["hung"] += 1
        text = re.sub(r"row \d+ of the batch", f"row {play.row['number']}", text)
        check, noun = ("fault", "") if kind == "raised" else (kind, "a conversation ")
        self.find(check, noun + text, play)

    def jobs(self, plays: list[Graded]) -> dict:
        """What the environment's process plays: the rows' places and the answers."""
        return {"jobs": [{"row": self.rows.index(play.row), "script": play.text} for play in plays]}

    def played(self, policy: str, pairs: list[tuple]) -> list[Graded]:
        """Play (row, script) pairs one after the other, until too many hung or died."""
        plays = []
        for pair in pairs:
            (play,) = self.grader.grade([pair], policy=policy)
            plays.append(play)
            for name in dict.fromkeys(play.outcome["hung"] if play.outcome else ()):
                self.grader.tallies[PLAY]["hung"] += 1
                limit = f"{self.args.tool_timeout:g} s"
                text = f"tool {name} did not answer within {limit}: each such call delays a step by that time"
                self.find("hung_tool", text, play)
        return plays

    # ---- gold

    def gold(self) -> list[Graded]:
        """Play gold answers in the variant that is paid best, and add findings about them."""
        scripts = [gold_scripts(row, kind, self.args) for row, kind in zip(self.rows, self.kinds, strict=True)]
        scripts = [(row, variants) for row, variants in zip(self.rows, scripts, strict=True) if variants]
        if not scripts:
            message = "no row has gold answers, so other policies are compared with full marks"
            forms = "a text or a call {name, arguments}"
            self.find("gold", message, None, False, f"a column gold with the answers of each turn, {forms}")
            return []
        order = ranked(scripts, lambda pairs: self.played("gold", pairs[:TRIAL_ROWS]), self.merit)
        golds = self.played("gold", [(row, next(v[name] for name in order if name in v)) for row, v in scripts])
        ended, low = [play for play in golds if play.outcome], []
        full = sum(play.outcome["return"] >= self.full() for play in ended) / len(golds)
        self.report["gold"] = {"variant": order[0], "rows": len(golds), "full_marks": full}
        for play in [play for play in ended if play.outcome["return"] < self.full()]:
            outcome = play.outcome
            reason = next(iter(outcome["errors"]), f"it ended by {outcome['ended_by']}")
            low.append((f"gold gets {outcome['return']:g} after {outcome['turns']} turns: {reason}", play))
        self.judge_gold("conversations", full < MIN_RECALL, [play.outcome["return"] for play in ended], low)
        return golds

    def merit(self, plays: list[Graded]) -> tuple[float, float]:
        """(Share of full marks, mean) of returns."""
        paid = [play.outcome["return"] for play in plays if play.outcome]
        return sum(value >= self.full() for value in paid) / max(1, len(paid)), statistics.fmean(paid or [-math.inf])

    def full(self) -> float:
        """The lowest return that counts as full marks."""
        score = 1.0 if self.args.full_score is None else self.args.full_score
        return score * (FULL_SHARE if score > 0 else 1.0) - 1e-6

    # ---- the same again

    def same_again(self, plays: list[Graded]) -> None:
        """Replay conversations: all at once, turn by turn, and with an object that has served another one."""
        reply = play_in(self.process, self.jobs(plays)) if plays else {"outcomes": []}
        if "outcomes" not in reply:
            lost = next(reply[kind] for kind in KINDS if kind in reply)
            self.find("not_repeatable", f"a conversation is lost beside others: {lost}", plays[0])
        for play, outcome in zip(plays, reply.get("outcomes", []), strict=False):
            if names := differs(play.outcome, outcome):
                changes = ", ".join(f"{name} {play.outcome[name]} becomes {outcome[name]}" for name in names)
                text = f"a conversation changes when it is played again beside others: {changes}; {CAUSE}"
                self.find("not_repeatable", text, play)
            elif outcome["said"] != play.outcome["said"]:
                self.find("not_repeatable", f"other messages when played again beside others; {CAUSE}", play, False)
        by_kind = {}
        for play in [] if self.counts["not_repeatable"] else plays:
            by_kind.setdefault(self.kinds[self.rows.index(play.row)]["name"], []).append(play)
        for group in by_kind.values():
            first = max(group, key=lambda play: play.outcome["return"])  # the best, then the worst: leftovers show
            last = min((x for x in group if x.row is first.row), key=lambda play: play.outcome["return"])
            outcomes = play_in(self.process, self.jobs([first, last]), reuse=True).get("outcomes")
            names = differs(last.outcome, outcomes[1]) if outcomes else ["raises"]
            if names:
                text = f"an object's second conversation differs from its first ({', '.join(names)})"
                self.find("reset", text, last, False)

    # ---- what is paid

    def line(self, name: str, plays: list[Graded], golds: list[Graded]) -> dict:
        """The report's line for a policy, with findings if it is paid too much."""
        ended = [play for play in plays if play.outcome]
        outcomes = [play.outcome for play in ended]
        paid = [outcome["return"] for outcome in outcomes]
        line = {"name": name, "conversations": len(plays), "problems": len(plays) - len(ended)}
        for key, figure in (("mean", statistics.fmean), ("min", min), ("max", max)):
            line[key] = figure(paid) if paid else None
        for key in ("turns", "calls", "failures", "seconds"):
            line[key] = statistics.fmean(outcome[key] for outcome in outcomes) if outcomes else None
        limits = [outcome["ended_by"] in ("turns", "tokens") for outcome in outcomes]
        line["limit"] = statistics.fmean(limits) if limits else None
        if name == "gold":
            return line | {"share": 1.0, "allowed": None, "status": "", "what": "What should have full marks."}
        line |= {"allowed": self.args.allow.get(name, POLICIES[name][0]), "what": POLICIES[name][1].__doc__}
        best = [play.outcome["return"] for play in golds if play.outcome]
        gold, pairs = statistics.fmean(best) if best else self.full(), list(zip(paid, ended, strict=True))
        rows = ECHOED if name == "echo" else PAYING_ROWS
        return self.payment(line, pairs, gold, min(paid, default=0.0), "return", "pay for the task alone", rows)


def differs(one: dict, two: dict) -> list[str]:
    """The keys of OUTCOME in which two outcomes differ."""
    return [name for name in OUTCOME if one[name] != two[name]]
