"""From files to prompts: reading rows, finding answers in them, chat templates, the stream of a run."""

ROOMS = (
    "data_files",
    "nested_rows",
    "rows",
    "question_parts",
    "answer_marks",
    "chat",
    "held_out",
    "prompts",
    "pass_band",
    "pass_rates",
    "verl_layout",
    "verl_keys",
    "trl_names",
)
