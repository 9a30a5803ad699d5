"""Where a route may be asked: on this machine, at a plain address that holds no secret."""

from __future__ import annotations

import pytest

from pipeline.cli.options import ArgumentsError, check_place
from pipeline.records import Route


@pytest.mark.parametrize("api", ["sglang", "vllm", "emulator"])
@pytest.mark.parametrize("url", ["http://127.0.0.1:8000", "http://localhost:30000/", "http://[::1]:8000"])
def test_a_plain_address_of_this_machine_is_taken(api: str, url: str) -> None:
    check_place(Route(api, "m"), url)  # type: ignore[arg-type]  # one of the APIs' names


@pytest.mark.parametrize(
    "url",
    [
        "http://user:s3cret-pw@127.0.0.1:8000",
        "http://127.0.0.1:8000/?key=s3cret-pw",
        "http://127.0.0.1:8000/#s3cret-pw",
        "http://127.0.0.1:abc",
        "http://127.0.0.1:99999",
        "http://127.0.0.1:0",
        "http://[::1",
        "127.0.0.1:8000",
        "ftp://127.0.0.1",
    ],
)
def test_any_other_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ArgumentsError, match=r"--base-url is no .*address: give http://127\.0\.0\.1:PORT") as caught:
        check_place(Route("sglang", "m"), url)

    assert "s3cret" not in str(caught.value)


def test_an_engine_on_another_machine_is_refused() -> None:
    with pytest.raises(ArgumentsError, match="is not on this machine; an engine elsewhere is asked through a tunnel"):
        check_place(Route("vllm", "m"), "http://10.0.0.7:8000")
