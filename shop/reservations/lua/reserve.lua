-- Reserves units for a customer, once for each number, and adds an entry to the stream.
--
-- KEYS  1 state, 2 taken, 3 outcomes, 4 orders (see shop/reservations/store.py)
-- ARGV  1 number    of the order to write; the same for the same form
--       2 customer, 3 quantity, 4 digest of the key
--       5 limit     units that one customer may have; 0 refuses new reservations
-- Returns 'queued', 'replayed', 'key_reused', 'limit', 'sold_out' or 'not_loaded'

local number, customer, quantity = ARGV[1], ARGV[2], tonumber(ARGV[3])

local left = redis.call('HGET', KEYS[1], 'left')
if not left then
  return 'not_loaded'
end
local outcome = redis.call('HGET', KEYS[3], number)
if outcome then
  return tonumber(outcome:match('^%d+')) == quantity and 'replayed' or 'key_reused'
end
if tonumber(redis.call('HGET', KEYS[2], customer) or 0) + quantity > tonumber(ARGV[5]) then
  return 'limit'
end
if tonumber(left) < quantity then
  return 'sold_out'
end
redis.call('HINCRBY', KEYS[1], 'left', -quantity)
redis.call('HINCRBY', KEYS[2], customer, quantity)
redis.call('HSET', KEYS[3], number, quantity .. ' waiting')
redis.call('XADD', KEYS[4], '*', 'n', number, 'c', customer, 'q', quantity, 'k', ARGV[4])
return 'queued'
