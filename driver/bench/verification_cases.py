"""Answers that verifiers got wrong in public reports, and the forms of golds that problem sets hold."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CASES", "Case"]


@dataclass(frozen=True, slots=True)
class Case:
    """``answer`` is compared with ``gold``; ``response`` replaces the usual sentence around it.

    ``group`` is the id of a public report (A01 to A29), or what the gold is.
    """

    group: str
    gold: str
    answer: str
    right: bool
    response: str = ""

    def text(self, around: str = r"So we are done. The final answer is $\boxed{@}$.") -> str:
        """What a model would have written; ``@`` in ``around`` stands for the answer."""
        return self.response or around.replace("@", self.answer)


_LONG = "+".join(f"x_{{{i}}}" for i in range(30))

_SAME: dict[str, list[tuple[str, str]]] = {
    "A09": [(r"\left( 3, \frac{\pi}{2} \right)", r"(3, \frac{\pi}{2})")],
    "A11": [("2.5", r"2\frac{1}{2}")],
    "A13": [
        ("34x+45y-20z+100=0", "-34x-45y+20z-100=0"),
        (r"\frac{x+2}{7}", r"\frac{x}{7}+\frac{2}{7}"),
        (r"\frac{1}{12}", "0.0833333333333333"),
    ],
    "A19": [
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
    "A21": [(_LONG, _LONG)],
    "A23": [(r"\frac{1}{3}", r"\frac{1}{3}"), (r"7.41\%", r"7.41\%")],
    "A29": [("5", "x=5")],
    "zero padding": [("055", "55"), ("3159.0", "3159")],
    "thousands": [(r"11,\! 111,\! 111,\! 100", "11111111100"), (r"\$32,\!348", "32348")],
    "unordered list": [("1,-2", "-2, 1"), (r"\frac{1}{3},-2,5", r"5, -2, \frac{1}{3}")],
    "set": [(r"\{1\pm\sqrt{5},-2\}", r"\{-2, 1+\sqrt{5}, 1-\sqrt{5}\}")],
    "interval": [(r"(0,9) \cup (9,36)", r"(9,36) \cup (0,9)"), (r"(-\infty, 0]", r"x \le 0")],
    "matrix": [
        (r"\begin{pmatrix} -1 & 0 \\ 0 & -1 \end{pmatrix}", r"\begin{bmatrix}-1&0\\0&-1\end{bmatrix}")
    ],
    "units": [("15 \\mbox{ cm}^2", "15"), (r"\frac{270}7\text{ degrees}", r"\frac{270}{7}")],
    "base": [("4210_{5}", "4210_5")],
    "mixed number": [(r"1\frac{4}{5}", r"\frac{9}{5}")],
    "shorthand": [(r"\frac43", r"\frac{4}{3}")],
    "text": [(r"\text{Evelyn}", "Evelyn"), ("Yes", "yes")],
    "percent": [("62.5%", r"62.5\%")],
    "functions": [("A(x)=1-x, A(x)=1+2x", "A(x)=1+2x, A(x)=1-x")],
    "ellipsis": [(r"$1,2,\ldots, 1235$", r"1, 2, \ldots, 1235")],
}

_DIFFERENT: dict[str, list[tuple[str, str]]] = {
    "A01": [(r"\frac{1}{2004!}", r"\frac{1}{2006!}"), (r"\frac{1}{2^{99}}", r"\frac{1}{2^{98}}")],
    "A03": [
        (r"19, 46, \text{ and } 82", r"21, 36, \text{ and } 82"),
        (r"1 - \frac{1}{\mathrm{e}}", r"1 + \frac{1}{\mathrm{e}}"),
        (r"\frac{2^{2005}+1}{3 \cdot 2^{2006}}", r"\frac{1}{3 \cdot 2^{2006}}"),
        (r"\pm 2021", "2021"),
        ("12:00", "1:00"),
        (r"1, 2, \ldots, n", r"1, 3, 5, \ldots, 2n-1"),
    ],
    "A05": [("4", r"4\sqrt(2)")],
    "A07": [("11", "711"), ("49", "149")],
    "A09": [(r"\left( 3, \frac{\pi}{2} \right)", r"(3, \frac{2\pi}{3})")],
    "A11": [("1", "1 1/4")],
    "A25": [("7", "(13/10)^{6472416997}"), ("7", "10^{10^{10}}")],
    "order": [("(1,2)", "(2,1)")],
    "interval": [("[1,2)", "(1,2)"), ("x > 3", r"x \ge 3")],
    "multiset": [("1, 2, 2", "1, 1, 2")],
    "matrix": [
        (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", r"\begin{pmatrix} 1 & 3 \\ 2 & 4 \end{pmatrix}")
    ],
    "base": [("4210_{5}", "4210_6")],
    "text": [("Yes", "No"), (r"\text{Evelyn}", "Evelina")],
}

_HALF = "Left: 437 + 2*234 = 437 + 468 = 905. Half of it is left.\n\nFinal Answer: **73**"
_FORMULA = r"Here \boxed{\langle H\rangle \ll \Delta E} holds, which is the last option."

_RESPONSES = [
    Case(
        "A15", "1", "1", True,
        r"I get \boxed{1}. It is \boxed{1} because no other number divides both of them.",
    ),
    Case("A17", "73", "73", True, _HALF),
    Case("A17", "234", "73", False, _HALF),
    Case(
        "A27", "D", "D", True,
        f"{_FORMULA}\n\n**Answer: D**",
    ),
    Case("A27", "E", "D", False, _FORMULA),
    Case("thinking", "4", "3", False, r"<think>Perhaps it is \boxed{4}, but I am not sure. Let me see"),
]  # fmt: skip

CASES: tuple[Case, ...] = (
    *(Case(group, gold, answer, True) for group, found in _SAME.items() for gold, answer in found),
    *(Case(group, gold, answer, False) for group, found in _DIFFERENT.items() for gold, answer in found),
    *_RESPONSES,
)
