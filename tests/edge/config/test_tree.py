"""Bytes that are no config, and the places that a tree gives to everything."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iop_edge.config.yaml12.aliases import MAX_DEPTH
from iop_edge.config.yaml12.places import Places
from iop_edge.config.yaml12.tree import Tree, build
from tests.edge.config.rig import codes, effective, marked, problems


def tree_of(text: str) -> tuple[Tree, Places]:
    places = Places()
    return build(text, places.add_file("f", text), places), places


def told(content: str | bytes) -> list[tuple[str, int, int]]:
    return [(one.code, one.line, one.column) for one in problems(content)]


BROKEN = [
    ("empty", b"", ("empty_file", 1, 1)),
    ("comments only", b"# nothing\n\n", ("empty_file", 1, 1)),
    ("an empty document", b"---\n", ("empty_file", 1, 1)),
    ("null", b"null", ("empty_file", 1, 1)),
    ("a scalar", b"\n  hello", ("root_not_mapping", 2, 3)),
    ("a list", b"- a\n", ("root_not_mapping", 1, 1)),
    ("an alias", b"*a", ("root_not_mapping", 1, 1)),
    ("two documents", b"edge: {}\n---\nedge: {}\n", ("several_documents", 2, 1)),
    ("a tab", b"edge:\n\tid: e\n", ("tab_indent", 2, 1)),
    ("a tab after spaces", b"edge:\n  \tid: e\n  x: 1\n", ("tab_indent", 2, 3)),
    ("NUL", b"edge: {id: a\x00b}", ("control_character", 1, 13)),
    ("escape", b"edge:\n  id: a\x1bb\n", ("control_character", 2, 8)),
    ("bad UTF-8", b"edge:\n  id: a\xffb\n", ("not_utf8", 2, 8)),
    ("a truncated character", "edge: {id: é".encode()[:-1], ("not_utf8", 1, 12)),
    ("an encoded surrogate", b"edge: {id: \xed\xa0\x80}", ("not_utf8", 1, 12)),
    ("an escaped surrogate", rb'edge: {id: "\ud800"}', ("yaml_syntax", 1, 15)),
    ("UTF-16", "edge: {}".encode("utf-16"), ("not_utf8", 1, 1)),
    ("UTF-16 without a mark", "edge: {}".encode("utf-16-le"), ("control_character", 1, 2)),
    ("UTF-32", "edge: {}".encode("utf-32"), ("not_utf8", 1, 1)),
    ("a colon too many", b"edge: id: e", ("yaml_syntax", 1, 9)),
    ("an open quote", b'edge: {id: "e\n', ("yaml_syntax", 1, 12)),
    ("an open brace", b"edge: {id: e\n", ("yaml_syntax", 2, 1)),
    ("bad indentation", b"edge:\n    id: e\n  name: f\n", ("yaml_syntax", 3, 3)),
    ("a reserved sign", b"edge: {id: @e}", ("yaml_syntax", 1, 12)),
    ("depth", b"edge: " + b"[" * 200, ("too_deep", 1, 7 + MAX_DEPTH)),
    ("depth of mappings", b"{a: " * 200, ("too_deep", 1, 4 * (MAX_DEPTH + 1) + 1)),
    ("an unquoted reference", b"edge: {id: ${X}}", ("unquoted_reference", 1, 12)),
    ("a reference in a list", b"models: [${X}, a]", ("unquoted_reference", 1, 10)),
    ("a thousand levels", b"edge: " + b"[" * 1000, ("too_deep", 1, 1006)),
]


@pytest.mark.req("CFG-3")
@pytest.mark.parametrize(
    ("content", "expected"), [row[1:] for row in BROKEN], ids=[row[0] for row in BROKEN]
)
def test_bytes_that_are_no_config_are_told_with_line_and_column(
    content: bytes, expected: tuple[str, int, int]
) -> None:
    assert told(content) == [expected]


@pytest.mark.req("CFG-3")
def test_a_file_over_the_bound_is_refused_unparsed() -> None:
    found = problems(b"[" * (64 * 1024 * 1024 + 1))
    assert [one.code for one in found] == ["file_too_large"]


@pytest.mark.req("CFG-3")
def test_a_byte_order_mark_is_fine_and_moves_no_column() -> None:
    assert told(b"\xef\xbb\xbfedge: {idd: e}") == [("unknown_key", 1, 8)]


@pytest.mark.req("CFG-3")
def test_a_key_that_nests_without_end_is_abandoned() -> None:
    assert [code for code, *_ in told(b"? " + b"[" * 200)] == ["key_not_text", "too_deep"]


KEPT_GOING = {
    "a duplicate key": ("duplicate_key", "edge: {id: e, «id: f}"),
    "a duplicate section": ("duplicate_key", "edge: {id: e}\n«edge: {id: f}"),
    "a merge key": ("merge_key", "edge: {«<<: {id: e}}"),
    "a numeric key": ("key_not_text", "models: [{id: m, providers: {«1: x}}]"),
    "a boolean key": ("key_not_text", "edge: {«true: x}"),
    "a null key": ("key_not_text", "edge: {«~: x}"),
    "a list as key": ("key_not_text", "edge: {? «[a, {b: c}] : x}"),
    "a mapping as key": ("key_not_text", "edge: {? «{a: b} : x}"),
    "a tag": ("tag", "edge: {id: «!!str 1}"),
    "a tag of a mapping": ("tag", "edge: «!x {id: e}"),
    "an unknown alias": ("unknown_alias", "edge: {id: e, name: «*a}"),
    "an alias in its own anchor": ("unknown_alias", "edge: &a {id: e, name: «*a}"),
    "a number of many digits": ("number_too_long", "edge: {id: «" + "1" * 400 + "}"),
}


@pytest.mark.req("CFG-3")
@pytest.mark.parametrize("case", KEPT_GOING)
def test_what_is_wrong_in_one_place_does_not_end_the_search(case: str) -> None:
    code, text = KEPT_GOING[case]
    text, [place] = marked(text + "\nserver: {lisen: x}")
    last = text.count("\n") + 1
    found = [one for one in problems(text) if one.severity == "error"]
    assert [(one.code, one.line, one.column) for one in found if one.code == code] == [
        (code, *place)
    ]
    assert ("unknown_key", last) in [(one.code, one.line) for one in found]


@pytest.mark.req("CFG-3")
def test_two_keys_that_are_refused_are_no_duplicates_of_each_other() -> None:
    assert codes("1: a\n<<: {}\n2: b\n<<: {}\n? [a]\n: b\n") == [
        "key_not_text",
        "merge_key",
        "key_not_text",
        "merge_key",
        "key_not_text",
    ]


@pytest.mark.req("CFG-3")
@pytest.mark.parametrize("key", ['"\\0discarded"', '"\\0"', '"\\xff"'])
def test_no_key_can_be_written_that_is_passed_over(key: str) -> None:
    assert codes(f"{key}: 1") == ["unknown_key"]


@pytest.mark.req("CFG-4")
@pytest.mark.parametrize("value", ["!!str 5", "*nowhere"])
def test_what_was_told_of_the_text_is_not_told_again_of_the_value(value: str) -> None:
    assert len(codes(f"models: [{{id: {value}, providers: {{p: m}}}}]")) == 2  # and the provider


@pytest.mark.req("CFG-3")
def test_a_duplicate_key_names_both_lines() -> None:
    [found] = problems("edge:\n  id: e\n  name: n\n  id: f\n")
    assert (found.line, found.path) == (4, "edge.id")
    assert "line 2" in found.message


@pytest.mark.req("CFG-3")
def test_every_number_that_is_too_long_is_told() -> None:
    number = "1" * 400
    assert codes(f"edge: {{id: {number}, name: {number}}}") == ["number_too_long"] * 2


@pytest.mark.req("CFG-3")
def test_an_alias_copies_its_anchor() -> None:
    config = effective("edge: &a {id: e}\nserver: {tls: &t {cert_file: c, key_file: k}}\n"
                       "bootstrap: {tls: *t}")  # fmt: skip
    assert config.server.tls == config.bootstrap.tls is not None


@pytest.mark.req("CFG-3")
def test_an_alias_bomb_is_refused_by_the_number_of_nodes_it_expands_to() -> None:
    text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    for level in range(1, 10):
        text += f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]\n"
    [found] = [one for one in problems(text) if one.code == "alias_bomb"]
    assert "50000" in found.message


@pytest.mark.req("CFG-3")
def test_aliases_that_nest_ever_deeper_are_refused() -> None:
    text = f"a0: &a0 {'[' * 60}{']' * 60}\n"
    for level in range(1, 30):
        text += f"a{level}: &a{level} {'[' * 60}*a{level - 1}{']' * 60}\n"
    assert codes(text) == ["too_deep"]


@pytest.mark.req("CFG-3")
def test_a_reference_behind_an_alias_is_expanded_in_both_places() -> None:
    text = "server: {tls: &t {cert_file: '${C}', key_file: k}}\nbootstrap: {tls: *t}"
    config = effective(text, environment={"C": "cert"})
    assert config.server.tls is not None
    assert config.bootstrap.tls is not None
    assert config.server.tls.cert_file == config.bootstrap.tls.cert_file == "cert"


words = st.text("abc \u00e9\ud55c\U0001f600", min_size=1, max_size=4).map(lambda one: f"k{one}k")
leaves = st.one_of(words, st.integers(-9, 99), st.booleans())
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(words, inner, max_size=3)),
    max_leaves=20,
)
breaks = st.sampled_from(["\n", "\r\n", "\r"])


@pytest.mark.req("CFG-3")
@settings(deadline=None)
@given(value=st.dictionaries(words, trees, min_size=1, max_size=3), line_break=breaks)
def test_every_entry_knows_its_place_whatever_breaks_the_lines(
    value: dict[str, object], line_break: str
) -> None:
    from iop_edge.config.yaml12.emit import emit, scalar

    text = emit(value).replace("\n", line_break)
    tree, places = tree_of(text)
    assert tree.root == value
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")

    def look(node: object, steps: tuple[str | int, ...]) -> None:
        entries = node.items() if isinstance(node, dict) else enumerate(node)
        for step, inner in entries:
            here = (*steps, step)
            _, line, column = places.find(tree.root, here)
            rest = lines[line - 1][column - 1 :]
            if isinstance(inner, dict | list):
                if isinstance(step, str):
                    assert rest.startswith(f"{scalar(step)}:")
                look(inner, here)
            else:
                assert rest == scalar(inner)

    look(tree.root, ())
