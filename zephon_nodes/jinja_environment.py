"""Compiles chat templates with Jinja: sandboxed, without chance, with generation tags. The only file that needs jinja2.

What templates may use beyond Jinja itself: ``raise_exception(message)``, ``strftime_now(format)`` if a date is given,
``tojson`` that doesn't escape HTML, ``{% break %}`` and ``{% continue %}``, and ``{% generation %}`` around answers.
Filters and functions that draw at random (``random``, ``lipsum``) are taken out.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, NamedTuple, NoReturn

from jinja2 import Template, TemplateError, meta, nodes
from jinja2.exceptions import TemplateSyntaxError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from zephon_nodes.errors import ConfigError

OPEN, CLOSE = "\ufdd0<answer>\ufdd0", "\ufdd0</answer>\ufdd0"
"""What generation tags write around their content. U+FDD0 is a noncharacter: texts don't hold it."""

REFUSED = (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What running a template may raise, by ``raise_exception`` or because the conversation isn't what it expects."""

_CAPTURING = (nodes.Macro, nodes.CallBlock, nodes.AssignBlock, nodes.FilterBlock)


class Compiled(NamedTuple):
    """``template``: to render with. ``names``: the variables that it may read from outside. ``optional``: names that it asks
    for with ``is defined`` or may set itself. ``tagged``: whether it has generation tags."""

    template: Template
    names: frozenset[str]
    optional: frozenset[str]
    tagged: bool


class _GenerationTags(Extension):
    """{% generation %} ... {% endgeneration %} writes its content between ``OPEN`` and ``CLOSE``."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        opened, closed = (nodes.Output([nodes.TemplateData(mark)], lineno=line) for mark in (OPEN, CLOSE))
        return nodes.Scope([opened, *body, closed], lineno=line)


def compile_template(text: str, today: datetime | None = None) -> Compiled:
    """Compiles a template. ``today``: what ``strftime_now`` tells; None leaves that function undefined.

    Raises ``ConfigError`` for a template that isn't Jinja, or that has generation tags where their place can't be known.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTags, "jinja2.ext.loopcontrols"]
    )
    del environment.filters["random"], environment.globals["lipsum"]
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    if today is not None:
        environment.globals["strftime_now"] = today.strftime
    try:
        tree, template = environment.parse(text), environment.from_string(text)
    except TemplateSyntaxError as error:
        raise ConfigError(f"the chat template isn't valid: line {error.lineno}: {error.message}") from error
    if any(_has_tags(node) for node in tree.find_all(_CAPTURING)):
        raise ConfigError(
            "the chat template has {% generation %} inside a macro, call, set or filter block, so what it writes may be "
            "changed or moved afterwards. Put the tags around the place where the text is written out."
        )
    names = meta.find_undeclared_variables(tree) - environment.globals.keys()
    return Compiled(template, frozenset(names), frozenset(_optional(tree)), _has_tags(tree))


def _has_tags(tree: nodes.Node) -> bool:
    return any(node.data == OPEN for node in tree.find_all(nodes.TemplateData))


def _optional(tree: nodes.Template) -> set[str]:
    tested = [test.node for test in tree.find_all(nodes.Test) if test.name == "defined"]
    set_itself = [name for name in tree.find_all(nodes.Name) if name.ctx == "store"]
    return {node.name for node in [*tested, *set_itself] if isinstance(node, nodes.Name)}


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
