"""Full marks for the right number inside the tags, as the last thing said."""

import re


def reward(prompt, completion, answer):
    found = re.findall(r"<answer>(.*?)</answer>", completion)
    last = completion.rstrip().endswith("</answer>")
    return float(last and len(found) == 1 and found[0].strip() == str(answer))
