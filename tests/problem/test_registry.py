"""Names with parameters, as people write them."""

from dataclasses import dataclass

import pytest

import zeno
from zeno.problem.registry import build, describe, parse


def test_names_and_literals_are_parsed() -> None:
    assert parse("mean") == ("mean", [], {})
    assert parse(" sign_flip(10) ") == ("sign_flip", [10], {})
    assert parse("zeno(trim=13, rho=5e-4)") == ("zeno", [], {"trim": 13, "rho": 5e-4})


@pytest.mark.parametrize(
    "text", ["", "zeno(", "zeno trim=3", "3", "a.b", "f(x)", "f(__import__('os'))", "f(**{})", "f(1)(2)", "[1]"]
)
def test_anything_else_raises_and_is_never_run(text: str) -> None:
    with pytest.raises(ValueError, match="Expected a name, or a name with parameters"):
        parse(text)


def test_objects_are_built_with_defaults_and_overrides() -> None:
    assert build("rule", "zeno(trim=3)", zeno.RULES) == zeno.Zeno(trim=3)
    assert build("rule", "zeno", zeno.RULES, {"trim": 4, "faulty": 4}) == zeno.Zeno(trim=4)
    assert build("rule", "zeno(5)", zeno.RULES, {"trim": 4}) == zeno.Zeno(trim=5)
    assert build("rule", "zeno(5)", zeno.RULES, overrides={"trim": 6}) == zeno.Zeno(trim=6)


def test_zeno_auto_takes_its_parameters_by_name() -> None:
    assert build("rule", "zeno_auto(memory=0.5)", zeno.RULES) == zeno.ZenoAuto(memory=0.5)
    with pytest.raises(ValueError, match="trm"):
        build("rule", "zeno_auto(trm=4)", zeno.RULES)


def test_wrong_parameters_raise_an_error_with_the_signature() -> None:
    with pytest.raises(ValueError, match=r"Unknown rule 'zen'. Did you mean zeno\? There are: mean, median"):
        build("rule", "zen", zeno.RULES)
    with pytest.raises(ValueError, match=r"does not fit zeno\(trim, rho=0.0005, batch_size=4, .*'trum'"):
        build("rule", "zeno(trum=3)", zeno.RULES)
    with pytest.raises(ValueError, match=r"does not fit krum\(faulty\).*missing a required argument: 'faulty'"):
        build("rule", "krum", zeno.RULES)
    with pytest.raises(ValueError, match=r"The split \"dirichlet\('a'\)\" cannot be made"):
        build("split", "dirichlet('a')", zeno.SPLITS)
    with pytest.raises(ValueError, match=r"SignFlip needs scale as a finite number above 0\. Found scale='a'"):
        build("fault", "sign_flip('a')", zeno.FAULTS)
    with pytest.raises(ValueError, match=r"too many positional arguments"):
        build("rule", "krum(1, 2)", zeno.RULES)


@pytest.mark.parametrize(
    "rule", [zeno.Mean(), zeno.Krum(3), zeno.Zeno(4), zeno.Zeno(4, 0.1, 8), zeno.AutoBANT(3, 20.0)]
)
def test_descriptions_are_built_back_into_the_same_object(rule: zeno.Rule) -> None:
    assert build("rule", describe(rule, zeno.RULES), zeno.RULES) == rule


def test_an_object_without_a_name_is_described_by_its_repr() -> None:
    @dataclass(frozen=True)
    class Own:
        x: int = 1

    assert describe(Own(), zeno.RULES).endswith("Own(x=1)")


@pytest.mark.parametrize("text", ["flood(30, inner_product)", "flood(sends=inner_product)"])
def test_text_without_quotes_is_an_error_that_says_so(text: str) -> None:
    with pytest.raises(ValueError, match=r"Text needs quotes: 'inner_product'\.$"):
        parse(text)
