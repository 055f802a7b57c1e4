"""Each rule of docs/verification.md, on pairs that must be equal and pairs that must not."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apprentice.verify.compare import compare
from apprentice.verify.structure import is_prose
from apprentice.verify.symbolic import equal_by_math_verify

pytestmark = pytest.mark.unit

SAME: dict[str, list[tuple[str, str]]] = {
    "A09 bare LaTeX": [(r"\left( 3, \frac{\pi}{2} \right)", r"(3, \frac{\pi}{2})")],
    "A11 mixed numbers": [("2.5", r"2\frac{1}{2}"), ("5/4", "1 1/4"), (r"1\frac{4}{5}", "9/5")],
    "A13 equivalent forms": [
        ("34x+45y-20z+100=0", "-34x-45y+20z-100=0"),
        (r"\frac{x+2}{7}", r"\frac{x}{7}+\frac{2}{7}"),
        (r"\frac{1}{12}", "0.0833333333333333"),
    ],
    "A19 pairs of a MATH-500 run": [
        (r"10,\!080", "10080"),
        ("58,500", "58500"),
        (r"\text{(C)}", "C"),
        (r"864 \mbox{ inches}^2", "864"),
        (r"5.4 \text{ cents}", "5.4"),
        ("12", r"12^{\text{th}}"),
        (r"x \in [-2,7]", "[-2, 7]"),
        (r"1 \pm \sqrt{19}", r"1 + \sqrt{19}, 1 - \sqrt{19}"),
        (r"\text{east}", r"\text{East}"),
        (r"\frac{11+9a}{20}", r"\dfrac{9a + 11}{20}"),
    ],
    "A21 a long expression": [
        (
            "+".join(f"x_{{{i}}}" for i in range(30)),
            "+".join(f"x_{i}" if i < 10 else f"x_{{{i}}}" for i in range(30)),
        )
    ],
    "A23 percentages": [(r"7.41\%", r"7.41\%"), (r"\frac{1}{3}", r"\frac{1}{3}")],
    "A29 a named value": [("5", "x=5"), ("x=5", "5"), ("5", "$x = 2 + 3 = 5$"), ("12", r"3 \cdot 4 = 12")],
    "numbers": [
        ("055", "55"),
        ("3159.0", "3159"),
        ("7", "+7"),
        ("-0", "0"),
        (r"11,\! 111,\! 111,\! 100", "11111111100"),
        ("1,234,567", "1234567"),
        ("1.45e-5", r"1.45 \times 10^{-5}"),
        ("3e8", "300000000"),
        (".5", "0.5"),
        ("2,3", "2, 3"),
    ],
    "fractions and roots": [
        (r"\frac43", "4/3"),
        (r"-\frac{1}{2}", r"\frac{-1}{2}"),
        (r"\frac{9 \sqrt{23}}{23}", r"\frac{9}{\sqrt{23}}"),
        (r"11\sqrt2", r"11\sqrt{2}"),
        (r"\sqrt{3+2\sqrt2}", r"1+\sqrt2"),
        (r"4\sqrt{2}", r"4\sqrt(2)"),
        (r"\sqrt[3]{16}", r"2\sqrt[3]{2}"),
        ("½", "0.5"),
        ("2√3", r"2\sqrt{3}"),
    ],
    "decimals of exact values": [
        (r"\frac{1}{3}", "0.333333"),
        (r"\pi", "3.14159265"),
        (r"\sqrt{2}", "1.414214"),
    ],
    "algebra": [
        ("(x+1)^2", "x^2+2x+1"),
        (r"\binom{2k}{k}", r"\frac{(2k)!}{k!^2}"),
        (r"2^{n}-1", r"-1+2\cdot 2^{n-1}"),
        (r"\frac{1}{L C s^{2}+R C s+1}", "1/(1+sCR+LCs^2)"),
        (r"m n-\lfloor m / 2\rfloor", r"mn - \lfloor \frac{m}{2} \rfloor"),
        (r"\sin^2 x", r"1-\cos^2 x"),
        ("a(a-1)", "a^2-a"),
        ("(2k-1)!!", r"\frac{(2k)!}{2^k k!}"),
        (r"\log_2 8", "3"),
        (r"e^{i\pi}", "-1"),
        ("0", r"\sin \pi"),
        ("0", r"\sqrt{3+2\sqrt2}-1-\sqrt2"),
        ("6+9i", "9i+6"),
        ("|x-1|", "|1-x|"),
        (r"C_{1} e^{t}", r"C_1 e^t"),
        (r"\sin^{-1} x", r"\arcsin x"),
    ],
    "lists are multisets": [
        ("1,-2", "-2, 1"),
        ("1, 2, 3", "3, 1 and 2"),
        (r"19, 46, \text{ and } 82", "82, 46, 19"),
        ("n = 2, 5, 13", "2, 5, 13"),
        (r"\frac{1}{3},-2,5", r"5, \frac13, -2"),
        (r"\pm 3", "3, -3"),
        ("60750, 854130, 854970", "854970, 60750, 854130"),
    ],
    "sets": [
        (r"\{1\pm\sqrt{5},-2\}", r"-2, 1+\sqrt5, 1-\sqrt5"),
        ("1,3,5", r"\{5,3,1\}"),
        (r"\{1, 1, 2\}", r"\{1,2\}"),
        (r"\{0\}", "0"),
        (r"\emptyset", "no solution"),
    ],
    "tuples": [
        ("(2,251,252)", "(2, 251, 252)"),
        (r"\left( -\frac{1}{2}, 0 \right)", "(-0.5, 0)"),
        (r"\langle 1, 2\rangle", "(1,2)"),
        ("(1,2),(3,4)", "(3,4), (1,2)"),
        ("x=1, y=2", "(1,2)"),
        ("(1,2)", "x = 1, y = 2"),
        ("(1,2)", "1, 2"),
    ],
    "intervals": [
        (r"(0,9) \cup (9,36)", r"(9,36)\cup(0,9)"),
        ("(-\\infty, 0]", r"x \le 0"),
        ("s > 1", r"(1,\infty)"),
        ("[-2,7]", r"-2 \le x \le 7"),
        ("-2 < x \\leq 7", "(-2, 7]"),
        ("$k \\geqslant 2$", "k>=2"),
        (r"\beta \in \mathbb{R}", r"\mathbb{R}"),
        ("x > 3", "3 < x"),
    ],
    "matrices": [
        (r"\begin{pmatrix} -1 & 0 \\ 0 & -1 \end{pmatrix}", r"\begin{bmatrix}-1&0\\0&-1\end{bmatrix}"),
        (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", "(1, 2)"),
        (r"\begin{pmatrix} 1/2 & 0 \end{pmatrix}", r"\begin{pmatrix} 0.5 & 0 \end{pmatrix}"),
    ],
    "units": [
        ("15 \\mbox{ cm}^2", "15"),
        ("15 \\text{ cm}^2", "15 \\text{ square centimeters}"),
        ("5", "5 meters"),
        ("100 km/h", "100 \\text{ kilometers per hour}"),
        ("7 \\text{ dollars}", "\\$7"),
    ],
    "money": [(r"\$32,\!348", "32348"), (r"\$32,\!348", r"\$32,348"), ("18", "$18"), ("18", "$18.00")],
    "degrees": [
        (r"30^\circ", "30"),
        (r"30^\circ", r"\frac{\pi}{6}"),
        (r"\frac{270}7\text{ degrees}", r"\frac{270}{7}"),
        ("90°", r"90^{\circ}"),
        (r"25^{\circ} \mathrm{C}", "25"),
    ],
    "percent": [("62.5%", "62.5"), ("62.5%", "0.625"), (r"\frac{5}{8}", r"62.5\%"), ("5%", "5 percent")],
    "bases": [
        ("4210_{5}", "4210"),
        ("4210_{5}", "4210_5"),
        ("40_9", r"40_{\text{nine}\,9}"),
        ("11_2", "3_{10}"),
    ],
    "text": [
        (r"\text{Evelyn}", "Evelyn"),
        ("Yes", "yes."),
        ("No", "No, it is not"),
        ("True", r"\text{True}"),
        (r"\text{ellipse}", "Ellipse"),
    ],
    "choices": [("C", "(C) 12 units"), ("C", "C."), ("C", r"\textbf{(C)}"), ("(B)", "B"), ("D", "option D")],
    "times and ratios": [
        ("4:45\\frac{3}{11}", "4:45 3/11"),
        ("12:30", "12:30"),
        ("4:40 a.m.", "4:40 am"),
        ("3:2", "3 : 2"),
    ],
    "equations": [
        ("y = 2x+3", "2x+3"),
        ("2x+3", "y = 2x+3"),
        ("2x + 4y = 6", "x + 2y = 3"),
        ("x^2 - 2y = 1", "2y = x^2 - 1"),
        ("SRMC=LRMC", "LRMC = SRMC"),
        ("m \\neq 1", "m \\ne 1"),
    ],
    "families of functions": [
        ("A(x)=1-x, A(x)=1+2x", "A(x)=1+2x, A(x)=1-x"),
        ("$f(n)=n$, $g(n)=1$", "f(n)=n and g(n)=1"),
        ("f(x)=x+1", "G(x) = 1+x"),
        (
            "$P(x)=(cx+c^{2})/(1+c), Q(x)=cx+c^{2}$, where $c\\ne -1$",
            r"P(x)=\frac{cx+c^2}{c+1}, Q(x)=c^2+cx",
        ),
    ],
    "ellipses": [(r"$1,2,\ldots, 1235$", r"1, 2, \dots, 1235")],
    "an unbalanced dollar": [(r"$x_{0} + 1$ $", r"1 + x_0")],
}

DIFFERENT: dict[str, list[tuple[str, str]]] = {
    "A01 tiny fractions": [
        (r"$\frac{1}{2004!}$", r"$\frac{1}{2006!}$"),
        (r"$\frac{1}{2^{99}}$", r"$\frac{1}{2^{98}}$"),
    ],
    "A03 doubtful positives": [
        (r"$19, 46, \text{ and } 82$", r"$21, 36, and 82$"),
        (r"$1 - \frac{1}{\mathrm{e}}$", r"$1 + \frac{1}{\mathrm{e}}$"),
        (r"$\frac{2^{2005}+1}{3 \cdot 2^{2006}}$", r"$\frac{1}{3 \cdot 2^{2006}}$"),
        (r"$\pm 2021$", "$2021$"),
        ("$12:00$", "$1:00$"),
        (r"$1, 2, \ldots, n$", r"$1, 3, 5, \ldots, 2n-1$"),
    ],
    "A05 a malformed root is never its leading number": [("$4$", r"$4\sqrt(2)$"), ("4", r"4\sqrt")],
    "A07 suffixes": [("11", "711"), ("49", "149"), ("711", "11")],
    "A09 bare LaTeX": [(r"\left( 3, \frac{\pi}{2} \right)", r"(3, \frac{2\pi}{3})")],
    "A11 a plain mixed number is not its whole part": [("1", "1 1/4"), ("3/4", "2 1/4")],
    "A25 huge powers": [("7", r"(13/10)^{6472416997}"), ("7", r"10^{10^{10}}"), ("7", r"10^{10^{10^{10}}}")],
    "A27 a capital within a formula": [
        ("D", r"\langle H\rangle \ll \Delta E"),
        ("E", r"\Delta E"),
        ("E", "A, E"),
    ],
    "numbers": [
        ("7", "7.0000001"),
        ("123456.7", "123456.8"),
        ("0.33", r"\frac{1}{3}"),
        ("1/3", "0.333"),
        ("5", "-5"),
    ],
    "algebra": [
        ("0", "e^{-10000}"),
        ("x", "y"),
        ("x^2", "2^x"),
        ("f(x+1)", "f(x)+f(1)"),
        (r"\frac{a}{b}c", r"\frac{a}{bc}"),
        ("0", "I(0)"),
    ],
    "order": [
        ("(1,2)", "(2,1)"),
        ("(1,2)", "2, 1"),
        (r"\begin{pmatrix} 1 & 2 \end{pmatrix}", r"\begin{pmatrix} 2 & 1 \end{pmatrix}"),
    ],
    "nearly equal": [(r"\sqrt{2}", r"\frac{14142136}{10^7}"), (r"e^{\pi\sqrt{163}}", "262537412640768744")],
    "multisets": [("1, 2, 2", "1, 1, 2"), ("1, 1, 2", "1, 2"), ("1, 2", "1, 2, 3"), ("1,2", "12")],
    "intervals": [
        ("[1,2)", "(1,2)"),
        ("[1,2]", "[1,2)"),
        ("x > 3", r"x \ge 3"),
        ("x > 3", "x < 3"),
        (r"(0,1)\cup(1,2)", "(0,2)"),
    ],
    "matrices": [
        (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", r"\begin{pmatrix} 1 & 3 \\ 2 & 4 \end{pmatrix}"),
        (r"\begin{pmatrix} 1 & 2 \end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
    ],
    "units": [
        ("5 \\text{ cm}", "5 \\text{ m}"),
        ("5 \\text{ cm}^2", "5 \\text{ cm}"),
        ("2", "2Ax"),
        ("5%", r"\$5"),
        ("4:40 \\text{ am}", "4:40 pm"),
    ],
    "bases": [("4210_5", "4210_6"), ("40_9", "36"), ("F", "F_2")],
    "degrees": [(r"30^\circ", r"\frac{\pi}{3}"), (r"30^\circ", "0.5")],
    "percent": [("62.5%", "6.25"), ("50", "0.5")],
    "text": [("Yes", "No"), ("Yes", "True"), (r"\text{Evelyn}", "Evelina"), ("No", "Not yes")],
    "choices": [("C", "D"), ("C", "(D) the case C"), ("A", "a dog")],
    "equations": [
        ("y = 2x+3", "y = 4x+6"),
        ("x = 5", "y = 5"),
        ("2x+4y=6", "2x+4y=7"),
        ("3", "3a^2-b^2=3"),
        ("0", "bx-ay=0"),
    ],
    "conditions": [("k for odd k", "k for even k"), ("0", "0 if x = 0, otherwise 2")],
    "families of functions": [("A(x)=1-x, A(x)=1+2x", "A(x)=1-x"), ("f(n)=n, g(n)=1", "f(n)=1, g(n)=n")],
}


def pairs(table: dict[str, list[tuple[str, str]]]) -> list[object]:
    return [
        pytest.param(gold, answer, id=f"{rule}: {gold[:30]} / {answer[:30]}")
        for rule, cases in table.items()
        for gold, answer in cases
    ]


@pytest.mark.parametrize(("gold", "answer"), pairs(SAME))
def test_equal(gold: str, answer: str) -> None:
    assert compare(gold, answer).verdict == "correct"


@pytest.mark.parametrize(("gold", "answer"), pairs(DIFFERENT))
def test_different(gold: str, answer: str) -> None:
    assert compare(gold, answer).verdict != "correct"
    assert compare(gold, answer, equal_by_math_verify).verdict in ("wrong", "unparseable")


def test_a29_math_verify_gets_the_gold_first(monkeypatch: pytest.MonkeyPatch) -> None:
    import math_verify

    seen: list[tuple[str, str]] = []
    real = math_verify.verify

    def spy(gold: object, target: object, **settings: object) -> bool:
        seen.append((str(gold), str(target)))
        return bool(real(gold, target, **settings))

    monkeypatch.setattr(math_verify, "verify", spy)
    assert compare("5", r"x = \int_0^5 1 \, dt", equal_by_math_verify).verdict == "correct"
    assert [gold for gold, _ in seen] == ["[5]"]


@pytest.mark.parametrize(
    "gold",
    [
        "taking the empty card",
        "All powers of 2\n",
        "1 if triangle is isoceles, otherwise 2",
        "1 and odd prime numbers",
    ],
)
def test_prose_golds_are_marked_and_match_only_themselves(gold: str) -> None:
    assert is_prose(gold)
    assert compare(gold, gold).verdict == "correct"
    found = compare(gold, "2", equal_by_math_verify)
    assert (found.verdict, "prose" in found.reason) == ("unparseable", True)


@pytest.mark.parametrize(
    "gold",
    [
        r"\text{Evelyn}",
        "no solutions",
        "SRMC=LRMC",
        r"864 \mbox{ inches}^2",
        "5 hours and 20 minutes",
        r"f(x) = x, \text{ where } c > 0",
        r"\sin x \cos x",
        r"C_{total}",
    ],
)
def test_golds_with_a_few_words_are_not_prose(gold: str) -> None:
    assert not is_prose(gold)


@pytest.mark.parametrize(
    "answer", ["", "  ", "$", r"\frac{1}{", r"\left(", "}{", "\\", "((((", "x^^2", "\x00", "{" * 3000]
)
def test_malformed_answers_are_never_correct_and_never_raise(answer: str) -> None:
    for gold in ("7", r"\frac{1}{2}", "(1,2)", "Yes", "A"):
        assert compare(gold, answer, equal_by_math_verify).verdict in ("wrong", "unparseable")


@given(
    st.text(alphabet=r"0123456789+-*/^_{}()[]\,.=<>|!%$ xyabfrcsqtpimo", max_size=30),
    st.sampled_from(["7", r"\frac{1}{2}", "(1,2)", "x=3"]),
)
@settings(max_examples=300, deadline=None)
def test_any_text_is_compared_without_an_error(text: str, gold: str) -> None:
    assert compare(gold, text).verdict in ("correct", "wrong", "unparseable", "undecided")


@settings(deadline=None)
@given(st.integers(-(10**9), 10**9), st.integers(-(10**9), 10**9))
def test_integers_are_equal_exactly_when_they_are(a: int, b: int) -> None:
    for form in (f"{b}", f"{b:,}", f"{b}.0", f"x = {b}", f"\\frac{{{2 * b}}}{{2}}"):
        assert (compare(str(a), form).verdict == "correct") == (a == b)
        assert compare(str(b), form).verdict == "correct"


@settings(deadline=None)
@given(st.lists(st.integers(-50, 50), min_size=2, max_size=6), st.randoms(use_true_random=False))
def test_lists_are_equal_in_any_order_and_tuples_only_in_theirs(items: list[int], rng: object) -> None:
    shuffled = list(items)
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    gold, answer = ", ".join(map(str, items)), ", ".join(map(str, shuffled))
    assert compare(gold, answer).verdict == "correct"
    assert (compare(f"({gold})", f"({answer})").verdict == "correct") == (items == shuffled)
    longer = f"{answer}, {items[0]}"
    assert compare(gold, longer).verdict == "wrong"
