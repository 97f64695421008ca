"""Grammars of outputs, compiled by llguidance for the tokens of one model.

Chosen over xgrammar as it depends on nothing (a wheel of 3 MB; the other wants transformers and
Triton too), reports what it cannot do of a schema as an error, and builds its automata while it
runs: compiling takes a millisecond, and what a grammar may cost is bounded by fuel.
"""

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gossamer.engine.grammar_text import grammar_text
from gossamer.engine.grammar_tokens import llguidance, tokens_for
from gossamer.engine.schema_places import finite, place_of
from gossamer.engine.structured_outputs import StructuredOutputs, Wanted

CACHED = 256  # compiled grammars that are kept
COMPILERS = 4  # threads; they leave the interpreter to others while they compile
SECONDS = 10.0  # to compile one; fuel ends all that was found well before
LIMITS = {
    "initial_lexer_fuel": 1_000_000,  # about 20 ms
    "step_lexer_fuel": 200_000,  # about 14 ms
    "step_max_items": 50_000,
    "max_lexer_states": 50_000,  # 1 to 2 KB each
    "max_grammar_size": 500_000,
    "verbose_errors": False,
}

# Matchers from which threads pay: 8 take 0.1 ms one by one, and 0.3 to 5 ms where a CPU is busy.
PARALLEL = 16
NOTHING = "nothing matches it"
REGEX_ERROR = re.compile(
    r"regex parse error:\n    .*\n    (?P<before> *)\^+\nerror: (?P<reason>.*)"
)
PICTURE = re.compile(r" *(\d+ \||\^)")  # lines of the grammar
STATE = re.compile("<state>|<non-verbose/>")  # from there on it is about llguidance itself
MESSAGE = 300  # characters of what llguidance says of an error

Bits = NDArray[np.int32]


class GrammarError(ValueError):
    """What cannot be compiled, or is too complex to go on with."""


class Grammars:
    """Compiles what requests want, and keeps the latest. All methods in any thread.

    vocab_size: of the logits. eos_ids: tokens that end an output.
    """

    def __init__(self, tokenizer: Any, vocab_size: int, eos_ids: Sequence[int]) -> None:
        self._tokenizer, self._vocab, self._eos = tokenizer, vocab_size, list(eos_ids)
        self._lock, self._compiled = threading.Lock(), OrderedDict[Wanted, Any]()
        self._making_tokens = threading.Lock()

    def matcher(self, outputs: StructuredOutputs) -> "Matcher":
        """At the start of an output; compiles, unless that was done lately.

        GrammarError names what is wrong and where. ImportError without llguidance.
        """
        wanted = outputs.wanted
        with self._lock:
            found = self._compiled.get(wanted)
            if found is not None:
                self._compiled.move_to_end(wanted)
        if found is None:
            found = self._compile(wanted)
            with self._lock:
                self._compiled[wanted] = found
                while len(self._compiled) > CACHED:
                    self._compiled.popitem(last=False)
        return Matcher(found.deep_copy(), -(-self._tokens.vocab_size // 32))

    def knows(self, outputs: StructuredOutputs) -> bool:
        with self._lock:
            return outputs.wanted in self._compiled

    def compile(self, outputs: StructuredOutputs) -> "Future[None]":
        """In another thread, so that `matcher` has nothing to do; GrammarError also for the time.

        What takes too long goes on until its fuel ends, and nobody waits for it.
        """
        told = Future[None]()
        answered = threading.Lock()

        def tell(error: BaseException | None) -> None:
            if answered.acquire(blocking=False):  # the first of the two
                timer.cancel()
                if error is None:
                    told.set_result(None)
                else:
                    told.set_exception(error)

        late = GrammarError(f"the grammar takes more than {SECONDS:g} seconds to compile")
        timer = threading.Timer(SECONDS, tell, [late])
        timer.daemon = True

        def work() -> None:
            timer.start()
            self.matcher(outputs)

        self._pool.submit(work).add_done_callback(lambda done: tell(done.exception()))
        return told

    def prepare(self) -> None:
        """Read the model's tokens now, before requests come; what is wrong, requests will tell."""
        if self._tokenizer is not None and self._eos:
            with suppress(ImportError, ValueError), self._making_tokens:
                _ = self._tokens

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(COMPILERS, thread_name_prefix="gossamer grammar")

    @cached_property
    def _tokens(self) -> Any:
        return tokens_for(self._tokenizer, self._vocab, self._eos)

    def _compile(self, wanted: Wanted) -> Any:
        """A matcher at its start that can take a first token."""
        if self._tokenizer is None or not self._eos:
            lacks = "tokenizer" if self._tokenizer is None else "token that ends a text"
            raise GrammarError(f"structured_outputs need a {lacks}, which the model has not")
        if wanted.kind == "json":
            schema = json.loads(wanted.text)
            found, message = self._try(wanted)
            if message is not None:
                place = place_of(schema, message, lambda text: self._try(Wanted("json", text))[1])
                raise GrammarError(f"json: {message} at {place}")
            if not finite(schema):
                raise GrammarError("json: no document of a finite size is valid at #")
            return found
        found, message = self._try(wanted)
        if message is not None:
            raise GrammarError(f"{wanted.kind}: {message}")
        return found

    def _try(self, wanted: Wanted) -> tuple[Any, str | None]:
        """The matcher, or what is wrong."""
        guidance = llguidance()
        with self._making_tokens:  # once; takes a second with a large vocabulary
            tokens = self._tokens
        try:
            grammar = grammar_text(wanted)
        except ValueError as error:
            return None, str(error)
        limits = guidance.LLParserLimits(**LIMITS)
        found = guidance.LLMatcher(tokens, grammar, log_level=0, limits=limits)
        if not found.is_error():
            found.compute_bitmask()  # it warms up, and may find that there is no first token
        if found.is_stopped() and not found.is_accepting():
            return None, _reason(found) or NOTHING
        return found, None


class Matcher:
    """How far one output has come in its grammar.

    inner: llguidance's; words: of 32 tokens that it has bits for.
    """

    def __init__(self, inner: Any, words: int) -> None:
        self.inner, self.words = inner, words
        self._error: str | None = None

    @property
    def error(self) -> str | None:
        """What ended it; None while all is well."""
        if self._error is None and self.inner.is_error():
            self._error = f"structured_outputs: {_reason(self.inner)}"
        return self._error

    def take(self, token: int, *, ends: bool) -> None:
        """The token that was sampled; ends: whether it ends the output, so is no part of it."""
        if not ends:
            self.inner.consume_token(token)
        elif not self.inner.is_accepting():  # nothing else could follow what is there
            self._error = "structured_outputs: no token of the model continues the output"

    @property
    def complete(self) -> bool:
        """Whether nothing but the end can follow."""
        return bool(self.inner.is_stopped())


def fill(matchers: Sequence[Matcher], vocab: int) -> Bits:
    """Which tokens may follow: a bit each, int32 [matchers, at least vocab / 32].

    Many matchers share llguidance's threads; the interpreter's lock is free meanwhile.
    """
    inner = [matcher.inner for matcher in matchers]
    words = max(-(-vocab // 32), *(matcher.words for matcher in matchers))
    bits = np.zeros((len(inner), words), np.int32)
    if len(inner) < PARALLEL:
        for matcher, row in zip(inner, bits, strict=True):
            matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
    else:
        pairs = [(matcher, i) for i, matcher in enumerate(inner)]
        _executor().unsafe_compute_mask_ptr(pairs, bits.ctypes.data, words * 4, len(inner))
    return bits


@cache
def _executor() -> Any:
    """Threads of the process, for all engines."""
    return llguidance().LLExecutor()


def _reason(matcher: Any) -> str:
    """What is wrong, in a line without pictures; empty where nothing is."""
    message = STATE.split(str(matcher.get_error()))[0].strip()
    if message == "NoExtensionBias":
        return NOTHING
    if message.startswith("panic"):  # and it goes on about its code
        return "llguidance failed"
    pictured = REGEX_ERROR.search(message)
    if pictured is not None:
        return f"{pictured['reason']}, at character {len(pictured['before'])} of the regex"
    lines = [line.strip() for line in message.splitlines() if not PICTURE.match(line)]
    return " ".join(line for line in lines if line)[:MESSAGE]
