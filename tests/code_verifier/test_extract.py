"""Programs out of completions: every form of block, the choice among them, and prompts that are continued."""

# ruff: noqa: E501 (the texts of models are as long as they are)

from __future__ import annotations

import ast
import gzip
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from code_verifier.extract import Program, extract

ADD = "def add(a, b):\n    return a + b\n"
BAD = "def add(a, b):\n    return a - b\n"
DATA = Path(os.environ.get("GRISTMILL_SHARED", Path(__file__).parents[3] / "shared")) / "datasets"


def run(text: str, **options: Any) -> dict[str, Any]:
    """The namespace of the program: what is run here is written in this file."""
    program = extract(text, **({"entry_point": "add"} | options))
    assert program is not None
    namespace: dict[str, Any] = {"__name__": "candidate"}
    exec(program.source, namespace)
    return namespace


SAME = {
    "python": f"Here it is:\n\n```python\n{ADD}```\n",
    "py": f"```py\n{ADD}```",
    "Python3": f"```Python3\n{ADD}```",
    "python 3": f"```python 3\n{ADD}```",
    "python3.11": f"```python3.11\n{ADD}```",
    "untagged": f"```\n{ADD}```",
    "blank before the tag": f"``` python\n{ADD}```",
    "tildes": f"~~~python\n{ADD}~~~\n",
    "four backticks": f"````python\n{ADD}````",
    "attributes in braces": f'```{{.python .numberLines startFrom="1"}}\n{ADD}```',
    "braces": f"```{{python}}\n{ADD}```",
    "title": f'```python title="add.py"\n{ADD}```',
    "file name": f"```add.py\n{ADD}```",
    "file name after a colon": f"```python:src/add.py\n{ADD}```",
    "unknown tag": f"```solution\n{ADD}```",
    "never closed": f"```python\n{ADD}",
    "never closed, prose after it": f"```python\n{ADD}\nThis adds the numbers.",
    "never closed, another block after it": f"```python\n{ADD}\nRun it:\n```bash\npython add.py\n```",
    "closed on the last line of code": f"```python\n{ADD.strip()}```\nDone.",
    "opened after prose": f"The answer is: ```python\n{ADD}```\nThat is all.",
    "on one line": "```python def add(a, b): return a + b```",
    "on one line without a tag": "```def add(a, b): return a + b```",
    "code on the line of the fence": "```python def add(a, b):\n    return a + b\n```",
    "code on the line of the fence, no tag": "```def add(a, b):\n    return a + b\n```",
    "CRLF": f"Here:\r\n\r\n```python\r\n{ADD}```\r\n".replace("\n", "\r\n").replace("\r\r", "\r"),
    "CR": f"```python\n{ADD}```\n".replace("\n", "\r"),
    "tabs": "```python\ndef add(a, b):\n\treturn a + b\n```",
    "BOM": f"\ufeff```python\n\ufeff{ADD}```",
    "indented fence": f"  ```python\n  {ADD.strip().replace(chr(10), chr(10) + '  ')}\n  ```",
    "list": "1. First:\n\n   ```python\n   def add(a, b):\n       return a + b\n   ```\n2. Done",
    "list marker before the fence": "- ```python\n  def add(a, b):\n      return a + b\n  ```\n",
    "deep in a list": "* a\n  * b\n\n        ```python\n        def add(a, b):\n            return a + b\n        ```\n",
    "quote": "> ```python\n> def add(a, b):\n>     return a + b\n> ```\n",
    "fence less indented than the code": "```python\n    def add(a, b):\n        return a + b\n```",
    "other languages before": f"```bash\npip install x\n```\n```json\n{{}}\n```\n```python\n{ADD}```",
    "output after": f"```python\n{ADD}```\nOutput:\n```\n5\n```\n",
    "text output after": f"```python\n{ADD}```\n```text\n5\n```\n```output\n6\n```",
    "shell after": f"```python\n{ADD}```\n```bash\nadd 2 3\n```",
    "java before": f"```java\nint add(int a, int b) {{ return a + b; }}\n```\n```python\n{ADD}```",
    "a correction": f"```python\n{BAD}```\nWrong! Correct:\n```python\n{ADD}```",
    "usage after": f"```python\n{ADD}```\nUse it so:\n```python\nprint(add(2, 3))\n```",
    "tests that import it after": f"```python\n{ADD}```\n```python\nfrom solution import add\nassert add(1, 2) == 3\n```",
    "the signature again after": f"```python\n{ADD}```\nIts type:\n```python\ndef add(a: int, b: int) -> int: ...\n```",
    "a broken block after": f"```python\n{ADD}```\n```python\ndef add(a, b:\n```",
    "an open block after": f"```python\n{ADD}```\nOr:\n```python\ndef add(a, b):\n    return sum((a,",
    "pseudocode after": f"```python\n{ADD}```\n```\nfunction add(a, b)\n  return a + b\n```",
    "think": f"<think>\n```python\n{BAD}```\n</think>\n```python\n{ADD}```",
    "think without its beginning": f"Try:\n```python\n{BAD}```\n</think>\n```python\n{ADD}```",
    "think with an open fence": f"<think>\n```python\n{BAD}\n</think>\n```python\n{ADD}```",
    "think in one line": f"<think>easy</think>```python\n{ADD}```",
    "thinking twice": f"<think>a</think>\n```python\n{BAD}```\n<think>\nno\n</think>\n```python\n{ADD}```",
    "code before the thinking": f"```python\n{ADD}```\n<think>\nIs it right? Yes.\n</think>\nDone.",
    "answer tags": f"```python\n{BAD}```\n<answer>\n```python\n{ADD}```\n</answer>",
    "answer tags without fence": f"I try.\n<answer>\n{ADD}</answer>",
    "answer tags around prose": f"```python\n{ADD}```\n<answer>the function above</answer>",
    "PYTHON tags": f"[PYTHON]\n{ADD}[/PYTHON]\n[TESTS]\nassert add(1, 1) == 2\n[/TESTS]",
    "PYTHON tag open": f"[PYTHON]\n{ADD}",
    "code tags": f"<code>\n{ADD}</code>",
    "pre and code tags, escaped": "<pre><code class=\"language-python\">def add(a, b):\n    if a &lt; 0 &amp;&amp; 0:\n"
    "        pass\n    return a + b\n</code></pre>".replace("&amp;&amp; 0", "or b &gt; 0"),
    "python tag of Llama": f"<|python_tag|>{ADD}<|eom_id|>",
    "listing": f"\\begin{{lstlisting}}[language=Python]\n{ADD}\\end{{lstlisting}}",
    "minted": f"\\begin{{minted}}{{python}}\n{ADD}\\end{{minted}}",
    "triple quotes": f"'''python\n{ADD}'''",
    "bare": ADD,
    "bare with blank lines": f"\n\n{ADD}\n\n",
    "bare in prose": f"Sure, the function adds its arguments.\n\n{ADD}\nIt runs in constant time.",
    "bare with imports and helpers": "Sure.\n\nimport math\n\nK = {\n    1: 2,\n}\n\n@staticmethod\ndef one(x):\n    return x\n\n"
    + ADD + "\nExample: add(1, 2) is 3.\nDone",
    "bare and a fenced example": f"{ADD}\nExample:\n```\n5\n```",
    "bare, end of turn": f"{ADD}<|im_end|>\n",
    "next turn": f"```python\n{ADD}```<|im_end|>\n<|im_start|>user\nNow subtract.\n```python\n{BAD}```",
    "indented in prose": "Solution:\n\n    def add(a, b):\n        return a + b\n\nDone.",
    "transcript": ">>> def add(a, b):\n...     return a + b\n...\n>>> add(2, 3)\n5\n",
    "fenced transcript": "```pycon\n>>> def add(a, b):\n...     return a + b\n...\n>>> add(2, 3)\n5\n```",
    "backticks in a string": "```python\nFENCE = '```'\n" + ADD + "```",
    "backticks in a docstring": '```python\ndef add(a, b):\n    """Adds.\n\n    ```\n    add(1, 2)\n    ```\n    """\n'
    "    return a + b\n```\n",
    "backticks in a docstring at the margin": '```python\n"""\nExample:\n```\nadd(1, 2)\n```\n"""\n' + ADD + "```\nDone.",
    "python fence in a docstring": '```python\ndef add(a, b):\n    """\n```python\nadd(1, 2)\n```\n    """\n    return a + b\n```',
    "fence in four backticks": f"````markdown\n```python\n{ADD}```\n````",
    "three backticks within four": '````python\n"""\n```\nx\n```\n"""\n' + ADD + "````",
    "JSON": json.dumps({"code": ADD}),
    "JSON in a fence": "```json\n" + json.dumps({"solution": ADD}) + "\n```",
    "JSON with a fence within": json.dumps({"answer": f"```python\n{ADD}```"}),
    "escaped line ends": "```python\n" + ADD.strip().replace("\n", "\\n") + "\n```",
    "tagged as text": f"```text\n{ADD}```",
    "imported": "```python\nfrom operator import add\n```",
    "assigned": "```python\nadd = lambda a, b: a + b\n```",
    "defined in a branch": "```python\nif True:\n    def add(a, b):\n        return a + b\nelse:\n    add = None\n```",
    "helper in an earlier block": "```python\ndef plus(a, b):\n    return a + b\n```\nNow:\n```python\ndef add(a, b):\n"
    "    return plus(a, b)\n```",
    "import in an earlier block": "```python\nimport operator as op\n```\n```python\ndef add(a, b):\n"
    "    return op.add(a, b)\n```",
    "text about think tags": "```python\nTAG = '</think>'\nEND = '<|im_end|>'\n" + ADD + "```",
    "opened by the prompt": f"{ADD}```\nThis is the function.",
    "opened by the prompt, another block after it": f"{ADD}```\nUse it:\n```python\nprint(add(1, 2))\n```",
    "headings around": f"# Solution\n\n## Code\n\n```python\n{ADD}```\n\n## Notes\n\n- fast",
    "the tag on the line after the fence": f"```\npython\n{ADD}```",
    "the tag without a fence": f"python\n{ADD}",
    "a heading of one word": f"Solution\n\n{ADD}\nDone",
    "a fence behind an invisible space": f"\u200b```python\n{ADD}\u200b```",
    "the opening fence twice": f"```python\n```python\n{ADD}```\n```",
    "odd spaces": f"```python\x0c\n{ADD}```",
    "line separators": '```python\nX = "a\u2028b\x85c"\n' + ADD + "```",
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_every_form_gives_the_same_function(name: str) -> None:
    assert run(SAME[name])["add"](2, 3) == 5


@pytest.mark.parametrize("text", [
    "", "  \n", "I cannot solve this problem.", "No", "<think>\n```python\n" + ADD + "```", "<think>hm</think>",
    "```\n```", "```python\n```", "```bash\nls\n```", "```json\n{\"a\": 1}\n```", "```text\n5\n```", "42", "the_answer",
    "```\n5\n```", "Import the goods from the ship and class them.", "```java\nclass A {}\n```", "<answer>5</answer>",
    "# a comment", "Sum: 5", "- item\n- other", "<code></code>", "```python", "```",
])  # fmt: skip
def test_no_code(text: str) -> None:
    assert extract(text, entry_point="add") is None


@pytest.mark.parametrize(("text", "source"), [
    ("```python\ndef add(a, b):\n    if a:\n\treturn a\n    return b\n```",
     "def add(a, b):\n    if a:\n\treturn a\n    return b\n"),
    ("```python\ndef add(a, b):\n    return a +", "def add(a, b):\n    return a +\n"),
    ("```python\ndef add(a, b):\n    x = a\n    x +=", "def add(a, b):\n    x = a\n    x +=\n"),
    ("def add(a, b):\n    if a:\n\treturn a\n    return b\n", "def add(a, b):\n    if a:\n\treturn a\n    return b\n"),
    ("Sure.\n\nimport math\n\ndef add(a, b)\n    return a\n", "import math\n\ndef add(a, b)\n    return a\n"),
    ("```python\nprint('hi')\n```", "print('hi')\n"),
    ("```python\n# nothing\n```", "# nothing\n"),
    ("```python\ndef add(a, b):\n    return 1 &lt 2\n'''\n```", "def add(a, b):\n    return 1 &lt 2\n'''\n"),
])  # fmt: skip
def test_code_is_never_repaired(text: str, source: str) -> None:
    assert extract(text, entry_point="add") == Program(source, "bare" if text[0] != "`" else "fence")


@pytest.mark.parametrize(("text", "marker"), [
    ("```python\nprint(int(input()) + 1)\n```\nExample input:\n```\n1\n```\nwhere\n```python\nx = a + b\n```", "input"),
    ("```python\nprint(0)\n```\nBetter:\n```python\nimport sys\nsys.stdout.write('1')\n```", "write"),
    ("print(input())\n", "input"),
    ("The program:\n\nn = int(input())\nfor i in range(n):\n    print(i)\n\nIt is quick.", "range"),
    ("```cpp\nint main() {}\n```\n```python\nprint(1)\n```", "print"),
    ("```python\nprint(1)\n```\nRun:\n```\n$ python main.py\n```", "print"),
    ("```python\ndef main():\n    print(input())\n\nmain()", "main()"),
])  # fmt: skip
def test_whole_programs(text: str, marker: str) -> None:
    program = extract(text)
    assert program is not None
    assert marker in program.source
    ast.parse(program.source)


PROMPT = (
    'from typing import List\nimport math\n\nK = 3\n\n\ndef poly(xs: List[int], x: int):\n    """Helper."""\n'
    '    return sum(c * x ** i for i, c in enumerate(xs))\n\n\ndef add(a: int, b: int) -> int:\n    """Adds.\n    """\n'
)
CONTINUED = {
    "body": "    return a + b\n",
    "body without indentation": "return a + b\n",
    "body whose first line lost its indentation": "c = a\n    c += b\n    return c\n",
    "body in a fence": "```python\n    return a + b\n```",
    "body in a fence without indentation": "```python\nreturn a + b\n```",
    "body, then a closing fence": "    return a + b\n```\nThis adds.",
    "body, then another function": "    return one(a, b)\n\ndef one(a, b):\n    return a + b\n",
    "body, then prose": "    return a + b\n\nThis function adds two numbers.",
    "body, then a truncated function": "    return a + b\n\n\ndef other(x):\n    return (x",
    "body with a blank line first": "\n    return a + b\n",
    "whole function": f"```python\n{ADD}```",
    "whole function bare": ADD,
    "the prompt again": PROMPT + "    return a + b\n",
    "the prompt again in a fence": f"```python\n{PROMPT}    return a + b\n```",
    "whole function with future import": f"```python\nfrom __future__ import annotations\n\nimport os\n{ADD}```",
    "whole function that uses the prompt": "```python\ndef add(a: List[int], b) -> int:\n"
    "    return poly([a, b], 1) + K - 3 + int(math.floor(0.5))\n```",
    "own helper wins": "```python\ndef poly(xs, x):\n    return 5\n\ndef add(a, b):\n    return poly(a, b)\n```",
    "body in prose": "The body is\n```python\n    return a + b\n```\nand that is all.",
    "body in a docstring, continued": '    """More."""\n    return a + b\n',
}


@pytest.mark.parametrize("name", CONTINUED)
def test_a_prompt_is_continued(name: str) -> None:
    namespace = run(CONTINUED[name], prompt=PROMPT)
    assert namespace["add"](2, 3) == 5
    assert namespace["K"] == 3


@pytest.mark.parametrize(("prompt", "text"), [
    ("def add(a, b):\n", "    return a + b\n"),
    ("def add(a, b):\n    ", "return a + b"),
    ("def add(a, b):", " return a + b"),
    ("def add(a, b):\n    return", " a + b"),
    ("def add(a, b):\n\t", "return a + b\n"),
    ("import math\ndef add(a, b):\n", "```\ndef add(a, b):\n    return a + b\n```"),
    ("def add(a, b):\r\n", "    return a + b\r\n"),
])  # fmt: skip
def test_prompts_without_a_docstring(prompt: str, text: str) -> None:
    assert run(text, prompt=prompt)["add"](2, 3) == 5


def test_the_stub_of_the_prompt_does_not_stand_in_for_the_function() -> None:
    program = extract("```python\ndef plus(a, b):\n    return a + b\n```", entry_point="add", prompt=PROMPT)
    assert program is not None
    assert "def add" not in program.source


def test_human_eval_continuations_parse_as_they_stand() -> None:
    with gzip.open(DATA / "humaneval" / "HumanEval.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    for row in rows:
        program = extract(row["canonical_solution"], entry_point=row["entry_point"], prompt=row["prompt"])
        assert program is not None
        assert program.source.rstrip() == (row["prompt"] + row["canonical_solution"]).rstrip()
        function = (row["prompt"] + row["canonical_solution"]).split(f"def {row['entry_point']}")[1]
        whole = f"```python\ndef {row['entry_point']}{function}\n```"
        again = extract(whole, entry_point=row["entry_point"], prompt=row["prompt"])
        assert again is not None
        names = {node.id for node in ast.walk(ast.parse(again.source)) if isinstance(node, ast.Name)}
        assert ("List" not in names) or "import List" in again.source or "import *" in again.source


ADVERSARIAL = {
    "backticks": "`" * 1_000_000,
    "runs of backticks": ("`" * 999 + "x") * 1000,
    "fences": "```\n" * 250_000,
    "openers": "```python\n" * 100_000,
    "openers and strings": "```python\n'''\n" * 70_000,
    "growing fences": "\n".join("`" * n for n in range(3, 1400)),
    "falling fences": "\n".join("`" * n for n in range(1400, 3, -1)),
    "blanks": " " * 1_000_000,
    "blank lines": " \n" * 500_000,
    "blanks and a fence": " " * 999_990 + "```python",
    "quotes": "> " * 500_000,
    "tags": "<code " * 160_000,
    "open tags": "<code>" * 160_000,
    "think": "<think>\n" * 120_000,
    "unthink": "</think>" * 120_000,
    "answers": "<answer>" * 120_000,
    "PYTHON": "[PYTHON]" * 120_000,
    "listings": "\\begin{code}" * 80_000,
    "triple quotes": "'''python\n" * 100_000,
    "brackets": "(" * 1_000_000,
    "names": "a\n" * 500_000,
    "assignments": "a = 1\n" * 160_000,
    "prose": "the quick brown fox, jumped. " * 35_000,
    "defs": "def add(a, b):\n" * 66_000,
    "a transcript and blanks": "```python\n>>> x\n" + " " * 1_000_000 + "x\n```",
    "a transcript and dots": "```python\n>>> x\n" + "." * 1_000_000 + "x\n```",
    "long line": "a" * 1_000_000 + "```",
    "indented": "    x = 1\n\n" * 90_000,
    "entities": "&lt;" * 250_000,
    "one-liners": "```x```\n" * 120_000,
    "not one-liners": "```x\n" * 200_000,
    "commas": "a = " + "a, " * 300_000,
    "imports": "import a, " * 100_000,
    "list markers": "1. " * 300_000,
    "end of turn": "</s>" * 250_000,
    "spaced end of turn": ("</s>" + " " * 1000) * 1000 + "x",
    "transcripts": ">>> x\n" * 160_000,
    "json": '{"code": ' * 100_000,
    "late": ("a" * 500 + "```\n") * 2000,
}


@pytest.mark.parametrize("name", ADVERSARIAL)
def test_time_is_linear(name: str) -> None:
    """A bound that only something worse than linear can break: these are a megabyte each."""
    start = time.process_time()
    extract(ADVERSARIAL[name], entry_point="add", prompt=PROMPT)
    extract(ADVERSARIAL[name][:100_000])
    assert time.process_time() - start < 20


pieces = st.sampled_from(
    ["```python\n", "```\n", "~~~\n", "````\n", ADD, BAD, "    return a + b\n", "prose. \n", "<think>\n", "</think>\n", "'''\n",
     '"""', "> ", "1. ", "<answer>", "</answer>", "[PYTHON]", "`", "\r\n", "\t", ">>> x = 1\n", "import os\n", "&lt;", "(",
     "{\"code\": \"x\"}", "<|im_end|>", "\ufeff", "\x00", "\ud800", "print(1)\n"]
)  # fmt: skip


@given(parts=st.lists(pieces, max_size=12), prompt=st.sampled_from([None, PROMPT, "def add(a, b):\n", "((", "\n"]))
@settings(max_examples=300, deadline=None)
def test_any_text_gives_a_program_or_none(parts: list[str], prompt: str | None) -> None:
    for entry in ("add", None):
        program = extract("".join(parts), entry_point=entry, prompt=prompt)
        assert program is None or program.source.strip()


def test_chain_of_elif_is_no_depth() -> None:
    """It is as deep as it is long in the tree, and CPython runs it all the same."""
    chain = "if 0: pass\n" + "elif 0: pass\n" * 2400
    program = extract(f"```python\ndef f(x): return 2\n{chain}\n```", entry_point="f", prompt="def f(x):\n")
    assert program is not None
    assert "def f" in program.source


def test_names_bound_in_a_match_are_seen() -> None:
    text = "```python\nmatch 1:\n    case 1:\n        def f(x): return 2\n```\n```python\nf = 3\nraise SystemExit\n"
    program = extract(text, entry_point="f")
    assert program is not None
    assert "def f" in program.source


BLOCK = "```python\n{}\n```\n"
READS = "n = int(input())\nprint(n * n)"
SOLVES = "def solve(n): return n * n\nprint(solve(int(input())))"


@pytest.mark.parametrize(
    ("blocks", "wanted"),
    [
        pytest.param([SOLVES, "print(solve(5))"], SOLVES, id="then a usage"),
        pytest.param([READS, "input = 5\noutput = 25"], READS, id="then an example in words"),
        pytest.param([READS, "n = int(input())", "print(n * n)"], READS, id="then each line explained"),
        pytest.param([SOLVES, "assert solve(2) == 4\nprint('All tests passed')"], SOLVES, id="then tests"),
        pytest.param(
            [READS, "import subprocess\nprint(subprocess.run(['python3', 'main.py']))"], READS, id="then a run"
        ),
        pytest.param(["print(1)", "print(2)"], "print(2)", id="two programs"),
        pytest.param(
            ["def g(x):\n    return x * x", "print(g(int(input())))"],
            "def g(x):\n    return x * x\nprint(g(int(input())))",
            id="the function, then the program",
        ),
    ],
)
def test_whole_program_among_blocks(blocks: list[str], wanted: str) -> None:
    program = extract("\n".join(map(BLOCK.format, blocks)))
    assert program is not None
    assert program.source == wanted + "\n"


DEFINES = "def f(x):\n    return x + 1"


@pytest.mark.parametrize(
    ("blocks", "wanted"),
    [
        pytest.param([DEFINES, "f = f(3)\nprint(f)"], DEFINES, id="usage under the same name"),
        pytest.param([DEFINES, "for x in (1,):\n    f = f(x)"], DEFINES, id="usage in a loop"),
        pytest.param([DEFINES, "import functools\nf = functools.lru_cache(None)(f)"], DEFINES, id="wrapped"),
        pytest.param([DEFINES, "from unittest.mock import Mock\nf = Mock(return_value=3)"], DEFINES, id="replaced"),
        pytest.param([DEFINES, "try:\n    from a import f\nexcept ImportError:\n    f = None"], DEFINES, id="imported"),
        pytest.param([DEFINES, "def f(x):\n    raise NotImplementedError"], DEFINES, id="stub that raises"),
        pytest.param(
            [DEFINES, "def f(x):\n    'Doc.'\n    raise NotImplementedError('x')"], DEFINES, id="stub with text"
        ),
        pytest.param([DEFINES, "def f(x):\n    return ..."], DEFINES, id="stub that returns"),
        pytest.param([DEFINES, "f = lambda x: x + 2"], "f = lambda x: x + 2", id="then as a lambda"),
        pytest.param([DEFINES, "def f(x):\n    return None"], "def f(x):\n    return None", id="then another"),
        pytest.param(
            ["def f(x):\n    return g(x)", "def g(x):\n    return x"],
            "def g(x):\n    return x\ndef f(x):\n    return g(x)",
            id="then its helper",
        ),
    ],
)
def test_definition_among_blocks(blocks: list[str], wanted: str) -> None:
    program = extract("\n".join(map(BLOCK.format, blocks)), entry_point="f")
    assert program is not None
    assert program.source == wanted + "\n"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        pytest.param(BLOCK.format(DEFINES) + "<answer>\n" + BLOCK.format("f(1)") + "</answer>", DEFINES, id="usage"),
        pytest.param(
            BLOCK.format(DEFINES) + "<answer>\n" + BLOCK.format("def f(x:") + "</answer>", "def f(x:", id="bad"
        ),
        pytest.param(BLOCK.format(DEFINES) + "```pseudocode\nf = 5\n```", DEFINES, id="pseudocode"),
        pytest.param(BLOCK.format(DEFINES.replace("    ", "\u00a0" * 4)), DEFINES, id="blanks that do not break"),
        pytest.param(
            BLOCK.format("x &lt; &#" + "9" * 5000 + ";"), "x &lt; &#" + "9" * 5000 + ";", id="a long reference"
        ),
    ],
)
def test_what_is_not_the_program(text: str, wanted: str) -> None:
    program = extract(text, entry_point="f")
    assert program is not None
    assert program.source == wanted + "\n"
