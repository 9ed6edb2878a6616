"""The limit of open files is raised to what the administrator allows, and stays where it cannot be."""

import resource

import pytest

from fourfold.config.errors import raise_file_limit

NO_LIMIT = resource.RLIM_INFINITY
MOST = 1 << 20


@pytest.mark.parametrize(
    ("soft", "hard", "after"),
    [
        (1024, 4096, 4096),
        (1024, 1024, 1024),
        (1024, 1 << 30, MOST),
        (1024, NO_LIMIT, MOST),
        (1 << 25, 1 << 30, 1 << 25),
        (NO_LIMIT, NO_LIMIT, NO_LIMIT),
    ],
)
def test_it_is_raised_and_never_lowered(monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, after: int) -> None:
    limits = [(soft, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, wanted: limits.append(wanted))
    assert raise_file_limit() == after
    assert limits[-1] == (after, hard)


@pytest.mark.parametrize("error", [ValueError("not allowed"), PermissionError(1, "Operation not permitted")])
def test_where_it_cannot_be_raised_it_stays(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def forbidden(*_: object) -> None:
        raise error

    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", forbidden)
    assert raise_file_limit() == 1024
