"""The report as one page: verdict first, then figures, tables, cards, and how to run it again."""

from __future__ import annotations

from collections.abc import Iterable

from whorl.lab.report.cards import Cards
from whorl.lab.report.figures import Figures
from whorl.lab.report.markup import element, text
from whorl.lab.report.numbers import count, plain, ratio, size
from whorl.lab.report.reading import PROTOCOLS, RECALL, TASK, Reading, finite
from whorl.lab.report.sentences import Sentences
from whorl.lab.report.style import CSS
from whorl.lab.report.tables import Tables
from whorl.lab.report.verdict import BREAK, HOLD, judge
from whorl.lab.report.words import Words


def page(reading: Reading, words: Words) -> str:
    """The whole HTML text; it needs no script and loads nothing."""
    findings = judge(reading)
    sentences = Sentences(reading, findings, words)
    figures = Figures(reading, findings, words)
    tables = Tables(reading, figures, words)
    title = reading.title or words("title")
    names = [task.name for task in findings.tasks]
    tasks = _section(words("tasks_heading"), "".join(figures.task(name) + tables.task(name, TASK) for name in names))
    text_scored = findings.measure is not None
    body = element(
        "main",
        element("h1", text(title)),
        element("p", *(element("span", text(fact)) for fact in _facts(reading, words)), class_="facts"),
        _verdict(sentences, words),
        "" if text_scored else tasks,  # with no text scored, the tasks are what the page is about
        _section(words("loss_heading"), figures.losses()),
        _section(words("table_heading"), tables.losses()),
        _section(words("recall_heading"), tables.recall(RECALL)),
        _section(words("cards_heading"), Cards(reading, findings, figures, words).all()),
        _section(words("learning_heading"), figures.curves()),
        tasks if text_scored else "",
        _section(words("reproduce_heading"), _reproduce(reading, words)),
    )
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="generator" content="whorl">'
        f"{element('title', text(title))}{element('style', CSS)}"
    )
    return f'<!DOCTYPE html>\n<html lang="{words("lang")}"><head>{head}</head>\n<body>{body}</body></html>\n'


def _section(heading: str, content: str) -> str:
    return element("section", element("h2", text(heading)), content) if content else ""


def _verdict(sentences: Sentences, words: Words) -> str:
    space = words("space")
    notes = sentences.notes()
    care = [
        element("h3", text(words("care"))),
        element("ul", *(element("li", text(note)) for note in notes)),
    ]
    return element(
        "section",
        element("h2", text(words("verdict"))),
        element("p", text(space.join(sentences.paragraph())), class_="said"),
        *(care if notes else []),
        class_="verdict",
    )


def _facts(reading: Reading, words: Words) -> Iterable[str]:
    encodings = len({row.label for row in reading.rows})
    if reading.measured(PROTOCOLS):
        longest = max(reading.lengths_of(PROTOCOLS))
        times = ratio(longest, reading.trained)
        yield words("facts_text", encodings=encodings, trained=reading.trained, longest=longest, ratio=times)
    else:
        yield words("facts_task", encodings=encodings, trained=reading.trained)
    yield words.counted("facts_seeds", reading.seeds, n=reading.seeds)
    if "name" in reading.corpus:
        yield str(reading.corpus["name"])
    if reading.created:
        yield reading.created[:10]


def _reproduce(reading: Reading, words: Words) -> str:
    pairs: list[tuple[str, str]] = []
    if reading.command:
        pairs.append((words("command"), element("pre", element("code", text(reading.command), lang="en"))))
    if reading.results:
        runs = ", ".join(path.removeprefix("runs/").removesuffix("/result.json") for path in reading.results)
        pairs.append((words("results"), element("code", text(runs), class_="runs", lang="en")))
    corpus = reading.corpus
    sizes = [finite(corpus.get(name)) for name in ("train_bytes", "test_bytes", "documents")]
    if "name" in corpus and None not in sizes:
        train, test, documents = (value for value in sizes if value is not None)
        said = words("corpus_text", name=corpus["name"], train=size(train), test=size(test), documents=count(documents))
        pairs.append((words("corpus"), text(said)))
    if reading.environment:
        pairs.append((words("machine"), _machine(reading, words)))
    if reading.created:
        pairs.append((words("created"), text(reading.created)))
    pairs.append((words("definitions"), _definitions(reading, words)))
    return element("dl", *(element("dt", text(name)) + element("dd", value) for name, value in pairs), class_="about")


def _machine(reading: Reading, words: Words) -> str:
    parts = []
    for name, value in reading.environment.items():
        if value is None or value == "" or (isinstance(value, float) and finite(value) is None):
            continue
        said = text(words(f"env_{name}")) if f"env_{name}" in words else element("code", text(name), lang="en")
        parts.append(element("dt", said) + element("dd", text(_fact(name, value)), lang="en"))
    return element("dl", *parts, class_="machine")


def _fact(name: str, value: object) -> str:
    amount = finite(value)
    if amount is not None and name.endswith("_bytes"):
        return size(amount)
    return plain(amount) if amount is not None and isinstance(value, float) else str(value)


def _definitions(reading: Reading, words: Words) -> str:
    measures = reading.measured((*PROTOCOLS, *RECALL, *TASK))
    pairs = [(words(measure), words(f"{measure}_define")) for measure in measures]
    if reading.windows:
        pairs.append((words("window_define_name"), words("window_define")))
    if reading.measured(PROTOCOLS):
        pairs.append((words("trust_noise"), words("trust_noise_text", noise=plain(reading.noise))))
        limits = {"hold": plain(max(HOLD, reading.noise)), "limit": plain(max(BREAK, reading.noise))}
        pairs.append((words("define_hold"), words("define_hold_text", **limits)))
    return element("dl", *(element("dt", text(name)) + element("dd", text(said)) for name, said in pairs))
