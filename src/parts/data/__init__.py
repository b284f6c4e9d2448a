"""From files to prompts: reading rows, finding answers in them, chat templates, the stream of a run."""

ROOMS = (
    "data_files",
    "nested_rows",
    "rows",
    "stated_answers",
    "answer_marks",
    "question_parts",
    "chat",
    "held_out",
    "prompts",
    "pass_rates",
    "verl_layout",
    "verl_keys",
    "trl_names",
    "trl_scripts",
)
