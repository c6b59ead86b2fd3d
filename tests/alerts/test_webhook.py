"""One POST against receivers that do their worst."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from typing import Any

import pytest

from ledger.alerts import addresses, webhook
from tests.alerts.kit import Receiver

SECRET = webhook.make_secret()


def post(url: str, seconds: float = 10.0, body: bytes = b"{}") -> int:
    return webhook.post_signed(
        url, body, message_id="m1", timestamp=1_700_000_000, keys=[SECRET], seconds=seconds
    )


@pytest.mark.case(62)
def test_a_receiver_can_check_who_sent_what_and_when(receiver: Receiver) -> None:
    assert post(receiver.url("ok"), body=b'{"sequence":7}') == 200
    got = receiver.got[0]
    signed = f"{got.headers['webhook-id']}.{got.headers['webhook-timestamp']}.".encode() + got.body
    key = base64.b64decode(SECRET.removeprefix("whsec_"))
    wanted = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    assert got.headers["webhook-signature"] == f"v1,{wanted}"
    assert (got.headers["webhook-id"], got.headers["webhook-timestamp"]) == ("m1", "1700000000")


@pytest.mark.case(62)
@pytest.mark.parametrize("path", ["hang", "drip"])
def test_a_receiver_that_hangs_or_drips_is_left_at_the_deadline(
    receiver: Receiver, path: str
) -> None:
    began = time.monotonic()
    with pytest.raises(webhook.Unreachable, match=r"no answer within 0\.5 s"):
        post(receiver.url(path), seconds=0.5)
    assert time.monotonic() - began < 5


@pytest.mark.case(62)
def test_no_more_than_a_little_is_read_of_an_answer(receiver: Receiver) -> None:
    assert post(receiver.url("huge")) == 200
    # What lies in the buffers of both ends is all that it could write.
    assert receiver.sent < 64 << 20


@pytest.mark.case(62)
@pytest.mark.parametrize(
    ("path", "error", "said"),
    [("500", webhook.Unreachable, "answered 500"), ("404", webhook.Refused, "answered 404"),
     ("loop", webhook.Unreachable, "redirects are not followed"),
     ("close", webhook.Unreachable, "without an HTTP answer")],
)  # fmt: skip
def test_anything_but_a_good_answer_is_a_failure_with_a_name(
    receiver: Receiver, path: str, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said) as raised:
        post(receiver.url(path))
    assert "script" not in str(raised.value)
    assert len(receiver.got) == 1


@pytest.mark.case(62)
@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "[::1]", "10.1.2.3", "169.254.169.254", "192.168.0.1", "0.0.0.0",
     "[::ffff:127.0.0.1]", "[64:ff9b::7f00:1]", "[fe80::1]", "100.64.0.1", "224.0.0.1",
     "[::127.0.0.1]", "[::ffff:0:10.0.0.1]", "[fec0::1]", "2130706433", "0x7f.1", "017700000001"],
)  # fmt: skip
def test_no_private_address_is_posted_to_unless_it_is_allowed(settings: Any, host: str) -> None:
    settings.LONGWATCH_ALERT_NETWORKS = []
    with pytest.raises(addresses.AddressRefused, match="LONGWATCH_ALERT_NETWORKS"):
        post(f"http://{host}:9/")


def test_a_name_with_one_private_address_is_refused_whole() -> None:
    found: Any = [(0, 0, 0, "", ("93.184.215.14", 80)), (0, 0, 0, "", ("10.0.0.1", 80))]
    addresses.check_addresses("mixed", found[:1])
    with pytest.raises(addresses.AddressRefused, match=r"10\.0\.0\.1"):
        addresses.check_addresses("mixed", found)


@pytest.mark.parametrize(
    "url",
    ["ftp://a/", "http://", "https://a b/", "http://a/\r\nX: y", "http://u:p@a/", "http://a:0/",
     "http://a:99999/", "file:///etc/passwd", "http://ä/"],
)  # fmt: skip
def test_no_other_address_is_taken(url: str) -> None:
    with pytest.raises(ValueError, match=r"address|host|Port|write"):
        webhook.split_url(url)
