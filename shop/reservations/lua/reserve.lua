-- Reserves pieces for a customer, once for each number, and puts the order in the stream.
--
-- KEYS  1 state, 2 taken, 3 tickets, 4 orders (see shop/reservations/store.py)
-- ARGV  1 number    of the order that shall be written; the same for the same form
--       2 customer, 3 quantity, 4 key's digest
--       5 limit     pieces that one customer may have; 0 takes nothing new
-- Returns 'queued', 'replayed', 'key_reused', 'limit', 'sold_out' or 'not_loaded'

local number, customer, quantity = ARGV[1], ARGV[2], tonumber(ARGV[3])

local left = redis.call('HGET', KEYS[1], 'left')
if not left then
  return 'not_loaded'
end
local ticket = redis.call('HGET', KEYS[3], number)
if ticket then
  return tonumber(ticket:match('^%d+')) == quantity and 'replayed' or 'key_reused'
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
