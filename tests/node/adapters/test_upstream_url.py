from __future__ import annotations

import pytest

from iop_node.adapters.refused import PayloadRefused
from iop_node.adapters.upstream_url import check_upstream_url, is_link_local


def check(url: str, *, allow_link_local: bool = False) -> None:
    check_upstream_url(url, what="adapter a", allow_link_local=allow_link_local)


def code_of(url: str) -> str:
    with pytest.raises(PayloadRefused) as refused:
        check(url)
    assert "s3cret" not in str(refused.value)
    return refused.value.code


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8000",
        "http://localhost/v1",
        "https://api.example.com/proxy/",
        "http://[::1]:8080/v1",
        "http://10.1.2.3",
        "http://model_server:9000",
        "https://gateway.example/v1?tenant=7",
    ],
)
def test_an_ordinary_upstream_is_dialled(url):
    check(url)


@pytest.mark.req("SEC-1", "NODE-3")
@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://host/",
        "gopher://host/",
        "unix:/run/x.sock",
        "//host/path",
        "host:8000",
        "",
        "http://",
        "http:///v1",
        "http://user:s3cret@host/",
        "http://s3cret@host/",
        "http://@host/",
        "http://host:99999/",
        "http://host:0/",
        "http://host:http/",
        "http://[::1/",
        "http://host/\r\nX-Evil: 1",
        "http://host /v1",
        "http://host\\@evil/",
        "http://host/#fragment",
        "http://2852039166/",
        "http://0xa9fea9fe/",
        "http://169.254.43518/",
        "http://127.1/",
        "http://größe.example/",
        "http://host/größe",
    ],
)
def test_what_is_no_plain_http_address_is_refused(url):
    assert code_of(url) == "bad_base_url"


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest",
        "http://169.254.1.1:80",
        "http://[fe80::1]/",
        "http://[fe80::1%25eth0]/",
        "http://[::ffff:169.254.169.254]/",
        "http://[64:ff9b::a9fe:a9fe]/",
        "http://[fd00:ec2::254]/",
        "http://100.100.100.200/",
        "http://METADATA.google.internal./computeMetadata",
    ],
)
def test_a_link_local_or_metadata_address_is_dialled_only_where_allowed(url):
    assert code_of(url) == "link_local_refused"
    check(url, allow_link_local=True)


def test_what_is_no_address_is_not_called_one():
    with pytest.raises(ValueError):
        is_link_local("example.com")
