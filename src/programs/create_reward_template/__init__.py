#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = ["pyarrow", "datasets", "jsonschema", "referencing"]
# ///
"""Write a complete reward for TRL (and trainers with its contract), for verl, or for both, with a self-test inside.

    TRL    name(prompts, completions, **columns) -> [score or None, one a completion]
    verl   compute_score(data_source, solution_str, ground_truth, extra_info=None) -> {"score": number, ...}

A new reward has one core, `score(text, row)`, and a thin adapter for each contract, so both pay the same. In verl,
`ground_truth` is the column --gold_column, and `extra_info` has the others, as data_loader.py --for verl and
verl_train.py write them. The prompt, which verl does not pass, is read from extra_info's `prompt`, or `raw_prompt` of
verl_train.py's reward manager. verl has no None: the score is then 0, and so is `applies`.

    math        the final answer, also a choice's letter, equals the gold one: math_grader.py, copied beside the output
    final_number  the number after the only ####, as in GSM8K: 35 lines, no dependencies, no self-test
    code        tests that the Python program passes: sandbox.py, copied beside the output
    passes_tests  the same for TRL in 46 lines, tried on correct and hostile programs once written; --one_file includes
                the sandbox and needs only the standard library
    qa          the short answer equals a gold one, except for case, punctuation and articles
    format      each tag occurs once, in order, with content (--tags)
    json_schema  JSON that --schema FILE accepts, alone or in one fenced block; --exact KEY: with the row's value of KEY
    llm_judge   a model behind an OpenAI-compatible endpoint grades (OPENAI_BASE_URL, JUDGE_MODEL, RUBRIC in the file)

--from FILE.py:NAME ports a reward of TRL's contract or of one sample, `(prompt, completion, **columns)`, to verl; it
may be async. A list becomes its weighted sum, with the weights of LIST*WEIGHTS, a second list of the file, or of a
preset. A compute_score is ported to TRL, and so is a one-sample reward with --for trl. The port imports FILE.py by its
path from the output, so keep both together. In verl it sees one row at a time, without `completion_ids`. An exception
there scores 0 and sets `raised`; otherwise verl would drop the row.
--inline writes the shortest port, for a plain function of the completion and one column: the function and five lines
below it. It compares both on completions of the gold answers of --data, or of the answer 42, and writes nothing if any
score differs.

Deliberately left out: batch-level rewards in verl, which calls the function once for each row; training a judge; a
rubric of your own, which goes into `score` of a file of --task qa.

    python scripts/create_reward_template.py --task math --for both --output my_reward.py && python my_reward.py --test
    python scripts/create_reward_template.py --task json_schema --schema schema.json --output my_reward.py
    python scripts/create_reward_template.py --task final_number --data gsm8k.jsonl --output my_reward.py
    python scripts/create_reward_template.py --task passes_tests --one_file --output code_reward.py \\
        --signature "grade(programs, cases)" --pay fraction --timeout_s 2 --memory_mb 256
    python scripts/create_reward_template.py --from my_rewards.py:correct --inline --output my_verl_reward.py
    python scripts/create_reward_template.py --from "trl_run.py:REWARDS*WEIGHTS" --output my_verl_reward.py

Exit codes: 0 written, 1 the trial found something (the file stays), 2 bad input.
"""

ROOMS = ("assembly", "tasks", "ports", "code_files", "command")
