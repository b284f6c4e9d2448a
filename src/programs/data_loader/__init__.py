#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "torch>=2.6", "transformers>=5.23,<6", "datasets", "pyarrow", "tqdm",
# ]
# ///
"""Read training data of any common form, check it row by row, and write it in the shape a trainer wants.

Prompts, conversations, prompt + response, preferences, math, choices and code, from JSONL, JSON, TXT, CSV, TSV and
parquet (.gz too), folders, globs, stdin and the hub, become one schema: `prompt` (messages), `answer`,
`tests`, `completion`, `chosen`, `rejected`, `source`, `id`; other columns stay unchanged. Errors name the file, line
and field of a row that does not fit. references/data_formats.md describes schema, formats and targets.

As a library: `load_rows`, `normalise`, `write_rows`, `create_dataloader`.

Deliberately left out: images and audio, tokenised data sets, packing, and any cleaning of texts. Code in the data is
parsed, never run; paths and URLs in the data are never opened; nothing is unpickled.

    python scripts/data_loader.py train.jsonl --out clean.jsonl                       # any known form, detected
    python scripts/data_loader.py train.jsonl test.csv --inspect --tokenizer MODEL    # lengths, duplicates, overlap
    python scripts/data_loader.py train.jsonl --split 0.1 --seed 0 --out part.jsonl    # and part.eval.jsonl
    python scripts/data_loader.py "data/*.jsonl.gz" --for verl --shuffle 0 --split eval=200 --out train.parquet

Exit codes: 0 done, 1 --validate or --inspect found bad rows, 2 bad input (nothing is written).
"""

ROOMS = (
    "bad_rows",
    "messages",
    "tests_of_programs",
    "answers",
    "choices",
    "forms",
    "form_names",
    "writing",
    "row_reader",
    "batches",
    "command",
)
