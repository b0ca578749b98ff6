-- Reserves units for a customer, once for each number, and adds an entry to the stream.
--
-- KEYS  1 state, 2 taken, 3 outcomes, 4 waiting, 5 orders (see shop/reservations/store.py)
-- ARGV  1 number    of the order to write; the same for the same form
--       2 customer, 3 quantity, 4 digest of the key
--       5 limit     units that one customer may have; 0 refuses new reservations, and '' checks
--                   nothing: the entry comes from an older generation
-- Returns 'queued', 'replayed', 'key_reused', 'limit', 'sold_out' or 'not_loaded'

local state, taken, outcomes, waiting, orders = unpack(KEYS)
local number, customer, quantity, limit = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[5])

local stock, queued = unpack(redis.call('HMGET', state, 'stock', 'queued'))
if limit and not stock or not limit and redis.call('EXISTS', state) == 0 then
  return 'not_loaded'
end
local earlier = redis.call('HGET', waiting, number) or redis.call('HGET', outcomes, number)
if earlier then
  return tonumber(earlier:match('^%d+')) == quantity and 'replayed' or 'key_reused'
end
local field = 'customer:' .. customer
if limit then
  local ordered = redis.call('HGET', taken, customer) or 0
  if ordered + (redis.call('HGET', waiting, field) or 0) + quantity > limit then
    return 'limit'
  end
  if stock - (queued or 0) < quantity then
    return 'sold_out'
  end
end
redis.call('HINCRBY', state, 'queued', quantity)
redis.call('HINCRBY', waiting, field, quantity)
redis.call('HSET', waiting, number, quantity)
redis.call('XADD', orders, '*', 'n', number, 'c', customer, 'q', quantity, 'k', ARGV[4])
if not limit then -- the process that fills this generation may be killed
  redis.call('PEXPIRE', waiting, redis.call('PTTL', state))
  redis.call('PEXPIRE', orders, redis.call('PTTL', state))
end
return 'queued'
