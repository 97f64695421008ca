"""Rows of LongBench's format, tokenizers and a subject, for its tests."""

import json

from tests.evaluation.fakes import FakeSubject

ANSWERS = {
    "passage_count": "7",
    "passage_retrieval_en": "Paragraph 7",
    "trec": "City",
    "lcc": "x = 1",
    "repobench-p": "return x",
}


class Letters:
    """Every letter is a token; a chat has a token at both of its ends."""

    chat_template = None

    def __call__(self, text, add_special_tokens=True):
        return {"input_ids": [ord(letter) for letter in text]}

    def decode(self, ids, skip_special_tokens=True):
        return "".join(map(chr, ids))

    def apply_chat_template(self, messages, tokenize, add_generation_prompt):
        return f"<{messages[0]['content']}>"


class Chats(Letters):
    chat_template = "a template"


def subject_of(answer, tokenizer=None):
    subject = FakeSubject(answer)
    subject.tokenizer = tokenizer or Letters()
    return subject


def row(task, number=0, **changes):
    answer = ANSWERS.get(task, "the red house")
    return {
        "input": f"Input {number}?",
        "context": f"Context {number}.",
        "answers": [answer],
        "length": 2,
        "dataset": task,
        "language": "en",
        "all_classes": ["City", "Date"] if task == "trec" else None,
        "_id": f"id-{number}",
    } | changes


def write(folder, task, rows):
    (folder / f"{task}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
