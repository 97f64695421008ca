"""What is wanted of an output, in llguidance's notation."""

import json

from gossamer.engine.grammar_tokens import llguidance
from gossamer.engine.structured_outputs import Wanted

# Documents are written as json.dumps writes them, the most usual way: models choose no whitespace,
# of which a small one may never find an end.
JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
# Else text without a choice is cut into tokens to its end, anew for each mask: a constant of 40,000
# characters takes 18 ms a token so, and 0.02 as any other text. Its tokens are the model's choice.
NO_FORCING = '%llguidance {"no_forcing": true}'


def grammar_text(wanted: Wanted) -> str:
    """ValueError for what llguidance cannot read at all."""
    guidance = llguidance()
    if wanted.kind == "json":
        matcher = guidance.LLMatcher
        made = json.loads(matcher.grammar_from_json_schema(wanted.text, overrides=JSON_STYLE))
        [schema] = made["grammars"]
        start = {"lark_grammar": f"{NO_FORCING}\nstart: @{schema['name']}"}
        return json.dumps(made | {"grammars": [start, schema]})
    if wanted.kind == "regex":  # \d and \w are ASCII, as in patterns of JSON schemas
        return f"{NO_FORCING}\nstart: /{guidance.regex_to_lark(wanted.text, use_ascii='dw')}/"
    try:
        found = str(guidance.grammar_from(wanted.kind, wanted.text))
    except Exception as error:  # its reader of GBNF raises what it likes
        raise ValueError(str(error)) from None
    return f"{found}\n{NO_FORCING}\n"  # at the end, so that errors name the lines they are in
