"""A tiny model in a directory, with a tokenizer of whole words and a chat template."""

import pytest

from tests.models.tiny import VOCAB, tiny_directory

SPECIAL = ["<unk>", "<s>", "</s>", "user:", "assistant:", "system:"]
WORDS = [*SPECIAL, *(f"w{i}" for i in range(VOCAB - len(SPECIAL)))]
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + ' ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)


def tiny_with_words(path, template=TEMPLATE, **settings):
    """Save the model at `path`; its words are w0 to w90, and none of them ends a text."""
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    tiny_directory("llama", path, **{"head_dim": 32, "eos_token_id": None, **settings})
    vocabulary = {word: i for i, word in enumerate(WORDS)}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<unk>", eos_token="</s>"
    )
    tokenizer.chat_template = template
    tokenizer.save_pretrained(path)
    return path
