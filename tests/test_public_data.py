"""Public data sets: what scripts/data_loader.py makes of rows in their schemas.

The rows were written for these tests; only the columns and their types are the data sets'. «…» marks a part of the
question, which must reach the prompt; ‹…› marks what must not: worked solutions, tests, the gold answer.
"""

import json
import re
from typing import NamedTuple

import pytest
from conftest import ROOT, load_script

PAGE = ROOT / "references" / "data_formats.md"


class PublicSet(NamedTuple):
    """Rows in the schema of a data set, and what the loader should make of them."""

    name: str
    rows: list
    fields: dict  # field -> its value, the same in every row, or a list with one a row
    options: dict  # arguments of load_rows
    refusal: str | None  # a pattern of the message


def read(name: str, *rows, **fields) -> PublicSet:
    """A data set that is read without any option."""
    return PublicSet(name, list(rows), fields, {}, None)


def with_options(name: str, options: dict, *rows, **fields) -> PublicSet:
    """A data set that needs `--map` or `--kind`."""
    return PublicSet(name, list(rows), fields, options, None)


def refused(name: str, refusal: str, *rows) -> PublicSet:
    """A data set whose rows are bad, for a reason that the message names."""
    return PublicSet(name, list(rows), {}, {}, refusal)


def user(text) -> dict:
    """A user's message."""
    return {"role": "user", "content": text}


def assistant(text) -> dict:
    """An assistant's message."""
    return {"role": "assistant", "content": text}


def verl_row(question: str, gold, source: str = "math", **extra) -> dict:
    """A row of verl's five columns."""
    model = {"style": "rule", "ground_truth": gold}
    row = {"data_source": source, "prompt": [user(question)], "ability": "math", "reward_model": model}
    return {**row, "extra_info": {"split": "train", "index": 0, **extra}}


TWICE = "def twice(n):\n    return 2 * n\n"
SUM = "«Sum of 1 and 2?»"
BOXED = "‹It is› $\\boxed{3}$."
EASY = {"problem": SUM, "solution": BOXED}

# -------------------------------------------------------------------------------------------------- mathematics

MATH = [
    read(
        "openai/gsm8k",
        {"question": "«Ann has 1000 pens, buys 3.»", "answer": "‹1000+3=1003›\n#### 1,003"},
        answer="1003",
    ),
    read("EleutherAI/hendrycks_math", {**EASY, "level": "Level 1", "type": "Algebra"}, answer="3"),
    read(
        "HuggingFaceH4/MATH-500",
        {**EASY, "answer": "3", "subject": "Algebra", "level": 1, "unique_id": "test/algebra/1.json"},
        answer="3",
    ),
    read("HuggingFaceH4/aime_2024", {"id": 60, **EASY, "answer": "003", "url": "u", "year": "2024"}, answer="003"),
    read("Maxwell-Jia/AIME_2024", {"ID": "2024-I-1", "Problem": SUM, "Solution": BOXED, "Answer": 3}, answer="3"),
    read("AI-MO/aimo-validation-amc", {"id": 0, "problem": SUM, "answer": 3.0, "url": "u"}, answer="3.0"),
    read(
        "Hothan/OlympiadBench",
        *(
            {
                **{"id": 1606, "subfield": "Algebra", "context": context, "question": "«Find $x$.»"},
                **{"solution": ["‹We add.›"], "final_answer": gold, "is_multiple_answer": False, "unit": None},
                **{"answer_type": "Numerical", "error": None},
            }
            for context, gold in ((None, ["3"]), ("«Let $x=1+2$.»", ["3"]), (None, ["$\\frac{1}{2}$"]))
        ),
        answer=["3", "3", "$\\frac{1}{2}$"],
    ),
    read("agentica-org/DeepScaleR-Preview-Dataset", {"problem": SUM, "answer": "3", "solution": ""}, answer="3"),
    read(
        "BytedTsinghua-SIA/DAPO-Math-17k",
        verl_row(f"Solve it. {SUM}", "3", "math_dapo", index="9a9b6eb4-a1cb-49d1-8c1e-62eaf2f74079"),
        answer="3",
    ),
    read(
        "open-r1/DAPO-Math-17k-Processed",
        {**verl_row("", "3", "math_dapo"), "prompt": SUM, "solution": "3", "source_prompt": [user(f"Solve it. {SUM}")]},
        answer="3",
    ),
    with_options(
        "AI-MO/NuminaMath-CoT",
        {"kind": "math"},
        {"source": "cn_k12", **EASY, "messages": [user(SUM), assistant(BOXED)]},
        answer="3",
    ),
    with_options(
        "AI-MO/NuminaMath-TIR", {"kind": "math"}, {**EASY, "messages": [user(SUM), assistant(BOXED)]}, answer="3"
    ),
    read(
        "AI-MO/NuminaMath-1.5",
        {
            **EASY,
            "answer": "3",
            "problem_type": "Algebra",
            "question_type": "math-word-problem",
            "source": "aops_forum",
        },
        answer="3",
    ),
    read(
        "open-r1/OpenR1-Math-220k",
        {
            **{**EASY, "answer": "3", "problem_type": "Algebra", "question_type": "MCQ", "source": "olympiads"},
            **{"uuid": "u", "is_reasoning_complete": [True, True], "generations": ["‹a›", "‹b›"]},
            **{"correctness_math_verify": [True, False], "messages": [user(SUM), assistant("<think>…</think> 3")]},
        },
        answer="3",
    ),
    read(
        "SynthLabsAI/Big-Math-RL-Verified",
        {"problem": SUM, "answer": "3", "source": "orca_math", "domain": ["Algebra"], "llama8b_solve_rate": 0.5},
        answer="3",
    ),
    read(
        "ChilleD/SVAMP",
        *(
            {
                **{
                    "ID": "chal-1",
                    "Body": "«Ann has 2 pens.»",
                    "Question": "«How many pens?»",
                    "Equation": "‹( 1.0 + 1.0 )›",
                },
                **{"Answer": gold, "Type": "Addition"},
            }
            for gold in ("2", 2.0)
        ),
        answer=["2", "2.0"],
    ),
    read(
        "EleutherAI/asdiv",
        {
            **{"body": "«Two red plums are here.»", "question": "«How many plums?»", "solution_type": "Addition"},
            **{"answer": "2 (plums)", "formula": "‹1+1=2›"},
        },
        answer="2 (plums)",
    ),
    read(
        "nvidia/OpenMathInstruct-2",
        {
            "problem": SUM,
            "generated_solution": BOXED,
            "expected_answer": "3",
            "problem_source": "augmented_math",
        },
        answer="3",
    ),
    read(
        "nvidia/OpenMathReasoning",
        {
            **{
                "expected_answer": "3",
                "problem_type": "has_answer_extracted",
                "problem_source": "aops",
                "problem": SUM,
            },
            **{
                "generation_model": "m",
                "pass_rate_72b_tir": "0.5",
                "generated_solution": BOXED,
                "inference_mode": "cot",
            },
        },
        answer="3",
    ),
    read(
        "zwhe99/DeepMath-103K",
        {
            **{"question": SUM, "final_answer": "3", "difficulty": 2.0, "topic": "Algebra"},
            **{"r1_solution_1": BOXED, "r1_solution_2": BOXED, "r1_solution_3": BOXED},
        },
        answer="3",
    ),
    read(
        "KbsdJames/Omni-MATH",
        {
            "domain": ["Algebra"],
            "difficulty": 2.0,
            **EASY,
            "answer": "3",
            "source": "imo",
        },
        answer="3",
    ),
    read("POLARIS-Project/Polaris-Dataset-53K", {"problem": SUM, "answer": "3", "difficulty": "4/8"}, answer="3"),
    read(
        "GAIR/LIMO", {"question": SUM, "solution": "‹Add both.› **Final Answer** \\boxed{3}", "answer": "3"}, answer="3"
    ),
    with_options(
        "juletxara/mgsm",
        {"mapping": {"answer": "answer_number"}},
        {"question": SUM, "answer": None, "answer_number": 3, "equation_solution": None},
        {
            "question": SUM,
            "answer": "‹Step-by-Step Answer: The answer is 3.›",
            "answer_number": 3,
            "equation_solution": "‹1+2=3.›",
        },
        answer="3",
    ),
    read(
        "Skywork/Skywork-OR1-RL-Data",
        verl_row(SUM, '["3"]', "train-math-numinamath1.5", model_difficulty={"DeepSeek-R1-Distill-Qwen-7B": 4}),
        verl_row(SUM, '["3", "3.0"]', "train-math-deepscaler"),
        answer=["3", ["3", "3.0"]],
    ),
    read(
        "PRIME-RL/Eurus-2-RL-Data",
        verl_row(SUM, "3", "numina_olympiads"),
        verl_row("«Print twice n.»", '{"inputs": ["1\\n"], "outputs": ["2\\n"]}', "taco"),
        answer=["3", None],
        tests=[None, {"inputs": ["1\n"], "outputs": ["2\n"]}],
    ),
    read(
        "Jiayi-Pan/TinyZero countdown",
        verl_row("«Using the numbers [1, 2], make 3.»", {"target": 3, "numbers": [1, 2]}, "countdown"),
        answer='{"target": 3, "numbers": [1, 2]}',
    ),
    refused("Jiayi-Pan/Countdown-Tasks-3to4", "columns target, nums", {"target": 98, "nums": [44, 19, 35]}),
    read(
        "hkust-nlp/SimpleRL-Zoo-Data",
        {**verl_row(SUM, "3", "simplelr_qwen"), "gt_answer": "3", "subject": "Algebra", "level": 1, "question": SUM},
        answer="3",
    ),
    read("Open-Reasoner-Zero eval", {"prompt": [{"from": "user", "value": SUM}], "final_answer": "3"}, answer="3"),
    refused(
        "Open-Reasoner-Zero/orz_math_57k_collection",
        "list",
        [{"from": "human", "value": SUM}, {"from": "assistant", "ground_truth": {"value": "3"}}],
    ),
    read("trl-lib/DeepMath-103K", {"prompt": [user(SUM)], "solution": "$3$"}, solution="$3$"),
]

# ------------------------------------------------------------------------------------------------------ choices

ICE = "«Ice is water that is»"
OPTIONS = ["«gas»", "«solid»", "«hot»", "«salty»"]
ICE_ABCD = dict(zip("ABCD", OPTIONS, strict=True))
ICE_LABELLED = {"text": OPTIONS, "label": [*"ABCD"]}


def counted(row: dict, name: str, golds) -> list[dict]:
    """The same question with one right option after another."""
    return [{**row, name: gold} for gold in golds]


CHOICES = [
    read(
        "cais/mmlu",
        *counted({"question": ICE, "subject": "physics", "choices": OPTIONS}, "answer", (1, 0, 3)),
        right=[OPTIONS[1], OPTIONS[0], OPTIONS[3]],
    ),
    read(
        "TIGER-Lab/MMLU-Pro",
        {
            **{"question_id": 7, "question": ICE, "options": OPTIONS, "answer": "B", "answer_index": 1},
            **{"cot_content": "‹cot›", "category": "physics", "src": "stemez"},
        },
        right="«solid»",
    ),
    read(
        "allenai/ai2_arc",
        {"id": "M", "question": ICE, "choices": ICE_LABELLED, "answerKey": "B"},
        {"id": "N", "question": ICE, "choices": {"text": OPTIONS, "label": [*"1234"]}, "answerKey": "2"},
        right="«solid»",
    ),
    read(
        "allenai/openbookqa",
        {"id": "7", "question_stem": ICE, "choices": ICE_LABELLED, "answerKey": "B"},
        right="«solid»",
    ),
    read(
        "tau/commonsense_qa",
        {
            **{"id": "c", "question": ICE, "question_concept": "ice", "choices": ICE_LABELLED, "answerKey": "B"},
        },
        right="«solid»",
    ),
    read(
        "Rowan/hellaswag",
        *counted(
            {
                **{"ind": 4, "activity_label": "Cooling", "ctx_a": "«Ann cools water.»", "ctx_b": "«the water»"},
                **{
                    "ctx": "«Ann cools water.» «the water»",
                    "endings": ["«boils.»", "«freezes.»", "«sings.»", "«runs.»"],
                },
                **{"source_id": "activitynet~v", "split": "train", "split_type": "indomain"},
            },
            "label",
            "103",
        ),
        right=["«freezes.»", "«boils.»", "«runs.»"],
    ),
    read(
        "ybisk/piqa",
        *counted({"goal": "«Cool a drink.»", "sol1": "«Add ice.»", "sol2": "«Add fire.»"}, "label", (0, 1, 0)),
        right=["«Add ice.»", "«Add fire.»", "«Add ice.»"],
    ),
    read(
        "allenai/social_i_qa",
        *counted(
            {
                **{"context": "«Ann gave Bo ice.»", "question": "«How does Bo feel?»"},
                **{"answerA": "«cool»", "answerB": "«angry»", "answerC": "«sleepy»"},
            },
            "label",
            "132",
        ),
        right=["«cool»", "«sleepy»", "«angry»"],
    ),
    read(
        "allenai/winogrande",
        *counted(
            {
                "sentence": "«Ann helped Bo as _ was weak.»",
                "option1": "«Ann»",
                "option2": "«Bo»",
            },
            "answer",
            "212",
        ),
        right=["«Bo»", "«Ann»", "«Bo»"],
    ),
    read(
        "ceval/ceval-exam",
        {"id": 0, "question": "«冰是什么？»", **ICE_ABCD, "answer": "B", "explanation": "‹解›"},
        right="«solid»",
    ),
    read("haonan-li/cmmlu", {"Question": "«冰是什么？»", **ICE_ABCD, "Answer": "B"}, right="«solid»"),
    read("openai/MMMLU", {"Question": ICE, **ICE_ABCD, "Answer": "B", "Subject": "physics"}, right="«solid»"),
    read(
        "HAERAE-HUB/KMMLU",
        *counted({"question": ICE, **ICE_ABCD, "Category": "Chemistry"}, "answer", (2, 1, 4)),
        right=[OPTIONS[1], OPTIONS[0], OPTIONS[3]],
    ),
    read(
        "CohereLabs/Global-MMLU-Lite",
        {
            "question": ICE,
            **{f"option_{letter}": text for letter, text in zip("abcd", OPTIONS, strict=True)},
            "answer": "B",
        },
        right="«solid»",
    ),
    read(
        "facebook/belebele",
        *counted(
            {
                **{"flores_passage": "«Ann froze water.»", "question": "«What is it now?»"},
                **{f"mc_answer{number}": text for number, text in enumerate(OPTIONS, 1)},
            },
            "correct_answer_num",
            "214",
        ),
        right=[OPTIONS[1], OPTIONS[0], OPTIONS[3]],
    ),
    read(
        "ehovy/race",
        {
            "example_id": "h1",
            "article": "«Ann froze water.»",
            "answer": "B",
            "question": "«It is now _ .»",
            "options": OPTIONS,
        },
        right="«solid»",
    ),
    refused(
        "EleutherAI/race",
        "problems",
        {
            "article": "«Ann froze water.»",
            "problems": "[{'question': 'It is now _ .', 'answer': 'B', 'options': ['gas', 'solid', 'hot', 'salty']}]",
        },
    ),
    read(
        "EleutherAI/logiqa",
        {
            "label": "b",
            "context": "«All ice is cold.»",
            "question": "«So ice is»",
            "options": OPTIONS,
        },
        right="«solid»",
    ),
    read(
        "lucasmccabe/logiqa",
        *counted(
            {
                "context": "«All ice is cold.»",
                "query": "«So ice is»",
                "options": OPTIONS,
            },
            "correct_option",
            (1, 0, 3),
        ),
        right=[OPTIONS[1], OPTIONS[0], OPTIONS[3]],
    ),
    read(
        "GBaker/MedQA-USMLE-4-options",
        {
            **{"question": ICE, "answer": "«solid»", "options": ICE_ABCD, "meta_info": "step1", "answer_idx": "B"},
            **{"metamap_phrases": ["water"]},
        },
        right="«solid»",
    ),
    read(
        "GBaker/MedQA-USMLE-4-options-hf",
        *counted(
            {
                **{"id": "t1", "sent1": ICE, "sent2": ""},
                **{f"ending{n}": text for n, text in enumerate(OPTIONS)},
            },
            "label",
            (1, 0, 3),
        ),
        right=[OPTIONS[1], OPTIONS[0], OPTIONS[3]],
    ),
    read(
        "bigbio/med_qa",
        {
            **{"meta_info": "step1", "question": ICE, "answer_idx": "B", "answer": "«solid»"},
            **{"options": [{"key": key, "value": text} for key, text in ICE_ABCD.items()]},
        },
        right="«solid»",
    ),
    read(
        "openlifescienceai/medmcqa",
        *counted(
            {
                **{"id": "m", "question": ICE, **{f"op{key.lower()}": text for key, text in ICE_ABCD.items()}},
                **{"choice_type": "single", "exp": "‹cold›", "subject_name": "Physics", "topic_name": None},
            },
            "cop",
            (1, 0, 3),
        ),
        right=[OPTIONS[1], OPTIONS[0], OPTIONS[3]],
    ),
    read(
        "Idavidrein/gpqa",
        *(
            {
                **{"Question": f"«Ice {number} is»", "Correct Answer": "«solid»", "Incorrect Answer 1": "«gas»"},
                **{
                    "Incorrect Answer 2": "«hot»",
                    "Incorrect Answer 3": "«salty»",
                    "Explanation": "‹cold›",
                    "Subdomain": "Physics",
                },
            }
            for number in range(4)
        ),
        right="«solid»",
    ),
    read(
        "allenai/sciq",
        *(
            {
                **{
                    "question": f"«Ice {number} is»",
                    "distractor3": "«gas»",
                    "distractor1": "«hot»",
                    "distractor2": "«salty»",
                },
                **{"correct_answer": "«solid»", "support": "«Water freezes.»"},
            }
            for number in range(4)
        ),
        right="«solid»",
    ),
    read(
        "truthfulqa/truthful_qa",
        *(
            {
                "question": f"«Is ice {number} hot?»",
                "mc1_targets": {"choices": ["«No, cold.»", "«Yes.»", "«Both.»"], "labels": [1, 0, 0]},
                "mc2_targets": {"choices": ["No, cold.", "Not hot.", "Yes."], "labels": [1, 1, 0]},
            }
            for number in range(4)
        ),
        right="«No, cold.»",
    ),
    read(
        "allenai/cosmos_qa",
        *counted(
            {
                **{"id": "c", "context": "«Ann froze water.»", "question": "«What is it now?»"},
                **{f"answer{number}": text for number, text in enumerate(OPTIONS)},
            },
            "label",
            (1, 0, 3),
        ),
        right=[OPTIONS[1], OPTIONS[0], OPTIONS[3]],
    ),
    read(
        "emozilla/quality",
        *counted(
            {
                "article": "«Ann froze water.»",
                "question": "«It is now»",
                "options": OPTIONS,
                "hard": False,
            },
            "answer",
            (1, 0, 3),
        ),
        right=[OPTIONS[1], OPTIONS[0], OPTIONS[3]],
    ),
    read(
        "deepmind/aqua_rat",
        {
            **{"question": "«1 + 2 is»", "options": ["A)«21»", "B)«3»", "C)«12»", "D)«0»", "E)«1»"]},
            **{"rationale": "‹It is 3.›", "correct": "B"},
        },
        right="«3»",
    ),
    read(
        "allenai/math_qa",
        {
            **{"Problem": "«1 + 2 is»", "Rationale": "‹It is 3.›", "correct": "b", "category": "general"},
            **{"options": "a ) «21» , b ) «3» , c ) «12» , d ) «0» , e ) «none»", "annotated_formula": "‹add(1,2)›"},
        },
        right="«3»",
    ),
    read(
        "AGIEval gaokao-mathqa",
        {
            **{"passage": None, "question": "«1 + 2 is»", "options": ["(A)«21»", "(B)«3»", "(C)«12»", "(D)«0»"]},
            **{"label": "B", "answer": None, "other": {"source": "2021"}},
        },
        right="«3»",
    ),
    read(
        "mcaleste/sat_multiple_choice_math_may_23",
        {
            "id": "0",
            "question": "«1 + 2 is»",
            "options": "A) «21» B) «3» C) «12» D) «0»",
            "Answer": "B",
        },
        right="«3»",
    ),
    read(
        "dmayhem93/agieval-logiqa-en",
        {
            **{
                "query": "«All ice is cold.» «So ice is» Answer Choices: (A)«hot» (B)«solid»\nA: Among A through B, the answer is"
            },
            **{"choices": ["(A)«hot»", "(B)«solid»"], "gold": [1]},
        },
        answer="B",
    ),
    read(
        "derek-thomas/ScienceQA",
        {
            **{
                "image": None,
                "question": "«What is ice?»",
                "choices": OPTIONS,
                "answer": 1,
                "hint": "«Water freezes.»",
            },
            **{
                "task": "closed choice",
                "grade": "grade2",
                "subject": "natural science",
                "lecture": "‹l›",
                "solution": "‹s›",
            },
        },
        right="«solid»",
    ),
]

# ------------------------------------------------------------------------------------------------------ reading

READING = [
    read(
        "google/boolq",
        {"question": "«is ice cold»", "answer": True, "passage": "«Ice is cold.»"},
        answer=("true", "yes"),
    ),
    read(
        "rajpurkar/squad",
        {
            **{"id": "5", "title": "Ice", "context": "«Ann froze water.»", "question": "«Who froze it?»"},
            **{"answers": {"text": ["Ann"], "answer_start": [0]}},
        },
        answer="Ann",
    ),
    refused(
        "SQuAD's own JSON",
        "paragraphs",
        {
            "title": "Ice",
            "paragraphs": [
                {
                    "context": "«Ann froze water.»",
                    "qas": [
                        {"id": "5", "question": "«Who froze it?»", "answers": [{"text": "Ann", "answer_start": 0}]},
                    ],
                }
            ],
        },
    ),
    read(
        "ucinlp/drop",
        {
            **{
                "section_id": "n",
                "query_id": "q",
                "passage": "«Ann scored 3, Bo 4.»",
                "question": "«How many did Bo score?»",
            },
            **{"answers_spans": {"spans": ["4"], "types": ["number"]}},
        },
        answer="4",
    ),
    read(
        "hotpotqa/hotpot_qa",
        {
            **{"id": "5", "question": "«Who froze it?»", "answer": "Ann", "type": "bridge", "level": "easy"},
            **{"supporting_facts": {"title": ["Ice"], "sent_id": [0]}},
            **{
                "context": {
                    "title": ["«Ice»", "«Fire»"],
                    "sentences": [["«Ann froze water.»", "«It was cold.»"], ["«Bo lit it.»"]],
                }
            },
        },
        answer="Ann",
    ),
    read(
        "dgslibisey/MuSiQue",
        {
            **{"id": "2hop", "question": "«Who froze it?»", "answer": "Ann", "answer_aliases": [], "answerable": True},
            **{
                "paragraphs": [
                    {"idx": 0, "title": "«Ice»", "paragraph_text": "«Ann froze water.»", "is_supporting": True}
                ]
            },
            **{
                "question_decomposition": [
                    {"id": 1, "question": "‹froze?›", "answer": "‹Ann›", "paragraph_support_idx": 0}
                ]
            },
        },
        answer="Ann",
    ),
    read(
        "qiaojin/PubMedQA",
        {
            **{"pubid": 1, "question": "«Is ice cold?»", "long_answer": "‹It is.›", "final_decision": "yes"},
            **{
                "context": {
                    "contexts": ["«We froze water.»", "«It was cold.»"],
                    "labels": ["METHODS", "RESULTS"],
                    "meshes": ["Ice"],
                }
            },
        },
        answer="yes",
    ),
    read(
        "google-research-datasets/nq_open",
        {"question": "«who froze it»", "answer": ["Ann"]},
        {"question": "«who froze it»", "answer": ["Ann", "Ann B."]},
        answer=["Ann", ["Ann", "Ann B."]],
    ),
    read(
        "mandarjoshi/trivia_qa",
        {
            **{
                "question": "«Who froze it?»",
                "question_id": "tc_1",
                "question_source": "quiz",
                "entity_pages": {"title": []},
            },
            **{
                "answer": {
                    "aliases": ["Ann", "Ann B."],
                    "normalized_aliases": ["ann"],
                    "value": "Ann",
                    "type": "WikipediaEntity",
                }
            },
        },
        answer=(["Ann", "Ann B."], "Ann"),
    ),
    read(
        "RUC-NLPIR/FlashRAG_datasets",
        {"id": "train_0", "question": "«who froze it?»", "golden_answers": ["Ann"]},
        answer="Ann",
    ),
    read(
        "PeterJinGo/nq_hotpotqa_train",
        {
            **verl_row("Answer the question. «Who froze it?»", {"target": ["Ann", "Ann B."]}, "nq"),
            **{"id": "train_0", "question": "«Who froze it?»", "golden_answers": ["Ann", "Ann B."], "metadata": None},
        },
        answer='{"target": ["Ann", "Ann B."]}',
    ),
    read(
        "TIGER-Lab/WebInstruct-verified",
        {
            **{"id": 1, "question": SUM, "answer": "3", "answer_type": "Integer", "category": "Mathematics"},
            **{"difficulty": "Primary School"},
        },
        answer="3",
    ),
    refused(
        "TAT-QA",
        "questions",
        {
            **{
                "table": {"uid": "t", "table": [["", "2019"], ["«Sales»", "«7»"]]},
                "paragraphs": [{"uid": "p", "text": "«In $.»"}],
            },
            **{"questions": [{"uid": "q", "question": "«Sales?»", "answer": "7", "answer_type": "span"}]},
        },
    ),
    refused(
        "FinQA's own JSON",
        "qa",
        {
            **{"pre_text": ["«In $.»"], "post_text": ["«Rounded.»"], "table": [["", "2019"], ["«Sales»", "«7»"]]},
            **{
                "qa": {"question": "«Sales?»", "answer": "7", "program": "‹p›"},
                "id": "A/2019/page_1.pdf-1",
                "filename": "f",
            },
        },
    ),
    read(
        "dreamerdeo/finqa",
        {
            **{
                "id": "A",
                "pre_text": ["«In $.»"],
                "post_text": ["«Rounded.»"],
                "table": [["", "2019"], ["«Sales»", "«7»"]],
            },
            **{"question": "«Sales?»", "answer": "7", "program_re": "‹p›"},
        },
        answer="7",
    ),
    refused(
        "stanfordnlp/coqa",
        "story|questions",
        {
            **{"source": "wikipedia", "story": "«Ann froze water.»", "questions": ["«Who?»", "«What?»"]},
            **{"answers": {"input_text": ["Ann", "Water"], "answer_start": [0, 10], "answer_end": [3, 15]}},
        },
    ),
    refused(
        "cais/hle",
        "image",
        {
            "id": "h",
            "question": SUM,
            "image": "data:image/jpeg;base64,/9j/4AAQ",
            "answer": "3",
            "answer_type": "exactMatch",
        },
    ),
    read("lukaemon/bbh", {"input": "«Is ice cold?»\nOptions:\n(A) «yes»\n(B) «no»", "target": "(A)"}, answer="(A)"),
]

# --------------------------------------------------------------------------------------------------------- code

CHECK = "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(3) == 6\n"
ASSERTS = ["assert twice(2) == 4", "assert twice(3) == 6"]
STDIN = {"inputs": ["2\n", "3\n"], "outputs": ["4\n", "6\n"]}
CALLS = {"fn_name": "twice", "inputs": [[2], [3]], "outputs": [4, 6]}
STARTER = "«class Solution:»\n    «def twice(self, n: int) -> int:»\n        "
LEETCODE_PRELUDE = "from typing import *\nfrom math import *\n\ninf = float('inf')\n"

CODE = [
    read(
        "openai/openai_humaneval",
        {
            **{"task_id": "HumanEval/0", "prompt": 'import math\n\ndef twice(n):\n    """«Twice n.»"""\n'},
            **{"canonical_solution": "    return 2 * n\n", "test": CHECK, "entry_point": "twice"},
        },
        tests=CHECK,
        entry_point="twice",
        setup='import math\n\ndef twice(n):\n    """«Twice n.»"""\n',
    ),
    read(
        "evalplus/humanevalplus",
        {
            **{"task_id": "HumanEval/0", "prompt": 'def twice(n):\n    """«Twice n.»"""\n', "entry_point": "twice"},
            **{"canonical_solution": "    return 2 * n\n", "test": f"import numpy as np\n\n{CHECK}"},
        },
        tests=f"import numpy as np\n\n{CHECK}",
        entry_point="twice",
    ),
    read(
        "google-research-datasets/mbpp",
        {
            **{"task_id": 1, "text": "«Write a function to double a number.»", "code": TWICE, "test_list": ASSERTS},
            **{"test_setup_code": "import math", "challenge_test_list": ["assert twice(0) == 0"]},
        },
        tests=ASSERTS,
        setup="import math",
    ),
    read(
        "google-research-datasets/mbpp sanitized",
        {
            **{
                "source_file": "b.ipynb",
                "task_id": 2,
                "prompt": "«Write a function to double a number.»",
                "code": TWICE,
            },
            **{"test_imports": ["import math"], "test_list": ASSERTS},
        },
        tests=ASSERTS,
        setup="import math",
    ),
    read(
        "evalplus/mbppplus",
        {
            **{
                "task_id": 2,
                "code": TWICE,
                "prompt": "«Write a function to double a number.»",
                "source_file": "b.ipynb",
            },
            **{"test_imports": [], "test_list": ASSERTS},
            **{
                "test": "inputs = [[2], [3]]\nresults = [4, 6]\nfor i, (inp, exp) in enumerate(zip(inputs, results)):\n"
                "    assert twice(*inp) == exp\n"
            },
        },
    ),
    read(
        "codeparrot/apps",
        {
            "problem_id": 0,
            "question": "«Read n, print 2n.»",
            "solutions": '["‹print›(2 * int(input()))"]',
            "input_output": json.dumps(STDIN),
            "difficulty": "interview",
            "url": "u",
            "starter_code": "",
        },
        {
            "problem_id": 1,
            "question": "«Double n.»",
            "solutions": "[]",
            "input_output": json.dumps(CALLS),
            "difficulty": "interview",
            "url": "u",
            "starter_code": STARTER,
        },
        tests=[STDIN, CALLS],
    ),
    read(
        "BAAI/TACO",
        {
            "question": "«Double n.»",
            "solutions": "[]",
            "starter_code": STARTER,
            "input_output": json.dumps(CALLS),
            "difficulty": "EASY",
            "raw_tags": "[]",
            "name": None,
            "source": "geeksforgeeks",
            "tags": "[]",
            "url": "u",
        },
        tests=CALLS,
    ),
    read(
        "deepmind/code_contests",
        {
            **{
                "name": "1_A",
                "description": "«Read n, print 2n.»",
                "source": 2,
                "difficulty": 7,
                "time_limit": {"seconds": 2},
            },
            **{
                "public_tests": {"input": ["2\n"], "output": ["4\n"]},
                "private_tests": {"input": ["3\n"], "output": ["6\n"]},
            },
            **{
                "generated_tests": {"input": [], "output": []},
                "solutions": {"language": [3], "solution": ["‹print›(1)"]},
            },
        },
    ),
    read(
        "livecodebench/code_generation_lite",
        {
            "question_title": "Twice",
            "question_content": "«Double n.»",
            "platform": "leetcode",
            "question_id": "1",
            "contest_id": "w",
            "contest_date": "2024-08-04T00:00:00",
            "starter_code": STARTER,
            "difficulty": "easy",
            "public_test_cases": json.dumps([{"input": "2", "output": "4", "testtype": "functional"}]),
            "private_test_cases": json.dumps([{"input": "3", "output": "6", "testtype": "functional"}]),
            "metadata": '{"func_name": "twice"}',
        },
    ),
    read(
        "agentica-org/DeepCoder-Preview-Dataset",
        {
            "problem": "«Double n.»",
            "starter_code": STARTER,
            "metadata": {"func_name": "twice"},
            "tests": json.dumps(
                [{"input": "2", "output": "4", "testtype": "functional", "metadata": {"func_name": "twice"}}]
            ),
        },
        {"problem": "«Read n, print 2n.»", "solutions": ["‹print›(2 * int(input()))"], "tests": json.dumps(STDIN)},
        {
            "problem": "«Read n, print 2n.»",
            "solutions": ["‹print›(2 * int(input()))"],
            "tests": json.dumps([{"fn_name": None, "input": "2\n", "output": "4\n", "type": "stdin_stdout"}]),
        },
    ),
    read(
        "newfacade/LeetCodeDataset",
        {
            **{
                "task_id": "twice",
                "question_id": 1,
                "difficulty": "Easy",
                "tags": ["Math"],
                "problem_description": "Double n.",
            },
            **{
                "starter_code": "class Solution:\n    def twice(self, n: int) -> int:\n        ",
                "estimated_date": "2024-08-04",
            },
            **{
                "prompt": LEETCODE_PRELUDE,
                "completion": "class Solution:\n    def twice(self, n):\n        return 2 * n",
            },
            **{"entry_point": "Solution().twice", "test": CHECK, "response": "‹Use 2 * n.›"},
            **{"input_output": [{"input": "n = 2", "output": "4"}], "query": f"Solve it.\n\n«Double n.»\n\n{STARTER}"},
        },
        tests=CHECK,
        entry_point="twice",
        setup=LEETCODE_PRELUDE,
    ),
    read(
        "KodCode/KodCode-V1",
        {
            **{
                "version": "v1.0",
                "style": "instruct",
                "subset": "Prefill",
                "question_id": "P_1",
                "question": "«Double a number.»",
            },
            **{"solution": TWICE, "test": "from solution import twice\n\ndef test_two():\n    assert twice(2) == 4\n"},
            **{
                "test_info": [
                    {
                        "docstring": "",
                        "function_declaration": "def twice(n):",
                        "function_name": "twice",
                        "parameter_list": "(n)",
                    }
                ]
            },
        },
        tests="from solution import twice\n\ndef test_two():\n    assert twice(2) == 4\n",
    ),
    with_options(
        "bigcode/bigcodebench",
        {"mapping": {"prompt": "instruct_prompt"}},
        {
            **{
                "task_id": "BigCodeBench/0",
                "complete_prompt": "def task_func(n):\n",
                "instruct_prompt": "«Double a number.»",
            },
            **{
                "canonical_solution": "    return 2 * n",
                "code_prompt": "def task_func(n):\n",
                "entry_point": "task_func",
            },
            **{
                "test": "import unittest\nclass TestCases(unittest.TestCase):\n    def test_two(self):\n"
                "        self.assertEqual(task_func(2), 4)\n",
                "libs": "[]",
            },
        },
    ),
    read(
        "PrimeIntellect/verifiable-coding-problems",
        {
            **{"source": "apps", "task_type": "verifiable_code", "in_source_id": "1", "prompt": "«Read n, print 2n.»"},
            **{"gold_standard_solution": "‹```python›", "problem_id": "p", "metadata": "{}"},
            **{
                "verification_info": json.dumps(
                    {
                        "language": "python",
                        "test_cases": [{"type": "stdin_stdout", "input": "2\n", "output": "4\n", "fn_name": None}],
                    }
                )
            },
        },
    ),
    read(
        "open-r1/verifiable-coding-problems-python",
        {
            **{"source": "apps", "task_type": "verifiable_code", "in_source_id": "1", "prompt": "«Read n, print 2n.»"},
            **{"gold_standard_solution": "‹```python›", "problem_id": "p", "metadata": {"difficulty": "easy"}},
            **{
                "verification_info": {
                    "language": "python",
                    "test_cases": [{"type": "stdin_stdout", "input": "2\n", "output": "4\n", "fn_name": None}],
                }
            },
        },
    ),
    read(
        "TIGER-Lab/AceCode-87K",
        {
            "id": "a",
            "source": "oss",
            "question": "«Double a number.»",
            "test_cases": ASSERTS,
            "context_messages": None,
        },
        tests=ASSERTS,
    ),
    read(
        "reasoning-gym",
        {
            "question": SUM,
            "answer": "3",
            "metadata": {"source_dataset": "chain_sum", "source_index": 0, "difficulty": {}},
        },
        answer="3",
    ),
]

# --------------------------------------------------------------------------------------------------------- chat

HI, HELLO = "«Say hello.»", "‹Hello!›"
TURNS = [user(HI), assistant(HELLO)]
SHAREGPT = [{"from": "human", "value": HI}, {"from": "gpt", "value": HELLO}]

CHAT = [
    read(
        "tatsu-lab/alpaca",
        {
            "instruction": "«Translate.»",
            "input": "«cat»",
            "output": "‹chat›",
            "text": "Below is an instruction.\n\n### Instruction:\n«Translate.»\n\n### Input:\n«cat»\n\n### Response:\n‹chat›",
        },
        completion="‹chat›",
    ),
    read(
        "databricks/databricks-dolly-15k",
        {
            "instruction": "«Who froze it?»",
            "context": "«Ann froze water.»",
            "response": "‹She›",
            "category": "closed_qa",
        },
        {"instruction": "«Name a colour.»", "context": "", "response": "‹She›", "category": "open_qa"},
        completion="‹She›",
    ),
    read(
        "teknium/OpenHermes-2.5",
        {
            "conversations": SHAREGPT,
            "source": "airoboros2.2",
            "category": "orca",
            "system_prompt": None,
            "id": None,
        },
        completion=[assistant(HELLO)],
    ),
    read(
        "anon8231489123/ShareGPT_Vicuna_unfiltered",
        {"id": "i", "conversations": SHAREGPT},
        completion=[assistant(HELLO)],
    ),
    read(
        "HuggingFaceH4/ultrachat_200k",
        {
            "prompt": HI,
            "prompt_id": "p",
            "messages": [*TURNS[:1], assistant("«Hello?»"), user("«Again.»"), assistant(HELLO)],
        },
        completion=[assistant(HELLO)],
    ),
    read(
        "HuggingFaceH4/no_robots",
        {"prompt": HI, "prompt_id": "p", "messages": TURNS, "category": "Generation"},
        completion=[assistant(HELLO)],
    ),
    read("allenai/tulu-3-sft-mixture", {"id": "t", "messages": TURNS, "source": "ai2"}, completion=[assistant(HELLO)]),
    read("allenai/RLVR-GSM", {"messages": [user(SUM)], "ground_truth": "3", "dataset": "gsm8k"}, answer="3"),
    read(
        "allenai/RLVR-IFeval",
        {
            **{"messages": [user("«Write in capitals.»")], "dataset": "ifeval", "constraint_type": "All Uppercase"},
            **{"ground_truth": '{"func_name": "validate_uppercase", "N": null}', "constraint": "‹c›"},
        },
        answer='{"func_name": "validate_uppercase", "N": null}',
    ),
    read(
        "ai2-adapt-dev/rlvr_acecoder",
        {
            "messages": [user("«Double a number.»")],
            "ground_truth": ASSERTS,
            "dataset": "ace_coder",
        },
    ),
    read(
        "open-thoughts/OpenThoughts-114k",
        {
            "system": "Think.",
            "conversations": [{"from": "user", "value": HI}, {"from": "assistant", "value": HELLO}],
        },
        completion=[assistant(HELLO)],
    ),
    read("trl-lib/Capybara", {"source": "s", "messages": TURNS, "num_turns": 1}, completion=[assistant(HELLO)]),
    read(
        "nvidia/Llama-Nemotron-Post-Training-Dataset",
        {
            **{"input": [user(HI)], "output": HELLO, "category": "chat", "license": "cc-by-4.0", "reasoning": "off"},
            **{"generator": "g", "used_in_training": "yes", "version": "v1", "system_prompt": "detailed thinking off"},
        },
        completion=HELLO,
    ),
    read(
        "LLaMA-Factory v1_sft",
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "value": HI}], "loss_weight": 0.0},
                {"role": "assistant", "content": [{"type": "text", "value": HELLO}], "loss_weight": 1.0},
            ]
        },
    ),
    read(
        "LLaMA-Factory glaive_toolcall",
        {
            "conversations": [
                {"from": "human", "value": "«Weather in Rome?»"},
                {"from": "function_call", "value": '{"name": "weather", "arguments": {"city": "Rome"}}'},
                {"from": "observation", "value": "«sunny»"},
                {"from": "gpt", "value": HELLO},
            ],
            "tools": '[{"name": "weather", "parameters": {}}]',
        },
        completion=[assistant(HELLO)],
    ),
    read(
        "NousResearch/hermes-function-calling-v1",
        {
            "id": "h",
            "conversations": [{"from": "system", "value": "«You call tools.»"}, *SHAREGPT],
            "tools": "[]",
        },
        completion=[assistant(HELLO)],
    ),
    with_options(
        "Salesforce/xlam-function-calling-60k",
        {"mapping": {"answer": "answers"}},
        {
            **{
                "id": 0,
                "query": "«Weather in Rome?»",
                "answers": '[{"name": "weather", "arguments": {"city": "Rome"}}]',
            },
            **{"tools": '[{"name": "weather", "description": "d", "parameters": {}}]'},
        },
        answer='[{"name": "weather", "arguments": {"city": "Rome"}}]',
    ),
    refused(
        "glaiveai/glaive-function-calling-v2",
        "chat",
        {
            "system": "SYSTEM: You call tools.",
            "chat": "USER: Weather?\n\n\nASSISTANT: Sunny. <|endoftext|>",
        },
    ),
    refused(
        "OpenAssistant/oasst1",
        "role|parent_id",
        {
            **{"message_id": "m1", "parent_id": None, "text": HI, "role": "prompter", "lang": "en"},
            **{"message_tree_id": "m1", "tree_state": "ready_for_export"},
        },
        {
            **{"message_id": "m2", "parent_id": "m1", "text": HELLO, "role": "assistant", "lang": "en"},
            **{"message_tree_id": "m1", "tree_state": "ready_for_export"},
        },
    ),
    refused("GAIR/lima", "conversations", {"conversations": [HI, HELLO], "source": "stackexchange"}),
]

# -------------------------------------------------------------------------------------------------- preferences

BETTER, WORSE = "‹Hello!›", "‹Go away.›"

PREFERENCES = [
    read(
        "HuggingFaceH4/ultrafeedback_binarized",
        {
            **{
                "prompt": HI,
                "prompt_id": "p",
                "chosen": [user(HI), assistant(BETTER)],
                "rejected": [user(HI), assistant(WORSE)],
            },
            **{"messages": [user(HI), assistant(BETTER)], "score_chosen": 9.0, "score_rejected": 2.0},
        },
        chosen=[assistant(BETTER)],
        rejected=[assistant(WORSE)],
    ),
    read(
        "trl-lib/ultrafeedback_binarized",
        {
            **{"chosen": [user(HI), assistant(BETTER)], "rejected": [user(HI), assistant(WORSE)], "score_chosen": 9.0},
            **{"score_rejected": 2.0},
        },
        chosen=[assistant(BETTER)],
        rejected=[assistant(WORSE)],
    ),
    read(
        "Anthropic/hh-rlhf",
        {
            **{
                "chosen": f"\n\nHuman: {HI}\n\nAssistant: {BETTER}",
                "rejected": f"\n\nHuman: {HI}\n\nAssistant: {WORSE}",
            },
        },
        chosen=[assistant(BETTER)],
        rejected=[assistant(WORSE)],
    ),
    read(
        "Skywork/Skywork-Reward-Preference-80K-v0.2",
        {
            "chosen": [user(HI), assistant(BETTER)],
            "rejected": [user(HI), assistant(WORSE)],
            "source": "magpie",
        },
        chosen=[assistant(BETTER)],
        rejected=[assistant(WORSE)],
    ),
    read(
        "Intel/orca_dpo_pairs",
        {"system": "Be kind.", "question": HI, "chosen": BETTER, "rejected": WORSE},
        chosen=BETTER,
        rejected=WORSE,
    ),
    read(
        "LLaMA-Factory dpo_en_demo",
        {
            **{"conversations": [{"from": "human", "value": HI}], "chosen": {"from": "gpt", "value": BETTER}},
            **{"rejected": {"from": "gpt", "value": WORSE}},
        },
        chosen=[assistant(BETTER)],
        rejected=[assistant(WORSE)],
    ),
    read(
        "trl-lib/kto-mix-14k",
        {"prompt": [user(HI)], "completion": [assistant(BETTER)], "label": True},
        completion=[assistant(BETTER)],
        label=True,
    ),
    read(
        "nvidia/HelpSteer2",
        {
            **{"prompt": HI, "response": BETTER, "helpfulness": 3, "correctness": 4, "coherence": 4, "complexity": 1},
            **{"verbosity": 1},
        },
        completion=BETTER,
        helpfulness=3,
    ),
    refused(
        "nvidia/HelpSteer3",
        "response1|overall_preference",
        {
            **{
                "domain": "general",
                "language": "english",
                "context": [user(HI)],
                "response1": BETTER,
                "response2": WORSE,
            },
            **{"overall_preference": -2, "individual_preference": []},
        },
    ),
    refused(
        "stanfordnlp/SHP",
        "human_ref_A|labels",
        {
            **{
                "post_id": "p",
                "domain": "askculinary",
                "history": HI,
                "human_ref_A": BETTER,
                "human_ref_B": WORSE,
                "labels": 1,
            },
            **{"c_root_id_A": "a", "c_root_id_B": "b", "score_A": 9, "score_B": 2, "score_ratio": 4.5},
        },
    ),
    refused(
        "lmarena-ai/arena-human-preference-55k",
        "response_a|winner",
        {
            **{"id": 1, "model_a": "m", "model_b": "n", "prompt": json.dumps([HI]), "response_a": json.dumps([BETTER])},
            **{"response_b": json.dumps([WORSE]), "winner_model_a": 1, "winner_model_b": 0, "winner_tie": 0},
        },
    ),
]

# ------------------------------------------------------------------------------------------------------- images

PICTURE = {"bytes": None, "path": "1.png"}

IMAGES = [
    refused("hiyouga/geometry3k", "image", {"images": [PICTURE], "problem": "<image>Find x.", "answer": "3"}),
    refused(
        "AI4Math/MathVista",
        "image",
        {
            **{
                "pid": "1",
                "question": "Find x.",
                "image": "images/1.jpg",
                "decoded_image": PICTURE,
                "choices": ["3", "4"],
            },
            **{"unit": None, "precision": 1.0, "answer": "3", "question_type": "multi_choice", "query": "Find x."},
        },
    ),
    refused(
        "HuggingFaceM4/A-OKVQA",
        "image",
        {
            **{"image": PICTURE, "question_id": "q", "question": "What is it?", "choices": ["cat", "dog"]},
            **{"correct_choice_idx": 0, "direct_answers": "['cat']", "rationales": ["It purrs."]},
        },
    ),
    refused(
        "lmms-lab/multimodal-open-r1-8k-verified",
        "image",
        {
            "image": PICTURE,
            "problem": "Find x.",
            "solution": "<answer> 3 </answer>",
            "original_question": "Find x.",
        },
    ),
    refused(
        "LLaMA-Factory mllm_demo", "image", {"messages": [user("<image>Who?"), assistant("Ann")], "images": ["1.jpg"]}
    ),
]

SETS = [*MATH, *CHOICES, *READING, *CODE, *CHAT, *PREFERENCES, *IMAGES]


@pytest.fixture(scope="module")
def loader():
    """scripts/data_loader.py as a module."""
    return load_script("data_loader")


def prompt_of(row: dict) -> str:
    """All that the model reads before it answers."""
    return "\n".join(message["content"] for message in row["prompt"])


def chosen_option(row: dict) -> str:
    """The text of the option whose letter is the answer."""
    options = re.findall(rf"^\(?{re.escape(row['answer'])}[).:]\s*(.+)$", prompt_of(row), re.MULTILINE)
    assert len(options) == 1, f"got answer {row['answer']!r} for {prompt_of(row)!r}"
    return options[0]


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in SETS])
def test_public_data_set(case, loader, tmp_path):
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(case.rows), encoding="utf-8")
    if case.refusal:
        with pytest.raises(loader.UserError, match=case.refusal):
            loader.load_rows(path, **case.options)
        return
    rows = loader.load_rows(path, **case.options).rows
    assert len(rows) == len(case.rows)
    for number, (raw, row) in enumerate(zip(case.rows, rows, strict=True)):
        text = json.dumps(raw, ensure_ascii=False)
        assert [part for part in re.findall("«.*?»", text) if part not in prompt_of(row)] == [], prompt_of(row)
        assert [part for part in re.findall("‹.*?›", text) if part in prompt_of(row)] == []
        for name, value in case.fields.items():
            several = len(case.rows) > 1 and isinstance(value, list) and len(value) == len(case.rows)
            want = value[number] if several else value
            got = chosen_option(row) if name == "right" else row.get(name)
            assert got in want if isinstance(want, tuple) else got == want, name
