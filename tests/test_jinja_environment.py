"""The environment of chat templates: what is there, what isn't, and what generation tags become."""

from __future__ import annotations

import json
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_nodes.errors import ConfigError
from zephon_nodes.jinja_environment import CLOSE, OPEN, REFUSED, compile_template

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(["<a href='&'>", "é\u2028"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def rendered(text, **variables):
    return compile_template(text).template.render(variables)


@given(values)
def test_tojson_is_that_of_json_without_escapes(value):
    assert rendered("{{ v | tojson }}", v=value) == json.dumps(value, ensure_ascii=False)
    options = {"indent": 2, "sort_keys": True, "ensure_ascii": True, "separators": (",", ":")}
    text = "{{ v | tojson(indent=2, sort_keys=true, ensure_ascii=true, separators=(',', ':')) }}"
    assert rendered(text, v=value) == json.dumps(value, **options)


def test_blocks_leave_no_lines_behind_and_html_is_not_escaped():
    assert rendered("a\n    {% if true %}\n{{ v }}\n  {% endif %}\nb\n", v="<&>") == "a\n<&>\nb"


def test_loops_can_be_left_and_cut_short():
    text = (
        "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% elif i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}"
    )
    assert rendered(text) == "023"


def test_namespaces_and_macros_work():
    text = "{% set ns = namespace(n=0) %}{% for i in range(3) %}{% set ns.n = ns.n + i %}{% endfor %}{% macro m(x) %}[{{ x }}]{% endmacro %}{{ m(ns.n) }}"
    assert rendered(text) == "[3]"


@pytest.mark.parametrize(
    "text",
    ["{{ ''.__class__.__mro__ }}", "{{ v.append(1) }}", "{{ v.pop() }}", "{{ lipsum() }}", "{{ raise_exception('x') }}", "{{ strftime_now('%Y') }}", "{{ range(10**9) }}"],
)  # fmt: skip
def test_what_a_sandbox_refuses_and_what_is_not_there(text):
    with pytest.raises(REFUSED):
        rendered(text, v=[1])


@pytest.mark.parametrize(
    "text", ["{{ [1, 2] | random }}", "{% include 'a' %}{% endinclude %}", "{% generation %}", "{% endgeneration %}"]
)
def test_what_does_not_compile_is_refused_with_its_line(text):
    with pytest.raises(ConfigError, match="chat template isn't valid: line 2: "):
        compile_template("\n" + text)


def test_the_date_is_the_given_one():
    compiled = compile_template("{{ strftime_now('%d %B %Y %H') }}", datetime(2024, 7, 26, 5))
    assert compiled.template.render() == "26 July 2024 05" and not compiled.names
    assert compile_template("{{ strftime_now('%d') }}").names == {"strftime_now"}


def test_generation_tags_are_marked_and_keep_their_names_to_themselves():
    compiled = compile_template(
        "a{% generation %}{% set n = 1 %}{{ n }}{% endgeneration %}{{ n }}b{%- generation -%} c {%- endgeneration %}"
    )
    assert compiled.tagged
    assert compiled.template.render() == f"a{OPEN}1{CLOSE}b{OPEN}c{CLOSE}"
    assert not compile_template("generation {{ 'endgeneration' }}").tagged


@pytest.mark.parametrize(
    "text",
    [
        "{{% macro m() %}}{}{{% endmacro %}}",
        "{{% set x %}}{}{{% endset %}}",
        "{{% filter trim %}}{}{{% endfilter %}}",
        "{{% macro m() %}}{{{{ caller() }}}}{{% endmacro %}}{{% call m() %}}{{% if true %}}{}{{% endif %}}{{% endcall %}}",
    ],
)
def test_generation_tags_whose_text_may_move_are_refused(text):
    with pytest.raises(ConfigError, match="inside a macro, call, set or filter block"):
        compile_template(text.format("{% generation %}a{% endgeneration %}"))
    assert not compile_template(text.format("a")).tagged


def test_names_are_those_that_the_template_reads_and_does_not_have():
    text = "{% if a is defined %}{{ a }}{% endif %}{% for m in messages %}{{ m.x }}{% endfor %}{% set own = b %}{{ own ~ range(2) }}{% if not c is defined %}{% set c = 1 %}{% endif %}{{ c }}"
    compiled = compile_template(text)
    assert compiled.names == {"a", "b", "c", "messages"}
    assert compiled.optional & compiled.names == {"a", "c"}
    assert compile_template("{% if x %}{% set a_token = 1 %}{% endif %}{{ a_token }}").optional == {"a_token"}
