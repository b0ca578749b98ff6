from django.db import migrations

ORIGIN = "CREATE SEQUENCE IF NOT EXISTS locking_token_origin"
NEXT_TOKEN = """
CREATE OR REPLACE FUNCTION locking_next_token() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    clock CONSTANT bigint := extract(epoch FROM clock_timestamp()) * 1000000;
    origin CONSTANT bigint := extract(epoch FROM pg_postmaster_start_time()) * 1000000
        + 'locking_token'::regclass::oid::bigint;
    token bigint := nextval('locking_token');
BEGIN
    IF token > clock - 1000000 AND origin = (SELECT last_value FROM locking_token_origin) THEN
        RETURN token;
    END IF;
    PERFORM pg_advisory_lock(7814098241837253);  -- all others that need to raise it wait here
    BEGIN
        PERFORM set_config('synchronous_commit', 'on', TRUE);  -- a crash must not undo it
        token := nextval('locking_token');
        IF origin <> (SELECT last_value FROM locking_token_origin) THEN
            token := setval('locking_token', greatest(clock, token + 60000000));
            PERFORM setval('locking_token_origin', origin);
        ELSIF token <= clock - 1000000 THEN
            token := setval('locking_token', clock);
        END IF;
    EXCEPTION WHEN OTHERS OR query_canceled THEN
        PERFORM pg_advisory_unlock(7814098241837253);
        RAISE;
    END;
    PERFORM pg_advisory_unlock(7814098241837253);
    RETURN token;
END $$
"""


def create(apps, schema_editor):
    """Return tokens that also grow when the sequence falls: in a restore, a failover, a crash.

    The sequence follows the clock, at most a second behind. After each start of a server, and when
    it is a new one, it is also raised by a minute: a standby may lack as much. `origin` tells
    these apart; it is kept in a sequence, because other transactions see that at once.
    """
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(ORIGIN)
        schema_editor.execute(NEXT_TOKEN)


def drop(apps, schema_editor):
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute("DROP FUNCTION IF EXISTS locking_next_token")
        schema_editor.execute("DROP SEQUENCE IF EXISTS locking_token_origin")


class Migration(migrations.Migration):
    dependencies = [
        ("locking", "0007_indexes_of_lists"),
    ]

    operations = [migrations.RunPython(create, drop)]
