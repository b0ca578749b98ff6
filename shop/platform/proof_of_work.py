"""Proof of work: an account or a place in a waiting room costs its client some computing.

A challenge is a random seed, signed together with its time and its purpose. It is solved by a
number with which the SHA-256 of "<seed>.<number>" begins with PROOF_OF_WORK zero bits; each bit
doubles the work. static/js/proof.js searches for the number. A client without script sends the
challenge without one, WAIT seconds after it got it; PROOF_WAIT_LIMIT limits that per address.

A challenge counts once. While the Redis of CACHE_URL is unavailable, it counts until it expires.
"""

import hashlib
import logging
import re
import secrets
from collections.abc import Mapping

from django.conf import settings
from django.core.cache import cache
from django.core.signing import BadSignature, SignatureExpired, TimestampSigner
from redis.exceptions import RedisError

from shop.errors import ProofRequired
from shop.platform import rate_limits

logger = logging.getLogger("shop")

CHALLENGE, ANSWER = "proof_challenge", "proof_answer"
"""The form fields."""
LIFETIME, WAIT = 600, 60
"""Seconds for which a challenge can be solved, and after which it counts without a solution."""


def offer(purpose: str, *, sent: str = "") -> dict[str, object]:
    """Return the challenge that a form needs; the one that was sent before if it is still valid.

    An empty one if no proof is needed. A challenge of one purpose is worthless for another.
    """
    if not settings.PROOF_OF_WORK:
        return {}
    signer = _signer(purpose)
    try:
        signer.unsign(sent, max_age=LIFETIME)
    except BadSignature:
        sent = signer.sign(secrets.token_hex(16))
    return {"challenge": sent, "bits": settings.PROOF_OF_WORK}


def check(sent: Mapping[str, str], *, purpose: str, address: str) -> None:
    """Return if a form has a proof, or none is needed.

    Raise ProofRequired with the challenge to solve, and TooMany if the address has sent too many
    forms without a solution.
    """
    if not settings.PROOF_OF_WORK:
        return
    text, number, signer = sent.get(CHALLENGE, ""), sent.get(ANSWER, ""), _signer(purpose)
    try:
        seed = signer.unsign(text, max_age=LIFETIME)
    except BadSignature:
        raise ProofRequired(more=offer(purpose)) from None
    if not number:
        try:
            signer.unsign(text, max_age=WAIT)
        except SignatureExpired:
            rate_limits.count(settings.PROOF_WAIT_LIMIT, "proof", address)
        else:
            raise ProofRequired(more=offer(purpose, sent=text))
    elif not is_solution(seed, number, settings.PROOF_OF_WORK):
        raise ProofRequired(more=offer(purpose))
    try:
        if not cache.add(f"proof:{seed}", 1, LIFETIME):
            raise ProofRequired(more=offer(purpose))
    except (RedisError, OSError) as error:
        logger.warning("A proof of work may be used again: Redis is unavailable (%s)", error)


def is_solution(seed: str, number: str, bits: int) -> bool:
    """Return True if the digest begins with this many zero bits."""
    if not re.fullmatch("[0-9]{1,16}", number, re.ASCII):
        return False
    digest = hashlib.sha256(f"{seed}.{number}".encode()).digest()
    return int.from_bytes(digest) >> (256 - bits) == 0


def _signer(purpose: str) -> TimestampSigner:
    return TimestampSigner(salt=f"shop.platform.proof_of_work.{purpose}")
