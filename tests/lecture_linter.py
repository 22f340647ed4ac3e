"""The form of a lecture, as rules: a notebook goes in, problems come out, each saying what to do about it.

What a lecture needs is data (`FORMS`), one entry per notebook. A rule is a function from a notebook and its form to
sentences; `lint` runs them all.
"""

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import nbformat

import serving_lib
from serving_lib.exercises.framework import exercises_of
from tests.claim_checker import check_claims, namespace


@dataclass(frozen=True)
class Form:
    """What one notebook must hold. The defaults are those of lectures 01 to 04."""

    exercises: str | None  # the module of serving_lib.exercises; every exercise of it appears
    goals: int = 3
    opening: tuple[str, ...] = ("Time", "Prerequisites")
    sections: tuple[str, ...] = ("When this (formula|model) lies", "Exercises", "Summary", "References")
    explores: int = 3
    least_exercises: int = 6
    most_cells: int = 200
    # Beyond serving_lib: the module, and the reason.
    other_imports: dict[str, str] = field(default_factory=lambda: {"numpy": "curves and averages are arrays"})


FORMS = {
    "00_start_here": Form(
        "start", goals=0, opening=("Time",), sections=(), explores=1, least_exercises=1, most_cells=50
    ),
    "01_queueing": Form("queueing"),
    "02_batching": Form("batching"),
    "03_speculative_decoding": Form("speculative"),
    "04_paged_kv": Form("paged_kv"),
    "05_capacity_planning": Form(
        "capacity", sections=("Exercises", "Summary", "References"), explores=1, least_exercises=5
    ),
    "99_formula_sheet": Form(None, goals=0, opening=(), sections=(), explores=0, least_exercises=0),
}

MOST_WORDS = 120  # in a markdown cell that introduces a code cell
MEDIAN_LINES, MOST_LINES = 3, 12
VAGUE_VERBS = {
    "understand",
    "know",
    "learn",
    "appreciate",
    "grasp",
    "see",
    "get",
    "become",
    "be",
    "discover",
    "explore",
}
SLIDE_TYPES = {"slide", "subslide", "fragment", "skip", "notes", "-", ""}

BRITISH = {
    r"(\w*(?:util|optim|normal|minim|maxim|serial|initial|organ|recogn|summar|visual|general|special|parallel|token|quant"
    r"|random|synchron|amort|character|emphas|penal|prior|real|stabil|custom|apolog|categor))"
    r"is(e|ed|es|er|ing|ation|able)": r"\1iz\2",
    r"(behavi|col|fav|neighb|hon|lab|harb|rum|flav|vap)our(\w*)": r"\1or\2",
    r"(cent|met|lit|fib)re(s?)": r"\1er\2",
    r"(label|model|travel|cancel|level|signal|channel)l(ed|ing|er)": r"\1\2",
    r"analys(e|ed|es|ing)": r"analyz\1",
    r"grey(s?)": r"gray\1",
    r"(def|off|pret)ence(s?)": r"\1ense\2",
    r"catalogue(s?)": r"catalog\1",
    r"programme(s?)": r"program\1",
    r"artefact(s?)": r"artifact\1",
    r"fulfil(s?|ment)": r"fulfill\1",
    r"whilst": "while",
    r"amongst": "among",
}


@dataclass(frozen=True)
class Cell:
    """A cell with its number (from 1, as a reader counts) and, for code, its syntax tree (None if it has none)."""

    number: int
    kind: str
    source: str
    node: dict
    tree: ast.Module | None

    @property
    def is_code(self):
        return self.kind == "code"

    @property
    def is_markdown(self):
        return self.kind == "markdown"

    @property
    def prose(self):
        """The text of a markdown cell without its comments."""
        return re.sub(r"<!--.*?-->", "", self.source, flags=re.DOTALL) if self.is_markdown else ""

    @property
    def headings(self):
        return re.findall(r"^(#+)\s+(.*?)\s*$", self.prose, flags=re.MULTILINE)

    def calls(self, name):
        """The calls of a function, `name(...)` or `something.name(...)`."""
        return [
            node
            for node in ast.walk(self.tree or ast.Module([], []))
            if isinstance(node, ast.Call) and _last_name(node.func) == name
        ]

    def says(self, problem):
        return f"cell {self.number}: {problem}"


def lint(notebook, form) -> list[str]:
    """Return every problem of a notebook, in the order of the rules."""
    cells = cells_of(notebook)
    problems = [problem for rule in RULES for problem in rule(cells, form)]
    return problems + [problem for rule in NOTEBOOK_RULES for problem in rule(notebook)]


def cells_of(notebook) -> list[Cell]:
    """Return the cells of a notebook as the rules read them."""
    return [
        Cell(number, cell.cell_type, cell.source, cell, _parse(cell))
        for number, cell in enumerate(notebook.cells, start=1)
    ]


# --- what a lecture holds


def goals_are_measurable(cells, form) -> Iterator[str]:
    if not form.goals:
        return
    text = _opening(cells)
    after = re.split(r"(?im)^[\W_]*goals\b.*$", text, maxsplit=1)
    if len(after) < 2:
        yield f'the opening has no goals: write "**Goals.** After this lecture you can" and a list of {form.goals}'
        return
    goals = re.findall(r"(?m)^\s*(?:[-*]|\d+\.)\s+(.*)", re.split(r"(?m)^\s*\S*\*\*", after[1].strip(), maxsplit=1)[0])
    if len(goals) != form.goals:
        yield f"the opening lists {len(goals)} goals; list {form.goals}"
    for goal in goals:
        verb = re.sub(r"[^a-z]", "", (goal.split() or [""])[0].lower())
        if verb in VAGUE_VERBS:
            yield f'the goal "{goal[:40]}" cannot be measured: start with a deed (compute, predict, choose)'


def opening_names_time_and_prerequisites(cells, form) -> Iterator[str]:
    text = _opening(cells)
    for name in form.opening:
        if not re.search(rf"(?im)^[\W_]*{name}\b", text):
            yield f'the opening does not state "{name}": start a line of the first cells with **{name}.**'
    if "Time" in form.opening and not re.search(r"(?i)\d+\s*(to|-|–)?\s*\d*\s*min", text):  # noqa: RUF001
        yield "the opening does not say how long the lecture takes: write for example **Time.** 45 to 60 minutes"


def has_its_sections(cells, form) -> Iterator[str]:
    headings = [text for cell in cells for _, text in cell.headings]
    for section in form.sections:
        if not any(re.search(rf"(?i)\b{section}\b", heading) for heading in headings):
            yield f'there is no heading "{section}": add the section'
    titles = [text for cell in cells for marks, text in cell.headings if marks == "#"]
    if len(titles) != 1:
        yield f'there are {len(titles)} headings of the first level; a notebook has one title, "# 01 Queueing"'


def references_are_listed(cells, form) -> Iterator[str]:
    if "References" not in form.sections:
        return
    for cell in cells:
        if any(re.search("(?i)references", text) for _, text in cell.headings):
            if not re.search(r"(?m)^\s*(?:[-*]|\d+\.)\s+\S", cell.prose):
                yield cell.says("the references are no list: write one item for each work, with its address")
            return


def explores_enough(cells, form) -> Iterator[str]:
    found = sum(len(cell.calls("explore")) for cell in cells)
    if found < form.explores:
        yield f"{found} explore(...) where at least {form.explores} belong: give the reader something to move"


def predicts_before_it_reveals(cells, form) -> Iterator[str]:
    """The reader commits before the slider shows the answer, in every section that has a slider."""
    if form.goals == 0:
        return
    for section in _sections(cells):
        predicted = False
        for cell in section:
            predicted = predicted or bool(cell.calls("predict"))
            if cell.calls("explore"):
                if not predicted:
                    yield cell.says("this section explores before the reader has committed: put a predict(...) first")
                break


def predictions_are_computed(cells, _form) -> Iterator[str]:
    for cell in cells:
        for call in cell.calls("predict"):
            answers = [*call.args[2:3], *(keyword.value for keyword in call.keywords if keyword.arg == "answer")]
            if not answers:
                yield cell.says("predict(...) has no answer=: pass the expression that computes it")
            for answer in answers:
                if isinstance(answer, ast.Constant) and isinstance(answer.value, int | float):
                    yield cell.says("the answer of predict(...) is typed in: pass the expression that computes it")


def exercises_are_all_there(cells, form) -> Iterator[str]:
    if form.exercises is None:
        return
    known = exercises_of(form.exercises)
    found = []
    for cell in cells:
        for call in cell.calls("check"):
            key = call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else None
            found.append(key)
            if key not in known:
                yield cell.says(f"check({key!r}) names no exercise; those of this lecture are {', '.join(known)}")
                continue
            outputs = _text_of_outputs(cell)
            if outputs and "not attempted yet" not in outputs:
                yield cell.says(f'"{key}" is stored with an answer: put ... back and run the cell')
            before = cells[cell.number - 2].source if cell.number > 1 else ""
            if _words(known[key].text(known[key].question)) not in _words(before + " " + cell.source):
                question = " ".join(known[key].text(known[key].question).split())
                yield cell.says(
                    f'the markdown cell above must hold the question that check("{key}") answers: {question}'
                )
    for key in known:
        if found.count(key) != 1:
            yield f'exercise "{key}" appears {found.count(key)} times: give it one cell with check("{key}", ...)'
    if len(known) < form.least_exercises:
        yield f"the lecture has {len(known)} exercises where at least {form.least_exercises} belong"
    text = "\n".join(cell.source for cell in cells)
    for name in ("hint", "solution"):
        if found and not re.search(rf"\b{name}\(", text):
            yield f'nothing tells the reader of {name}("{form.exercises}.1"): mention it before the first exercise'


def is_short_enough(cells, form) -> Iterator[str]:
    if len(cells) > form.most_cells:
        yield f"{len(cells)} cells where at most {form.most_cells} belong: cut"


# --- how it reads


def code_cells_are_small(cells, _form) -> Iterator[str]:
    lengths = []
    for cell in cells:
        if cell.is_code:
            lines = [line for line in cell.source.splitlines() if line.strip()]
            lengths.append(len(lines))
            if len(lines) > MOST_LINES:
                yield cell.says(
                    f"{len(lines)} lines of code where at most {MOST_LINES} belong: move some into serving_lib"
                )
            if not lines:
                yield cell.says("empty code cell: delete it")
    if lengths and median(lengths) > MEDIAN_LINES:
        yield f"the median code cell has {median(lengths):g} lines where at most {MEDIAN_LINES} belong: split cells"


def every_code_cell_is_introduced(cells, _form) -> Iterator[str]:
    for before, cell in zip([None, *cells], cells, strict=False):
        if not cell.is_code:
            continue
        if before is None or not before.is_markdown:
            yield cell.says("no markdown cell stands before this code cell: say in a sentence or two what it is for")
        elif len(before.prose.split()) > MOST_WORDS:
            words = len(before.prose.split())
            yield before.says(
                f"{words} words before a code cell where at most {MOST_WORDS} belong: cut, or split the idea"
            )


def spelling_is_american(cells, _form) -> Iterator[str]:
    for cell in cells:
        for word, american in british_words(cell.source):
            yield cell.says(f'"{word}" is British spelling: write "{american}"')


def british_words(text) -> list[tuple[str, str]]:
    """Return the British words of a text with their American spelling; web addresses are left alone."""
    text = re.sub(r"https?://\S+", "", text)
    found = []
    for pattern, american in BRITISH.items():
        for match in re.finditer(rf"(?i)\b{pattern}\b", text):
            found.append((match[0], re.sub(f"(?i){pattern}", american, match[0])))
    return found


def pictures_have_alt_text(cells, _form) -> Iterator[str]:
    for cell in cells:
        for alt in re.findall(r"!\[(.*?)\]\(", cell.prose):
            if len(alt.split()) < 3:
                yield cell.says(
                    "an image without a description: write one sentence between the brackets of ![...](...)"
                )
        for tag in re.findall(r"<img\b[^>]*>", cell.prose):
            if not re.search(r"""alt\s*=\s*["'][^"']{10,}""", tag):
                yield cell.says("an <img> without a description: give it an alt= of one sentence")
        for output in cell.node.get("outputs", []):
            data = output.get("data", {})
            text = data.get("text/plain", "")
            if any(kind.startswith("image/") for kind in data) and (len(text.split()) < 4 or text.startswith("<")):
                yield cell.says(
                    "a picture without its sentence: show a plot of serving_lib.plots by explore(...), "
                    "which stores its alt text as text/plain"
                )


# --- what code may do


def code_is_plain_python(cells, _form) -> Iterator[str]:
    for cell in cells:
        if not cell.is_code:
            continue
        if re.search(r"(?m)^\s*[%!]|get_ipython", cell.source):
            yield cell.says("magics and shell commands are not for lectures: use plain Python")
        elif cell.tree is None:
            yield cell.says("this is not Python: it does not parse")
        if re.search(r"sys\.path|os\.chdir", cell.source):
            yield cell.says("the library is installed: import it without touching sys.path or the folder")
        if re.search(r";\s*$", cell.source, flags=re.MULTILINE):
            yield cell.says("a line ends in a semicolon: delete it, and assign what should not be shown")
        if "interact" in {
            _last_name(node.func) for node in ast.walk(cell.tree or ast.Module([], [])) if _is_call(node)
        }:
            yield cell.says("interact flickers and stacks its outputs: use explore(...)")
        if re.search(r"(?i)#\s*nbval_", cell.source):
            yield cell.says("a comment steers nbval: use a cell tag, with its reason beside it")


def imports_only_the_library(cells, form) -> Iterator[str]:
    for cell in cells:
        for node in ast.walk(cell.tree or ast.Module([], [])):
            if isinstance(node, ast.ImportFrom):
                modules = [node.module or "."]
                if any(alias.name == "*" for alias in node.names):
                    yield cell.says(f"star import from {node.module}: name what you use")
            elif isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            else:
                continue
            for module in modules:
                if module.split(".")[0] != "serving_lib" and module not in form.other_imports:
                    yield cell.says(
                        f"imports {module}: a lecture imports serving_lib only. Let the library own it, "
                        "or add it with a reason to other_imports in tests/lecture_linter.py"
                    )


def randomness_is_seeded(cells, _form) -> Iterator[str]:
    for cell in cells:
        for node in ast.walk(cell.tree or ast.Module([], [])):
            if not _is_call(node):
                continue
            dotted = ast.unparse(node.func)
            if re.fullmatch(r"(np|numpy)\.random\.(?!default_rng|Generator|SeedSequence).*|random\.\w+", dotted):
                yield cell.says(f"{dotted} draws from a hidden global state: use np.random.default_rng(seed)")
            elif _last_name(node.func) == "default_rng" and not node.args and not node.keywords:
                yield cell.says("default_rng() without a seed: pass one, such as default_rng(1)")
            elif _needs_a_seed(node):
                yield cell.says(f"{dotted} is random: pass it seed=")


def _needs_a_seed(call):
    """Whether a function of the library would draw without a seed: its `seed` is None by default, and is not passed."""
    function = serving_lib
    for name in ast.unparse(call.func).split("."):
        function = getattr(function, name, None)
    if not callable(function):
        return False
    parameters = inspect.signature(function).parameters
    if "seed" not in parameters or parameters["seed"].default is not None:
        return False
    position = list(parameters).index("seed")
    return len(call.args) <= position and all(keyword.arg not in ("seed", None) for keyword in call.keywords)


# --- how it is stored


def cells_have_slide_metadata(cells, _form) -> Iterator[str]:
    for cell in cells:
        slide_type = cell.node.get("metadata", {}).get("slideshow", {}).get("slide_type")
        if slide_type not in SLIDE_TYPES:
            yield cell.says(
                "no slide type: set metadata.slideshow.slide_type to slide, subslide, fragment, skip, notes or -"
            )
        elif any(len(marks) <= 2 for marks, _ in cell.headings) and slide_type not in ("slide", "skip"):
            yield cell.says(f'a section starts here, but its slide type is "{slide_type}": make it "slide"')


def was_run_in_order(cells, _form) -> Iterator[str]:
    counts = [cell.node.get("execution_count") for cell in cells if cell.is_code]
    if counts != list(range(1, len(counts) + 1)):
        yield "the cells were not run once, top to bottom: run `make notebooks`"
    for cell in cells:
        if any(output.get("output_type") == "error" for output in cell.node.get("outputs", [])):
            yield cell.says("an error is stored as output: mend the cell and run `make notebooks`")


def ignored_outputs_have_a_reason(cells, _form) -> Iterator[str]:
    for cell in cells:
        tags = cell.node.get("metadata", {}).get("tags", [])
        ignored = [tag for tag in tags if tag in ("nbval-ignore-output", "nbval-skip", "raises-exception")]
        if ignored and not any(tag.startswith("reason:") for tag in tags):
            yield cell.says(f'{ignored[0]} without a reason: add a tag such as "reason: shows the versions"')


def kernel_is_python3(notebook) -> Iterator[str]:
    name = notebook.metadata.get("kernelspec", {}).get("name")
    if name != "python3":
        yield f'the kernel is "{name}": it must be "python3"; run `make notebooks`'


RULES = (
    goals_are_measurable,
    opening_names_time_and_prerequisites,
    has_its_sections,
    references_are_listed,
    explores_enough,
    predicts_before_it_reveals,
    predictions_are_computed,
    exercises_are_all_there,
    is_short_enough,
    code_cells_are_small,
    every_code_cell_is_introduced,
    spelling_is_american,
    pictures_have_alt_text,
    code_is_plain_python,
    imports_only_the_library,
    randomness_is_seeded,
    cells_have_slide_metadata,
    was_run_in_order,
    ignored_outputs_have_a_reason,
)
NOTEBOOK_RULES = (kernel_is_python3,)


def _parse(cell):
    if cell.cell_type != "code":
        return None
    try:
        return ast.parse(cell.source)
    except SyntaxError:
        return None


def _is_call(node):
    return isinstance(node, ast.Call)


def _last_name(node):
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None


def _sections(cells):
    """The cells between one heading of the second level and the next."""
    sections = [[]]
    for cell in cells:
        if any(len(marks) <= 2 for marks, _ in cell.headings):
            sections.append([])
        sections[-1].append(cell)
    return sections


def _opening(cells):
    """The prose before the first section."""
    return re.split(r"(?m)^## ", "\n".join(cell.prose for cell in cells), maxsplit=1)[0]


def _text_of_outputs(cell):
    return "".join("".join(output.get("text", "")) for output in cell.node.get("outputs", []))


def _words(text):
    """The letters and digits of a text, so that a question may be set in bold or wrapped in comment signs."""
    return re.sub(r"\W+", " ", re.sub(r"<!--.*?-->|[*_`$]", "", text, flags=re.DOTALL)).casefold()


def main():
    """Print the problems of notebooks: ``python -m tests.lecture_linter notebooks/01_queueing.ipynb``."""
    names = namespace()
    for path in map(Path, sys.argv[1:]):
        notebook = nbformat.read(path, as_version=4)
        for problem in lint(notebook, FORMS[path.stem]) + check_claims(notebook, names):
            print(f"{path.name}, {problem}")


if __name__ == "__main__":
    main()
