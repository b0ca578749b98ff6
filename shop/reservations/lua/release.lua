-- Releases the units of an order that was cancelled or has expired, once.
--
-- KEYS  1 state, 2 taken, 3 outcomes
-- ARGV  1 customer, 2 quantity, 3 number, 4 units to add unless they were, so that the customer
--       is refused from now on; or 0
-- Returns 1, or 0 if the sale is not loaded or the units are released already (the reply was lost)

local returned = ARGV[2] .. ' returned'
if redis.call('HEXISTS', KEYS[1], 'stock') == 0
    or redis.call('HGET', KEYS[3], ARGV[3]) == returned then
  return 0
end
redis.call('HINCRBY', KEYS[1], 'stock', ARGV[2])
local ordered = redis.call('HINCRBY', KEYS[2], ARGV[1], -ARGV[2])
if ordered < tonumber(ARGV[4]) then
  redis.call('HINCRBY', KEYS[2], ARGV[1], ARGV[4])
end
redis.call('HSET', KEYS[3], ARGV[3], returned)
return 1
