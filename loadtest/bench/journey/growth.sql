-- A shop that has grown, on MariaDB with its tables of numbers. growth_data.py names the sizes, and
-- has created the sales before: the first one is big, the others are small.

SET @big = (SELECT id FROM shop_sale WHERE slug = 'growth-1');
SET @small = (SELECT id FROM shop_sale WHERE slug = 'growth-2');
SET @stock = (SELECT stock_id FROM shop_sale WHERE slug = 'growth-2');

INSERT INTO shop_user (password, is_superuser, username, first_name, last_name, email, is_staff,
    is_active, date_joined)
SELECT '!', 0, CONCAT('customer-', seq), '', '', CONCAT(seq, '@example.com'), 0, 1,
    UTC_TIMESTAMP(6) - INTERVAL $CUSTOMERS - seq SECOND
FROM seq_1_to_$CUSTOMERS;

SET @customer = (SELECT MIN(id) FROM shop_user WHERE username LIKE 'customer-%');

-- One customer has an order in each of the small sales, and several in some.
INSERT INTO shop_order (number, customer_id, sale_id, quantity, unit_price, status, `key`,
    created_at, pay_by, closed_at)
SELECT UPPER(LEFT(SHA2(seq, 256), 16)),
    CASE WHEN seq > $SMALL THEN @customer + seq - $SMALL - 1 WHEN seq % 600 = 0 THEN @customer
        ELSE @customer + seq * 7919 % $CUSTOMERS END,
    IF(seq > $SMALL, @big, @small + seq % $OTHERS), 1, 9.90,
    CASE seq % 20 WHEN 0 THEN 'pending' WHEN 1 THEN 'cancelled' WHEN 2 THEN 'expired'
        WHEN 3 THEN 'expired' ELSE 'paid' END,
    SHA2(CONCAT('key', seq), 256),
    UTC_TIMESTAMP(6) - INTERVAL (IF(seq > $SMALL, $ORDERS, $SMALL) - seq) * 8 SECOND,
    UTC_TIMESTAMP(6) + INTERVAL IF(seq % 20 = 0, 86400, -60) SECOND,
    IF(seq % 20 = 0, NULL,
        UTC_TIMESTAMP(6) - INTERVAL (IF(seq > $SMALL, $ORDERS, $SMALL) - seq) * 8 SECOND)
FROM seq_1_to_$ORDERS;

-- The ledger keeps both movements of orders that were deleted.
INSERT INTO inventory_stockmovement (stock_id, delta, reason, order_number, quantity_after,
    fence_epoch, fence_token, created_at)
SELECT @stock + seq % $OTHERS, delta, reason, UPPER(LEFT(SHA2(CONCAT('archived', seq), 256), 16)),
    NULL, 1, 0, UTC_TIMESTAMP(6) - INTERVAL 60 DAY
FROM seq_1_to_$ARCHIVED,
    (SELECT -1 AS delta, 'reserved' AS reason UNION SELECT 1, 'returned') ways
ORDER BY delta, seq;

INSERT INTO inventory_stockmovement (stock_id, delta, reason, order_number, quantity_after,
    fence_epoch, fence_token, created_at)
SELECT s.stock_id, way * CAST(o.quantity AS SIGNED), reason, o.number, NULL, 1, 0, o.created_at
FROM shop_order o JOIN shop_sale s ON s.id = o.sale_id,
    (SELECT -1 AS way, 'reserved' AS reason UNION SELECT 1, 'returned') ways
WHERE way = -1 OR o.status IN ('cancelled', 'expired')
ORDER BY way, o.id;

UPDATE inventory_stock SET quantity = (SELECT SUM(delta) FROM inventory_stockmovement m
    WHERE m.stock_id = inventory_stock.id);

INSERT INTO shop_customerquota (customer_id, sale_id, taken)
SELECT customer_id, sale_id, SUM(IF(status IN ('pending', 'paid'), quantity, 0))
FROM shop_order GROUP BY customer_id, sale_id;

INSERT INTO shop_payment (reference, order_id, amount, status, created_at, answer_by, closed_at)
SELECT UPPER(LEFT(SHA2(CONCAT('payment', id), 256), 16)), id, unit_price, 'approved', created_at,
    pay_by, closed_at
FROM shop_order WHERE status = 'paid' ORDER BY id;

INSERT INTO shop_rejectedreservation (number, sale_id, customer_id, quantity, reason, detail,
    created_at)
SELECT UPPER(LEFT(SHA2(CONCAT('rejected', seq), 256), 16)), @small, @customer + seq, 1,
    'sold_out', '', UTC_TIMESTAMP(6)
FROM seq_1_to_20000;

INSERT INTO locking_jobrun (digest, task, arguments, scheduled_for, state, attempts, duplicates,
    host, started_at, ended_at, lease_until, sent_at, detail)
SELECT MD5(seq), ELT(1 + seq % 5, 'shop.tasks.expire_unpaid_orders',
        'shop.tasks.time_out_payments', 'shop.tasks.expire_unpaid_orders',
        'shop.tasks.time_out_payments', 'shop.tasks.reconcile_queued_sales'),
    '', at, 'done', 1, 0, 'worker-1', at, at, at, at, '0'
FROM (SELECT seq, UTC_TIMESTAMP(6) - INTERVAL (($RUNS - seq) * 86400 / $RUNS) SECOND AS at
    FROM seq_1_to_$RUNS) runs;

INSERT INTO locking_idempotencykey (digest, user, fingerprint, status, headers, body, created_at)
SELECT SHA2(seq, 256), seq, SHA2(CONCAT('print', seq), 256), 303, '{}', '',
    UTC_TIMESTAMP(6) - INTERVAL (($KEYS - seq) * 86400 / $KEYS) SECOND
FROM seq_1_to_$KEYS;

INSERT INTO django_session (session_key, session_data, expire_date)
SELECT LEFT(SHA2(seq, 256), 32), REPEAT('x', 200),
    UTC_TIMESTAMP(6) - INTERVAL 5000 MINUTE + INTERVAL seq MINUTE
FROM seq_1_to_$SESSIONS;

ANALYZE TABLE shop_order, shop_user, shop_customerquota, shop_payment, inventory_stockmovement,
    shop_rejectedreservation, locking_jobrun, locking_idempotencykey, django_session;
