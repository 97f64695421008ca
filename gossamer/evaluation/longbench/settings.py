"""The 16 English tasks of LongBench (arXiv 2308.14508), with its published settings.

Templates say what the benchmark's own say, in the same order and with the same labels, in other
words: scores of different templates should not be mixed in one table.
"""

from dataclasses import dataclass
from typing import Literal

from gossamer.evaluation.longbench.metrics import (
    Metric,
    classification,
    code_similarity,
    count,
    retrieval,
    rouge_l,
    token_f1,
)

Category = Literal[
    "single-document QA", "multi-document QA", "summarization", "few-shot", "synthetic", "code"
]


@dataclass(frozen=True)
class Settings:
    """max_tokens: of an answer. template: with places for the context and the input.

    Few-shot answers are their first line. Few-shot and code prompts go on in the form of their
    context, so they are never a chat.
    """

    category: Category
    max_tokens: int
    metric: Metric
    template: str

    @property
    def first_line(self) -> bool:
        return self.category == "few-shot"

    @property
    def chat(self) -> bool:
        return self.category not in ("few-shot", "code")


_STORY = (
    "Below is a story (a novel or the script of a film), and after it a question about it. Answer "
    "in as few words as you can, with a single phrase where that is enough, and explain nothing."
    "\n\nStory: {context}\n\n"
    "Answer the following question about the story, in as few words as you can, with a single "
    "phrase where that is enough, and explain nothing.\n\nQuestion: {input}\n\nAnswer:"
)
_ARTICLE_RULES = (
    "in as few words as you can, with a phrase or one sentence where that is enough. If the "
    'article does not hold the answer, write "unanswerable". If it is a question of yes or no, '
    'answer "yes", "no" or "unanswerable". Explain nothing.'
)
_ARTICLE = (
    f"Below is a scientific article, and after it a question about it. Answer {_ARTICLE_RULES}"
    "\n\nArticle: {context}\n\n"
    f"Answer the following question about the article {_ARTICLE_RULES}"
    "\n\nQuestion: {input}\n\nAnswer:"
)
_TEXT = (
    "Read this text; a short answer is wanted.\n\n{context}\n\n"
    "Answer the following question about the text. Give the answer only, and no other words."
    "\n\nQuestion: {input}\nAnswer:"
)
_PASSAGES = (
    "Answer a question with what the passages below say. Give the answer only, and no other words."
    "\n\nThese are the passages.\n{context}\n\n"
    "Answer the following question with what the passages say. Give the answer only, and no other "
    "words.\n\nQuestion: {input}\nAnswer:"
)
_REPORT = (
    "Below is a report of a government agency. Summarize it on one page.\n\nReport:\n{context}\n\n"
    "Now summarize the report on one page.\n\nSummary:"
)
_MEETING = (
    "Below is the transcript of a meeting, and after it a query: a question or an instruction. "
    "Answer the query with one or more sentences.\n\nTranscript:\n{context}\n\n"
    "Now answer the query about this meeting with one or more sentences.\n\n"
    "Query: {input}\nAnswer:"
)
_NEWS = (
    "Below are several news articles. Summarize all of them on one page.\n\nNews:\n{context}\n\n"
    "Now summarize all the news on one page.\n\nSummary:"
)
# The three tasks by example: the context has examples, whose form the input takes up.
_QUESTION_TYPE = (
    "Say of which type the last question is. Here are questions as examples.\n\n{context}\n{input}"
)
_TRIVIA = (
    "Answer the question with what its passage says. Give the answer only, and no other words. "
    "Here are some examples.\n\n{context}\n\n{input}"
)
_DIALOGUE = (
    "Summarize the dialogue in a few short sentences. Here are some examples."
    "\n\n{context}\n\n{input}"
)
_COUNT = (
    "Below are paragraphs from Wikipedia, some of which may be there more than once. Read them "
    "with care and find out how many different paragraphs there are: how many remain when "
    "duplicates are taken away?\n\n{context}\n\n"
    "Write how many different paragraphs there are without duplicates. Write the number only, such "
    "as 1, 2, 3 and so on.\n\nThe final answer is: "
)
_RETRIEVAL = (
    "Below are 30 paragraphs from Wikipedia, and after them an abstract. Find out to which "
    "paragraph the abstract belongs.\n\n{context}\n\nThis is the abstract.\n\n{input}\n\n"
    "Write the number of the paragraph to which the abstract belongs. The answer must have the "
    'form "Paragraph 1", "Paragraph 2" and so on.\n\nThe answer is: '
)
_CODE = "Complete the following code.\n{context}{input}Next line of code:\n"

SETTINGS = {
    "narrativeqa": Settings("single-document QA", 128, token_f1, _STORY),
    "qasper": Settings("single-document QA", 128, token_f1, _ARTICLE),
    "multifieldqa_en": Settings("single-document QA", 64, token_f1, _TEXT),
    "hotpotqa": Settings("multi-document QA", 32, token_f1, _PASSAGES),
    "2wikimqa": Settings("multi-document QA", 32, token_f1, _PASSAGES),
    "musique": Settings("multi-document QA", 32, token_f1, _PASSAGES),
    "gov_report": Settings("summarization", 512, rouge_l, _REPORT),
    "qmsum": Settings("summarization", 512, rouge_l, _MEETING),
    "multi_news": Settings("summarization", 512, rouge_l, _NEWS),
    "trec": Settings("few-shot", 64, classification, _QUESTION_TYPE),
    "triviaqa": Settings("few-shot", 32, token_f1, _TRIVIA),
    "samsum": Settings("few-shot", 128, rouge_l, _DIALOGUE),
    "passage_count": Settings("synthetic", 32, count, _COUNT),
    "passage_retrieval_en": Settings("synthetic", 32, retrieval, _RETRIEVAL),
    "lcc": Settings("code", 64, code_similarity, _CODE.replace("{input}", "")),
    "repobench-p": Settings("code", 64, code_similarity, _CODE),
}


def best_score(task: str, prediction: str, answers: tuple[str, ...], classes: list[str]) -> float:
    """The best score of the prediction, after post-processing, among the answers."""
    settings = SETTINGS[task]
    if settings.first_line:
        prediction = prediction.lstrip("\n").split("\n")[0]
    return max(settings.metric(prediction, answer, classes) for answer in answers)
