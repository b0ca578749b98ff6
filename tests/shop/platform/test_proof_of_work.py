"""Proof of work: off by default, counted once and bound to its purpose."""

from itertools import count
from typing import Any

import pytest
from django.test import Client

from shop.models import User
from shop.platform import proof_of_work
from shop.platform.proof_of_work import is_solution
from tests.shop.making import PASSWORD, hidden_fields, signed_in
from tests.waiting_room.rooms import a_room

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("in_force")]

SIGN_UP = "/accounts/sign-up/"
Fields = dict[str, str]


def solved(challenge: str, bits: int = 8, *, is_right: bool = True) -> Fields:
    """Return the fields of a form with a solution, or with a number that is none."""
    seed = challenge.split(":")[0]
    number = next(n for n in map(str, count()) if is_solution(seed, n, bits) == is_right)
    return {"proof_challenge": challenge, "proof_answer": number}


def shown(client: Client) -> str:
    """Return the challenge of the sign-up form."""
    return hidden_fields(client.get(SIGN_UP).text)["proof_challenge"]


def sign_up(client: Client, proof: Fields, name: str = "new") -> Any:
    form = {"username": name, "password1": PASSWORD, "password2": PASSWORD}
    return client.post(SIGN_UP, {**form, **proof})


PROOFS = {
    "none": lambda challenge: {},
    "too early without script": lambda challenge: {"proof_challenge": challenge},
    "wrong number": lambda challenge: solved(challenge, is_right=False),
    "no number": lambda challenge: {**solved(challenge), "proof_answer": "٣"},
    "long number": lambda challenge: {**solved(challenge), "proof_answer": "1" * 17},
    "forged challenge": lambda challenge: solved("x" + challenge[1:]),
    "another purpose": lambda challenge: solved(
        str(proof_of_work.offer("join sale 1")["challenge"])
    ),
}


@pytest.mark.parametrize("proof", PROOFS)
def test_sign_up_without_a_proof_is_refused(proof, client, settings) -> None:
    """The form comes back with the name and with a challenge that can be solved."""
    settings.PROOF_OF_WORK = 8
    refused = sign_up(client, PROOFS[proof](shown(client)))
    assert (refused.status_code, User.objects.count()) == (403, 0)
    assert 'value="new"' in refused.text
    again = sign_up(client, solved(hidden_fields(refused.text)["proof_challenge"]))
    assert (again.status_code, User.objects.count()) == (302, 1)


def test_proof_counts_once(client, settings) -> None:
    settings.PROOF_OF_WORK = 8
    proof = solved(shown(client))
    statuses = [sign_up(Client(), proof, f"new-{n}").status_code for n in range(2)]
    assert statuses == [302, 403]


def test_proof_of_a_form_with_an_error_is_kept(client, settings) -> None:
    settings.PROOF_OF_WORK = 8
    challenge = shown(client)
    refused = sign_up(client, solved(challenge), "bad name")
    assert refused.status_code == 400
    assert hidden_fields(refused.text)["proof_challenge"] == challenge
    assert sign_up(client, solved(challenge)).status_code == 302


def test_expired_challenge_is_refused(client, settings, monkeypatch) -> None:
    settings.PROOF_OF_WORK = 8
    challenge = shown(client)
    monkeypatch.setattr(proof_of_work, "LIFETIME", -1)
    assert sign_up(client, solved(challenge)).status_code == 403


def test_browser_without_script_waits_instead(client, settings, monkeypatch) -> None:
    """A few times per address: otherwise a program would collect challenges and wait once."""
    settings.PROOF_OF_WORK, settings.PROOF_WAIT_LIMIT = 8, "2/hour"
    waiting = [{"proof_challenge": shown(client)} for _ in range(3)]
    assert sign_up(Client(), waiting[0]).status_code == 403
    monkeypatch.setattr(proof_of_work, "WAIT", -1)
    statuses = [sign_up(Client(), proof, f"new-{n}").status_code for n, proof in enumerate(waiting)]
    assert statuses == [302, 302, 429]
    assert sign_up(Client(), solved(shown(client)), "solved").status_code == 302


@pytest.mark.django_db(transaction=True)
def test_challenge_to_join_a_room_belongs_to_one_customer(settings) -> None:
    settings.PROOF_OF_WORK = 8
    path = f"/sales/{a_room().sale.slug}/room/join/"
    other, own = (signed_in(headers={"Accept": "application/json"}) for _ in range(2))
    refused = own.post(path)
    assert (refused.status_code, refused.json()["error"]) == (403, "proof_required")
    proof = solved(refused.json()["challenge"])
    assert [one.post(path, proof).status_code for one in (other, own)] == [403, 200]
