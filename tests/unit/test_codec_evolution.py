"""Data of yesterday and classes of today."""

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import pydantic
import pytest

from holdfast import Codec, checkpointable
from holdfast.errors import UnknownType
from tests.support.parts import TypeRegistry

pytestmark = pytest.mark.usefixtures("own_marks")


@dataclass
class OldReport:
    title: str
    pages: int


@dataclass
class LongerReport:
    title: str
    pages: int
    author: str = "nobody"
    tags: list[str] = field(default_factory=lambda: ["new"])


@dataclass(slots=True)
class SlottedReport:
    title: str
    pages: int
    tags: list[str] = field(default_factory=list)


class TupleReport(NamedTuple):
    pages: int
    title: str
    author: str = "nobody"


class ModelReport(pydantic.BaseModel):
    title: str
    pages: int
    author: str = "nobody"
    tags: list[str] = pydantic.Field(default_factory=list)


class StructReport(msgspec.Struct):
    pages: int
    title: str
    author: str = "nobody"
    tags: list[str] = msgspec.field(default_factory=list)


def stored(value: Any, **mark: Any) -> bytes:
    """The bytes of a value whose class was called Report."""
    checkpointable(name="Report", **mark)(type(value))
    return Codec(TypeRegistry([("old", type(value))])).encode(value)


def read(data: bytes, cls: Any, **mark: Any) -> Any:
    checkpointable(name="Report", **mark)(cls)
    return Codec(TypeRegistry([("new", cls)])).decode(data, "state")


KINDS = [LongerReport, SlottedReport, TupleReport, ModelReport, StructReport]


@pytest.mark.parametrize("cls", KINDS, ids=lambda cls: cls.__name__)
def test_what_is_missing_takes_its_default_in_any_kind_of_class(cls: Any) -> None:
    read_back = read(stored(OldReport("Q3", 5)), cls)
    assert read_back == cls(title="Q3", pages=5)
    assert type(read_back) is cls


@pytest.mark.parametrize("cls", KINDS, ids=lambda cls: cls.__name__)
def test_any_kind_of_class_can_become_any_other(cls: Any) -> None:
    data = stored(cls(title="Q3", pages=5))

    def known(version: int, fields: dict[str, Any]) -> dict[str, Any]:
        return {name: fields[name] for name in ("title", "pages")}

    assert read(data, OldReport, upgrade=known) == OldReport("Q3", 5)


def test_defaults_are_fresh() -> None:
    data = stored(OldReport("Q3", 5))
    one, other = read(data, LongerReport), read(data, LongerReport)
    one.tags.append("more")
    assert other.tags == ["new"]


class Cart(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    id: str
    note: str = ""
    amount: int = 1
    currency: str = "EUR"


class CartToday(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    cart_id: str
    note: str = ""
    cents: int = 100
    currency: str = "EUR"
    origin: str = "web"


def renamed(version: int, fields: dict[str, Any]) -> dict[str, Any]:
    return {"cart_id": fields["id"], "cents": 5, "currency": fields["currency"], "note": fields["note"]}


def test_a_model_that_was_upgraded_knows_which_fields_were_set() -> None:
    """Those that were and are still there, and those that the upgrade brought; a default is none of them."""
    cart = read(
        stored(Cart.model_validate({"id": "c1", "note": "n", "beside": 1})),
        CartToday,
        version=2,
        upgrade=renamed,
    )
    assert cart.model_fields_set == {"cart_id", "note", "cents", "beside"}
    assert cart.model_dump(exclude_unset=True) == {"cart_id": "c1", "note": "n", "cents": 5, "beside": 1}
    assert cart.origin == "web"


def test_a_model_without_upgrade_keeps_which_fields_were_set() -> None:
    cart = read(stored(Cart.model_validate({"id": "c1", "beside": 1})), Cart)
    assert cart.model_fields_set == {"id", "beside"}
    report = read(stored(OldReport("Q3", 5)), ModelReport)
    assert report.model_fields_set == {"title", "pages"}


@dataclass
class Needing:
    title: str
    pages: int
    author: str


class NeedingTuple(NamedTuple):
    title: str
    pages: int
    author: str


class NeedingModel(pydantic.BaseModel):
    title: str
    pages: int
    author: str


class NeedingStruct(msgspec.Struct):
    title: str
    pages: int
    author: str


@pytest.mark.parametrize(
    "cls", [Needing, NeedingTuple, NeedingModel, NeedingStruct], ids=lambda cls: cls.__name__
)
def test_a_missing_field_without_default_is_named(cls: Any) -> None:
    with pytest.raises(UnknownType) as refused:
        read(stored(OldReport("Q3", 5)), cls)
    assert str(refused.value) == (
        "state: Report needs the field 'author', which the data does not have (version 1); give the field a default, "
        "or the class @checkpointable(upgrade=...)"
    )


@dataclass
class Shorter:
    title: str


def test_a_field_that_is_gone_is_named() -> None:
    with pytest.raises(UnknownType) as refused:
        read(stored(OldReport("Q3", 5)), Shorter)
    assert str(refused.value) == (
        "state: Report has no field 'pages', which the data has (version 1); give the class "
        "@checkpointable(upgrade=...) that drops or renames it"
    )


@dataclass
class Renamed:
    name: str
    length: int = 0


@pytest.mark.parametrize("version", [1, 2])
def test_upgrade_is_given_the_version_and_the_fields(version: int) -> None:
    asked = []

    def upgrade(version: int, fields: dict[str, Any]) -> dict[str, Any]:
        asked.append((version, dict(fields)))
        return {"name": fields["title"]}

    assert read(stored(OldReport("Q3", 5)), Renamed, version=version, upgrade=upgrade) == Renamed("Q3")
    assert asked == [(1, {"title": "Q3", "pages": 5})]


def test_upgrade_is_not_asked_where_all_fits() -> None:
    assert read(stored(OldReport("Q3", 5), version=2), LongerReport, version=2, upgrade=None) is not None

    def never(version: int, fields: dict[str, Any]) -> dict[str, Any]:
        raise AssertionError

    assert read(stored(OldReport("Q3", 5), version=2), LongerReport, version=2, upgrade=never).pages == 5


def fails(version: int, fields: dict[str, Any]) -> dict[str, Any]:
    raise KeyError("titel")


UPGRADES: list[tuple[str, Callable[..., Any], str]] = [
    ("raises", fails, "state: the upgrade of Report from version 1 failed: KeyError('titel')"),
    ("no dict", lambda version, fields: None, "state: the upgrade of Report must return a dict of fields, not None"),
    ("unknown", lambda version, fields: {"name": 1, "x": 2}, ("state: Report has no field 'x', which the data has "
     "(version 1); give the class @checkpointable(upgrade=...) that drops or renames it")),
    ("missing", lambda version, fields: {}, ("state: Report needs the field 'name', which the data does not have "
     "(version 1); give the field a default, or the class @checkpointable(upgrade=...)")),
]  # fmt: skip


@pytest.mark.parametrize(("upgrade", "message"), [pytest.param(*rest, id=name) for name, *rest in UPGRADES])
def test_an_upgrade_that_does_not_do_is_named(upgrade: Any, message: str) -> None:
    with pytest.raises(UnknownType) as refused:
        read(stored(OldReport("Q3", 5)), Renamed, version=2, upgrade=upgrade)
    assert str(refused.value) == message


def test_an_older_version_that_fits_needs_no_upgrade() -> None:
    assert read(stored(OldReport("Q3", 5)), LongerReport, version=4).pages == 5


def test_a_newer_version_is_refused() -> None:
    with pytest.raises(UnknownType) as refused:
        read(stored(OldReport("Q3", 5), version=3), OldReport, version=2)
    assert str(refused.value) == (
        "state: the data has version 3 of Report, but the class here has version 2; run the newer code"
    )


class Plain:
    def __init__(self, x: int) -> None:
        self.x = x


class PlainToday:
    def __init__(self, y: int) -> None:
        self.y = y


class Trouble(Exception):
    def __init__(self, x: int) -> None:
        super().__init__(x)
        self.x = x


class TroubleToday(Exception):
    y: int


def test_plain_classes_and_exceptions_upgrade_too() -> None:
    def upgrade(version: int, fields: dict[str, Any]) -> dict[str, Any]:
        return {"y": fields["x"] + version}

    assert vars(read(stored(Plain(5)), PlainToday, version=2, upgrade=upgrade)) == {"y": 6}
    trouble = read(stored(Trouble(5)), TroubleToday, version=2, upgrade=upgrade)
    assert (trouble.args, vars(trouble)) == ((5,), {"y": 6})
    with pytest.raises(UnknownType, match=r"the data has version 3 of Report"):
        read(stored(Trouble(5), version=3), TroubleToday, version=2)


# -- enums -------------------------------------------------------------------------------------------


class OldColour(enum.Enum):
    RED = 1
    GREEN = 2


class NewColour(enum.Enum):
    RED = "another value"
    GREEN = "green"
    BLUE = "blue"


class OneColour(enum.Enum):
    RED = 1


class OldRights(enum.Flag):
    READ = 1
    WRITE = 2
    RUN = 4


class NewRights(enum.Flag):
    READ = 1


def test_members_are_known_by_name() -> None:
    assert read(stored(OldColour.RED), NewColour) is NewColour.RED


def test_a_member_that_is_gone_is_named() -> None:
    with pytest.raises(UnknownType) as refused:
        read(stored(OldColour.GREEN), OneColour)
    assert str(refused.value) == (
        "state: the enum Report has no member 'GREEN', which the data has; add it, or make it an alias of another "
        "member"
    )
    with pytest.raises(UnknownType, match=r"^state: the flag Report has no value 6, which the data has$"):
        read(stored(OldRights.WRITE | OldRights.RUN), NewRights)


def test_another_kind_of_class_under_the_same_name_is_told() -> None:
    for value, cls, message in (
        (OldReport("Q3", 5), NewColour, "state: Report was stored as a record, but is an enum here"),
        (OldColour.RED, OldReport, "state: Report was stored as an enum member, but is a record here"),
        (OldReport("Q3", 5), Trouble, "state: Report was stored as a record, but is an exception here"),
        (Trouble(5), ModelReport, "state: Report was stored as an exception, but is a pydantic model here"),
    ):
        with pytest.raises(UnknownType) as refused:
            read(stored(value), cls)
        assert str(refused.value) == f"{message}; give it another name"


class Words(list[str]):
    pass


@dataclass(slots=True)
class Closed:
    title: str
    pages: int


def test_data_whose_class_cannot_be_stored_any_more_is_told() -> None:
    with pytest.raises(
        UnknownType, match=r"^state: the data has the type 'Report', but Words is derived from list"
    ):
        read(stored(OldReport("Q3", 5)), Words)
    report = OldReport("Q3", 5)
    report.beside = 1  # type: ignore[attr-defined]
    with pytest.raises(UnknownType) as refused:
        read(stored(report), Closed)
    assert str(refused.value) == (
        "state: Report has no place for the attribute 'beside', which the data has; add it to its slots"
    )
