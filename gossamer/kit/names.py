"""What an op may be called: it becomes a name in Python, in C++ and in torch."""

import builtins
import keyword
import re

LONGEST = 32  # lines with the name twice still fit into 100 columns

# Those that are no words of Python.
_CPP = """
alignas alignof and_eq asm auto bitand bitor case catch char char8_t char16_t char32_t compl concept
const consteval constexpr constinit const_cast co_await co_return co_yield decltype default delete
do double dynamic_cast enum explicit export extern friend goto inline long mutable namespace new
noexcept not_eq nullptr operator or_eq private protected public register reinterpret_cast requires
short signed sizeof static static_assert static_cast struct switch template this thread_local throw
typedef typeid typename union unsigned using virtual void volatile wchar_t xor xor_eq
"""
# What the kernels of every op have in scope, and what torch keeps for itself.
_TAKEN = """
avx2 avx512 cpu cpu_isa cuda elementwise generic gossamer isa load load_partial main math name splat
store store_partial torch triton
"""


def check_op_name(name: str) -> str:
    """The name itself. ValueError for what is not lower case, or means something already."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or "__" in name or name.endswith("_"):
        raise ValueError(
            f"the name is {name!r}; must be lower case letters, digits and single underscores, "
            "a letter first"
        )
    if len(name) > LONGEST:
        raise ValueError(f"the name has {len(name)} letters; must have at most {LONGEST}")
    if keyword.iskeyword(name) or keyword.issoftkeyword(name) or hasattr(builtins, name):
        raise ValueError(f"{name!r} is a word of Python; must be another name")
    if name in _CPP.split():
        raise ValueError(f"{name!r} is a word of C++; must be another name")
    if name in _TAKEN.split():
        raise ValueError(f"{name!r} is used by the kernels of all ops; must be another name")
    return name


def check_family(family: str) -> str:
    """A folder of csrc, there or not yet. ValueError for what is not a plain name."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", family) or len(family) > LONGEST:
        raise ValueError(
            f"the family is {family!r}; must be lower case letters, digits and underscores"
        )
    return family


def camel(name: str) -> str:
    """scaled_add: ScaledAdd."""
    return "".join(word[:1].upper() + word[1:] for word in name.split("_"))
