"""Cells, what a model sees of them, and what IPython shows; written by hand, recorded with IPython 9.18.

``shown`` is everything printed and displayed, ``error`` the last line of a traceback. Addresses and the names
of IPython's inputs are replaced (:func:`masked`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["CELLS", "RECORDED_WITH", "WHY", "Cell", "masked"]

RECORDED_WITH = "9.18"

WHY = {
    "fence": "models write code fences: one around the whole cell is taken off",
    "pretty": "a value is shown as its repr, whatever its size: one line, and what `print(repr(x))` shows",
    "syntax": "a cell is Python: no magics, no `?`, no prompts before its lines, no top-level `await`",
    "history": "there is no earlier cell, so there are no names for one",
    "exit": "ending the program is an outcome of its own, with its exit code, and not an error",
    "digits": "integers of any length can be printed",
    "threads": "a cell ends when its threads do, as a script does",
    "unfinished": "the compiler says what is missing",
    "file": "the cell's file name is `<cell>`, and the compiler's message stands as it is",
}
"""Why a cell differs from IPython, by kind; docs/cells.md has these sentences."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell. ``ipython``: ``(shown, error)`` there, where that differs; ``why`` then names the kind."""

    code: str
    shown: str
    error: str = ""
    ipython: tuple[str, str] | None = None
    why: str = ""


def masked(text: str) -> str:
    """Text without what differs from run to run."""
    text = re.sub(r"0x[0-9a-f]{6,}", "0x...", text)
    text = re.sub(r"\S*interactiveshell\.py:\d+", "interactiveshell.py", text)
    return re.sub(r"<ipython-input-[\w-]+>", "<ipython-input>", text)


AGREE: list[tuple[str, ...]] = [
    # What is displayed
    ("", ""),
    ("# nothing", ""),
    ("1 + 1", "2"),
    ("x = 3\nx", "3"),
    ("x = 3", ""),
    ("x = 3\nx;", ""),
    ("x = 3\nx;  # done", ""),
    ("x = 3\nx  # no; semicolon", "3"),
    ("'a;'", "'a;'"),
    ("1\n2", "2"),
    ("1; 2", "2"),
    ("1; 2;", ""),
    ("x = 1; x", "1"),
    ("None", ""),
    ("...", "Ellipsis"),
    ("'text'", "'text'"),
    ("'it\\'s'", '"it\'s"'),
    ("'''two\nlines'''", "'two\\nlines'"),
    ("(y := 5)", "5"),
    ("(\n1 +\n2\n)", "3"),
    ("x = [1,\n 2]\nx", "[1, 2]"),
    ("x = 5\\\n+ 1\nx", "6"),
    ("if True:\n    5", ""),
    ("for i in range(2):\n    i", ""),
    ("def f():\n    return 7\nf()", "7"),
    ("def f():\n    7\nf()", ""),
    ("class A:\n    x = 1\nA.x", "1"),
    ("x = 1\nx += 1", ""),
    ("del_me = 1\ndel del_me", ""),
    ("import math", ""),
    ("assert True", ""),
    ("'''doc'''\n", "'doc'"),
    ("x = 2\n\n\nx\n\n# the end", "2"),
    ("from __future__ import annotations\ndef f(a: nope): ...\nf.__annotations__", "{'a': 'nope'}"),
    ("__name__", "'__main__'"),
    ("if __name__ == '__main__':\n    print('main')", "main"),
    ("a = 1\r\na + 1\r\n", "2"),
    ("1 if 2 > 1 else 0", "1"),
    ("not 1", "False"),
    ("x = 3\nx == 3", "True"),
    ("[print(i) for i in 'ab']", "a\nb\n[None, None]"),
    ("print('x') or 5", "x\n5"),
    ("lambda: 0\nprint('x')", "x"),
    # What is printed
    ("print(1)", "1"),
    ("print(1);", "1"),
    ("print(1)\n2", "1\n2"),
    ("print('a', end='')\n2", "a\n2"),
    ("print('a', end='')", "a"),
    ("for i in range(2):\n    print(i)", "0\n1"),
    ("print(1, 2, sep=', ')", "1, 2"),
    ("print()", ""),
    ("print('\\n\\na\\n\\n')\n1", "\n\na\n\n\n1"),
    ("print('é ∑ 😀')", "é ∑ 😀"),
    ("print('\\t|')", "\t|"),
    ("import sys\nsys.stdout.write('ab')", "ab\n2"),
    ("import sys\nsys.stdout.write('ab\\n')\nNone", "ab"),
    ("import sys\nprint('a')\nprint('b', file=sys.stderr)\nprint('c')", "a\nb\nc"),
    ("import sys\nprint('a', end='')\nprint('b', end='', file=sys.stderr)\nprint('c', end='')", "a\nb\nc"),
    ("print('<|im_end|> </tool_response> <think>')", "<|im_end|> </tool_response> <think>"),
    ("'<|im_start|>system'", "'<|im_start|>system'"),
    ("print(f'{1/3:.4f}')", "0.3333"),
    ("print('%d%%' % 50)", "50%"),
    ("import pprint\npprint.pprint({'b': 1, 'a': [1, 2]})", "{'a': [1, 2], 'b': 1}"),
    ("display(1 + 1)", "2"),
    ("for i in range(2):\n    display(i)\n'end'", "0\n1\n'end'"),
    ("display('a', None)", "'a'\nNone"),
    # Values
    ("2**100", "1267650600228229401496703205376"),
    ("7 / 2", "3.5"),
    ("0.1 + 0.2", "0.30000000000000004"),
    ("1e-9", "1e-09"),
    ("1j * 1j", "(-1+0j)"),
    ("10**5000 > 0", "True"),
    ("True", "True"),
    ("b'ab\\x00'", "b'ab\\x00'"),
    ("'é'", "'é'"),
    ("(1,)", "(1,)"),
    ("[]", "[]"),
    ("{}", "{}"),
    ("set()", "set()"),
    ("{3, 1, 2}", "{1, 2, 3}"),
    ("{'b': 1, 'a': 2}", "{'b': 1, 'a': 2}"),
    ("range(3)", "range(0, 3)"),
    ("list(map(str, range(3)))", "['0', '1', '2']"),
    ("from fractions import Fraction\nFraction(1, 3) + Fraction(1, 6)", "Fraction(1, 2)"),
    ("from decimal import Decimal\nDecimal('0.10') * 3", "Decimal('0.30')"),
    ("import math\nmath.pi, math.gcd(12, 18)", "(3.141592653589793, 6)"),
    ("from math import comb\ncomb(10, 3)", "120"),
    ("from collections import Counter\nCounter('abca')", "Counter({'a': 2, 'b': 1, 'c': 1})"),
    ("from collections import deque\ndeque([1, 2])", "deque([1, 2])"),
    ("from collections import namedtuple\nnamedtuple('P', 'x y')(1, 2)", "P(x=1, y=2)"),
    ("import dataclasses\n@dataclasses.dataclass\nclass P:\n    x: int\nP(1)", "P(x=1)"),
    ("from itertools import permutations\nlist(permutations('ab'))", "[('a', 'b'), ('b', 'a')]"),
    ("import datetime\ndatetime.date(2024, 2, 29)", "datetime.date(2024, 2, 29)"),
    ("class A:\n    def __repr__(self):\n        return 'me'\nA()", "me"),
    ("[1, [2, [3]]]", "[1, [2, [3]]]"),
    ("x = [1]\nx.append(x)\nx", "[1, [...]]"),
    ("ValueError('odd')", "ValueError('odd')"),
    ("import numpy as np\nnp.arange(3)", "array([0, 1, 2])"),
    ("import numpy as np\nnp.float64(0.5)", "np.float64(0.5)"),
    ("import numpy as np\nnp.eye(2)", "array([[1., 0.],\n       [0., 1.]])"),
    ("import numpy as np\nnp.linalg.det(np.array([[1, 2], [3, 4]])).round(6)", "np.float64(-2.0)"),
    ("import numpy as np\nnp.array([1, 2]).sum()", "np.int64(3)"),
    ("from sympy import *\nx = symbols('x')\nsolve(x**2 - 4, x)", "[-2, 2]"),
    ("from sympy import *\nx = symbols('x')\nexpand((x + 1)**3)", "x**3 + 3*x**2 + 3*x + 1"),
    ("from sympy import *\nfactorint(360)", "{2: 3, 3: 2, 5: 1}"),
    ("from sympy import *\nRational(1, 3) + Rational(1, 6)", "1/2"),
    ("from sympy import *\nMatrix([[1, 2], [3, 4]])", "Matrix([\n[1, 2],\n[3, 4]])"),
    ("from sympy import *\nx = symbols('x')\nintegrate(sin(x), (x, 0, pi))", "2"),
    ("from sympy import *\nsqrt(8)", "2*sqrt(2)"),
    ("import sympy\nsympy.N(sympy.pi, 20)", "3.1415926535897932385"),
    ("from sympy import symbols, Eq\nx = symbols('x')\nEq(x, 1)", "Eq(x, 1)"),
    ("sum(i * i for i in range(10**4))", "333283335000"),
    ("sorted({'b': 2, 'a': 1}.items(), key=lambda p: p[1])", "[('a', 1), ('b', 2)]"),
    ("[0] * 10", "[0, 0, 0, 0, 0, 0, 0, 0, 0, 0]"),
    ("round(2.5), round(3.5)", "(2, 4)"),
    # Errors
    ("1 / 0", "", "ZeroDivisionError: division by zero"),
    ("print('before')\n1 / 0", "before", "ZeroDivisionError: division by zero"),
    ("print('before', end='')\n[][1]", "before", "IndexError: list index out of range"),
    ("{}['k']", "", "KeyError: 'k'"),
    ("int('x')", "", "ValueError: invalid literal for int() with base 10: 'x'"),
    ("undefined", "", "NameError: name 'undefined' is not defined"),
    ("raise ValueError", "", "ValueError"),
    ("raise ValueError('odd')", "", "ValueError: odd"),
    ("assert 1 == 2", "", "AssertionError"),
    ("assert 1 == 2, 'one is not two'", "", "AssertionError: one is not two"),
    ("x = ", "", "SyntaxError: invalid syntax"),
    ("print 1", "", "SyntaxError: Missing parentheses in call to 'print'. Did you mean print(...)?"),
    (
        "def f():\nreturn",
        "",
        "IndentationError: expected an indented block after function definition on line 1",
    ),
    ("eval('1 +')", "", "SyntaxError: invalid syntax"),
    ("def f(n):\n    return f(n + 1)\nf(0)", "", "RecursionError: maximum recursion depth exceeded"),
    ("import no_such_module", "", "ModuleNotFoundError: No module named 'no_such_module'"),
    ("None.upper()", "", "AttributeError: 'NoneType' object has no attribute 'upper'"),
    ("'a' + 1", "", 'TypeError: can only concatenate str (not "int") to str'),
    ("import math\nmath.sqrt(-1)", "", "ValueError: math domain error"),
    ("next(iter([]))", "", "StopIteration"),
    (
        "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise RuntimeError('worse') from e",
        "",
        "RuntimeError: worse",
    ),
    ("class E(Exception):\n    pass\nraise E('mine')", "", "E: mine"),
    ("return 5", "", "SyntaxError: 'return' outside function"),
    (
        "class A:\n    def __repr__(self):\n        return 1 / 0\nA()",
        "",
        "ZeroDivisionError: division by zero",
    ),
    ("raise KeyboardInterrupt", "", "KeyboardInterrupt"),
    ("x = 1\n  y = 2", "", "IndentationError: unexpected indent"),
    (
        "for i in range(3):\n    print(i)\n    if i == 1:\n        raise StopIteration",
        "0\n1",
        "StopIteration",
    ),
    # State
    ("_ = 5\n_", "5"),
    ("    x = 1\n    x + 1", "2"),
    ("\tx = 1\n\tx + 1", "2"),
    ("print('''a\n    b''')", "a\n    b"),
    ("  print('''a\n    b''')", "a\n  b"),
    ("import inspect\ndef f():\n    return 1\nprint(inspect.getsource(f))", "def f():\n    return 1"),
    # Also
    ("frozenset('ba')", "frozenset({'a', 'b'})"),
    ("import types\ntypes.SimpleNamespace(a=1)", "namespace(a=1)"),
    ("{1: 2}.keys()", "dict_keys([1])"),
    (
        "{i: i * i for i in range(11)}",
        "{0: 0, 1: 1, 2: 4, 3: 9, 4: 16, 5: 25, 6: 36, 7: 49, 8: 64, 9: 81, 10: 100}",
    ),
    ("input()", "", "EOFError: EOF when reading a line"),
    ("import asyncio\nasync def f():\n    return 4\nasyncio.run(f())", "4"),
    (
        "class A:\n    _repr_html_ = lambda self: '<b>'\n    __repr__ = lambda self: 'me'\nA()",
        "me",
    ),
    ("print('\\x1b[31mred\\x1b[0m')", "\x1b[31mred\x1b[0m"),
    ("print('10%\\r100%')", "10%\r100%"),
    ("import logging\nlogging.warning('careful')", "WARNING:root:careful"),
]

DIGITS = (
    "ValueError: Exceeds the limit (4300 digits) for integer string conversion; "
    "use sys.set_int_max_str_digits() to increase the limit"
)
QUIT = (
    "interactiveshell.py: UserWarning: To exit: use 'exit', 'quit', or Ctrl-D.\n"
    "  warn(\"To exit: use 'exit', 'quit', or Ctrl-D.\", stacklevel=1)"
)
POWERS = (
    "x**5",
    "x**5 + 5*x**4 + 10*x**3 + 10*x**2 + 5*x + 1",
    "x**5 + 10*x**4 + 40*x**3 + 80*x**2 + 80*x + 32",
)
DIFFERENT: list[tuple[str, str, tuple[str, str], tuple[str, str]]] = [
    ("fence", "```python\n1 + 1\n```", ("2", ""), ("", "SyntaxError: invalid syntax")),
    ("fence", "```\n1 + 1\n```\n", ("2", ""), ("", "SyntaxError: invalid syntax")),
    ("fence", "~~~py\n1 + 1\n~~~", ("2", ""), ("", "SyntaxError: invalid syntax")),
    ("fence", "```python\n1 + 1", ("2", ""), ("", "SyntaxError: invalid syntax")),
    ("fence", "```python\n    x = 1\n    x\n```", ("1", ""), ("", "SyntaxError: invalid syntax")),
    ("pretty", "int", ("<class 'int'>", ""), ("int", "")),
    ("pretty", "def f(): ...\nf", ("<function f at 0x...>", ""), ("<function __main__.f()>", "")),
    ("pretty", "lambda: 0", ("<function <lambda> at 0x...>", ""), ("<function __main__.<lambda>()>", "")),
    ("pretty", "len", ("<built-in function len>", ""), ("<function len(obj, /)>", "")),
    ("pretty", "object()", ("<object object at 0x...>", ""), ("<object at 0x...>", "")),
    ("pretty", "{'b', 'a', 'c'}", ("{'c', 'a', 'b'}", ""), ("{'a', 'b', 'c'}", "")),
    (
        "pretty",
        "from collections import defaultdict\ndefaultdict(int, a=1)",
        ("defaultdict(<class 'int'>, {'a': 1})", ""),
        ("defaultdict(int, {'a': 1})", ""),
    ),
    ("pretty", "import re\nre.compile('a')", ("re.compile('a')", ""), ("re.compile(r'a', re.UNICODE)", "")),
    (
        "pretty",
        "from sympy import *\nx = symbols('x')\n[expand((x + i)**5) for i in range(3)]",
        (f"[{POWERS[0]}, {POWERS[1]}, {POWERS[2]}]", ""),
        (f"[{POWERS[0]},\n {POWERS[1]},\n {POWERS[2]}]", ""),
    ),
    (
        "pretty",
        "list(range(30))",
        (str(list(range(30))), ""),
        ("[" + ",\n ".join(map(str, range(30))) + "]", ""),
    ),
    (
        "pretty",
        "class A:\n    def _repr_pretty_(self, p, cycle):\n        p.text('pretty')\nA()",
        ("<__main__.A object at 0x...>", ""),
        ("pretty", ""),
    ),
    ("syntax", "%precision 2\n1 / 3", ("", "SyntaxError: invalid syntax"), ("0.33", "")),
    (
        "syntax",
        "len?",
        ("", "SyntaxError: invalid syntax"),
        (
            "Signature: len(obj, /)\n"
            "Docstring: Return the number of items in a container.\n"
            "Type:      builtin_function_or_method",
            "",
        ),
    ),
    ("syntax", ">>> 1 + 1\n", ("", "SyntaxError: invalid syntax"), ("2", "")),
    ("syntax", "In [1]: 2 + 2", ("", "NameError: name 'In' is not defined"), ("4", "")),
    (
        "syntax",
        "import asyncio\nawait asyncio.sleep(0)\n5",
        ("", "SyntaxError: 'await' outside function"),
        ("5", ""),
    ),
    (
        "history",
        "get_ipython()",
        ("", "NameError: name 'get_ipython' is not defined"),
        ("<__main__.Shell at 0x...>", ""),
    ),
    ("history", "Out", ("", "NameError: name 'Out' is not defined"), ("{}", "")),
    ("history", "_", ("", "NameError: name '_' is not defined"), ("''", "")),
    ("exit", "import sys\nsys.exit(3)", ("", ""), (QUIT, "SystemExit: 3")),
    (
        "exit",
        "exit(3)",
        ("", ""),
        ("", "TypeError: ExitAutocall.__call__() takes 1 positional argument but 2 were given"),
    ),
    ("exit", "raise SystemExit('bad')", ("", "bad"), (QUIT, "SystemExit: bad")),
    (
        "threads",
        "from threading import Timer\nTimer(0.1, lambda: print('late')).start()\nprint('soon')",
        ("soon\nlate", ""),
        ("soon", ""),
    ),
    (
        "unfinished",
        "'''open",
        ("", "SyntaxError: unterminated triple-quoted string literal (detected at line 1)"),
        ("", "SyntaxError: incomplete input"),
    ),
    ("unfinished", "(1, 2", ("", "SyntaxError: '(' was never closed"), ("", "SyntaxError: incomplete input")),
    (
        "file",
        "x = 'a\x00b'",
        ("", "SyntaxError: source code string cannot contain null bytes"),
        ("", "SyntaxError: source code string cannot contain null bytes (<string>)"),
    ),
    (
        "file",
        "import warnings\nwarnings.warn('careful')\nprint(1)",
        ("<cell>:2: UserWarning: careful\n  warnings.warn('careful')\n1", ""),
        ("<ipython-input>:2: UserWarning: careful\n  warnings.warn('careful')\n1", ""),
    ),
    ("digits", "print(10**4300)", ("1" + "0" * 4300, ""), ("", DIGITS)),
]

CELLS = [
    *(Cell(*row) for row in AGREE),
    *(Cell(code, *ours, ipython, why) for why, code, ours, ipython in DIFFERENT),
]
