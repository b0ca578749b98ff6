"""Staff list the held locks in Django's admin and release one of them."""

from __future__ import annotations

import re

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.test import Client
from django.urls import reverse

from locking import LockLost, locks

pytestmark = pytest.mark.django_db

LIST = "/admin/locking/heldlock/"


def staff(*permissions: str) -> Client:
    user = get_user_model().objects.create(username="bo", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client = Client()
    client.force_login(user)
    return client


def release_page(page: str) -> str:
    """Return the address of the only release link of a page."""
    (link,) = re.findall(r'href="(/admin/locking/heldlock/[^"]+/change/)"', page)
    return link


def token_of(page: str) -> str:
    return re.search(r'name="token" value="(\d+)"', page)[1]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("alias", ["redis", "database", "process"])
def test_page_shows_a_held_lock(admin_client, alias):
    with locks[alias].lock("report:<7>") as lease:
        page = admin_client.get(LIST, {"backend": alias}).text
        assert ("Break…" in page, "Release" in page) == (True, False)
        for shown in ("<h1>Held locks<", "report:&lt;7&gt;", lease.owner, f">{lease.token}<"):
            assert shown in page
        assert re.search(r"<td>20\d\d-\d\d-\d\d \d\d:\d\d:\d\d</td>", page), "since when"
        assert bool(re.search(r"<td>\d\.\d s</td>", page)) == (alias != "process"), "time left"
        assert "No locks" in admin_client.get(LIST, {"backend": alias, "q": "other"}).text
    assert "No locks are held" in admin_client.get(LIST, {"backend": alias}).text


def test_lock_is_released_after_its_name_is_typed(admin_client):
    lock = locks["redis"].lock("a b/ü:7")
    lock.acquire()
    lease = lock.lease
    path = release_page(admin_client.get(LIST, {"backend": "redis"}).text)
    asked = admin_client.get(path).text
    assert lease.owner in asked
    form = {"token": token_of(asked), "confirm": "something else"}
    refused = admin_client.post(path, form)
    assert refused.status_code == 400
    assert token_of(refused.text) == str(lease.token)
    assert lease.backend.inspect()
    done = admin_client.post(path, {**form, "confirm": lease.name}, follow=True).text
    assert f"Lock {lease.name} was broken. Its former holder may still be running." in done
    assert lease.backend.inspect() == []
    with pytest.raises(LockLost):
        lock.release()
    entry = LogEntry.objects.get()
    assert (entry.object_repr, entry.user.username) == (lease.name, "admin")
    assert lease.owner in entry.change_message
    assert lease.owner in admin_client.get(path.replace("/change/", "/history/")).text


def test_next_holder_is_not_released(admin_client):
    with locks["redis"].lock("handed over"):
        path = release_page(admin_client.get(LIST, {"backend": "redis"}).text)
        token = token_of(admin_client.get(path).text)
    with locks["redis"].lock("handed over") as lease:
        form = {"token": token, "confirm": "handed over"}
        assert "another holder" in admin_client.post(path, form, follow=True).text
        lease.extend(5)
    assert "not held any more" in admin_client.post(path, form, follow=True).text
    assert not LogEntry.objects.exists()


@pytest.mark.parametrize(
    ("permission", "may_release"),
    [("release_lock", True), ("switch_lock", True), ("view_heldlock", False)],
)
def test_releasing_requires_a_permission(permission, may_release):
    client = staff(permission)
    with locks["redis"].lock("guarded"):
        page = client.get(LIST, {"backend": "redis"}).text
        assert "guarded" in page
        assert ("/change/" in page) == may_release
        path = reverse("admin:locking_heldlock_change", args=["redis guarded"])
        assert client.get(path).status_code == (200 if may_release else 403)
        assert client.post(path, {"confirm": "guarded"}).status_code == (
            302 if may_release else 403
        )
        assert locks["redis"].inspect()


def test_page_requires_a_permission():
    assert staff().get(LIST).status_code == 403


def test_unavailable_store_is_named(admin_client, settings):
    settings.LOCKS = {
        "redis": {**settings.LOCKS["redis"], "LOCATION": "redis://127.0.0.1:9/0"},
        "process": settings.LOCKS["process"],
    }
    page = admin_client.get(LIST, {"backend": "redis"})
    assert page.status_code == 200
    assert "errornote" in page.text
